//! JSON pointers (RFC 6901) as they are written in `[input]` and in presets.

use std::fmt;

use super::InputError;

/// Where a field is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pointer {
    /// As it was written, for messages.
    pub(super) text: Box<str>,
    /// Whether it starts at the record's root (`^/arg/instId`) and not at a trade.
    pub(super) from_root: bool,
    /// Its segments, unescaped.
    pub(super) segments: Vec<Segment>,
}

/// One step of a pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    /// A key of an object; an index of an array if it is a number.
    Name(Box<str>),
    /// Each element of an array.
    Each,
}

impl Pointer {
    /// The pointer of a field within a trade, or with `^` in front from the record's root. `key` is the name of
    /// the setting, for errors.
    pub(super) fn field(key: &'static str, text: &str) -> Result<Pointer, InputError> {
        let (from_root, path) = text.strip_prefix('^').map_or((false, text), |path| (true, path));
        let segments = segments(key, text, path)?;
        if segments.contains(&Segment::Each) {
            return Err(InputError::Star { key, pointer: text.into() });
        }
        Ok(Pointer { text: text.into(), from_root, segments })
    }

    /// The pointer of the trades, always from the record's root; `*` steps into each element of an array.
    pub(super) fn records(key: &'static str, text: &str) -> Result<Pointer, InputError> {
        let path = text.strip_prefix('^').unwrap_or(text);
        Ok(Pointer { text: text.into(), from_root: true, segments: segments(key, text, path)? })
    }
}

/// Quoted, as it was written.
impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

fn segments(key: &'static str, text: &str, path: &str) -> Result<Vec<Segment>, InputError> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let Some(path) = path.strip_prefix('/') else {
        return Err(InputError::NoSlash { key, pointer: text.into() });
    };
    path.split('/')
        .map(|segment| match segment {
            "*" => Ok(Segment::Each),
            _ => {
                unescape(segment).map(Segment::Name).ok_or_else(|| InputError::Tilde { key, pointer: text.into() })
            }
        })
        .collect()
}

/// `~1` is a slash, `~0` a tilde; any other use of `~` is an error.
fn unescape(segment: &str) -> Option<Box<str>> {
    let mut plain = String::with_capacity(segment.len());
    let mut chars = segment.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '~' => match chars.next() {
                Some('0') => '~',
                Some('1') => '/',
                _ => return None,
            },
            _ => c,
        });
    }
    Some(plain.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(pointer: &Pointer) -> Vec<&str> {
        pointer
            .segments
            .iter()
            .map(|segment| match segment {
                Segment::Name(name) => &**name,
                Segment::Each => "*",
            })
            .collect()
    }

    #[test]
    fn a_pointer_is_read_as_rfc_6901_says() {
        let pointer = Pointer::field("price", "/a~1b/m~0n/0//").unwrap();
        assert_eq!(names(&pointer), ["a/b", "m~n", "0", "", ""]);
        assert!(!pointer.from_root);
        assert!(Pointer::field("price", "").unwrap().segments.is_empty());
    }

    #[test]
    fn a_caret_means_from_the_records_root() {
        let pointer = Pointer::field("symbol", "^/arg/instId").unwrap();
        assert!(pointer.from_root);
        assert_eq!(names(&pointer), ["arg", "instId"]);
    }

    #[test]
    fn only_the_pointer_of_the_trades_may_hold_stars() {
        assert_eq!(names(&Pointer::records("records", "/events/*/trades").unwrap()), ["events", "*", "trades"]);
        let error = Pointer::field("price", "/trades/*/price").unwrap_err().to_string();
        assert!(error.contains("[input] price") && error.contains("[input] records"), "{error}");
    }

    #[test]
    fn a_malformed_pointer_names_its_key_and_the_correction() {
        let error = Pointer::field("ts", "time").unwrap_err().to_string();
        assert!(error.contains("[input] ts") && error.contains("\"/time\""), "{error}");
        let error = Pointer::field("ts", "/a~2").unwrap_err().to_string();
        assert!(error.contains("[input] ts") && error.contains("~0"), "{error}");
    }
}
