//! Objects of the API become objects of the model.

use pilot_base::Name;
use pilot_config::{ReadOptions, Tree, read_object};
use pilot_model::{Kind, Object};

use crate::known::{Look, Verdict};

/// The label that says which control plane a rule is for.
const REVISION: &str = "istio.io/rev";

/// Looks at the objects of one kind.
pub(crate) struct ObjectLook {
    pub(crate) kind: Kind,
    pub(crate) options: ReadOptions,
    /// Rules for others are passed over. Kubernetes' own objects are for everybody.
    pub(crate) revision: Option<Name>,
    /// The cluster they are in, if it is not the one that rules come from.
    pub(crate) remote: Option<Name>,
}

impl Look for ObjectLook {
    type Value = Object;

    fn look(&self, tree: Tree<'_>) -> Verdict<Object> {
        if let Some(own) = &self.revision
            && let Some(rev) = tree.at(&["metadata", "labels", REVISION]).and_then(Tree::text)
            && !rev.is_empty()
            && rev != own.as_str()
        {
            return Verdict::Ignore;
        }
        // Some write slices that belong to no service.
        let service = ["metadata", "labels", "kubernetes.io/service-name"];
        if self.kind == Kind::EndpointSlice && tree.at(&service).is_none() {
            return Verdict::Ignore;
        }
        let reading = read_object(tree, self.kind, &self.options.cluster, &self.options);
        match reading.objects.into_iter().next() {
            Some((_, _, mut object)) => {
                if let Some(cluster) = &self.remote {
                    object.move_to(cluster);
                }
                Verdict::Take(object, reading.issues)
            }
            None if reading.issues.is_empty() => Verdict::Ignore,
            None => Verdict::Broken(reading.issues),
        }
    }
}
