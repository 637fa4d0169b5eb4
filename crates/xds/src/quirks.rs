//! What clients do that the protocol does not say, with the client, the version it was seen with, and the test that shows
//! it.
//!
//! * Envoy (1.40.0) warms a cluster again when its definition changes, and then waits for endpoints although it holds the
//!   very same ones. In delta it does not ask for them, because it never stopped being subscribed. So every response that
//!   updates a cluster is followed by its endpoints. Shown by `sim`'s client, which warms the same way, and on the real
//!   one by `tests/behaviour/protocol/cluster-change-keeps-serving.yaml`.
//! * Envoy (1.40.0) keeps what it has when its stream breaks and tells the next server the versions; being sent only what
//!   differs, down to an empty answer, suits it. Shown by `tests/behaviour/protocol/server-restarts.yaml`.
//! * Envoy (1.40.0) asks for a cluster on demand once. If it hears that there is none, the next request for it waits for the
//!   filter's timeout, because the name is subscribed already. So who asks for a cluster by name is given one without
//!   endpoints. It never lets go of such a name, and says all of them beside `*` when it comes back. Shown by
//!   `tests/behaviour/on-demand/`.

use pilot_base::Millis;

/// How long the removal of a cluster waits for the routes that named it to be accepted, and how long new listeners and
/// routes wait for new clusters to be given endpoints. A client that asks for clusters only never accepts a route.
pub const PATIENCE: Millis = 5_000;

/// Envoy drains every connection of a listener that changes, so listeners are pushed at most this often, after a first
/// push that does not wait.
pub const LISTENER_INTERVAL: Millis = 1_000;
