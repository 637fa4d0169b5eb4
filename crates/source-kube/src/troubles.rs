//! What keeps a cluster from being followed, in words that say what to do.

use std::collections::BTreeMap;

use pilot_base::{Issue, Name, ObjectRef};

use crate::client::{CallError, Client};
use crate::follow::Trouble;

/// What is wrong with each collection now.
#[derive(Default)]
pub(crate) struct Troubles {
    by_resource: BTreeMap<String, (Trouble, Upshot)>,
}

/// What becomes of the rest while we may not see a collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Upshot {
    GoesOn,
    Waits,
    /// What was known of it.
    Stays,
}

impl Upshot {
    fn as_str(self) -> &'static str {
        match self {
            Self::GoesOn => "all else goes on without it",
            Self::Waits => "nobody is served before that",
            Self::Stays => "what was known of it stays",
        }
    }
}

impl Troubles {
    /// Tells whether something is different.
    pub(crate) fn note(&mut self, resource: String, trouble: &Trouble, upshot: Upshot) -> bool {
        let before = self.by_resource.insert(resource, (trouble.clone(), upshot));
        before.is_none_or(|(before, meant)| before != *trouble || meant != upshot)
    }

    pub(crate) fn well(&mut self, resource: &str) -> bool {
        self.by_resource.remove(resource).is_some()
    }

    /// A server that does not answer is one issue, however much is asked of it.
    pub(crate) fn issues(&self, cluster: &Name, client: &Client) -> Vec<Issue> {
        let (server, hold) = (client.server(), client.doubts().hold());
        let mut messages = Vec::new();
        // Of those that have the same reason the first speaks for all.
        let mut common: BTreeMap<&str, String> = BTreeMap::new();
        for (resource, (trouble, upshot)) in &self.by_resource {
            match trouble {
                Trouble::Forbidden(error) => messages.push(format!(
                    "{resource}: {error}; grant get, list and watch on {resource}; {}",
                    upshot.as_str()
                )),
                Trouble::Call(error) => {
                    let reason = reason(error);
                    common.entry(reason).or_insert_with(|| {
                        format!("the API server at {server} {reason}: {error}; what was known stays")
                    });
                }
                Trouble::Collapse(collapse) => messages.push(format!(
                    "{resource}: {collapse}, which is not believed for {hold:?}; what was known stays so far. `pilotctl confirm` says that it is true"
                )),
            }
        }
        let object = || ObjectRef::new("Cluster", Name::empty(), cluster.clone());
        let all = messages.into_iter().chain(common.into_values());
        all.map(|message| Issue::error(object(), "", message)).collect()
    }
}

fn reason(error: &CallError) -> &'static str {
    match error.status() {
        None => "does not answer",
        Some(401) => "does not accept the credential",
        Some(429) => "is busy",
        // One that has just been started does not know all of its kinds yet.
        Some(404 | 500..) => "is not ready",
        Some(_) => "refuses",
    }
}

#[cfg(test)]
mod tests {
    use pilot_base::Name;

    use super::{Troubles, Upshot};
    use crate::client::{CallError, testing};
    use crate::follow::Trouble;
    use crate::known::{Collapse, Lost};

    #[test]
    fn a_silent_server_is_one_issue_and_a_refusal_is_its_own() {
        let mut troubles = Troubles::default();
        let gone = Trouble::Call(CallError::Unreachable("connection refused".to_owned()));
        assert!(troubles.note("pods".to_owned(), &gone, Upshot::GoesOn));
        assert!(!troubles.note("pods".to_owned(), &gone, Upshot::GoesOn));
        troubles.note("services".to_owned(), &gone, Upshot::GoesOn);
        let message = "nodes is forbidden: User \"bob\" cannot list resource".to_owned();
        let forbidden =
            CallError::Refused { status: 403, reason: "Forbidden".to_owned(), message, retry_after: None };
        let forbidden = Trouble::Forbidden(forbidden);
        assert!(troubles.note("nodes".to_owned(), &forbidden, Upshot::Waits));
        assert!(troubles.note("nodes".to_owned(), &forbidden, Upshot::GoesOn));
        let collapse = Collapse { of: Lost::Endpoints, had: 50, gone: 40 };
        troubles.note("endpointslices".to_owned(), &Trouble::Collapse(collapse), Upshot::GoesOn);
        let issues = troubles.issues(&Name::new("east"), &testing::client("https://10.0.0.1"));
        let text: Vec<String> = issues.iter().map(ToString::to_string).collect();
        assert_eq!(text.len(), 3, "{text:?}");
        let held =
            "endpointslices: 40 of 50 endpoints in them are gone all at once, which is not believed for 300s";
        assert!(text[0].contains(held), "{text:?}");
        assert!(text[1].contains("grant get, list and watch on nodes"), "{text:?}");
        assert!(text[2].ends_with("does not answer: connection refused; what was known stays"), "{text:?}");
        assert!(troubles.well("nodes") && !troubles.well("nodes"));
    }
}
