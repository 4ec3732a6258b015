package tickwatch.peers;

import java.io.IOException;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.LogAndContinueExceptionHandler;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/** The service on Kafka Streams: price rules and candles, as tickwatch has them, until SIGTERM. */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) throws IOException, InterruptedException {
        Options options = Options.parse(arguments);
        KafkaStreams streams = new KafkaStreams(topology(options), settings(options));
        CountDownLatch ended = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(e -> {
            e.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((state, before) -> {
            if (state == KafkaStreams.State.ERROR || state == KafkaStreams.State.NOT_RUNNING) {
                ended.countDown();
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        ended.await();
        if (streams.state() == KafkaStreams.State.ERROR) {
            System.exit(1);
        }
    }

    static Topology topology(Options options) throws IOException {
        RuleBook rules = RuleBook.load(options.rules());
        return switch (options.variant()) {
            case "processor" -> ProcessorVariant.topology(options, rules);
            case "dsl" -> DslVariant.topology(options, rules);
            default -> throw new IllegalArgumentException(
                    "--variant is processor or dsl, not " + options.variant());
        };
    }

    static Properties settings(Options options) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, options.applicationId());
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, options.bootstrap());
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, options.guarantee());
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, options.threads());
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, options.commitIntervalMs());
        settings.put(StreamsConfig.STATE_DIR_CONFIG, options.stateDir().toString());
        // Enough that only commits write the changelog: each symbol once.
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 256L << 20);
        settings.put(StreamsConfig.BUFFERED_RECORDS_PER_PARTITION_CONFIG, 10_000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 5_000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.RECEIVE_BUFFER_CONFIG), 1 << 20);
        settings.put(
                StreamsConfig.DESERIALIZATION_EXCEPTION_HANDLER_CLASS_CONFIG, LogAndContinueExceptionHandler.class);
        // Candles leave as soon as their window closes, as the hand-written ones do, and not once a second.
        settings.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_WINDOWED_AGGREGATION, 0L);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "lz4");
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 256 << 10);
        return settings;
    }
}
