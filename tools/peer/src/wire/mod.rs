//! Packets as scripts write them: names of opcodes and fields, and the bytes behind them.

mod assemble;
mod describe;
mod names;

pub use assemble::{Damage, Draft, IcrcDamage, assemble};
pub(crate) use describe::is_usual;
pub use describe::{Fault, describe, fault_of};
pub use names::{AnswerKind, PacketName, Slot, nak_code, nak_name, packet_names, short_name, slot, slots_of};
