//! Collects the tests, starts the servers that the selected ones need, runs them, stops the servers.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tickwatch::sandbox::kafka::Login;
use tickwatch::sandbox::{self, Broker, Redis, SandboxError};

use super::{Certificates, Stage};

/// Tests run at once, unless `--test-threads` says otherwise. They mostly wait.
const THREADS: usize = 4;

/// One test: it passes if it returns, is skipped with [`skip`], and fails with any other error or panic.
pub(crate) struct Case {
    /// Its name with its module's path; the crate's own name in front is not shown.
    pub(crate) name: &'static str,
    /// The servers it cannot do without.
    pub(crate) needs: Needs,
    /// The test.
    pub(crate) test: fn(&Stage) -> anyhow::Result<()>,
}

/// The shared servers that a test cannot do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code)] // for every module; not all use each
pub(crate) enum Needs {
    Nothing,
    Redis,
    Kafka,
    Both,
}

impl Needs {
    fn redis(self) -> bool {
        matches!(self, Needs::Redis | Needs::Both)
    }

    fn kafka(self) -> bool {
        matches!(self, Needs::Kafka | Needs::Both)
    }
}

/// The tests of one file. The last three are for files that make trials of their own.
#[allow(dead_code)] // the same
pub(crate) enum Module {
    /// Cases, each with a stage.
    Cases(fn() -> Vec<Case>),
    /// Trials that need no server.
    Trials(fn() -> Vec<Trial>),
    /// Trials on the shared Redis, given its URL.
    RedisTrials(fn(&str) -> Vec<Trial>),
    /// Trials on the shared broker, given its address.
    KafkaTrials(fn(&str) -> Vec<Trial>),
}

/// A test's way to say that this machine lacks something: `return Err(skip("no data folder"))`.
pub(crate) fn skip(reason: impl Into<String>) -> anyhow::Error {
    Skip(reason.into()).into()
}

#[derive(Debug, thiserror::Error)]
#[error("skipped: {0}")]
struct Skip(String);

/// Runs the tests that the command line selects.
pub(crate) fn run(modules: &[Module]) -> ExitCode {
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert(THREADS);

    let servers = Arc::new(Servers::default());
    let trials = modules.iter().flat_map(|module| module.trials(&args, &servers)).collect();
    let conclusion = libtest_mimic::run(&args, trials);

    servers.stop();
    servers.print_skipped();
    conclusion.exit_code()
}

impl Module {
    fn trials(&self, args: &Arguments, servers: &Arc<Servers>) -> Vec<Trial> {
        match self {
            Module::Cases(cases) => cases().into_iter().map(|case| case.into_trial(servers)).collect(),
            Module::Trials(trials) => trials(),
            Module::RedisTrials(trials) => served(*trials, args, servers, || servers.redis_url()),
            Module::KafkaTrials(trials) => {
                served(*trials, args, servers, || servers.kafka().map(|kafka| kafka.brokers.clone()))
            }
        }
    }
}

/// The trials that a server's address makes. The server is started only if one of them is selected.
fn served(
    trials: fn(&str) -> Vec<Trial>,
    args: &Arguments,
    servers: &Arc<Servers>,
    address: impl FnOnce() -> Result<String, Absent>,
) -> Vec<Trial> {
    let unserved = trials("");
    if args.list || unserved.iter().all(|trial| args.is_filtered_out(trial)) {
        return unserved;
    }
    match address() {
        Ok(address) => trials(&address),
        Err(absent) => unserved.iter().map(|trial| absent.clone().into_trial(trial.name(), servers)).collect(),
    }
}

impl Case {
    fn into_trial(self, servers: &Arc<Servers>) -> Trial {
        let servers = Arc::clone(servers);
        let name = self.name.split_once("::").map_or(self.name, |(_crate, name)| name);
        Trial::ignorable_test(name, move || servers.note(name, self.outcome(&servers)))
    }

    fn outcome(&self, servers: &Servers) -> Result<Completion, Failed> {
        match self.stage(servers) {
            Ok(stage) => completion((self.test)(&stage)),
            Err(absent) => absent.outcome(),
        }
    }

    fn stage(&self, servers: &Servers) -> Result<Stage, Absent> {
        let redis = self.needs.redis().then(|| servers.redis_url()).transpose()?;
        let kafka = self.needs.kafka().then(|| servers.kafka()).transpose()?;
        Ok(Stage::new(redis, kafka))
    }
}

fn completion(result: anyhow::Result<()>) -> Result<Completion, Failed> {
    match result {
        Ok(()) => Ok(Completion::Completed),
        Err(error) => match error.downcast_ref::<Skip>() {
            Some(Skip(reason)) => Ok(Completion::ignored_with(reason)),
            None => Err(format!("{error:#}").into()),
        },
    }
}

/// The shared servers, each started when first asked for, and what was skipped.
#[derive(Default)]
struct Servers {
    redis: OnceLock<Result<Mutex<Redis>, Absent>>,
    kafka: OnceLock<Result<Arc<Kafka>, Absent>>,
    skipped: Mutex<Vec<(String, String)>>,
}

/// The shared broker: most tests come in where nobody logs in, some where everybody has to.
pub(crate) struct Kafka {
    broker: Mutex<Broker>,
    /// Where nobody logs in.
    pub(crate) brokers: String,
    /// Where clients log in over TLS, as [`USERS`].
    pub(crate) sasl_brokers: String,
    /// Of the broker, and of the authority that it and its clients trust.
    pub(crate) certificates: Certificates,
}

/// Who can log in to the shared broker, with the password.
pub(crate) const USERS: [(&str, &str); 2] = [("tickwatch", "correct-horse"), ("limited", "battery-staple")];

impl Kafka {
    fn start() -> Result<Kafka, Absent> {
        if let Some(missing) = Broker::missing() {
            return Err(missing.into());
        }
        let failed = |error: anyhow::Error| Absent { reason: format!("{error:#}"), missing: false };
        let certificates = Certificates::new().map_err(failed)?;
        let pem = |name| certificates.pem(name).map_err(failed);
        let login = Login {
            keystore: [pem("server.key")?, pem("server.pem")?, pem("ca.pem")?].concat(),
            truststore: pem("ca.pem")?,
            users: USERS.map(|(name, password)| (name.to_owned(), password.to_owned())).to_vec(),
        };
        let broker = Broker::start_with_login(&login)?;
        let (brokers, sasl_brokers) = (broker.brokers(), broker.sasl_brokers().unwrap_or_default());
        Ok(Kafka { broker: Mutex::new(broker), brokers, sasl_brokers, certificates })
    }

    /// Runs one of Kafka's own tools to its end.
    pub(crate) fn tool(&self, class: &str, arguments: &[&str]) -> anyhow::Result<()> {
        Ok(lock(&self.broker).tool(class, arguments)?)
    }
}

/// Why a server is not there: the machine lacks it (a skip), or it did not start (a failure).
#[derive(Debug, Clone)]
struct Absent {
    reason: String,
    missing: bool,
}

impl From<SandboxError> for Absent {
    fn from(error: SandboxError) -> Absent {
        Absent { reason: error.to_string(), missing: error.is_missing() }
    }
}

impl Absent {
    fn outcome(&self) -> Result<Completion, Failed> {
        if self.missing { Ok(Completion::ignored_with(&self.reason)) } else { Err(self.reason.clone().into()) }
    }

    fn into_trial(self, name: &str, servers: &Arc<Servers>) -> Trial {
        let servers = Arc::clone(servers);
        let owned_name = name.to_owned();
        Trial::ignorable_test(name, move || servers.note(&owned_name, self.outcome()))
    }
}

impl Servers {
    fn redis_url(&self) -> Result<String, Absent> {
        let redis = self.redis.get_or_init(|| Ok(Mutex::new(Redis::start(&[])?)));
        Ok(lock(redis.as_ref().map_err(Absent::clone)?).url())
    }

    fn kafka(&self) -> Result<Arc<Kafka>, Absent> {
        self.kafka.get_or_init(|| Kafka::start().map(Arc::new)).clone()
    }

    /// Ends the servers at once; nothing in them is needed any more.
    fn stop(&self) {
        if let Some(Ok(redis)) = self.redis.get() {
            report("Redis", lock(redis).kill());
        }
        if let Some(Ok(kafka)) = self.kafka.get() {
            report("Kafka", lock(&kafka.broker).kill());
        }
    }

    /// Remembers a skip for the list at the end.
    fn note(&self, name: &str, outcome: Result<Completion, Failed>) -> Result<Completion, Failed> {
        if let Ok(Completion::Ignored { reason }) = &outcome {
            lock(&self.skipped).push((name.to_owned(), reason.clone().unwrap_or_default()));
        }
        outcome
    }

    fn print_skipped(&self) {
        let mut skipped = lock(&self.skipped).clone();
        if !skipped.is_empty() {
            skipped.sort();
            println!("skipped:");
            for (name, reason) in skipped {
                println!("    {name}: {reason}");
            }
        }
    }
}

fn report(server: &str, ended: sandbox::Result<()>) {
    if let Err(error) = ended {
        eprintln!("{server} did not end: {error}");
    }
}

/// The value, even if a test panicked while it held the lock: each change made under it is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
