//! Redis: key names, the atomic scripts, rules and candles as people read and write them.

pub mod candles;
pub mod check;
pub mod connection;
pub mod error;
pub mod keys;
pub mod pack;
pub mod pool;
mod reply;
pub mod rules;
mod scan;
pub mod scripts;
mod sentinel;
pub mod sources;

pub use error::StoreError;
pub use keys::Keys;
