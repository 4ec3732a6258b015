//! `tickwatch produce FILE`: the lines of a file as records of the source topic, in order.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal as _, stderr, stdin};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use super::sender::Sender;
use crate::config::{Config, InputConfig};

/// Where a symbol is in a record, without a setting.
const SYMBOL: &str = "/symbol";

/// Arguments of `produce`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch produce ticks.jsonl\n  \
    zcat ticks.jsonl.gz | tickwatch produce -")]
pub struct Args {
    /// File of JSON records, one a line; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Sends every line that is not empty. The key is the symbol where `[input]` says where that is, so that a symbol
/// stays in one partition; a record of several trades has no key.
pub async fn run(config: Config, args: Args) -> anyhow::Result<()> {
    let (lines, length) = open(&args.file)?;
    let sender = Sender::new(&config.kafka)?;
    let acknowledged =
        tokio::task::spawn_blocking(move || send_lines(sender, &config.input, lines, &progress(length))).await??;
    eprintln!("sent {acknowledged} records");
    Ok(())
}

/// The lines of the file or of standard input, and how many bytes they are if that is known.
fn open(path: &Path) -> anyhow::Result<(Box<dyn BufRead + Send>, Option<u64>)> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(BufReader::new(stdin())), None));
    }
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let length = file.metadata().map(|metadata| metadata.len()).ok();
    Ok((Box::new(BufReader::new(file)), length))
}

fn send_lines(
    mut sender: Sender,
    input: &InputConfig,
    mut lines: impl BufRead,
    progress: &ProgressBar,
) -> anyhow::Result<u64> {
    let pointer = symbol_pointer(input);
    let mut line = Vec::new();
    while !sender.is_interrupted() {
        line.clear();
        let read = lines.read_until(b'\n', &mut line).context("cannot read on")?;
        if read == 0 {
            break;
        }
        let record = line.trim_ascii();
        if !record.is_empty() {
            let symbol = pointer.and_then(|pointer| symbol(record, pointer));
            sender.send(symbol.as_deref().map(str::as_bytes), record)?;
        }
        progress.inc(read as u64);
    }
    progress.finish_and_clear();
    sender.finish()
}

/// The pointer to the symbol in a record, if every record has one symbol and the configuration says where.
fn symbol_pointer(input: &InputConfig) -> Option<&str> {
    if input.records.is_some() || (input.format.is_some() && input.symbol.is_none()) {
        return None;
    }
    let pointer = input.symbol.as_deref().unwrap_or(SYMBOL);
    Some(pointer.strip_prefix('^').unwrap_or(pointer))
}

fn symbol(record: &[u8], pointer: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(record).ok()?;
    value.pointer(pointer)?.as_str().map(str::to_owned)
}

/// A bar over the file's bytes, or a count of them where the length is not known; nothing in a pipe.
fn progress(length: Option<u64>) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match length {
        Some(length) => (ProgressBar::new(length), "{bar:40} {bytes} of {total_bytes}, {eta} left"),
        None => (ProgressBar::no_length(), "{spinner} {bytes}, {elapsed}"),
    };
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_records_key_is_its_symbol_where_there_is_one() {
        let find = |record: &str, input: &InputConfig| symbol(record.as_bytes(), symbol_pointer(input)?);
        let plain = InputConfig::default();
        assert_eq!(find(r#"{"symbol":"BBCA","price":9505}"#, &plain).as_deref(), Some("BBCA"));
        assert_eq!(find(r#"{"price":9505}"#, &plain), None);
        assert_eq!(find("not json", &plain), None);
        let mapped = InputConfig { symbol: Some("^/arg/id".into()), ..InputConfig::default() };
        assert_eq!(find(r#"{"arg":{"id":"BTC"}}"#, &mapped).as_deref(), Some("BTC"));
        let many = InputConfig { records: Some("/data".into()), ..InputConfig::default() };
        assert_eq!(find(r#"{"symbol":"BBCA"}"#, &many), None);
    }
}
