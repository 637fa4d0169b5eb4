use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The files that are meant, with those of folders, in order of their names.
pub(crate) fn collect(paths: &[&Path]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        add(path, &mut files)?;
    }
    if files.is_empty() {
        bail!("there is no .yaml, .yml or .json file");
    }
    files.sort();
    Ok(files)
}

fn add(path: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let kind = std::fs::metadata(path).with_context(|| path.display().to_string())?;
    if !kind.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_ours = path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        if !is_hidden && (path.is_dir() || is_ours) {
            add(&path, files)?;
        }
    }
    Ok(())
}
