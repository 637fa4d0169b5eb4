use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use pilot_base::{Issue, Name, ObjectRef};
use pilot_source::{Batch, Event, Running, Sink, Source};

use crate::walk::{above, real_parent};
use crate::watch::{Interest, Watch, may_lead_on};

/// What a file of the mesh is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    Settings,
    Networks,
}

/// The settings of the mesh in a file, or its networks, which may appear, change and go.
pub struct MeshFile {
    path: PathBuf,
    about: About,
    watch: Watch,
    /// What was last told.
    told: Option<String>,
    troubled: bool,
}

impl About {
    fn read(self, text: &str, file: &str) -> Result<(Event, Vec<Issue>), Vec<Issue>> {
        match self {
            Self::Settings => pilot_config::read_mesh_config(text, file)
                .map(|(mesh, issues)| (Event::Mesh(Box::new(mesh)), issues)),
            Self::Networks => pilot_config::read_mesh_networks(text, file)
                .map(|(networks, issues)| (Event::Networks(Box::new(networks)), issues)),
        }
    }

    fn default(self) -> Event {
        match self {
            Self::Settings => Event::Mesh(Box::default()),
            Self::Networks => Event::Networks(Box::default()),
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Settings => "MeshConfig",
            Self::Networks => "MeshNetworks",
        }
    }
}

impl MeshFile {
    pub fn open(path: impl Into<PathBuf>) -> notify::Result<Self> {
        Self::follow(path.into(), About::Settings)
    }

    /// The networks of the mesh.
    pub fn open_networks(path: impl Into<PathBuf>) -> notify::Result<Self> {
        Self::follow(path.into(), About::Networks)
    }

    fn follow(path: PathBuf, about: About) -> notify::Result<Self> {
        let names: BTreeSet<OsString> = path.iter().map(OsStr::to_owned).collect();
        let own = path.file_name().map(OsStr::to_owned);
        let is_read = move |touched: &Path| touched.file_name() == own.as_deref();
        // Folders on the way there, and the links that Kubernetes swaps.
        let leads_on = move |touched: &Path| {
            touched.file_name().is_some_and(|n| names.contains(n)) || may_lead_on(touched)
        };
        let watch = Watch::new(Interest { is_read: Box::new(is_read), leads_on: Box::new(leads_on) })?;
        Ok(Self { path, about, watch, told: None, troubled: false })
    }

    /// Reads the file if it says something new. A file that is gone leaves what it said.
    fn look(&mut self) -> Batch {
        // Followed before it is read, so that no change is missed; and where a link leads to, as Kubernetes mounts files.
        let above = above(&self.path).map(|(folder, _)| folder);
        let folders: BTreeSet<PathBuf> = [above, real_parent(&self.path)].into_iter().flatten().collect();
        let unwatched = self
            .watch
            .follow(&folders)
            .into_iter()
            .map(|(folder, why)| self.issue(format!("{}: {why}", folder.display())));
        let mut issues: Vec<Issue> = unwatched.collect();
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) => {
                self.told = None;
                if error.kind() != io::ErrorKind::NotFound {
                    issues.push(self.issue(error.to_string()));
                }
                return self.note(issues);
            }
        };
        if self.told.as_ref() == Some(&text) {
            return Batch::default();
        }
        let read = self.about.read(&text, &self.path.display().to_string());
        self.told = Some(text);
        match read {
            Ok((event, more)) => {
                issues.extend(more);
                let mut batch = self.note(issues);
                batch.events.push(event);
                batch
            }
            Err(more) => {
                issues.extend(more);
                self.note(issues)
            }
        }
    }

    fn issue(&self, message: String) -> Issue {
        let file = self.path.display().to_string();
        Issue::error(ObjectRef::new(self.about.kind(), Name::empty(), file.as_str()), "", message).at(file)
    }

    fn note(&mut self, issues: Vec<Issue>) -> Batch {
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
            if batch.events.is_empty() {
                batch.events.push(self.about.default());
            }
            batch.events.extend([Event::Init, Event::InitDone]);
            loop {
                if !batch.is_empty() && sink.send(batch).await.is_err() {
                    return;
                }
                let touched = tokio::select! {
                    touched = self.watch.next() => touched,
                    () = sink.closed() => return,
                };
                // Only begun: its writer closes it in a moment.
                let is_complete =
                    touched.anything || !touched.files.is_empty() || !touched.vanished.is_empty();
                batch = if is_complete { self.look() } else { Batch::default() };
            }
        })
    }
}
