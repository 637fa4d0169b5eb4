use std::process::ExitCode;

/// Print the version of this program and of a running server
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The monitoring address of a server; without it only this program's version is printed
    #[arg(long)]
    address: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    println!("client: {}", env!("CARGO_PKG_VERSION"));
    if let Some(address) = &args.address {
        println!("server: {}", crate::page(address, "/version")?);
    }
    Ok(ExitCode::SUCCESS)
}
