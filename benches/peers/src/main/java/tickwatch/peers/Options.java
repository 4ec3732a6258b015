package tickwatch.peers;

import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

/** What the command line says; every option is given. */
record Options(
        String variant,
        String guarantee,
        String bootstrap,
        String applicationId,
        String source,
        String notifications,
        String candles,
        Path rules,
        long[] intervalsMs,
        long latenessMs,
        long commitIntervalMs,
        int threads,
        Path stateDir) {

    static Options parse(String[] arguments) {
        Map<String, String> given = new HashMap<>();
        for (int i = 0; i < arguments.length; i += 2) {
            if (!arguments[i].startsWith("--") || i + 1 == arguments.length) {
                throw new IllegalArgumentException("expected --NAME VALUE, found " + arguments[i]);
            }
            given.put(arguments[i].substring(2), arguments[i + 1]);
        }
        Options options = new Options(
                take(given, "variant"),
                take(given, "guarantee"),
                take(given, "bootstrap"),
                take(given, "application-id"),
                take(given, "source"),
                take(given, "notifications"),
                take(given, "candles"),
                Path.of(take(given, "rules")),
                Arrays.stream(take(given, "intervals-ms").split(",")).mapToLong(Long::parseLong).toArray(),
                Long.parseLong(take(given, "lateness-ms")),
                Long.parseLong(take(given, "commit-interval-ms")),
                Integer.parseInt(take(given, "threads")),
                Path.of(take(given, "state-dir")));
        if (!given.isEmpty()) {
            throw new IllegalArgumentException("unknown options: " + given.keySet());
        }
        return options;
    }

    private static String take(Map<String, String> given, String name) {
        String value = given.remove(name);
        if (value == null) {
            throw new IllegalArgumentException("missing option --" + name);
        }
        return value;
    }
}
