//! Rules in files: JSON lines, CSV and TOML, read and written. Pure: no files, no Redis, no clock.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::super::text::{duration, parse_duration, parse_time, utc};
use crate::domain::Trigger;
use crate::store::rules::{Rule, RuleOptions, parse_threshold};

/// The form of a file of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// One JSON object a line
    Jsonl,
    /// With a header line
    Csv,
    /// `[[rule]]` tables
    Toml,
}

impl Format {
    /// The form a file's name tells.
    pub(super) fn of(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()? {
            "jsonl" | "ndjson" | "json" => Some(Format::Jsonl),
            "csv" => Some(Format::Csv),
            "toml" => Some(Format::Toml),
            _ => None,
        }
    }
}

/// What is wrong with one rule of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// Line, from 1.
    pub(super) line: usize,
    /// What is wrong there.
    pub(super) message: String,
}

/// Reads a whole file: all rules are good, or every problem is told by line.
pub(super) fn read(format: Format, text: &str) -> Result<Vec<Rule>, Vec<Problem>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let read = match format {
        Format::Jsonl => read_jsonl(text),
        Format::Csv => read_csv(text),
        Format::Toml => read_toml(text),
    };
    let mut rules: Vec<Rule> = Vec::new();
    let mut problems = Vec::new();
    let mut first_line: HashMap<(String, String), usize> = HashMap::new();
    for (line, rule) in read {
        match rule {
            Err(e) => problems.push(Problem { line, message: format!("{e:#}") }),
            Ok(rule) => match first_line.insert((rule.symbol.clone(), rule.id.clone()), line) {
                None => rules.push(rule),
                Some(first) => problems.push(Problem {
                    line,
                    message: format!("rule {:?} of {} was already given in line {first}", rule.id, rule.symbol),
                }),
            },
        }
    }
    if problems.is_empty() { Ok(rules) } else { Err(problems) }
}

/// The rules as a file that [`read`] takes back.
pub(super) fn write(format: Format, rules: &[Rule]) -> Result<String> {
    match format {
        Format::Jsonl => write_jsonl(rules),
        Format::Csv => write_csv(rules),
        Format::Toml => write_toml(rules),
    }
}

/// One rule of a file. `N` is how the format holds what may be a number or text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row<N> {
    symbol: String,
    trigger: String,
    op: String,
    threshold: N,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    once: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cooldown: Option<N>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<N>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// A number, or text, as it was written.
enum Scalar {
    Number(String),
    Text(String),
}

impl Scalar {
    fn into_text(self) -> String {
        match self {
            Scalar::Number(text) | Scalar::Text(text) => text,
        }
    }
}

impl<N> Row<N> {
    fn into_rule(self, scalar: impl Fn(N) -> Result<Scalar>) -> Result<Rule> {
        let threshold = scalar(self.threshold).context("threshold")?.into_text();
        let cooldown = self.cooldown.map(|value| match scalar(value)? {
            Scalar::Number(ms) => ms.parse().with_context(|| format!("{ms} is not a whole number of ms")),
            Scalar::Text(text) => parse_duration(&text),
        });
        let expires = self.expires.map(|value| parse_time(&scalar(value)?.into_text()));
        let rule = Rule {
            symbol: self.symbol,
            trigger: parse_trigger(&self.trigger)?,
            op: self.op.parse()?,
            threshold: parse_threshold(&threshold)?,
            id: self.id,
            options: RuleOptions {
                once: self.once.unwrap_or(false),
                cooldown: cooldown.transpose().context("cooldown")?,
                expires: expires.transpose().context("expires")?,
                note: self.note.filter(|note| !note.is_empty()),
            },
        };
        rule.validate()?;
        Ok(rule)
    }

    /// The row of a rule: `number` for numbers, `cooldown` and `expires` for times in ms.
    fn of(
        rule: &Rule,
        number: impl Fn(String) -> Result<N>,
        cooldown: impl Fn(i64) -> Result<N>,
        expires: impl Fn(i64) -> Result<N>,
    ) -> Result<Row<N>> {
        let options = &rule.options;
        Ok(Row {
            symbol: rule.symbol.clone(),
            trigger: rule.trigger.to_string(),
            op: rule.op.to_string(),
            threshold: number(rule.threshold.to_string())?,
            id: rule.id.clone(),
            once: options.once.then_some(true),
            cooldown: options.cooldown.map(cooldown).transpose()?,
            expires: options.expires.map(expires).transpose()?,
            note: options.note.clone(),
        })
    }
}

/// Reads a trigger as written in keys, files and flags.
pub(super) fn parse_trigger(text: &str) -> Result<Trigger> {
    [Trigger::Edge, Trigger::Level]
        .into_iter()
        .find(|trigger| trigger.as_str() == text)
        .ok_or_else(|| anyhow!("{text:?} is not a trigger: use edge or level"))
}

type Lines = Vec<(usize, Result<Rule>)>;

fn read_jsonl(text: &str) -> Lines {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    lines.map(|(line, number)| (number, read_json(line))).collect()
}

fn read_json(line: &str) -> Result<Rule> {
    let row: Row<Box<RawValue>> = serde_json::from_str(line).map_err(|e| without_line(&e))?;
    row.into_rule(|raw| {
        if raw.get().starts_with('"') {
            return Ok(Scalar::Text(serde_json::from_str(raw.get())?));
        }
        Ok(Scalar::Number(raw.get().to_owned()))
    })
}

/// The parser's message; its line is always 1, the file's line is told beside it.
fn without_line(e: &serde_json::Error) -> anyhow::Error {
    let message = e.to_string();
    let message = message.split_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    anyhow!("{message} (column {})", e.column())
}

/// A rule as JSON, the same in listings and in files; times in ms, as in Redis.
pub(super) fn to_json(rule: &Rule) -> Result<impl Serialize + use<>> {
    let raw = |text: String| Ok(RawValue::from_string(text)?);
    Row::of(rule, raw, |ms| raw(ms.to_string()), |ms| raw(ms.to_string()))
}

fn write_jsonl(rules: &[Rule]) -> Result<String> {
    let mut text = String::new();
    for rule in rules {
        text.push_str(&serde_json::to_string(&to_json(rule)?)?);
        text.push('\n');
    }
    Ok(text)
}

fn read_csv(text: &str) -> Lines {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header = match reader.headers() {
        Ok(header) => header.clone(),
        Err(e) => return vec![(1, Err(e.into()))],
    };
    let mut lines = Lines::new();
    for record in reader.records() {
        let line = |position: Option<&csv::Position>| position.map_or(1, |p| p.line() as usize);
        lines.push(match record {
            Err(e) => (line(e.position()), Err(csv_error(&e))),
            Ok(record) => (line(record.position()), read_csv_record(&record, &header)),
        });
    }
    lines
}

fn read_csv_record(record: &csv::StringRecord, header: &csv::StringRecord) -> Result<Rule> {
    let row: Row<String> = record.deserialize(Some(header)).map_err(|e| csv_error(&e))?;
    row.into_rule(|text| Ok(Scalar::Text(text)))
}

/// The message without the record's position, which is told beside it.
fn csv_error(e: &csv::Error) -> anyhow::Error {
    match e.kind() {
        csv::ErrorKind::Deserialize { err, .. } => anyhow!("{}", err.kind()),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            anyhow!("has {len} fields, the header has {expected_len}")
        }
        _ => anyhow!("{e}"),
    }
}

const CSV_HEADER: [&str; 9] = ["symbol", "trigger", "op", "threshold", "id", "once", "cooldown", "expires", "note"];

fn write_csv(rules: &[Rule]) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(CSV_HEADER)?;
    for rule in rules {
        let row = Row::of(rule, Ok, |ms| Ok(duration(ms)), |ms| Ok(utc(ms)))?;
        let once = row.once.map_or("", |_| "true").to_owned();
        let [cooldown, expires, note] = [row.cooldown, row.expires, row.note].map(Option::unwrap_or_default);
        let fields = [row.symbol, row.trigger, row.op, row.threshold, row.id, once, cooldown, expires, note];
        writer.write_record(fields)?;
    }
    let bytes = writer.into_inner().map_err(|e| anyhow!("{}", e.error()))?;
    Ok(String::from_utf8(bytes)?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TomlFile {
    #[serde(default)]
    rule: Vec<toml::Spanned<toml::Value>>,
}

fn read_toml(text: &str) -> Lines {
    let line_of = |byte: usize| text[..byte.min(text.len())].matches('\n').count() + 1;
    let file: TomlFile = match toml::from_str(text) {
        Ok(file) => file,
        Err(e) => return vec![(line_of(e.span().map_or(0, |span| span.start)), Err(anyhow!("{}", e.message())))],
    };
    let mut lines = Lines::new();
    let (mut line, mut counted) = (1, 0);
    for rule in file.rule {
        let start = rule.span().start;
        line += text.get(counted..start).map_or(0, |between| between.matches('\n').count());
        counted = start.max(counted);
        lines.push((line, read_toml_rule(rule.into_inner())));
    }
    lines
}

fn read_toml_rule(value: toml::Value) -> Result<Rule> {
    let row: Row<toml::Value> = value.try_into().map_err(|e: toml::de::Error| anyhow!("{}", e.message()))?;
    row.into_rule(|value| match value {
        toml::Value::String(text) => Ok(Scalar::Text(text)),
        toml::Value::Datetime(time) => Ok(Scalar::Text(time.to_string())),
        toml::Value::Integer(number) => Ok(Scalar::Number(number.to_string())),
        toml::Value::Float(number) => Ok(Scalar::Number(number.to_string())),
        other => Err(anyhow!("is {}, not a number or text", other.type_str())),
    })
}

fn write_toml(rules: &[Rule]) -> Result<String> {
    #[derive(Serialize)]
    struct File {
        rule: Vec<Row<toml::Value>>,
    }
    let number = |text: String| {
        let integer = text.parse().map(toml::Value::Integer);
        Ok(integer.or_else(|_| text.parse().map(toml::Value::Float))?)
    };
    let text = |text: String| Ok(toml::Value::String(text));
    let row = |rule: &Rule| Row::of(rule, number, |ms| text(duration(ms)), |ms| text(utc(ms)));
    if rules.is_empty() {
        return Ok(String::new());
    }
    Ok(toml::to_string(&File { rule: rules.iter().map(row).collect::<Result<_>>()? })?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{Op, Price};
    use crate::store::rules::MAX_INTEGER;

    fn lines(result: Result<Vec<Rule>, Vec<Problem>>) -> Vec<usize> {
        result.unwrap_err().iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn one_rule_reads_the_same_in_every_format() {
        let csv = "symbol,trigger,op,threshold,id,once,cooldown,expires,note\n\
                   BBCA,edge,>=,9500.5,alice 1,true,5m,2026-12-31,\"a, b\"\n";
        let json = r#"{"symbol":"BBCA","trigger":"edge","op":">=","threshold":9500.5,"id":"alice 1","once":true,
            "cooldown":300000,"expires":1798675200000,"note":"a, b"}"#
            .replace('\n', "");
        let toml = r#"
            [[rule]]
            symbol = "BBCA"
            trigger = "edge"
            op = ">="
            threshold = 9500.5
            id = "alice 1"
            once = true
            cooldown = "5m"
            expires = 2026-12-31T00:00:00Z
            note = "a, b"
            "#;
        let rule = read(Format::Csv, csv).unwrap();
        assert_eq!(rule[0].options.expires, Some(1_798_675_200_000));
        assert_eq!(rule[0].options.cooldown, Some(300_000));
        assert_eq!(read(Format::Jsonl, &json).unwrap(), rule);
        assert_eq!(read(Format::Toml, toml).unwrap(), rule);
    }

    #[test]
    fn every_bad_line_is_told_with_its_number() {
        let csv = "symbol,trigger,op,threshold,id\n\
                   BBCA,edge,>=,9500,a\n\
                   BBCA,sometimes,>=,9500,b\n\
                   BBCA,edge,=>,9500,c\n\
                   BBCA,edge,>=,lots,d\n\
                   BBCA,edge,>=\n\
                   BBCA,edge,>=,1,\n";
        assert_eq!(lines(read(Format::Csv, csv)), [3, 4, 5, 6, 7]);
        let jsonl = "\n{\"symbol\":\"BBCA\"}\nnonsense\n";
        assert_eq!(lines(read(Format::Jsonl, jsonl)), [2, 3]);
        let toml = "[[rule]]\nsymbol = \"A\"\n\n[[rule]]\nsymbol = 1\n";
        assert_eq!(lines(read(Format::Toml, toml)), [1, 4]);
        assert_eq!(lines(read(Format::Toml, "[[rule]]\nsymbol = \"A\"\n[[")), [3]);
    }

    #[test]
    fn unknown_fields_are_refused() {
        let line = r#"{"symbol":"A","trigger":"edge","op":"<","threshold":1,"id":"x","onse":true}"#;
        let problems = read(Format::Jsonl, line).unwrap_err();
        assert!(problems[0].message.contains("unknown field `onse`"), "{problems:?}");
    }

    #[test]
    fn an_id_given_twice_for_a_symbol_is_told_with_both_lines() {
        let csv = "symbol,trigger,op,threshold,id\nA,edge,<,1,x\nB,edge,<,1,x\nA,level,>,2,x\n";
        let problems = read(Format::Csv, csv).unwrap_err();
        assert_eq!(problems, [Problem { line: 4, message: "rule \"x\" of A was already given in line 2".into() }]);
    }

    #[test]
    fn a_cooldown_without_a_unit_is_refused_as_text() {
        let csv = "symbol,trigger,op,threshold,id,cooldown\nA,edge,<,1,x,30\n";
        assert_eq!(lines(read(Format::Csv, csv)), [2]);
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let options = (
            any::<bool>(),
            proptest::option::of(0..=MAX_INTEGER),
            proptest::option::of(-MAX_INTEGER..=MAX_INTEGER),
            proptest::option::of("(?s).{1,30}"),
        );
        let threshold = (-99_999_999_999_999_i64..=99_999_999_999_999, 0..=9_u32);
        let threshold = threshold.prop_map(|(n, scale)| {
            let text = format!("{n}e-{scale}");
            Price::parse(&text).unwrap().value
        });
        let trigger = prop_oneof![Just(Trigger::Edge), Just(Trigger::Level)];
        ("(?s).{1,12}", trigger, proptest::sample::select(&Op::ALL[..]), threshold, r"\PC{1,20}", options).prop_map(
            |(symbol, trigger, op, threshold, id, (once, cooldown, expires, note))| Rule {
                symbol,
                trigger,
                op,
                threshold,
                id,
                options: RuleOptions { once, cooldown, expires, note },
            },
        )
    }

    proptest! {
        #[test]
        fn what_export_writes_apply_reads_back(rules in proptest::collection::vec(any_rule(), 0..5)) {
            for format in [Format::Jsonl, Format::Csv, Format::Toml] {
                let text = write(format, &rules).unwrap();
                let back = read(format, &text);
                prop_assert_eq!(back.as_ref(), Ok(&rules), "{}", text);
            }
        }
    }
}
