/// Ports that a proxy at the edge of the mesh opens, and what it accepts there.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Gateway {}
