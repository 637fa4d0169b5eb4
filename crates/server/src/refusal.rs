use pilot_base::{Issue, Name, ObjectRef};
use pilot_xds::TypeUrl;

/// What a proxy refuses of one type.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Refusal {
    pub(crate) proxy: Name,
    pub(crate) type_url: TypeUrl,
    /// Some of the resources, and how many there are beyond these.
    pub(crate) names: Vec<Name>,
    pub(crate) more: usize,
    pub(crate) reason: String,
}

impl Refusal {
    /// For whoever looks at the proxy, and for whoever looks at the rules: `behind` tells which a resource comes from.
    pub(crate) fn issues(&self, mut behind: impl FnMut(&Name) -> Vec<ObjectRef>) -> Vec<Issue> {
        let Self { proxy, type_url, names, more, reason } = self;
        let listed: Vec<&str> = names.iter().map(Name::as_str).collect();
        let more = if *more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!("refuses {}{more} and keeps what it had: {reason}", listed.join(", "));
        let object = ObjectRef::new("Proxy", Name::empty(), proxy.clone());
        let mut issues = vec![Issue::error(object, type_url.short(), message)];
        for name in names {
            for object in behind(name) {
                let message = format!(
                    "leads to {} {name}, which {proxy} refuses; it keeps what it had: {reason}",
                    type_url.short()
                );
                issues.push(Issue::error(object, "", message));
            }
        }
        issues
    }
}
