//! Checks that every variable of a script is set before it is used.

use std::collections::BTreeSet;

use super::ast::{Action, Area, Expression, Piece, Script, Statement, Wanted};
use super::error::ScriptError;
use crate::suggest::suggestion;
use crate::wire::slots_of;

/// Variables that a connection sets.
const OF_CONNECTION: [&str; 6] = ["nic.qpn", "own.qpn", "psn", "peer_psn", "mtu", "qkey"];

/// The names that are known at a statement.
#[derive(Default)]
struct Known {
    variables: BTreeSet<String>,
    /// Memories and windows.
    memories: BTreeSet<String>,
    is_connected: bool,
}

/// Checks every statement in order.
pub(super) fn names(script: &Script) -> Result<(), ScriptError> {
    let mut known = Known::default();
    for statement in &script.statements {
        known.statement(statement).map_err(|what| ScriptError { place: statement.place.clone(), what })?;
    }
    Ok(())
}

impl Known {
    fn statement(&mut self, statement: &Statement) -> Result<(), String> {
        if !self.is_connected && needs_connection(&statement.action) {
            return Err("there is no connection yet; write `connect rc` before this line".to_owned());
        }
        match &statement.action {
            Action::Let(name, value) => {
                self.expression(value)?;
                self.variables.insert(name.clone());
            }
            Action::Repeat(count, variable, _) => {
                self.expression(count)?;
                self.variables.extend(variable.clone());
            }
            Action::Connect(connect) => {
                self.expressions(connect.numbers.iter().map(|(_, value)| value))?;
                self.is_connected = true;
                self.variables.extend(OF_CONNECTION.map(str::to_owned));
            }
            Action::Memory { name, len, .. } => {
                self.expression(len)?;
                self.memory(name);
            }
            Action::Window { name, area, .. } => {
                self.area(area)?;
                self.memory(name);
            }
            Action::Fill(area, pieces) | Action::CheckMemory(area, pieces) => {
                self.area(area)?;
                self.pieces(pieces)?;
            }
            Action::Revoke(name) => self.memory_exists(name)?,
            Action::Post(posting) => {
                self.expressions(posting.numbers.iter().map(|(_, value)| value))?;
                posting.area.iter().try_for_each(|area| self.area(area))?;
            }
            Action::Send(sending) => {
                self.expressions(sending.fields.iter().map(|(_, value)| value))?;
                self.expressions(sending.path.iter().chain(&sending.damage).map(|(_, value)| value))?;
                sending.payload.iter().try_for_each(|pieces| self.pieces(pieces))?;
            }
            Action::Expect(expecting) => {
                self.wanted(expecting.fields.iter().map(|(_, wanted)| wanted).chain(&expecting.bytes))?;
                self.expressions(expecting.within.iter().chain(&expecting.after))?;
                expecting.payload.iter().try_for_each(|pieces| self.pieces(pieces))?;
                if let (Some(name), Some(info)) = (&expecting.name, expecting.packet.opcode.info()) {
                    self.variables.extend(slots_of(info).map(|slot| format!("{name}.{}", slot.name)));
                    self.variables.insert(format!("{name}.bytes"));
                }
            }
            Action::Ignore(value)
            | Action::IgnoreFor(value)
            | Action::ExpectNothing(value)
            | Action::Wait(value)
            | Action::Counter(_, value) => self.expression(value)?,
            Action::CheckValues(left, _, right) => self.expressions([left, right].into_iter())?,
            Action::Completion(completing) => {
                self.expressions(completing.numbers.iter().map(|(_, value)| value))?;
                self.expressions(completing.within.iter().chain([&completing.id]))?;
            }
            Action::Rule(_)
            | Action::End(_)
            | Action::Modify(_)
            | Action::SendRaw(_)
            | Action::CheckState(_)
            | Action::NoCompletion
            | Action::Event(_) => {}
        }
        Ok(())
    }

    fn memory(&mut self, name: &str) {
        self.memories.insert(name.to_owned());
        self.variables.extend(["va", "rkey", "len"].map(|field| format!("{name}.{field}")));
    }

    fn memory_exists(&self, name: &str) -> Result<(), String> {
        if self.memories.contains(name) {
            return Ok(());
        }
        let suggestion = suggestion(name, self.memories.iter().map(String::as_str));
        Err(format!(
            "there is no memory `{name}`{suggestion}; write `memory {name} 4096 bytes` before this line"
        ))
    }

    fn area(&self, area: &Area) -> Result<(), String> {
        self.memory_exists(&area.memory)?;
        self.expressions([&area.from, &area.to].into_iter())
    }

    fn pieces(&self, pieces: &[Piece]) -> Result<(), String> {
        pieces.iter().try_for_each(|piece| match piece {
            Piece::Repeated(byte, count) => self.expressions([byte].into_iter().chain(count)),
            Piece::Literal(_) => Ok(()),
            Piece::Pattern(from, to) => self.expressions([from, to].into_iter()),
            Piece::Word(value) => self.expression(value),
        })
    }

    fn wanted<'a>(&self, mut all: impl Iterator<Item = &'a Wanted>) -> Result<(), String> {
        all.try_for_each(|wanted| match wanted {
            Wanted::Equal(value) | Wanted::Unequal(value) => self.expression(value),
            Wanted::Any => Ok(()),
            Wanted::Within(from, to) => self.expressions([from, to].into_iter()),
        })
    }

    fn expressions<'a>(&self, mut all: impl Iterator<Item = &'a Expression>) -> Result<(), String> {
        all.try_for_each(|expression| self.expression(expression))
    }

    fn expression(&self, expression: &Expression) -> Result<(), String> {
        match expression {
            Expression::Number(_) | Expression::Time(_) => Ok(()),
            Expression::Name(name) if self.variables.contains(name) => Ok(()),
            Expression::Name(name) => {
                let suggestion = suggestion(name, self.variables.iter().map(String::as_str));
                Err(format!("there is no variable `{name}`{suggestion}; set it with `let {name} = 1`"))
            }
            Expression::Negative(value) => self.expression(value),
            Expression::Binary(left, _, right) => {
                self.expression(left)?;
                self.expression(right)
            }
        }
    }
}

/// Returns whether a statement concerns the connection.
const fn needs_connection(action: &Action) -> bool {
    !matches!(
        action,
        Action::Rule(_)
            | Action::Let(..)
            | Action::Repeat(..)
            | Action::End(_)
            | Action::Connect(_)
            | Action::Memory { .. }
            | Action::Wait(_)
            | Action::CheckValues(..)
            | Action::Fill(..)
    )
}
