//! The Kafka part on a real broker: positioning, hand-over, commits, end offsets, sinks, topics.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use libtest_mimic::{Failed, Trial};
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use rdkafka::{ClientConfig, TopicPartitionList};
use tickwatch::config::{InputConfig, KafkaConfig, Scalar};
use tickwatch::domain::{Chunk, Offset, Position, SourcePartition, Watermark};
use tickwatch::input::Decoder;
use tickwatch::kafka::{
    Ends, Feed, OutRecord, Reader, Sink, SinkError, Source, SourceError, SourceEvent, SourceHandle, TopicRole,
    TransactionError, TransactionalSink, topics,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than any test takes to finish its part of a hand-over.
const HAND_OVER: Duration = Duration::from_secs(15);

/// Every test of this module, on the broker at `broker`.
pub(crate) fn trials(broker: &str) -> Vec<Trial> {
    macro_rules! trials {
        ($($test:ident),+ $(,)?) => {
            vec![$(trial(stringify!($test), broker, |lab| Box::pin($test(lab)))),+]
        };
    }
    trials![
        reading_starts_at_the_asked_offset_however_often_it_is_asked,
        a_slow_reader_pauses_its_partition_and_misses_nothing,
        the_end_of_a_partition_counts_control_and_aborted_records,
        a_position_outside_the_log_is_told_and_the_partition_reads_on_from_another,
        a_revoked_partition_is_kept_until_its_work_is_done,
        a_revocation_that_nobody_finishes_ends_at_its_deadline,
        closing_a_source_leaves_the_group,
        a_committed_position_comes_back_with_its_watermark,
        many_commits_at_once_all_arrive,
        metadata_of_another_program_is_unreadable_but_its_offset_is_not,
        a_transaction_holds_outputs_and_position,
        the_committed_position_waits_for_an_open_transaction,
        a_second_transactional_sink_fences_the_first,
        a_transaction_with_a_record_too_large_is_not_committed_and_the_next_one_is,
        end_offsets_count_open_transactions,
        the_end_of_a_partition_added_later_is_known,
        a_record_too_large_is_a_permanent_error_that_names_it,
        an_unknown_output_topic_is_a_permanent_error,
        a_full_queue_waits_and_everything_arrives,
        keys_go_to_the_partitions_java_puts_them,
        an_unreachable_broker_is_an_event_not_a_failure,
        missing_topics_come_with_the_command_to_create_them,
    ]
}

type Body = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

fn trial(name: &str, broker: &str, test: impl Fn(Lab) -> Body + Send + 'static) -> Trial {
    let lab = Lab::new(name, broker);
    Trial::test(format!("kafka::{name}"), move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let result = runtime.block_on(test(lab));
        runtime.shutdown_timeout(Duration::from_secs(5));
        result.map_err(|error| Failed::from(format!("{error:#}")))
    })
}

/// The topic and group of one test.
#[derive(Clone)]
struct Lab {
    kafka: KafkaConfig,
}

impl Lab {
    fn new(test: &str, broker: &str) -> Lab {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let short: String = test.split('_').filter_map(|word| word.chars().next()).collect();
        let unique = format!("{short}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let kafka = KafkaConfig {
            brokers: broker.into(),
            group: format!("group-{unique}"),
            topic: format!("topic-{unique}"),
            ..KafkaConfig::default()
        };
        Lab { kafka }
    }

    fn topic(&self) -> &str {
        &self.kafka.topic
    }

    fn output(&self) -> String {
        format!("{}-out", self.kafka.topic)
    }

    fn partition(&self, partition: i32) -> SourcePartition {
        SourcePartition { topic: self.kafka.topic.clone(), partition }
    }

    async fn create(&self, topic: &str, partitions: i32) -> anyhow::Result<()> {
        Ok(topics::create(&self.kafka, topic, partitions).await?)
    }

    fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.kafka.brokers);
        config
    }

    /// Writes values to one partition of the source topic; returns their offsets.
    async fn write(&self, partition: i32, values: &[String]) -> anyhow::Result<Vec<i64>> {
        write(&self.client().create()?, self.topic(), partition, values).await
    }

    async fn transactional(&self, id: &str) -> anyhow::Result<FutureProducer> {
        let producer: FutureProducer =
            self.client().set("transactional.id", format!("{}-{id}", self.kafka.group)).create()?;
        let starting = producer.clone();
        tokio::task::spawn_blocking(move || starting.init_transactions(PATIENCE)).await??;
        Ok(producer)
    }

    fn start(&self) -> anyhow::Result<Member> {
        self.start_with(50_000, HAND_OVER)
    }

    fn start_with(&self, max_buffered: u32, hand_over: Duration) -> anyhow::Result<Member> {
        let decoder = Arc::new(Decoder::new(&InputConfig::default())?);
        let (source, events) = Source::start(&self.kafka, max_buffered, hand_over, decoder)?;
        Ok(Member { handle: source.handle(), source, events })
    }

    /// Every committed record of a topic.
    async fn read_all(&self, topic: &str) -> anyhow::Result<Vec<OwnedMessage>> {
        let (config, topic) = (self.client(), topic.to_owned());
        tokio::task::spawn_blocking(move || read_all(config, &topic)).await?
    }
}

async fn write(
    producer: &FutureProducer,
    topic: &str,
    partition: i32,
    values: &[String],
) -> anyhow::Result<Vec<i64>> {
    let mut on_their_way = Vec::new();
    for value in values {
        let record = FutureRecord::<[u8], String>::to(topic).partition(partition).payload(value);
        on_their_way.push(producer.send_result(record).map_err(|(error, _)| error)?);
    }
    let mut offsets = Vec::new();
    for delivery in on_their_way {
        offsets.push(delivery.await?.map_err(|(error, _)| error)?.offset);
    }
    Ok(offsets)
}

async fn end_transaction(producer: &FutureProducer, commit: bool) -> anyhow::Result<()> {
    let producer = producer.clone();
    let ended = tokio::task::spawn_blocking(move || {
        if commit { producer.commit_transaction(PATIENCE) } else { producer.abort_transaction(PATIENCE) }
    });
    Ok(ended.await??)
}

fn read_all(mut config: ClientConfig, topic: &str) -> anyhow::Result<Vec<OwnedMessage>> {
    config.set("group.id", "unused").set("enable.partition.eof", "true").set("isolation.level", "read_committed");
    let consumer: BaseConsumer = config.create()?;
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE)?;
    let partitions = metadata.topics()[0].partitions().len();
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition as i32, rdkafka::Offset::Beginning)?;
    }
    consumer.assign(&list)?;
    let (mut records, mut ended) = (Vec::new(), 0);
    while ended < partitions {
        match consumer.poll(PATIENCE).context("nothing more, and no end")? {
            Ok(message) => records.push(message.detach()),
            Err(rdkafka::error::KafkaError::PartitionEOF(_)) => ended += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(records)
}

/// A source and what it says.
struct Member {
    source: Source,
    handle: SourceHandle,
    events: UnboundedReceiver<SourceEvent>,
}

impl Member {
    /// Waits until `count` partitions in all were assigned; returns them in order.
    async fn assigned(&mut self, count: usize) -> anyhow::Result<Vec<i32>> {
        let mut all = Vec::new();
        while all.len() < count {
            match self.event().await? {
                SourceEvent::Assigned(partitions) => all.extend(partitions),
                SourceEvent::Error { .. } => {}
                other => bail!("{other:?} while waiting for an assignment"),
            }
        }
        all.sort_unstable();
        Ok(all)
    }

    async fn event(&mut self) -> anyhow::Result<SourceEvent> {
        patiently("an event", self.events.recv()).await?.context("the source has ended")
    }
}

async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> anyhow::Result<T> {
    timeout(PATIENCE, future).await.with_context(|| format!("{what} did not come in {PATIENCE:?}"))
}

/// Closing blocks.
async fn close(source: Source) {
    tokio::task::spawn_blocking(move || source.close()).await.expect("closing does not panic");
}

async fn next(reader: &mut Reader) -> anyhow::Result<Feed> {
    patiently("a feed", reader.next()).await?.context("the reader has ended")
}

/// Reads to the end of the partition: the records' offsets and values, and where the end is.
async fn to_end(reader: &mut Reader) -> anyhow::Result<(Vec<(i64, String)>, Offset)> {
    let mut records = Vec::new();
    loop {
        match next(reader).await? {
            Feed::Chunk(chunk) => records.extend(contents(&chunk)),
            Feed::End(end) => return Ok((records, end)),
            other @ Feed::OutOfRange(_) => bail!("{other:?}"),
        }
    }
}

fn contents(chunk: &Chunk) -> Vec<(i64, String)> {
    let value_of = |record: &tickwatch::domain::Record| {
        record.value.as_ref().map(|range| String::from_utf8_lossy(chunk.slice(range)).into_owned())
    };
    chunk.records.iter().map(|record| (record.offset.0, value_of(record).unwrap_or_default())).collect()
}

fn values(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{name} {i}")).collect()
}

fn ensure_eq<T: PartialEq + Debug>(found: T, expected: T, what: &str) -> anyhow::Result<()> {
    ensure!(found == expected, "{what}: found {found:?}, expected {expected:?}");
    Ok(())
}

fn position(offset: i64, watermark: Watermark) -> Position {
    Position::at(Offset(offset), watermark)
}

fn out(topic: &str, key: &str, value: Vec<u8>) -> OutRecord {
    OutRecord { topic: topic.into(), key: Some(key.into()), value: Some(value), headers: Vec::new() }
}

/// A log with holes: transactions of 50 records, every fourth aborted. Returns what can be read.
async fn write_log_with_holes(lab: &Lab, partition: i32) -> anyhow::Result<BTreeMap<i64, String>> {
    let producer = lab.transactional(&format!("holes-{partition}")).await?;
    let mut readable = BTreeMap::new();
    for round in 0..40 {
        producer.begin_transaction()?;
        let values = values(&format!("{partition}/{round}"), 50);
        let offsets = write(&producer, lab.topic(), partition, &values).await?;
        let commit = round % 4 != 3;
        end_transaction(&producer, commit).await?;
        if commit {
            readable.extend(offsets.into_iter().zip(values));
        }
    }
    Ok(readable)
}

/// Positions one partition back and forth and compares all that is read with what was written.
async fn hammer(
    handle: SourceHandle,
    partition: i32,
    seed: u64,
    readable: Arc<BTreeMap<i64, String>>,
    end: Offset,
) -> anyhow::Result<()> {
    let mut random = seed;
    for _ in 0..200 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let asked = (random >> 33) as i64 % (end.0 + 1);
        let feeds = (random >> 20) % 4;
        let mut expected = readable.range(asked..);
        let mut reader = patiently("a reader", handle.read_from(partition, Offset(asked))).await??;
        for _ in 0..=feeds {
            match next(&mut reader).await? {
                Feed::Chunk(chunk) => {
                    for (offset, value) in contents(&chunk) {
                        let wanted = expected.next().map(|(offset, value)| (*offset, value.clone()));
                        ensure_eq(Some((offset, value)), wanted, &format!("{partition} read from {asked}"))?;
                    }
                }
                Feed::End(at) => {
                    ensure_eq(expected.next(), None, &format!("{partition} ended, asked {asked}"))?;
                    ensure_eq(at, end, "the end")?;
                    break;
                }
                other @ Feed::OutOfRange(_) => bail!("{other:?}, asked {asked}"),
            }
        }
    }
    Ok(())
}

async fn reading_starts_at_the_asked_offset_however_often_it_is_asked(mut lab: Lab) -> anyhow::Result<()> {
    // Else most of the time is spent on waiting for fetches that found nothing.
    lab.kafka.consumer.insert("fetch.wait.max.ms".into(), Scalar("5".into()));
    lab.create(lab.topic(), 3).await?;
    let mut logs = Vec::new();
    for partition in 0..3 {
        logs.push(Arc::new(write_log_with_holes(&lab, partition).await?));
    }
    let ends = Ends::new(&lab.kafka)?;
    for round in 0..3 {
        let mut member = lab.start_with(300, HAND_OVER)?;
        member.assigned(3).await?;
        let mut hammers = Vec::new();
        for (partition, log) in (0..3).zip(&logs) {
            let end = ends.ends(partition).await?.end;
            let seed = 7 + round * 100 + partition as u64;
            hammers.push(tokio::spawn(hammer(member.handle.clone(), partition, seed, Arc::clone(log), end)));
        }
        for hammer in hammers {
            hammer.await??;
        }
        close(member.source).await;
    }
    Ok(())
}

async fn a_slow_reader_pauses_its_partition_and_misses_nothing(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 2).await?;
    let written = values("slow", 30_000);
    lab.write(0, &written).await?;
    lab.write(1, &values("fast", 1000)).await?;
    let mut member = lab.start_with(100, HAND_OVER)?;
    member.assigned(2).await?;
    let mut slow = member.handle.read_from(0, Offset(0)).await?;
    let mut fast = member.handle.read_from(1, Offset(0)).await?;
    // The fast one is read to its end while the slow one is full.
    ensure_eq(to_end(&mut fast).await?.0.len(), 1000, "records of the fast reader")?;
    let (read, end) = to_end(&mut slow).await?;
    ensure_eq(end, Offset(30_000), "the end")?;
    ensure!(read.into_iter().map(|(_, value)| value).eq(written), "a record is missing, twice or out of order");
    close(member.source).await;
    Ok(())
}

async fn the_end_of_a_partition_counts_control_and_aborted_records(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 1).await?;
    let producer = lab.transactional("end").await?;
    producer.begin_transaction()?;
    write(&producer, lab.topic(), 0, &values("committed", 3)).await?;
    end_transaction(&producer, true).await?;

    let mut member = lab.start()?;
    member.assigned(1).await?;
    let mut reader = member.handle.read_from(0, Offset(0)).await?;
    let (read, end) = to_end(&mut reader).await?;
    ensure_eq(read.len(), 3, "records")?;
    ensure_eq(end, Offset(4), "the end after a commit")?;

    producer.begin_transaction()?;
    write(&producer, lab.topic(), 0, &values("aborted", 2)).await?;
    end_transaction(&producer, false).await?;
    // The reader may come to an end between the records and the abort, never past 7.
    let mut end = Offset(4);
    while end < Offset(7) {
        let (read, at) = to_end(&mut reader).await?;
        ensure_eq(read.len(), 0, "records of an aborted transaction")?;
        end = at;
    }
    ensure_eq(end, Offset(7), "the end after an abort")?;

    let mut at_end = member.handle.read_from(0, end).await?;
    ensure_eq(to_end(&mut at_end).await?, (Vec::new(), Offset(7)), "reading from the end")?;
    close(member.source).await;
    Ok(())
}

async fn a_position_outside_the_log_is_told_and_the_partition_reads_on_from_another(
    lab: Lab,
) -> anyhow::Result<()> {
    lab.create(lab.topic(), 2).await?;
    for partition in 0..2 {
        lab.write(partition, &values("value", 100)).await?;
    }
    let mut member = lab.start()?;
    member.assigned(2).await?;
    let mut neighbour = member.handle.read_from(1, Offset(10)).await?;
    for _ in 0..3 {
        let mut beyond = member.handle.read_from(0, Offset(500)).await?;
        let told = next(&mut beyond).await?;
        ensure!(matches!(told, Feed::OutOfRange(Offset(500))), "{told:?}");
        ensure!(patiently("the reader's end", beyond.next()).await?.is_none(), "it goes on");
        let mut inside = member.handle.read_from(0, Offset(90)).await?;
        let (read, end) = to_end(&mut inside).await?;
        ensure_eq((read.len(), read[0].0, end), (10, 90, Offset(100)), "reading on")?;
    }

    delete_before(&lab, 0, 50).await?;
    let mut before = member.handle.read_from(0, Offset(49)).await?;
    let told = next(&mut before).await?;
    ensure!(matches!(told, Feed::OutOfRange(Offset(49))), "{told:?}");

    lab.write(1, &values("more", 5)).await?;
    let mut read = Vec::new();
    while read.len() < 95 {
        read.extend(to_end(&mut neighbour).await?.0);
    }
    let offsets: Vec<i64> = read.iter().map(|(offset, _)| *offset).collect();
    ensure_eq(offsets, (10..105).collect(), "the neighbour's records")?;
    close(member.source).await;
    Ok(())
}

async fn delete_before(lab: &Lab, partition: i32, offset: i64) -> anyhow::Result<()> {
    let admin: AdminClient<DefaultClientContext> = lab.client().create()?;
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(lab.topic(), partition, rdkafka::Offset::Offset(offset))?;
    admin.delete_records(&list, &AdminOptions::new()).await?;
    Ok(())
}

async fn a_revoked_partition_is_kept_until_its_work_is_done(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 2).await?;
    let mut first = lab.start()?;
    first.assigned(2).await?;
    let mut readers = BTreeMap::new();
    for partition in 0..2 {
        readers.insert(partition, first.handle.read_from(partition, Offset(0)).await?);
    }

    let mut second = lab.start()?;
    let SourceEvent::Revoked { partitions, lost, done } = first.event().await? else { bail!("no revocation") };
    ensure_eq((partitions.len(), lost), (1, false), "what is revoked")?;
    let gone = partitions[0];
    let stays = 1 - gone;

    ensure!(!first.handle.is_assigned(gone).await, "a partition on its way out is assigned");
    ensure!(first.handle.is_assigned(stays).await, "the other one is not");
    let refused = first.handle.read_from(gone, Offset(0)).await.err();
    ensure!(matches!(refused, Some(SourceError::NotAssigned { .. })), "{refused:?}");
    let last = position(5, Watermark::at(77));
    first.handle.commit(gone, last).await.context("the last commit of a revoked partition")?;
    while let Ok(event) = second.events.try_recv() {
        let nothing = matches!(&event, SourceEvent::Assigned(partitions) if partitions.is_empty());
        ensure!(nothing, "the other member has {event:?} before the work was done");
    }
    drop(done);

    ensure_eq(second.assigned(1).await?, vec![gone], "what the other member gets")?;
    let committed = second.handle.committed(gone).await?.context("nothing committed")?;
    ensure_eq((committed.offset, committed.watermark), (Offset(5), Some(Watermark::at(77))), "the position")?;
    let refused = first.handle.commit(gone, position(1, Watermark::NEVER)).await;
    ensure!(matches!(refused, Err(SourceError::NotAssigned { .. })), "{refused:?}");

    let mut ended = readers.remove(&gone).context("a reader")?;
    while patiently("the end of the reader", ended.next()).await?.is_some() {}
    lab.write(stays, &values("after", 3)).await?;
    let mut kept = readers.remove(&stays).context("a reader")?;
    let mut read = 0;
    while read < 3 {
        read += to_end(&mut kept).await?.0.len();
    }
    close(first.source).await;
    close(second.source).await;
    Ok(())
}

async fn a_revocation_that_nobody_finishes_ends_at_its_deadline(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 2).await?;
    let mut first = lab.start_with(1000, Duration::from_millis(300))?;
    first.assigned(2).await?;
    let mut second = lab.start()?;
    let revoked = first.event().await?;
    ensure!(matches!(revoked, SourceEvent::Revoked { .. }), "{revoked:?}");
    second.assigned(1).await?;
    drop(revoked);
    close(first.source).await;
    close(second.source).await;
    Ok(())
}

async fn closing_a_source_leaves_the_group(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 2).await?;
    let mut first = lab.start()?;
    first.assigned(2).await?;
    let mut reader = first.handle.read_from(0, Offset(0)).await?;
    let handle = first.handle.clone();
    patiently("closing", close(first.source)).await?;
    while patiently("the end of the reader", reader.next()).await?.is_some() {}
    let refused = handle.read_from(0, Offset(0)).await.err();
    ensure_eq(refused, Some(SourceError::Closed), "reading from a closed source")?;
    ensure!(!handle.is_assigned(0).await, "a closed source has partitions");

    // Without leaving, the next member would wait for the session to run out (6 s).
    let started = std::time::Instant::now();
    let mut second = lab.start()?;
    second.assigned(2).await?;
    ensure!(started.elapsed() < Duration::from_secs(5), "took {:?}", started.elapsed());
    close(second.source).await;
    Ok(())
}

async fn a_committed_position_comes_back_with_its_watermark(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 1).await?;
    let mut member = lab.start()?;
    member.assigned(1).await?;
    ensure_eq(member.handle.committed(0).await?, None, "before the first commit")?;
    for watermark in [Watermark::NEVER, Watermark::at(1_700_000_000_123), Watermark::at(-1)] {
        member.handle.commit(0, position(42, watermark)).await?;
        let committed = member.handle.committed(0).await?.context("nothing committed")?;
        ensure_eq((committed.offset, committed.watermark), (Offset(42), Some(watermark)), "the position")?;
    }
    close(member.source).await;
    Ok(())
}

async fn many_commits_at_once_all_arrive(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 8).await?;
    let mut member = lab.start()?;
    member.assigned(8).await?;
    let commits = (0..200).map(|i| {
        let handle = member.handle.clone();
        async move { handle.commit(i % 8, position(i64::from(i), Watermark::at(i64::from(i)))).await }
    });
    for committed in futures_util::future::join_all(commits).await {
        committed?;
    }
    for partition in 0..8 {
        let committed = member.handle.committed(partition).await?.context("nothing committed")?;
        ensure_eq(committed.offset, Offset(192 + i64::from(partition)), "the last of each partition")?;
    }
    close(member.source).await;
    Ok(())
}

async fn metadata_of_another_program_is_unreadable_but_its_offset_is_not(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 1).await?;
    let (config, lab2) = (lab.client(), lab.clone());
    tokio::task::spawn_blocking(move || -> anyhow::Result<()> {
        let mut config = config;
        let other: BaseConsumer = config.set("group.id", &lab2.kafka.group).create()?;
        let mut list = TopicPartitionList::new();
        let mut element = list.add_partition(lab2.topic(), 0);
        element.set_offset(rdkafka::Offset::Offset(9))?;
        element.set_metadata("by hand");
        Ok(other.commit(&list, CommitMode::Sync)?)
    })
    .await??;
    let mut member = lab.start()?;
    member.assigned(1).await?;
    let committed = member.handle.committed(0).await?.context("nothing committed")?;
    ensure_eq((committed.offset, committed.watermark), (Offset(9), None), "the position")?;
    ensure_eq(committed.metadata.as_str(), "by hand", "the metadata")?;
    close(member.source).await;
    Ok(())
}

async fn a_transaction_holds_outputs_and_position(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 1).await?;
    lab.create(&lab.output(), 2).await?;
    let mut member = lab.start()?;
    member.assigned(1).await?;
    let source = lab.partition(0);
    let sink = TransactionalSink::open(&lab.kafka, &source).await?;
    for round in 1..=20 {
        let group = member.handle.group_metadata().context("no membership")?;
        let records = (0..10).map(|i| out(&lab.output(), "key", format!("{round} {i}").into())).collect();
        sink.commit(records, &source, position(round, Watermark::at(round * 1000)), group).await?;
        let committed = member.handle.committed(0).await?.context("nothing committed")?;
        let expected = (Offset(round), Some(Watermark::at(round * 1000)));
        ensure_eq((committed.offset, committed.watermark), expected, "the position")?;
    }
    sink.abort().await;
    let written = lab.read_all(&lab.output()).await?;
    let values: Vec<_> = written.iter().filter_map(|m| m.payload().map(String::from_utf8_lossy)).collect();
    let expected: Vec<_> = (1..=20).flat_map(|round| (0..10).map(move |i| format!("{round} {i}"))).collect();
    ensure_eq(values, expected.iter().map(|v| v.as_str().into()).collect(), "the outputs")?;
    close(member.source).await;
    Ok(())
}

async fn the_committed_position_waits_for_an_open_transaction(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 1).await?;
    let mut member = lab.start()?;
    member.assigned(1).await?;
    member.handle.commit(0, position(1, Watermark::NEVER)).await?;

    let producer = lab.transactional("open").await?;
    producer.begin_transaction()?;
    let group = member.handle.group_metadata().context("no membership")?;
    let (sending, topic) = (producer.clone(), lab.topic().to_owned());
    tokio::task::spawn_blocking(move || {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&topic, 0, rdkafka::Offset::Offset(2))?;
        sending.send_offsets_to_transaction(&list, &group, PATIENCE)
    })
    .await??;
    let mut asked = Box::pin(member.handle.committed(0));
    let early = timeout(Duration::from_millis(500), &mut asked).await;
    ensure!(early.is_err(), "answered while the transaction is open: {early:?}");
    end_transaction(&producer, true).await?;
    let committed = patiently("the position", asked).await??.context("nothing committed")?;
    ensure_eq(committed.offset, Offset(2), "the position")?;
    close(member.source).await;
    Ok(())
}

async fn a_second_transactional_sink_fences_the_first(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 1).await?;
    lab.create(&lab.output(), 1).await?;
    let mut member = lab.start()?;
    member.assigned(1).await?;
    let source = lab.partition(0);
    let record = |value: &str| vec![out(&lab.output(), "key", value.into())];
    let group = || member.handle.group_metadata().context("no membership");

    let first = TransactionalSink::open(&lab.kafka, &source).await?;
    first.commit(record("first"), &source, position(1, Watermark::NEVER), group()?).await?;
    let second = TransactionalSink::open(&lab.kafka, &source).await?;
    for _ in 0..2 {
        let fenced = first.commit(record("fenced"), &source, position(2, Watermark::NEVER), group()?).await;
        ensure!(matches!(fenced, Err(TransactionError::Fenced { .. })), "{fenced:?}");
    }
    second.commit(record("second"), &source, position(3, Watermark::NEVER), group()?).await?;

    let written = lab.read_all(&lab.output()).await?;
    let values: Vec<_> = written.iter().filter_map(|m| m.payload()).collect();
    ensure_eq(values, vec![b"first".as_slice(), b"second"], "the outputs")?;
    let committed = member.handle.committed(0).await?.context("nothing committed")?;
    ensure_eq(committed.offset, Offset(3), "the position")?;
    close(member.source).await;
    Ok(())
}

async fn a_transaction_with_a_record_too_large_is_not_committed_and_the_next_one_is(
    lab: Lab,
) -> anyhow::Result<()> {
    lab.create(lab.topic(), 1).await?;
    lab.create(&lab.output(), 1).await?;
    let mut member = lab.start()?;
    member.assigned(1).await?;
    let source = lab.partition(0);
    let group = || member.handle.group_metadata().context("no membership");
    let sink = TransactionalSink::open(&lab.kafka, &source).await?;

    let records = vec![out(&lab.output(), "BBCA", "before".into()), out(&lab.output(), "TLKM", noise(2 << 20))];
    let refused = sink.commit(records, &source, position(1, Watermark::NEVER), group()?).await;
    let Err(error @ TransactionError::Permanent { .. }) = refused else { bail!("{refused:?}") };
    ensure!(error.to_string().contains("TLKM") && error.to_string().contains(&lab.output()), "{error}");
    ensure_eq(member.handle.committed(0).await?, None, "the position")?;

    // What librdkafka purges of the failed transaction may take a record of the next one with it: aborted, known to be
    // so, and tried again.
    let records = vec![out(&lab.output(), "BBCA", "after".into())];
    let again = async {
        loop {
            match sink.commit(records.clone(), &source, position(2, Watermark::NEVER), group()?).await {
                Err(TransactionError::Aborted { .. }) => {}
                outcome => return anyhow::Ok(outcome?),
            }
        }
    };
    patiently("the next transaction", again).await??;
    let written = lab.read_all(&lab.output()).await?;
    let values: Vec<_> = written.iter().filter_map(|m| m.payload()).collect();
    ensure_eq(values, vec![b"after".as_slice()], "the outputs")?;
    close(member.source).await;
    Ok(())
}

async fn the_end_of_a_partition_added_later_is_known(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 1).await?;
    let ends = Ends::new(&lab.kafka)?;
    ensure_eq(ends.ends(0).await?.end, Offset(0), "the first partition's end")?;

    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &lab.kafka.brokers).create()?;
    let added = admin.create_partitions([&NewPartitions::new(lab.topic(), 2)], &AdminOptions::new()).await?;
    for result in added {
        result.map_err(|(topic, code)| anyhow::anyhow!("add a partition to {topic}: {code}"))?;
    }
    let known = async {
        loop {
            if let Ok(range) = ends.ends(1).await {
                return range;
            }
            tokio::time::sleep(Duration::from_millis(50)).await; // its leader is being chosen
        }
    };
    ensure_eq(patiently("the added partition's end", known).await?.end, Offset(0), "the added partition's end")
}

async fn end_offsets_count_open_transactions(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 2).await?;
    lab.write(0, &values("plain", 2)).await?;
    let producer = lab.transactional("open").await?;
    producer.begin_transaction()?;
    write(&producer, lab.topic(), 0, &values("open", 3)).await?;
    let ends = Ends::new(&lab.kafka)?;
    let range = ends.ends(0).await?;
    ensure_eq((range.start, range.end), (Offset(0), Offset(5)), "the log")?;
    end_transaction(&producer, false).await?;
    delete_before(&lab, 0, 2).await?;
    let range = ends.ends(0).await?;
    ensure_eq((range.start, range.end), (Offset(2), Offset(6)), "the log after an abort and a deletion")?;
    ensure_eq(ends.partitions().await?, vec![0, 1], "the partitions")?;
    ensure!(ends.ends(7).await.is_err(), "a partition that is not there has an end");
    Ok(())
}

/// Bytes that no compression makes smaller: a topic's limit counts what is written.
fn noise(bytes: usize) -> Vec<u8> {
    std::iter::repeat_with(rand::random::<u64>).flat_map(u64::to_le_bytes).take(bytes).collect()
}

async fn a_record_too_large_is_a_permanent_error_that_names_it(lab: Lab) -> anyhow::Result<()> {
    lab.create(&lab.output(), 1).await?;
    let sink = Sink::new(&lab.kafka)?;
    let refused = sink.send(vec![out(&lab.output(), "BBCA", noise(2 << 20))]).await;
    let Err(error @ SinkError::Permanent { .. }) = refused else { bail!("{refused:?}") };
    let text = error.to_string();
    ensure!(text.contains("BBCA") && text.contains(&lab.output()) && text.contains("max.message.bytes"), "{text}");
    sink.send(vec![out(&lab.output(), "BBCA", "small".into())]).await?;
    ensure_eq(lab.read_all(&lab.output()).await?.len(), 1, "records")
}

async fn an_unknown_output_topic_is_a_permanent_error(mut lab: Lab) -> anyhow::Result<()> {
    // How long librdkafka gives a topic to appear; 30 s by default.
    lab.kafka.producer.insert("topic.metadata.propagation.max.ms".into(), Scalar("500".into()));
    let sink = Sink::new(&lab.kafka)?;
    let refused = patiently("an error", sink.send(vec![out(&lab.output(), "BBCA", "x".into())])).await?;
    let Err(error @ SinkError::Permanent { .. }) = refused else { bail!("{refused:?}") };
    ensure!(error.to_string().contains("create the topic"), "{error}");
    Ok(())
}

async fn a_full_queue_waits_and_everything_arrives(mut lab: Lab) -> anyhow::Result<()> {
    lab.create(&lab.output(), 1).await?;
    lab.kafka.producer.insert("queue.buffering.max.messages".into(), Scalar("50".into()));
    let sink = Sink::new(&lab.kafka)?;
    let records = values("value", 2000).into_iter().map(|value| out(&lab.output(), "key", value.into())).collect();
    patiently("the acknowledgements", sink.send(records)).await??;
    let written = lab.read_all(&lab.output()).await?;
    let read: Vec<_> =
        written.iter().filter_map(|m| m.payload()).map(|v| String::from_utf8_lossy(v).into_owned()).collect();
    ensure_eq(read, values("value", 2000), "the records")
}

/// The hashes are those of the Java client's own test of murmur2.
async fn keys_go_to_the_partitions_java_puts_them(lab: Lab) -> anyhow::Result<()> {
    const KEYS: &[(&str, i32)] = &[
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
    ];
    lab.create(&lab.output(), 7).await?;
    let sink = Sink::new(&lab.kafka)?;
    let records = KEYS.iter().map(|(key, _)| OutRecord {
        headers: vec![("late.intervals".into(), Some(b"1s,1m".to_vec()))],
        ..out(&lab.output(), key, "x".into())
    });
    sink.send(records.collect()).await?;
    let written = lab.read_all(&lab.output()).await?;
    ensure_eq(written.len(), KEYS.len(), "records")?;
    for record in &written {
        let key = String::from_utf8_lossy(record.key().context("a key")?).into_owned();
        let (_, hash) = KEYS.iter().find(|(known, _)| *known == key).context("an unknown key")?;
        ensure_eq(record.partition(), (hash & 0x7fff_ffff) % 7, &key)?;
        let header = record.headers().context("headers")?.get(0);
        ensure_eq((header.key, header.value), ("late.intervals", Some(b"1s,1m".as_slice())), "the header")?;
    }
    Ok(())
}

async fn an_unreachable_broker_is_an_event_not_a_failure(mut lab: Lab) -> anyhow::Result<()> {
    lab.kafka.brokers = "127.0.0.1:1".into();
    let mut member = lab.start()?;
    loop {
        if let SourceEvent::Error { code: RDKafkaErrorCode::AllBrokersDown, .. } = member.event().await? {
            break;
        }
    }
    patiently("closing", close(member.source)).await
}

async fn missing_topics_come_with_the_command_to_create_them(lab: Lab) -> anyhow::Result<()> {
    lab.create(lab.topic(), 1).await?;
    topics::check(&lab.kafka, &[(lab.topic(), TopicRole::Source)]).await?;
    topics::create(&lab.kafka, lab.topic(), 1).await.context("a topic that is there is left as it is")?;
    let output = lab.output();
    let wanted = [(lab.topic(), TopicRole::Source), (output.as_str(), TopicRole::Candles)];
    let error = topics::check(&lab.kafka, &wanted).await.err().context("a missing topic was found")?.to_string();
    let command = format!("--create --topic {output} --partitions 8 --replication-factor 1");
    ensure!(error.contains(&command) && error.contains("(candles)"), "{error}");
    Ok(())
}
