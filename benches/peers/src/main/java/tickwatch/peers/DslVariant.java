package tickwatch.peers;

import java.time.Duration;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/** The DSL: a windowed aggregation for each interval, and a small processor for the rules; stores in RocksDB. */
final class DslVariant {
    private DslVariant() {}

    static Topology topology(Options options, RuleBook rules) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, Tick> ticks = builder.stream(
                options.source(),
                Consumed.with(Serdes.String(), Tick.SERDE)
                        .withTimestampExtractor((record, partitionTime) -> ((Tick) record.value()).ts));

        builder.addStateStore(Stores.keyValueStoreBuilder(
                        Stores.persistentKeyValueStore(RuleProcessor.STORE), Serdes.String(), LastPrice.SERDE)
                .withCachingEnabled());
        ticks.processValues(() -> new RuleProcessor(rules), RuleProcessor.STORE)
                .to(options.notifications(), Produced.with(Serdes.String(), Serdes.ByteArray()));

        Duration lateness = Duration.ofMillis(options.latenessMs());
        for (long intervalMs : options.intervalsMs()) {
            Duration interval = Duration.ofMillis(intervalMs);
            ticks.groupByKey()
                    .windowedBy(TimeWindows.ofSizeAndGrace(interval, lateness))
                    .emitStrategy(EmitStrategy.onWindowClose())
                    .aggregate(
                            Ohlc::new,
                            (symbol, tick, ohlc) -> ohlc.add(tick),
                            Materialized.<String, Ohlc, WindowStore<Bytes, byte[]>>as("candles-" + Intervals.name(intervalMs))
                                    .withKeySerde(Serdes.String())
                                    .withValueSerde(Ohlc.SERDE)
                                    // The cache walks each segment since 1970 at the first close: 28 million of
                                    // them at a retention of seconds, 40 thousand at this one.
                                    .withRetention(Duration.ofDays(1))
                                    .withCachingEnabled())
                    .toStream()
                    .process(CandleEncoder::new)
                    .to(options.candles(), Produced.with(Serdes.String(), Serdes.ByteArray()));
        }
        return builder.build();
    }
}
