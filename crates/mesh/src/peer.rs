//! What PeerAuthentications amount to.

use std::collections::BTreeMap;

use pilot_base::Labels;
use pilot_model::{MtlsMode, PeerAuthentication};

/// Which peers a workload lets in, in general and at some of its ports.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PeerModes {
    pub mode: MtlsMode,
    pub ports: BTreeMap<u16, MtlsMode>,
}

impl PeerModes {
    pub fn at(&self, port: u16) -> MtlsMode {
        self.ports.get(&port).copied().unwrap_or(self.mode)
    }
}

/// What holds in a namespace.
#[derive(Clone, Debug, Default)]
pub struct NamespacePeers<'a> {
    /// For workloads that no policy selects.
    pub mode: MtlsMode,
    selecting: Vec<&'a PeerAuthentication>,
}

impl<'a> NamespacePeers<'a> {
    /// From the policies of the root namespace and, unless that is the same, of the namespace itself, each the oldest
    /// first. The narrower counts over the wider, and of several in one place only the oldest counts at all.
    pub fn new(
        root: impl Iterator<Item = &'a PeerAuthentication>,
        own: impl Iterator<Item = &'a PeerAuthentication>,
    ) -> Self {
        let (selecting, general): (Vec<_>, Vec<_>) = own.partition(|policy| !policy.selector.is_empty());
        let mesh = root.into_iter().find(|policy| policy.selector.is_empty());
        let in_order = [general.first().copied(), mesh];
        let mode = in_order.into_iter().flatten().find_map(|policy| policy.mode).unwrap_or_default();
        Self { mode, selecting }
    }

    /// For a workload with these labels.
    pub fn modes(&self, labels: &Labels) -> PeerModes {
        let selected = self.selecting.iter().find(|policy| policy.selector.subset_of(labels));
        let Some(policy) = selected else { return PeerModes { mode: self.mode, ports: BTreeMap::new() } };
        let mode = policy.mode.unwrap_or(self.mode);
        let ports = policy.ports.iter().map(|(port, own)| (*port, own.unwrap_or(mode)));
        PeerModes { mode, ports: ports.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::NamespacePeers;
    use pilot_base::Labels;
    use pilot_model::{MtlsMode, PeerAuthentication};

    fn policy(selector: &[(&str, &str)], mode: Option<MtlsMode>) -> PeerAuthentication {
        PeerAuthentication { selector: Labels::new(selector.iter().copied()), mode, ports: [].into() }
    }

    #[test]
    fn the_narrower_policy_counts() {
        let mesh = [policy(&[], Some(MtlsMode::Strict))];
        let app = Labels::new([("app", "a")]);
        let mode = |own: &[PeerAuthentication]| {
            let peers = NamespacePeers::new(mesh.iter(), own.iter());
            (peers.mode, peers.modes(&app).mode)
        };
        assert_eq!(mode(&[]), (MtlsMode::Strict, MtlsMode::Strict));
        assert_eq!(mode(&[policy(&[], None)]), (MtlsMode::Strict, MtlsMode::Strict));
        let own = [policy(&[], Some(MtlsMode::Disable)), policy(&[("app", "a")], Some(MtlsMode::Permissive))];
        assert_eq!(mode(&own), (MtlsMode::Disable, MtlsMode::Permissive));
        let unset = [policy(&[("app", "a")], None), policy(&[("app", "a")], Some(MtlsMode::Disable))];
        assert_eq!(mode(&unset), (MtlsMode::Strict, MtlsMode::Strict));
        assert_eq!(NamespacePeers::new([].iter(), [].iter()).mode, MtlsMode::Permissive);
    }

    #[test]
    fn ports_have_modes_of_their_own() {
        let ports = [(80, Some(MtlsMode::Disable)), (81, None)].into();
        let own = [PeerAuthentication { ports, ..policy(&[("app", "a")], Some(MtlsMode::Strict)) }];
        let modes = NamespacePeers::new([].iter(), own.iter()).modes(&Labels::new([("app", "a")]));
        assert_eq!(modes.at(80), MtlsMode::Disable);
        assert_eq!((modes.at(81), modes.at(82)), (MtlsMode::Strict, MtlsMode::Strict));
    }
}
