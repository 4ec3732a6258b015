package tickwatch.peers;

import com.alibaba.fastjson2.JSONException;
import com.alibaba.fastjson2.JSONReader;
import com.alibaba.fastjson2.util.Fnv;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/** One tick; read again and again into the same object where nobody keeps it. */
final class Tick {
    /** Of ticks as objects; they are only read. */
    static final Serde<Tick> SERDE = Serdes.serdeFrom(
            (topic, tick) -> {
                throw new UnsupportedOperationException("ticks are not written");
            },
            (topic, json) -> {
                Tick tick = new Tick();
                if (!tick.read(json)) {
                    throw new SerializationException("no tick");
                }
                return tick;
            });

    private static final long PRICE = Fnv.hashCode64("price");
    private static final long VOLUME = Fnv.hashCode64("volume");
    private static final long TS = Fnv.hashCode64("ts");
    private static final double PRICE_LIMIT = 1e18;
    private static final int VOLUME_DIGITS = 28;

    double price;
    BigDecimal volume;
    /** Event time, ms. */
    long ts;

    /** Reads {@code {"symbol":…,"price":…,"volume":…,"ts":…}}; the symbol is the record's key. False if it is no tick. */
    boolean read(byte[] json) {
        BigDecimal exact = null;
        volume = BigDecimal.ZERO;
        ts = -1;
        try (JSONReader reader = JSONReader.of(json, 0, json.length, StandardCharsets.UTF_8)) {
            if (!reader.nextIfObjectStart()) {
                return false;
            }
            while (!reader.nextIfObjectEnd()) {
                long name = reader.readFieldNameHashCode();
                if (name == PRICE) {
                    exact = reader.readBigDecimal();
                } else if (name == VOLUME) {
                    volume = reader.readBigDecimal();
                } else if (name == TS) {
                    ts = reader.readInt64Value();
                } else {
                    reader.skipValue();
                }
            }
            if (exact == null || volume == null) {
                return false;
            }
            price = Decimals.price(exact);
            return price != 0
                    && Math.abs(price) < PRICE_LIMIT
                    && volume.signum() >= 0
                    && volume.precision() <= VOLUME_DIGITS
                    && ts >= 0;
        } catch (JSONException | ArithmeticException | NumberFormatException e) {
            return false;
        }
    }
}
