use std::collections::BTreeMap;

/// Where a workload runs, from the widest to the narrowest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Locality {
    pub(crate) region: String,
    pub(crate) zone: String,
    pub(crate) sub_zone: String,
}

/// The older label, and the one under which the locality travels on.
pub(super) const LABEL: &str = "istio-locality";
const NEW_LABEL: &str = "topology.istio.io/locality";

/// `region/zone/sub-zone`. Labels of Kubernetes cannot hold `/`, so dots stand for it where there is none.
pub(super) fn from_labels(labels: &BTreeMap<String, String>) -> Option<String> {
    let label = labels.get(NEW_LABEL).or_else(|| labels.get(LABEL)).filter(|label| !label.is_empty())?;
    Some(if label.contains('/') { label.clone() } else { label.replace('.', "/") })
}

impl Locality {
    pub(super) fn parse(text: &str) -> Self {
        let mut parts = text.split('/');
        let mut next = || parts.next().unwrap_or_default().to_owned();
        Self { region: next(), zone: next(), sub_zone: next() }
    }
}
