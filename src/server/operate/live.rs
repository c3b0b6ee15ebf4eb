//! Events as they happen, as server-sent events.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::State,
    response::{
        IntoResponse, Response,
        sse::{self, Sse},
    },
};
use futures_util::{Stream, stream};
use http::request::Parts;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout_at};
use utoipa::ToSchema;

use super::super::{
    Operator, Role, Shared,
    openapi::{Problems, ShareProblem},
    problem::Problem,
    schema,
    shares::{Bounds, Share},
};
use crate::{
    event::{Event, EventReceiver},
    insight::Minute,
};

/// How many streams there may be at a time. A page of the console has one.
pub(in super::super) const MAX_STREAMS: Bounds = Bounds {
    total: 256,
    each: 32,
};
/// How many events a tick has at most. More are counted.
const MAX_EVENTS: usize = 50;
const TICK: Duration = Duration::from_secs(1);
/// After how many ticks the authorization is verified again.
const VERIFY_AFTER: u32 = 30;

/// What happened within the last second.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Tick {
    /// The current minute so far.
    #[schema(value_type = Option<schema::Minute>)]
    minute: Option<Minute>,
    /// The newest events of this second, the oldest first.
    #[schema(value_type = Vec<schema::Event>)]
    events: Vec<Value>,
    /// How many others there were.
    omitted: u64,
}

/// Follow events
///
/// Server-sent events: each second a `tick` with what happened, also if that is nothing. The stream ends when the
/// operator is no longer authorized, which is verified every 30 seconds.
#[utoipa::path(
    get, path = "/v1/admin/events/live", tag = "events", operation_id = "follow_events",
    responses(
        (status = 200, description = "A stream; the data of each event `tick` is this", body = Tick, content_type = "text/event-stream"),
        (status = 404, description = "This instance keeps no events", body = schema::Problem, content_type = "application/problem+json"),
        Problems, ShareProblem,
    ),
)]
pub(in super::super) async fn follow(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    parts: Parts,
) -> Result<Response, Problem> {
    let receiver = server.feed()?.subscribe();
    let share = (server.streams).acquire(&operator, "streams of events are open")?;
    let follower = Follower::new(server, parts, receiver, share);
    // nginx would keep ticks back until its buffer is full.
    let unbuffered = [("x-accel-buffering", "no")];
    Ok((unbuffered, Sse::new(follower.ticks())).into_response())
}

struct Follower {
    server: Shared,
    parts: Parts,
    receiver: EventReceiver,
    next: Instant,
    count: u32,
    _share: Share,
}

impl Follower {
    fn new(server: Shared, parts: Parts, receiver: EventReceiver, share: Share) -> Self {
        Self {
            server,
            parts,
            receiver,
            // The first one at once: the page has something to show.
            next: Instant::now(),
            count: 0,
            _share: share,
        }
    }

    fn ticks(self) -> impl Stream<Item = Result<sse::Event, Infallible>> {
        stream::unfold(self, |mut follower| async move {
            let tick = follower.tick().await?;
            let json = serde_json::to_string(&tick).ok()?;
            let event = sse::Event::default().event("tick").data(json);
            Some((Ok(event), follower))
        })
    }

    /// What happens until the next tick; `None` if the operator is no longer authorized.
    async fn tick(&mut self) -> Option<Tick> {
        let missed = self.receiver.missed();
        let (mut events, mut count): (VecDeque<Arc<Event>>, u64) = (VecDeque::new(), 0);
        // Events must not put the tick off, however many there are.
        while Instant::now() < self.next {
            match timeout_at(self.next, self.receiver.recv()).await {
                Ok(Some(event)) => {
                    count += 1;
                    if events.len() == MAX_EVENTS {
                        events.pop_front();
                    }
                    events.push_back(event);
                }
                Ok(None) => sleep_until(self.next).await,
                Err(_) => break,
            }
        }
        // One that was late does not make up for it.
        self.next = Instant::now() + TICK;
        self.count += 1;
        if self.count.is_multiple_of(VERIFY_AFTER) && !self.is_authorized().await {
            return None;
        }
        let server = &self.server;
        let minutes = server.feed.as_ref().map(|feed| feed.activity());
        let shown = events.len() as u64;
        Some(Tick {
            minute: minutes.and_then(|minutes| minutes.last().copied()),
            events: events.iter().map(|event| server.opened(event)).collect(),
            omitted: count - shown + (self.receiver.missed() - missed),
        })
    }

    async fn is_authorized(&self) -> bool {
        let operator = self.server.authorize.authorize(&self.parts).await;
        operator.is_ok_and(|operator| operator.may(Role::Read))
    }
}
