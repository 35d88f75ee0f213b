//! What the page of roce shows, computed by the crates that the command uses.
//!
//! Every function takes and returns plain text and bytes, and most return JSON, so that tests call them
//! without a browser. [`call`] finds a function by its name, and `export` passes calls of JavaScript to it.
// Names that a page can call are an unsafe attribute.
#![cfg_attr(not(target_family = "wasm"), forbid(unsafe_code))]

pub mod call;
pub mod capture;
pub mod congestion;
mod ethernet;
#[cfg(target_family = "wasm")]
mod export;
pub mod frame;
pub mod hosts;
pub mod ladder;
pub mod lessons;
pub mod program;
