//! What is to be reached, and whether it was.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::contenders::{Contender, Form, Once};
use crate::latency::{Latency, Way};
use crate::report::Report;
use crate::scenarios::{
    BYSTANDER, HOT_90, INTERVALS_5, LEVEL, NAIVE, PARTITIONS_1, PARTITIONS_12, RULES_1000, RULES_1000000, STANDARD,
    SYMBOLS_10, SYMBOLS_100000, THIN, UNIFORM,
};
use crate::statistics::Figure;
use crate::takeover::Next;
use crate::throughput::Run;

/// A line of the table.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    /// `None`: not measured in this run.
    pub(crate) figure: Option<Figure>,
    pub(crate) unit: &'static str,
    /// `None`: told for its own sake.
    pub(crate) goal: Option<Goal>,
    pub(crate) met: Option<bool>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Goal::AtLeast(bound) => value >= bound,
            Goal::AtMost(bound) => value <= bound,
        }
    }
}

const MIB: f64 = (1 << 20) as f64;
/// Librdkafka's `session.timeout.ms` by default, in seconds.
const SESSION_TIMEOUT: f64 = 6.0;
/// What a takeover may add to it.
const TAKEOVER: f64 = 0.2;
/// More than this is not flat.
const FLAT: f64 = 1.1;

const AT_LEAST_ONCE: Contender = Contender::Tickwatch(Once::AtLeast);
const EXACTLY_ONCE: Contender = Contender::Tickwatch(Once::Exactly);

type OfLatency = fn(&Latency) -> f64;

/// Every line. Figures that compare do so within each repetition.
pub(crate) fn rows(report: &Report) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |what: &str, unit, goal: Option<Goal>, figure: Option<Figure>| {
        let met = goal.zip(figure).map(|(goal, figure)| goal.is_met(figure.median));
        rows.push(Row { what: what.to_owned(), figure, unit, goal, met });
    };
    let (at_least, at_most) = (|bound| Some(Goal::AtLeast(bound)), |bound| Some(Goal::AtMost(bound)));
    let efficiency = |run: &Run| run.ticks_per_cpu_second;
    let cost = |run: &Run| 1.0 / run.ticks_per_cpu_second;

    let best_streams = |once| {
        move |repetition| {
            let of = |form| report.value(STANDARD, Contender::Streams(form, once), repetition, efficiency);
            best(f64::max, of(Form::Processor), of(Form::Dsl))
        }
    };
    for (contender, once, name) in
        [(AT_LEAST_ONCE, Once::AtLeast, "at_least_once"), (EXACTLY_ONCE, Once::Exactly, "exactly once")]
    {
        row(
            &format!("ticks per CPU-second, {name}, v the best Kafka Streams"),
            "×",
            at_least(3.0),
            report
                .ratio(|repetition| report.value(STANDARD, contender, repetition, efficiency), best_streams(once)),
        );
    }
    let raw = |repetition| report.value(STANDARD, Contender::Raw { parse: true }, repetition, efficiency);
    // What no service on this client can go beyond, whatever it does with its ticks.
    row("the same, the raw limit (consume and parse)", "×", None, report.ratio(raw, best_streams(Once::AtLeast)));
    for (contender, name, goal) in
        [(AT_LEAST_ONCE, "at_least_once", at_least(60.0)), (EXACTLY_ONCE, "exactly once", None)]
    {
        let percent = |repetition| report.value(STANDARD, contender, repetition, |run| 100.0 * efficiency(run));
        row(
            &format!("ticks per CPU-second, {name}, v the raw limit (consume and parse)"),
            "%",
            goal,
            report.ratio(percent, raw),
        );
    }
    row(
        "ticks per wall second, v naive",
        "×",
        at_least(20.0),
        report.ratio(
            |repetition| report.value(STANDARD, AT_LEAST_ONCE, repetition, |run| run.ticks_per_second),
            |repetition| report.value(NAIVE, Contender::Naive, repetition, |run| run.ticks_per_second),
        ),
    );

    let percentiles: [(&str, OfLatency); 2] = [("p50", |found| found.p50_ms), ("p99", |found| found.p99_ms)];
    for (contender, name, goal) in
        [(AT_LEAST_ONCE, "at_least_once", at_most(3.0)), (EXACTLY_ONCE, "exactly once", None)]
    {
        for (percentile, of) in percentiles {
            row(
                &format!("tick → notification, {name}, {percentile}, v one trip through the broker"),
                "×",
                goal,
                report.ratio(
                    |repetition| report.latency(Way::Through(contender), repetition, of),
                    |repetition| report.latency(Way::Plain, repetition, of),
                ),
            );
        }
    }
    for (percentile, of) in percentiles {
        row(
            &format!("tick → notification, {percentile}: Kafka Streams exactly_once_v2 v exactly once"),
            "×",
            at_least(4.0),
            report.ratio(
                |repetition| {
                    let streams = |form| Way::Through(Contender::Streams(form, Once::Exactly));
                    let of = |form| report.latency(streams(form), repetition, of);
                    best(f64::min, of(Form::Processor), of(Form::Dsl))
                },
                |repetition| report.latency(Way::Through(EXACTLY_ONCE), repetition, of),
            ),
        );
    }

    let against = |scenario: &'static str, base: &'static str, of: fn(&Run) -> f64| {
        report.ratio(
            |repetition| report.value(scenario, AT_LEAST_ONCE, repetition, of),
            |repetition| report.value(base, AT_LEAST_ONCE, repetition, of),
        )
    };
    row(
        "cost per tick, 1,000,000 rules on one symbol v 1,000",
        "×",
        at_most(1.2),
        against(RULES_1000000, RULES_1000, cost),
    );
    row(
        "ticks per CPU-second, 90% of ticks on one symbol v uniform",
        "×",
        at_least(1.0),
        against(HOT_90, UNIFORM, efficiency),
    );
    row("cost per tick, 100,000 symbols v 1,000", "×", at_most(2.0), against(SYMBOLS_100000, UNIFORM, cost));
    for (scenario, name) in [
        (SYMBOLS_10, "10 symbols v 1,000"),
        (THIN, "100,000 symbols with a candle a tick v 1,000 with one every 50"),
        (PARTITIONS_1, "1 partition v 6"),
        (PARTITIONS_12, "12 partitions v 6"),
        (LEVEL, "level rules v edge rules"),
        (INTERVALS_5, "5 intervals v 1"),
    ] {
        row(&format!("cost per tick, {name}"), "×", None, against(scenario, UNIFORM, cost));
    }

    for (symbols, name) in [(1_000, "1,000"), (200_000, "200,000")] {
        row(
            &format!("first output of a new owner after SIGKILL, {name} symbols"),
            "s",
            at_most(SESSION_TIMEOUT + TAKEOVER),
            report.takeover(symbols, Next::StandBy),
        );
    }
    row(
        "the same, 200,000 symbols less 1,000",
        "s",
        at_most(TAKEOVER),
        report
            .takeover(200_000, Next::StandBy)
            .zip(report.takeover(1_000, Next::StandBy))
            .and_then(|(many, few)| Figure::of([many.median - few.median])),
    );
    row(
        "first output after SIGKILL and restart, static membership, 200,000 symbols",
        "s",
        at_most(1.0),
        report.takeover(200_000, Next::Restarted),
    );

    let bytes = report.bytes;
    let mut in_redis = |what: &str, most: Option<f64>, value: Option<f64>| {
        row(
            &format!("Redis bytes: {what}"),
            "",
            most.map(Goal::AtMost),
            value.and_then(|value| Figure::of([value])),
        );
    };
    in_redis("an open candle", Some(200.0), bytes.map(|bytes| bytes.candle));
    in_redis("its place among the windows to close", None, bytes.map(|bytes| bytes.due));
    in_redis("a rule, of 100,000 on a symbol", Some(120.0), bytes.map(|bytes| bytes.rule_of_many));
    in_redis("a rule, of 10 on a symbol", Some(120.0), bytes.map(|bytes| bytes.rule_of_few));
    in_redis("a rule's options (once)", None, bytes.map(|bytes| bytes.options));
    in_redis("an idle symbol", Some(150.0), bytes.map(|bytes| bytes.idle_symbol));

    let of_12 = |of: fn(&Run) -> f64| {
        let repetitions = report.repetitions();
        Figure::of(repetitions.into_iter().filter_map(|n| report.value(PARTITIONS_12, AT_LEAST_ONCE, n, of)))
    };
    row(
        "worker memory, 12 partitions, full backlog",
        "MiB",
        at_most(150.0),
        of_12(|run| run.worker_peak as f64 / MIB),
    );
    row("the same, second half of the run v first", "×", at_most(FLAT), of_12(|run| run.worker_growth));

    for (contender, name) in [(AT_LEAST_ONCE, "at_least_once"), (EXACTLY_ONCE, "exactly once")] {
        let times =
            |of: fn(&crate::bystander::Times) -> f64| {
                let repetitions = report.repetitions();
                Figure::of(repetitions.into_iter().filter_map(|repetition| {
                    report.run(BYSTANDER, contender, repetition)?.bystander.as_ref().map(of)
                }))
            };
        row(&format!("somebody else's GET under full load, {name}, p50"), "ms", None, times(|t| t.p50_us / 1e3));
        row(&format!("somebody else's GET under full load, {name}, p99"), "ms", None, times(|t| t.p99_us / 1e3));
    }
    rows
}

fn best(of_two: fn(f64, f64) -> f64, one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(of_two(one, other)),
        (one, other) => one.or(other),
    }
}

impl Report {
    /// Numbers of the repetitions that anything was measured in.
    fn repetitions(&self) -> BTreeSet<u32> {
        let of_runs = self.runs.iter().map(|run| run.repetition);
        of_runs.chain(self.latencies.iter().map(|latency| latency.repetition)).collect()
    }

    fn run(&self, scenario: &str, contender: Contender, repetition: u32) -> Option<&Run> {
        let is_it =
            |run: &&Run| run.scenario == scenario && run.contender == contender && run.repetition == repetition;
        self.runs.iter().find(is_it)
    }

    fn value(
        &self,
        scenario: &str,
        contender: Contender,
        repetition: u32,
        of: impl Fn(&Run) -> f64,
    ) -> Option<f64> {
        self.run(scenario, contender, repetition).map(of)
    }

    fn latency(&self, way: Way, repetition: u32, of: impl Fn(&Latency) -> f64) -> Option<f64> {
        let found = self.latencies.iter().find(|found| found.way == way && found.repetition == repetition);
        found.map(of)
    }

    /// One over the other within each repetition that has both.
    fn ratio(&self, over: impl Fn(u32) -> Option<f64>, under: impl Fn(u32) -> Option<f64>) -> Option<Figure> {
        let ratios =
            self.repetitions().into_iter().filter_map(|repetition| Some(over(repetition)? / under(repetition)?));
        Figure::of(ratios)
    }

    fn takeover(&self, symbols: u32, next: Next) -> Option<Figure> {
        let found = self.takeovers.iter().filter(|found| found.symbols == symbols && found.next == next);
        Figure::of(found.map(|found| found.seconds))
    }
}
