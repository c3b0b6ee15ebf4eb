//! Schemas of what has a form of its own in JSON.
//!
//! Types of the library write themselves; here is what they write. The API is tested against it.

#![allow(dead_code)] // descriptions

mod blocks;
mod insight;
mod ruleset;

use serde::Serialize;
use utoipa::{
    ToSchema,
    openapi::{
        KnownFormat, Object, ObjectBuilder, RefOr, Schema, SchemaFormat,
        schema::{AnyOfBuilder, ArrayBuilder, Type},
    },
};

pub(super) use self::{blocks::*, insight::*, ruleset::*};
pub(super) use super::problem::ProblemBody as Problem;

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn formatted(format: KnownFormat) -> Object {
    text()
        .format(Some(SchemaFormat::KnownFormat(format)))
        .build()
}

fn null() -> Object {
    ObjectBuilder::new().schema_type(Type::Null).build()
}

/// An IPv4 or IPv6 address.
pub(super) fn ip_address() -> RefOr<Schema> {
    AnyOfBuilder::new()
        .item(formatted(KnownFormat::Ipv4))
        .item(formatted(KnownFormat::Ipv6))
        .into()
}

pub(super) fn optional_ip_address() -> RefOr<Schema> {
    AnyOfBuilder::new()
        .item(formatted(KnownFormat::Ipv4))
        .item(formatted(KnownFormat::Ipv6))
        .item(null())
        .into()
}

pub(super) fn optional_ip_addresses() -> RefOr<Schema> {
    let list = ArrayBuilder::new()
        .items(ip_address())
        .max_items(Some(1_000));
    AnyOfBuilder::new().item(list).item(null()).into()
}

/// A network, or an address.
pub(super) fn network() -> RefOr<Schema> {
    text()
        .max_length(Some(64))
        .examples(["192.0.2.0/24"])
        .into()
}

pub(super) fn optional_network() -> RefOr<Schema> {
    let network = text().max_length(Some(64)).examples(["192.0.2.0/24"]);
    AnyOfBuilder::new().item(network).item(null()).into()
}

/// Why something is changed.
pub(super) fn reason() -> RefOr<Schema> {
    let reason = text().min_length(Some(1)).max_length(Some(1_000));
    reason.examples(["ticket 4711"]).into()
}

/// A length of time.
pub(super) fn period() -> RefOr<Schema> {
    text().examples(["1 day", "12h", "forever"]).into()
}

pub(super) fn action() -> RefOr<Schema> {
    text().enum_values(Some(["allow", "deny"])).into()
}

/// Whatever is typed.
pub(super) fn anything() -> RefOr<Schema> {
    utoipa::openapi::schema::empty().into()
}

/// Values of the app by name.
pub(super) fn values() -> RefOr<Schema> {
    ObjectBuilder::new()
        .property_names(Some(text().min_length(Some(1)).max_length(Some(64))))
        .additional_properties(Some(Schema::from(text().max_length(Some(256)))))
        .max_properties(Some(16))
        .into()
}

/// Nothing to say.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Empty {}
