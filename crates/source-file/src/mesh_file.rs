use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use pilot_base::{Issue, Name, ObjectRef};
use pilot_source::{Batch, Event, Running, Sink, Source};

use crate::walk::{above, real_parent};
use crate::watch::Watch;

/// The settings of the mesh in a file, which may appear, change and go.
pub struct MeshFile {
    path: PathBuf,
    watch: Watch,
    /// What was last told.
    told: Option<String>,
    troubled: bool,
}

impl MeshFile {
    pub fn open(path: impl Into<PathBuf>) -> notify::Result<Self> {
        Ok(Self { path: path.into(), watch: Watch::new()?, told: None, troubled: false })
    }

    /// Reads the file if it says something new. A file that is gone leaves what it said.
    fn look(&mut self) -> Batch {
        // Followed before it is read, so that no change is missed; and where a link leads to, as Kubernetes mounts files.
        let folders: BTreeSet<PathBuf> =
            [above(&self.path), real_parent(&self.path)].into_iter().flatten().collect();
        self.watch.follow(&folders);
        let file = self.path.display().to_string();
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.note(None),
            Err(error) => {
                let object = ObjectRef::new("MeshConfig", Name::empty(), file.as_str());
                return self.note(Some(vec![Issue::error(object, "", error.to_string()).at(file)]));
            }
        };
        if self.told.as_ref() == Some(&text) {
            return Batch::default();
        }
        let read = pilot_config::read_mesh_config(&text, &file);
        self.told = Some(text);
        match read {
            Ok((mesh, issues)) => {
                let mut batch = self.note(Some(issues));
                batch.events.push(Event::Mesh(Box::new(mesh)));
                batch
            }
            Err(issue) => self.note(Some(vec![issue])),
        }
    }

    fn note(&mut self, issues: Option<Vec<Issue>>) -> Batch {
        let issues = issues.unwrap_or_default();
        let was_troubled = std::mem::replace(&mut self.troubled, !issues.is_empty());
        let mut batch = Batch::default();
        if was_troubled || self.troubled {
            batch.issues.push((self.name(), issues));
        }
        batch
    }
}

impl Source for MeshFile {
    fn name(&self) -> Name {
        Name::from(self.path.display().to_string())
    }

    fn run(mut self: Box<Self>, sink: Sink) -> Running {
        Box::pin(async move {
            let mut batch = self.look();
            // Without a file the mesh has Istio's defaults.
            if !batch.events.iter().any(|event| matches!(event, Event::Mesh(_))) {
                batch.events.push(Event::Mesh(Box::default()));
            }
            batch.events.extend([Event::Init, Event::InitDone]);
            loop {
                if !batch.is_empty() && sink.send(batch).await.is_err() {
                    return;
                }
                tokio::select! {
                    _ = self.watch.next() => {}
                    () = sink.closed() => return,
                }
                batch = self.look();
            }
        })
    }
}
