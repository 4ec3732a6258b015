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
    private static final double PRICE_LIMIT = 1e15;
    /** Powers of ten that a double holds exactly. */
    private static final double[] TENS = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8};

    private Decimals() {}

    /** The double nearest to a decimal, cut to the digits of a price. */
    static double price(BigDecimal number) {
        boolean fits = number.precision() <= PRICE_DIGITS.getPrecision();
        return (fits ? number : number.round(PRICE_DIGITS)).doubleValue();
    }

    /** A price in plain decimals, with no zeros at its end. */
    static String text(double price) {
        for (int scale = 0; scale < TENS.length && Math.abs(price * TENS[scale]) < PRICE_LIMIT; scale++) {
            long units = Math.round(price * TENS[scale]);
            // Both are exact, so the quotient is the double nearest to the decimal: this very decimal's.
            if (units / TENS[scale] == price) {
                return BigDecimal.valueOf(units, scale).toPlainString();
            }
        }
        return text(new BigDecimal(price).round(PRICE_DIGITS));
    }

    /** A number in plain decimals, with no zeros at its end. */
    static String text(BigDecimal number) {
        return number.signum() == 0 ? "0" : number.stripTrailingZeros().toPlainString();
    }
}
