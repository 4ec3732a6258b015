//! Secrets in files, as containers are given them: `password_file`, and in `[kafka.…]` any secret's name with `.file`.

use std::fs;
use std::path::{Path, PathBuf};

use super::load::in_file;
use super::{Config, ConfigError, PassedThrough, Scalar, Secret, is_secret};

/// What librdkafka's name of a secret ends in if its value is in a file.
const SUFFIX: &str = ".file";

/// Puts the content of the files in the place of the secrets.
pub(super) fn read(config: &mut Config) -> Result<(), ConfigError> {
    let redis = &mut config.redis;
    for (name, secret, file) in [
        ("password", &mut redis.password, &redis.password_file),
        ("sentinel_password", &mut redis.sentinel_password, &redis.sentinel_password_file),
    ] {
        let Some(file) = file else { continue };
        if secret.is_some() {
            return Err(said_twice("redis", name, &format!("{name}_file")));
        }
        *secret = Some(Secret::from(&*content(&in_file(&["redis", &format!("{name}_file")]), file)?));
    }
    let kafka = &mut config.kafka;
    for (section, settings) in [
        ("kafka.client", &mut kafka.client),
        ("kafka.consumer", &mut kafka.consumer),
        ("kafka.producer", &mut kafka.producer),
    ] {
        read_passed_through(section, settings)?;
    }
    Ok(())
}

fn read_passed_through(section: &str, settings: &mut PassedThrough) -> Result<(), ConfigError> {
    let in_files: Vec<String> =
        settings.keys().filter(|name| name.strip_suffix(SUFFIX).is_some_and(is_secret)).cloned().collect();
    for name in in_files {
        let secret = name.trim_end_matches(SUFFIX);
        if settings.contains_key(secret) {
            return Err(said_twice(section, secret, &name));
        }
        if let Some(Scalar(path)) = settings.remove(&name) {
            let content = content(&in_file(&[section, &name]), Path::new(&path))?;
            settings.insert(secret.to_owned(), Scalar(content));
        }
    }
    Ok(())
}

/// What the file holds, without the line end that editors put there.
fn content(setting: &str, path: &Path) -> Result<String, ConfigError> {
    let text = fs::read_to_string(path).map_err(|source| ConfigError::SecretFile {
        setting: setting.to_owned(),
        path: PathBuf::from(path),
        source,
    })?;
    let secret = text.trim_end_matches(['\r', '\n']);
    if secret.is_empty() {
        let empty = format!("{setting}: {} is empty; write the secret into it", path.display());
        return Err(ConfigError::Invalid(vec![empty]));
    }
    Ok(secret.to_owned())
}

fn said_twice(section: &str, secret: &str, file: &str) -> ConfigError {
    ConfigError::Invalid(vec![format!("[{section}] {secret} and {file} are both set; remove one of them")])
}
