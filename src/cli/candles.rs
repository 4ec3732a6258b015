//! `tickwatch candles`: the candles of a symbol as they stand in Redis.

mod plot;

use anyhow::{Result, bail};
use comfy_table::Cell;
use serde::Serialize;
use serde_json::value::RawValue;

use self::plot::Size;
use super::text::{now, number, parse_duration, parse_time, print, print_coloured, print_json, table, utc};
use crate::config::Config;
use crate::domain::Interval;
use crate::store::candles::{self, Found, Range, StoredCandle};
use crate::store::connection::connect;
use crate::store::keys::Keys;

/// Candles listed unless told otherwise.
const DEFAULT_LAST: usize = 20;

/// Show the candles of a symbol, open ones too
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch candles BBCA 1m                              # the newest 20\n  \
    tickwatch candles BBCA 1m --plot                       # as a chart, as many as fit\n  \
    tickwatch candles BTC/USDT 1h --from 2d --json         # all of the last two days")]
pub struct Args {
    /// Symbol, as in the ticks
    symbol: String,
    /// Interval, such as 1s, 1m or 1w
    interval: Interval,
    /// At most so many, the newest [default: 20, with --plot what fits, or all from --from on]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    last: Option<u32>,
    /// From this time on: 2026-12-31T00:00:00Z, 2026-12-31, or so long ago: 2h
    #[arg(long, value_name = "TIME", value_parser = parse_past)]
    from: Option<i64>,
    /// Before this time
    #[arg(long, value_name = "TIME", value_parser = parse_past)]
    to: Option<i64>,
    /// A chart of box characters, as wide as the terminal
    #[arg(long, conflicts_with = "json")]
    plot: bool,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
}

fn parse_past(text: &str) -> Result<i64> {
    parse_time(text).or_else(|e| match parse_duration(text) {
        Ok(ago) => Ok(now().saturating_sub(ago)),
        Err(_) => Err(e.context("or a time ago such as 2h")),
    })
}

/// Runs the subcommand.
pub async fn run(config: Config, args: Args) -> Result<()> {
    if let (Some(from), Some(to)) = (args.from, args.to)
        && from >= to
    {
        bail!("--from {} is not before --to {}", utc(from), utc(to));
    }
    let mut conn = connect(&config.redis).await?;
    let screen = Size::of_stdout();
    let unless_told = match args.from {
        Some(_) => candles::MAX_WINDOWS,
        None if args.plot => screen.candles(),
        None => DEFAULT_LAST,
    };
    let range = Range { from: args.from, to: args.to, last: args.last.map_or(unless_told, |n| n as usize) };
    let keys = Keys::new(config.namespace.clone());
    let found = candles::read(&mut conn, &keys, &args.symbol, args.interval, range).await?;
    if let Some(earliest) = found.searched_back_to {
        let most = candles::MAX_WINDOWS;
        eprintln!("note: looked at {most} windows, back to {}; use --to to look further back", utc(earliest));
    }
    if args.json {
        let rows = found.candles.iter().map(|candle| CandleJson::of(&args, candle)).collect::<Result<Vec<_>>>()?;
        return print_json(&rows);
    }
    if found.candles.is_empty() {
        return print(&nothing_found(&config, &args, &found));
    }
    if args.plot {
        return print_coloured(&plot::plot(&args.symbol, args.interval, &found.candles, screen));
    }
    print(&text_of(&found.candles))
}

/// Says why there may be none, and what to do.
fn nothing_found(config: &Config, args: &Args, found: &Found) -> String {
    let (symbol, interval) = (&args.symbol, args.interval);
    let Some(last_tick) = found.last_tick else {
        return format!(
            "No candles: {symbol} has not ticked in namespace {}. `tickwatch status` shows what is read; \
             symbols are spelled as in the ticks.\n",
            config.namespace
        );
    };
    if !config.candles.intervals.contains(&interval) {
        let intervals: Vec<String> = config.candles.intervals.iter().map(ToString::to_string).collect();
        return format!(
            "No {interval} candles of {symbol}: the configuration makes {}. Add \"{interval}\" to [candles] \
             intervals.\n",
            if intervals.is_empty() { "none".to_owned() } else { intervals.join(", ") }
        );
    }
    format!(
        "No {interval} candles of {symbol} in that range; its last tick was at {}. Closed candles are kept for \
         twice [candles] keep.\n",
        utc(last_tick)
    )
}

fn text_of(candles: &[StoredCandle]) -> String {
    let header = ["start (UTC)", "open", "high", "low", "close", "volume", "count", "status", "revision"];
    let mut table = table(&header);
    for candle in candles {
        table.add_row([
            Cell::new(utc(candle.window.start)),
            number(candle.open),
            number(candle.high),
            number(candle.low),
            number(candle.close),
            number(candle.volume),
            number(candle.count),
            Cell::new(&candle.status),
            number(candle.revision),
        ]);
    }
    format!("{table}\n")
}

/// The fields of the candles topic, and the status.
#[derive(Serialize)]
struct CandleJson<'a> {
    symbol: &'a str,
    interval: String,
    start: i64,
    end: i64,
    open: Box<RawValue>,
    high: Box<RawValue>,
    low: Box<RawValue>,
    close: Box<RawValue>,
    volume: Box<RawValue>,
    count: u64,
    status: &'a str,
    revision: i64,
}

impl<'a> CandleJson<'a> {
    fn of(args: &'a Args, candle: &'a StoredCandle) -> Result<CandleJson<'a>> {
        let raw = |decimal: &dyn ToString| RawValue::from_string(decimal.to_string());
        Ok(CandleJson {
            symbol: &args.symbol,
            interval: args.interval.to_string(),
            start: candle.window.start,
            end: candle.window.end,
            open: raw(&candle.open)?,
            high: raw(&candle.high)?,
            low: raw(&candle.low)?,
            close: raw(&candle.close)?,
            volume: raw(&candle.volume)?,
            count: candle.count,
            status: &candle.status,
            revision: candle.revision,
        })
    }
}
