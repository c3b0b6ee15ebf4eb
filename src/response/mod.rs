//! Responses to requests that are denied.
//!
//! [`ByAccept`] is the default: a page for people, problem+json for programs, a status for gRPC clients. A
//! responder of the app is a closure or a [`Respond`]
#![cfg_attr(
    feature = "axum",
    doc = "; [`RespondWith`] returns anything that axum can turn into a response."
)]
#![cfg_attr(not(feature = "axum"), doc = ".")]

mod accept;
#[cfg(feature = "axum")]
mod axum;
mod denial;
mod grpc;
mod html;
mod problem;
mod rate_limit_fields;
mod words;

pub use accept::ByAccept;
#[cfg(feature = "axum")]
pub use axum::RespondWith;
#[cfg(feature = "axum")]
pub(crate) use axum::{Replacement, Unrendered};
#[cfg(any(feature = "axum", feature = "tonic"))]
pub(crate) use denial::MISCONFIGURED;
pub use denial::{Denial, DenialKind, Respond, respond_fn};
pub use grpc::GrpcStatus;
pub use html::{HtmlPage, HtmlTemplate};
pub use problem::ProblemJson;
pub(crate) use rate_limit_fields::RateLimitFields;
pub use words::{English, Unit, Words};
