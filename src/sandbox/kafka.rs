//! A private Kafka: Apache Kafka's own broker where Java and the jars are, librdkafka's mock everywhere.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rustix::process::Signal;
use tempfile::TempDir;

use super::{Process, Result, SandboxError, accepts, find_program, wait_until_ready, with_free_ports};

/// Names the folder with Kafka's jars; unset, it is `.cache/kafka/libs` here or in the source tree.
pub const LIBS_VARIABLE: &str = "TW_KAFKA_LIBS";

const LIBS: &str = ".cache/kafka/libs";
const PROGRAM: &str = "Kafka's broker";
const START_PATIENCE: Duration = Duration::from_secs(90);
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// Any base64 UUID will do: each broker is a cluster of its own.
const CLUSTER_ID: &str = "MkU3OEVBNTcwNTJENDM2Qk";

/// A JVM that starts fast and stays small; the broker of a test never runs long enough to earn more.
const JVM: [&str; 4] = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx512m"];

/// What differs from Kafka's defaults: one node, few partitions of the internal topics so that the first group
/// and the first transaction wait for little, no wait for more members, small buffers.
const SETTINGS: &str = "\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
log.dirs=data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
group.min.session.timeout.ms=500
log.cleaner.dedupe.buffer.size=4194304
log.cleaner.backoff.ms=200
log.index.size.max.bytes=1048576
";

/// Of the listener where clients log in. Who comes in by the other one is nobody, and may do everything.
const LOGIN_SETTINGS: &str = "\
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location=keystore.pem
ssl.truststore.type=PEM
ssl.truststore.location=truststore.pem
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,PLAIN
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
";

/// Of listeners behind relays.
const RELAYED_SETTINGS: &str = "\
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,RELAYED0:PLAINTEXT,RELAYED1:PLAINTEXT,\
RELAYED2:PLAINTEXT,RELAYED3:PLAINTEXT,RELAYED4:PLAINTEXT
";

/// A private single-node Kafka 4 (KRaft) on a loopback port. Dropping it ends it and its data.
#[derive(Debug)]
pub struct Broker {
    directory: TempDir,
    libs: PathBuf,
    port: u16,
    sasl_port: Option<u16>,
    relayed: [u16; RELAYS],
    process: Process,
}

/// Listeners that a broker can have behind relays.
pub const RELAYS: usize = 5;

/// The listeners of a broker besides the first one.
#[derive(Debug, Clone, Copy)]
enum More<'a> {
    None,
    Login(&'a Login),
    /// Each is known to its clients by the port of a relay in front of it.
    Relayed([u16; RELAYS]),
}

/// A second listener, for who has to log in over TLS. Nobody logs in at the first one, which may do everything.
#[derive(Debug, Clone)]
pub struct Login {
    /// PEM of the broker's key, certificate and authority.
    pub keystore: String,
    /// PEM of the authorities of clients.
    pub truststore: String,
    /// Names and passwords, for SCRAM and for PLAIN.
    pub users: Vec<(String, String)>,
}

impl Broker {
    /// Why there can be no broker on this machine; `None` where Java and Kafka's jars are.
    pub fn missing() -> Option<SandboxError> {
        find_java().and_then(|()| find_libs()).err()
    }

    /// Starts a broker and waits until it answers.
    pub fn start() -> Result<Broker> {
        Broker::start_with(More::None)
    }

    /// Starts a broker with a second listener, where each right has to be given by ACLs.
    pub fn start_with_login(login: &Login) -> Result<Broker> {
        Broker::start_with(More::Login(login))
    }

    /// Starts a broker with more listeners, of which clients know nothing but the ports of relays that they are to
    /// be reached through.
    pub fn start_behind(relays: [u16; RELAYS]) -> Result<Broker> {
        Broker::start_with(More::Relayed(relays))
    }

    fn start_with(more: More<'_>) -> Result<Broker> {
        find_java()?;
        let libs = find_libs()?;
        with_free_ports(|[port, controller, sasl, a, b, c, d, e]| {
            let relayed = [a, b, c, d, e];
            let directory = tempfile::Builder::new()
                .prefix("tickwatch-kafka-")
                .tempdir()
                .map_err(SandboxError::io("make a directory for Kafka"))?;
            let (login, sasl_port) = match more {
                More::Login(login) => (Some(login), Some(sasl)),
                More::None | More::Relayed(_) => (None, None),
            };
            let mut listeners = vec![Listener { name: "PLAINTEXT".into(), port, advertised: port }];
            let settings = match more {
                More::None => String::new(),
                More::Login(login) => {
                    listeners.push(Listener { name: "SASL_SSL".into(), port: sasl, advertised: sasl });
                    login_settings(directory.path(), login)?
                }
                More::Relayed(relays) => {
                    let relayed = relayed.into_iter().zip(relays).enumerate();
                    listeners.extend(relayed.map(|(number, (port, advertised))| Listener {
                        name: format!("RELAYED{number}"),
                        port,
                        advertised,
                    }));
                    RELAYED_SETTINGS.to_owned()
                }
            };
            let properties = properties(&listeners, controller, &settings);
            fs::write(directory.path().join("server.properties"), properties)
                .map_err(SandboxError::io("write Kafka's server.properties"))?;
            format_storage(directory.path(), &libs, login)?;
            let process = launch(directory.path(), &libs, port)?;
            Ok(Broker { directory, libs: libs.clone(), port, sasl_port, relayed, process })
        })
    }

    /// The address of the listener where clients log in, if it was started with one.
    pub fn sasl_brokers(&self) -> Option<String> {
        self.sasl_port.map(address)
    }

    /// The ports that relays have to lead to, if it was started behind some.
    pub fn relayed_ports(&self) -> [u16; RELAYS] {
        self.relayed
    }

    /// Runs one of Kafka's own tools, such as `org.apache.kafka.tools.AclCommand`, to its end.
    pub fn tool(&self, class: &str, arguments: &[&str]) -> Result<()> {
        let mut command = java(self.directory.path(), &self.libs, class);
        run_tool(command.args(["--bootstrap-server", &self.brokers()]).args(arguments), class)
    }

    /// `127.0.0.1:<port>`, the value of `bootstrap.servers`.
    pub fn brokers(&self) -> String {
        address(self.port)
    }

    /// The broker's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The directory with its data and its log, `log`.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Kills the broker (SIGKILL); its data stays for [`Broker::restart`].
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill().map(drop).map_err(SandboxError::io("kill Kafka's broker"))
    }

    /// Stops the broker in good order; its data stays for [`Broker::restart`].
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.process.stop(STOP_PATIENCE)
    }

    /// Freezes it (SIGSTOP): connections stay, and nobody answers.
    pub fn pause(&mut self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Lets it go on (SIGCONT).
    pub fn cont(&mut self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Starts it again with the same data and port, killing it first if it runs.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.process = launch(self.directory.path(), &self.libs, self.port)?;
        Ok(())
    }
}

/// librdkafka's in-process mock of a cluster of one: no Java needed. Topics come into being when first used; it
/// has no transaction isolation and keeps 5 MiB a partition.
pub struct MockBroker {
    cluster: MockCluster<'static, DefaultProducerContext>,
}

// SAFETY: the cluster is an opaque handle that librdkafka guards with a lock of its own and runs on a thread of
// its own; creating, asking and destroying it are legal from any thread (rdkafka_mock.c, `mcluster->lock`). It
// is only moved between threads here, never shared.
#[allow(unsafe_code)]
unsafe impl Send for MockBroker {}

impl fmt::Debug for MockBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MockBroker").field("brokers", &self.brokers()).finish()
    }
}

impl MockBroker {
    /// Starts the mock.
    pub fn start() -> Result<MockBroker> {
        let cluster = MockCluster::new(1)
            .map_err(|source| SandboxError::Kafka { action: "start the mock broker".into(), source })?;
        Ok(MockBroker { cluster })
    }

    /// The value of `bootstrap.servers`.
    pub fn brokers(&self) -> String {
        self.cluster.bootstrap_servers()
    }

    /// Makes a topic, for partitions other than the default of 4.
    pub fn create_topic(&self, name: &str, partitions: u16) -> Result<()> {
        self.cluster
            .create_topic(name, i32::from(partitions), 1)
            .map_err(|source| SandboxError::Kafka { action: format!("make topic {name}"), source })
    }
}

fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn find_java() -> Result<()> {
    find_program("java").map(drop).ok_or_else(|| SandboxError::Missing {
        what: "java".into(),
        next_step: "run `make install`, or install a Java runtime of version 17 or newer".into(),
    })
}

fn find_libs() -> Result<PathBuf> {
    let candidates = match env::var_os(LIBS_VARIABLE) {
        Some(folder) => vec![PathBuf::from(folder)],
        None => vec![PathBuf::from(LIBS), Path::new(env!("CARGO_MANIFEST_DIR")).join(LIBS)],
    };
    let holds_jars = |folder: &PathBuf| {
        fs::read_dir(folder).is_ok_and(|files| {
            files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("kafka-server-"))
        })
    };
    let found = candidates.iter().find(|folder| holds_jars(folder)).and_then(|folder| folder.canonicalize().ok());
    found.ok_or_else(|| SandboxError::Missing {
        what: format!("a folder with Kafka's jars ({})", candidates[0].display()),
        next_step: format!("run `make install`, or name one in {LIBS_VARIABLE}"),
    })
}

/// A Java command of Kafka, run in `directory`.
fn java(directory: &Path, libs: &Path, class: &str) -> Command {
    let mut command = Command::new("java");
    command
        .current_dir(directory)
        .args(JVM)
        // The starting broker tells of hundreds of settings; warnings are what a failed start needs.
        .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"])
        .arg(libs.join("*"))
        .arg(class);
    command
}

/// Where a broker listens, and the port on which clients are told to come.
struct Listener {
    name: String,
    port: u16,
    advertised: u16,
}

/// The broker's settings.
fn properties(listeners: &[Listener], controller: u16, more: &str) -> String {
    let list = |port: fn(&Listener) -> u16| {
        let each = listeners.iter().map(|listener| format!("{}://{}", listener.name, address(port(listener))));
        each.collect::<Vec<_>>().join(",")
    };
    let (own, advertised) = (list(|listener| listener.port), list(|listener| listener.advertised));
    let controller = address(controller);
    format!(
        "{SETTINGS}{more}listeners={own},CONTROLLER://{controller}\n\
         advertised.listeners={advertised}\n\
         controller.quorum.bootstrap.servers={controller}\n"
    )
}

/// The settings of the listener where clients log in; the stores that they name are written beside them.
fn login_settings(directory: &Path, login: &Login) -> Result<String> {
    for (store, pem) in [("keystore.pem", &login.keystore), ("truststore.pem", &login.truststore)] {
        fs::write(directory.join(store), pem).map_err(SandboxError::io(format!("write Kafka's {store}")))?;
    }
    let plain = login
        .users
        .iter()
        .fold(String::new(), |plain, (name, password)| format!("{plain} user_{name}=\"{password}\""));
    Ok(format!(
        "{LOGIN_SETTINGS}listener.name.sasl_ssl.plain.sasl.jaas.config=\
         org.apache.kafka.common.security.plain.PlainLoginModule required{plain};\n"
    ))
}

/// Prepares the data directory, with the users of SCRAM in it.
fn format_storage(directory: &Path, libs: &Path, login: Option<&Login>) -> Result<()> {
    let mut command = java(directory, libs, "kafka.tools.StorageTool");
    command.args(["format", "--standalone", "-t", CLUSTER_ID, "-c", "server.properties"]);
    for (name, password) in login.iter().flat_map(|login| &login.users) {
        for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
            command.arg("--add-scram").arg(format!("{mechanism}=[name={name},password={password}]"));
        }
    }
    run_tool(&mut command, "Kafka's storage tool")
}

fn run_tool(command: &mut Command, name: &str) -> Result<()> {
    let output = command.output().map_err(SandboxError::io(format!("run {name}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(SandboxError::Start {
        program: name.into(),
        problem: format!("failed ({})", output.status),
        log: [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat(),
    })
}

/// Runs the broker and waits until it answers as a member of its cluster.
fn launch(directory: &Path, libs: &Path, port: u16) -> Result<Process> {
    let log = directory.join("log");
    let mut command = java(directory, libs, "kafka.Kafka");
    command.arg("server.properties");
    let mut process = Process::start(&command, &log)?;
    wait_until_ready(&mut process, PROGRAM, &log, START_PATIENCE, || accepts(port))?;

    let client: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", address(port))
        .set("reconnect.backoff.ms", "20")
        .set("reconnect.backoff.max.ms", "100")
        .create()
        .map_err(|source| SandboxError::Kafka { action: "make a Kafka client".into(), source })?;
    wait_until_ready(&mut process, PROGRAM, &log, START_PATIENCE, || answers(&client))?;
    Ok(process)
}

/// Whether the cluster knows a live broker. The port opens before that.
fn answers(client: &BaseConsumer) -> bool {
    client.fetch_metadata(None, Duration::from_secs(1)).is_ok_and(|metadata| !metadata.brokers().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mock_broker_answers_and_has_the_topics_it_was_given() {
        let mock = MockBroker::start().unwrap();
        mock.create_topic("ticks", 3).unwrap();
        let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", mock.brokers()).create().unwrap();
        let metadata = client.fetch_metadata(Some("ticks"), Duration::from_secs(10)).unwrap();
        assert_eq!(metadata.topics()[0].partitions().len(), 3);
    }
}
