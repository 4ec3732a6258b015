package tickwatch.peers;

import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;

/** The rules, as a step among the DSL's. */
final class RuleProcessor implements FixedKeyProcessor<String, Tick, byte[]> {
    static final String STORE = "last-prices";

    private final RuleBook rules;
    private FixedKeyProcessorContext<String, byte[]> context;
    private KeyValueStore<String, LastPrice> store;

    RuleProcessor(RuleBook rules) {
        this.rules = rules;
    }

    @Override
    public void init(FixedKeyProcessorContext<String, byte[]> context) {
        this.context = context;
        store = context.getStateStore(STORE);
    }

    @Override
    public void process(FixedKeyRecord<String, Tick> record) {
        Tick tick = record.value();
        LastPrice last = store.get(record.key());
        if (last != null && tick.ts < last.ts()) {
            return;
        }
        double previous = last == null ? Double.NaN : last.price();
        store.put(record.key(), new LastPrice(tick.price, tick.ts));
        rules.of(record.key()).fire(previous, tick.price, rule -> {
            byte[] value = Outputs.notification(rule, context.recordMetadata().orElseThrow(), tick, previous);
            // The broker deletes by the record's time, so it is now and not the time of the tick.
            context.forward(record.withValue(value).withTimestamp(context.currentSystemTimeMs()));
        });
    }
}
