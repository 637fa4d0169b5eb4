use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Subcommand;
use http::Method;
use pilot_cli::Env;
use pilot_source_kube::{Access, Call, CallError, Client, Pace, Surroundings, definitions};
use serde_json::Value;

use crate::clock::Clock;
use crate::yaml;

/// Install what a server needs in a cluster
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Crds(Crds),
}

/// The definitions of all kinds of rules that are read. Those that somebody else has installed are left as they are
#[derive(clap::Args)]
struct Crds {
    /// Write them down as YAML and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Take over those that somebody else has installed
    #[arg(long)]
    force: bool,
    /// Which cluster; otherwise KUBECONFIG says so, or the file in the home directory, or the pod
    #[arg(long, value_name = "FILE", default_value = "")]
    kubeconfig: String,
}

/// Who manages what was installed, in the words of server-side apply.
const MANAGER: &str = "pilotctl";

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::Crds(crds) if crds.dry_run => {
            let all: Vec<String> = definitions().iter().map(yaml::text).collect();
            print!("{}", all.join("---\n"));
            Ok(ExitCode::SUCCESS)
        }
        What::Crds(crds) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(apply(crds))
        }
    }
}

async fn apply(args: &Crds) -> anyhow::Result<ExitCode> {
    let client = client(&args.kubeconfig)?;
    let mut left = 0;
    for definition in definitions() {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match put(&client, &name, &definition, args).await {
            Ok(()) => println!("{name}: installed"),
            Err(CallError::Refused { status: 409, message, .. }) => {
                left += 1;
                println!("{name}: left as it is: {}", message.lines().next().unwrap_or_default());
            }
            Err(error) => return Err(error).with_context(|| format!("{}: {name}", client.server())),
        }
    }
    if left > 0 {
        println!("{left} are somebody else's; --force takes them over");
    }
    Ok(ExitCode::SUCCESS)
}

async fn put(client: &Client, name: &str, definition: &Value, args: &Crds) -> Result<(), CallError> {
    let force = args.force;
    let path = format!(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}?fieldManager={MANAGER}&force={force}"
    );
    let body = Some(("application/apply-patch+yaml", definition.to_string().into()));
    client.call(Call { method: Method::PATCH, body, ..Call::get(&path) }).await.map(drop)
}

/// As kubectl finds its cluster.
fn client(flag: &str) -> anyhow::Result<Client> {
    let env = Env::of_process();
    let text = |name: &str| env.get(name).map(str::to_owned);
    let usual = text("HOME").map(|home| format!("{home}/.kube/config"));
    let usual = usual.filter(|file| Path::new(file).is_file());
    let around = Surroundings {
        host: text("KUBERNETES_SERVICE_HOST"),
        port: text("KUBERNETES_SERVICE_PORT"),
        kubeconfig: text("KUBECONFIG").or(usual),
    };
    let access = Access::find(flag, &around)?;
    // As kubectl does, about: this is one person.
    let pace = Pace { per_second: 50.0, burst: 100.0 };
    Ok(Client::new(&access, pace, Arc::new(Clock::default()))?)
}
