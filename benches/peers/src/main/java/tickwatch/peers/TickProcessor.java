package tickwatch.peers;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * The whole service for one source partition, by hand.
 *
 * <p>The store is there to recover from: each change is put into it, but read back only when the task starts. In
 * between the processor works on its own objects.
 */
final class TickProcessor implements Processor<Bytes, byte[], Bytes, byte[]> {
    static final String STORE = "symbols";
    static final String NOTIFICATIONS = "notifications";
    static final String CANDLES = "candles";

    private final RuleBook rules;
    private final long[] intervalsMs;
    private final long latenessMs;

    private final Tick tick = new Tick();
    private ProcessorContext<Bytes, byte[]> context;
    private KeyValueStore<Bytes, SymbolState> store;
    private Map<Bytes, Symbol> symbols;
    /** Windows still open, by their end. */
    private TreeMap<Long, List<Due>> due;
    /** End of the first of them, ms. */
    private long nextEnd;
    /** Windows that end here or before are closed, ms. */
    private long watermark;

    private record Symbol(Bytes key, String name, SymbolRules rules, SymbolState state) {}

    private record Due(Symbol symbol, Candle candle) {}

    TickProcessor(RuleBook rules, long[] intervalsMs, long latenessMs) {
        this.rules = rules;
        this.intervalsMs = intervalsMs;
        this.latenessMs = latenessMs;
    }

    @Override
    public void init(ProcessorContext<Bytes, byte[]> context) {
        this.context = context;
        store = context.getStateStore(STORE);
        symbols = new HashMap<>();
        due = new TreeMap<>();
        nextEnd = Long.MAX_VALUE;
        watermark = Long.MIN_VALUE;
        try (var stored = store.all()) {
            stored.forEachRemaining(entry -> {
                Symbol symbol = add(entry.key, entry.value);
                watermark = Math.max(watermark, symbol.state.ts - latenessMs);
            });
        }
        // A candle that was closed stays in the store until its symbol's next tick.
        for (Symbol symbol : symbols.values()) {
            symbol.state.open.removeIf(candle -> candle.end() <= watermark);
            symbol.state.open.forEach(candle -> await(symbol, candle));
        }
    }

    @Override
    public void process(Record<Bytes, byte[]> record) {
        if (record.key() == null || record.value() == null || !tick.read(record.value())) {
            return;
        }
        Symbol symbol = symbols.get(record.key());
        if (symbol == null) {
            symbol = add(record.key(), new SymbolState());
        }
        SymbolState state = symbol.state;
        if (tick.ts >= state.ts) {
            double previous = state.price;
            state.price = tick.price;
            state.ts = tick.ts;
            Symbol of = symbol;
            symbol.rules.fire(previous, tick.price, rule -> notify(of, rule, previous));
        }
        for (long intervalMs : intervalsMs) {
            long start = tick.ts - tick.ts % intervalMs;
            if (start + intervalMs > watermark) {
                candle(symbol, intervalMs, start).ohlc().add(tick);
            }
        }
        watermark = Math.max(watermark, tick.ts - latenessMs);
        if (nextEnd <= watermark) {
            closeDue();
        }
        store.put(symbol.key, state);
    }

    private Symbol add(Bytes key, SymbolState state) {
        String name = new String(key.get(), StandardCharsets.UTF_8);
        Symbol symbol = new Symbol(key, name, rules.of(name), state);
        symbols.put(key, symbol);
        return symbol;
    }

    private Candle candle(Symbol symbol, long intervalMs, long start) {
        Candle candle = symbol.state.find(intervalMs, start);
        if (candle == null) {
            candle = new Candle(intervalMs, start, new Ohlc());
            symbol.state.open.add(candle);
            await(symbol, candle);
        }
        return candle;
    }

    private void await(Symbol symbol, Candle candle) {
        due.computeIfAbsent(candle.end(), end -> new ArrayList<>()).add(new Due(symbol, candle));
        nextEnd = due.firstKey();
    }

    private void closeDue() {
        while (nextEnd <= watermark) {
            for (Due closed : due.pollFirstEntry().getValue()) {
                Symbol symbol = closed.symbol;
                symbol.state.open.removeIf(candle -> candle == closed.candle);
                send(CANDLES, symbol, Outputs.candle(symbol.name, closed.candle));
            }
            nextEnd = due.isEmpty() ? Long.MAX_VALUE : due.firstKey();
        }
    }

    private void notify(Symbol symbol, Rule rule, double previous) {
        byte[] value = Outputs.notification(rule, context.recordMetadata().orElseThrow(), tick, previous);
        send(NOTIFICATIONS, symbol, value);
    }

    /** The broker deletes by the record's time, so it is now and not the time of the tick. */
    private void send(String sink, Symbol symbol, byte[] value) {
        context.forward(new Record<>(symbol.key, value, context.currentSystemTimeMs()), sink);
    }
}
