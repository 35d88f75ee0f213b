//! What is remarkable about a packet.

use bitflags::bitflags;

bitflags! {
    /// What is remarkable about a packet.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Marks: u16 {
        /// It did not arrive.
        const LOST = 1;
        /// The requester sent it again.
        const RESENT = 1 << 1;
        /// A NAK for a sequence error.
        const NAK = 1 << 2;
        /// The receiver is not ready.
        const RNR = 1 << 3;
        /// A NAK that refuses a request.
        const REFUSED = 1 << 4;
        /// A congestion notification.
        const CNP = 1 << 5;
        /// The packet has an ECN mark.
        const CE = 1 << 6;
        /// Its ICRC is wrong, or its headers contradict each other.
        const BROKEN = 1 << 7;
        /// The network delivered it twice.
        const DOUBLED = 1 << 8;
        /// Later packets overtook it.
        const LATE = 1 << 9;
    }
}

impl Marks {
    /// Returns the words that follow the label of a packet.
    pub(crate) fn words(self) -> impl Iterator<Item = &'static str> {
        const WORDS: [(Marks, &str); 6] = [
            (Marks::LOST, "lost"),
            (Marks::RESENT, "again"),
            (Marks::CE, "CE"),
            (Marks::BROKEN, "broken"),
            (Marks::DOUBLED, "twice"),
            (Marks::LATE, "late"),
        ];
        WORDS.into_iter().filter(move |(mark, _)| self.contains(*mark)).map(|(_, word)| word)
    }
}
