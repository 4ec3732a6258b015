package tickwatch.peers;

/** Names of candle intervals. */
final class Intervals {
    private enum Unit {
        d(86_400_000),
        h(3_600_000),
        m(60_000),
        s(1_000),
        ms(1);

        final long millis;

        Unit(long millis) {
            this.millis = millis;
        }
    }

    private Intervals() {}

    /** In the largest unit that divides it: 60,000 ms is {@code 1m}. */
    static String name(long intervalMs) {
        for (Unit unit : Unit.values()) {
            if (intervalMs % unit.millis == 0) {
                return intervalMs / unit.millis + unit.name();
            }
        }
        throw new AssertionError("every interval is a number of milliseconds");
    }
}
