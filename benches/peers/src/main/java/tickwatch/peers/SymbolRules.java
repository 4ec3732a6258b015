package tickwatch.peers;

import java.util.Comparator;
import java.util.List;
import java.util.function.Predicate;

/** The rules of one symbol by threshold, so that only those near the price are looked at. */
final class SymbolRules {
    static final SymbolRules NONE = new SymbolRules(List.of());

    /** Told of each rule that fires. */
    interface Firing {
        void fired(Rule rule);
    }

    private final Rule[] edge;
    private final Rule[] below;
    private final Rule[] equal;
    private final Rule[] above;

    SymbolRules(List<Rule> rules) {
        edge = sorted(rules, rule -> rule.kind() == Rule.Kind.EDGE);
        below = level(rules, Rule.Op.LESS, Rule.Op.LESS_OR_EQUAL);
        equal = level(rules, Rule.Op.EQUAL, Rule.Op.EQUAL);
        above = level(rules, Rule.Op.GREATER, Rule.Op.GREATER_OR_EQUAL);
    }

    /** Tells of the rules that a price fires; {@code previous} is NaN before the first one. */
    void fire(double previous, double price, Firing firing) {
        // Only between two prices can a condition have changed.
        if (price < previous) {
            crossed(price, previous, previous, price, firing);
        } else if (price > previous) {
            crossed(previous, price, previous, price, firing);
        }
        for (int i = firstFrom(below, price); i < below.length; i++) {
            if (below[i].matches(price)) {
                firing.fired(below[i]);
            }
        }
        for (int i = firstFrom(equal, price); i < equal.length && equal[i].threshold() == price; i++) {
            firing.fired(equal[i]);
        }
        for (int i = 0; i < above.length && above[i].threshold() <= price; i++) {
            if (above[i].matches(price)) {
                firing.fired(above[i]);
            }
        }
    }

    private void crossed(double low, double high, double previous, double price, Firing firing) {
        for (int i = firstFrom(edge, low); i < edge.length && edge[i].threshold() <= high; i++) {
            if (edge[i].matches(price) && !edge[i].matches(previous)) {
                firing.fired(edge[i]);
            }
        }
    }

    /** Index of the first rule whose threshold is at least {@code price}. */
    private static int firstFrom(Rule[] rules, double price) {
        int low = 0;
        int high = rules.length;
        while (low < high) {
            int middle = (low + high) >>> 1;
            if (rules[middle].threshold() < price) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }

    private static Rule[] level(List<Rule> rules, Rule.Op strict, Rule.Op other) {
        return sorted(rules, rule -> rule.kind() == Rule.Kind.LEVEL && (rule.op() == strict || rule.op() == other));
    }

    private static Rule[] sorted(List<Rule> rules, Predicate<Rule> which) {
        return rules.stream()
                .filter(which)
                .sorted(Comparator.comparingDouble(Rule::threshold))
                .toArray(Rule[]::new);
    }
}
