//! How durations and intervals are written in configuration.

/// Durations as text: `500ms`, `2s`, `24h`.
pub(super) mod duration {
    use std::fmt;
    use std::time::Duration;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serialize, Serializer};

    pub(in crate::config) fn serialize<S: Serializer>(value: &Duration, s: S) -> Result<S::Ok, S::Error> {
        super::text_of(*value).serialize(s)
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        d.deserialize_str(DurationText)
    }

    /// A visitor, so that a bare number is refused with the form that is wanted.
    struct DurationText;

    impl Visitor<'_> for DurationText {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration with its unit, such as \"500ms\", \"2s\" or \"24h\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            humantime::parse_duration(text).map_err(|e| {
                E::custom(format!("{text:?} is no duration ({e}); write one such as \"500ms\", \"2s\" or \"24h\""))
            })
        }
    }
}

/// The same, where the setting may be absent.
pub(super) mod optional_duration {
    use std::time::Duration;

    use serde::{Deserializer, Serialize, Serializer};

    #[allow(clippy::ref_option)] // serde hands the field over like this
    pub(in crate::config) fn serialize<S: Serializer>(value: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        value.map(super::text_of).serialize(s)
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        super::duration::deserialize(d).map(Some)
    }
}

/// Intervals as text, without duplicates.
pub(super) mod interval_list {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::domain::Interval;

    pub(in crate::config) fn serialize<S: Serializer>(value: &[Interval], s: S) -> Result<S::Ok, S::Error> {
        value.iter().map(ToString::to_string).collect::<Vec<_>>().serialize(s)
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Interval>, D::Error> {
        let mut intervals: Vec<Interval> = Vec::new();
        for text in Vec::<String>::deserialize(d)? {
            let interval = text.parse().map_err(D::Error::custom)?;
            if intervals.contains(&interval) {
                return Err(D::Error::custom(format!("interval {text:?} is listed twice; keep one of them")));
            }
            intervals.push(interval);
        }
        Ok(intervals)
    }
}

/// A duration in the largest unit that divides it, as people write it: `24h`, not `1day`.
pub(super) fn text_of(value: std::time::Duration) -> String {
    let ms = value.as_millis();
    let (unit, length) = [("h", 3_600_000), ("m", 60_000), ("s", 1_000)]
        .into_iter()
        .find(|(_, length)| ms > 0 && ms.is_multiple_of(*length))
        .unwrap_or(("ms", 1));
    format!("{}{unit}", ms / length)
}
