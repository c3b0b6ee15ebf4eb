//! How much happened, minute by minute.

use std::collections::VecDeque;

use crate::{
    Outcome,
    algorithm::Millis,
    event::{Event, What},
};

/// How many minutes are kept.
const KEPT: usize = 180;
const MINUTE: Millis = 60_000;

/// What happened in one minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Minute {
    /// When the minute began, in milliseconds since 1970.
    #[cfg_attr(feature = "serde", serde(serialize_with = "at_text"))]
    pub at: Millis,
    /// Attempts that succeeded.
    pub successes: u64,
    /// Attempts that failed, at a user that exists or not.
    pub failures: u64,
    /// Attempts that ended otherwise: a code is pending, or it was no attempt.
    pub other: u64,
    /// Attempts that were refused, by a limit or an access rule. Those in shadow are not.
    pub refusals: u64,
    /// Blocks that began. Those in shadow are not counted.
    pub blocks: u64,
    /// Blocks that ended.
    pub lifted: u64,
    /// Blocks that were found to be probably wrong.
    pub wrong_blocks: u64,
}

/// What happened in each of the last 180 minutes, by recorded events.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// The oldest first, without gaps.
    minutes: VecDeque<Minute>,
}

impl Activity {
    /// Nothing has happened.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes notice of an event. One that is older than what is kept is ignored.
    pub fn record(&mut self, event: &Event) {
        let Some(minute) = self.minute(event.at / MINUTE * MINUTE) else {
            return;
        };
        match &event.what {
            What::Settled { outcome, .. } => match outcome {
                Outcome::Success => minute.successes += 1,
                Outcome::Failure | Outcome::UnknownUser => minute.failures += 1,
                Outcome::MfaPending | Outcome::NotAnAttempt => minute.other += 1,
            },
            What::Refused { shadow: false, .. } => minute.refusals += 1,
            What::AccessRuleHit {
                action: crate::access::Action::Deny,
                ..
            } => minute.refusals += 1,
            What::BlockBegan { shadow: false, .. } => minute.blocks += 1,
            What::BlockLifted { .. } => minute.lifted += 1,
            What::WrongBlock { .. } => minute.wrong_blocks += 1,
            _ => {}
        }
    }

    /// The minutes up to this time, the oldest first. Those in which nothing happened are zero.
    #[must_use]
    pub fn until(&self, now: Millis) -> Vec<Minute> {
        let mut copy = self.clone();
        copy.minute(now / MINUTE * MINUTE);
        copy.minutes.into()
    }

    /// The minute that begins at this time, with the gap before it filled.
    fn minute(&mut self, at: Millis) -> Option<&mut Minute> {
        let kept = (KEPT as Millis - 1) * MINUTE;
        let newest = self.minutes.back().map(|minute| minute.at);
        match newest {
            // Everything that is kept is older than what is to be kept.
            Some(newest) if at.saturating_sub(newest) > kept => self.minutes.clear(),
            None => {}
            Some(newest) => {
                for next in 1..=at.saturating_sub(newest) / MINUTE {
                    self.minutes.push_back(Minute {
                        at: newest + next * MINUTE,
                        ..Minute::default()
                    });
                }
            }
        }
        if self.minutes.is_empty() {
            let first = at.saturating_sub(kept);
            let starts = (first..=at).step_by(MINUTE as usize);
            self.minutes.extend(starts.map(|at| Minute {
                at,
                ..Minute::default()
            }));
        }
        let excess = self.minutes.len().saturating_sub(KEPT);
        self.minutes.drain(..excess);
        let first = self.minutes.front()?.at;
        let position = at.checked_sub(first)? / MINUTE;
        self.minutes.get_mut(usize::try_from(position).ok()?)
    }
}

#[cfg(feature = "serde")]
#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn at_text<S: serde::Serializer>(at: &Millis, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&crate::timestamp::to_text(*at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(at: Millis, outcome: Outcome) -> Event {
        Event::new(What::Settled {
            outcome,
            second_factor: false,
        })
        .with_time(at)
    }

    #[test]
    fn events_are_counted_in_their_minute_and_gaps_are_zero() {
        let (mut activity, start) = (Activity::new(), 1_000 * MINUTE);
        activity.record(&settled(start + 5, Outcome::Success));
        activity.record(&settled(start + 3 * MINUTE, Outcome::Failure));
        // Of another process, a little late.
        activity.record(&settled(start + 59_999, Outcome::UnknownUser));
        let minutes = activity.until(start + 4 * MINUTE + 1);
        assert_eq!(minutes.len(), KEPT);
        let tail = &minutes[KEPT - 5..];
        let counts = tail
            .iter()
            .map(|minute| (minute.successes, minute.failures));
        let counts: Vec<_> = counts.collect();
        assert_eq!(counts, [(1, 1), (0, 0), (0, 0), (0, 1), (0, 0)]);
        assert_eq!(tail[4].at, start + 4 * MINUTE);
        assert!(
            minutes
                .windows(2)
                .all(|two| two[1].at == two[0].at + MINUTE)
        );
    }

    #[test]
    fn no_time_of_an_event_takes_more_memory() {
        let mut activity = Activity::new();
        for at in [0, 5, u64::MAX / 2, 7, u64::MAX, 3 * MINUTE, u64::MAX - 1] {
            activity.record(&settled(at, Outcome::Failure));
            assert!(activity.minutes.len() <= KEPT, "{at}");
        }
    }
}
