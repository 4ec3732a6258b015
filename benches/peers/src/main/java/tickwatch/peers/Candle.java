package tickwatch.peers;

import java.nio.ByteBuffer;

/** A candle that is still open. */
final class Candle {
    private static final int FIXED_SIZE = 9 * Long.BYTES;

    final long intervalMs;
    /** Start of its window, ms. */
    final long start;
    double open;
    double high;
    double low;
    double close;
    long openTs;
    long closeTs;
    long count;
    final Volume volume;

    Candle(long intervalMs, long start) {
        this(intervalMs, start, new Volume());
    }

    private Candle(long intervalMs, long start, Volume volume) {
        this.intervalMs = intervalMs;
        this.start = start;
        this.volume = volume;
    }

    long end() {
        return start + intervalMs;
    }

    /** Adds a tick that comes later in the log: among equal times the first stays open, the last becomes close. */
    void add(Tick tick) {
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
    }

    int size() {
        return FIXED_SIZE + volume.size();
    }

    void write(ByteBuffer to) {
        to.putLong(intervalMs).putLong(start);
        to.putDouble(open).putDouble(high).putDouble(low).putDouble(close);
        to.putLong(openTs).putLong(closeTs).putLong(count);
        volume.write(to);
    }

    static Candle read(ByteBuffer from) {
        long intervalMs = from.getLong();
        long start = from.getLong();
        double open = from.getDouble();
        double high = from.getDouble();
        double low = from.getDouble();
        double close = from.getDouble();
        long openTs = from.getLong();
        long closeTs = from.getLong();
        long count = from.getLong();
        Candle candle = new Candle(intervalMs, start, Volume.read(from));
        candle.open = open;
        candle.high = high;
        candle.low = low;
        candle.close = close;
        candle.openTs = openTs;
        candle.closeTs = closeTs;
        candle.count = count;
        return candle;
    }
}
