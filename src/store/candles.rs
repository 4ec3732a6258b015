//! Candles as people read them: found by computed keys, newest first, never by SCAN.

use anyhow::{Context, Result};
use redis::Pipeline;
use redis::aio::MultiplexedConnection;

use super::keys::Keys;
use crate::domain::{Interval, Price, Volume, Window};

/// Most windows looked at for one listing: quiet symbols have gaps, and a key has to be asked for each window.
pub const MAX_WINDOWS: usize = 10_000;
/// Windows asked for in one round trip.
const CHUNK: usize = 500;

/// A candle as it stands in Redis.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredCandle {
    /// Its window.
    pub window: Window,
    /// Price of the first tick.
    pub open: Price,
    /// Highest price.
    pub high: Price,
    /// Lowest price.
    pub low: Price,
    /// Price of the last tick.
    pub close: Price,
    /// Sum of volumes.
    pub volume: Volume,
    /// Number of ticks.
    pub count: u64,
    /// `open`, `final` or `revised`.
    pub status: String,
    /// 0, or of a revised candle the offset + 1 of the late tick that caused it.
    pub revision: i64,
}

/// Which candles to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Windows that start before this time are left out, ms.
    pub from: Option<i64>,
    /// Windows that start at or after this time are left out, ms; default: the symbol's newest tick is the last.
    pub to: Option<i64>,
    /// At most so many, the newest.
    pub last: usize,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    /// The candles, oldest first.
    pub candles: Vec<StoredCandle>,
    /// Event time of the symbol's last price, ms; `None` if the symbol never ticked.
    pub last_tick: Option<i64>,
    /// Set if [`MAX_WINDOWS`] ended the search: start of the earliest window looked at, ms.
    pub searched_back_to: Option<i64>,
}

/// Reads candles of a symbol backwards from the newest known window.
pub async fn read(
    conn: &mut MultiplexedConnection,
    keys: &Keys,
    symbol: &str,
    interval: Interval,
    range: Range,
) -> Result<Found> {
    let key = keys.last(symbol);
    let last_tick: Option<i64> =
        redis::cmd("HGET").arg(&key).arg("ts").query_async(conn).await.with_context(|| format!("reading {key}"))?;
    let mut found = Found { last_tick, ..Found::default() };
    let Some(newest) = newest_window(interval, last_tick, range.to) else {
        return Ok(found);
    };
    let earliest = range.from.unwrap_or(i64::MIN);
    let mut starts = (0..MAX_WINDOWS as i64)
        .map_while(|back| newest.start.checked_sub(back * interval.ms()))
        .take_while(|start| *start >= earliest);
    let mut looked_at = 0;
    while found.candles.len() < range.last {
        let page: Vec<i64> = starts.by_ref().take(CHUNK).collect();
        let Some(oldest) = page.last() else {
            break;
        };
        looked_at += page.len();
        found.searched_back_to = (looked_at == MAX_WINDOWS).then_some(*oldest);
        found.candles.extend(read_page(conn, keys, symbol, interval, &page).await?);
    }
    if found.candles.len() >= range.last {
        found.searched_back_to = None;
    }
    found.candles.truncate(range.last);
    found.candles.reverse();
    Ok(found)
}

/// The last window that can hold a tick at or before `last_tick` and starts before `to`.
fn newest_window(interval: Interval, last_tick: Option<i64>, to: Option<i64>) -> Option<Window> {
    let before_to = to.map(|to| to - 1);
    let newest = match (last_tick, before_to) {
        (Some(tick), Some(to)) => tick.min(to),
        (tick, to) => tick.or(to)?,
    };
    Some(interval.window_of(newest))
}

async fn read_page(
    conn: &mut MultiplexedConnection,
    keys: &Keys,
    symbol: &str,
    interval: Interval,
    starts: &[i64],
) -> Result<Vec<StoredCandle>> {
    let mut pipe = Pipeline::with_capacity(starts.len());
    for start in starts {
        pipe.cmd("HMGET").arg(keys.candle(symbol, interval, *start)).arg(&FIELDS[..]);
    }
    let hashes: Vec<Fields> =
        pipe.query_async(conn).await.with_context(|| format!("reading {interval} candles of {symbol}"))?;
    let mut candles = Vec::new();
    for (start, fields) in starts.iter().zip(hashes) {
        if fields.iter().any(Option::is_some) {
            let candle = parse(interval.window_of(*start), &fields).with_context(|| {
                format!("{} is not a candle tickwatch wrote", keys.candle(symbol, interval, *start))
            })?;
            candles.push(candle);
        }
    }
    Ok(candles)
}

const FIELDS: [&str; 8] = ["open", "high", "low", "close", "volume", "count", "status", "revision"];
type Fields = [Option<String>; FIELDS.len()];

fn parse(window: Window, fields: &Fields) -> Result<StoredCandle> {
    let text = |i: usize| fields[i].as_deref().with_context(|| format!("field {} is missing", FIELDS[i]));
    let price = |i: usize| {
        let price = Price::parse(text(i)?).with_context(|| format!("field {}", FIELDS[i]))?;
        anyhow::Ok(price.value)
    };
    Ok(StoredCandle {
        window,
        open: price(0)?,
        high: price(1)?,
        low: price(2)?,
        close: price(3)?,
        volume: Volume::parse_sum(text(4)?).context("field volume")?,
        count: text(5)?.parse().context("field count")?,
        status: text(6)?.to_owned(),
        revision: text(7)?.parse().context("field revision")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_window_is_the_last_ticks_or_ends_the_range() {
        let minute: Interval = "1m".parse().unwrap();
        let start = |tick, to| newest_window(minute, tick, to).map(|w| w.start);
        assert_eq!(start(Some(125_000), None), Some(120_000));
        assert_eq!(start(Some(125_000), Some(120_000)), Some(60_000));
        assert_eq!(start(Some(125_000), Some(900_000)), Some(120_000));
        assert_eq!(start(None, Some(120_000)), Some(60_000));
        assert_eq!(start(None, None), None);
    }
}
