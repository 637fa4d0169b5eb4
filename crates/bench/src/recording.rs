use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;

use crate::resource::Kind;
use crate::wire::{Fields, Value, first, put_bytes};

/// All that one proxy was sent, for the floor to send again.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Recording([BTreeMap<Vec<u8>, Vec<u8>>; 4]);

impl Recording {
    pub(crate) fn put(&mut self, kind: Kind, name: &[u8], value: &[u8]) {
        self.0[kind.index()].insert(name.to_vec(), value.to_vec());
    }

    pub fn of(&self, kind: Kind) -> &BTreeMap<Vec<u8>, Vec<u8>> {
        &self.0[kind.index()]
    }

    /// One field per resource, whose number says its type.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let (mut out, mut entry) = (Vec::new(), Vec::new());
        for (number, resources) in (1..).zip(&self.0) {
            for (name, value) in resources {
                entry.clear();
                put_bytes(&mut entry, 1, name);
                put_bytes(&mut entry, 2, value);
                put_bytes(&mut out, number, &entry);
            }
        }
        std::fs::write(path, out).with_context(|| format!("{} cannot be written", path.display()))
    }

    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let bytes = std::fs::read(path).with_context(|| {
            format!("{} cannot be read; `pilot-bench load --record FILE` makes one", path.display())
        })?;
        let mut recording = Self::default();
        for field in Fields(&bytes) {
            let (number, Value::Bytes(entry)) = field else { continue };
            if let Some(kind) = (number as usize).checked_sub(1).and_then(|index| Kind::ALL.get(index)) {
                recording.put(
                    *kind,
                    first(entry, 1).unwrap_or_default(),
                    first(entry, 2).unwrap_or_default(),
                );
            }
        }
        anyhow::ensure!(!recording.0[0].is_empty(), "{} has no cluster: record it again", path.display());
        Ok(recording)
    }
}

#[cfg(test)]
mod tests {
    use super::Recording;
    use crate::resource::Kind;

    #[test]
    fn a_recording_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rec");
        assert!(format!("{:#}", Recording::load(&path).unwrap_err()).contains("--record"));
        let mut recording = Recording::default();
        recording.put(Kind::Route, b"80", b"table");
        recording.save(&path).unwrap();
        assert!(Recording::load(&path).is_err());
        recording.put(Kind::Cluster, b"a", b"");
        recording.save(&path).unwrap();
        assert_eq!(Recording::load(&path).unwrap(), recording);
    }
}
