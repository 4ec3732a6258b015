//! Redis: key names, the atomic scripts, rules and candles as people read and write them.

pub mod keys;
