//! Where and with what it was measured.

use std::fs;
use std::process::Command;

use serde::Serialize;

use crate::lab::Lab;

/// Texts for people; empty where it could not be found out.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    pub(crate) tickwatch: String,
    pub(crate) rustc: String,
    pub(crate) librdkafka: String,
    pub(crate) redis: String,
    pub(crate) kafka: String,
    pub(crate) java: String,
    /// Processes that wanted a core when it began: more than none or one, and others were at work too.
    pub(crate) load_before: String,
}

impl Machine {
    pub(crate) fn look(lab: &Lab) -> Machine {
        let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
        Machine {
            cpu: value_of("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: value_of("/proc/meminfo", "MemTotal")
                .trim_end_matches(" kB")
                .parse::<u64>()
                .map_or(0, |kib| kib >> 20),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            tickwatch: format!(
                "{} {}",
                env!("CARGO_PKG_VERSION"),
                said_by("git", &["rev-parse", "--short", "HEAD"])
            ),
            rustc: said_by("rustc", &["--version"]),
            librdkafka,
            redis: said_by("redis-server", &["--version"]),
            kafka: kafka_version(lab.broker_pid()).unwrap_or_default(),
            java: said_by("java", &["--version"]),
            load_before: first_line("/proc/loadavg"),
        }
    }

    /// One line.
    pub(crate) fn summary(&self) -> String {
        let Machine { cpu, cores, memory_gib, kernel, tickwatch, rustc, librdkafka, redis, kafka, java, .. } = self;
        format!(
            "{cpu}, {cores} cores, {memory_gib} GiB; Linux {kernel}; tickwatch {tickwatch}; {rustc}; \
             librdkafka {librdkafka}; {redis}; Kafka {kafka}; {java}"
        )
    }
}

fn first_line(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default().lines().next().unwrap_or_default().trim().to_owned()
}

fn value_of(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name);
    line.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// By the name of the jar in the broker's class path.
fn kafka_version(broker: u32) -> Option<String> {
    let line = fs::read_to_string(format!("/proc/{broker}/cmdline")).ok()?;
    let folder = line.split('\0').find_map(|argument| argument.strip_suffix("/*"))?;
    fs::read_dir(folder).ok()?.flatten().find_map(|file| {
        let name = file.file_name().to_string_lossy().into_owned();
        Some(name.strip_prefix("kafka-server-")?.strip_suffix(".jar")?.to_owned())
            .filter(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    })
}
