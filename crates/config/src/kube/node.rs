use pilot_model::Node;

use crate::object::Meta;

pub(crate) fn decode(meta: &Meta) -> Node {
    Node { labels: meta.labels.clone(), address: None }
}
