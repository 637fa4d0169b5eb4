//! As much of gRPC as the agent needs to hand messages on without looking into them: frames, statuses, a server at a socket
//! of this machine and a client of the control plane.

mod arriving;
mod authority;
mod connect;
mod frame;
mod serve;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use arriving::Arriving;
pub(crate) use connect::{Call, ConnectError, Credentials, Identification, Roots, Upstream};
pub(crate) use frame::{Deframer, FrameError, Outgoing, Rope, framed};
pub(crate) use serve::{Answer, Asked, Socket, SocketError, serve};
pub(crate) use status::{Code, Status};
