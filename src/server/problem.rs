//! Errors as `application/problem+json`, RFC 9457.

use std::borrow::Cow;

use axum::response::{IntoResponse, Response};
use http::{
    HeaderValue, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    admin::{AdminError, AdminErrorKind},
    store::{StoreError, StoreErrorKind},
};

/// Why a request was not carried out, and what to do.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: Cow<'static, str>,
    conflict: Option<Box<Conflict>>,
}

/// An error, as RFC 9457 has it.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct ProblemBody<'a> {
    /// Always `about:blank`: the status has the meaning.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status in words.
    title: &'a str,
    /// The status.
    status: u16,
    /// What is wrong, and what to do.
    detail: &'a str,
    /// What another operator has written in between, with the status 412.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    conflict: Option<&'a Conflict>,
}

/// What another operator has written in between.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Conflict {
    /// The newest version.
    version: u64,
    /// Who wrote it.
    author: String,
    /// Why.
    reason: String,
    /// What is different from the expected version, a line each.
    differences: Vec<String>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            detail: detail.into(),
            conflict: None,
        }
    }

    /// 422: the request is understood, and its content invalid.
    pub(super) fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// 400: a header or the query is not as it should be.
    pub(super) fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn not_found(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    #[cfg(test)]
    pub(super) const fn status(&self) -> StatusCode {
        self.status
    }

    /// 409: it has been done, or is being done.
    pub(super) fn conflict(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if error.kind() == StoreErrorKind::InvalidInput {
            return Self::invalid(error.to_string());
        }
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the store could not decide: admit nothing, and repeat the request",
        )
    }
}

impl From<AdminError> for Problem {
    fn from(error: AdminError) -> Self {
        let status = match error.kind() {
            AdminErrorKind::InvalidInput => StatusCode::UNPROCESSABLE_ENTITY,
            AdminErrorKind::Conflict => StatusCode::PRECONDITION_FAILED,
            AdminErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            AdminErrorKind::Store => StatusCode::SERVICE_UNAVAILABLE,
        };
        let conflict = error.conflict().map(|conflict| {
            Box::new(Conflict {
                version: conflict.version,
                author: conflict.author.clone(),
                reason: conflict.reason.clone(),
                differences: conflict.differences.clone(),
            })
        });
        Self {
            conflict,
            ..Self::new(status, error.to_string())
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = ProblemBody {
            kind: "about:blank",
            title: self.status.canonical_reason().unwrap_or_default(),
            status: self.status.as_u16(),
            detail: &self.detail,
            conflict: self.conflict.as_deref(),
        };
        let mut response = (self.status, axum::Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        match self.status {
            StatusCode::UNAUTHORIZED => {
                let challenge = HeaderValue::from_static("Bearer realm=\"login-rate-limit\"");
                headers.insert(WWW_AUTHENTICATE, challenge);
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
