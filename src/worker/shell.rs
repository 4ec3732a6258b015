//! Carries out what the state machine of one source partition asks for: one task a partition.
//!
//! Commands run beside each other; each answer goes back to the machine with the number of the takeover it belongs
//! to. The connection to Redis, the reader and the transactional producer live as long as one takeover.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, watch};

use super::encode::Encoder;
use super::machine::{Machine, Phase, Snapshot};
use super::protocol::{Command, Committed, Delivery, Event, Failure, Settings};
use super::report::Reporter;
use crate::config::{KafkaConfig, RedisConfig};
use crate::domain::{Batch, Position, SourcePartition};
use crate::failpoint;
use crate::kafka::{
    Ends, Feed, OutRecord, Reader, Sink, SourceError, SourceHandle, TransactionError, TransactionalSink,
};
use crate::store::check;
use crate::store::connection::connect;
use crate::store::error::StoreError;
use crate::store::pool::Pool;
use crate::store::scripts::{Claim, Scripts, Token};

/// Entries of the outbox read at a time.
const OUTBOX_PAGE: usize = 1_000;

/// What all partitions of a worker share.
pub struct Shared {
    /// Settings of the protocol.
    pub settings: Arc<Settings>,
    /// Where Redis is, for a partition's own connection.
    pub redis: RedisConfig,
    /// Connections for calls on the side.
    pub pool: Pool,
    /// Where Kafka is.
    pub kafka: KafkaConfig,
    /// The scripts.
    pub scripts: Scripts,
    /// The group member.
    pub source: SourceHandle,
    /// End offsets.
    pub ends: Ends,
    /// Outputs, at least once.
    pub sink: Sink,
    /// Outputs as records.
    pub encoder: Encoder,
    /// A graceful stop may take this long.
    pub stop_deadline: Duration,
    /// As many permits as there are ticks in a full batch. Redis does one script at a time, and all that wait before it
    /// turns to anybody else: behind the full batches of many partitions, that would be long.
    pub applying: Semaphore,
}

impl Shared {
    /// Waits until a batch may be applied: all partitions together, one full batch at a time, be it full of ticks or of
    /// symbols.
    async fn turn(&self, batch: &Batch) -> SemaphorePermit<'_> {
        let Settings { max_batch, max_symbols, .. } = &*self.settings;
        let ticks = (batch.counts.ticks as usize).max(batch.symbols.len() * max_batch / max_symbols);
        let permits = ticks.min(*max_batch) as u32;
        self.applying.acquire_many(permits).await.expect("it is never closed")
    }
}

/// Told to a partition's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Finish what is in flight, commit, give it up.
    Stop,
    /// The partition is another's already: drop everything.
    Abandon,
}

/// A future's result: an event for the machine, or a thing that the shell keeps, with the event that tells of it.
enum Outcome {
    Event(Event),
    Connected(MultiplexedConnection, Event),
    Producer(Arc<TransactionalSink>),
    Reading(Reader),
}

type Answer = (u64, Outcome);

/// The task of one source partition.
pub struct Shell {
    shared: Arc<Shared>,
    partition: SourcePartition,
    machine: Machine,
    under_way: FuturesUnordered<BoxFuture<'static, Answer>>,
    connection: Option<MultiplexedConnection>,
    producer: Option<Arc<TransactionalSink>>,
    reader: Option<Reader>,
    started: Instant,
    reporter: Reporter,
    snapshots: watch::Sender<Snapshot>,
    released: bool,
}

impl Shell {
    /// A task for `partition`; its snapshots go to `snapshots`.
    pub fn new(
        shared: Arc<Shared>,
        partition: SourcePartition,
        reporter: Reporter,
        settings: Arc<Settings>,
    ) -> (Shell, watch::Receiver<Snapshot>) {
        let machine = Machine::new(settings);
        let (snapshots, receiver) = watch::channel(machine.snapshot());
        let shell = Shell {
            shared,
            partition,
            machine,
            under_way: FuturesUnordered::new(),
            connection: None,
            producer: None,
            reader: None,
            started: Instant::now(),
            reporter,
            snapshots,
            released: false,
        };
        (shell, receiver)
    }

    /// Runs until the partition is released, told to be abandoned, or the deadline of a graceful stop has passed.
    pub async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut deadline: Option<tokio::time::Instant> = None;
        self.hear(0, Event::Start);
        while !self.released {
            let wake = self.machine.wake_at(self.now()).saturating_sub(self.now());
            let stop = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::Stop) => {
                        deadline.get_or_insert(tokio::time::Instant::now() + self.shared.stop_deadline);
                        self.hear(self.machine.attempt(), Event::Stop);
                    }
                    Some(Order::Abandon) | None => break,
                },
                Some((attempt, outcome)) = self.under_way.next(), if !self.under_way.is_empty() => {
                    self.keep(attempt, outcome);
                }
                feed = next_feed(&mut self.reader), if self.reader.is_some() && self.machine.wants_records() => {
                    self.feed(feed);
                }
                () = stop => {
                    self.reporter.gave_up(self.shared.stop_deadline);
                    break;
                }
                () = tokio::time::sleep(Duration::from_millis(wake)) => {
                    self.hear(self.machine.attempt(), Event::Tick);
                }
            }
        }
        if let Some(producer) = self.producer.take() {
            // Not in time: the broker aborts it, at the latest for the next owner.
            let _ = tokio::time::timeout(self.shared.stop_deadline, producer.abort()).await;
        }
        failpoint::pass("released");
        self.reporter.released(&self.machine.snapshot().phase);
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn hear(&mut self, attempt: u64, event: Event) {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
        self.machine.handle(self.now(), clock, attempt, event);
        for command in self.machine.take_commands() {
            self.carry_out(command);
        }
        let snapshot = self.machine.snapshot();
        self.reporter.gauges(&snapshot);
        if matches!(snapshot.phase, Phase::BackingOff(_) | Phase::Stopped(_) | Phase::Released) {
            self.reader = None;
        }
        self.snapshots.send_replace(snapshot);
    }

    fn feed(&mut self, feed: Option<Feed>) {
        let attempt = self.machine.attempt();
        match feed {
            Some(Feed::Chunk(chunk)) => {
                self.reporter.received(&chunk);
                failpoint::pass("records_read");
                self.hear(attempt, Event::Records(Arc::new(chunk)));
            }
            Some(Feed::End(position)) => self.hear(attempt, Event::End(position)),
            Some(Feed::OutOfRange(_)) => self.hear(attempt, Event::OutOfRange),
            None => self.reader = None, // revoked: the order to stop follows
        }
    }

    fn keep(&mut self, attempt: u64, outcome: Outcome) {
        let current = attempt == self.machine.attempt();
        let event = match outcome {
            Outcome::Event(event) => event,
            Outcome::Connected(connection, event) => {
                if current {
                    self.connection = Some(connection);
                }
                event
            }
            Outcome::Producer(producer) => {
                if current {
                    self.producer = Some(producer);
                }
                Event::ProducerOpen
            }
            Outcome::Reading(reader) => {
                if current {
                    self.reader = Some(reader);
                }
                Event::Reading
            }
        };
        cross(&event);
        self.hear(attempt, event);
    }

    /// Starts what the command asks for; its answer comes back through `under_way`.
    fn carry_out(&mut self, command: Command) {
        let shared = Arc::clone(&self.shared);
        let partition = self.partition.clone();
        let number = partition.partition;
        let reporter = self.reporter.clone();
        match command {
            Command::OpenProducer => {
                self.producer = None;
                self.spawn(async move {
                    match TransactionalSink::open(&shared.kafka, &partition).await {
                        Ok(producer) => Outcome::Producer(Arc::new(producer)),
                        Err(error) => failed("open the transactional producer", &error, !error.is_permanent()),
                    }
                });
            }
            Command::FetchCommitted => self.spawn(async move {
                Outcome::Event(match shared.source.committed(number).await {
                    Ok(committed) => Event::Committed(committed_of(committed)),
                    Err(error) => source_failure("read the committed offset", &error),
                })
            }),
            Command::AskRange => self.spawn(async move {
                Outcome::Event(match shared.ends.ends(number).await {
                    Ok(range) => Event::Range { start: range.start, end: range.end },
                    Err(error) => Event::RangeUnknown(failure("ask for the end offset", &error, true)),
                })
            }),
            Command::CommitStart(position) => self.spawn(async move {
                Outcome::Event(match shared.source.commit(number, position).await {
                    Ok(()) => Event::StartCommitted,
                    Err(error) => source_failure("commit the start offset", &error),
                })
            }),
            Command::LookForRules => self.spawn(async move {
                match check::any_rule(&shared.pool, shared.scripts.keys()).await {
                    Ok(found) => Outcome::Event(Event::Rules(found)),
                    Err(error) => store_failure(&reporter, "look for rules", &error),
                }
            }),
            Command::Claim(claim) => {
                self.connection = None;
                self.spawn(claim_partition(shared, reporter, partition, claim));
            }
            Command::ReadFrom(offset) => self.spawn(async move {
                match shared.source.read_from(number, offset).await {
                    Ok(reader) => Outcome::Reading(reader),
                    Err(error) => Outcome::Event(source_failure("start reading", &error)),
                }
            }),
            Command::Send(delivery) => self.spawn(async move {
                let (ticket, started) = (delivery.ticket, Instant::now());
                let records = records_of(&shared.encoder, &partition, &delivery);
                match shared.sink.send(records).await {
                    Ok(()) => {
                        reporter.delivered(&delivery.outputs, started.elapsed());
                        Outcome::Event(Event::Sent(ticket))
                    }
                    Err(error) => {
                        reporter.produce_failed(&error.to_string());
                        failed("send outputs", &error, !error.is_permanent())
                    }
                }
            }),
            Command::Commit(position) => self.spawn(async move {
                Outcome::Event(match shared.source.commit(number, position).await {
                    Ok(()) => Event::CommitDone,
                    Err(error) => source_failure("commit", &error),
                })
            }),
            Command::Transact(delivery, position) => self.transact(delivery, position),
            Command::CheckAssigned => {
                self.spawn(async move { Outcome::Event(Event::Assigned(shared.source.is_assigned(number).await)) });
            }
            Command::Tell(notice) => self.reporter.tell(notice),
            Command::Release => self.released = true,
            script => self.run_script(script),
        }
    }

    fn spawn(&mut self, work: impl Future<Output = Outcome> + Send + 'static) {
        let attempt = self.machine.attempt();
        self.under_way.push(Box::pin(async move { (attempt, work.await) }));
    }

    fn transact(&mut self, delivery: Delivery, position: Position) {
        let (shared, partition) = (Arc::clone(&self.shared), self.partition.clone());
        let (producer, reporter) = (self.producer.clone(), self.reporter.clone());
        self.spawn(async move {
            let started = Instant::now();
            let (Some(producer), Some(group)) = (producer, shared.source.group_metadata()) else {
                return failed("commit a transaction", &"the producer or the group is gone", true);
            };
            let records = records_of(&shared.encoder, &partition, &delivery);
            match producer.commit(records, &partition, position, group).await {
                Ok(()) => {
                    reporter.delivered(&delivery.outputs, started.elapsed());
                    Outcome::Event(Event::Transacted)
                }
                Err(error) => {
                    let mut failure = failure(
                        "commit a transaction",
                        &error,
                        !matches!(error, TransactionError::Permanent { .. }),
                    );
                    failure.fenced = matches!(error, TransactionError::Fenced { .. });
                    Outcome::Event(Event::Failed(failure))
                }
            }
        });
    }

    /// The script calls, over the connection of this takeover.
    fn run_script(&mut self, command: Command) {
        let (shared, partition) = (Arc::clone(&self.shared), self.partition.clone());
        let Some(mut connection) = self.connection.clone() else { return };
        let reporter = self.reporter.clone();
        self.spawn(async move {
            let _turn = match &command {
                Command::Apply(_, batch, _) => Some(shared.turn(batch).await),
                _ => None,
            };
            let started = Instant::now();
            let (scripts, conn) = (&shared.scripts, &mut connection);
            let answer = match &command {
                Command::ReadOutbox(after) => {
                    scripts.read_outbox(conn, &partition, *after, OUTBOX_PAGE).await.map(Event::Outbox)
                }
                Command::Apply(guard, batch, single) => {
                    scripts.apply(conn, &partition, guard, batch, *single).await.map(Event::Applied)
                }
                Command::Close(guard) => scripts.close(conn, &partition, guard).await.map(Event::Closed),
                Command::Update(guard) => scripts.update(conn, &partition, guard).await.map(Event::Updated),
                Command::Advance(guard, to, grace) => {
                    scripts.advance(conn, &partition, guard, *to, *grace).await.map(Event::Advanced)
                }
                Command::Heartbeat(guard, hold) => scripts
                    .heartbeat(conn, &partition, guard, hold.state.as_str(), &hold.reason)
                    .await
                    .map(Event::Beat),
                Command::Trim(token, through) => {
                    scripts.trim(conn, &partition, token, *through).await.map(|_| Event::Trimmed)
                }
                other => unreachable!("{other:?} is no call of a script"),
            };
            if let Command::Apply(_, batch, _) = &command {
                reporter.applied_in(batch.counts.ticks, started.elapsed());
            }
            match answer {
                Ok(event) => Outcome::Event(event),
                Err(error) => store_failure(&reporter, "call Redis", &error),
            }
        });
    }
}

/// The borders of the flow: something was done outside, and the machine has not heard of it.
fn cross(event: &Event) {
    match event {
        Event::ProducerOpen => failpoint::pass("producer_open"),
        Event::Committed(_) => failpoint::pass("committed_read"),
        Event::StartCommitted => failpoint::pass("start_committed"),
        Event::Claimed(..) => failpoint::pass("claimed"),
        Event::Outbox(_) => failpoint::pass("outbox_read"),
        Event::Beat(_) => failpoint::pass("beaten"),
        Event::Reading => failpoint::pass("reading"),
        Event::Applied(_) => failpoint::pass("applied"),
        Event::Closed(_) => failpoint::pass("closed"),
        Event::Updated(_) => failpoint::pass("updated"),
        Event::Advanced(_) => failpoint::pass("advanced"),
        Event::Sent(_) => failpoint::pass("sent"),
        Event::CommitDone => failpoint::pass("committed"),
        Event::Transacted => failpoint::pass("transacted"),
        Event::Trimmed => failpoint::pass("trimmed"),
        _ => {}
    }
}

async fn next_feed(reader: &mut Option<Reader>) -> Option<Feed> {
    match reader {
        Some(reader) => reader.next().await,
        None => std::future::pending().await,
    }
}

/// A new connection for each claim: whoever lost one has to claim again.
async fn claim_partition(
    shared: Arc<Shared>,
    reporter: Reporter,
    partition: SourcePartition,
    mut claim: Claim,
) -> Outcome {
    claim.token = Token::new(rand::random());
    let mut connection = match connect(&shared.redis).await {
        Ok(connection) => connection,
        Err(error) => return store_failure(&reporter, "connect to Redis", &error.into()),
    };
    match shared.scripts.claim(&mut connection, &partition, &claim).await {
        Ok(claimed) => {
            reporter.redis_answers();
            Outcome::Connected(connection, Event::Claimed(claim.token, claimed))
        }
        Err(error) => store_failure(&reporter, "claim", &error),
    }
}

fn records_of(encoder: &Encoder, partition: &SourcePartition, delivery: &Delivery) -> Vec<OutRecord> {
    delivery.outputs.iter().map(|output| encoder.encode(partition, delivery.generation, output)).collect()
}

fn committed_of(committed: Option<crate::kafka::Committed>) -> Committed {
    match committed {
        None => Committed::None,
        Some(found) => match found.watermark {
            Some(watermark) => Committed::At(Position { offset: found.offset, watermark, updates: found.updates }),
            None => Committed::Unreadable(found.offset, found.metadata),
        },
    }
}

fn failure(what: &'static str, error: &impl ToString, transient: bool) -> Failure {
    Failure { what, message: error.to_string(), transient, fenced: false, from_redis: false }
}

fn failed(what: &'static str, error: &impl ToString, transient: bool) -> Outcome {
    Outcome::Event(Event::Failed(failure(what, error, transient)))
}

fn store_failure(reporter: &Reporter, what: &'static str, error: &StoreError) -> Outcome {
    reporter.redis_failed(what, error);
    let failure = Failure { from_redis: true, ..failure(what, error, error.is_transient()) };
    Outcome::Event(Event::Failed(failure))
}

/// What goes wrong between this consumer and its group is settled by a rebalance, or by trying again.
fn source_failure(what: &'static str, error: &SourceError) -> Event {
    let mut failure = failure(what, error, true);
    failure.fenced = matches!(error, SourceError::NotAssigned { .. });
    Event::Failed(failure)
}
