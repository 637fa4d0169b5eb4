//! What keeps a cluster from being followed, in words that say what to do.

use std::collections::BTreeMap;

use pilot_base::{Issue, Name, ObjectRef};

use crate::client::CallError;
use crate::follow::Trouble;

/// What is wrong with each collection now.
#[derive(Default)]
pub(crate) struct Troubles {
    by_resource: BTreeMap<String, Trouble>,
}

impl Troubles {
    /// Tells whether something is different.
    pub(crate) fn note(&mut self, resource: String, trouble: Trouble) -> bool {
        self.by_resource.insert(resource, trouble.clone()).is_none_or(|before| before != trouble)
    }

    pub(crate) fn well(&mut self, resource: &str) -> bool {
        self.by_resource.remove(resource).is_some()
    }

    /// A server that does not answer is one issue, however much is asked of it.
    pub(crate) fn issues(&self, cluster: &Name, server: &str) -> Vec<Issue> {
        let object = || ObjectRef::new("Cluster", Name::empty(), cluster.clone());
        let mut issues = Vec::new();
        let mut unreachable: Vec<&str> = Vec::new();
        let mut why = None;
        for (resource, trouble) in &self.by_resource {
            match trouble {
                Trouble::Call(error @ (CallError::Unreachable(_) | CallError::Broken(_))) => {
                    unreachable.push(resource);
                    why.get_or_insert(error);
                }
                Trouble::Call(error) => issues.push(Issue::error(object(), "", refused(resource, error))),
                Trouble::Collapse(collapse) => {
                    let message = format!(
                        "{resource}: {} of {} are gone all at once, which is not believed before it is confirmed; what was known stays so far",
                        collapse.gone, collapse.had
                    );
                    issues.push(Issue::error(object(), "", message));
                }
            }
        }
        if let Some(why) = why {
            let message = format!(
                "the API server at {server} does not answer: {why}; what was known stays ({})",
                unreachable.join(", ")
            );
            issues.push(Issue::error(object(), "", message));
        }
        issues
    }
}

fn refused(resource: &str, error: &CallError) -> String {
    match error.status() {
        Some(403) => format!(
            "{resource}: {error}; grant get, list and watch on {resource}; all else goes on without it"
        ),
        Some(401) => format!("{resource}: {error}: the credential is not accepted; what was known stays"),
        Some(429) => format!("{resource}: the API server is busy: {error}; what was known stays"),
        _ => format!("{resource}: {error}; what was known stays"),
    }
}

#[cfg(test)]
mod tests {
    use pilot_base::Name;

    use super::Troubles;
    use crate::client::CallError;
    use crate::follow::Trouble;

    #[test]
    fn a_silent_server_is_one_issue_and_a_refusal_is_its_own() {
        let mut troubles = Troubles::default();
        let gone = Trouble::Call(CallError::Unreachable("connection refused".to_owned()));
        assert!(troubles.note("pods".to_owned(), gone.clone()));
        assert!(!troubles.note("pods".to_owned(), gone.clone()));
        troubles.note("services".to_owned(), gone);
        let message = "nodes is forbidden: User \"bob\" cannot list resource".to_owned();
        let forbidden =
            CallError::Refused { status: 403, reason: "Forbidden".to_owned(), message, retry_after: None };
        troubles.note("nodes".to_owned(), Trouble::Call(forbidden));
        let issues = troubles.issues(&Name::new("east"), "https://10.0.0.1");
        let text: Vec<String> = issues.iter().map(ToString::to_string).collect();
        assert_eq!(text.len(), 2, "{text:?}");
        assert!(text[0].contains("grant get, list and watch on nodes"), "{text:?}");
        assert!(text[1].contains("connection refused") && text[1].contains("(pods, services)"), "{text:?}");
        assert!(troubles.well("nodes") && !troubles.well("nodes"));
    }
}
