//! Loading: the file, the environment and the flags as three layers, each checked for unknown settings on its
//! own, so that a message can say where a mistake was made.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::error::{Actual, Error as FigmentError, Kind};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::{Config, PriceZero, TsUnit, is_secret, mask_url, secret_files};

/// The file read when no other is named, if it is there.
const DEFAULT_FILE: &str = "tickwatch.toml";

/// What environment variables start with; `__` separates section and setting.
const ENV_PREFIX: &str = "TICKWATCH_";

/// Kubernetes sets these for every service of a namespace; one that is called `tickwatch` must not stop us.
const SERVICE_LINKS: [&str; 3] = ["SERVICE_HOST", "SERVICE_PORT", "PORT"];

/// Sections whose keys are librdkafka's own.
const PASSED_THROUGH: [[&str; 2]; 3] = [["kafka", "client"], ["kafka", "consumer"], ["kafka", "producer"]];

/// Settings that have a flag, with the flag.
const FLAGS: [(&[&str], &str); 5] = [
    (&["namespace"], "--namespace"),
    (&["redis", "url"], "--redis"),
    (&["kafka", "brokers"], "--brokers"),
    (&["kafka", "group"], "--group"),
    (&["kafka", "topic"], "--topic"),
];

/// Settings given by flags; they win over the environment and the file.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--namespace`
    pub namespace: Option<String>,
    /// `--redis`
    pub redis: Option<String>,
    /// `--brokers`
    pub brokers: Option<String>,
    /// `--group`
    pub group: Option<String>,
    /// `--topic`
    pub topic: Option<String>,
}

/// The configuration cannot be used. Several mistakes are told at once, one a line.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not there, or may not be read.
    #[error("cannot read the configuration file {}; name another with --config", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}:{line}: {message}", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What the parser said.
        message: String,
    },
    /// Settings that do not exist.
    #[error("{}", lines(.0))]
    Unknown(Vec<UnknownSetting>),
    /// A value of the wrong form: where, which value, and what is allowed.
    #[error("{0}")]
    Value(String),
    /// A file that should hold a secret.
    #[error("{setting}: cannot read the secret in {}; check the path and that this user may read it", .path.display())]
    SecretFile {
        /// The setting that names the file.
        setting: String,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Values that do not go together: each says what to change.
    #[error("{}", lines(.0))]
    Invalid(Vec<String>),
}

/// A setting that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownSetting {
    /// Where it was found, and its name: `tickwatch.toml: [candles] intervall`.
    pub location: String,
    /// The nearest one that exists, in the same notation.
    pub nearest: Option<String>,
}

impl fmt::Display for UnknownSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not a setting", self.location)?;
        match &self.nearest {
            Some(nearest) => write!(f, "; did you mean {nearest}?"),
            None => f.write_str("; the annotated tickwatch.toml lists them all"),
        }
    }
}

fn lines<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl Config {
    /// Defaults, then the file, then `TICKWATCH_…` variables, then flags; checked as a whole.
    ///
    /// Without `path`, `./tickwatch.toml` is read if it exists; a file that was named must exist.
    pub fn load(path: Option<&Path>, overrides: &Overrides) -> Result<Config, ConfigError> {
        Self::load_from(path, std::env::vars(), overrides)
    }

    /// [`Config::load`], with the environment given.
    fn load_from(
        path: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
        overrides: &Overrides,
    ) -> Result<Config, ConfigError> {
        let schema = schema();
        let mut layers = Vec::new();
        let default = Path::new(DEFAULT_FILE);
        if let Some(path) = path.or_else(|| default.exists().then_some(default)) {
            layers.push(file_layer(path)?);
        }
        layers.push(env_layer(env, &schema));
        layers.push(flags_layer(overrides));

        let unknown: Vec<_> = layers.iter().flat_map(|layer| layer.unknown_settings(&schema)).collect();
        if !unknown.is_empty() {
            return Err(ConfigError::Unknown(unknown));
        }
        let merged = layers.into_iter().fold(Figment::new(), Figment::merge);
        let mut config: Config = merged.extract().map_err(|e| ConfigError::Value(value_error(&merged, &e)))?;
        secret_files::read(&mut config)?;
        config.validate()?;
        Ok(config)
    }
}

/// Where a layer's settings come from, and so how its settings are written.
#[derive(Debug, Clone)]
enum Origin {
    File(PathBuf),
    Environment,
    Flags,
}

impl Origin {
    /// A setting as its user wrote it: `tickwatch.toml: [candles] late`, `TICKWATCH_CANDLES__LATE`, `--redis`.
    fn locate(&self, path: &[&str]) -> String {
        match self {
            Origin::File(file) => format!("{}: {}", file.display(), in_file(path)),
            _ => self.name(path),
        }
    }

    /// A setting's own name in this layer, without the place.
    fn name(&self, path: &[&str]) -> String {
        match self {
            Origin::File(_) => path.last().copied().unwrap_or_default().to_owned(),
            Origin::Environment => format!("{ENV_PREFIX}{}", path.join("__").replace('.', "_").to_uppercase()),
            Origin::Flags => {
                FLAGS.iter().find(|(of, _)| *of == path).map_or_else(|| in_file(path), |(_, f)| (*f).to_owned())
            }
        }
    }
}

/// A setting in the file's notation: `[candles] late`.
pub(super) fn in_file(path: &[&str]) -> String {
    match path {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [sections @ .., name] => format!("[{}] {name}", sections.join(".")),
    }
}

/// One layer of settings.
struct Layer {
    origin: Origin,
    settings: Dict,
}

impl Layer {
    fn unknown_settings(&self, schema: &toml::Table) -> Vec<UnknownSetting> {
        let mut unknown = Vec::new();
        self.walk(&self.settings, schema, &mut Vec::new(), &mut unknown);
        unknown
    }

    fn walk<'a>(
        &'a self,
        settings: &'a Dict,
        schema: &toml::Table,
        path: &mut Vec<&'a str>,
        unknown: &mut Vec<UnknownSetting>,
    ) {
        for (name, value) in settings {
            path.push(name);
            match (schema.get(name), value) {
                (None, _) => unknown.push(self.unknown_setting(path, schema)),
                (Some(toml::Value::Table(section)), Value::Dict(_, settings)) if !is_passed_through(path) => {
                    self.walk(settings, section, path, unknown);
                }
                _ => {}
            }
            path.pop();
        }
    }

    fn unknown_setting(&self, path: &[&str], section: &toml::Table) -> UnknownSetting {
        let (name, sections) = path.split_last().map_or(("", path), |(name, sections)| (*name, sections));
        let nearest = nearest(name, section.keys().map(String::as_str));
        UnknownSetting {
            location: self.origin.locate(path),
            nearest: nearest.map(|known| self.origin.name(&[sections, &[known]].concat())),
        }
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        let origin = self.origin.clone();
        Metadata::named("layer").interpolater(move |_, path| origin.locate(path))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, FigmentError> {
        Ok(Profile::Default.collect(self.settings.clone()))
    }
}

fn file_layer(path: &Path) -> Result<Layer, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
        let line = e.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        ConfigError::Syntax { path: path.to_owned(), line, message: e.message().to_owned() }
    })?;
    Ok(Layer { origin: Origin::File(path.to_owned()), settings: dict_of(&table) })
}

/// A table's names as they are: a quoted name with dots is one name.
fn dict_of(table: &toml::Table) -> Dict {
    table.iter().map(|(name, value)| (name.clone(), figment_value(value))).collect()
}

fn figment_value(value: &toml::Value) -> Value {
    match value {
        toml::Value::String(v) => Value::from(v.as_str()),
        toml::Value::Integer(v) => Value::from(*v),
        toml::Value::Float(v) => Value::from(*v),
        toml::Value::Boolean(v) => Value::from(*v),
        toml::Value::Datetime(v) => Value::from(v.to_string()),
        toml::Value::Array(v) => Value::from(v.iter().map(figment_value).collect::<Vec<_>>()),
        toml::Value::Table(v) => Value::from(dict_of(v)),
    }
}

fn env_layer(vars: impl IntoIterator<Item = (String, String)>, schema: &toml::Table) -> Layer {
    let mut settings = Dict::new();
    for (variable, text) in vars {
        let Some(name) = variable.strip_prefix(ENV_PREFIX) else { continue };
        if SERVICE_LINKS.iter().any(|link| name == *link || name.starts_with(&format!("{link}_"))) {
            continue;
        }
        let path = env_path(name);
        let value = env_value(&text, lookup(schema, &path));
        insert(&mut settings, &path, value);
    }
    Layer { origin: Origin::Environment, settings }
}

/// `KAFKA__CONSUMER__SESSION_TIMEOUT_MS` is `kafka`, `consumer`, `session.timeout.ms`: librdkafka's names have
/// dots, which a variable's name cannot.
fn env_path(name: &str) -> Vec<String> {
    let mut path: Vec<String> = name.to_lowercase().split("__").map(str::to_owned).collect();
    if let [kafka, client, setting] = &mut path[..]
        && is_passed_through(&[kafka.as_str(), client.as_str()])
    {
        *setting = setting.replace('_', ".");
    }
    path
}

/// Reads a variable as what the setting is: a list is separated by commas, a text may look like a number.
fn env_value(text: &str, known: Option<&toml::Value>) -> Value {
    match known {
        Some(toml::Value::Integer(_)) => text.parse::<i64>().map_or_else(|_| Value::from(text), Value::from),
        Some(toml::Value::Boolean(_)) => text.parse::<bool>().map_or_else(|_| Value::from(text), Value::from),
        Some(toml::Value::Array(_)) => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::from(items.map(Value::from).collect::<Vec<_>>())
        }
        _ => Value::from(text),
    }
}

fn flags_layer(overrides: &Overrides) -> Layer {
    let Overrides { namespace, redis, brokers, group, topic } = overrides;
    let mut settings = Dict::new();
    for ((path, _), value) in FLAGS.iter().zip([namespace, redis, brokers, group, topic]) {
        if let Some(value) = value {
            insert(&mut settings, path, Value::from(value.as_str()));
        }
    }
    Layer { origin: Origin::Flags, settings }
}

fn is_passed_through(path: &[&str]) -> bool {
    PASSED_THROUGH.iter().any(|section| section == path)
}

fn insert(settings: &mut Dict, path: &[impl AsRef<str>], value: Value) {
    let Some((first, rest)) = path.split_first() else { return };
    let first = first.as_ref();
    if rest.is_empty() {
        settings.insert(first.to_owned(), value);
        return;
    }
    let section = settings.entry(first.to_owned()).or_insert_with(|| Value::from(Dict::new()));
    if !matches!(section, Value::Dict(..)) {
        *section = Value::from(Dict::new());
    }
    if let Value::Dict(_, section) = section {
        insert(section, rest, value);
    }
}

fn lookup<'a>(schema: &'a toml::Table, path: &[String]) -> Option<&'a toml::Value> {
    let (name, sections) = path.split_last()?;
    let section = sections.iter().try_fold(schema, |section, name| section.get(name)?.as_table())?;
    section.get(name)
}

/// The known name nearest to `name`, if it is near enough to be meant.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

/// One line: where, the value as it is, what is allowed.
fn value_error(merged: &Figment, error: &FigmentError) -> String {
    let path: Vec<&str> = error.path.iter().map(String::as_str).collect();
    let profile = error.profile.clone().unwrap_or_default();
    let location = match &error.metadata {
        Some(layer) => layer.interpolate(&profile, &path),
        None => in_file(&path),
    };
    if path.last().is_some_and(|name| is_secret(name)) {
        return format!("{location} must be text in quotes");
    }
    match &error.kind {
        Kind::UnknownVariant(value, allowed) => {
            let mut message = format!("{location} = {value:?} is not allowed; write one of {}", allowed.join(", "));
            if let Some(nearest) = nearest(value, allowed.iter().copied()) {
                write!(message, "; did you mean {nearest}?").unwrap_or_default();
            }
            message
        }
        Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => {
            format!("{location} is {}; it must be {}", given(actual), wanted(expected))
        }
        Kind::ISizeOutOfRange(_) | Kind::USizeOutOfRange(_) => format!("{location}: {}", error.kind),
        kind => match value_at(merged, &path) {
            Some(value) if !kind.to_string().contains(&value) => format!("{location} = {value}: {kind}"),
            _ => format!("{location}: {kind}"),
        },
    }
}

/// A value of the wrong type, as it was written.
fn given(actual: &Actual) -> String {
    match actual {
        Actual::Str(text) => format!("{:?}", mask_url(text)), // a URL where a section should be
        Actual::Signed(number) => number.to_string(),
        Actual::Unsigned(number) => number.to_string(),
        Actual::Float(number) => number.to_string(),
        Actual::Bool(flag) => flag.to_string(),
        Actual::Seq => "a list".to_owned(),
        Actual::Map => "a section".to_owned(),
        other => other.to_string(),
    }
}

/// What serde expects, in the words of the file.
fn wanted(expected: &str) -> &str {
    match expected {
        "u32" | "i64" => "a whole number",
        "a string" => "text in quotes",
        "a boolean" => "true or false",
        "a sequence" => "a list, such as [\"1s\", \"1m\"]",
        _ if expected.starts_with("struct ") => "a section",
        _ => expected,
    }
}

/// The text or number at `path` as it was given.
fn value_at(merged: &Figment, path: &[&str]) -> Option<String> {
    let (first, rest) = path.split_first()?;
    let root = merged.find_value(first).ok()?;
    let value = rest.iter().try_fold(&root, |value, name| value.as_dict()?.get(*name))?;
    match value {
        Value::String(_, text) => Some(format!("{:?}", mask_url(text))),
        Value::Num(_, number) => number.to_i128().map(|n| n.to_string()),
        _ => None,
    }
}

/// Every setting that exists, with a value of its form: the defaults, and something where the default is none.
fn schema() -> toml::Table {
    let mut config = Config::default();
    let pointer = || Some("/".to_owned());
    let input = &mut config.input;
    (input.format, input.records, input.symbol) = (pointer(), pointer(), pointer());
    (input.price, input.volume, input.ts) = (pointer(), pointer(), pointer());
    input.volume_required = Some(false);
    input.ts_unit = Some(TsUnit::Ms);
    input.price_zero = Some(PriceZero::Reject);
    (input.max_record_bytes, input.max_record_ticks) = (Some(1), Some(1));
    input.max_future = Some(Duration::ZERO);
    (config.output.dead_letters, config.output.late) = (pointer(), pointer());
    let redis = &mut config.redis;
    (redis.master, redis.username, redis.sentinel_username) = (pointer(), pointer(), pointer());
    (redis.password, redis.sentinel_password) = (Some("".into()), Some("".into()));
    redis.db = Some(0);
    let file = || Some(PathBuf::from("/"));
    (redis.password_file, redis.sentinel_password_file) = (file(), file());
    (redis.tls_ca_file, redis.tls_cert_file, redis.tls_key_file) = (file(), file(), file());
    #[allow(clippy::expect_used)]
    toml::Table::try_from(&config).expect("every setting is text, a number, a flag or a list")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LatePolicy, Scalar};

    const ANNOTATED: &str = include_str!("../../tickwatch.toml");

    /// Loads with `text` as the file and nothing else.
    fn load_file(text: &str) -> Result<Config, ConfigError> {
        load(text, &[], &Overrides::default())
    }

    fn load(text: &str, env: &[(&str, &str)], overrides: &Overrides) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tickwatch.toml");
        std::fs::write(&path, text).unwrap();
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Config::load_from(Some(&path), env, overrides)
    }

    fn message(loaded: Result<Config, ConfigError>) -> String {
        let text = loaded.unwrap_err().to_string();
        let dir = text.find('/').zip(text.find("tickwatch.toml"));
        dir.filter(|(from, to)| from < to).map_or(text.clone(), |(from, to)| text.replace(&text[from..to], ""))
    }

    #[test]
    fn the_annotated_file_says_the_defaults() {
        assert_eq!(load_file(ANNOTATED).unwrap(), Config::default());
    }

    #[test]
    fn the_annotated_file_names_every_setting() {
        fn check(table: &toml::Table, path: &mut Vec<String>) {
            for (name, value) in table {
                path.push(name.clone());
                if let toml::Value::Table(section) = value {
                    assert!(ANNOTATED.contains(&format!("[{}]", path.join("."))), "{path:?} is missing");
                    check(section, path);
                } else {
                    // A secret itself is better not in a file that is shown around: its file's name is there.
                    let name = if is_secret(name) { format!("{name}_file") } else { name.clone() };
                    let named = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{name} = "));
                    assert!(ANNOTATED.lines().any(named), "{path:?} is missing");
                }
                path.pop();
            }
        }
        check(&schema(), &mut Vec::new());
    }

    #[test]
    fn settings_that_are_commented_out_in_the_annotated_file_are_valid() {
        let is_setting = |line: &str| {
            let name = line.split(" = ").next().filter(|name| name.len() < line.len());
            name.is_some_and(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || "_.\"".contains(c)))
        };
        // A file with a secret has to be there to be read; TLS to be on for its files to be of use.
        let secret = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(secret.path(), "hunter2").unwrap();
        let uncommented: Vec<String> = ANNOTATED
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|rest| is_setting(rest)).unwrap_or(line))
            .map(|line| match line.split_once("\"/run/secrets/") {
                Some((setting, _)) => format!("{setting}{:?}", secret.path()),
                None => line.replace("tls = false", "tls = true"),
            })
            .collect();
        let config = load_file(&uncommented.join("\n")).unwrap();
        assert_eq!(config.kafka.client["sasl.password"], Scalar("hunter2".into()));
        assert!(config.input.price.is_some());
        assert_eq!(config.kafka.consumer["session.timeout.ms"], Scalar("6000".into()));
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let file = "namespace = \"file:\"\n[kafka]\ngroup = \"file\"\ntopic = \"file\"";
        let env = [("TICKWATCH_KAFKA__GROUP", "env"), ("TICKWATCH_KAFKA__TOPIC", "env")];
        let flags = Overrides { topic: Some("flag".into()), ..Overrides::default() };
        let config = load(file, &env, &flags).unwrap();
        assert_eq!(
            [&*config.namespace, &config.kafka.group, &config.kafka.topic, &config.output.candles],
            ["file:", "env", "flag", "candles"]
        );
    }

    #[test]
    fn a_variable_is_read_as_what_the_setting_is() {
        let env = [
            ("TICKWATCH_KAFKA__GROUP", "12"),
            ("TICKWATCH_CANDLES__INTERVALS", "1s, 5m"),
            ("TICKWATCH_CANDLES__LATE", "revise"),
            ("TICKWATCH_WORKER__MAX_BATCH", "7"),
            ("TICKWATCH_INPUT__VOLUME_REQUIRED", "true"),
            ("TICKWATCH_KAFKA__CONSUMER__SESSION_TIMEOUT_MS", "9000"),
        ];
        let config = load("", &env, &Overrides::default()).unwrap();
        assert_eq!(config.kafka.group, "12");
        assert_eq!(config.candles.intervals.len(), 2);
        assert_eq!(config.candles.late, LatePolicy::Revise);
        assert_eq!(config.worker.max_batch, 7);
        assert_eq!(config.input.volume_required, Some(true));
        assert_eq!(config.kafka.consumer["session.timeout.ms"], Scalar("9000".into()));
    }

    #[test]
    fn a_librdkafka_name_with_dots_is_one_name() {
        let config = load_file("[kafka.consumer]\n\"session.timeout.ms\" = 9000").unwrap();
        assert_eq!(config.kafka.consumer["session.timeout.ms"], Scalar("9000".into()));
    }

    #[test]
    fn an_unknown_setting_is_refused_with_its_place_and_the_nearest_known() {
        assert_eq!(
            message(load_file("[candles]\nintervall = []")),
            "tickwatch.toml: [candles] intervall is not a setting; did you mean intervals?"
        );
        assert_eq!(
            message(load("", &[("TICKWATCH_CANDLES__LATENES", "1s")], &Overrides::default())),
            "TICKWATCH_CANDLES__LATENES is not a setting; did you mean TICKWATCH_CANDLES__LATENESS?"
        );
        assert_eq!(
            message(load_file("[candels]\nlate = \"drop\"\n[zzz]")),
            "tickwatch.toml: candels is not a setting; did you mean candles?\n\
             tickwatch.toml: zzz is not a setting; the annotated tickwatch.toml lists them all"
        );
    }

    #[test]
    fn variables_of_a_kubernetes_service_called_tickwatch_are_ignored() {
        let env = [("TICKWATCH_PORT", "tcp://10.0.0.1:80"), ("TICKWATCH_SERVICE_PORT_HTTP", "80")];
        assert_eq!(load("", &env, &Overrides::default()).unwrap(), Config::default());
    }

    #[test]
    fn a_bad_value_is_told_with_its_place_and_what_is_allowed() {
        for (file, expected) in [
            (
                "[candles]\nlate = \"dropp\"",
                "tickwatch.toml: [candles] late = \"dropp\" is not allowed; write one of drop, divert, revise; did you mean drop?",
            ),
            (
                "[candles]\nlateness = 2",
                "tickwatch.toml: [candles] lateness is 2; it must be a duration with its unit, such as \"500ms\", \"2s\" or \"24h\"",
            ),
            (
                "[candles]\nkeep = \"soon\"",
                "tickwatch.toml: [candles] keep: \"soon\" is no duration (expected number at 0); write one such as \"500ms\", \"2s\" or \"24h\"",
            ),
            (
                "[candles]\nintervals = [\"1M\"]",
                "tickwatch.toml: [candles] intervals: interval \"1M\": months and years have no fixed length; use days or weeks, such as \"4w\"",
            ),
            (
                "[candles]\nintervals = [\"60s\", \"1m\"]",
                "tickwatch.toml: [candles] intervals: interval \"1m\" is listed twice; keep one of them",
            ),
            (
                "[http]\nlisten = \"8080\"",
                "tickwatch.toml: [http] listen = \"8080\": invalid socket address syntax",
            ),
            ("kafka = 1", "tickwatch.toml: kafka is 1; it must be a section"),
            ("a = [1", "tickwatch.toml:1: unclosed array, expected `]`"),
        ] {
            assert_eq!(message(load_file(file)), expected, "{file}");
        }
        let env = [("TICKWATCH_WORKER__MAX_BATCH", "many")];
        assert_eq!(
            message(load("", &env, &Overrides::default())),
            "TICKWATCH_WORKER__MAX_BATCH is \"many\"; it must be a whole number"
        );
    }

    #[test]
    fn a_secret_is_not_told_when_it_is_in_the_wrong_form_or_place() {
        for file in ["[redis]\npassword = 7331", "redis = \"redis://me:7331@db\"", "[redis]\nurl = [\"7331\"]"] {
            let told = message(load_file(file));
            assert!(!told.contains("7331"), "{told}");
        }
    }

    #[test]
    fn a_secret_is_read_from_the_file_that_is_named_without_its_line_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "hunter2\n").unwrap();
        let path = path.to_str().unwrap();
        let env = [
            ("TICKWATCH_REDIS__PASSWORD_FILE", path),
            ("TICKWATCH_KAFKA__CLIENT__SASL_PASSWORD_FILE", path),
            ("TICKWATCH_KAFKA__CLIENT__SASL_USERNAME", "me"),
        ];
        let config = load("", &env, &Overrides::default()).unwrap();
        assert_eq!(config.redis.password.unwrap().expose(), "hunter2");
        assert_eq!(config.kafka.client["sasl.password"], Scalar("hunter2".into()));
        assert!(!config.kafka.client.contains_key("sasl.password.file"));
    }

    #[test]
    fn a_secret_that_is_said_twice_or_cannot_be_read_names_its_setting() {
        let twice = "[redis]\npassword = \"7331\"\npassword_file = \"/run/secrets/redis\"";
        assert_eq!(
            message(load_file(twice)),
            "[redis] password and password_file are both set; remove one of them"
        );
        let missing = "[kafka.client]\n\"ssl.key.password.file\" = \"no/such/file\"";
        assert_eq!(
            message(load_file(missing)),
            "[kafka.client] ssl.key.password.file: cannot read the secret in no/such/file; check the path and that this user may read it"
        );
        let empty = "[redis]\npassword_file = \"/dev/null\"";
        assert_eq!(
            message(load_file(empty)),
            "[redis] password_file: /dev/null is empty; write the secret into it"
        );
    }

    #[test]
    fn nobody_else_is_served_unless_told() {
        assert!(Config::default().http.listen.ip().is_loopback());
    }

    #[test]
    fn a_file_that_was_named_must_exist() {
        let missing = Config::load(Some(Path::new("no/such/file.toml")), &Overrides::default());
        assert!(matches!(missing, Err(ConfigError::Read { .. })));
    }
}
