//! Observation from outside: counters and their meanings, advice and likely causes of failed work requests,
//! and safe display of text from peers.

mod advice;
mod causes;
mod codes;
mod counters;
mod drops;
mod explanation;
mod likely;
mod meaning;
mod publish;
mod published;
mod refusals;
mod survey;

pub use crate::driver::LastPacket;
pub use advice::{advice, explain};
pub use causes::with_causes;
pub use codes::{CodeKind, ErrorCode, codes, look_up};
pub use counters::{CounterSource, Snapshot};
pub use drops::explain_drops;
pub use explanation::Explanation;
pub use likely::{Likely, likely};
pub use meaning::meaning;
pub use published::{Published, PublishedExplanation};
pub use survey::{Survey, Unanswered, published, survey};

pub use roce_packet::foreign::{Text, is_harmless};

pub(crate) use publish::Publisher;
