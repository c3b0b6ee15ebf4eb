//! A feed that follows the stream of a fleet.

use std::{future::poll_fn, pin::pin, time::Duration};

use tokio::{sync::mpsc, task::JoinHandle, time::sleep};

use super::{EventReader, Feed, claims::Claims, feed::is_past, fleet::Entry};
use crate::{
    algorithm::Millis,
    clock::{Clock, SystemClock},
    insight::{Found, Insight},
};

/// How many entries are read at a time.
const BATCH: usize = 1_000;
const RETRY: Duration = Duration::from_secs(1);
/// How old an event may be, and how far ahead the clock of its process, to be a sign of what is going on now.
const LATE: Millis = 60_000;

pub(super) fn follow(feed: Feed, reader: EventReader) -> JoinHandle<()> {
    let Some(insight) = feed.insight().cloned() else {
        return tokio::spawn(read(feed, reader));
    };
    let found = insight.shared();
    let emitted = emit(feed.clone(), insight, reader.claims(), found);
    tokio::spawn(async move {
        let (mut emitted, mut read) = (pin!(emitted), pin!(read(feed, reader)));
        let mut is_replaced = false;
        // One task, so that both are aborted.
        poll_fn(|context| {
            // It ends when another feed follows with the insight.
            is_replaced = is_replaced || emitted.as_mut().poll(context).is_ready();
            read.as_mut().poll(context)
        })
        .await;
    })
}

/// Reads what is in the stream and what is added to it.
async fn read(feed: Feed, mut reader: EventReader) {
    let mut is_reported = false;
    loop {
        match reader.follow_entries(BATCH).await {
            Ok(entries) => {
                is_reported = false;
                entries.into_iter().for_each(|entry| take(&feed, entry));
            }
            Err(error) => {
                if !is_reported {
                    crate::logging::unreadable_stream(&error);
                }
                is_reported = true;
                sleep(RETRY).await;
            }
        }
    }
}

fn take(feed: &Feed, entry: Entry) {
    let event = entry.event;
    let insight = feed.insight();
    let insight = insight.filter(|_| !entry.is_noticed && is_past(&event));
    let is_late = SystemClock.now().abs_diff(event.at) > LATE;
    let found = insight.map(|insight| insight.record_of_other(&event, is_late));
    feed.show(event);
    for found in found.into_iter().flatten() {
        if let Some(insight) = insight {
            insight.emit_or_share(found);
        }
    }
}

/// Emits what the process finds, unless another one has found it first.
async fn emit(feed: Feed, insight: Insight, mut claims: Claims, mut found: mpsc::Receiver<Found>) {
    while let Some(found) = found.recv().await {
        // Others can't see what is emitted without a limiter.
        if !insight.has_limiter() {
            feed.show(found.event);
        } else if claims.is_first(insight.id_of(&found)).await {
            insight.emit(found.event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Outcome,
        event::{Event, UserHasher, What},
    };

    /// One of a process whose clock is wrong, or of another program that writes to the stream.
    #[test]
    fn an_event_of_the_future_in_the_stream_keeps_no_present_one_from_being_counted() {
        let feed = Feed::new(10).with_insight(Insight::new(UserHasher::new([7; 32]).unwrap()));
        let now = SystemClock.now();
        for (at, address) in [(u64::MAX, "192.0.2.1"), (now, "192.0.2.2")] {
            let what = What::Settled {
                outcome: Outcome::Failure,
                second_factor: false,
            };
            let address = address.parse().unwrap();
            let event = Event::new(what).with_time(at).with_address(address);
            let is_noticed = false;
            take(&feed, Entry { event, is_noticed });
        }
        let busiest = feed.insight().unwrap().busiest(10);
        let busiest: Vec<_> = busiest.addresses.iter().map(|busy| &*busy.id).collect();
        assert_eq!(busiest, ["192.0.2.2"]);
    }
}
