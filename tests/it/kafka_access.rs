//! Kafka behind TLS, a login and ACLs: the documented rights are enough, and who is not let in is told why.

use anyhow::{Context as _, ensure};
use tickwatch::config::{Config, Guarantee, Scalar};

use crate::harness::{Case, Certificates, Needs, Stage, USERS, Worker, cases, program, wait_until};
use crate::market::{Market, SETTLED, put_rules, walk};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        at_least_once_over_scram_with_the_documented_rights,
        exactly_once_over_plain_with_the_documented_rights_and_a_password_file,
        a_right_that_is_missing_on_an_output_topic_stops_its_partition,
        tail_needs_to_read_its_topic_and_no_group,
        who_is_not_let_in_is_told_the_next_step,
    )
}

const DOCUMENTED: &str = include_str!("../../docs/security.md");
const PASSWORD: &str = "TICKWATCH_KAFKA__CLIENT__SASL_PASSWORD";

fn at_least_once_over_scram_with_the_documented_rights(stage: &Stage) -> anyhow::Result<()> {
    let mut market = Market::open(stage, 2, |_| {})?;
    let [read, write, _transact] = documented(&market.config)?;
    for right in [read, write] {
        grant(stage, &right)?;
    }
    log_in(stage, &mut market.config, "SCRAM-SHA-512", USERS[0].0);
    works(&mut market, &[(PASSWORD, USERS[0].1)])?;
    Ok(())
}

fn exactly_once_over_plain_with_the_documented_rights_and_a_password_file(stage: &Stage) -> anyhow::Result<()> {
    let mut market = Market::open(stage, 2, |config| config.kafka.processing_guarantee = Guarantee::ExactlyOnce)?;
    for right in documented(&market.config)? {
        grant(stage, &right)?;
    }
    log_in(stage, &mut market.config, "PLAIN", USERS[0].0);
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), format!("{}\n", USERS[0].1))?;
    let path = file.path().to_str().context("a path of plain letters")?;
    market.config.kafka.client.insert("sasl.password.file".into(), Scalar(path.into()));
    works(&mut market, &[])
}

/// Ticks in, outputs out, as the oracle says.
fn works(market: &mut Market, environment: &[(&str, &str)]) -> anyhow::Result<()> {
    put_rules(market)?;
    let mut worker = Worker::start_with(&market.config, &[], environment)?;
    worker.wait_ready()?;
    market.send(walk(41).take(1_000))?;
    market.send_bad("SYM-1", "no JSON")?;
    market.send_closing()?;
    market.wait_delivered().with_context(|| worker.logs())?;
    market.check_each_once(&[&worker])
}

fn a_right_that_is_missing_on_an_output_topic_stops_its_partition(stage: &Stage) -> anyhow::Result<()> {
    let mut market = Market::open(stage, 1, |_| {})?;
    let (user, password) = USERS[1];
    let output = market.config.output.clone();
    let [read, write, _] = documented(&market.config)?;
    let of_limited = |right: &[String]| -> Vec<String> {
        right.iter().map(|word| word.replace(&format!("User:{}", USERS[0].0), &format!("User:{user}"))).collect()
    };
    grant(stage, &of_limited(&read))?;
    let described = of_limited(&write).iter().map(|word| word.replace("Write", "Describe")).collect::<Vec<_>>();
    grant(stage, &described)?;
    log_in(stage, &mut market.config, "SCRAM-SHA-256", user);
    put_rules(&mut market)?;
    market.send(walk(42).take(300))?;
    let stops = |saying: &str| {
        let worker = Worker::start_with(&market.config, &[], &[(PASSWORD, password)])?;
        wait_until(SETTLED, "the partition to stop", || {
            worker.page("/readyz").is_ok_and(|(status, body)| status == 503 && body.contains(saying))
        })
        .with_context(|| worker.logs())
    };
    // Who may write to no topic is not given an idempotent producer at all.
    stops("allow this user WRITE on the output topics")?;
    let without = output.notifications.as_str();
    let some: Vec<_> = of_limited(&write)
        .into_iter()
        .map(|word| if word == without { output.candles.clone() } else { word })
        .collect();
    grant(stage, &some)?;
    stops(&format!("topic {without} refuses"))
}

fn tail_needs_to_read_its_topic_and_no_group(stage: &Stage) -> anyhow::Result<()> {
    let mut config = stage.config();
    let (user, password) = USERS[1];
    let notifications = config.output.notifications.clone();
    for topic in [&notifications, &config.output.candles] {
        stage.create_topic(topic, 1)?;
        stage.produce(topic, [("BBCA", "a record")])?;
    }
    let principal = format!("User:{user}");
    let right = ["--add", "--allow-principal", &principal, "--operation", "Read", "--topic", &notifications];
    grant(stage, &right.map(str::to_owned))?;
    log_in(stage, &mut config, "SCRAM-SHA-512", user);
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), toml::to_string(&config)?)?;
    let tail = |output: &str| {
        let mut command = program();
        command.arg("--config").arg(file.path()).args(["tail", output, "--from-start", "--limit", "1"]);
        command.env(PASSWORD, password).output()
    };
    let read = tail("notifications")?;
    assert_eq!(String::from_utf8(read.stdout)?, "a record\n", "{}", String::from_utf8_lossy(&read.stderr));
    let refused = String::from_utf8(tail("candles")?.stderr)?;
    ensure!(refused.contains(&config.output.candles) && refused.contains("kafka-acls.sh --list"), "{refused}");
    Ok(())
}

fn who_is_not_let_in_is_told_the_next_step(stage: &Stage) -> anyhow::Result<()> {
    let config = stage.config();
    stage.create_topic(&config.kafka.topic, 1)?;
    let told = |change: &dyn Fn(&mut Config), password: &str| -> anyhow::Result<String> {
        let mut config = config.clone();
        log_in(stage, &mut config, "SCRAM-SHA-512", USERS[1].0);
        change(&mut config);
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), toml::to_string(&config)?)?;
        let output = program()
            .arg("--config")
            .arg(file.path())
            .args(["config", "check"])
            .env(PASSWORD, password)
            .output()?;
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        ensure!(output.status.code() == Some(1), "{}: {said}", output.status);
        ensure!(!said.contains(password), "{said}");
        Ok(said)
    };
    let wrong_password = told(&|_| (), "another-horse")?;
    ensure!(wrong_password.contains("check sasl.username and sasl.password in [kafka.client]"), "{wrong_password}");

    let strangers = Certificates::new()?;
    let untrusted = told(
        &|config| {
            config.kafka.client.insert("ssl.ca.location".into(), Scalar(strangers.path("ca.pem")));
        },
        USERS[1].1,
    )?;
    ensure!(untrusted.contains("check ssl.ca.location in [kafka.client]"), "{untrusted}");

    let without_tls = told(
        &|config| {
            config.kafka.client.insert("security.protocol".into(), Scalar("PLAINTEXT".into()));
        },
        USERS[1].1,
    )?;
    ensure!(without_tls.contains("check security.protocol in [kafka.client]"), "{without_tls}");

    let without_rights = told(&|_| (), USERS[1].1)?;
    ensure!(
        without_rights.contains(&config.kafka.topic) && without_rights.contains("kafka-acls.sh"),
        "{without_rights}"
    );
    Ok(())
}

/// Has the worker come in where everybody logs in. The password comes another way: it is not written into a file of
/// settings.
fn log_in(stage: &Stage, config: &mut Config, mechanism: &str, user: &str) {
    let kafka = stage.kafka();
    config.kafka.brokers.clone_from(&kafka.sasl_brokers);
    for (name, value) in [
        ("security.protocol", "SASL_SSL"),
        ("ssl.ca.location", &*kafka.certificates.path("ca.pem")),
        ("sasl.mechanisms", mechanism),
        ("sasl.username", user),
    ] {
        config.kafka.client.insert(name.into(), Scalar(value.into()));
    }
}

/// The rights of the documentation, for the topics and the group of this test: arguments of Kafka's own tool.
fn documented(config: &Config) -> anyhow::Result<[Vec<String>; 3]> {
    let (kafka, output) = (&config.kafka, &config.output);
    let transactions = format!("{}-{}-", kafka.group, kafka.topic);
    let here = |word: &str| match word {
        "market-updates" => kafka.topic.clone(),
        "tickwatch" => kafka.group.clone(),
        "notifications" => output.notifications.clone(),
        "candles" => output.candles.clone(),
        "market-updates.dlq" => config.dead_letter_topic(),
        "market-updates.late" => config.late_topic(),
        "tickwatch-market-updates-" => transactions.clone(),
        word => word.to_owned(),
    };
    let lines = DOCUMENTED.lines().filter_map(|line| line.strip_prefix("kafka-acls.sh --bootstrap-server … "));
    let rights: Vec<Vec<String>> = lines.map(|line| line.split(' ').map(here).collect()).collect();
    rights.try_into().ok().context("three rights are documented")
}

fn grant(stage: &Stage, right: &[String]) -> anyhow::Result<()> {
    let arguments: Vec<&str> = right.iter().map(String::as_str).collect();
    stage.kafka().tool("org.apache.kafka.tools.AclCommand", &arguments)
}
