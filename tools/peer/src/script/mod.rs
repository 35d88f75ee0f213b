//! The language: lines become statements, with the line of each.
//!
//! ```
//! use roce_peer::script::{Action, Files, Script};
//!
//! let files = Files::of([("a.roce", "# A WRITE is acknowledged.\nconnect rc psn=100\nwait 1ms\n")]);
//! let script = Script::load("a.roce", &files)?;
//! assert_eq!(script.title, "A WRITE is acknowledged.");
//! assert!(matches!(script.statements[1].action, Action::Wait(_)));
//! # Ok::<(), roce_peer::script::ScriptError>(())
//! ```

mod ast;
mod check;
mod cursor;
mod error;
mod lexer;
mod load;
mod packets;
mod parser;

pub use ast::{
    Action, Area, Completing, Connect, Expecting, Expression, Operator, Piece, Posting, Script, Sending,
    Statement, Verb, Wanted,
};
pub use error::{Place, ScriptError};
pub use load::Files;
pub(crate) use parser::EVENTS;

#[cfg(test)]
mod tests;
