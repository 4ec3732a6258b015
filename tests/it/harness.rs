//! What the integration tests stand on: the shared servers, a [`Stage`] for each test, and helpers for topics,
//! records, Redis and workers.

mod certificates;
mod kafka;
mod run;
mod stage;
mod terminal;

pub(crate) use certificates::Certificates;
#[allow(unused_imports)] // for every module; not all use each
pub(crate) use kafka::{Isolation, Message, Record, consume_all, create_topic, produce};
pub(crate) use run::{Case, Module, Needs, USERS, run, skip};
pub(crate) use stage::{Stage, private_redis};
pub(crate) use terminal::Terminal;

#[allow(unused_imports)] // for every module; not all use each
pub(crate) use crate::common::worker::{PROGRAM, Worker, expect_status, free_address, process_of, program};
pub(crate) use crate::common::{connect, connect_to_primary, wait_until};

/// The cases of a module, named after it: `cases!(Needs::Redis; first_test, second_test)`.
macro_rules! cases {
    ($needs:expr; $($test:ident),+ $(,)?) => {
        vec![$($crate::harness::Case {
            name: concat!(module_path!(), "::", stringify!($test)),
            needs: $needs,
            test: $test,
        }),+]
    };
}
pub(crate) use cases;
