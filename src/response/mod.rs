//! Responses to requests that are denied.

mod denial;
mod grpc;
mod problem;
mod rate_limit_fields;

#[cfg(feature = "axum")]
pub(crate) use denial::MISCONFIGURED;
pub use denial::{ByContentType, Denial, Respond};
pub use grpc::GrpcStatus;
pub use problem::ProblemJson;
pub(crate) use rate_limit_fields::RateLimitFields;
