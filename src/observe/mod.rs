//! Observation from outside: counters and their meanings, advice and likely causes of failed work requests,
//! and safe display of text from peers.

mod advice;
mod causes;
mod counters;
mod drops;
mod explanation;
mod meaning;
mod publish;
mod published;
mod refusals;
mod survey;

pub use crate::driver::LastPacket;
pub use advice::{advice, explain};
pub use causes::with_causes;
pub use counters::{CounterSource, Snapshot};
pub use drops::explain_drops;
pub use explanation::Explanation;
pub use meaning::meaning;
pub use published::{Published, PublishedExplanation};
pub use survey::{Survey, Unanswered, published, survey};

pub use roce_codes::{CodeKind, ErrorCode, Likely, codes, likely, look_up};
pub use roce_packet::foreign::{Text, is_harmless};

pub(crate) use publish::Publisher;
