//! Redis: key names, the atomic scripts, rules and candles as people read and write them.

pub mod check;
pub mod keys;
pub mod pool;
