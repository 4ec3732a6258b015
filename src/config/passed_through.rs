//! Settings that go to librdkafka under its own names.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::redact::{MASK, is_secret};

/// librdkafka's names and their values. Written out, by serde or `Debug`, the secret ones are masked.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct PassedThrough(BTreeMap<String, Scalar>);

impl PassedThrough {
    fn shown(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), if is_secret(name) { MASK } else { &value.0 }))
    }
}

impl Deref for PassedThrough {
    type Target = BTreeMap<String, Scalar>;

    fn deref(&self) -> &BTreeMap<String, Scalar> {
        &self.0
    }
}

impl DerefMut for PassedThrough {
    fn deref_mut(&mut self) -> &mut BTreeMap<String, Scalar> {
        &mut self.0
    }
}

impl Serialize for PassedThrough {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.shown())
    }
}

impl fmt::Debug for PassedThrough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.shown()).finish()
    }
}

/// A TOML scalar passed through to librdkafka as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Scalar(pub String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Any {
            Bool(bool),
            Integer(i64),
            Float(f64),
            Text(String),
        }
        Ok(Scalar(match Any::deserialize(d)? {
            Any::Bool(v) => v.to_string(),
            Any::Integer(v) => v.to_string(),
            Any::Float(v) => v.to_string(),
            Any::Text(v) => v,
        }))
    }
}
