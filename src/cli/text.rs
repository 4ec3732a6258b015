//! What the listings share: tables, times and printing.

use std::io::{self, Write};
use std::time::Duration;

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result, bail};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

/// Of a price that rose, or is above something.
pub(super) const RISING: Style = AnsiColor::Green.on_default();
/// Of a price that fell, or is below something.
pub(super) const FALLING: Style = AnsiColor::Red.on_default();

/// An empty table with a header; as wide as the terminal, or as its content in a pipe.
pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header.iter().map(Cell::new));
    table.style_mut().row_separator = comfy_table::LineStyle::none();
    table
}

/// A cell of a column of numbers.
pub(super) fn number(value: impl ToString) -> Cell {
    Cell::new(value.to_string()).set_alignment(CellAlignment::Right)
}

/// A cell of a number that may not be known.
pub(super) fn maybe_number<T: ToString>(value: Option<T>) -> Cell {
    value.map_or_else(|| number("-"), number)
}

/// A time as `2026-12-31T00:00:00Z`, with milliseconds if it has any; far from our era plain ms.
pub(super) fn utc(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |t| t.to_string())
}

/// Reads a point in time as ms since the epoch: `2026-12-31T00:00:00Z`, `2026-12-31` (midnight UTC), or plain ms.
pub(super) fn parse_time(text: &str) -> Result<i64> {
    if let Ok(ms) = text.parse() {
        return Ok(ms);
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time.as_millisecond());
    }
    let date = Date::strptime("%Y-%m-%d", text).ok().with_context(|| {
        format!("{text:?} is no time: write 2026-12-31T00:00:00Z, 2026-12-31, or ms since the epoch")
    })?;
    let midnight = TimeZone::UTC.to_timestamp(date.at(0, 0, 0, 0));
    Ok(midnight.with_context(|| format!("{text:?} is out of range"))?.as_millisecond())
}

/// Reads a length of time as ms: `5m`, `36h`.
pub(super) fn parse_duration(text: &str) -> Result<i64> {
    let Ok(duration) = humantime::parse_duration(text) else {
        bail!("{text:?} is no duration: write one such as 90s, 5m or 24h");
    };
    i64::try_from(duration.as_millis()).with_context(|| format!("{text:?} is too long"))
}

/// A length of time as [`parse_duration`] reads it: `5m`, `1day 12h`.
pub(super) fn duration(ms: i64) -> String {
    humantime::format_duration(Duration::from_millis(ms.max(0) as u64)).to_string()
}

/// A length of time to two units, for reading: `2h 5m`.
pub(super) fn roughly(ms: i64) -> String {
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let Some(first) = units.iter().position(|(_, length)| ms >= *length) else {
        return format!("{ms}ms");
    };
    let mut rest = ms;
    let mut parts = Vec::new();
    for (unit, length) in &units[first..(first + 2).min(units.len())] {
        if rest >= *length {
            parts.push(format!("{}{unit}", rest / length));
            rest %= length;
        }
    }
    parts.join(" ")
}

/// Milliseconds since the epoch by this machine's clock.
pub(super) fn now() -> i64 {
    Timestamp::now().as_millisecond()
}

/// Prints to standard output. A reader that has seen enough (`| head`) is no error.
pub(super) fn print(text: &str) -> Result<()> {
    print_to(io::stdout().lock(), text)
}

/// [`print`], with colours where standard output shows them: on a terminal, unless `NO_COLOR` is set.
pub(super) fn print_coloured(text: &str) -> Result<()> {
    print_to(AutoStream::auto(io::stdout()).lock(), text)
}

fn print_to(mut out: impl Write, text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("writing to standard output"),
    }
}

/// Prints a value as indented JSON.
pub(super) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_read_in_three_forms() {
        let midnight = 1_798_675_200_000;
        for text in ["2026-12-31T00:00:00Z", "2026-12-31T07:00:00+07:00", "2026-12-31", "1798675200000"] {
            assert_eq!(parse_time(text).unwrap(), midnight, "{text}");
        }
        for text in ["", "soon", "2026-13-01", "2026-12-31T00:00:00"] {
            assert!(parse_time(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn long_times_are_said_in_two_units() {
        assert_eq!(roughly(7_500_000), "2h 5m");
        assert_eq!(roughly(3_600_500), "1h");
        assert_eq!(roughly(950), "950ms");
    }

    proptest! {
        #[test]
        fn durations_and_times_come_back(ms in 0_i64..1 << 53) {
            prop_assert_eq!(parse_duration(&duration(ms)).unwrap(), ms);
            prop_assert_eq!(parse_time(&utc(ms)).unwrap(), ms);
        }
    }
}
