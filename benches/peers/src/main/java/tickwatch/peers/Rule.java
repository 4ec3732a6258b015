package tickwatch.peers;

/** A price rule of one symbol. */
record Rule(String symbol, String id, Op op, Kind kind, double threshold) {
    /** When a rule fires: as its condition becomes true, or on every tick that meets it. */
    enum Kind {
        EDGE("edge"),
        LEVEL("level");

        final String text;

        Kind(String text) {
            this.text = text;
        }
    }

    /** What the price is compared with the threshold by. */
    enum Op {
        LESS("<"),
        LESS_OR_EQUAL("<="),
        EQUAL("="),
        GREATER_OR_EQUAL(">="),
        GREATER(">");

        final String text;

        Op(String text) {
            this.text = text;
        }

        boolean matches(double price, double threshold) {
            return switch (this) {
                case LESS -> price < threshold;
                case LESS_OR_EQUAL -> price <= threshold;
                case EQUAL -> price == threshold;
                case GREATER_OR_EQUAL -> price >= threshold;
                case GREATER -> price > threshold;
            };
        }
    }

    boolean matches(double price) {
        return op.matches(price, threshold);
    }
}
