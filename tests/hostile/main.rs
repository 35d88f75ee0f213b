//! Tests of the library with hostile peers, extreme arguments and refused calls.

use roce_testing as common;

mod devices;
mod extremes;
mod fairness;
mod first_answer;
mod peers;
mod unchanged;
mod wakers;
#[path = "../verbs/world.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod world;
