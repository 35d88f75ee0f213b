//! Consecutively posted work requests that leave together.
//!
//! A request that leaves alone costs a system call and processing in the network stack. Applications with
//! many outstanding requests post several before they poll again, often on many queue pairs. Their packets
//! can share system calls and superpackets. Requests wait only if the application posted several between two
//! polls, twice in a row, and polled soon after. The delay is judged as for acknowledgements, see
//! [`super::postponed`]. Requests leave with the first of these events:
//!
//! - more requests, or more bytes, would not make sending cheaper;
//! - the application polls or requests a notification;
//! - the background thread sends them, as with acknowledgements.

/// An application that posts this many requests between two polls has several outstanding requests.
const SEVERAL: u32 = 4;
/// This many requests or bytes leave at once: a superpacket of small messages, or of full packets.
const MOST_REQUESTS: u32 = 32;
const MOST_BYTES: u64 = 1 << 16;

/// The work requests that the application posted since it last polled.
#[derive(Debug, Default)]
pub(super) struct Posts {
    since_poll: u32,
    /// The smaller of the counts of the two previous intervals between polls.
    lately: u32,
    before: u32,
    waiting: u32,
    waiting_bytes: u64,
    /// Whether requests, and not acknowledgements, were the first to wait.
    has_begun: bool,
}

impl Posts {
    /// Records posted requests. Returns whether they may wait for more.
    #[inline]
    pub(super) fn may_wait(&mut self, requests: usize, bytes: u64) -> bool {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        self.since_poll = self.since_poll.saturating_add(requests);
        if self.lately < SEVERAL {
            return false;
        }
        self.waiting = self.waiting.saturating_add(requests);
        self.waiting_bytes = self.waiting_bytes.saturating_add(bytes);
        self.waiting < MOST_REQUESTS && self.waiting_bytes < MOST_BYTES
    }

    #[inline]
    pub(super) const fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Records that requests are the first to wait.
    #[inline]
    pub(super) const fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Records that everything that waits leaves now. Returns whether requests were the first to wait.
    #[inline]
    pub(super) const fn leave(&mut self) -> bool {
        (self.waiting, self.waiting_bytes) = (0, 0);
        std::mem::replace(&mut self.has_begun, false)
    }

    /// Records a poll. Polls without a post between them do not count.
    #[inline]
    pub(super) fn note_poll(&mut self) {
        if self.since_poll > 0 {
            self.lately = self.since_poll.min(self.before);
            self.before = self.since_poll;
            self.since_poll = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(posts: &mut Posts, requests: u32) -> Vec<bool> {
        let waits = (0..requests).map(|_| posts.may_wait(1, 8)).collect();
        posts.leave();
        posts.note_poll();
        waits
    }

    #[test]
    fn requests_wait_only_where_several_were_posted_between_polls_twice_in_a_row() {
        let mut posts = Posts::default();
        for _ in 0..10 {
            assert!(!round(&mut posts, 3).contains(&true));
        }
        assert!(!round(&mut posts, 4).contains(&true), "the first time");
        assert!(!round(&mut posts, 4).contains(&true), "the second time");
        assert!(!round(&mut posts, 1).contains(&false));
        posts.note_poll();
        assert!(!round(&mut posts, 4).contains(&true), "one between");
    }

    #[test]
    fn many_requests_or_bytes_leave_at_once() {
        let mut posts = Posts::default();
        (0..2).for_each(|_| drop(round(&mut posts, 8)));
        assert_eq!((1..=MOST_REQUESTS).position(|_| !posts.may_wait(1, 8)), Some(31));
        posts.leave();
        assert!(posts.may_wait(1, MOST_BYTES - 1) && posts.is_waiting());
        assert!(!posts.may_wait(1, 1));
        posts.leave();
        assert!(!posts.is_waiting() && posts.may_wait(1, 8));
        posts.leave();
        assert!(!posts.may_wait(usize::MAX, u64::MAX));
    }
}
