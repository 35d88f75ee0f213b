//! The cells of the matrix: the operation, the side that starts it, the addresses and the path MTU.

use std::fmt;

use roce::verbs::{PathMtu, QpType};

/// The operation of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    RcSend,
    RcSendImm,
    RcWrite,
    RcWriteImm,
    RcRead,
    RcCas,
    RcFetchAdd,
    RcAtomicWrite,
    RcFlush,
    UcSend,
    UcSendImm,
    UcWrite,
    UcWriteImm,
    UdSend,
    UdSendImm,
}

impl Operation {
    pub(crate) const ALL: [Self; 15] = [
        Self::RcSend,
        Self::RcSendImm,
        Self::RcWrite,
        Self::RcWriteImm,
        Self::RcRead,
        Self::RcCas,
        Self::RcFetchAdd,
        Self::RcAtomicWrite,
        Self::RcFlush,
        Self::UcSend,
        Self::UcSendImm,
        Self::UcWrite,
        Self::UcWriteImm,
        Self::UdSend,
        Self::UdSendImm,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RcSend => "rc-send",
            Self::RcSendImm => "rc-send-imm",
            Self::RcWrite => "rc-write",
            Self::RcWriteImm => "rc-write-imm",
            Self::RcRead => "rc-read",
            Self::RcCas => "rc-cas",
            Self::RcFetchAdd => "rc-fetch-add",
            Self::RcAtomicWrite => "rc-atomic-write",
            Self::RcFlush => "rc-flush",
            Self::UcSend => "uc-send",
            Self::UcSendImm => "uc-send-imm",
            Self::UcWrite => "uc-write",
            Self::UcWriteImm => "uc-write-imm",
            Self::UdSend => "ud-send",
            Self::UdSendImm => "ud-send-imm",
        }
    }

    pub(crate) fn qp_type(self) -> QpType {
        match self {
            Self::UcSend | Self::UcSendImm | Self::UcWrite | Self::UcWriteImm => QpType::Uc,
            Self::UdSend | Self::UdSendImm => QpType::Ud,
            _ => QpType::Rc,
        }
    }

    /// Returns whether the receiver gets a completion.
    pub(crate) fn takes_receive(self) -> bool {
        !matches!(self, Self::UcWrite | Self::RcWrite | Self::RcRead) && !self.is_word()
    }

    pub(crate) fn has_imm(self) -> bool {
        matches!(
            self,
            Self::RcSendImm | Self::RcWriteImm | Self::UcSendImm | Self::UcWriteImm | Self::UdSendImm
        )
    }

    /// Returns whether the operation is about eight bytes, or about bytes that were written before.
    fn is_word(self) -> bool {
        matches!(self, Self::RcCas | Self::RcFetchAdd) || self.is_new()
    }

    /// Returns whether the operation belongs to the Memory Placement Extensions.
    pub(crate) fn is_new(self) -> bool {
        matches!(self, Self::RcAtomicWrite | Self::RcFlush)
    }
}

/// The address family of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V6 => "v6",
        }
    }
}

/// One cell. Its name is `OPERATION/we|they/v4|v6/MTU`, where `we` or `they` start the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) operation: Operation,
    pub(crate) they_start: bool,
    pub(crate) family: Family,
    pub(crate) mtu: PathMtu,
}

impl Case {
    /// Returns the error of the kernel that affects this case and that no peer can repair, if there is one.
    pub(crate) fn error_of_kernel(&self, lossy: bool) -> Option<&'static str> {
        match self.operation {
            // `flush.rs` detects when this changes.
            Operation::RcFlush => Some("its ICRC covers the headers of a FLUSH twice"),
            // Seen with 6.12: the address of the first transmission is correct, but that of a retransmission
            // is 0.
            Operation::RcAtomicWrite if lossy && self.they_start => {
                Some("it repeats an ATOMIC WRITE with the address 0, which is refused")
            }
            _ => None,
        }
    }

    pub(crate) fn starter(&self) -> &'static str {
        if self.they_start { "they" } else { "we" }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operation, starter, family) = (self.operation.name(), self.starter(), self.family.name());
        write!(f, "{operation}/{starter}/{family}/{}", self.mtu.bytes())
    }
}

/// The part of the matrix to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Every operation in both directions over both families, and every path MTU.
    Smoke,
    All,
}

/// Returns the cells in order. With losses a case takes several times as long, so the small matrix then has
/// fewer cells.
pub(crate) fn cases(scope: Scope, lossy: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, place) in [(Family::V4, 0), (Family::V6, 3)] {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            for they_start in [false, true] {
                // In the small matrix the path MTUs rotate, so that adjacent cells have different ones.
                let turn = (index + place + 2 * usize::from(they_start)) % PathMtu::ALL.len();
                let bulk = matches!(operation, Operation::RcWrite | Operation::RcRead);
                let thorough = bulk && family == Family::V4 && !lossy;
                if scope == Scope::Smoke && lossy && they_start != (family == Family::V6) {
                    continue;
                }
                for (position, mtu) in PathMtu::ALL.into_iter().enumerate() {
                    if scope == Scope::All || position == turn || thorough {
                        cases.push(Case { operation, they_start, family, mtu });
                    }
                }
            }
        }
    }
    cases
}
