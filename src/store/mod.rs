//! Redis: key names, the atomic scripts, rules and candles as people read and write them.

pub mod candles;
pub mod keys;
pub mod rules;
mod scan;
pub mod sources;
