//! Attempts that login backends in any language reserve and check.

use std::sync::Arc;

use super::{
    Inner, Operator, Shared,
    attempt_token::InFlight,
    decision::{AttemptRequest, Decision},
    extract::Body,
    idempotency::{Answer, Claim, KeyId, Keys, Pending, settled_before},
    openapi::{DoneProblem, Problems},
    problem::Problem,
    second_factor::SecondFactor,
};
use crate::{
    Report, ReserveError, Token,
    admin::AdminErrorKind,
    algorithm::{self, Millis},
    clock::to_millis,
};
use axum::{Extension, Json, extract::State};
use http::{HeaderMap, StatusCode};

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

impl Inner {
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
        // A shutdown waits for it.
        let in_flight = self.limiter.track();
        let reserved = async move {
            let _in_flight = in_flight;
            server.reserve_once((&operator, &key), &request).await
        };
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
            pending.answered(answer)?;
        }
        Ok(decision)
    }

    /// The decision with the sealed attempt.
    fn with_token(
        &self,
        request: &AttemptRequest,
        answer: Answer,
        key: Option<KeyId>,
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

    pub(super) fn lease(&self) -> Millis {
        to_millis(self.limiter.policy().lease())
    }
}

/// Whether no rule counts an attempt: none applies, or each one that does exempts it, or would refuse it and is in shadow.
fn is_uncounted(report: &Report) -> bool {
    report.iter().all(|(_, standing)| {
        use algorithm::State::{Exempt, Shadowed};
        matches!(standing.state, Exempt | Shadowed { .. })
    })
}

pub(super) fn ended_early() -> Problem {
    let detail = "the request has ended early: admit nothing, and repeat it";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
}

fn unsealed() -> Problem {
    Problem::invalid("the attempt is too large to be sealed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        LoginLimiter, Outcome, Policy,
        clock::{Clock, ManualClock},
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
