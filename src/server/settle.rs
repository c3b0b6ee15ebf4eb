//! How attempts end: outcomes that login backends report.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Inner, Shared,
    attempt_token::InFlight,
    attempts::ended_early,
    decision::{Decision, access_query, check_length},
    extract::{Body, Segment},
    openapi::{DoneProblem, Problems},
    outcomes::Proof,
    problem::Problem,
    schema,
};
use crate::{
    Attempt, Outcome, Part, Policy, ReserveError,
    access::{AccessRule, Action},
    admin::AdminErrorKind,
    clock::{Clock, SystemClock},
    limiter::Allowed,
};

/// How an attempt ended.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"outcome": "failure"}))]
pub(super) struct OutcomeRequest {
    outcome: OutcomeName,
    /// The account that was identified, if that is another name than the one the attempt was reserved with.
    #[serde(default)]
    #[schema(max_length = 1_000)]
    user: Option<String>,
}

/// `mfa_pending`: the password is correct and another factor is required. `not_an_attempt`: no password was checked.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Outcome)]
enum OutcomeName {
    Success,
    Failure,
    UnknownUser,
    MfaPending,
    NotAnAttempt,
}

impl From<OutcomeName> for Outcome {
    fn from(name: OutcomeName) -> Self {
        match name {
            OutcomeName::Success => Self::Success,
            OutcomeName::Failure => Self::Failure,
            OutcomeName::UnknownUser => Self::UnknownUser,
            OutcomeName::MfaPending => Self::MfaPending,
            OutcomeName::NotAnAttempt => Self::NotAnAttempt,
        }
    }
}

/// What became of an attempt, and how the limits stand after it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Settled {
    /// Always true: what was not settled is an error.
    settled: bool,
    /// Whether the rules of the user that is named here refuse the login: the user must not be let in, even with the
    /// right password. It counts as a failure then.
    refused: bool,
    /// How the limits would decide the next attempt of the same caller. `null` if an access rule has allowed this one,
    /// and if the store failed after the outcome was written.
    next: Option<Decision>,
}

/// Report an outcome
///
/// Any instance with the same secret settles the attempt.
#[utoipa::path(
    post, path = "/v1/attempts/{token}/outcome", tag = "decisions", operation_id = "settle",
    params(("token" = String, Path, description = "The token of the attempt")),
    request_body = OutcomeRequest,
    responses(
        (status = 200, description = "The attempt is settled", body = Settled),
        Problems, DoneProblem,
        (status = 404, description = "Not a token of this service. Nothing has changed.", body = schema::Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn settle(
    State(server): State<Shared>,
    Segment(token): Segment,
    Body(request): Body<OutcomeRequest>,
) -> Result<Json<Settled>, Problem> {
    let user = request.user.as_deref();
    let (attempt, refused) = server.settle(&token, request.outcome.into(), user).await?;
    let mut caller = attempt.caller();
    if let Some(user) = user {
        caller = caller.with_user(user);
    }
    // The outcome is written: whatever fails from here on is no reason to repeat it.
    let next = match attempt.allowed {
        Some(_) => None,
        None => server.limiter.check(caller).await.ok(),
    };
    Ok(Json(Settled {
        settled: true,
        refused,
        next: next.as_ref().map(Decision::of_report),
    }))
}

impl Inner {
    /// Settles an attempt, and returns whether the user that is named with the outcome is refused. To its end, also if
    /// the client has gone away: the guess counts for that user too.
    pub(super) async fn settle(
        self: &Arc<Self>,
        token: &str,
        outcome: Outcome,
        user: Option<&str>,
    ) -> Result<(InFlight, bool), Problem> {
        let (server, token, user) = (Arc::clone(self), token.to_owned(), user.map(str::to_owned));
        // A shutdown waits for it.
        let in_flight = self.limiter.track();
        let settled = async move {
            let _in_flight = in_flight;
            server.settle_once(&token, outcome, user.as_deref()).await
        };
        tokio::spawn(settled)
            .await
            .unwrap_or_else(|_| Err(ended_early()))
    }

    async fn settle_once(
        &self,
        token: &str,
        outcome: Outcome,
        user: Option<&str>,
    ) -> Result<(InFlight, bool), Problem> {
        check_length("user", user, 1_000)?;
        let in_flight = self.sealer.open(token).ok_or_else(|| {
            Problem::not_found(
                "this is not the token of an attempt, or another secret has sealed it: pass on the one that the \
                 reservation was answered with, and give each instance the same secret",
            )
        })?;
        let now = self.clock.now();
        if in_flight.expires <= now {
            return Err(not_in_flight());
        }
        let settling = (self.outcomes).begin(in_flight.token(), now, in_flight.expires);
        let mut settling = settling.ok_or_else(not_in_flight)?;
        let named = user.filter(|user| in_flight.user.as_deref() != Some(user));
        let policy = self.policy_of(&in_flight).await;
        let proof = self.verify(&in_flight, named, &policy).await?;
        settling.remember(proof, now)?;
        let mut attempt = self.resume(&in_flight, Arc::clone(&policy));
        let identified = match named {
            Some(user) => match self.identify(&in_flight, &mut attempt, user).await {
                Ok(identified) => identified,
                // It is as it was, to be settled by a repetition.
                Err(problem) => {
                    let _ = attempt.detach();
                    return Err(problem);
                }
            },
            None => Identified::Admitted,
        };
        let refused = !matches!(identified, Identified::Admitted);
        let outcome = if refused { Outcome::Failure } else { outcome };
        settling.is_written(true);
        let mut settled = attempt.settle(outcome).await;
        if matches!(identified, Identified::Withdrawn) && in_flight.allowed.is_none() {
            let (token, caller) = (in_flight.token(), in_flight.caller());
            let recorded = self.limiter.record_failure(&policy, token, caller);
            settled = settled.and(recorded.await);
        }
        if let Err(error) = settled {
            settling.is_written(false);
            return Err(error.into());
        }
        if let Some(key) = in_flight.key {
            self.keys.settled(key, now, self.lease());
        }
        (self.second_factor).settled(&self.limiter, &in_flight, outcome);
        Ok((in_flight, refused))
    }

    /// The attempt, under the policy that it was reserved under.
    fn resume(&self, in_flight: &InFlight, policy: Arc<Policy>) -> Attempt {
        let (limiter, token, caller) = (&self.limiter, in_flight.token(), in_flight.caller());
        match &in_flight.allowed {
            Some((rule, for_every_user)) => {
                let by = Allowed {
                    rule: rule.as_str().into(),
                    for_every_user: *for_every_user,
                };
                limiter.resume_allowed(policy, token, caller, by)
            }
            None => limiter.resume_under(policy, token, caller),
        }
    }

    /// That the attempt is in flight. A store that can't be reached writes the outcome later, and can't tell.
    async fn verify(
        &self,
        in_flight: &InFlight,
        named: Option<&str>,
        policy: &Policy,
    ) -> Result<Proof, Problem> {
        let caller = match (in_flight.is_unverified, named) {
            (false, _) => in_flight.caller(),
            (true, Some(_)) if matches!(in_flight.allowed, Some((_, true))) => {
                return Ok(Proof::None);
            }
            // An outcome that named the same user before has counted it.
            (true, Some(user)) => in_flight.caller().with_user(user),
            (true, None) => return Ok(Proof::None),
        };
        let held = self.admin.held(in_flight.token(), caller, Some(policy));
        match held.await {
            Ok(Some(true) | None) if in_flight.is_unverified => Ok(Proof::None),
            Ok(Some(true)) => Ok(Proof::Counter),
            Ok(_) => Err(not_in_flight()),
            Err(error) if error.kind() != AdminErrorKind::Store => Err(error.into()),
            Err(_) if in_flight.is_unverified => Ok(Proof::None),
            Err(_) => Ok(Proof::Unavailable),
        }
    }

    /// Names the account of an attempt. Its rules are asked ahead of it: an attempt that is refused when it is named is
    /// taken back, and this one was a guess, which counts for the address.
    async fn identify(
        &self,
        in_flight: &InFlight,
        attempt: &mut Attempt,
        user: &str,
    ) -> Result<Identified, Problem> {
        let name = self.limiter.normalize(user);
        let query = access_query(Some(in_flight.address), Some(&name), None, None);
        let rules = self.limiter.access_rules();
        match rules
            .decide(&query, SystemClock.now())
            .map(AccessRule::action)
        {
            Some(Action::Deny) => return Ok(Identified::Refused),
            Some(_) => {}
            // What an access rule allows counts for no address.
            None if in_flight.allowed.is_some() => {}
            None => {
                let caller = in_flight.caller().with_user(user);
                let report = self.limiter.check(caller).await?;
                // In another spelling, the user's counters hold this attempt, and are busy with it.
                let typed = in_flight.user.as_deref();
                let is_new = typed.is_none_or(|typed| self.limiter.normalize(typed) != name);
                let refuses = report.iter().any(|(rule, standing)| {
                    let is_enforced = rule.parts().contains(&Part::User) && !rule.is_shadow();
                    is_enforced && (standing.is_blocked() || is_new && standing.refuses())
                });
                if refuses {
                    return Ok(Identified::Refused);
                }
            }
        }
        match attempt.identify(user).await {
            Ok(()) => Ok(Identified::Admitted),
            Err(ReserveError::Store(error)) => Err(error.into()),
            Err(_) => Ok(Identified::Withdrawn),
        }
    }
}

/// What naming the account of an attempt has led to.
enum Identified {
    Admitted,
    /// Its rules refuse, and the attempt is as it was.
    Refused,
    /// Its rules refuse, since others were named in between, and the attempt was taken back.
    Withdrawn,
}

fn not_in_flight() -> Problem {
    Problem::conflict(
        "the attempt is not in flight: it was settled before, or its lease has ended, which makes it a failure. \
         Nothing has changed",
    )
}
