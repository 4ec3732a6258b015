package tickwatch.peers;

import java.nio.ByteBuffer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/** A symbol's newest price and its event time, ms. */
record LastPrice(double price, long ts) {
    static final Serde<LastPrice> SERDE = Serdes.serdeFrom(
            (topic, last) -> ByteBuffer.allocate(Double.BYTES + Long.BYTES)
                    .putDouble(last.price)
                    .putLong(last.ts)
                    .array(),
            (topic, bytes) -> {
                ByteBuffer from = ByteBuffer.wrap(bytes);
                return new LastPrice(from.getDouble(), from.getLong());
            });
}
