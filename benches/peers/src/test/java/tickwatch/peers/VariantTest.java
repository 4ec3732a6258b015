package tickwatch.peers;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import java.io.IOException;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Both variants against the same computation done plainly, in decimals and with every rule looked at. */
class VariantTest {
    private static final long LATENESS = 1_000;
    private static final long[] INTERVALS = {1_000, 60_000};
    private static final String[] OPS = {"<", "<=", "=", ">=", ">"};
    /** Event time between ticks, ms. */
    private static final long PACE = 60;

    @TempDir
    Path directory;

    private record PlainRule(String symbol, String id, String op, String kind, BigDecimal threshold) {
        String json() {
            return """
                    {"symbol":"%s","id":"%s","op":"%s","kind":"%s","threshold":"%s"}
                    """.formatted(symbol, id, op, kind, threshold.toPlainString());
        }

        boolean matches(BigDecimal price) {
            int order = price.compareTo(threshold);
            return switch (op) {
                case "<" -> order < 0;
                case "<=" -> order <= 0;
                case "=" -> order == 0;
                case ">=" -> order >= 0;
                default -> order > 0;
            };
        }
    }

    private record PlainTick(String symbol, BigDecimal price, BigDecimal volume, long ts) {
        String json(boolean asText) {
            return (asText
                            ? "{\"ts\":%4$d,\"more\":{\"price\":1},\"symbol\":\"%1$s\",\"price\":\"%2$s\",\"volume\":\"%3$s\"}"
                            : "{\"symbol\":\"%1$s\",\"price\":%2$s,\"volume\":%3$s,\"ts\":%4$d}")
                    .formatted(symbol, price.toPlainString(), volume.toPlainString(), ts);
        }
    }

    private record PlainWindow(String symbol, long intervalMs, long start) {}

    /** What one partition sends, computed from definitions. */
    private static final class Expected {
        final List<String> notifications = new ArrayList<>();
        final List<String> candles = new ArrayList<>();
        int late;
        int outOfOrder;

        Expected(List<PlainRule> rules, List<PlainTick> log) {
            Map<String, PlainTick> last = new HashMap<>();
            Map<PlainWindow, List<PlainTick>> windows = new HashMap<>();
            long maxTs = Long.MIN_VALUE / 2;
            for (int offset = 0; offset < log.size(); offset++) {
                PlainTick tick = log.get(offset);
                PlainTick before = last.get(tick.symbol);
                if (before == null || tick.ts >= before.ts) {
                    last.put(tick.symbol, tick);
                    for (PlainRule rule : rules) {
                        if (rule.symbol.equals(tick.symbol) && fires(rule, before, tick)) {
                            notifications.add(notification(rule, before, tick, offset));
                        }
                    }
                } else {
                    outOfOrder++;
                }
                for (long intervalMs : INTERVALS) {
                    long start = tick.ts / intervalMs * intervalMs;
                    if (start + intervalMs > maxTs - LATENESS) {
                        windows.computeIfAbsent(
                                        new PlainWindow(tick.symbol, intervalMs, start), window -> new ArrayList<>())
                                .add(tick);
                    } else {
                        late++;
                    }
                }
                maxTs = Math.max(maxTs, tick.ts);
            }
            long watermark = maxTs - LATENESS;
            windows.forEach((window, ticks) -> {
                if (window.start + window.intervalMs <= watermark) {
                    candles.add(candle(window, ticks));
                }
            });
        }

        private static boolean fires(PlainRule rule, PlainTick before, PlainTick tick) {
            boolean matches = rule.matches(tick.price);
            return rule.kind.equals("level") ? matches : matches && before != null && !rule.matches(before.price);
        }

        private static String notification(PlainRule rule, PlainTick before, PlainTick tick, int offset) {
            return ("{\"id\":\"ticks/0/%1$d/%2$s/%3$s/%4$s\",\"rule\":\"%4$s\",\"symbol\":\"%5$s\","
                            + "\"trigger\":\"%2$s\",\"op\":\"%3$s\",\"threshold\":%6$s,\"price\":%7$s,"
                            + "\"previous\":%8$s,\"ts\":%9$d,"
                            + "\"source\":{\"topic\":\"ticks\",\"partition\":0,\"offset\":%1$d}}")
                    .formatted(
                            offset,
                            rule.kind,
                            rule.op,
                            rule.id,
                            rule.symbol,
                            plain(rule.threshold),
                            plain(tick.price),
                            before == null ? "null" : plain(before.price),
                            tick.ts);
        }

        private static String candle(PlainWindow window, List<PlainTick> ticks) {
            PlainTick open = ticks.get(0);
            PlainTick close = open;
            BigDecimal high = open.price;
            BigDecimal low = open.price;
            BigDecimal volume = BigDecimal.ZERO;
            for (PlainTick tick : ticks) {
                open = tick.ts < open.ts ? tick : open;
                close = tick.ts >= close.ts ? tick : close;
                high = high.max(tick.price);
                low = low.min(tick.price);
                volume = volume.add(tick.volume);
            }
            return ("{\"symbol\":\"%s\",\"interval\":\"%s\",\"start\":%d,\"end\":%d,\"open\":%s,\"high\":%s,"
                            + "\"low\":%s,\"close\":%s,\"volume\":%s,\"count\":%d,\"status\":\"final\",\"revision\":0}")
                    .formatted(
                            window.symbol,
                            window.intervalMs == 1_000 ? "1s" : "1m",
                            window.start,
                            window.start + window.intervalMs,
                            plain(open.price),
                            plain(high),
                            plain(low),
                            plain(close.price),
                            plain(volume),
                            ticks.size());
        }

        private static String plain(BigDecimal number) {
            return number.stripTrailingZeros().toPlainString();
        }
    }

    /** Few ticks for the DSL: the test driver commits each one, and with RocksDB waits for the disk as it does. */
    @ParameterizedTest
    @CsvSource({"processor, 20000", "dsl, 1200"})
    void outputs_are_those_of_the_definitions(String variant, int ticksInLog) throws IOException {
        Random random = new Random(1);
        List<PlainRule> rules = rules(random);
        List<PlainTick> log = log(random, ticksInLog);
        Expected expected = new Expected(rules, log);
        assertFalse(expected.notifications.isEmpty(), "the log fires rules");
        assertFalse(expected.candles.isEmpty(), "the log closes windows");
        assertFalse(expected.late == 0 || expected.outOfOrder == 0, "the log has late and out-of-order ticks");

        try (TopologyTestDriver driver = driver(variant, rules)) {
            TestInputTopic<String, String> ticks =
                    driver.createInputTopic("ticks", new StringSerializer(), new StringSerializer());
            for (PlainTick tick : log) {
                ticks.pipeInput(tick.symbol, tick.json(random.nextBoolean()));
            }
            assertSame(expected.notifications, read(driver, "notifications"));
            assertSame(expected.candles, read(driver, "candles"));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"processor", "dsl"})
    void what_is_no_tick_is_passed_over(String variant) throws IOException {
        List<PlainRule> rules = List.of(new PlainRule("S", "r", ">", "level", BigDecimal.ONE));
        try (TopologyTestDriver driver = driver(variant, rules)) {
            TestInputTopic<String, String> ticks =
                    driver.createInputTopic("ticks", new StringSerializer(), new StringSerializer());
            List<String> bad = List.of(
                    "", "no JSON", "[]", "{}", "{\"price\":2}", "{\"ts\":5}", "{\"price\":0,\"ts\":5}",
                    "{\"price\":\"x\",\"ts\":5}", "{\"price\":null,\"ts\":5}", "{\"price\":1e18,\"ts\":5}",
                    "{\"price\":2,\"ts\":5,\"volume\":null}", "{\"price\":2,\"ts\":5", "{\"price\":2,\"ts\":-5}", "{\"price\":2,\"ts\":5,\"volume\":-1}");
            bad.forEach(value -> ticks.pipeInput("S", value));
            ticks.pipeInput("S", "{\"price\":2,\"ts\":5}");
            List<String> notifications = read(driver, "notifications");
            assertEquals(1, notifications.size(), () -> "fired: " + notifications);
        }
    }

    private TopologyTestDriver driver(String variant, List<PlainRule> rules) throws IOException {
        Path file = directory.resolve("rules");
        Files.writeString(file, String.join("", rules.stream().map(PlainRule::json).toList()));
        Options options = new Options(
                variant, "at_least_once", "none:0", "test", "ticks", "notifications", "candles", file, INTERVALS,
                LATENESS, 100, 1, directory.resolve("state"));
        Properties settings = Main.settings(options);
        return new TopologyTestDriver(Main.topology(options), settings);
    }

    private static List<String> read(TopologyTestDriver driver, String topic) {
        return driver.createOutputTopic(topic, new StringDeserializer(), new StringDeserializer())
                .readValuesToList();
    }

    /** Equal as multisets; the first difference is enough to know. */
    private static void assertSame(List<String> expected, List<String> found) {
        Map<String, Integer> difference = new TreeMap<>();
        expected.forEach(text -> difference.merge(text, 1, Integer::sum));
        found.forEach(text -> difference.merge(text, -1, Integer::sum));
        difference.values().removeIf(count -> count == 0);
        assertEquals(
                List.of(),
                difference.entrySet().stream().limit(4).toList(),
                "missing (above 0) or unexpected (below 0) outputs");
    }

    private static List<PlainRule> rules(Random random) {
        List<PlainRule> rules = new ArrayList<>();
        for (int i = 0; i < 60; i++) {
            String kind = i % 4 == 0 ? "level" : "edge";
            // Few level rules are within reach, or they would be all that fires.
            int cents = kind.equals("level") ? 100 + random.nextInt(20) * 100 : 950 + random.nextInt(100);
            rules.add(new PlainRule(
                    "S" + random.nextInt(5),
                    "rule " + i,
                    OPS[random.nextInt(OPS.length)],
                    kind,
                    BigDecimal.valueOf(cents, 2)));
        }
        return rules;
    }

    /** Prices that touch thresholds often, times that go back now and then, volumes past what a long holds. */
    private static List<PlainTick> log(Random random, int ticks) {
        List<PlainTick> log = new ArrayList<>();
        BigDecimal[] scales = {BigDecimal.ONE, new BigDecimal("0.25"), new BigDecimal("1234567890123456.789")};
        for (int i = 0; i < ticks; i++) {
            long back = random.nextInt(20) == 0 ? random.nextInt(4_000) : random.nextInt(2 * (int) PACE);
            log.add(new PlainTick(
                    "S" + random.nextInt(6),
                    BigDecimal.valueOf(950 + random.nextInt(100), 2),
                    BigDecimal.valueOf(1 + random.nextInt(9_000)).multiply(scales[random.nextInt(60) == 0 ? 2 : random.nextInt(2)]),
                    1_700_000_000_000L + i * PACE - back));
        }
        return log;
    }
}
