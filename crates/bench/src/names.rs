use bytes::Bytes;
use parking_lot::RwLock;
use pilot_base::FastMap;

/// A name or a version that thousands of proxies hold, as a small number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id(u32);

/// Every name and version that was ever said.
#[derive(Default)]
pub struct Names(RwLock<Known>);

#[derive(Default)]
struct Known {
    ids: FastMap<Bytes, Id>,
    texts: Vec<Bytes>,
}

impl Names {
    pub fn id(&self, text: &[u8]) -> Id {
        if let Some(id) = self.0.read().ids.get(text) {
            return *id;
        }
        let mut known = self.0.write();
        // Somebody else may have been faster.
        if let Some(id) = known.ids.get(text) {
            return *id;
        }
        let (id, text) =
            (Id(u32::try_from(known.texts.len()).unwrap_or(u32::MAX)), Bytes::copy_from_slice(text));
        known.texts.push(text.clone());
        known.ids.insert(text, id);
        id
    }

    pub fn text(&self, id: Id) -> Bytes {
        self.0.read().texts.get(id.0 as usize).cloned().unwrap_or_default()
    }

    /// The texts of many, with the least waiting.
    pub fn texts(&self, ids: impl IntoIterator<Item = Id>) -> Vec<Bytes> {
        let known = self.0.read();
        ids.into_iter().filter_map(|id| known.texts.get(id.0 as usize).cloned()).collect()
    }
}
