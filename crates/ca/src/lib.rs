//! Identities: who a workload is, how it proves that, and the authority that certifies it.

pub mod messages;
