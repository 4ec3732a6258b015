package tickwatch.peers;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** All rules, by symbol. They do not change while the service runs. */
final class RuleBook {
    private final Map<String, SymbolRules> bySymbol = new HashMap<>();

    RuleBook(Iterable<Rule> rules) {
        Map<String, List<Rule>> lists = new HashMap<>();
        for (Rule rule : rules) {
            lists.computeIfAbsent(rule.symbol(), symbol -> new ArrayList<>()).add(rule);
        }
        lists.forEach((symbol, list) -> bySymbol.put(symbol, new SymbolRules(list)));
    }

    /** Reads a file of one rule a line: {@code {"symbol":…,"id":…,"op":…,"kind":…,"threshold":…}}. */
    static RuleBook load(Path file) throws IOException {
        JsonFactory json = new JsonFactory();
        List<Rule> rules = new ArrayList<>();
        try (var lines = Files.newBufferedReader(file)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (!line.isBlank()) {
                    try (JsonParser parser = json.createParser(line)) {
                        rules.add(rule(parser, line));
                    }
                }
            }
        }
        return new RuleBook(rules);
    }

    SymbolRules of(String symbol) {
        return bySymbol.getOrDefault(symbol, SymbolRules.NONE);
    }

    private static Rule rule(JsonParser parser, String line) throws IOException {
        Map<String, String> fields = new HashMap<>();
        if (parser.nextToken() == JsonToken.START_OBJECT) {
            for (String name = parser.nextFieldName(); name != null; name = parser.nextFieldName()) {
                parser.nextToken();
                fields.put(name, parser.getText());
            }
        }
        for (String name : List.of("symbol", "id", "op", "kind", "threshold")) {
            if (!fields.containsKey(name)) {
                throw new IllegalArgumentException("a rule needs a " + name + ": " + line);
            }
        }
        return new Rule(
                fields.get("symbol"),
                fields.get("id"),
                one(Rule.Op.values(), op -> op.text, fields.get("op"), line),
                one(Rule.Kind.values(), kind -> kind.text, fields.get("kind"), line),
                Decimals.price(new BigDecimal(fields.get("threshold"))));
    }

    private static <T> T one(T[] values, Function<T, String> text, String found, String line) {
        return Arrays.stream(values)
                .filter(value -> text.apply(value).equals(found))
                .findFirst()
                .orElseThrow(() -> new IllegalArgumentException(
                        found + " is none of " + Arrays.stream(values).map(text).toList() + ": " + line));
    }
}
