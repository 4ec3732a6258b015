package tickwatch.peers;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;

/** A sum of decimals, exact whatever their order: in a long as long as it fits. */
final class Volume {
    private static final int LARGE = -1;

    private long units;
    private int scale;
    /** The sum, if it does not fit into a long; else null. */
    private BigDecimal large;

    void add(Decimals number) {
        if (large == null && number.large == null && number.scale <= scale) {
            long factor = Decimals.TENS[scale - number.scale];
            long addend = number.units * factor;
            long sum = units + addend;
            // Volumes are not negative, so a sum below zero has wrapped.
            if (Math.multiplyHigh(number.units, factor) == 0 && addend >= 0 && sum >= 0) {
                units = sum;
                return;
            }
        }
        BigDecimal sum = value().add(number.value());
        boolean fits = sum.unscaledValue().bitLength() < Long.SIZE
                && sum.scale() >= 0
                && sum.scale() < Decimals.TENS.length;
        units = fits ? sum.unscaledValue().longValue() : 0;
        scale = fits ? sum.scale() : 0;
        large = fits ? null : sum;
    }

    BigDecimal value() {
        return large == null ? BigDecimal.valueOf(units, scale) : large;
    }

    int size() {
        return large == null ? 1 + Long.BYTES : 1 + 2 * Integer.BYTES + unscaled().length;
    }

    void write(ByteBuffer to) {
        if (large == null) {
            to.put((byte) scale).putLong(units);
        } else {
            byte[] unscaled = unscaled();
            to.put((byte) LARGE).putInt(large.scale()).putInt(unscaled.length).put(unscaled);
        }
    }

    static Volume read(ByteBuffer from) {
        Volume volume = new Volume();
        int scale = from.get();
        if (scale != LARGE) {
            volume.scale = scale;
            volume.units = from.getLong();
        } else {
            int largeScale = from.getInt();
            byte[] unscaled = new byte[from.getInt()];
            from.get(unscaled);
            volume.large = new BigDecimal(new BigInteger(unscaled), largeScale);
        }
        return volume;
    }

    private byte[] unscaled() {
        return large.unscaledValue().toByteArray();
    }
}
