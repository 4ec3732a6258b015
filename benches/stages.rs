//! What a tick costs, stage by stage: decoded from JSON, grouped into a batch, packed, applied on a real Redis.
//!
//! `cargo bench --bench stages`

#![allow(missing_docs)] // criterion's macros make undocumented items
#![allow(clippy::expect_used)] // a measurement that panics fails, which is what it should do

#[path = "shared/market.rs"]
mod market;
#[path = "shared/stages.rs"]
mod stages;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tickwatch::sandbox::Redis;
use tickwatch::store::pack::Packer;

use stages::{Grouping, START, Stand, TICKS, decode, values_of_a_batch};

/// Ticks of a symbol in a batch, where it is dense and where it is thin.
const DENSE: u64 = 100;
const THIN: u64 = 2;

fn before_redis(criterion: &mut Criterion) {
    let values = values_of_a_batch(DENSE);
    let mut group = criterion.benchmark_group("stages");
    group.throughput(Throughput::Elements(TICKS));

    group.bench_function("decode", |bencher| bencher.iter(|| decode(black_box(&values), 0)));

    let chunk = Arc::new(decode(&values, 0));
    let grouping = Grouping::new();
    group.bench_function("group", |bencher| {
        bencher.iter_batched(
            || Grouping::filled(&chunk),
            |buffer| grouping.group(&buffer, START),
            BatchSize::SmallInput,
        );
    });

    let built = grouping.group(&Grouping::filled(&chunk), START);
    group.bench_function("pack", |bencher| {
        let mut packer = Packer::default();
        bencher.iter(|| black_box(grouping.pack(&mut packer, &built)));
    });
    group.finish();
}

fn on_redis(criterion: &mut Criterion) {
    let redis = match Redis::start(&[]) {
        Ok(redis) => redis,
        Err(error) if error.is_missing() => return eprintln!("apply: skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let mut group = criterion.benchmark_group("stages");
    group.throughput(Throughput::Elements(TICKS)).sample_size(20);
    for (name, a_symbol) in [("apply, 100 ticks a symbol", DENSE), ("apply, 2 ticks a symbol", THIN)] {
        let mut stand = Stand::new(&redis.url(), a_symbol).expect("Redis runs");
        group.bench_function(name, |bencher| bencher.iter_custom(|count| time_of_applying(&mut stand, count)));
    }
    group.finish();
}

/// Of `count` batches; making them, closing windows and dropping outputs is left out.
fn time_of_applying(stand: &mut Stand, count: u64) -> Duration {
    let mut took = Duration::ZERO;
    for _ in 0..count {
        let built = stand.next();
        let begun = Instant::now();
        let applied = stand.apply(&built).expect("the script runs");
        took += begun.elapsed();
        stand.settle(&built, applied).expect("the scripts run");
    }
    took
}

criterion_group!(benches, before_redis, on_redis);
criterion_main!(benches);
