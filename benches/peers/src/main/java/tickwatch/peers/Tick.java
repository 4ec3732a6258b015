package tickwatch.peers;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
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

    private static final JsonFactory JSON = new JsonFactory();

    double price;
    final Decimals volume = new Decimals();
    /** Event time, ms. */
    long ts;

    /** Reads {@code {"symbol":…,"price":…,"volume":…,"ts":…}}; the symbol is the record's key. False if it is no tick. */
    boolean read(byte[] json) {
        Decimals number = new Decimals();
        boolean hasPrice = false;
        boolean hasTs = false;
        volume.clear();
        try (JsonParser parser = JSON.createParser(json)) {
            if (parser.nextToken() != JsonToken.START_OBJECT) {
                return false;
            }
            for (String name = parser.nextFieldName(); name != null; name = parser.nextFieldName()) {
                parser.nextToken();
                switch (name) {
                    case "price" -> {
                        read(parser, number);
                        price = number.price();
                        hasPrice = price != 0;
                    }
                    case "volume" -> read(parser, volume);
                    case "ts" -> {
                        ts = parser.getLongValue();
                        hasTs = ts >= 0;
                    }
                    default -> parser.skipChildren();
                }
            }
            return hasPrice && hasTs && !volume.isNegative();
        } catch (IOException | NumberFormatException e) {
            return false;
        }
    }

    private static void read(JsonParser parser, Decimals into) throws IOException {
        into.read(parser.getTextCharacters(), parser.getTextOffset(), parser.getTextLength());
    }
}
