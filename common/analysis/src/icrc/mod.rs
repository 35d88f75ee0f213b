//! Names the mistake that leads to a wrong ICRC.
//!
//! A sender that computes the ICRC incorrectly usually makes one of a few mistakes: it forgets to mask a
//! field, computes the ICRC before the lengths are final, or uses another CRC. A device on the path changes a
//! field that the ICRC covers, or damages a bit. [`examine`] tries about 2,000 such computations, and reports
//! those that give exactly the value in the packet. It also searches for other values of one field
//! (Identification, ports, lengths, PSN) and for one damaged byte. Because a CRC is linear, these searches
//! cost one step for each byte of the packet.
//!
//! A search finds an explanation for some random values, too. Therefore its results are
//! [probable](Certainty::Probable), until a [`Tally`] has seen the same mistake in several packets.
//!
//! ```
//! use hex_literal::hex;
//! use roce_analysis::icrc::{Hints, Mistake, Verdict, examine};
//! use roce_packet::outer::{Link, Outer};
//!
//! // A congestion notification, whose ICRC is in the wrong byte order.
//! let packet = hex!(
//!     "45c2003c718c4000401191610a0011010a001201"
//!     "000012b700280000"
//!     "8100ffff4000011800000000"
//!     "00000000000000000000000000000000"
//!     "2a00fd82"
//! );
//! let outer = Outer::decode(&packet, Link::Ip, packet.len(), 4791);
//! let Verdict::Wrong(wrong) = examine(&outer, &Hints::default()) else { panic!("the ICRC is wrong") };
//! assert_eq!(wrong.findings[0].mistakes, [Mistake::ByteOrder]);
//! assert!(wrong.findings[0].is_definite());
//! ```

mod crc;
mod forms;
mod masks;
mod mistake;
mod search;
mod subject;
mod tally;

use roce_packet::outer::{IcrcForm, Outer};

use mistake::Trials;
use subject::Subject;

pub use mistake::{Certainty, Detail, Finding, Hints, Mistake, Unchecked, Verdict, Wrong};
pub use tally::{Conclusion, Tally};

/// Examines the ICRC of a packet. If it is wrong, the result contains the mistakes that lead to it.
#[must_use]
pub fn examine(outer: &Outer<'_>, hints: &Hints<'_>) -> Verdict {
    let Some(transport) = outer.transport.filter(|_| outer.foreign.is_none()) else {
        return Verdict::Unchecked(Unchecked::NotRoce);
    };
    if let Some(cut) = outer.cut {
        return Verdict::Unchecked(Unchecked::Cut(cut));
    }
    let Some(icrc) = outer.check_icrc() else {
        let is_short = transport.len() < SHORTEST && outer.error.is_none();
        return Verdict::Unchecked(if is_short { Unchecked::TooShort } else { Unchecked::Malformed });
    };
    if icrc.check.is_good() {
        return Verdict::Correct;
    }
    let mut trials = Trials::new(icrc.check.found);
    // With options or extension headers, the subject is the form without them. If the two disagree about the
    // correct value, nothing can be said about a wrong one.
    let is_understood =
        |subject: &Subject<'_>| icrc.form != IcrcForm::Plain || subject.correct == icrc.check.computed;
    if let Some(subject) = Subject::new(outer).filter(is_understood) {
        masks::try_masks(&subject, &mut trials);
        forms::try_forms(&subject, hints, &mut trials);
        if trials.findings.is_empty() {
            search::try_searches(&subject, &mut trials);
        }
    }
    let (found, computed) = (icrc.check.found, icrc.check.computed);
    Verdict::Wrong(Wrong { found, computed, findings: trials.findings })
}

/// Length of the shortest datagram, a BTH and an ICRC, in bytes.
const SHORTEST: usize = 16;
