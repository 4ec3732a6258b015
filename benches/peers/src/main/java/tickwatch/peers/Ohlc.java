package tickwatch.peers;

import java.nio.ByteBuffer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/** What a candle holds besides its window. */
final class Ohlc {
    static final Serde<Ohlc> SERDE = Serdes.serdeFrom(
            (topic, ohlc) -> {
                ByteBuffer to = ByteBuffer.allocate(ohlc.size());
                ohlc.write(to);
                return to.array();
            },
            (topic, bytes) -> read(ByteBuffer.wrap(bytes)));

    private static final int FIXED_SIZE = 4 * Double.BYTES + 3 * Long.BYTES;

    double open;
    double high;
    double low;
    double close;
    long count;
    final Volume volume;
    private long openTs;
    private long closeTs;

    Ohlc() {
        this(new Volume());
    }

    private Ohlc(Volume volume) {
        this.volume = volume;
    }

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
        volume.add(tick.volume);
        count++;
        return this;
    }

    int size() {
        return FIXED_SIZE + volume.size();
    }

    void write(ByteBuffer to) {
        to.putDouble(open).putDouble(high).putDouble(low).putDouble(close);
        to.putLong(openTs).putLong(closeTs).putLong(count);
        volume.write(to);
    }

    static Ohlc read(ByteBuffer from) {
        double open = from.getDouble();
        double high = from.getDouble();
        double low = from.getDouble();
        double close = from.getDouble();
        long openTs = from.getLong();
        long closeTs = from.getLong();
        long count = from.getLong();
        Ohlc ohlc = new Ohlc(Volume.read(from));
        ohlc.open = open;
        ohlc.high = high;
        ohlc.low = low;
        ohlc.close = close;
        ohlc.openTs = openTs;
        ohlc.closeTs = closeTs;
        ohlc.count = count;
        return ohlc;
    }
}
