//! What a watch says.

use pilot_config::{Document, Tree};

use super::{End, salvage};
use crate::client::CallError;
use crate::known::{Change, Known, Look};

/// One event of a watch. Tells how the watch has ended, if it has.
pub(super) fn hear<L: Look>(
    line: &[u8],
    version: &mut String,
    (known, look): (&mut Known, &L),
    changes: &mut Vec<Change<L::Value>>,
) -> Option<End> {
    let document = match Document::parse(line) {
        Ok(document) => document,
        Err(why) => {
            let Some((change, at)) = salvage::event(line, &why, known, look) else {
                return Some(End::Failed(CallError::Broken(why)));
            };
            changes.extend(change);
            *version = at;
            return None;
        }
    };
    let event = document.tree();
    let broken = || Some(End::Failed(CallError::Broken("an event without an object".to_owned())));
    let Some(object) = event.get("object") else { return broken() };
    let told = object.text_at(&["metadata", "resourceVersion"]);
    match event.text_at(&["type"]) {
        "ADDED" | "MODIFIED" => changes.extend(known.put(object, look)),
        "DELETED" => changes.extend(known.gone(object)),
        "BOOKMARK" => {}
        // An error stands in the object.
        _ => {
            let code = object.get("code").and_then(Tree::number).and_then(|code| u16::try_from(code).ok());
            return Some(if is_expired(code) { End::Expired } else { End::Failed(said(object, code)) });
        }
    }
    if !told.is_empty() {
        known.reached(told);
        told.clone_into(version);
    }
    None
}

/// The error that a watch tells.
fn said(object: Tree<'_>, code: Option<u16>) -> CallError {
    let text = |field: &str| object.text_at(&[field]).to_owned();
    let (reason, message) = (text("reason"), text("message"));
    CallError::Refused { status: code.unwrap_or(500), reason, message, retry_after: None }
}

/// `410 Gone`, also when a server has not reached the version yet, as after a restore.
pub(super) fn is_expired(status: Option<u16>) -> bool {
    matches!(status, Some(410 | 504))
}
