//! Candles as a chart of box characters: each character cell is two steps of price high, each candle one column wide.

use std::fmt::Write as _;

use anstyle::Style;
use terminal_size::{Height, Width, terminal_size_of};

use super::super::text::{FALLING, RISING, utc};
use crate::domain::Interval;
use crate::store::candles::StoredCandle;

/// Of a screen that does not say its size.
const USUAL: Size = Size { columns: 80, rows: 24 };
/// Rows of the chart itself at least and at most, whatever the screen.
const LEAST_ROWS: usize = 8;
const MOST_ROWS: usize = 32;
/// Rows beside the chart itself: title, axis, times, dates, directions, status, legend, prompt.
const OTHER_ROWS: usize = 8;
/// Columns from one candle to the next at most.
const MOST_PITCH: usize = 3;
/// Rows to a price on the axis at least.
const ROWS_A_PRICE: usize = 2;
/// Columns between two times at least.
const TIME_GAP: usize = 2;
const MINUTE: i64 = 60_000;
const DAY: i64 = 24 * 60 * MINUTE;

/// A screen, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    columns: usize,
    rows: usize,
}

impl Size {
    /// Of the terminal that standard output is, or the usual one.
    pub(super) fn of_stdout() -> Size {
        let found = terminal_size_of(std::io::stdout());
        found.map_or(USUAL, |(Width(columns), Height(rows))| Size { columns: columns.into(), rows: rows.into() })
    }

    /// Candles that are drawn unless told otherwise: with a gap between two, and room for the prices.
    pub(super) fn candles(self) -> usize {
        (self.columns.saturating_sub(12) / 2).max(1)
    }

    fn chart_rows(self) -> usize {
        self.rows.saturating_sub(OTHER_ROWS).clamp(LEAST_ROWS, MOST_ROWS)
    }
}

/// The chart of these candles, oldest first; those that fit, the newest, if not all do.
pub(super) fn plot(symbol: &str, interval: Interval, candles: &[StoredCandle], size: Size) -> String {
    let mut shown = candles;
    let (scale, labels, axis, columns) = loop {
        let scale = Scale::of(shown, size.chart_rows());
        let labels = scale.labels();
        let axis = labels.iter().map(|(_, label)| label.len()).max().unwrap_or_default();
        let columns = size.columns.saturating_sub(axis + " ┤".chars().count()).max(1);
        if shown.len() <= columns {
            break (scale, labels, axis, columns);
        }
        shown = &shown[shown.len() - columns..];
    };
    let pitch = (columns / shown.len().max(1)).clamp(1, MOST_PITCH);

    let mut text = wrapped(&title(symbol, interval, shown), size.columns);
    for row in (0..scale.rows).rev() {
        let label = labels.iter().find(|(of, _)| *of == row).map(|(_, label)| label.as_str());
        let tick = if label.is_some() { '┤' } else { '│' };
        write!(text, "{:>axis$} {tick}", label.unwrap_or_default()).unwrap_or_default();
        for candle in shown {
            match scale.cell(candle, row) {
                ' ' => text.push(' '),
                cell => {
                    let style = style(candle);
                    write!(text, "{style}{cell}{style:#}").unwrap_or_default();
                }
            }
            text.extend(std::iter::repeat_n(' ', pitch - 1));
        }
        end_line(&mut text);
    }
    let times = Times::of(interval, shown, pitch, columns);
    for (mark, line) in [('└', times.ticks), (' ', times.times), (' ', times.dates)] {
        if !line.trim().is_empty() {
            write!(text, "{:axis$} {mark}{line}", "").unwrap_or_default();
            end_line(&mut text);
        }
    }
    let mut below = |mark: fn(&StoredCandle) -> char| {
        let mut marks = String::new();
        for candle in shown {
            marks.push(mark(candle));
            marks.extend(std::iter::repeat_n(' ', pitch - 1));
        }
        if !marks.trim().is_empty() {
            write!(text, "{:axis$}  {marks}", "").unwrap_or_default();
            end_line(&mut text);
        }
    };
    below(direction);
    below(status);
    text + &wrapped(&legend(shown, candles.len()), size.columns)
}

fn title(symbol: &str, interval: Interval, shown: &[StoredCandle]) -> Vec<String> {
    let mut title = vec![format!("{symbol} {interval}, UTC")];
    if let Some(StoredCandle { open, high, low, close, .. }) = shown.last() {
        title.push(format!("newest: open {open} high {high} low {low} close {close}"));
    }
    title
}

fn legend(shown: &[StoredCandle], found: usize) -> Vec<String> {
    let has = |mark| shown.iter().any(|candle| status(candle) == mark);
    let gap = shown.windows(2).any(|pair| pair[0].window.end < pair[1].window.start);
    let entries = [
        (true, "▴ up".to_owned()),
        (true, "▾ down".to_owned()),
        (has('○'), "○ still open".to_owned()),
        (has('◆'), "◆ revised".to_owned()),
        (gap, "no tick, no candle".to_owned()),
        (shown.len() < found, format!("the newest {} of {found} fit", shown.len())),
    ];
    entries.into_iter().filter(|(told, _)| *told).map(|(_, entry)| entry).collect()
}

fn direction(candle: &StoredCandle) -> char {
    match candle.close.to_f64().total_cmp(&candle.open.to_f64()) {
        std::cmp::Ordering::Greater => '▴',
        std::cmp::Ordering::Less => '▾',
        std::cmp::Ordering::Equal => '–',
    }
}

fn status(candle: &StoredCandle) -> char {
    match candle.status.as_str() {
        "open" => '○',
        "revised" => '◆',
        _ => ' ',
    }
}

fn style(candle: &StoredCandle) -> Style {
    let style = if direction(candle) == '▾' { FALLING } else { RISING };
    if status(candle) == '○' { style.dimmed() } else { style }
}

/// The parts on as few lines as they fit on; a part that is longer than a line is cut.
fn wrapped(parts: &[String], columns: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        let part: String = part.chars().take(columns).collect();
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + part.chars().count() <= columns => {
                line.push_str("  ");
                line.push_str(&part);
            }
            _ => lines.push(part),
        }
    }
    lines.join("\n") + "\n"
}

fn end_line(text: &mut String) {
    text.truncate(text.trim_end_matches(' ').len());
    text.push('\n');
}

/// From price to height.
#[derive(Debug)]
struct Scale {
    low: f64,
    high: f64,
    rows: usize,
}

/// What half a cell holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Nothing,
    Wick,
    Body,
}

impl Scale {
    fn of(candles: &[StoredCandle], rows: usize) -> Scale {
        let low = candles.iter().map(|candle| candle.low.to_f64()).fold(f64::INFINITY, f64::min);
        let high = candles.iter().map(|candle| candle.high.to_f64()).fold(f64::NEG_INFINITY, f64::max);
        if low < high {
            return Scale { low, high, rows };
        }
        // One price only: in the middle.
        let room = if low == 0.0 { 1.0 } else { low.abs() / 1_000.0 };
        Scale { low: low - room, high: high + room, rows }
    }

    /// Steps above the lowest, two to a row.
    fn height(&self, price: f64) -> usize {
        let steps = self.rows * 2;
        let height = (price - self.low) / (self.high - self.low) * steps as f64;
        (height as usize).min(steps - 1)
    }

    fn cell(&self, candle: &StoredCandle, row: usize) -> char {
        let [open, high, low, close] =
            [candle.open, candle.high, candle.low, candle.close].map(|price| self.height(price.to_f64()));
        let half = |step: usize| {
            if (open.min(close)..=open.max(close)).contains(&step) {
                Half::Body
            } else if (low..=high).contains(&step) {
                Half::Wick
            } else {
                Half::Nothing
            }
        };
        match (half(2 * row + 1), half(2 * row)) {
            (Half::Nothing, Half::Nothing) => ' ',
            (Half::Nothing, Half::Wick) => '╷',
            (Half::Wick, Half::Nothing) => '╵',
            (Half::Wick, Half::Wick) => '│',
            (Half::Nothing, Half::Body) => '╻',
            (Half::Body, Half::Nothing) => '╹',
            (Half::Body, Half::Body) => '┃',
            (Half::Wick, Half::Body) => '╽',
            (Half::Body, Half::Wick) => '╿',
        }
    }

    /// Round prices, each with its row.
    fn labels(&self) -> Vec<(usize, String)> {
        let wanted = (self.high - self.low) / (self.rows / ROWS_A_PRICE) as f64;
        let magnitude = 10_f64.powf(wanted.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * magnitude).into_iter().find(|step| *step >= wanted);
        let step = step.unwrap_or(wanted);
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last)
            .map(|count| count as f64 * step)
            .map(|price| (self.height(price) / 2, format!("{price:.decimals$}")))
            .collect()
    }
}

/// The lines of the time axis, one character a column.
struct Times {
    ticks: String,
    times: String,
    dates: String,
}

impl Times {
    fn of(interval: Interval, shown: &[StoredCandle], pitch: usize, columns: usize) -> Times {
        let mut times = Times { ticks: String::new(), times: String::new(), dates: String::new() };
        let mut date_before = String::new();
        for (number, candle) in shown.iter().enumerate() {
            let column = number * pitch;
            let (date, time) = label(interval, candle.window.start);
            let written = times.times.chars().count();
            if (written > 0 && column < written + TIME_GAP) || column + time.len() > columns {
                continue;
            }
            fill(&mut times.ticks, column, '─');
            times.ticks.push('┬');
            fill(&mut times.times, column, ' ');
            times.times.push_str(&time);
            let dates_written = times.dates.chars().count();
            if date != date_before && column >= dates_written && column + date.len() <= columns {
                fill(&mut times.dates, column, ' ');
                times.dates.push_str(&date);
                times.dates.push(' ');
                date_before = date;
            }
        }
        fill(&mut times.ticks, (shown.len() * pitch).min(columns), '─');
        times
    }
}

fn fill(line: &mut String, to: usize, with: char) {
    line.extend(std::iter::repeat_n(with, to.saturating_sub(line.chars().count())));
}

/// The date, unless the time says it, and the time as finely as the interval needs it.
fn label(interval: Interval, start: i64) -> (String, String) {
    let whole = utc(start);
    let Some((date, time)) = whole.split_once('T') else {
        return (String::new(), whole);
    };
    let time = time.trim_end_matches('Z');
    if interval.ms() % DAY == 0 {
        return (String::new(), date.to_owned());
    }
    let time = if interval.ms() % MINUTE == 0 { time.get(..5).unwrap_or(time) } else { time };
    (date.to_owned(), time.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{Price, Volume};

    const MIDNIGHT: i64 = 1_798_675_200_000;

    fn candle(minute: i64, [open, high, low, close]: [f64; 4], status: &str) -> StoredCandle {
        let price = |value| Price::from_f64(value).unwrap();
        let interval: Interval = "1m".parse().unwrap();
        StoredCandle {
            window: interval.window_of(MIDNIGHT + minute * MINUTE),
            open: price(open),
            high: price(high),
            low: price(low),
            close: price(close),
            volume: Volume::parse("1").unwrap(),
            count: 1,
            status: status.into(),
            revision: 0,
        }
    }

    fn drawn(candles: &[StoredCandle], columns: usize, rows: usize) -> String {
        let chart = plot("BBCA", "1m".parse().unwrap(), candles, Size { columns, rows });
        anstream::adapter::strip_str(&chart).to_string()
    }

    #[test]
    fn bodies_wicks_prices_times_and_status_are_where_they_belong() {
        let candles = [
            candle(0, [100.0, 116.0, 100.0, 108.0], "final"),
            candle(1, [108.0, 108.0, 100.0, 104.0], "revised"),
            candle(3, [104.0, 112.0, 104.0, 112.0], "open"),
        ];
        let expected = "\
BBCA 1m, UTC  newest: open 104 high 112 low 104 close 112
115 ┤│
    ││     ╻
110 ┤│     ┃
    │╽  ╻  ┃
    │┃  ┃  ┃
105 ┤┃  ┃  ┃
    │┃  │
100 ┤┃  │
    └┬────────
     00:00
     2026-12-31
     ▴  ▾  ▴
        ◆  ○
▴ up  ▾ down  ○ still open  ◆ revised  no tick, no candle
";
        assert_eq!(drawn(&candles, 80, 10), expected);
    }

    #[test]
    fn the_newest_that_fit_are_shown_and_it_is_said() {
        let candles: Vec<_> = (0..100).map(|i| candle(i, [1.0, 2.0, 1.0, 2.0], "final")).collect();
        let chart = drawn(&candles, 30, 24);
        assert!(chart.contains("the newest 25 of 100 fit"), "{chart}");
        assert!(!drawn(&candles, 130, 24).contains("fit"));
    }

    #[test]
    fn a_new_day_is_dated() {
        let candles: Vec<_> = (-20..20).map(|i| candle(i, [1.0, 2.0, 1.0, 2.0], "final")).collect();
        let chart = drawn(&candles, 120, 24);
        assert!(chart.contains("2026-12-30") && chart.contains("2026-12-31"), "{chart}");
    }

    /// From 0.000001 to 1,000,000,000,000 and the same below zero.
    fn any_candle() -> impl Strategy<Value = [f64; 4]> {
        let price = || {
            (-1_000_000..1_000_000_i64, 0..6_i32).prop_map(|(price, decimals)| price as f64 / 10_f64.powi(decimals))
        };
        (0..2).prop_flat_map(move |large| {
            [price(), price(), price(), price()]
                .prop_map(move |p| p.map(|p| if large == 1 { p.trunc() * 1e6 } else { p }))
        })
    }

    proptest! {
        #[test]
        fn every_line_fits_and_every_candle_is_drawn(
            prices in prop::collection::vec(any_candle(), 1..90), columns in 20..200_usize, rows in 1..100_usize
        ) {
            let candles: Vec<_> = prices.iter().zip(0..).map(|(prices, minute)| {
                let [open, close, a, b] = *prices;
                let high = open.max(close).max(a).max(b);
                let low = open.min(close).min(a).min(b);
                candle(minute, [open, high, low, close], "final")
            }).collect();
            let chart = drawn(&candles, columns, rows);
            for line in chart.lines() {
                prop_assert!(line.chars().count() <= columns, "{line:?} in {columns}\n{chart}");
            }
            let bodies = |c: char| "╻╹┃╽╿".contains(c);
            prop_assert!(chart.chars().any(bodies), "{chart}");
        }
    }
}
