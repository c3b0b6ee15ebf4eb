//! Events in JSON and other formats.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{Event, EventUser, escape};
use crate::AttemptId;

impl Event {
    /// The event as one line of JSON, without the line break.
    ///
    /// Controls and invisible characters of names are escaped as JSON permits, so that a terminal interprets
    /// none of them; a parser reads the name as it is.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Can't fail: nothing is a map with keys other than text.
        escape::escaped_json(serde_json::to_string(self).unwrap_or_default())
    }
}

impl Serialize for EventUser {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.shown().serialize(serializer)
    }
}

/// A user that was shown is read back as the text that was shown.
impl<'de> Deserialize<'de> for EventUser {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Ok(Self::from_shown(&text))
    }
}

pub(super) fn is_hidden(user: &Option<EventUser>) -> bool {
    user.as_ref().is_none_or(EventUser::is_hidden)
}

impl Serialize for AttemptId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AttemptId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// An address by its text.
pub(super) mod address {
    use super::{Cow, Deserialize, Deserializer, Serializer, de};
    use crate::Address;

    pub(in super::super) fn serialize<S: Serializer>(
        address: &Option<Address>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_none(),
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Address>, D::Error> {
        let text = Option::<Cow<'_, str>>::deserialize(deserializer)?;
        let address = text.map(|text| text.parse().map_err(de::Error::custom));
        address.transpose()
    }
}

/// A time by its RFC 3339 text, with milliseconds.
pub(super) mod time {
    use super::{Cow, Deserialize, Deserializer, Serializer, de};
    use crate::{algorithm::Millis, timestamp};

    pub(in super::super) fn serialize<S: Serializer>(
        time: &Millis,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&timestamp::to_fixed_text(*time))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Millis, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        timestamp::parse(&text)
            .ok_or_else(|| de::Error::custom("a time is written like \"2026-12-31T18:00:00.000Z\""))
    }
}

/// A length in milliseconds; forever is `null`.
pub(super) mod period {
    use std::time::Duration;

    use super::{Deserialize, Deserializer, Serialize, Serializer};
    use crate::{Period, clock::to_millis};

    pub(in super::super) fn serialize<S: Serializer>(
        period: &Period,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        period.as_duration().map(to_millis).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Period, D::Error> {
        let millis = Option::<u64>::deserialize(deserializer)?;
        Ok(millis.map_or(Period::Forever, |millis| {
            Period::Of(Duration::from_millis(millis))
        }))
    }
}

/// A length in milliseconds.
pub(super) mod duration {
    use std::time::Duration;

    use super::{Deserialize, Deserializer, Serializer};
    use crate::clock::to_millis;

    pub(in super::super) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(to_millis(*duration))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{
        Outcome, Period, Reason, Token,
        access::Action,
        event::{AdminAction, CountedAttempt, LiftedBy, Signal, UserDisplay, What, WrongBy},
        store::StoreErrorKind,
    };

    const AT: u64 = 1_794_985_200_123;

    fn rule() -> Arc<str> {
        "user-address".into()
    }

    fn attempt() -> AttemptId {
        let mut bytes = [0xab; 16];
        bytes[0] = 1;
        Token::from_bytes(bytes).into()
    }

    /// One of each, and its JSON behind `at` and `event`.
    fn all() -> Vec<(What, &'static str)> {
        let operator = LiftedBy::Operator {
            author: "bob".into(),
            reason: "phoned".into(),
        };
        let lifted = |by| What::BlockLifted {
            rule: rule(),
            counter: "192.0.2.1".into(),
            by,
        };
        let day = Period::days(1);
        vec![
            (
                What::Settled {
                    outcome: Outcome::UnknownUser,
                    second_factor: false,
                },
                r#""event":"settled","outcome":"unknown_user","second_factor":false"#,
            ),
            (
                What::Refused {
                    rule: rule(),
                    reason: Reason::Blocked,
                    usage: 5,
                    limit: 5,
                    lifts: Period::Forever,
                    shadow: true,
                },
                r#""event":"refused","rule":"user-address","reason":"blocked","usage":5,"limit":5,"lifts_in_ms":null,"shadow":true"#,
            ),
            (
                What::Undecided {
                    kind: StoreErrorKind::Timeout,
                    shadow: false,
                },
                r#""event":"undecided","kind":"timeout","shadow":false"#,
            ),
            (
                What::BlockBegan {
                    rule: rule(),
                    counter: "192.0.2.1".into(),
                    usage: 5,
                    limit: 5,
                    lifts: day,
                    attempts: vec![CountedAttempt {
                        attempt: attempt(),
                        at: AT,
                    }],
                    shadow: false,
                },
                r#""event":"block_began","rule":"user-address","counter":"192.0.2.1","usage":5,"limit":5,"lifts_in_ms":86400000,"attempts":[{"attempt":"01ababab00000000","at":"2026-11-18T07:00:00.123Z"}],"shadow":false"#,
            ),
            (
                lifted(LiftedBy::Time),
                r#""event":"block_lifted","rule":"user-address","counter":"192.0.2.1","by":"time""#,
            ),
            (
                lifted(LiftedBy::Success),
                r#""event":"block_lifted","rule":"user-address","counter":"192.0.2.1","by":"success""#,
            ),
            (
                lifted(LiftedBy::App),
                r#""event":"block_lifted","rule":"user-address","counter":"192.0.2.1","by":"app""#,
            ),
            (
                lifted(operator),
                r#""event":"block_lifted","rule":"user-address","counter":"192.0.2.1","by":"operator","author":"bob","reason":"phoned""#,
            ),
            (
                What::LimitReached {
                    rule: "reset-mail".into(),
                    limit: 3,
                },
                r#""event":"limit_reached","rule":"reset-mail","limit":3"#,
            ),
            (
                What::AccessRuleHit {
                    rule: "scanner".into(),
                    action: Action::Deny,
                },
                r#""event":"access_rule_hit","rule":"scanner","action":"deny""#,
            ),
            (
                What::StoreDown {
                    kind: StoreErrorKind::Connection,
                    error: "Redis can't be reached".into(),
                },
                r#""event":"store_down","kind":"connection","error":"Redis can't be reached""#,
            ),
            (
                What::StoreUp {
                    down_for: Duration::from_millis(1_500),
                    pending: 3,
                },
                r#""event":"store_up","down_for_ms":1500,"pending":3"#,
            ),
            (
                What::JournalReplayed {
                    replayed: 3,
                    dropped: 1,
                },
                r#""event":"journal_replayed","replayed":3,"dropped":1"#,
            ),
            (
                What::DocumentChanged {
                    author: "bob".into(),
                    reason: "attack".into(),
                    from: 1,
                    to: 2,
                    changes: vec!["address.limit: 25 -> 10".into()],
                },
                r#""event":"document_changed","author":"bob","reason":"attack","from":1,"to":2,"changes":["address.limit: 25 -> 10"]"#,
            ),
            (
                What::Administered {
                    action: AdminAction::Unblock,
                    author: "bob".into(),
                    reason: "phoned".into(),
                    network: Some("192.0.2.0/24".into()),
                },
                r#""event":"administered","action":"unblock","author":"bob","reason":"phoned","network":"192.0.2.0/24""#,
            ),
            (
                What::Signal(Signal::ManyUsers { users: 120 }),
                r#""event":"signal","signal":"many_users","users":120"#,
            ),
            (
                What::Signal(Signal::ManyAddresses { addresses: 99 }),
                r#""event":"signal","signal":"many_addresses","addresses":99"#,
            ),
            (
                What::Signal(Signal::FailureRate {
                    per_minute: 90.5,
                    baseline: 2.0,
                }),
                r#""event":"signal","signal":"failure_rate","per_minute":90.5,"baseline":2.0"#,
            ),
            (
                What::WrongBlock {
                    rule: rule(),
                    by: WrongBy::Success,
                },
                r#""event":"wrong_block","rule":"user-address","by":"success""#,
            ),
        ]
    }

    /// The form is a contract: consoles, dashboards and recorded events depend on it.
    #[test]
    fn the_form_of_every_event_is_stable_and_is_read_back() {
        let head = r#"{"at":"2026-11-18T07:00:00.123Z","#;
        let tail = r#","address":"2001:db8:1:2::/64","user":"a***","attempt":"01ababab00000000"}"#;
        for (what, fields) in all() {
            let name = format!("\"event\":\"{}\"", what.name());
            assert!(fields.starts_with(&name), "{fields}");
            let event = Event::new(what.clone()).with_time(AT);
            let json = event.to_json();
            assert_eq!(json, format!("{head}{fields}}}"));
            assert_eq!(json, serde_json::to_string(&event).unwrap());

            let user = EventUser::new("Alice", "alice", &UserDisplay::Masked);
            let event = event
                .with_address("2001:db8:1:2::/64".parse().unwrap())
                .with_attempt(attempt())
                .with_user(user);
            let json = event.to_json();
            assert_eq!(json, format!("{head}{fields}{tail}"));

            let read: Event = serde_json::from_str(&json).unwrap();
            assert_eq!((read.at, &read.what), (AT, &what));
            assert_eq!(read.address, event.address);
            assert_eq!(read.attempt, event.attempt);
            let user = read.user.as_ref().unwrap();
            assert_eq!((user.identified(), user.typed()), (None, None));
            assert_eq!(user.shown().unwrap(), "a***");
            assert_eq!(read.to_json(), json);
        }
    }

    #[test]
    fn fields_that_a_newer_version_adds_are_ignored() {
        let json =
            r#"{"at":"2026-11-18T07:00:00Z","event":"settled","outcome":"success","country":"IS"}"#;
        let event: Event = serde_json::from_str(json).unwrap();
        assert_eq!(event.what.name(), "settled");
        for wrong in ["settle", "", "Settled"] {
            let json = json.replace("settled", wrong);
            assert!(serde_json::from_str::<Event>(&json).is_err(), "{json}");
        }
        let json = json.replace("success", "won");
        let error = serde_json::from_str::<Event>(&json).unwrap_err();
        assert!(error.to_string().contains("mfa_pending"), "{error}");
    }

    #[test]
    fn a_hidden_user_is_not_there_and_one_in_clear_is_one_line_for_a_terminal() {
        let what = || What::Settled {
            outcome: Outcome::Success,
            second_factor: false,
        };
        let typed = "al\"ice\n\u{1b}[2J\u{9b}\u{202e}\u{2028}\u{e0001}\u{1f600}";
        let hidden = EventUser::new(typed, typed, &UserDisplay::Hidden);
        let json = Event::new(what()).with_user(hidden).to_json();
        assert!(!json.contains("user") && !json.contains("ice"), "{json}");

        let clear = EventUser::new(typed, typed, &UserDisplay::Clear);
        let json = Event::new(what()).with_user(clear).to_json();
        assert!(!json.chars().any(escape::is_unsafe), "{json}");
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["user"], typed);
    }
}
