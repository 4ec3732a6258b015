package tickwatch.peers;

import org.apache.kafka.streams.kstream.Window;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;

/** Makes records of closed windows. */
final class CandleEncoder extends ContextualProcessor<Windowed<String>, Ohlc, String, byte[]> {
    @Override
    public void process(Record<Windowed<String>, Ohlc> record) {
        String symbol = record.key().key();
        Window window = record.key().window();
        Candle candle = new Candle(window.end() - window.start(), window.start(), record.value());
        // The broker deletes by the record's time, so it is now and not the time of the window.
        context().forward(new Record<>(symbol, Outputs.candle(symbol, candle), context().currentSystemTimeMs()));
    }
}
