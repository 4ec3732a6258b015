//! `tickwatch rule apply`: a file of rules becomes the rules in Redis, after every line of it was found good.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use redis::aio::MultiplexedConnection;

use super::super::text::print;
use super::file::{self, Format, Problem};
use super::{read_input, warn_unless_replicated};
use crate::store::keys::Keys;
use crate::store::rules::{self, Listing, Rule};

/// Most bad lines shown.
const SHOWN: usize = 20;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch rule apply rules.csv --dry-run               # say what would change\n  \
    tickwatch rule apply rules.jsonl --replace\n  \
    tickwatch rule export --redis redis://old:6379 | tickwatch rule apply - --format jsonl")]
pub(super) struct ApplyArgs {
    /// File of rules: .jsonl, .csv or .toml; - reads standard input
    file: PathBuf,
    /// Form of the file, if its name does not tell
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Say what would change and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Also remove every rule of every symbol that the file does not hold
    #[arg(long)]
    replace: bool,
}

pub(super) async fn run(conn: &mut MultiplexedConnection, keys: &Keys, args: ApplyArgs) -> Result<()> {
    let Some(format) = args.format.or_else(|| Format::of(&args.file)) else {
        bail!("{} does not tell its form: add --format jsonl, csv or toml", args.file.display());
    };
    let text = read_input(&args.file)?;
    let rules = file::read(format, &text).map_err(|problems| refusal(&args.file.display(), &problems))?;
    let plan = plan(conn, keys, &rules, args.replace).await?;
    if !args.dry_run {
        write(conn, keys, &plan).await.context("the rules are not complete: apply the file again")?;
    }
    print(&format!("{}\n", plan.summary(args.dry_run)))
}

/// Every bad line, up to a limit, in one message.
fn refusal(file: &dyn std::fmt::Display, problems: &[Problem]) -> anyhow::Error {
    let n = problems.len();
    let rules = if n == 1 { "rule" } else { "rules" };
    let mut lines = vec![format!("{file}: {n} bad {rules}, nothing was written")];
    lines.extend(problems.iter().take(SHOWN).map(|Problem { line, message }| format!("  line {line}: {message}")));
    if n > SHOWN {
        lines.push(format!("  and {} more", n - SHOWN));
    }
    anyhow::anyhow!(lines.join("\n"))
}

/// What applying a file does to the rules that are there.
#[derive(Debug, Default, PartialEq)]
struct Plan<'a> {
    added: Vec<&'a Rule>,
    changed: Vec<&'a Rule>,
    unchanged: usize,
    /// Symbol and id.
    removed: Vec<(String, String)>,
    /// Entries that do not parse and are left where they are.
    skipped: usize,
}

async fn plan<'a>(
    conn: &mut MultiplexedConnection,
    keys: &Keys,
    rules: &'a [Rule],
    replace: bool,
) -> Result<Plan<'a>> {
    let listing = if replace {
        rules::list_all(conn, keys).await?
    } else {
        let mut symbols: Vec<&str> = rules.iter().map(|rule| rule.symbol.as_str()).collect();
        symbols.sort_unstable();
        symbols.dedup();
        rules::list(conn, keys, &symbols).await?
    };
    Ok(Plan::new(rules, &listing, replace))
}

impl<'a> Plan<'a> {
    fn new(rules: &'a [Rule], listing: &Listing, replace: bool) -> Plan<'a> {
        let mut there: HashMap<(&str, &str), Vec<&Rule>> = HashMap::new();
        for rule in &listing.rules {
            there.entry((&rule.symbol, &rule.id)).or_default().push(rule);
        }
        let mut plan = Plan { skipped: listing.skipped.len(), ..Plan::default() };
        for rule in rules {
            match there.remove(&(rule.symbol.as_str(), rule.id.as_str())).as_deref() {
                None => plan.added.push(rule),
                Some([only]) if *only == rule => plan.unchanged += 1,
                Some(_) => plan.changed.push(rule),
            }
        }
        if replace {
            plan.removed = there.into_keys().map(|(symbol, id)| (symbol.to_owned(), id.to_owned())).collect();
            plan.removed.sort_unstable();
        }
        plan
    }

    fn summary(&self, dry_run: bool) -> String {
        let Plan { added, changed, unchanged, removed, skipped } = self;
        let would = if dry_run { "would be " } else { "" };
        let alone = match skipped {
            0 => String::new(),
            n => format!("; {n} that do not parse left alone (`tickwatch rule list` shows them)"),
        };
        format!(
            "{} {would}added, {} {would}changed, {unchanged} unchanged, {} {would}removed{alone}",
            added.len(),
            changed.len(),
            removed.len()
        )
    }
}

/// Writes first and removes last, so that at no time there is less than before and after.
async fn write(conn: &mut MultiplexedConnection, keys: &Keys, plan: &Plan<'_>) -> Result<()> {
    let written: Vec<Rule> = plan.added.iter().chain(&plan.changed).map(|rule| (*rule).clone()).collect();
    let removed: Vec<(&str, &str)> = plan.removed.iter().map(|(symbol, id)| (&**symbol, &**id)).collect();
    let bar = progress_bar((written.len() + removed.len()) as u64)?;
    rules::put_all(conn, keys, &written, |n| bar.inc(n)).await?;
    rules::remove_all(conn, keys, &removed, |n| bar.inc(n)).await?;
    bar.finish_and_clear();
    if !written.is_empty() || !removed.is_empty() {
        warn_unless_replicated(rules::replicate(conn).await?);
    }
    Ok(())
}

/// Shown on a terminal only.
fn progress_bar(rules: u64) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} rules, {eta} left")?;
    Ok(ProgressBar::new(rules).with_style(style))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Op, Trigger};
    use crate::store::rules::{RuleOptions, parse_threshold};

    fn rule(id: &str, threshold: &str) -> Rule {
        Rule {
            symbol: "BBCA".into(),
            trigger: Trigger::Edge,
            op: Op::Less,
            threshold: parse_threshold(threshold).unwrap(),
            id: id.into(),
            options: RuleOptions::default(),
        }
    }

    #[test]
    fn rules_not_in_the_file_stay_unless_replaced() {
        let listing = Listing { rules: vec![rule("a", "1"), rule("b", "2"), rule("c", "3")], skipped: vec![] };
        let file = [rule("a", "1"), rule("b", "20"), rule("d", "4")];
        let kept = Plan::new(&file, &listing, false);
        assert_eq!(kept.summary(false), "1 added, 1 changed, 1 unchanged, 0 removed");
        let replaced = Plan::new(&file, &listing, true);
        assert_eq!(replaced.removed, [("BBCA".into(), "c".into())]);
        assert_eq!(replaced.summary(true), "1 would be added, 1 would be changed, 1 unchanged, 1 would be removed");
    }

    #[test]
    fn an_id_with_two_rules_becomes_the_one_in_the_file() {
        let listing = Listing { rules: vec![rule("a", "1"), rule("a", "2")], skipped: vec![] };
        assert_eq!(Plan::new(&[rule("a", "1")], &listing, false).changed.len(), 1);
    }

    #[test]
    fn at_most_twenty_bad_lines_are_shown() {
        let problems: Vec<_> = (1..=25).map(|line| Problem { line, message: "bad".into() }).collect();
        let message = refusal(&"rules.csv", &problems).to_string();
        assert!(message.starts_with("rules.csv: 25 bad rules, nothing was written\n  line 1: bad\n"), "{message}");
        assert!(message.ends_with("  line 20: bad\n  and 5 more"), "{message}");
    }
}
