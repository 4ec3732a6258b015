//! Every command, with secrets that are right and secrets that are wrong, at the highest log level and with all of
//! librdkafka's debug output: nothing that is printed or served holds one of them.

use std::process::{Command, Output};
use std::thread;

use anyhow::{Context as _, ensure};
use tickwatch::config::{Config, Scalar};

use crate::harness::{self, Case, Needs, Stage, USERS, Worker, cases, program};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        no_command_prints_a_secret,
        the_demo_has_no_use_for_the_logins_of_other_servers,
    )
}

const REDIS_PASSWORD: &str = "kept-from-all-7331";
const WRONG: [&str; 2] = ["mistaken-for-redis-7332", "mistaken-for-kafka-7333"];

/// Where everybody has to log in; the user of Kafka is one of the shared broker's, and may do nothing on these topics.
struct Guarded {
    config: Config,
    _redis: tickwatch::sandbox::Redis,
    directory: tempfile::TempDir,
}

impl Guarded {
    fn start(stage: &Stage) -> anyhow::Result<Guarded> {
        let redis = harness::private_redis()?;
        redis::cmd("ACL")
            .arg("SETUSER")
            .arg("me")
            .arg(&["on", "~*", "+@all", &format!(">{REDIS_PASSWORD}")])
            .exec(&mut harness::connect(&redis.url())?)?;
        let mut config = stage.config();
        // All commands run at once: what one removes is there before another puts anything.
        let rules = format!("{}rules:A:level:above", config.namespace);
        redis::cmd("ZADD").arg(rules).arg(&["1", ">= one"]).exec(&mut harness::connect(&redis.url())?)?;
        for topic in
            [&config.kafka.topic, &config.output.notifications, &config.output.candles, &config.dead_letter_topic()]
        {
            stage.create_topic(topic, 1)?;
        }
        let kafka = stage.kafka();
        config.redis.url = redis.url();
        config.redis.username = Some("me".into());
        config.kafka.brokers.clone_from(&kafka.sasl_brokers);
        for (name, value) in [
            ("security.protocol", "SASL_SSL"),
            ("ssl.ca.location", &*kafka.certificates.path("ca.pem")),
            ("sasl.mechanisms", "PLAIN"),
            ("sasl.username", USERS[1].0),
            ("debug", "all"),
        ] {
            config.kafka.client.insert(name.into(), Scalar(value.into()));
        }
        let directory = tempfile::tempdir()?;
        std::fs::write(directory.path().join("tickwatch.toml"), toml::to_string(&config)?)?;
        std::fs::write(directory.path().join("ticks.jsonl"), "{\"symbol\":\"A\",\"price\":1,\"ts\":1}\n")?;
        Ok(Guarded { config, _redis: redis, directory })
    }

    fn command(&self, arguments: &[&str], [redis, kafka]: [&str; 2]) -> Command {
        let mut command = program();
        command
            .current_dir(self.directory.path())
            .args(arguments)
            .env("TICKWATCH_REDIS__PASSWORD", redis)
            .env("TICKWATCH_KAFKA__CLIENT__SASL_PASSWORD", kafka)
            .env("TICKWATCH_HTTP__LISTEN", "127.0.0.1:0")
            .env("RUST_LOG", "trace");
        command
    }
}

fn no_command_prints_a_secret(stage: &Stage) -> anyhow::Result<()> {
    let guarded = Guarded::start(stage)?;
    let commands: [&[&str]; 11] = [
        &["config", "check"],
        &["config", "show"],
        &["rule", "put", "A", "level", ">=", "1", "--id", "two"],
        &["rule", "list"],
        &["rule", "export"],
        &["rule", "rm", "A", "one"],
        &["candles", "A", "1s"],
        &["status"],
        &["produce", "ticks.jsonl"],
        &["generate", "--seconds", "1", "--rate", "1"],
        &["run", "--until-end"],
    ];
    let right = [REDIS_PASSWORD, USERS[1].1];
    thread::scope(|scope| {
        let running: Vec<_> = [right, WRONG]
            .into_iter()
            .flat_map(|secrets| commands.map(|arguments| (secrets, arguments)))
            .map(|(secrets, arguments)| {
                let mut command = guarded.command(arguments, secrets);
                (secrets, arguments, scope.spawn(move || command.output()))
            })
            .collect();
        for (secrets, arguments, run) in running {
            let output = run.join().expect("running a command does not panic")?;
            assert_silent(&output, &secrets).with_context(|| format!("{arguments:?}"))?;
            let debugged = String::from_utf8_lossy(&output.stderr).contains("SASL");
            ensure!(arguments[0] != "produce" || debugged, "librdkafka's own words are among it: {output:?}");
            let on_redis_only = ["rule", "candles"].contains(&arguments[0]);
            ensure!(!on_redis_only || output.status.success() == (secrets == right), "{arguments:?}: {output:?}");
        }
        anyhow::Ok(())
    })?;
    let url = format!("redis://me:{REDIS_PASSWORD}@127.0.0.1:1");
    let output = guarded.command(&["config", "show", "--redis", &url], right).output()?;
    assert_silent(&output, &right)?;
    let environment = [
        ("TICKWATCH_REDIS__PASSWORD", REDIS_PASSWORD),
        ("TICKWATCH_KAFKA__CLIENT__SASL_PASSWORD", USERS[1].1),
        ("RUST_LOG", "trace"),
    ];
    let mut worker = Worker::start_with(&guarded.config, &[], &environment)?;
    let served = [worker.page("/metrics"), worker.page("/readyz"), worker.page("/healthz")];
    let served = served.map(|page| page.map(|(_, body)| body).unwrap_or_default()).concat();
    worker.stop()?;
    let said = served + &worker.logs();
    ensure!(!right.iter().any(|secret| said.contains(secret)), "{said}");
    Ok(())
}

fn the_demo_has_no_use_for_the_logins_of_other_servers(stage: &Stage) -> anyhow::Result<()> {
    let guarded = Guarded::start(stage)?;
    let mut command = guarded.command(&["demo", "--json"], WRONG);
    let output = command.env(tickwatch::sandbox::kafka::LIBS_VARIABLE, "none").output()?; // the mock broker starts at once
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_silent(&output, &WRONG)
}

fn assert_silent(output: &Output, secrets: &[&str]) -> anyhow::Result<()> {
    let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat();
    for secret in secrets {
        let line = said.lines().find(|line| line.contains(secret));
        ensure!(line.is_none(), "{secret} is printed: {line:?}");
    }
    ensure!(!said.is_empty() || output.status.success(), "a failure says something");
    Ok(())
}
