//! What is beside an event in the stream, for the other processes of a fleet.

use super::Event;
#[cfg(feature = "sealed")]
use super::{EventUser, sealer::SealedIds};
#[cfg(feature = "sealed")]
use crate::insight::Insight;

/// The field of an entry that has the event, in JSON.
pub(super) const EVENT: &str = "e";
/// Whose [`Insight`] has noticed the event.
#[cfg(feature = "sealed")]
const NOTICED: &str = "n";
/// The id of the event's user, sealed: whoever reads the stream learns no more of users than the JSON shows, not even
/// which events are about the same one.
#[cfg(feature = "sealed")]
const USER: &str = "u";

/// An entry of the stream.
pub(super) struct Entry {
    pub(super) event: Event,
    /// Whether the reader's own [`Insight`](crate::insight::Insight) has noticed it when it happened.
    pub(super) is_noticed: bool,
}

/// Writes and reads entries.
#[derive(Clone, Default)]
pub(super) struct Entries {
    #[cfg(feature = "sealed")]
    fleet: Option<(Insight, SealedIds)>,
}

type Field = (&'static str, Vec<u8>);

impl Entries {
    /// Of a fleet that shares what its insight finds.
    #[cfg(feature = "sealed")]
    pub(super) fn of_fleet(insight: Insight) -> Self {
        let ids = SealedIds::new(insight.hasher());
        Self {
            fleet: Some((insight, ids)),
        }
    }

    /// The fields of an event.
    pub(super) fn write(&self, event: &Event) -> Vec<Field> {
        #[cfg_attr(not(feature = "sealed"), allow(unused_mut))] // changed below only with it
        let mut fields = vec![(EVENT, event.to_json().into_bytes())];
        #[cfg(feature = "sealed")]
        if let Some((insight, ids)) = &self.fleet {
            fields.push((NOTICED, insight.mark().to_vec()));
            let user = event.user.as_ref().and_then(EventUser::identified);
            let sealed = user.and_then(|name| ids.seal(insight.hasher().id(name)));
            fields.extend(sealed.map(|sealed| (USER, sealed)));
        }
        fields
    }

    /// The event in these fields; `None` if it is none that this version knows.
    pub(super) fn read(&self, fields: &[(Vec<u8>, Vec<u8>)]) -> Option<Entry> {
        let field = |name: &str| {
            let mut fields = fields.iter();
            fields.find_map(|(field, value)| (field == name.as_bytes()).then_some(&**value))
        };
        let event = serde_json::from_slice(field(EVENT)?).ok()?;
        #[cfg_attr(not(feature = "sealed"), allow(unused_mut))] // changed below only with it
        let mut entry = Entry {
            event,
            is_noticed: false,
        };
        #[cfg(feature = "sealed")]
        if let Some((insight, ids)) = &self.fleet {
            entry.is_noticed = field(NOTICED) == Some(insight.mark());
            if let Some(id) = field(USER).and_then(|sealed| ids.open(sealed)) {
                let user = EventUser::recorded(entry.event.user.as_ref(), id);
                entry.event.user = Some(user);
            }
        }
        Some(entry)
    }
}
