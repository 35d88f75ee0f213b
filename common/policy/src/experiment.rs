//! An optimization that helps some applications and slows others down: the runtime tries it rarely, keeps it
//! while it helps, and then stops.

/// Parameters of an [`Experiment`].
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Initial credit. Above 0, the optimization is applied from the first opportunity on.
    pub first_credit: u32,
    /// Credit that a success adds.
    pub success: u32,
    /// Credit that a failure removes.
    pub failure: u32,
    /// Maximum credit.
    pub most_credit: u32,
    /// Consecutive failures that end a trial. Some optimizations help only while both ends apply them, so one
    /// failure proves nothing.
    pub trial: u32,
    /// Opportunities skipped before the first trial, if there is no initial credit.
    pub first_interval: u32,
    /// Opportunities skipped after the first failed trial. Each further failed trial multiplies this number
    /// by four.
    pub interval: u32,
    /// Maximum number of skipped opportunities.
    pub longest_interval: u32,
}

/// The state of an experiment.
#[derive(Debug)]
pub struct Experiment {
    terms: &'static Terms,
    /// Above 0 while the optimization is applied at every opportunity.
    credit: u32,
    /// Opportunities to skip before the next trial.
    left_out: u32,
    /// Failures left in the current trial.
    tries: u32,
    /// Opportunities to skip after the next failed trial.
    interval: u32,
}

impl Experiment {
    /// Creates the state before the first opportunity.
    #[must_use]
    pub const fn new(terms: &'static Terms) -> Self {
        Self {
            terms,
            credit: terms.first_credit,
            left_out: terms.first_interval,
            tries: terms.trial,
            interval: terms.interval,
        }
    }

    /// Returns whether to apply the optimization now. The caller reports the outcome with
    /// [`succeeded`](Self::succeeded) or [`failed`](Self::failed), or neither if it did not apply it after
    /// all.
    #[inline]
    pub fn is_allowed(&mut self) -> bool {
        let left_out = self.credit == 0 && self.left_out > 0;
        self.left_out -= u32::from(left_out);
        !left_out
    }

    /// Returns whether recent successes outweigh the failures; otherwise an allowed opportunity is a trial.
    #[inline]
    #[must_use]
    pub const fn pays(&self) -> bool {
        self.credit > 0
    }

    /// Records that the optimization helped.
    #[inline]
    pub fn succeeded(&mut self) {
        self.credit = (self.credit + self.terms.success).min(self.terms.most_credit);
        (self.tries, self.interval) = (self.terms.trial, self.terms.interval);
    }

    /// Records that the optimization did not help.
    #[inline]
    pub fn failed(&mut self) {
        if self.credit > 0 {
            self.credit = self.credit.saturating_sub(self.terms.failure);
        } else {
            self.tries = self.tries.saturating_sub(1);
        }
        if self.credit == 0 && (self.tries == 0 || self.tries == self.terms.trial) {
            self.left_out = self.interval;
            self.tries = self.terms.trial;
            self.interval = self.interval.saturating_mul(4).min(self.terms.longest_interval);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        first_credit: 0,
        success: 1,
        failure: 8,
        most_credit: 32,
        trial: 1,
        first_interval: 4,
        interval: 16,
        longest_interval: 256,
    };

    /// Counts the skipped opportunities before the next allowed one, which fails.
    fn left_out(experiment: &mut Experiment) -> u32 {
        let left_out = (0..).find(|_| experiment.is_allowed()).unwrap();
        experiment.failed();
        left_out
    }

    #[test]
    fn trials_in_vain_become_rare() {
        let mut experiment = Experiment::new(&TERMS);
        assert_eq!([(); 5].map(|()| left_out(&mut experiment)), [4, 16, 64, 256, 256]);
    }

    #[test]
    fn a_trial_has_several_attempts() {
        const SEVERAL: Terms = Terms { trial: 3, first_interval: 0, ..TERMS };
        let mut experiment = Experiment::new(&SEVERAL);
        let found = [(); 7].map(|()| left_out(&mut experiment));
        assert_eq!(found, [0, 0, 0, 16, 0, 0, 64]);
    }

    #[test]
    fn what_pays_goes_on_and_ends_after_some_failures() {
        let mut experiment = Experiment::new(&TERMS);
        assert_eq!([(); 3].map(|()| left_out(&mut experiment)), [4, 16, 64]);
        assert_eq!((0..).find(|_| experiment.is_allowed()), Some(256));
        for _ in 0..100 {
            assert!(experiment.is_allowed());
            experiment.succeeded();
        }
        assert!(experiment.pays());
        // Four failures use up the credit, and the interval is the first one again.
        assert_eq!([(); 5].map(|()| left_out(&mut experiment)), [0, 0, 0, 0, 16]);
        assert!(!experiment.pays());
    }

    #[test]
    fn an_opportunity_that_is_not_used_is_no_trial() {
        let mut experiment = Experiment::new(&TERMS);
        assert_eq!((0..).find(|_| experiment.is_allowed()), Some(4));
        assert!((0..10).all(|_| experiment.is_allowed()));
        assert_eq!([(); 2].map(|()| left_out(&mut experiment)), [0, 16]);
    }

    #[test]
    fn what_is_done_from_the_beginning_is_given_up_where_it_fails() {
        const DONE: Terms = Terms { first_credit: 20, most_credit: 20, interval: 256, ..TERMS };
        let mut experiment = Experiment::new(&DONE);
        assert_eq!([(); 5].map(|()| left_out(&mut experiment)), [0, 0, 0, 256, 256]);
        for _ in 0..100 {
            // Once in a while.
            experiment.succeeded();
            (0..8).for_each(|_| experiment.succeeded());
            assert!(experiment.is_allowed() && experiment.pays());
            experiment.failed();
        }
    }
}
