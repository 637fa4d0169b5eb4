//! What stands in the status of each rule, and what should.

use std::collections::{BTreeMap, BTreeSet};

use pilot_base::{Issue, Severity};
use pilot_config::Tree;
use pilot_model::{ConfigId, Kind};
use pilot_source_kube::{Change, What};
use serde_json::{Value, json};

use super::kind_of;

/// Istio's code for an object that is not as it should be. It has many; which of them fits nobody can tell from a text.
const CODE: &str = "IST0106";
const MORE: &str = "https://istio.io/latest/docs/reference/config/analysis/ist0106/";
/// Our own condition: it says in words what `validationMessages` has no room for.
const CONDITION: &str = "Valid";
/// Nobody reads more of it, and an object has limits.
const MAX_MESSAGE: usize = 4 << 10;

/// Nor more messages than these: a rule with so many mistakes is mended one by one.
const MOST: usize = 20;

/// What is known of a rule.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Told {
    version: String,
    generation: i64,
    /// `observedGeneration`: a number or a text.
    observed: String,
    messages: Value,
    conditions: Vec<Value>,
}

impl Told {
    pub(super) fn read(object: Tree<'_>) -> Self {
        let status = object.get("status");
        let observed = status.and_then(|status| status.get("observedGeneration"));
        let conditions = status.and_then(|status| status.get("conditions"));
        Self {
            version: object.text_at(&["metadata", "resourceVersion"]).to_owned(),
            generation: object.at(&["metadata", "generation"]).and_then(Tree::number).unwrap_or_default(),
            observed: observed
                .map(|observed| {
                    observed
                        .number()
                        .map_or_else(|| observed.text().unwrap_or_default().to_owned(), |n| n.to_string())
                })
                .unwrap_or_default(),
            messages: status
                .and_then(|status| status.get("validationMessages"))
                .map_or(Value::Null, Tree::to_value),
            conditions: conditions.into_iter().flat_map(Tree::items).map(Tree::to_value).collect(),
        }
    }

    /// What we said the last time.
    fn condition(&self) -> Option<&Value> {
        self.conditions.iter().find(|condition| condition["type"] == CONDITION)
    }

    fn says_nothing(&self) -> bool {
        self.condition().is_none() && self.messages.as_array().is_none_or(Vec::is_empty)
    }
}

pub(super) type Key = (Kind, ConfigId);

/// All rules of the cluster, and what is wrong with them.
#[derive(Default)]
pub(super) struct Book {
    told: BTreeMap<Key, Told>,
    wrong: BTreeMap<Key, Vec<(Severity, String)>>,
    open: BTreeSet<Key>,
}

impl Book {
    /// What is to be looked at.
    pub(super) fn open(&self) -> &BTreeSet<Key> {
        &self.open
    }

    pub(super) fn take_open(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.open)
    }

    pub(super) fn reopen(&mut self, key: Key) {
        self.open.insert(key);
    }

    pub(super) fn hear(&mut self, kind: Kind, changes: Vec<Change<Told>>) {
        for Change { id, what, .. } in changes {
            let key = (kind, id);
            match what {
                What::Put(told) => {
                    // Rules that are well and say nothing are the most by far.
                    if !told.says_nothing() || self.wrong.contains_key(&key) {
                        self.open.insert(key.clone());
                    }
                    self.told.insert(key, told);
                }
                What::Gone => drop(self.told.remove(&key)),
                What::Same => {}
            }
        }
    }

    /// Takes note of all that is wrong now.
    pub(super) fn judge(&mut self, issues: &[Issue]) {
        let mut wrong: BTreeMap<Key, Vec<(Severity, String)>> = BTreeMap::new();
        // If there are too many, those count that have a rule refused.
        let of = |severity: Severity| issues.iter().filter(move |issue| issue.severity == severity);
        for issue in of(Severity::Error).chain(of(Severity::Warning)) {
            let Some(kind) = kind_of(&issue.object.kind) else { continue };
            let id = ConfigId::new(issue.object.namespace.clone(), issue.object.name.clone());
            let all = wrong.entry((kind, id)).or_default();
            if all.len() >= MOST {
                continue;
            }
            let text = if issue.path.is_empty() {
                issue.message.clone()
            } else {
                format!("{}: {}", issue.path, issue.message)
            };
            if !all.iter().any(|(severity, known)| (*severity, known) == (issue.severity, &text)) {
                all.push((issue.severity, text));
            }
        }
        let differs = |key: &&Key| self.wrong.get(*key) != wrong.get(*key);
        let changed: BTreeSet<Key> = self.wrong.keys().chain(wrong.keys()).filter(differs).cloned().collect();
        self.wrong = wrong;
        // One that is not there yet, or in another store, is looked at when it is told.
        self.open.extend(changed.into_iter().filter(|key| self.told.contains_key(key)));
    }

    /// What to write; nothing if that stands there already.
    pub(super) fn wanted(&self, (kind, id): (Kind, &ConfigId), now: &str) -> Option<Value> {
        let key = (kind, id.clone());
        let told = self.told.get(&key)?;
        let none = Vec::new();
        let wrong = self.wrong.get(&key).unwrap_or(&none);
        if wrong.is_empty() && told.says_nothing() {
            return None;
        }
        let messages: Value = wrong.iter().map(|(severity, _)| message(*severity)).collect();
        let is_said = told.messages == messages || (wrong.is_empty() && told.messages.is_null());
        let mut conditions: Vec<Value> =
            told.conditions.iter().filter(|condition| condition["type"] != CONDITION).cloned().collect();
        let before = told.condition();
        let condition = condition(wrong, before, now);
        let is_same = match (before, &condition) {
            (Some(before), Some(condition)) => {
                ["status", "message"].iter().all(|field| before[field] == condition[field])
            }
            (None, None) => true,
            _ => false,
        };
        if is_said && is_same && told.observed == told.generation.to_string() {
            return None;
        }
        conditions.extend(condition);
        Some(json!({
            "metadata": {"resourceVersion": told.version},
            "status": {
                "validationMessages": messages,
                "conditions": conditions,
                "observedGeneration": told.generation,
            },
        }))
    }
}

/// As Istio's analysis writes it.
fn message(severity: Severity) -> Value {
    let level = match severity {
        Severity::Error => "ERROR",
        Severity::Warning => "WARNING",
    };
    json!({"type": {"code": CODE}, "level": level, "documentationUrl": MORE})
}

/// Nothing about a rule that is well.
fn condition(wrong: &[(Severity, String)], before: Option<&Value>, now: &str) -> Option<Value> {
    let is_refused = wrong.iter().any(|(severity, _)| *severity == Severity::Error);
    let mut message = wrong.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("; ");
    if message.is_empty() {
        return None;
    }
    if message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE).rev().find(|at| message.is_char_boundary(*at)).unwrap_or_default();
        message.truncate(end);
    }
    let status = if is_refused { "False" } else { "True" };
    let same = before.filter(|before| before["status"] == status);
    let since = same.and_then(|before| before["lastTransitionTime"].as_str()).unwrap_or(now);
    Some(json!({
        "type": CONDITION, "status": status, "message": message,
        "reason": if is_refused { "Refused" } else { "Warned" },
        "lastTransitionTime": since,
    }))
}

#[cfg(test)]
mod tests {
    use pilot_base::{Issue, Name};
    use pilot_config::Document;
    use pilot_model::{ConfigId, Kind};
    use pilot_source_kube::{Change, What};
    use serde_json::{Value, json};

    use super::{Book, Told};

    const KIND: Kind = Kind::VirtualService;

    fn id() -> ConfigId {
        ConfigId::new("shop", "cart")
    }

    fn rule(generation: u32, status: &Value) -> Vec<Change<Told>> {
        let object =
            json!({"metadata": {"generation": generation, "resourceVersion": "9"}, "status": status});
        let told = Told::read(Document::parse(object.to_string().as_bytes()).unwrap().tree());
        vec![Change { id: id(), what: What::Put(told), is_new: false, issues: Vec::new() }]
    }

    fn issue(severe: &str) -> Issue {
        let object = id().object(KIND);
        match severe {
            "error" => Issue::error(object, "spec.http[0].timeout", "must be at least 1ms"),
            _ => Issue::warning(object, "", "has no effect"),
        }
    }

    fn wanted(book: &mut Book) -> Option<Value> {
        let open = book.take_open();
        open.iter().find_map(|(kind, id)| book.wanted((*kind, id), "2026-01-01T00:00:00Z"))
    }

    #[test]
    fn a_rule_that_is_well_is_left_alone() {
        let mut book = Book::default();
        book.hear(KIND, rule(1, &json!(null)));
        book.hear(KIND, rule(2, &json!({"conditions": [{"type": "Theirs"}]})));
        assert!(book.open().is_empty());
    }

    #[test]
    fn what_is_wrong_is_written_once_and_taken_back() {
        let mut book = Book::default();
        let theirs = json!({"conditions": [{"type": "Theirs", "status": "True"}]});
        book.hear(KIND, rule(3, &theirs));
        book.judge(&[issue("error"), issue("warning")]);
        let patch = wanted(&mut book).unwrap();
        let status = &patch["status"];
        assert_eq!(patch["metadata"]["resourceVersion"], "9");
        assert_eq!(status["validationMessages"][0]["type"]["code"], "IST0106");
        assert_eq!(status["validationMessages"][1]["level"], "WARNING");
        assert_eq!(status["observedGeneration"], 3);
        assert_eq!(status["conditions"][0]["type"], "Theirs");
        assert_eq!(
            status["conditions"][1]["message"],
            "spec.http[0].timeout: must be at least 1ms; has no effect"
        );
        // It is told back, and nothing is left to do, however often it is told.
        for _ in 0..2 {
            book.hear(KIND, rule(3, status));
            book.judge(&[issue("error"), issue("warning")]);
            assert_eq!(wanted(&mut book), None);
        }
        // Another generation with the same mistakes is another one all the same.
        book.hear(KIND, rule(4, status));
        assert_eq!(wanted(&mut book).unwrap()["status"]["observedGeneration"], 4);
        book.judge(&[]);
        let well = wanted(&mut book).unwrap();
        assert_eq!(well["status"]["validationMessages"], json!([]));
        assert_eq!(well["status"]["conditions"], theirs["conditions"]);
        book.hear(KIND, rule(4, &well["status"]));
        assert_eq!(wanted(&mut book), None);
    }

    #[test]
    fn what_another_server_wrote_and_is_true_no_more_is_taken_back() {
        let mut book = Book::default();
        let stale = json!({"validationMessages": [{"level": "ERROR", "type": {"code": "IST0101"}}]});
        book.hear(KIND, rule(1, &stale));
        assert_eq!(wanted(&mut book).unwrap()["status"]["validationMessages"], json!([]));
    }

    #[test]
    fn objects_elsewhere_are_not_looked_for() {
        let mut book = Book::default();
        let cluster = pilot_base::ObjectRef::new("Cluster", Name::empty(), "east");
        book.judge(&[issue("error"), Issue::error(cluster, "", "is gone")]);
        assert!(book.open().is_empty());
        book.hear(KIND, rule(1, &json!(null)));
        assert!(wanted(&mut book).is_some());
    }

    #[test]
    fn of_very_many_mistakes_some_are_told_and_those_that_count_first() {
        let mut book = Book::default();
        book.hear(KIND, rule(1, &json!(null)));
        let warnings = (0..1000).map(|i| Issue::warning(id().object(KIND), "", format!("mistake {i}")));
        let issues: Vec<Issue> = warnings.chain([issue("error")]).collect();
        book.judge(&issues);
        let status = &wanted(&mut book).unwrap()["status"];
        assert_eq!(status["validationMessages"].as_array().unwrap().len(), 20);
        assert_eq!(status["validationMessages"][0]["level"], "ERROR");
        assert_eq!(status["conditions"][0]["status"], "False");
    }

    #[test]
    fn a_warning_is_no_refusal() {
        let mut book = Book::default();
        book.hear(KIND, rule(1, &json!(null)));
        book.judge(&[issue("warning")]);
        let patch = wanted(&mut book).unwrap();
        assert_eq!(patch["status"]["conditions"][0]["status"], "True");
        assert_eq!(patch["status"]["conditions"][0]["reason"], "Warned");
    }
}
