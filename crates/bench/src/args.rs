//! The command line.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use pilot_bench::{Phase, Protocol, Who};

/// Measures ADS servers: made-up meshes, proxies that do what Envoy does, and what that costs the server
#[derive(Parser)]
#[command(
    name = "pilot-bench",
    version,
    after_help = "Begin with one of these:
  pilot-bench run bench/small.yaml                 ours and the floor, two minutes
  ISTIOD=./istiod-wrapper pilot-bench run bench/delta.yaml
  pilot-bench load --address 127.0.0.1:15010 --proxies 100
  pilot-bench growth --services 250,500,1000 --proxies 50,100,200 --plot growth.svg
  pilot-bench soak --minutes 20 --proxies 1000

Each phase prints one line of JSON; a table of ratios stands at the end. Exit status 1 means that some proxies did not get
everything. Compare CPU first: on a small machine times are moved by whatever else runs. docs/performance.md has the method."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Cmd,
}

#[derive(Subcommand)]
pub(crate) enum Cmd {
    /// Measure ours, the floor, and istiod where it is given, on shapes
    Run(RunArgs),
    /// Measure how the cost of a cold start and of one endpoint change grows
    Growth(GrowthArgs),
    /// Put proxies on a server that runs already, anywhere; what it knows is not changed
    Load(LoadArgs),
    /// Change everything at random, and compare with a fresh start
    Soak(SoakArgs),
    /// Write the mesh of a shape into a folder
    Generate(GenerateArgs),
    /// Serve what was recorded, computing nothing: the least that a server can cost
    Floor(FloorArgs),
    /// Print the table again from lines of JSON, also of several runs
    Table(TableArgs),
}

#[derive(Args)]
pub(crate) struct ServerArgs {
    /// Our server; several words are a command and its first arguments [default: pilot-discovery beside this program]
    #[arg(long, value_name = "COMMAND")]
    pub(crate) pilot: Option<String>,
    /// A real istiod, as a command that understands istiod's flags. It cannot start without a Kubernetes API, so give a
    /// script that starts a stand-in and ends with: exec istiod "$@" --registries=Kubernetes --kubeconfig=FILE
    #[arg(long, env = "ISTIOD", value_name = "COMMAND", hide_env_values = true)]
    pub(crate) istiod: Option<String>,
    /// Who is measured; istiod only where it is given
    #[arg(long, value_enum, value_delimiter = ',', default_value = "pilot,istiod,floor")]
    pub(crate) only: Vec<Who>,
    /// File that the lines of JSON are added to
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// Files with shapes; bench/ has ours
    #[arg(required = true, value_name = "SHAPE")]
    pub(crate) shapes: Vec<PathBuf>,
    /// Only these phases; the proxies connect in any case
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) phases: Option<Vec<Phase>>,
    #[command(flatten)]
    pub(crate) servers: ServerArgs,
}

#[derive(Args)]
pub(crate) struct GrowthArgs {
    /// Numbers of services, each with the first number of proxies
    #[arg(long, value_delimiter = ',', default_value = "250,500,1000")]
    pub(crate) services: Vec<usize>,
    /// Numbers of proxies, each with the first number of services
    #[arg(long, value_delimiter = ',', default_value = "50,100,200")]
    pub(crate) proxies: Vec<usize>,
    /// How often the endpoint is changed
    #[arg(long, default_value_t = 20)]
    pub(crate) repeats: usize,
    /// What the proxies speak
    #[arg(long, value_enum, default_value_t = Protocol::Delta)]
    pub(crate) protocol: Protocol,
    /// File for a picture of it
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) servers: ServerArgs,
}

#[derive(Args)]
pub(crate) struct LoadArgs {
    /// Where it serves ADS in plain text
    #[arg(long, value_name = "HOST:PORT", value_parser = resolve)]
    pub(crate) address: SocketAddr,
    #[arg(long, default_value_t = 10)]
    pub(crate) proxies: usize,
    /// What the proxies speak
    #[arg(long, value_enum, default_value_t = Protocol::Delta)]
    pub(crate) protocol: Protocol,
    /// The mesh that the proxies say they belong to: their namespaces and addresses [default: 100 services]
    #[arg(long, value_name = "SHAPE")]
    pub(crate) shape: Option<PathBuf>,
    /// Phases that need nobody to change anything
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cold,reconnect")]
    pub(crate) phases: Vec<Phase>,
    /// File for what the first proxy is sent, for the floor
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// File that the lines of JSON are added to
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct SoakArgs {
    #[arg(long, default_value_t = 20.0)]
    pub(crate) minutes: f64,
    /// Half of them speak delta, half the state of the world
    #[arg(long, default_value_t = 1_000)]
    pub(crate) proxies: usize,
    #[arg(long, default_value_t = 1_000)]
    pub(crate) services: usize,
    /// Changes a second
    #[arg(long, default_value_t = 10)]
    pub(crate) rate: u32,
    /// Every second one proxy of so many closes its stream and comes back
    #[arg(long, default_value_t = 50, value_name = "PROXIES")]
    pub(crate) turns: usize,
    /// Each namespace has a Sidecar with so many hosts
    #[arg(long)]
    pub(crate) scope: Option<usize>,
    /// The same seed makes the same changes
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Our server; several words are a command and its first arguments [default: pilot-discovery beside this program]
    #[arg(long, value_name = "COMMAND")]
    pub(crate) pilot: Option<String>,
}

#[derive(Args)]
pub(crate) struct GenerateArgs {
    /// File with a shape
    pub(crate) shape: PathBuf,
    /// A folder, which is made if it is not there
    #[arg(long, value_name = "FOLDER")]
    pub(crate) to: PathBuf,
}

#[derive(Args)]
pub(crate) struct FloorArgs {
    /// Where to serve ADS
    #[arg(long, value_name = "HOST:PORT", value_parser = resolve)]
    pub(crate) address: SocketAddr,
    /// What is sent: made by `pilot-bench load --record`
    #[arg(long, value_name = "FILE")]
    pub(crate) recording: PathBuf,
    /// Folder with the files of the mesh, as `generate` writes them; marks in them are followed
    #[arg(long, value_name = "FOLDER")]
    pub(crate) follow: PathBuf,
}

#[derive(Args)]
pub(crate) struct TableArgs {
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

/// The first address behind a name.
fn resolve(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|error| format!("{error}; say HOST:PORT"))?;
    found.next().ok_or_else(|| format!("{text} has no address"))
}
