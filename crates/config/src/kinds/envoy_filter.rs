//! EnvoyFilter: every patch is checked by itself, so that one that cannot be used does not take the others along.

mod matching;
mod value;

use api::envoy_filter as parts;
use pilot_api::networking as api;
use pilot_base::Labels;
use pilot_model::{
    ApplyTo, EnvoyFilter, EnvoyPatch, ObjectMatch, PatchContext, PatchOperation, PolicyTarget, TargetRef,
};

use crate::check::Check;

/// Longer ones are costly to look for, and no version is that long.
const LONGEST_VERSION: usize = 1024;

pub(crate) fn decode(message: api::EnvoyFilter, check: &mut Check<'_>) -> EnvoyFilter {
    let patches = message.config_patches.into_iter().enumerate();
    EnvoyFilter {
        target: PolicyTarget {
            selector: message.workload_selector.map(|selector| self::selector(selector, check)),
            refs: message.target_refs.into_iter().map(target).collect(),
        },
        priority: message.priority,
        patches: patches.filter_map(|(index, patch)| self::patch(index, patch, check)).collect(),
    }
}

fn selector(selector: api::WorkloadSelector, check: &mut Check<'_>) -> Labels {
    let path = "spec.workloadSelector";
    if selector.labels.is_empty() {
        check.warn(path, "has no labels, so that it selects every workload of the namespace");
    }
    for (key, value) in &selector.labels {
        if key.is_empty() {
            check.reject(format!("{path}.labels"), format!("{value:?} stands under an empty key"));
        }
        if key.contains('*') || value.contains('*') {
            let message = format!("{key}={value} has a wildcard, which labels cannot have");
            check.reject(format!("{path}.labels"), message);
        }
    }
    Labels::new(selector.labels)
}

fn target(target: pilot_api::selector::PolicyTargetReference) -> TargetRef {
    let group = if target.group == "core" { "" } else { target.group.as_str() };
    TargetRef {
        group: group.into(),
        kind: target.kind.into(),
        name: target.name.into(),
        namespace: target.namespace.into(),
    }
}

/// Nothing, if the patch cannot be used.
fn patch(index: usize, patch: parts::EnvoyConfigObjectPatch, check: &mut Check<'_>) -> Option<EnvoyPatch> {
    let path = format!("spec.configPatches[{index}]");
    let matching = patch.r#match.clone().unwrap_or_default();
    let Some(context) = context(&matching) else {
        check.warn(format!("{path}.match.context"), "there are no waypoints here, so that it has no effect");
        return None;
    };
    let Some(apply_to) = apply_to(&patch) else {
        check.leave_out(format!("{path}.applyTo"), "is missing: say what to change, such as HTTP_FILTER");
        return None;
    };
    let Some(what) = patch.patch else {
        check.leave_out(format!("{path}.patch"), "is missing: say what to do");
        return None;
    };
    let Some(operation) = operation(&what) else {
        check.leave_out(format!("{path}.patch.operation"), "is missing: say what to do, such as MERGE");
        return None;
    };
    if what.value.is_none() && operation != PatchOperation::Remove {
        check.leave_out(format!("{path}.patch.value"), format!("is missing: {operation} needs one"));
        return None;
    }
    if what.filter_class != parts::patch::FilterClass::Unspecified as i32 {
        let message = "has no effect, as in Istio: the place of a filter follows from operation and match";
        check.warn(format!("{path}.patch.filterClass"), message);
    }
    let proxy = matching.proxy.clone().unwrap_or_default();
    let proxy_version = version(&format!("{path}.match.proxy.proxyVersion"), &proxy.proxy_version, check)?;
    let object = matching::object(&format!("{path}.match"), apply_to, matching.object_types, check)?;
    let operation = applicable(&path, apply_to, operation, &object, check);
    let value = match what.value {
        Some(_) => value::read(&format!("{path}.patch.value"), apply_to, check)?,
        None => Vec::new(),
    };
    Some(EnvoyPatch {
        index,
        apply_to,
        context,
        proxy_version,
        metadata: proxy.metadata.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
        object,
        operation,
        value: value.into(),
    })
}

/// Nothing for waypoints.
fn context(matching: &parts::EnvoyConfigObjectMatch) -> Option<PatchContext> {
    use parts::PatchContext as Api;
    match Api::try_from(matching.context).unwrap_or(Api::Any) {
        Api::Any => Some(PatchContext::Any),
        Api::SidecarInbound => Some(PatchContext::SidecarInbound),
        Api::SidecarOutbound => Some(PatchContext::SidecarOutbound),
        Api::Gateway => Some(PatchContext::Gateway),
        Api::Waypoint => None,
    }
}

fn apply_to(patch: &parts::EnvoyConfigObjectPatch) -> Option<ApplyTo> {
    use parts::ApplyTo as Api;
    match Api::try_from(patch.apply_to).ok()? {
        Api::Invalid => None,
        Api::Listener => Some(ApplyTo::Listener),
        Api::FilterChain => Some(ApplyTo::FilterChain),
        Api::NetworkFilter => Some(ApplyTo::NetworkFilter),
        Api::HttpFilter => Some(ApplyTo::HttpFilter),
        Api::RouteConfiguration => Some(ApplyTo::RouteConfiguration),
        Api::VirtualHost => Some(ApplyTo::VirtualHost),
        Api::HttpRoute => Some(ApplyTo::HttpRoute),
        Api::Cluster => Some(ApplyTo::Cluster),
        Api::ExtensionConfig => Some(ApplyTo::ExtensionConfig),
        Api::Bootstrap => Some(ApplyTo::Bootstrap),
        Api::ListenerFilter => Some(ApplyTo::ListenerFilter),
    }
}

fn operation(patch: &parts::Patch) -> Option<PatchOperation> {
    use parts::patch::Operation as Api;
    match Api::try_from(patch.operation).ok()? {
        Api::Invalid => None,
        Api::Merge => Some(PatchOperation::Merge),
        Api::Add => Some(PatchOperation::Add),
        Api::Remove => Some(PatchOperation::Remove),
        Api::InsertBefore => Some(PatchOperation::InsertBefore),
        Api::InsertAfter => Some(PatchOperation::InsertAfter),
        Api::InsertFirst => Some(PatchOperation::InsertFirst),
        Api::Replace => Some(PatchOperation::Replace),
        Api::MergeAndReplaceList => Some(PatchOperation::MergeAndReplaceList),
    }
}

/// The outer `None` is for a patch that cannot be used.
fn version(path: &str, pattern: &str, check: &mut Check<'_>) -> Option<Option<pilot_base::Name>> {
    if pattern.is_empty() {
        return Some(None);
    }
    if pattern.len() > LONGEST_VERSION {
        let message = format!("is longer than {LONGEST_VERSION} characters, so that it matches no proxy");
        check.warn(path, message);
        return None;
    }
    match regex::Regex::new(pattern) {
        Ok(_) => Some(Some(pattern.into())),
        Err(error) => {
            check.leave_out(path, format!("{pattern:?} is not a regular expression: {error}"));
            None
        }
    }
}

/// What an operation amounts to. In lists whose order means nothing, inserting is adding.
fn applicable(
    path: &str,
    apply_to: ApplyTo,
    operation: PatchOperation,
    object: &ObjectMatch,
    check: &mut Check<'_>,
) -> PatchOperation {
    use PatchOperation as Op;
    let is_filter =
        matches!(apply_to, ApplyTo::HttpFilter | ApplyTo::NetworkFilter | ApplyTo::ListenerFilter);
    let has_order = is_filter || apply_to == ApplyTo::HttpRoute;
    let operation = if operation.is_insert() && !has_order { Op::Add } else { operation };
    let has_effect = match operation {
        Op::Merge => apply_to != ApplyTo::ExtensionConfig,
        Op::MergeAndReplaceList => !is_filter && apply_to != ApplyTo::ExtensionConfig,
        Op::Add => !matches!(apply_to, ApplyTo::RouteConfiguration | ApplyTo::Bootstrap),
        Op::InsertBefore | Op::InsertAfter | Op::InsertFirst => true,
        Op::Remove => {
            !matches!(apply_to, ApplyTo::RouteConfiguration | ApplyTo::Bootstrap | ApplyTo::ExtensionConfig)
        }
        Op::Replace => is_filter || apply_to == ApplyTo::VirtualHost,
    };
    let place = format!("{path}.patch.operation");
    if !has_effect {
        check.warn(place, format!("{operation} has no effect on {apply_to}"));
    } else if matches!(operation, Op::Remove | Op::Replace)
        && let Some(needed) = matching::missing_filter(apply_to, object)
    {
        check.warn(place, format!("{operation} has no effect unless {needed} says which filter is meant"));
    } else if operation == Op::Add && apply_to == ApplyTo::HttpFilter {
        let message =
            "puts the filter behind the router, where Envoy refuses it: use INSERT_BEFORE or INSERT_FIRST";
        check.warn(place, message);
    }
    operation
}

#[cfg(test)]
mod tests;
