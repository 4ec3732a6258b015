//! Price alerts and candles on Kafka and Redis.
//!
//! Stateless workers consume ticks; small atomic Lua scripts keep every bit of state in Redis; any worker takes
//! a source partition over with nothing to rebuild.
//!
//! # Layout
//!
//! Dependencies point one way: domain ← input, store, kafka ← worker ← cli.
//!
//! | module | what it is |
//! |---|---|
//! | [`domain`] | what the words mean: decimals, windows, rules, batches, outputs; pure |
//! | [`input`] | from a record's bytes to ticks: JSON pointers and presets for exchange payloads |
//! | [`store`] | Redis: key names, the scripts with typed calls and replies, rules and candles for people |
//! | [`kafka`] | the source (consumer, rebalance), the sink (producer, transactions), committed and end offsets |
//! | [`worker`] | from record to output: the protocol of one source partition as a state machine without I/O, and the shell that carries its commands |
//! | [`config`] | `tickwatch.toml`, the environment, flags |
//! | [`telemetry`], [`http`] | logs and metrics; `/metrics`, `/healthz`, `/readyz` |
//! | [`dashboard`] | the live page: what Redis and Kafka hold of the whole group, as Server-Sent Events |
//! | [`sandbox`] | a private Redis and a private Kafka broker, for the demo and the tests |
//! | `failpoint` | where a test lets the process die |
//! | [`cli`] | one file a subcommand |

pub mod cli;
pub mod config;
pub mod dashboard;
pub mod domain;
mod failpoint;
pub mod http;
pub mod input;
pub mod kafka;
pub mod sandbox;
pub mod store;
pub mod telemetry;
pub mod worker;
