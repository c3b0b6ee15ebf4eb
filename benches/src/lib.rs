//! What the programs of this package share: clients, the layers that are compared, and how to measure.
//!
//! The counting allocator is not among it: a program that links it pays for it in every allocation.

#[cfg(feature = "peers")]
pub mod callers;
pub mod callgrind;
#[cfg(feature = "peers")]
pub mod redis_server;
pub mod rounds;
#[cfg(feature = "peers")]
pub mod services;
