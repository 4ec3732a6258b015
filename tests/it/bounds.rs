//! What one sender, or one hand at redis-cli, can make too large is refused by itself, counted and told; its neighbours
//! go on.

use anyhow::{Context as _, ensure};
use redis::Commands as _;
use tickwatch::config::Config;

use crate::harness::{Case, Isolation, Message, Needs, Stage, Worker, cases, program, wait_until};
use crate::market::{BEGIN, SETTLED};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        records_past_a_bound_are_dead_letters_and_their_neighbours_go_on,
        rules_past_a_bound_are_skipped_and_their_neighbours_fire,
    )
}

fn config(stage: &Stage) -> anyhow::Result<Config> {
    let mut config = stage.config();
    config.input.records = Some("/trades".into());
    config.input.max_record_bytes = Some(2_000);
    config.input.max_record_ticks = Some(3);
    for topic in
        [&config.kafka.topic, &config.output.notifications, &config.output.candles, &config.dead_letter_topic()]
    {
        stage.create_topic(topic, 1)?;
    }
    Ok(config)
}

/// A record of `ticks` ticks.
fn record(symbol: &str, ticks: usize) -> String {
    let tick = serde_json::json!({ "symbol": symbol, "price": 100, "ts": BEGIN });
    serde_json::json!({ "trades": vec![tick; ticks] }).to_string()
}

fn records_past_a_bound_are_dead_letters_and_their_neighbours_go_on(stage: &Stage) -> anyhow::Result<()> {
    let config = config(stage)?;
    let mut worker = Worker::start(&config)?;
    worker.wait_ready()?;
    let long = "S".repeat(257);
    let letters = [
        (Message::from(("A", format!("{}{}", record("A", 1), " ".repeat(2_000)))), "max_record_bytes (2000)"),
        (Message::from(("A", record("A", 4))), "max_record_ticks (3)"),
        (Message::from(("A", record(&long, 1))), "is longer than 256 bytes"),
        (
            Message {
                headers: (0..150).map(|number| (format!("h{number}"), "v".into())).collect(),
                ..Message::from(("A", "no JSON"))
            },
            "not JSON",
        ),
    ];
    stage.produce(&config.kafka.topic, letters.iter().map(|(message, _)| message.clone()))?;
    stage.produce(&config.kafka.topic, [("A", record("A", 3)), ("B", record("B", 1))])?;
    let key = format!("{}last:B", config.namespace);
    wait_until(SETTLED, "the last record", || stage.redis().is_ok_and(|mut redis| redis.exists(&key) == Ok(true)))
        .with_context(|| worker.logs())?;

    let ticks: u64 =
        stage.redis()?.hget(format!("{}source:{}/0", config.namespace, config.kafka.topic), "ticks")?;
    ensure!(ticks == 4, "{ticks}");
    let mut received = Vec::new();
    wait_until(SETTLED, "the dead letters", || {
        received = stage.consume_all(&config.dead_letter_topic(), Isolation::ReadCommitted).unwrap_or_default();
        received.len() == letters.len()
    })?;
    for (letter, (message, reason)) in received.iter().zip(&letters) {
        ensure!(letter.header("error").is_some_and(|error| error.contains(reason)), "{letter:?}");
        ensure!(letter.value == message.value, "{letter:?}");
    }
    let last = &received[3];
    ensure!(last.header("h99").is_some() && last.header("h100").is_none(), "{last:?}");
    ensure!(last.header("headers.left_out") == Some("50"), "{last:?}");
    let metrics = worker.get("/metrics")?;
    for (kind, count) in [("size", 2), ("symbol", 1), ("json", 1)] {
        let line = format!("tickwatch_dead_letters_total{{kind=\"{kind}\"}} {count}");
        ensure!(metrics.contains(&line), "{line} is not in {metrics}");
    }
    Ok(())
}

fn rules_past_a_bound_are_skipped_and_their_neighbours_fire(stage: &Stage) -> anyhow::Result<()> {
    let config = config(stage)?;
    let mut redis = stage.redis()?;
    let (set, options) =
        (format!("{}rules:A:level:above", config.namespace), format!("{}rules:A:opts", config.namespace));
    let long_id = "i".repeat(257);
    for id in ["alice", "long-note", "long-options", &long_id] {
        let _: () = redis.zadd(&set, format!(">= {id}"), 50)?;
    }
    let note = serde_json::json!({ "note": "n".repeat(1_025) }).to_string();
    let more = serde_json::json!({ "else": "e".repeat(4_096) }).to_string();
    let at_most = serde_json::json!({ "note": "n".repeat(1_024) }).to_string();
    let _: () =
        redis.hset_multiple(&options, &[("alice", at_most), ("long-note", note), ("long-options", more)])?;

    let mut worker = Worker::start(&config)?;
    worker.wait_ready()?;
    stage.produce(&config.kafka.topic, [("A", record("A", 1))])?;
    let mut received = Vec::new();
    wait_until(SETTLED, "a notification", || {
        received = stage.consume_all(&config.output.notifications, Isolation::ReadCommitted).unwrap_or_default();
        !received.is_empty()
    })
    .with_context(|| worker.logs())?;
    ensure!(received.len() == 1 && received[0].json()?["rule"] == "alice", "{received:?}");
    let metrics = worker.get("/metrics")?;
    ensure!(metrics.contains("tickwatch_bad_rules_total 3"), "{metrics}");
    ensure!(!worker.logs().contains(&long_id), "what is too long is not written into the log either");

    let output = program()
        .args(["rule", "list", "A", "--json", "--redis", stage.redis_url(), "--namespace", &config.namespace])
        .output()?;
    let listed = String::from_utf8_lossy(&output.stdout);
    for reason in ["the id has 257 bytes", "the note has 1025 bytes", "at most 4096 are allowed"] {
        ensure!(listed.contains(reason), "{reason} is not in {listed}");
    }
    Ok(())
}
