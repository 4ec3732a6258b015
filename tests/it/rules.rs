//! Rules as users put, list, apply, export and remove them, on a real Redis, through the program itself.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, ensure};
use redis::Commands as _;
use serde_json::Value;

use crate::harness::{Case, Needs, PROGRAM, Stage, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Redis;
        put_adds_and_then_replaces_the_rule_of_that_id,
        put_moves_a_rule_to_the_set_of_its_new_op,
        put_refuses_what_a_worker_would_skip,
        a_negative_threshold_needs_no_escape,
        a_key_of_the_wrong_type_refuses_the_whole_put,
        rm_removes_a_rule_with_its_options_and_its_last_firing,
        rm_of_no_rule_fails_and_says_where_to_look,
        list_shows_rules_written_by_hand_and_what_is_wrong_with_the_bad_ones,
        list_without_rules_says_how_to_add_one,
        a_namespace_with_glob_characters_lists_only_its_own,
        apply_of_ten_thousand_rules_writes_each_once,
        apply_writes_nothing_when_one_line_is_bad,
        apply_dry_run_counts_and_writes_nothing,
        apply_replace_removes_what_the_file_does_not_hold,
        what_export_prints_apply_takes_back_in_every_format,
    )
}

/// Runs `tickwatch` with this test's namespace, with `input` on its standard input.
fn tickwatch_with(stage: &Stage, arguments: &[&str], input: &str) -> anyhow::Result<Output> {
    let directory = tempfile::tempdir()?;
    let mut child = Command::new(PROGRAM)
        .current_dir(directory.path())
        .args(arguments)
        .args(["--redis", stage.redis_url(), "--namespace", stage.namespace()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("standard input was piped")?.write_all(input.as_bytes())?;
    Ok(child.wait_with_output()?)
}

/// Standard output of a run that succeeds.
fn tickwatch(stage: &Stage, arguments: &[&str]) -> anyhow::Result<String> {
    succeeded(&tickwatch_with(stage, arguments, "")?)
}

fn succeeded(output: &Output) -> anyhow::Result<String> {
    ensure!(output.status.success(), "failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout.clone())?)
}

/// Standard error of a run that fails.
fn refused(output: &Output) -> anyhow::Result<String> {
    ensure!(!output.status.success(), "succeeded: {}", String::from_utf8_lossy(&output.stdout));
    Ok(String::from_utf8(output.stderr.clone())?)
}

fn put(stage: &Stage, rule: &[&str]) -> anyhow::Result<String> {
    tickwatch(stage, &[&["rule", "put"], rule].concat())
}

fn list(stage: &Stage) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&tickwatch(stage, &["rule", "list", "--json"])?)?)
}

fn key(stage: &Stage, rest: &str) -> String {
    format!("{}{rest}", stage.namespace())
}

fn put_adds_and_then_replaces_the_rule_of_that_id(stage: &Stage) -> anyhow::Result<()> {
    let added = put(stage, &["BBCA", "edge", ">=", "9400", "--id", "alice 1", "--once"])?;
    assert_eq!(added, "BBCA edge >= 9400 alice 1, once: added\n");
    let again = put(stage, &["BBCA", "edge", ">=", "9400", "--id", "alice 1", "--once"])?;
    assert!(again.ends_with("was there already\n"), "{again}");
    let replaced = put(stage, &["BBCA", "edge", ">=", "9500", "--id", "alice 1", "--note", "sell"])?;
    assert_eq!(replaced, "BBCA edge >= 9500 alice 1, note \"sell\": replaced edge >= 9400, once\n");

    let mut redis = stage.redis()?;
    let rules: Vec<(String, f64)> = redis.zrange_withscores(key(stage, "rules:BBCA:edge"), 0, -1)?;
    assert_eq!(rules, [(">= alice 1".to_owned(), 9500.0)]);
    let options: String = redis.hget(key(stage, "rules:BBCA:opts"), "alice 1")?;
    assert_eq!(options, r#"{"note":"sell"}"#);
    let symbols: Vec<String> = redis.smembers(key(stage, "symbols"))?;
    assert_eq!(symbols, ["BBCA"]);
    Ok(())
}

fn put_moves_a_rule_to_the_set_of_its_new_op(stage: &Stage) -> anyhow::Result<()> {
    for (trigger, op, set) in [
        ("level", ">", "level:above"),
        ("level", "<=", "level:below"),
        ("level", "=", "level:equal"),
        ("edge", "<", "edge"),
    ] {
        put(stage, &["BTC/USDT:USDT", trigger, op, "1.5", "--id", "x"])?;
        let mut redis = stage.redis()?;
        let mut keys: Vec<String> = redis.keys(key(stage, "rules:*"))?;
        keys.sort();
        assert_eq!(keys, [key(stage, &format!("rules:BTC/USDT:USDT:{set}"))]);
    }
    Ok(())
}

fn put_refuses_what_a_worker_would_skip(stage: &Stage) -> anyhow::Result<()> {
    let long = "x".repeat(257);
    for rule in [
        ["BBCA", "edge", "!=", "9500", "--id", "a"],
        ["BBCA", "sometimes", ">", "9500", "--id", "a"],
        ["BBCA", "edge", ">", "inf", "--id", "a"],
        ["BBCA", "edge", ">", "0.30000000000000004", "--id", "a"],
        ["BBCA", "edge", ">", "9500", "--id", ""],
        ["BBCA", "edge", ">", "9500", "--id", "a\nb"],
        ["BBCA", "edge", ">", "9500", "--id", &long],
        ["", "edge", ">", "9500", "--id", "a"],
    ] {
        refused(&tickwatch_with(stage, &[&["rule", "put"][..], &rule].concat(), "")?)
            .with_context(|| format!("{rule:?}"))?;
    }
    assert_eq!(list(stage)?["rules"], serde_json::json!([]));
    Ok(())
}

fn a_negative_threshold_needs_no_escape(stage: &Stage) -> anyhow::Result<()> {
    let added = put(stage, &["CL", "level", "<", "-37.63", "--id", "oil"])?;
    assert_eq!(added, "CL level < -37.63 oil: added\n");
    Ok(())
}

fn a_key_of_the_wrong_type_refuses_the_whole_put(stage: &Stage) -> anyhow::Result<()> {
    put(stage, &["BBCA", "level", ">", "1", "--id", "x"])?;
    let mut redis = stage.redis()?;
    let _: () = redis.set(key(stage, "rules:BBCA:edge"), "oops")?;
    let arguments = ["rule", "put", "BBCA", "level", "<", "2", "--id", "x", "--once"];
    let message = refused(&tickwatch_with(stage, &arguments, "")?)?;
    assert!(message.contains("WRONGTYPE"), "{message}");
    let above: Vec<String> = redis.zrange(key(stage, "rules:BBCA:level:above"), 0, -1)?;
    assert_eq!(above, ["> x"], "the old rule is still there");
    let others: bool = redis.exists(&[key(stage, "rules:BBCA:level:below"), key(stage, "rules:BBCA:opts")])?;
    assert!(!others, "nothing of the new one is");
    Ok(())
}

fn rm_removes_a_rule_with_its_options_and_its_last_firing(stage: &Stage) -> anyhow::Result<()> {
    put(stage, &["A B", "edge", ">", "1", "--id", "x", "--cooldown", "5m"])?;
    let mut redis = stage.redis()?;
    let _: () = redis.hset(key(stage, "fired:A%20B"), "x", "1700000000000")?;
    let removed = tickwatch(stage, &["rule", "rm", "A B", "x"])?;
    assert_eq!(removed, "A B x: removed edge > 1, cooldown 5m\n");
    let left: Vec<String> = redis.keys(key(stage, "*"))?;
    assert_eq!(left, [key(stage, "symbols")]);
    Ok(())
}

fn rm_of_no_rule_fails_and_says_where_to_look(stage: &Stage) -> anyhow::Result<()> {
    let message = refused(&tickwatch_with(stage, &["rule", "rm", "BBCA", "x"], "")?)?;
    assert!(message.contains("tickwatch rule list BBCA"), "{message}");
    Ok(())
}

fn list_shows_rules_written_by_hand_and_what_is_wrong_with_the_bad_ones(stage: &Stage) -> anyhow::Result<()> {
    let mut redis = stage.redis()?;
    let mut add = |set: &str, score: &str, member: &str| -> anyhow::Result<()> {
        let name = key(stage, &format!("rules:{set}"));
        Ok(redis::cmd("ZADD").arg(name).arg(score).arg(member).exec(&mut redis)?)
    };
    add("BBCA:edge", "9500", ">= alice-1")?;
    add("BBCA:edge", "9500", "!= unknown-op")?;
    add("BBCA:edge", "9500", "no-op")?;
    add("BBCA:edge", "inf", "> infinite")?;
    add("BBCA:edge", "0.30000000000000004", "> long")?;
    add("BBCA:edge", "1", "> odd-options")?;
    add("BBCA:level:below", "9500", "> wrong-set")?;
    add("BBCA:level", "9500", "> no-direction")?;
    let _: () = redis.hset(key(stage, "rules:BBCA:opts"), "odd-options", "once")?;
    let _: () = redis.set(key(stage, "rules:TLKM:level:equal"), "oops")?;

    let listing = list(stage)?;
    let rules = listing["rules"].as_array().context("rules")?;
    let listed: Vec<_> = rules.iter().map(|rule| (&rule["id"], rule["threshold"].to_string())).collect();
    assert_eq!(listed.len(), 2, "{listing}");
    assert!(listed.iter().any(|(id, _)| *id == "alice-1"), "{listing}");
    assert!(listed.iter().any(|(id, threshold)| *id == "long" && threshold == "0.3"), "{listing}");
    for (about, reason) in [
        ("!= unknown-op", "unknown op \"!=\""),
        ("no-op", "not \"<op> <id>\""),
        ("> infinite", "not a price"),
        ("> odd-options", "options do not parse"),
        ("> wrong-set", "belongs in …:level:above"),
        ("rules:BBCA:level", "needs a direction"),
        ("rules:TLKM:level:equal", "is a string and should be a zset"),
    ] {
        let skipped = listing["skipped"].as_array().context("skipped")?.iter().find(|skipped| {
            skipped["member"] == about || skipped["key"].as_str().is_some_and(|key| key.ends_with(about))
        });
        let found = skipped.and_then(|skipped| skipped["reason"].as_str()).unwrap_or("nothing");
        assert!(found.contains(reason), "{about}: {found}");
    }
    let table = tickwatch(stage, &["rule", "list", "BBCA"])?;
    assert!(table.contains("alice-1") && table.contains("needs a direction"), "{table}");
    Ok(())
}

fn list_without_rules_says_how_to_add_one(stage: &Stage) -> anyhow::Result<()> {
    let text = tickwatch(stage, &["rule", "list", "BBCA"])?;
    assert!(text.contains("tickwatch rule put BBCA edge"), "{text}");
    Ok(())
}

fn a_namespace_with_glob_characters_lists_only_its_own(stage: &Stage) -> anyhow::Result<()> {
    let mut redis = stage.redis()?;
    for namespace in ["[ab]:", "a:"] {
        let name = format!("{}{namespace}rules:BBCA:edge", stage.namespace());
        let _: () = redis.zadd(name, format!("> {namespace}"), 1)?;
    }
    let output = Command::new(PROGRAM)
        .args(["rule", "list", "--json", "--redis", stage.redis_url(), "--namespace"])
        .arg(key(stage, "[ab]:"))
        .output()?;
    let listing: Value = serde_json::from_str(&succeeded(&output)?)?;
    assert_eq!(listing["rules"].as_array().map(Vec::len), Some(1), "{listing}");
    assert_eq!(listing["rules"][0]["id"], "[ab]:");
    Ok(())
}

/// A CSV of `n` rules on ten symbols.
fn many_rules(n: usize) -> String {
    let rows = (0..n).map(|i| format!("S{},level,>=,{i}.25,rule {i},,1m,,\"note, {i}\"\n", i % 10));
    let header = "symbol,trigger,op,threshold,id,once,cooldown,expires,note\n".to_owned();
    rows.fold(header, |csv, row| csv + &row)
}

fn apply_of_ten_thousand_rules_writes_each_once(stage: &Stage) -> anyhow::Result<()> {
    let csv = many_rules(10_000);
    let arguments = ["rule", "apply", "-", "--format", "csv"];
    let first = succeeded(&tickwatch_with(stage, &arguments, &csv)?)?;
    assert_eq!(first, "10000 added, 0 changed, 0 unchanged, 0 removed\n");
    let again = succeeded(&tickwatch_with(stage, &arguments, &csv)?)?;
    assert_eq!(again, "0 added, 0 changed, 10000 unchanged, 0 removed\n");
    let rules: u64 = stage.redis()?.zcard(key(stage, "rules:S3:level:above"))?;
    assert_eq!(rules, 1_000);
    Ok(())
}

fn apply_writes_nothing_when_one_line_is_bad(stage: &Stage) -> anyhow::Result<()> {
    let csv = many_rules(600) + "S1,edge,=>,1,bad\nS1,level,>=,1,rule 1,,,,\nS1,edge,>,1,x,,5,,\n";
    let message = refused(&tickwatch_with(stage, &["rule", "apply", "-", "--format", "csv"], &csv)?)?;
    for line in ["line 602", "line 603: rule \"rule 1\" of S1 was already given in line 3", "line 604"] {
        assert!(message.contains(line), "{line}: {message}");
    }
    let keys: Vec<String> = stage.redis()?.keys(key(stage, "*"))?;
    assert!(keys.is_empty(), "{keys:?}");
    Ok(())
}

fn apply_dry_run_counts_and_writes_nothing(stage: &Stage) -> anyhow::Result<()> {
    put(stage, &["S0", "level", ">=", "0", "--id", "rule 0"])?;
    let arguments = ["rule", "apply", "-", "--format", "csv", "--dry-run"];
    let counts = succeeded(&tickwatch_with(stage, &arguments, &many_rules(3))?)?;
    assert_eq!(counts, "2 would be added, 1 would be changed, 0 unchanged, 0 would be removed\n");
    assert_eq!(list(stage)?["rules"].as_array().map(Vec::len), Some(1));
    Ok(())
}

fn apply_replace_removes_what_the_file_does_not_hold(stage: &Stage) -> anyhow::Result<()> {
    put(stage, &["ELSEWHERE", "edge", "<", "7", "--id", "old"])?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("rules.csv");
    fs::write(&file, many_rules(2))?;
    let file = file.to_str().context("a path of plain text")?;
    let counts = tickwatch(stage, &["rule", "apply", file, "--replace"])?;
    assert_eq!(counts, "2 added, 0 changed, 0 unchanged, 1 removed\n");
    let symbols: Vec<Value> =
        list(stage)?["rules"].as_array().context("rules")?.iter().map(|rule| rule["symbol"].clone()).collect();
    assert_eq!(symbols, ["S0", "S1"]);
    Ok(())
}

fn what_export_prints_apply_takes_back_in_every_format(stage: &Stage) -> anyhow::Result<()> {
    put(stage, &["CL", "level", "<", "-37.63", "--id", "oil, \"quoted\" ", "--cooldown", "36h", "--note", "a\nb"])?;
    put(stage, &["币安人生USDT", "edge", "=", "0.000001", "--id", "x", "--expires", "2026-12-31", "--once"])?;
    let rules = list(stage)?;
    for format in ["jsonl", "csv", "toml"] {
        let exported = tickwatch(stage, &["rule", "export", "--format", format])?;
        tickwatch(stage, &["rule", "rm", "CL", "oil, \"quoted\" "])?;
        let arguments = ["rule", "apply", "-", "--format", format];
        let counts = succeeded(&tickwatch_with(stage, &arguments, &exported)?)?;
        assert_eq!(counts, "1 added, 0 changed, 1 unchanged, 0 removed\n", "{format}");
        assert_eq!(list(stage)?, rules, "{format}");
    }
    Ok(())
}
