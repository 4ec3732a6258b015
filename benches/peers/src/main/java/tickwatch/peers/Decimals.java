package tickwatch.peers;

import java.math.BigDecimal;
import java.math.MathContext;
import java.math.RoundingMode;

/**
 * Prices, as doubles. A price has at most 15 significant digits; each such decimal has a double of its own, and the
 * order of the doubles is the order of the decimals, so comparing doubles compares the texts exactly.
 */
final class Decimals {
    private static final MathContext PRICE_DIGITS = new MathContext(15, RoundingMode.HALF_EVEN);
    private static final long PRICE_LIMIT = 1_000_000_000_000_000L;
    /** Digits that a long holds whatever they are. */
    private static final int LONG_DIGITS = 18;
    /** Powers of ten. A double holds each of these exactly. */
    static final long[] TENS = new long[LONG_DIGITS + 1];

    private static final double[] POWERS = new double[LONG_DIGITS + 1];

    static {
        long power = 1;
        for (int i = 0; i <= LONG_DIGITS; i++, power *= 10) {
            TENS[i] = power;
            POWERS[i] = power;
        }
    }

    /** The digits of the number read last, sign included, with the point left out. */
    long units;
    /** How many of them stand behind the point. */
    int scale;
    /** The number read last, if its digits do not fit; else null. */
    BigDecimal large;

    static double parsePrice(String text) {
        Decimals number = new Decimals();
        number.read(text.toCharArray(), 0, text.length());
        return number.price();
    }

    /** Reads a number in JSON's grammar. */
    void read(char[] text, int start, int length) {
        int end = start + length;
        int at = start;
        boolean negative = at < end && text[at] == '-';
        if (negative) {
            at++;
        }
        int first = at;
        int point = -1;
        long digits = 0;
        for (; at < end; at++) {
            int digit = text[at] - '0';
            if (digit >= 0 && digit <= 9) {
                digits = digits * 10 + digit;
            } else if (text[at] == '.' && point < 0) {
                point = at;
            } else {
                break;
            }
        }
        int count = at - first - (point < 0 ? 0 : 1);
        if (at < end || count == 0 || count > LONG_DIGITS) {
            large = new BigDecimal(text, start, length);
            return;
        }
        large = null;
        units = negative ? -digits : digits;
        scale = point < 0 ? 0 : at - point - 1;
    }

    /** Makes it zero. */
    void clear() {
        units = 0;
        scale = 0;
        large = null;
    }

    boolean isNegative() {
        return large == null ? units < 0 : large.signum() < 0;
    }

    /** The number read last as a price. */
    double price() {
        if (large == null && Math.abs(units) < PRICE_LIMIT) {
            // Both are exact as doubles, so the quotient is the double nearest to the decimal.
            return units / POWERS[scale];
        }
        return value().round(PRICE_DIGITS).doubleValue();
    }

    /** The number read last. */
    BigDecimal value() {
        return large == null ? BigDecimal.valueOf(units, scale) : large;
    }

    /** A price in plain decimals, with no zeros at its end. */
    static String text(double price) {
        for (int scale = 0; scale <= LONG_DIGITS; scale++) {
            double units = price * POWERS[scale];
            if (Math.abs(units) >= PRICE_LIMIT) {
                break;
            }
            long rounded = Math.round(units);
            if (rounded / POWERS[scale] == price) {
                return BigDecimal.valueOf(rounded, scale).toPlainString();
            }
        }
        return plain(new BigDecimal(price).round(PRICE_DIGITS));
    }

    /** A number in plain decimals, with no zeros at its end. */
    static String plain(BigDecimal number) {
        return number.signum() == 0 ? "0" : number.stripTrailingZeros().toPlainString();
    }
}
