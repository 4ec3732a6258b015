package tickwatch.peers;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.util.Arrays;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/** What a candle holds besides its window. */
final class Ohlc {
    static final Serde<Ohlc> SERDE =
            Serdes.serdeFrom((topic, ohlc) -> ohlc.write(), (topic, bytes) -> read(ByteBuffer.wrap(bytes)));

    /** With room for a volume of 2^1015 units; a volume that is read has at most 28 digits. */
    static final int MAX_SIZE = 4 * Double.BYTES + 3 * Long.BYTES + 2 + Byte.MAX_VALUE;

    double open;
    double high;
    double low;
    double close;
    long count;
    BigDecimal volume = BigDecimal.ZERO;
    private long openTs;
    private long closeTs;

    /** Adds a tick that comes later in the log: among equal times the first stays open, the last becomes close. */
    Ohlc add(Tick tick) {
        double price = tick.price;
        long ts = tick.ts;
        if (count == 0) {
            open = high = low = close = price;
            openTs = closeTs = ts;
        } else {
            if (ts < openTs) {
                open = price;
                openTs = ts;
            }
            if (ts >= closeTs) {
                close = price;
                closeTs = ts;
            }
            high = Math.max(high, price);
            low = Math.min(low, price);
        }
        volume = volume.add(tick.volume);
        count++;
        return this;
    }

    byte[] write() {
        ByteBuffer to = ByteBuffer.allocate(MAX_SIZE);
        write(to);
        return Arrays.copyOf(to.array(), to.position());
    }

    void write(ByteBuffer to) {
        to.putDouble(open).putDouble(high).putDouble(low).putDouble(close);
        to.putLong(openTs).putLong(closeTs).putLong(count);
        byte[] units = volume.unscaledValue().toByteArray();
        to.put((byte) volume.scale()).put((byte) units.length).put(units);
    }

    static Ohlc read(ByteBuffer from) {
        Ohlc ohlc = new Ohlc();
        ohlc.open = from.getDouble();
        ohlc.high = from.getDouble();
        ohlc.low = from.getDouble();
        ohlc.close = from.getDouble();
        ohlc.openTs = from.getLong();
        ohlc.closeTs = from.getLong();
        ohlc.count = from.getLong();
        int scale = from.get();
        byte[] units = new byte[from.get()];
        from.get(units);
        ohlc.volume = new BigDecimal(new BigInteger(units), scale);
        return ohlc;
    }
}
