//! What patches do to lists whose order counts.

use pilot_envoy_api::reflect::{Lists, merge_any, merge_typed};
use pilot_model::PatchOperation as Op;
use prost_types::Any;

use super::{Faults, Patch};

/// Adds, inserts, replaces and removes. `finds` tells whether an item is the one that is meant; nothing, if the patch
/// does not say which one.
pub(super) fn arrange<T: Clone>(
    list: &mut Vec<T>,
    operation: Op,
    item: impl Fn() -> T,
    finds: Option<&dyn Fn(&T) -> bool>,
) {
    let place = finds.map(|finds| list.iter().position(finds));
    match (operation, place) {
        (Op::Add, _) | (Op::InsertAfter, None) => list.push(item()),
        (Op::InsertFirst, _) | (Op::InsertBefore, None) => list.insert(0, item()),
        (Op::InsertAfter, Some(Some(at))) => list.insert(at + 1, item()),
        (Op::InsertBefore, Some(Some(at))) => list.insert(at, item()),
        (Op::Replace, Some(Some(at))) => list[at] = item(),
        (Op::Remove, Some(Some(_))) => {
            if let Some(finds) = finds {
                list.retain(|item| !finds(item));
            }
        }
        _ => (),
    }
}

/// Merges what a patch brings into a message.
pub(super) fn merge<M: prost::Message + prost::Name + Default>(
    message: &mut M,
    patch: &Patch,
    faults: &mut Faults,
) {
    let lists = match patch.spec.operation {
        Op::MergeAndReplaceList => Lists::Replace,
        _ => Lists::Append,
    };
    if !merge_typed(message, &patch.spec.value, lists) {
        faults.add(patch, "the result would not be a message Envoy could read");
    }
}

/// Merges the configuration of an extension with that of the same type in a patch.
pub(super) fn merge_config(base: &mut Any, over: &Any, patch: &Patch, faults: &mut Faults) {
    match merge_any(base, over) {
        Some(merged) => *base = merged,
        None => {
            let message = format!(
                "{} cannot be merged into {}: the types must be the same",
                over.type_url, base.type_url
            );
            faults.add(patch, message);
        }
    }
}
