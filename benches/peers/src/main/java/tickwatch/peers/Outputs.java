package tickwatch.peers;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.kafka.streams.processor.api.RecordMetadata;

/** Outputs as JSON, in tickwatch's form. */
final class Outputs {
    private static final JsonFactory JSON = new JsonFactory();

    private Outputs() {}

    static byte[] notification(Rule rule, RecordMetadata source, Tick tick, double previous) {
        String topic = source.topic();
        int partition = source.partition();
        long offset = source.offset();
        return write(json -> {
            json.writeStringField(
                    "id",
                    topic + '/' + partition + '/' + offset + '/' + rule.kind().text + '/' + rule.op().text + '/'
                            + rule.id());
            json.writeStringField("rule", rule.id());
            json.writeStringField("symbol", rule.symbol());
            json.writeStringField("trigger", rule.kind().text);
            json.writeStringField("op", rule.op().text);
            price(json, "threshold", rule.threshold());
            price(json, "price", tick.price);
            if (Double.isNaN(previous)) {
                json.writeNullField("previous");
            } else {
                price(json, "previous", previous);
            }
            json.writeNumberField("ts", tick.ts);
            json.writeObjectFieldStart("source");
            json.writeStringField("topic", topic);
            json.writeNumberField("partition", partition);
            json.writeNumberField("offset", offset);
            json.writeEndObject();
        });
    }

    static byte[] candle(String symbol, Candle candle) {
        Ohlc ohlc = candle.ohlc();
        return write(json -> {
            json.writeStringField("symbol", symbol);
            json.writeStringField("interval", Intervals.name(candle.intervalMs()));
            json.writeNumberField("start", candle.start());
            json.writeNumberField("end", candle.end());
            price(json, "open", ohlc.open);
            price(json, "high", ohlc.high);
            price(json, "low", ohlc.low);
            price(json, "close", ohlc.close);
            number(json, "volume", Decimals.text(ohlc.volume));
            json.writeNumberField("count", ohlc.count);
            json.writeStringField("status", "final");
            json.writeNumberField("revision", 0);
        });
    }

    private interface Fields {
        void write(JsonGenerator json) throws IOException;
    }

    private static byte[] write(Fields fields) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(256);
        try (JsonGenerator json = JSON.createGenerator(bytes)) {
            json.writeStartObject();
            fields.write(json);
            json.writeEndObject();
        } catch (IOException e) {
            throw new UncheckedIOException("writing to memory cannot fail", e);
        }
        return bytes.toByteArray();
    }

    private static void price(JsonGenerator json, String name, double price) throws IOException {
        number(json, name, Decimals.text(price));
    }

    private static void number(JsonGenerator json, String name, String text) throws IOException {
        json.writeFieldName(name);
        json.writeNumber(text);
    }
}
