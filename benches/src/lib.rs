//! What the programs of this package share: clients, and the layers that are compared.
//!
//! The counting allocator is not among it: a program that links it pays for it in every allocation.

#![cfg(feature = "peers")]

pub mod callers;
pub mod services;
