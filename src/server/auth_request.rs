//! Decisions for proxies: nginx by `auth_request`, Envoy by `ext_authz` over HTTP.
//!
//! What the proxy knows is in headers, which it must set itself: a client can send headers of these names too. An
//! `Idempotency-Key` is therefore not honored here.

use std::{borrow::Cow, net::IpAddr};

use axum::{
    Extension, Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{AUTHORIZATION, RETRY_AFTER, USER_AGENT},
};

use utoipa::{IntoParams, IntoResponses};

use super::{
    Operator, Shared,
    decision::{AttemptRequest, Decision},
    openapi::{DoneProblem, Problems},
    problem::Problem,
};
use crate::{
    Classify, Outcome,
    classify::ByStatus,
    extract::{BasicAuth, ExtractUser},
};

/// The token of the attempt, in the answer and with the outcome.
const ATTEMPT: HeaderName = HeaderName::from_static("login-attempt");
/// Why it is refused, for the person who logs in.
const MESSAGE: HeaderName = HeaderName::from_static("login-message");
const ADDRESS: HeaderName = HeaderName::from_static("x-login-address");
const LOGIN_USER: HeaderName = HeaderName::from_static("x-login-user");
/// The client's `Authorization`: that of the request itself is the proxy's.
const CREDENTIALS: HeaderName = HeaderName::from_static("x-login-authorization");
const LOGIN_PATH: HeaderName = HeaderName::from_static("x-login-path");
const LOGIN_METHOD: HeaderName = HeaderName::from_static("x-login-method");
/// Whether it is a code that is checked, and not a password.
const SECOND_FACTOR: HeaderName = HeaderName::from_static("x-login-second-factor");
const LOGIN_STATUS: HeaderName = HeaderName::from_static("x-login-status");
const LOGIN_OUTCOME: HeaderName = HeaderName::from_static("x-login-outcome");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Reserve an attempt, for nginx
///
/// For `auth_request`, which passes at 2xx and refuses at 403. With `X-Login-Method` GET, HEAD or OPTIONS and no
/// `X-Login-Authorization` nothing is reserved: viewing the page is not an attempt.
#[utoipa::path(
    get, path = "/v1/auth-request", tag = "proxies", operation_id = "reserve_for_nginx",
    params(
        ("X-Login-Address" = String, Header, description = "The client's address", format = Ipv4),
        ("X-Login-User" = Option<String>, Header, nullable = false, description = "The user"),
        ("X-Login-Authorization" = Option<String>, Header, nullable = false, description = "The client's Authorization: the user of basic authentication, if there is no X-Login-User"),
        ("X-Login-Path" = Option<String>, Header, nullable = false, description = "The path of the login"),
        ("X-Login-Method" = Option<String>, Header, nullable = false, description = "The method of the login"),
        ("X-Login-Second-Factor" = Option<bool>, Header, nullable = false, description = "Whether it is an attempt at a second factor, such as a code"),
    ),
    responses(
        (status = 204, description = "Admitted", headers(("Login-Attempt" = String, description = "The token of the attempt, if one was reserved"))),
        (status = 403, description = "Refused, or the role is not decide", body = super::schema::Problem, content_type = "application/problem+json", headers(
            ("Login-Message" = String, description = "Why, for the person who logs in"),
            ("Retry-After" = u64, description = "Seconds until it lifts, if it does"),
        )),
        Problems, DoneProblem,
    ),
)]
pub(super) async fn reserve(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let method = only(&headers, &LOGIN_METHOD)?;
    if is_view(method.as_deref(), &headers)? {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let mut request = AttemptRequest::new(address(&headers)?);
    request.path = only(&headers, &LOGIN_PATH)?.map(Cow::into_owned);
    read(&headers, &mut request).await?;
    let decision = server.reserve(&operator, None, &request).await?;
    let fields = fields(&decision);
    Ok(if decision.admitted {
        (StatusCode::NO_CONTENT, fields).into_response()
    } else {
        let refused = Problem::new(StatusCode::FORBIDDEN, decision.message.unwrap_or_default());
        (fields, refused).into_response()
    })
}

/// What a proxy knows of an outcome.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code)] // a description
struct OutcomeHeaders {
    /// The token of the attempt. Without one there is nothing to settle.
    #[param(rename = "Login-Attempt", nullable = false)]
    attempt: Option<String>,
    /// How it ended: `success`, `failure`, `unknown_user`, `mfa_pending` or `not_an_attempt`.
    #[param(rename = "X-Login-Outcome", nullable = false)]
    outcome: Option<String>,
    /// The status of the login's response, if there is no `X-Login-Outcome`.
    #[param(rename = "X-Login-Status", nullable = false)]
    status: Option<String>,
    /// The account that was identified.
    #[param(rename = "X-Login-User", nullable = false)]
    user: Option<String>,
}

/// What the report of an outcome is answered with.
#[derive(IntoResponses)]
#[allow(dead_code)] // a description
enum OutcomeAnswers {
    /// Settled, or nothing to settle
    #[response(status = 204)]
    Settled,
    /// Settled as a failure: the account that is named is blocked, and the user must not be let in. Or the role is not
    /// decide
    #[response(status = 403, content_type = "application/problem+json")]
    Refused(super::schema::Problem<'static>),
    /// Not a token of this service. Nothing has changed.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(super::schema::Problem<'static>),
}

/// Report an outcome, for nginx
///
/// By the name of the outcome, or by the status of the login's response: 2xx is a success; 5xx, 405, 406, 408, 413, 415
/// and 429 are not an attempt; everything else is a failure, redirects included, since many forms redirect after a
/// wrong password too.
#[utoipa::path(
    post,
    path = "/v1/auth-request/outcome",
    tag = "proxies",
    operation_id = "settle_for_nginx",
    params(OutcomeHeaders),
    responses(OutcomeAnswers, Problems, DoneProblem)
)]
pub(super) async fn settle(
    State(server): State<Shared>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let Some(token) = only(&headers, &ATTEMPT)? else {
        return Ok(StatusCode::NO_CONTENT);
    };
    let outcome = outcome(&headers)?;
    let user = only(&headers, &LOGIN_USER)?;
    let (_, refused) = server.settle(&token, outcome, user.as_deref()).await?;
    if refused {
        let detail =
            "settled as a failure: the account is blocked, and the user must not be let in";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Report an outcome, for an nginx that sends no other method
#[utoipa::path(
    get,
    path = "/v1/auth-request/outcome",
    tag = "proxies",
    operation_id = "settle_for_nginx_by_get",
    params(OutcomeHeaders),
    responses(OutcomeAnswers, Problems, DoneProblem)
)]
pub(super) async fn settle_by_get(
    server: State<Shared>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    settle(server, headers).await
}

/// Reserve an attempt, for Envoy
///
/// For `ext_authz` over HTTP with the path prefix `/v1/ext-authz`: any method and path. GET, HEAD and OPTIONS without
/// `X-Login-Authorization` are not attempts. The app behind Envoy reports the outcome, with the token that it finds in `login-attempt`. The address is
/// `X-Login-Address`, or the last one of `X-Forwarded-For`, which is the one that Envoy has appended.
#[utoipa::path(
    post, path = "/v1/ext-authz/{path}", tag = "proxies", operation_id = "reserve_for_envoy",
    params(
        ("path" = String, Path, description = "The path of the login"),
        ("X-Login-Address" = Option<String>, Header, nullable = false, description = "The client's address", format = Ipv4),
        ("X-Forwarded-For" = Option<String>, Header, nullable = false, description = "The client's address is the last one"),
        ("X-Login-User" = Option<String>, Header, nullable = false, description = "The user"),
        ("X-Login-Authorization" = Option<String>, Header, nullable = false, description = "The client's Authorization: the user of basic authentication, if there is no X-Login-User"),
        ("X-Login-Second-Factor" = Option<bool>, Header, nullable = false, description = "Whether it is an attempt at a second factor, such as a code"),
    ),
    responses(
        (status = 200, description = "Admitted", headers(("Login-Attempt" = String, description = "The token of the attempt, if one was reserved"))),
        (status = 429, description = "Refused", body = Decision, headers(
            ("Login-Message" = String, description = "Why, for the person who logs in"),
            ("Retry-After" = u64, description = "Seconds until it lifts, if it does"),
        )),
        Problems, DoneProblem,
    ),
)]
pub(super) async fn ext_authz(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    if is_view(Some(parts.method.as_str()), &parts.headers)? {
        return Ok(StatusCode::OK.into_response());
    }
    let headers = &parts.headers;
    let address = match last_forwarded(headers) {
        Some(last) if !headers.contains_key(&ADDRESS) => parse_address(&last)?,
        _ => address(headers)?,
    };
    let mut attempt = AttemptRequest::new(address);
    let path = parts.uri.path().split_once("/ext-authz");
    attempt.path = path.map(|(_, path)| path.to_owned());
    read(headers, &mut attempt).await?;
    let decision = server.reserve(&operator, None, &attempt).await?;
    let fields = fields(&decision);
    Ok(if decision.admitted {
        (StatusCode::OK, fields).into_response()
    } else {
        (StatusCode::TOO_MANY_REQUESTS, fields, Json(decision)).into_response()
    })
}

/// Whether a page is viewed, and no password is checked. Browsers send those of basic authentication with any method.
fn is_view(method: Option<&str>, headers: &HeaderMap) -> Result<bool, Problem> {
    let is_safe = matches!(method, Some("GET" | "HEAD" | "OPTIONS"));
    Ok(is_safe && only(headers, &CREDENTIALS)?.is_none())
}

/// The user, the user agent and the factor of a request.
async fn read(headers: &HeaderMap, request: &mut AttemptRequest) -> Result<(), Problem> {
    request.second_factor = match only(headers, &SECOND_FACTOR)?.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => {
            let detail =
                "X-Login-Second-Factor: have the proxy send `true` where a code is checked";
            return Err(Problem::bad_request(detail));
        }
    };
    let agent = headers.get(USER_AGENT).map(HeaderValue::as_bytes);
    request.user_agent = agent.map(|agent| {
        let agent = String::from_utf8_lossy(agent);
        agent.chars().take(1_000).collect()
    });
    request.user = match only(headers, &LOGIN_USER)? {
        Some(user) => Some(user.into_owned()),
        None => basic_user(headers).await?,
    };
    Ok(())
}

async fn basic_user(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(credentials) = headers.get(&CREDENTIALS) else {
        return Ok(None);
    };
    let (mut login, ()) = http::Request::new(()).into_parts();
    login.headers.insert(AUTHORIZATION, credentials.clone());
    let user = BasicAuth.extract_user(&login).await;
    user.map_err(|error| Problem::bad_request(error.to_string()))
}

/// What a proxy passes on.
fn fields(decision: &Decision) -> HeaderMap {
    let mut fields = HeaderMap::new();
    let mut set = |name: HeaderName, text: Option<String>| {
        if let Some(value) = text.and_then(|text| HeaderValue::try_from(text).ok()) {
            fields.insert(name, value);
        }
    };
    set(ATTEMPT, decision.token.clone());
    set(MESSAGE, decision.message.clone());
    set(
        RETRY_AFTER,
        decision.retry_after.map(|seconds| seconds.to_string()),
    );
    fields
}

fn outcome(headers: &HeaderMap) -> Result<Outcome, Problem> {
    if let Some(name) = only(headers, &LOGIN_OUTCOME)? {
        let outcome = name.parse();
        return outcome.map_err(|error| Problem::bad_request(format!("X-Login-Outcome: {error}")));
    }
    let status = only(headers, &LOGIN_STATUS)?;
    let status = status.and_then(|status| StatusCode::from_bytes(status.as_bytes()).ok());
    let status = status.ok_or_else(|| {
        Problem::bad_request(
            "send X-Login-Outcome, or the status of the login's response as X-Login-Status",
        )
    })?;
    let mut response = http::Response::new(());
    *response.status_mut() = status;
    let (response, ()) = response.into_parts();
    Ok(ByStatus.classify(&Method::POST, &response))
}

fn address(headers: &HeaderMap) -> Result<IpAddr, Problem> {
    parse_address(&only(headers, &ADDRESS)?.unwrap_or_default())
}

fn parse_address(text: &str) -> Result<IpAddr, Problem> {
    text.parse().map_err(|_| {
        Problem::bad_request(
            "X-Login-Address: have the proxy send the client's address, as `$remote_addr` in nginx",
        )
    })
}

/// The address that the last proxy has appended.
fn last_forwarded(headers: &HeaderMap) -> Option<String> {
    let last = headers.get_all(&FORWARDED_FOR).iter().next_back()?;
    let last = last.to_str().ok()?.rsplit(',').next()?;
    Some(last.trim().to_owned())
}

/// A header that may occur once. An empty one is as if absent; one that is not UTF-8 is Latin-1, as old clients send it.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<Cow<'a, str>>, Problem> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().map_or(&[][..], HeaderValue::as_bytes);
    if values.next().is_some() {
        return Err(Problem::bad_request(format!(
            "the header {name} is there twice"
        )));
    }
    let text = match str::from_utf8(value) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => value.iter().copied().map(char::from).collect(),
    };
    Ok(Some(text).filter(|text| !text.is_empty()))
}
