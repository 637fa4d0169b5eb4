use pilot_model::Namespace;

use crate::object::Meta;

pub(crate) fn decode(meta: &Meta) -> Namespace {
    Namespace { labels: meta.labels.clone(), annotations: meta.annotations.clone() }
}
