//! What a tick costs on its way to Redis, stage by stage: decoded from JSON, grouped into a batch, packed.
//!
//! `cargo bench --bench stages`

#![allow(missing_docs)] // criterion's macros make undocumented items

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tickwatch::config::{Config, InputConfig};
use tickwatch::domain::{Chunk, Offset, Position, Watermark};
use tickwatch::input::{ChunkBuilder, Decoder, RawRecord};
use tickwatch::store::pack::Packer;
use tickwatch::worker::batching::{BatchSettings, Bounds, Buffer};
use tickwatch::worker::supervisor::settings_of;

const TICKS: i64 = 10_000;
const SYMBOLS: i64 = 100;
const START: i64 = 1_700_000_000_000;

fn values() -> Vec<String> {
    (0..TICKS)
        .map(|i| {
            let (symbol, price, ts) = (i % SYMBOLS, 9_500 + i % 17, START + i / SYMBOLS * 20);
            format!(r#"{{"symbol":"SYM{symbol}","price":{price}.25,"volume":100,"ts":{ts}}}"#)
        })
        .collect()
}

fn decode(values: &[String]) -> Chunk {
    let decoder = Decoder::new(&InputConfig::default()).expect("the default mapping is valid");
    let mut builder = ChunkBuilder::new(Arc::new(decoder));
    for (offset, value) in values.iter().enumerate() {
        builder.push(RawRecord {
            offset: Offset(offset as i64),
            timestamp: START,
            broker_time: false,
            key: None,
            value: Some(value.as_bytes()),
            headers: None,
        });
    }
    builder.take()
}

fn batch_settings() -> BatchSettings {
    settings_of(&Config::default()).batch
}

fn bounds() -> Bounds {
    Bounds { ticks: usize::MAX, records: usize::MAX, until: None, clock: START + 3_600_000 }
}

fn stages(criterion: &mut Criterion) {
    let values = values();
    let mut group = criterion.benchmark_group("stages");
    group.throughput(Throughput::Elements(TICKS as u64));

    group.bench_function("decode", |bencher| bencher.iter(|| decode(black_box(&values))));

    let chunk = Arc::new(decode(&values));
    let settings = batch_settings();
    let position = Position { offset: Offset(0), watermark: Watermark::NEVER };
    let filled = || {
        let mut buffer = Buffer::default();
        buffer.push(Arc::clone(&chunk));
        buffer
    };
    group.bench_function("group", |bencher| {
        bencher.iter_batched(
            filled,
            |buffer| buffer.next_batch(&settings, position, None, bounds()),
            BatchSize::SmallInput,
        );
    });

    let built = filled().next_batch(&settings, position, None, bounds()).expect("the buffer is not empty");
    group.bench_function("pack", |bencher| {
        let mut packer = Packer::default();
        bencher.iter(|| {
            for symbol in &built.batch.symbols {
                black_box(packer.pack(symbol, built.batch.from, &settings.intervals));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, stages);
criterion_main!(benches);
