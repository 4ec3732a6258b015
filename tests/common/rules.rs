//! Rules in Redis, written as a user writes them.

use redis::Commands as _;
use serde_json::{Map, Value};
use tickwatch::config::Config;
use tickwatch::store::keys::encode_symbol;

use super::oracle;

/// The options of a rule that differ from none. Times in ms.
pub(crate) fn options(
    once: bool,
    cooldown: Option<i64>,
    expires: Option<i64>,
    note: Option<&str>,
) -> Map<String, Value> {
    let once = once.then(|| Value::from(true));
    let all = [
        ("once", once),
        ("cooldown", cooldown.map(Value::from)),
        ("expires", expires.map(Value::from)),
        ("note", note.map(Value::from)),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Puts a rule as a user would, with its options first.
pub(crate) fn put(redis: &mut redis::Connection, config: &Config, rule: &oracle::Rule) -> anyhow::Result<()> {
    let options = options(rule.once, rule.cooldown, rule.expires, rule.note.as_deref());
    if !options.is_empty() {
        let key = format!("{}rules:{}:opts", config.namespace, encode_symbol(&rule.symbol));
        let () = redis.hset(key, &rule.id, serde_json::Value::Object(options).to_string())?;
    }
    let () = redis.zadd(set_of(config, rule), member_of(rule), &rule.threshold)?;
    Ok(())
}

/// Removes a rule as a user would.
pub(crate) fn remove(redis: &mut redis::Connection, config: &Config, rule: &oracle::Rule) -> anyhow::Result<()> {
    let () = redis.zrem(set_of(config, rule), member_of(rule))?;
    Ok(())
}

/// Whether the rule is in Redis.
pub(crate) fn is_there(
    redis: &mut redis::Connection,
    config: &Config,
    rule: &oracle::Rule,
) -> anyhow::Result<bool> {
    let score: Option<f64> = redis.zscore(set_of(config, rule), member_of(rule))?;
    Ok(score.is_some())
}

fn set_of(config: &Config, rule: &oracle::Rule) -> String {
    let set = match (rule.trigger, rule.op) {
        ("edge", _) => "edge",
        (_, "<" | "<=") => "level:below",
        (_, "=") => "level:equal",
        _ => "level:above",
    };
    format!("{}rules:{}:{set}", config.namespace, encode_symbol(&rule.symbol))
}

fn member_of(rule: &oracle::Rule) -> String {
    format!("{} {}", rule.op, rule.id)
}
