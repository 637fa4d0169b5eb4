use pilot_config::{Document, Tree};
use serde_json::{Value, json};

use crate::validate::{Verdict, validate};

/// The versions of `AdmissionReview` that API servers speak. Whoever asks in one is answered in it.
const VERSIONS: [&str; 2] = ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"];

/// What is sent back, and what it came to.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// An `AdmissionReview`.
    pub json: Vec<u8>,
    pub outcome: Outcome,
}

/// What came of a question, for who counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Passed(Subject),
    Failed(Subject, Refusal),
    /// Somebody only tries out whether we are there. That is not counted.
    DryRun,
    /// It could not be read.
    Unreadable,
}

/// What kind of object it was about.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Subject {
    pub group: String,
    pub version: String,
    pub resource: String,
}

/// Why an object was not judged, or judged bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    UnsupportedOperation,
    Undecodable,
    UnknownType,
    Invalid,
}

impl Refusal {
    /// Istio's word for it, in metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::UnsupportedOperation => "unsupported_operation",
            Self::Undecodable => "yaml_decode_error",
            Self::UnknownType => "unknown_type",
            Self::Invalid => "invalid_resource",
        }
    }
}

/// Answers a question about an Istio object.
pub fn review(body: &[u8]) -> Answer {
    let document = match Document::parse(body) {
        Ok(document) => document,
        Err(why) => return unreadable("", &format!("could not decode body: {why}")),
    };
    let question = document.tree();
    let version = question.text_at(&["apiVersion"]);
    if question.text_at(&["kind"]) != "AdmissionReview" || !VERSIONS.contains(&version) {
        let why = format!("could not decode body: it is not an AdmissionReview of {}", VERSIONS.join(" or "));
        return unreadable("", &why);
    }
    let Some(request) = question.get("request") else {
        return unreadable(version, "could not decode object: the review has no request");
    };
    let verdict = judge(request);
    let outcome = match (&verdict, request.get("dryRun").is_some_and(Tree::is_true)) {
        (_, true) => Outcome::DryRun,
        (Verdict::Good { .. }, false) => Outcome::Passed(subject(request)),
        (Verdict::NotAsked, false) => Outcome::Failed(subject(request), Refusal::UnsupportedOperation),
        (Verdict::Bad(refusal, _), false) => Outcome::Failed(subject(request), *refusal),
    };
    Answer { json: written(version, request.text_at(&["uid"]), &verdict), outcome }
}

fn judge(request: Tree<'_>) -> Verdict {
    match request.text_at(&["operation"]) {
        "CREATE" | "UPDATE" => match request.get("object") {
            Some(object) => validate(object, request.text_at(&["namespace"])),
            None => {
                Verdict::Bad(Refusal::Undecodable, "cannot decode configuration: there is no object".into())
            }
        },
        _ => Verdict::NotAsked,
    }
}

fn subject(request: Tree<'_>) -> Subject {
    let text = |field: &str| request.text_at(&["resource", field]).to_owned();
    Subject { group: text("group"), version: text("version"), resource: text("resource") }
}

fn unreadable(version: &str, why: &str) -> Answer {
    let verdict = Verdict::Bad(Refusal::Undecodable, why.to_owned());
    Answer { json: written(version, "", &verdict), outcome: Outcome::Unreadable }
}

fn written(version: &str, uid: &str, verdict: &Verdict) -> Vec<u8> {
    let version = if version.is_empty() { VERSIONS[0] } else { version };
    let mut response = match verdict {
        Verdict::Good { warnings } if warnings.is_empty() => json!({"allowed": true}),
        Verdict::Good { warnings } => json!({"allowed": true, "warnings": warnings}),
        Verdict::NotAsked => json!({"allowed": true}),
        Verdict::Bad(_, why) => json!({"allowed": false, "status": {"metadata": {}, "message": why}}),
    };
    response["uid"] = Value::from(uid);
    json!({"kind": "AdmissionReview", "apiVersion": version, "response": response}).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Answer, Outcome, Refusal, Subject, review};

    fn ask(request: &Value) -> (Value, Outcome) {
        asked(&json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}))
    }

    fn asked(question: &Value) -> (Value, Outcome) {
        let Answer { json, outcome } = review(question.to_string().as_bytes());
        let answer: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(answer["kind"], "AdmissionReview");
        (answer, outcome)
    }

    fn rule(spec: &Value) -> Value {
        json!({
            "uid": "7", "operation": "CREATE", "namespace": "shop",
            "resource": {"group": "networking.istio.io", "version": "v1", "resource": "virtualservices"},
            "object": {
                "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
                "metadata": {"name": "r", "namespace": "shop"}, "spec": spec,
            },
        })
    }

    fn good() -> Value {
        rule(&json!({"hosts": ["a"], "http": [{"route": [{"destination": {"host": "a"}}]}]}))
    }

    fn subject() -> Subject {
        Subject {
            group: "networking.istio.io".to_owned(),
            version: "v1".to_owned(),
            resource: "virtualservices".to_owned(),
        }
    }

    #[test]
    fn good_objects_are_let_in() {
        let (answer, outcome) = ask(&good());
        assert_eq!(answer["response"], json!({"uid": "7", "allowed": true}));
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(outcome, Outcome::Passed(subject()));
    }

    #[test]
    fn whoever_asks_in_an_old_version_is_answered_in_it() {
        let question =
            json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": good()});
        assert_eq!(asked(&question).0["apiVersion"], "admission.k8s.io/v1beta1");
    }

    #[test]
    fn bad_objects_are_refused_with_field_and_reason() {
        let spec =
            json!({"hosts": ["a"], "http": [{"timeout": "soon", "route": [{"destination": {"host": "a"}}]}]});
        let (answer, outcome) = ask(&rule(&spec));
        assert_eq!(answer["response"]["allowed"], false);
        let message = answer["response"]["status"]["message"].as_str().unwrap();
        assert!(message.starts_with("configuration is invalid: spec.http[0].timeout: "), "{message}");
        assert_eq!(outcome, Outcome::Failed(subject(), Refusal::Invalid));
    }

    #[test]
    fn a_field_that_no_object_has_is_refused() {
        let mut request = good();
        request["object"]["spce"] = json!({});
        let (answer, _) = ask(&request);
        let message = answer["response"]["status"]["message"].as_str().unwrap();
        assert!(message.contains("\"spce\"") && message.contains("shop/r"), "{message}");
    }

    #[test]
    fn the_version_of_a_kind_does_not_matter_and_the_kind_does() {
        let mut request = good();
        request["object"]["apiVersion"] = json!("networking.istio.io/v9");
        assert_eq!(ask(&request).0["response"]["allowed"], true);
        request["object"]["kind"] = json!("VirtualServer");
        let (answer, outcome) = ask(&request);
        assert_eq!(answer["response"]["allowed"], false);
        assert_eq!(outcome, Outcome::Failed(subject(), Refusal::UnknownType));
        request["object"]["kind"] = json!("Service");
        request["object"]["apiVersion"] = json!("v1");
        assert_eq!(
            ask(&request).0["response"]["allowed"],
            false,
            "Kubernetes' own objects are not ours to judge"
        );
    }

    #[test]
    fn only_what_is_kept_is_judged() {
        let mut request = rule(&json!({}));
        for operation in ["DELETE", "CONNECT"] {
            request["operation"] = json!(operation);
            let (answer, outcome) = ask(&request);
            assert_eq!(answer["response"]["allowed"], true);
            assert_eq!(outcome, Outcome::Failed(subject(), Refusal::UnsupportedOperation));
        }
    }

    #[test]
    fn who_tries_out_whether_we_are_there_is_refused_and_not_counted() {
        let mut request = good();
        request["dryRun"] = json!(true);
        request["object"]["metadata"]["annotations"] =
            json!({"internal.istio.io/webhook-always-reject": "true"});
        let (answer, outcome) = ask(&request);
        assert_eq!(answer["response"]["allowed"], false);
        assert_eq!(outcome, Outcome::DryRun);
    }

    #[test]
    fn nonsense_is_answered_too() {
        for body in ["", "{", "[]", "{}", r#"{"kind": "AdmissionReview"}"#] {
            let answer = review(body.as_bytes());
            assert_eq!(answer.outcome, Outcome::Unreadable, "{body}");
            let value: Value = serde_json::from_slice(&answer.json).unwrap();
            assert_eq!(value["response"]["allowed"], false, "{body}");
        }
        let empty = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"});
        assert_eq!(asked(&empty).1, Outcome::Unreadable);
        let without = json!({"uid": "1", "operation": "CREATE", "object": null});
        assert_eq!(ask(&without).0["response"]["allowed"], false);
    }
}
