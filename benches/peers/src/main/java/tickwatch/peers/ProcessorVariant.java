package tickwatch.peers;

import java.util.Map;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.BytesDeserializer;
import org.apache.kafka.common.serialization.BytesSerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/** Source, one processor, two sinks. */
final class ProcessorVariant {
    private ProcessorVariant() {}

    static Topology topology(Options options, RuleBook rules) {
        StoreBuilder<KeyValueStore<Bytes, SymbolState>> symbols = Stores.keyValueStoreBuilder(
                        Stores.inMemoryKeyValueStore(TickProcessor.STORE), Serdes.Bytes(), SymbolState.SERDE)
                .withLoggingEnabled(Map.of())
                .withCachingEnabled();
        return new Topology()
                .addSource("ticks", new BytesDeserializer(), new ByteArrayDeserializer(), options.source())
                .addProcessor(
                        "service",
                        () -> new TickProcessor(rules, options.intervalsMs(), options.latenessMs()),
                        "ticks")
                .addStateStore(symbols, "service")
                .addSink(
                        TickProcessor.NOTIFICATIONS,
                        options.notifications(),
                        new BytesSerializer(),
                        new ByteArraySerializer(),
                        "service")
                .addSink(
                        TickProcessor.CANDLES,
                        options.candles(),
                        new BytesSerializer(),
                        new ByteArraySerializer(),
                        "service");
    }
}
