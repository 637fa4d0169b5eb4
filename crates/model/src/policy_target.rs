use pilot_base::{Labels, Name};

/// Which workloads a policy is for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PolicyTarget {
    pub selector: Option<Labels>,
    /// What it is attached to by name. One that has any selects nothing else.
    pub refs: Vec<TargetRef>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TargetRef {
    /// Empty for Kubernetes' core group.
    pub group: Name,
    pub kind: Name,
    pub name: Name,
    pub namespace: Name,
}
