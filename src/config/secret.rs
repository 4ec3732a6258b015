//! A text that is printed by nothing: not by `Debug`, `Display` or serde, so by no log, message or listing.

use std::fmt;

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::redact::MASK;

/// A password. Reading it takes [`Secret::expose`]; its memory is wiped when it is dropped.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// The text itself, for whoever has to log in with it.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret(text.into())
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.expose() == other.expose()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(MASK)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Secret, D::Error> {
        String::deserialize(d).map(|text| Secret(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_printed_by_nothing() {
        #[derive(Debug, Serialize)]
        struct Login {
            password: Secret,
        }
        let login = Login { password: "hunter2".into() };
        let serialized = toml::to_string(&login).unwrap() + &serde_json::to_string(&login).unwrap();
        let shown = format!("{login:?} {login:#?} {} {serialized}", login.password);
        assert!(!shown.contains("hunter2") && shown.contains(MASK), "{shown}");
        assert_eq!(login.password.expose(), "hunter2");
    }
}
