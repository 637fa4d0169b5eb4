//! The folder that a server follows.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::mesh::{Mesh, Service};

/// Files come and go whole: nobody sees half of one.
pub struct Folder {
    path: PathBuf,
    /// Where files are written before they take their name, on the same disk.
    aside: PathBuf,
}

impl Folder {
    /// A folder below `scratch` with all of these files.
    pub fn create(scratch: &Path, files: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let (path, aside) = (scratch.join("config"), scratch.join("aside"));
        for folder in [&path, &aside] {
            fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        }
        for (name, text) in files {
            fs::write(path.join(name), text)
                .with_context(|| format!("{} cannot be filled; is the disk full?", path.display()))?;
        }
        Ok(Self { path, aside })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn put(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let new = self.aside.join(name);
        fs::write(&new, text).with_context(|| format!("{} cannot be written", new.display()))?;
        fs::rename(&new, self.path.join(name)).with_context(|| format!("{name} cannot be put in place"))
    }

    /// A file that is not there is gone already.
    pub fn remove(&self, name: &str) -> anyhow::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("{name} cannot be removed"))
            }
            _ => Ok(()),
        }
    }

    pub fn put_entry(&self, mesh: &Mesh, service: &Service) -> anyhow::Result<()> {
        self.put(&service.files()[0], &mesh.entry(service))
    }

    pub fn put_rules(&self, mesh: &Mesh, service: &Service) -> anyhow::Result<()> {
        let [_, file] = service.files();
        match mesh.rules(service) {
            Some(text) => self.put(&file, &text),
            None => self.remove(&file),
        }
    }

    pub fn remove_service(&self, service: &Service) -> anyhow::Result<()> {
        service.files().iter().try_for_each(|file| self.remove(file))
    }
}
