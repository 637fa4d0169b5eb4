//! Objects of the API become objects of the model.

use pilot_base::{Issue, Name};
use pilot_config::{ReadOptions, Tree, read_object};
use pilot_model::{ConfigId, Health, Kind, Object};

use crate::known::{Look, Verdict};
use crate::selection::Selection;
use crate::sight::Sight;

/// The label that says which control plane a rule is for.
const REVISION: &str = "istio.io/rev";

/// Is a rule for another revision than ours? Who has no name takes all of them.
pub fn is_for_another(rule: Tree<'_>, own: &str) -> bool {
    let label = rule.at(&["metadata", "labels", REVISION]).and_then(Tree::text);
    !own.is_empty() && label.is_some_and(|revision| revision != own)
}

/// Looks at the objects of one kind.
pub(crate) struct ObjectLook {
    pub(crate) kind: Kind,
    pub(crate) options: ReadOptions,
    /// Rules for others are passed over, unless we have no name. Kubernetes' own objects are for everybody.
    pub(crate) revision: Option<Name>,
    /// The cluster they are in, if it is not the one that rules come from.
    pub(crate) remote: Option<Name>,
    /// Of which namespaces objects count; of all, if there is none.
    pub(crate) selection: Option<Selection>,
    pub(crate) sight: Sight,
}

/// How many endpoints would be lost with an object. Those that cannot be called are no loss.
pub(crate) fn weight(object: &Object) -> u32 {
    let Object::EndpointSlice(_, slice) = object else { return 0 };
    let gone = [Health::Unhealthy, Health::Draining, Health::Terminating];
    let usable = slice.endpoints.iter().filter(|endpoint| !gone.contains(&endpoint.health));
    u32::try_from(usable.count()).unwrap_or(u32::MAX)
}

impl Look for ObjectLook {
    type Value = Object;

    fn selection(&self) -> Option<&Selection> {
        match self.kind {
            Kind::EndpointSlice => Some(self.sight.looks()),
            _ => self.selection.as_ref(),
        }
    }

    fn weight(&self, object: &Object) -> u32 {
        weight(object)
    }

    fn unreadable(&self, id: &ConfigId, why: &str) -> Vec<Issue> {
        vec![Issue::error(
            id.object(self.kind),
            "",
            format!("cannot be read: {why}; what was known of it stays"),
        )]
    }

    fn look(&self, tree: Tree<'_>) -> Verdict<Object> {
        let namespace = tree.text_at(&["metadata", "namespace"]);
        if self.selection.as_ref().is_some_and(|selection| !selection.includes(namespace)) {
            return Verdict::Ignore;
        }
        if self.revision.as_ref().is_some_and(|own| is_for_another(tree, own)) {
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
                if let Object::EndpointSlice(_, slice) = &mut object {
                    slice.pods = self.sight.pods();
                }
                Verdict::Take(object, reading.issues)
            }
            None if reading.issues.is_empty() => Verdict::Ignore,
            None => Verdict::Broken(reading.issues),
        }
    }
}
