//! Redirection as a program: what a dry run writes, and what the kernel then does with real packets.
//!
//! Everything happens in network namespaces of its own, which needs root and the programs ip, iptables and nft.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod goldens;
mod rules;
mod support;
mod traffic;
