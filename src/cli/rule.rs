//! `tickwatch rule`: put, remove, list, apply and export rules.

mod apply;
mod file;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use comfy_table::Cell;
use redis::aio::MultiplexedConnection;
use serde::Serialize;

use super::text::{duration, now, number, parse_duration, parse_time, print, print_json, table, utc};
use crate::config::Config;
use crate::domain::{Op, Price, Trigger};
use crate::store::connection::connect;
use crate::store::keys::Keys;
use crate::store::rules::{self, Before, Listing, Replication, Rule, RuleOptions, Skipped};
use file::Format;

/// Add, change, remove and list rules; workers see a change at the next tick
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch rule put BBCA edge '>=' 9500 --id alice-1\n  \
    tickwatch rule list BBCA\n  \
    tickwatch rule rm BBCA alice-1\n  \
    tickwatch rule export > rules.jsonl                    # the backup; `rule apply` takes it back")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Add a rule, or change the one that has this id
    Put(PutArgs),
    /// Remove a rule
    #[command(after_help = "Examples:\n  \
    tickwatch rule rm BBCA alice-1")]
    Rm {
        /// Symbol, as in the ticks
        symbol: String,
        /// Id of the rule
        id: String,
    },
    /// List rules, and what stands among them that no worker will fire
    #[command(after_help = "Examples:\n  \
    tickwatch rule list\n  \
    tickwatch rule list BBCA --json")]
    List {
        /// Only this symbol's
        symbol: Option<String>,
        /// JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Write a file of rules: all of it, or nothing if a line is wrong
    Apply(apply::ApplyArgs),
    /// Print rules as a file that `apply` takes back
    #[command(after_help = "Examples:\n  \
    tickwatch rule export > rules.jsonl\n  \
    tickwatch rule export BBCA --format csv")]
    Export {
        /// Only this symbol's
        symbol: Option<String>,
        /// Form of the file
        #[arg(long, value_enum, default_value = "jsonl")]
        format: Format,
    },
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch rule put BBCA edge '>=' 9500 --id alice-1 --once --note 'sell half'\n  \
    tickwatch rule put BBCA level '<' 9000 --id alice-2 --cooldown 5m --expires 30d\n  \
    tickwatch rule put CL=F edge '<' -5 --id oil")]
struct PutArgs {
    /// Symbol, as in the ticks
    symbol: String,
    /// edge: once a crossing; level: on every tick that matches
    #[arg(value_parser = file::parse_trigger)]
    trigger: Trigger,
    /// One of < <= = >= > (quote it: the shell knows < and > too)
    op: Op,
    /// Price to compare with, at most 15 significant digits
    #[arg(value_parser = rules::parse_threshold, allow_negative_numbers = true)]
    threshold: Price,
    /// Names the rule within its symbol
    #[arg(long)]
    id: String,
    /// Remove the rule when it has fired
    #[arg(long)]
    once: bool,
    /// Stay silent for so long after firing, in event time: 30s, 5m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    cooldown: Option<i64>,
    /// Remove the rule then, in event time: 2026-12-31T00:00:00Z, 2026-12-31, or from now: 30d
    #[arg(long, value_name = "TIME", value_parser = parse_expires)]
    expires: Option<i64>,
    /// Text that goes out with every notification, at most 1 KiB
    #[arg(long)]
    note: Option<String>,
}

impl From<PutArgs> for Rule {
    fn from(args: PutArgs) -> Rule {
        let PutArgs { symbol, trigger, op, threshold, id, once, cooldown, expires, note } = args;
        let note = note.filter(|note| !note.is_empty());
        let options = RuleOptions { once, cooldown, expires, note };
        Rule { symbol, trigger, op, threshold, id, options }
    }
}

fn parse_expires(text: &str) -> Result<i64> {
    parse_time(text).or_else(|e| match parse_duration(text) {
        Ok(from_now) => Ok(now().saturating_add(from_now)),
        Err(_) => Err(e.context("or a time from now such as 30d")),
    })
}

/// Runs the subcommand.
pub async fn run(config: Config, args: Args) -> Result<()> {
    let keys = Keys::new(config.namespace);
    let mut conn = connect(&config.redis).await?;
    match args.command {
        Command::Put(args) => put(&mut conn, &keys, args.into()).await,
        Command::Rm { symbol, id } => remove(&mut conn, &keys, &symbol, &id).await,
        Command::List { symbol, json } => {
            let listing = listing(&mut conn, &keys, symbol.as_deref()).await?;
            if json { print_json(&json_of(&listing)?) } else { print(&text_of(&listing, symbol.as_deref())) }
        }
        Command::Apply(args) => apply::run(&mut conn, &keys, args).await,
        Command::Export { symbol, format } => {
            let listing = listing(&mut conn, &keys, symbol.as_deref()).await?;
            warn_about_export(&listing);
            print(&file::write(format, &listing.rules)?)
        }
    }
}

async fn listing(conn: &mut MultiplexedConnection, keys: &Keys, symbol: Option<&str>) -> Result<Listing> {
    match symbol {
        Some(symbol) => rules::list(conn, keys, &[symbol]).await,
        None => rules::list_all(conn, keys).await,
    }
}

async fn put(conn: &mut MultiplexedConnection, keys: &Keys, rule: Rule) -> Result<()> {
    let before = rules::put(conn, keys, &rule).await?;
    warn_unless_replicated(rules::replicate(conn).await?);
    print(&format!("{}\n", what_put_did(&rule, &before)))
}

fn what_put_did(rule: &Rule, before: &Before) -> String {
    let put = join(&[rule.to_string(), options_text(&rule.options)]);
    if before.rules.is_empty() {
        return format!("{put}: added");
    }
    if before.is(rule) {
        return format!("{put}: was there already");
    }
    format!("{put}: replaced {}", before_text(before))
}

async fn remove(conn: &mut MultiplexedConnection, keys: &Keys, symbol: &str, id: &str) -> Result<()> {
    let before = rules::remove(conn, keys, symbol, id).await?;
    if before.rules.is_empty() {
        bail!("{symbol} has no rule {id:?}: `tickwatch rule list {symbol}` shows those it has");
    }
    warn_unless_replicated(rules::replicate(conn).await?);
    print(&format!("{symbol} {id}: removed {}\n", before_text(&before)))
}

/// `edge >= 9400, once`
fn before_text(before: &Before) -> String {
    let rules: Vec<String> = before.rules.iter().map(ToString::to_string).collect();
    join(&[rules.join(" and "), options_text(&before.options)])
}

fn warn_unless_replicated(replication: Replication) {
    if replication == Replication::Unconfirmed {
        eprintln!(
            "warning: written, but no replica confirmed it within a second: a failover now could lose it. \
             `redis-cli INFO replication` shows how the replicas do."
        );
    }
}

/// What `export` leaves out, or `apply` would not take back.
fn warn_about_export(listing: &Listing) {
    if !listing.skipped.is_empty() {
        let n = listing.skipped.len();
        eprintln!("warning: {n} entries do not parse and are left out: `tickwatch rule list` shows them");
    }
    let mut ids: Vec<_> = listing.rules.iter().map(|rule| (&rule.symbol, &rule.id)).collect();
    ids.sort_unstable();
    for pair in ids.windows(2).filter(|pair| pair[0] == pair[1]) {
        let (symbol, id) = pair[0];
        eprintln!("warning: {symbol} has more than one rule {id:?}: `apply` will want one rule an id");
    }
}

/// `once, cooldown 5m, expires 2026-12-31T00:00:00Z, note "sell"`
fn options_text(options: &RuleOptions) -> String {
    join(&[
        if options.once { "once".to_owned() } else { String::new() },
        options.cooldown.map(|ms| format!("cooldown {}", duration(ms))).unwrap_or_default(),
        options.expires.map(|ms| format!("expires {}", utc(ms))).unwrap_or_default(),
        options.note.as_ref().map(|note| format!("note {note:?}")).unwrap_or_default(),
    ])
}

/// The parts that say something, separated by commas.
fn join(parts: &[String]) -> String {
    let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    parts.join(", ")
}

fn text_of(listing: &Listing, symbol: Option<&str>) -> String {
    let rules = if listing.rules.is_empty() { no_rules(symbol) } else { rules_text(&listing.rules) };
    let skipped = if listing.skipped.is_empty() { String::new() } else { skipped_text(&listing.skipped) };
    rules + &skipped
}

fn no_rules(symbol: Option<&str>) -> String {
    let of = symbol.map(|symbol| format!(" of {symbol}")).unwrap_or_default();
    let symbol = symbol.unwrap_or("BBCA");
    format!("No rules{of}. Add one: tickwatch rule put {symbol} edge '>=' 9500 --id my-first-rule\n")
}

fn rules_text(rules: &[Rule]) -> String {
    let mut table = table(&["symbol", "trigger", "op", "threshold", "id", "options"]);
    for rule in rules {
        table.add_row([
            Cell::new(&rule.symbol),
            Cell::new(rule.trigger),
            Cell::new(rule.op),
            number(rule.threshold),
            Cell::new(&rule.id),
            Cell::new(options_text(&rule.options)),
        ]);
    }
    format!("{table}\n")
}

fn skipped_text(skipped: &[Skipped]) -> String {
    let mut table = table(&["key", "member", "score", "skipped because"]);
    for Skipped { key, symbol: _, member, score, reason } in skipped {
        let member = member.as_deref().unwrap_or("-").escape_debug().to_string();
        let score = score.map_or_else(|| "-".to_owned(), |score| score.to_string());
        table.add_row([Cell::new(key), Cell::new(member), number(score), Cell::new(reason)]);
    }
    format!("\nWorkers skip these. Remove one with: redis-cli ZREM <key> '<member>', or DEL <key>.\n{table}\n")
}

#[derive(Serialize)]
struct SkippedJson<'a> {
    key: &'a str,
    symbol: Option<&'a str>,
    member: Option<&'a str>,
    score: Option<String>,
    reason: String,
}

fn json_of(listing: &Listing) -> Result<impl Serialize> {
    #[derive(Serialize)]
    struct Json<'a, R> {
        rules: Vec<R>,
        skipped: Vec<SkippedJson<'a>>,
    }
    let skipped = listing.skipped.iter().map(|skipped| SkippedJson {
        key: &skipped.key,
        symbol: skipped.symbol.as_deref(),
        member: skipped.member.as_deref(),
        score: skipped.score.map(|score| score.to_string()),
        reason: skipped.reason.to_string(),
    });
    let rules = listing.rules.iter().map(file::to_json).collect::<Result<_>>()?;
    Ok(Json { rules, skipped: skipped.collect() })
}

/// Reading a file named on the command line; `-` is standard input.
fn read_input(path: &PathBuf) -> Result<String> {
    if path.as_os_str() == "-" {
        return std::io::read_to_string(std::io::stdin()).context("reading standard input");
    }
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}
