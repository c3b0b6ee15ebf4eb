//! Decisions for login backends in any language.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Operator, Shared,
    attempt_token::InFlight,
    decision::{AttemptRequest, Decision, access_query, check_length},
    extract::{Body, Segment},
    idempotency::{Answer, Claim, Keys, Pending},
    openapi::{DoneProblem, Problems},
    outcomes::Proof,
    problem::Problem,
    second_factor::SecondFactor,
};
use crate::{
    Attempt, Outcome, Part, Policy, Report, ReserveError, Token,
    access::{AccessRule, Action},
    admin::AdminErrorKind,
    algorithm::{self, Millis},
    attempt::{Counted, Reservation},
    clock::{Clock, SystemClock, to_millis},
    limiter::Allowed,
    store::Standings,
};

/// How far the clocks of instances may be apart, in milliseconds. The store's clock decides; this only ends what
/// is long over.
const CLOCK_SKEW: Millis = 60_000;

/// Reserve an attempt
///
/// To be called before the password is checked. A refusal is an answer like any other, with the status 200: check
/// `admitted`. Report the outcome of an admitted attempt before its lease ends; otherwise it is a failure.
///
/// A request whose answer was lost may be repeated with the same `Idempotency-Key`, and is one attempt. A key stands
/// for one check of a password: never a session.
#[utoipa::path(
    post, path = "/v1/attempts", tag = "decisions", operation_id = "reserve",
    params(("Idempotency-Key" = Option<String>, Header, nullable = false, description = "1 to 255 visible ASCII characters, new and random for each check of a password", pattern = "^[!-~]{1,255}$")),
    request_body = AttemptRequest,
    responses((status = 200, description = "Admitted or refused", body = Decision), Problems, DoneProblem),
)]
pub(super) async fn reserve(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    headers: HeaderMap,
    Body(request): Body<AttemptRequest>,
) -> Result<Json<Decision>, Problem> {
    let key = Keys::read(&headers)?;
    server.reserve(&operator, key, &request).await.map(Json)
}

/// Check an attempt
///
/// How it would be decided. Reserves and writes nothing.
#[utoipa::path(
    post, path = "/v1/check", tag = "decisions", operation_id = "check",
    request_body = AttemptRequest,
    responses((status = 200, description = "How it would be decided", body = Decision), Problems),
)]
pub(super) async fn check(
    State(server): State<Shared>,
    Body(request): Body<AttemptRequest>,
) -> Result<Json<Decision>, Problem> {
    request.validate()?;
    server.check(&request).await.map(Json)
}

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
        (status = 404, description = "Not a token of this service. Nothing has changed.", body = super::schema::Problem, content_type = "application/problem+json"),
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

/// What the routes share.
impl super::Inner {
    pub(super) async fn check(&self, request: &AttemptRequest) -> Result<Decision, Problem> {
        match request.decided_by(&self.limiter) {
            Some(rule) => Ok(Decision::by_rule(&rule)),
            None => {
                let report = self.limiter.check(request.caller()).await?;
                Ok(Decision::of_report(&report))
            }
        }
    }

    pub(super) async fn reserve(
        self: &Arc<Self>,
        operator: &Operator,
        key: Option<&str>,
        request: &AttemptRequest,
    ) -> Result<Decision, Problem> {
        request.validate()?;
        SecondFactor::reserved(&self.limiter, request.second_factor);
        let Some(key) = key else {
            let now = self.clock.now();
            return self.reserve_with(Token::new(), None, request, now).await;
        };
        // To its end, also if the client has gone away: a reservation that is canceled is taken back, and would take the
        // attempt of the repeated request with it, which has the same token.
        let (server, request) = (Arc::clone(self), request.clone());
        let (operator, key) = (operator.name().to_owned(), key.to_owned());
        let reserved = async move { server.reserve_once((&operator, &key), &request).await };
        tokio::spawn(reserved)
            .await
            .unwrap_or_else(|_| Err(ended_early()))
    }

    /// Reserves the attempt of a key, or answers as before.
    async fn reserve_once(
        &self,
        key: (&str, &str),
        request: &AttemptRequest,
    ) -> Result<Decision, Problem> {
        let now = self.clock.now();
        let hash = blake3::hash(&serde_json::to_vec(request).unwrap_or_default());
        match self.keys.claim(key, hash, now, self.lease())? {
            Claim::First(token, pending) => {
                // The store admits a token again whose attempt has failed, perhaps at another instance.
                match self.admin.held(token, request.caller(), None).await {
                    Ok(Some(false)) => Err(settled_before()),
                    Err(error) if error.kind() != AdminErrorKind::Store => Err(error.into()),
                    _ => (self.reserve_with(token, Some(pending), request, now)).await,
                }
            }
            Claim::Untracked => self.reserve_with(Token::new(), None, request, now).await,
            Claim::Repeated(id, answer) => self.with_token(request, *answer, Some(id)),
        }
    }

    async fn reserve_with(
        &self,
        token: Token,
        pending: Option<Pending<'_>>,
        request: &AttemptRequest,
        now: Millis,
    ) -> Result<Decision, Problem> {
        let version = self.limiter.version();
        let fallback = self.limiter.store_status().fallback_decisions;
        let attempt = match self
            .limiter
            .reserve_with_token(token, request.caller())
            .await
        {
            Ok(attempt) => attempt,
            Err(ReserveError::Refused(refusal)) => return Ok(Decision::refused(&refusal)),
            Err(ReserveError::Denied(denied)) => return Ok(Decision::denied(&denied)),
            Err(ReserveError::Store(error)) => return Err(error.into()),
            Err(ReserveError::Settled) => return Err(settled_before()),
        };
        let status = self.limiter.store_status();
        let policy = Arc::clone(attempt.report().policy());
        let lease = to_millis(policy.lease());
        let answer = Answer {
            token,
            expires: now.saturating_add(lease).saturating_add(CLOCK_SKEW),
            is_unverified: attempt.allowed_by().is_some()
                || is_uncounted(attempt.report())
                || status.is_degraded
                || status.fallback_decisions != fallback,
            allowed: (attempt.access()).map(|by| (by.rule.to_string(), by.for_every_user)),
            decision: Decision {
                allowed_by: attempt.allowed_by().map(str::to_owned),
                lease_ms: Some(lease),
                ..Decision::of_report(attempt.report())
            },
            policy: (self.policies.id(version, &policy), policy),
        };
        let id = pending.as_ref().map(|pending| pending.id());
        let decision = self.with_token(request, answer.clone(), id)?;
        let _ = attempt.detach();
        if let Some(pending) = pending {
            pending.answered(answer);
        }
        Ok(decision)
    }

    /// The decision with the sealed attempt.
    fn with_token(
        &self,
        request: &AttemptRequest,
        answer: Answer,
        key: Option<super::idempotency::KeyId>,
    ) -> Result<Decision, Problem> {
        let (policy_id, policy) = &answer.policy;
        let token = self.sealer.seal(&InFlight {
            token: *answer.token.as_bytes(),
            address: request.address,
            user: request.user.clone(),
            values: request.counted_values(policy),
            second_factor: request.second_factor,
            is_unverified: answer.is_unverified,
            allowed: answer.allowed,
            expires: answer.expires,
            key,
            policy: Some(*policy_id),
        });
        Ok(Decision {
            token: Some(token.ok_or_else(unsealed)?),
            ..answer.decision
        })
    }

    /// Settles an attempt, and returns whether the user that is named with the outcome is refused. To its end, also if
    /// the client has gone away: the guess counts for that user too.
    pub(super) async fn settle(
        self: &Arc<Self>,
        token: &str,
        outcome: Outcome,
        user: Option<&str>,
    ) -> Result<(InFlight, bool), Problem> {
        let (server, token, user) = (Arc::clone(self), token.to_owned(), user.map(str::to_owned));
        let settled = async move { server.settle_once(&token, outcome, user.as_deref()).await };
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
            Some(user) => self.identify(&in_flight, &mut attempt, user).await?,
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

    /// The attempt, under the policy that it was reserved under. What an access rule has allowed was under none.
    fn resume(&self, in_flight: &InFlight, policy: Arc<Policy>) -> Attempt {
        let (limiter, token, caller) = (&self.limiter, in_flight.token(), in_flight.caller());
        match &in_flight.allowed {
            Some((rule, for_every_user)) => {
                let by = Allowed {
                    rule: rule.as_str().into(),
                    for_every_user: *for_every_user,
                };
                limiter.resume_allowed(token, caller, by)
            }
            None => {
                limiter.metrics().resumed();
                let caller = Counted::new(caller, &policy, |user| limiter.normalize(user));
                let standings = Standings::default();
                let reservation = Reservation::new(limiter, policy, token, caller, standings, None);
                Attempt::new(reservation)
            }
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

    fn lease(&self) -> Millis {
        to_millis(self.limiter.policy().lease())
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

/// Whether no rule counts an attempt: none applies, or each one that does exempts it, or would refuse it and is in shadow.
fn is_uncounted(report: &Report) -> bool {
    report.iter().all(|(_, standing)| {
        use algorithm::State::{Exempt, Shadowed};
        matches!(standing.state, Exempt | Shadowed { .. })
    })
}

fn settled_before() -> Problem {
    Problem::conflict(
        "the attempt with this Idempotency-Key is settled: use a new key for each check of a password",
    )
}

fn ended_early() -> Problem {
    let detail = "the request has ended early: admit nothing, and repeat it";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
}

fn unsealed() -> Problem {
    Problem::invalid("the attempt is too large to be sealed")
}

fn not_in_flight() -> Problem {
    Problem::conflict(
        "the attempt is not in flight: it was settled before, or its lease has ended, which makes it a failure. \
         Nothing has changed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        LoginLimiter, Policy,
        clock::ManualClock,
        server::{Role, Server, Tokens},
        store::MemoryStore,
    };

    /// A backend takes the id of its session for the key.
    #[tokio::test]
    async fn a_key_for_many_guesses_buys_no_more_than_a_few() {
        let clock = Arc::new(ManualClock::at(1_000_000_000));
        let store = MemoryStore::new().with_clock(Arc::clone(&clock));
        let limiter = LoginLimiter::new(Policy::default(), store);
        let lease = limiter.policy().lease();
        let Server(mut inner) = Server::new(limiter, Tokens::new()).unwrap();
        inner.clock = Arc::clone(&clock) as Arc<dyn Clock>;
        let server = Arc::new(inner);
        let operator = Operator::new("shop", [Role::Decide]);
        let mut request = AttemptRequest::new([192, 0, 2, 1].into());
        request.user = Some("alice".to_owned());
        let (mut guesses, mut is_blocked) = (0, false);
        for _ in 0..200 {
            match server.reserve(&operator, Some("session-1"), &request).await {
                Ok(decision) if decision.admitted => {
                    guesses += 1;
                    let token = decision.token.unwrap();
                    let _ = server.settle(&token, Outcome::Failure, None).await;
                }
                Ok(decision) => {
                    is_blocked = decision.blocked;
                    break;
                }
                Err(problem) => assert_eq!(problem.status(), StatusCode::CONFLICT),
            }
            clock.advance(lease / 10);
        }
        assert!(is_blocked, "{guesses} guesses");
        assert_eq!(guesses, 5);
    }
}
