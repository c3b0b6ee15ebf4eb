//! Denials as gRPC statuses.

use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE, request::Parts};

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::{Denial, Respond, denial::nothing_kept};

/// Renders denials as gRPC responses without a message: `RESOURCE_EXHAUSTED` for a refusal, with a
/// `google.rpc.RetryInfo` in the details.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcStatus;

/// What gRPC requires to be encoded in messages, beside everything that is not ASCII.
const MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

impl Respond for GrpcStatus {
    fn keep(&self, _: &Parts) -> Parts {
        nothing_kept()
    }

    fn respond(&self, denial: &Denial, _: &Parts) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", denial.grpc_code().into());
        let message = utf8_percent_encode(&denial.detail(), MESSAGE).to_string();
        if let Ok(message) = HeaderValue::try_from(message) {
            headers.insert("grpc-message", message);
        }
        if let Some(details) = denial.grpc_details() {
            let encoded = BASE64_STANDARD_NO_PAD.encode(details);
            if let Ok(details) = HeaderValue::from_str(&encoded) {
                headers.insert("grpc-status-details-bin", details);
            }
        }
        response
    }
}

impl Denial {
    /// The gRPC status code.
    pub(crate) fn grpc_code(&self) -> u16 {
        match self.status() {
            StatusCode::TOO_MANY_REQUESTS => 8,      // RESOURCE_EXHAUSTED
            StatusCode::FORBIDDEN => 7,              // PERMISSION_DENIED
            StatusCode::SERVICE_UNAVAILABLE => 14,   // UNAVAILABLE
            StatusCode::INTERNAL_SERVER_ERROR => 13, // INTERNAL
            _ => 3,                                  // INVALID_ARGUMENT
        }
    }

    /// A `google.rpc.Status` with a `RetryInfo`, as protocol buffer; `None` if a retry is useless.
    pub(crate) fn grpc_details(&self) -> Option<Vec<u8>> {
        let seconds = self.retry_after()?;
        // RetryInfo { 1: Duration { 1: seconds } }, inside Any { 1: type, 2: value }, inside
        // Status { 1: code, 2: message, 3: details }.
        let duration = [&[0x08][..], &varint(seconds)].concat();
        let retry_info = field(0x0a, &duration);
        let any = [
            field(0x0a, b"type.googleapis.com/google.rpc.RetryInfo"),
            field(0x12, &retry_info),
        ]
        .concat();
        let status = [
            [&[0x08][..], &varint(self.grpc_code().into())].concat(),
            field(0x12, self.detail().as_bytes()),
            field(0x1a, &any),
        ];
        Some(status.concat())
    }
}

/// A length-delimited field.
fn field(tag: u8, value: &[u8]) -> Vec<u8> {
    [&[tag][..], &varint(value.len() as u64), value].concat()
}

fn varint(mut n: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while n >= 0x80 {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
    bytes
}

#[cfg(feature = "tonic")]
mod tonic_status {
    use bytes::Bytes;
    use tonic::{Code, Status};

    use super::Denial;
    use crate::ReserveError;

    /// For handlers that [identify](crate::LoginAttempt::identify) the user: `attempt.identify(user)
    /// .await?` responds as the layer does.
    impl From<ReserveError> for Status {
        fn from(error: ReserveError) -> Self {
            let denial = Denial::from(error);
            let code = Code::from_i32(denial.grpc_code().into());
            let details = denial.grpc_details().unwrap_or_default();
            Self::with_details(code, denial.detail(), Bytes::from(details))
        }
    }
}
