package tickwatch.peers;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/** What the hand-written processor knows of one symbol. */
final class SymbolState {
    /** Interval and start. */
    private static final int WINDOW_SIZE = 2 * Long.BYTES;

    static final Serde<SymbolState> SERDE = Serdes.serdeFrom(
            (topic, state) -> state == null ? null : state.write(),
            (topic, bytes) -> bytes == null ? null : read(ByteBuffer.wrap(bytes)));

    /** Its newest price by event time; NaN before the first one. */
    double price = Double.NaN;
    /** Event time of that price, ms. */
    long ts = Long.MIN_VALUE;
    final List<Candle> open = new ArrayList<>(2);

    /** Its open candle for an interval and start, if there is one; else null. */
    Candle find(long intervalMs, long start) {
        // The newest one is what most ticks are for.
        for (int i = open.size() - 1; i >= 0; i--) {
            Candle candle = open.get(i);
            if (candle.start() == start && candle.intervalMs() == intervalMs) {
                return candle;
            }
        }
        return null;
    }

    private byte[] write() {
        int room = Double.BYTES + Long.BYTES + open.size() * (WINDOW_SIZE + Ohlc.MAX_SIZE);
        ByteBuffer to = ByteBuffer.allocate(room).putDouble(price).putLong(ts);
        for (int i = 0; i < open.size(); i++) {
            Candle candle = open.get(i);
            to.putLong(candle.intervalMs()).putLong(candle.start());
            candle.ohlc().write(to);
        }
        return Arrays.copyOf(to.array(), to.position());
    }

    private static SymbolState read(ByteBuffer from) {
        SymbolState state = new SymbolState();
        state.price = from.getDouble();
        state.ts = from.getLong();
        while (from.hasRemaining()) {
            state.open.add(new Candle(from.getLong(), from.getLong(), Ohlc.read(from)));
        }
        return state;
    }
}
