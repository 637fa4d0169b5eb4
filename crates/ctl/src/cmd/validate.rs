use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use pilot_base::{Issue, Severity};
use pilot_config::ReadOptions;
use pilot_incr::{Shard, Txn};
use pilot_model::{MeshConfig, MeshOptions};
use pilot_pipeline::Pipeline;

use crate::files::collect;

/// Look for mistakes in files, each by itself and all of them together, as the server would. Exit status 1 if there are
/// errors
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files or folders with Istio's rules and Kubernetes objects
    #[arg(required_unless_present = "filename", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The same, as istioctl and kubectl call it; may be given several times
    #[arg(short, long, value_name = "PATH")]
    filename: Vec<PathBuf>,
}

const SHARD: Shard = Shard(1);

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let paths: Vec<_> = args.paths.iter().chain(&args.filename).map(PathBuf::as_path).collect();
    let files = collect(&paths)?;
    let (objects, issues) = look(&files)?;
    for issue in &issues {
        println!("{issue}");
    }
    let errors = issues.iter().filter(|issue| issue.severity == Severity::Error).count();
    let warnings = issues.len() - errors;
    println!("{} files, {objects} objects, {errors} errors, {warnings} warnings", files.len());
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Everything that is wrong, with the rules of the server: what can be seen in a file, and what only all of them show.
fn look(files: &[PathBuf]) -> anyhow::Result<(usize, Vec<Issue>)> {
    let mut pipeline = Pipeline::new();
    let inputs = pipeline.inputs();
    let mut txn = Txn::new();
    txn.upsert(&inputs.options, SHARD, (), MeshOptions::default());
    txn.upsert(&inputs.mesh, SHARD, (), MeshConfig::default());
    let (mut objects, mut issues) = (0, Vec::new());
    for file in files {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
        match pilot_config::read(&text, &name, &ReadOptions::default()) {
            Err(issue) => issues.push(issue),
            Ok(reading) => {
                issues.extend(reading.issues);
                objects += reading.objects.len();
                for (_, _, object) in reading.objects {
                    inputs.upsert(&mut txn, SHARD, object);
                }
            }
        }
    }
    pipeline.commit(txn);
    issues.extend(pipeline.issues().cloned());
    Ok((objects, issues))
}

#[cfg(test)]
mod tests {
    use super::look;

    #[test]
    fn mistakes_within_and_between_files_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let rule = |host: &str, more: &str| {
            format!(
                "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {host}}}\n\
                 spec: {{hosts: [{host}.example], http: [{{route: [{{destination: {{host: nowhere.example}}}}]{more}}}]}}\n"
            )
        };
        let files = [
            write("a.yaml", &rule("a", "")),
            write("b.yaml", &rule("b", ", timeout: soon")),
            write("c.yaml", "kind: ["),
        ];
        let (objects, issues) = look(&files).unwrap();
        assert_eq!(objects, 1);
        let found = |text: &str| issues.iter().filter(|issue| issue.to_string().contains(text)).count();
        assert_eq!(found("spec.http[0].timeout"), 1);
        assert_eq!(found("not YAML"), 1);
        assert_eq!(found("nowhere.example"), 1, "{issues:?}");
    }
}
