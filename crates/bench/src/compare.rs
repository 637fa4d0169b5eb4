//! One shape, all servers, one after the other on the same machine.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::ValueEnum;

use crate::measure::Measure;
use crate::phase;
use crate::server::Candidate;
use crate::shape::Shape;

/// Who can be measured.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// Our server
    Pilot,
    /// A server that only replays what ours sent
    Floor,
    /// A real istiod
    Istiod,
}

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Programs {
    pub pilot: Vec<String>,
    pub istiod: Option<Vec<String>>,
    /// This program, which is the floor too.
    pub bench: PathBuf,
}

/// Where lines go: to the terminal, and to a file if somebody wants to keep them.
#[derive(Clone, Debug, Default)]
pub struct Lines(pub Option<PathBuf>);

impl Lines {
    pub fn tell(&self, measures: &[Measure]) -> anyhow::Result<()> {
        let mut text = String::new();
        for measure in measures {
            text.push_str(&serde_json::to_string(measure)?);
            text.push('\n');
        }
        print!("{text}");
        let Some(path) = &self.0 else { return Ok(()) };
        let file = OpenOptions::new().create(true).append(true).open(path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("{} cannot be written", path.display()))
    }
}

/// Measures each server that is asked for. The floor sends what ours, else istiod, was seen to send.
pub async fn compare(
    name: &str,
    shape: &Shape,
    programs: &Programs,
    who: &[Who],
    lines: &Lines,
) -> anyhow::Result<Vec<Measure>> {
    let scratch = tempfile::tempdir().context("a folder for scratch; is the disk full?")?;
    let file = scratch.path().join("recording");
    let has = |one: Who| who.contains(&one);
    let mut candidates = Vec::new();
    if has(Who::Pilot) {
        candidates.push(Candidate::Program { name: "pilot".to_owned(), command: programs.pilot.clone() });
    }
    let istiod = programs.istiod.clone().filter(|_| has(Who::Istiod));
    candidates.extend(istiod.map(|command| Candidate::Program { name: "istiod".to_owned(), command }));
    if has(Who::Floor) {
        candidates.push(Candidate::Floor { bench: programs.bench.clone(), recording: file.clone() });
    }
    let mut all = Vec::new();
    for candidate in &candidates {
        let home = scratch.path().join(candidate.name());
        let measured = measure(name, shape, candidate, &home, &file).await?;
        lines.tell(&measured)?;
        all.extend(measured);
        // Ten thousand files are not needed any longer.
        std::fs::remove_dir_all(&home).with_context(|| format!("{} cannot be removed", home.display()))?;
    }
    Ok(all)
}

async fn measure(
    name: &str,
    shape: &Shape,
    candidate: &Candidate,
    home: &Path,
    recording: &Path,
) -> anyhow::Result<Vec<Measure>> {
    eprintln!("== {name}: {} with {} services, {} proxies", candidate.name(), shape.services, shape.proxies);
    let outcome = phase::run(name, shape, candidate, home).await?;
    if outcome.measures.iter().any(|measure| measure.missing > 0) {
        eprintln!("   some proxies did not get everything; {}", outcome.trouble);
    }
    if let Some(recorded) = outcome.recording.filter(|_| !recording.exists()) {
        recorded.save(recording)?;
    }
    Ok(outcome.measures)
}
