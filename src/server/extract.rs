//! Bodies, queries and paths, whose errors are problems.

use std::{fmt, marker::PhantomData, sync::Arc};

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Json, Path, Query, Request},
};
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE, request::Parts};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{problem::Problem, shares::Share};

/// A body of more bytes is a ruleset, and read on a thread that no login needs.
const LARGE: usize = 64 * 1024;

/// A JSON body.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send + 'static> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(mut request: Request, state: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "send JSON, with the Content-Type application/json",
            ));
        }
        let share = request.extensions_mut().remove::<Arc<Share>>();
        let bytes = Bytes::from_request(request, state).await;
        let bytes =
            bytes.map_err(|rejection| client_error(rejection.status(), rejection.body_text()))?;
        if bytes.len() <= LARGE {
            return Self::read(&bytes);
        }
        let read = move || {
            // It is read to its end also if the client has gone away.
            let _share = share;
            Self::read(&bytes)
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.unwrap_or_else(|_| {
            let detail = "the body was not read to its end: repeat the request";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail))
        })
    }
}

impl<T: DeserializeOwned> Body<T> {
    fn read(bytes: &[u8]) -> Result<Self, Problem> {
        let body = Json::from_bytes(bytes);
        body.map(|Json(Object(body))| Self(body))
            .map_err(|rejection| client_error(rejection.status(), rejection.body_text()))
    }
}

/// Whether a body is declared as JSON: pages of other sites can't send that unasked.
fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE);
    let value = value.and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

/// A JSON object. A derived implementation also reads a list of the values.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Members(PhantomData))
    }
}

/// The query.
pub(super) struct Params<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::from_request_parts(parts, state).await;
        query
            .map(|Query(query)| Self(query))
            .map_err(|rejection| client_error(rejection.status(), rejection.body_text()))
    }
}

/// A segment of the path.
pub(super) struct Segment(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(segment)| Self(segment))
            .map_err(|rejection| client_error(rejection.status(), rejection.body_text()))
    }
}

/// Nothing that a client sends is an error of the server.
fn client_error(status: StatusCode, detail: String) -> Problem {
    let status = if status.is_client_error() {
        status
    } else {
        StatusCode::BAD_REQUEST
    };
    Problem::new(status, detail)
}
