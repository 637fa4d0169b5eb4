//! A stand-in for Copilot, for `make demo-cloudfoundry`: it is told on its standard input what there is.
//!
//! `copilot FOLDER PORT SERVICE_PORT` writes certificates and `cf.yaml` into the folder. Lines are `route HOST PATH APP ADDRESS WEIGHT`
//! (a path of `-` is none), `internal HOST VIP ADDRESS` and `stop ADDRESS`.

#[path = "../tests/contract/standin.rs"]
#[allow(dead_code, reason = "a demo asks for less than a test")]
mod standin;

use std::path::Path;

use anyhow::{Context as _, bail};
use standin::{Mood, Standin, World};

// Lines are waited for on a thread of their own, which is this one.
#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, port, service_port] = &arguments[..] else {
        bail!("usage: copilot FOLDER PORT SERVICE_PORT")
    };
    let standin = Standin::start(Path::new(folder), format!("127.0.0.1:{port}").parse()?).await?;
    standin.world.lock().mood = Mood::Good;
    let config = format!(
        "copilot:\n  address: {}\n  poll_interval: 200ms\n  server_ca_cert_path: {folder}/ca.pem\n  \
         client_cert_path: {folder}/client.pem\n  client_key_path: {folder}/client.key\nservice_port: {service_port}\n",
        standin.address
    );
    let (half, whole) = (Path::new(folder).join("cf.part"), Path::new(folder).join("cf.yaml"));
    std::fs::write(&half, config)?;
    std::fs::rename(half, whole)?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        take(&words, &mut standin.world.lock()).with_context(|| format!("{line:?}"))?;
    }
    Ok(())
}

fn take(words: &[&str], world: &mut World) -> anyhow::Result<()> {
    match words {
        ["route", host, path, app, address, weight] => {
            let to = (path.trim_start_matches('-').to_owned(), (*app).to_owned(), address.parse()?);
            world.map(host.as_bytes(), to, weight.parse()?);
        }
        ["internal", host, vip, address] => world.map_inside(host, vip, address.parse()?),
        ["stop", address] => world.stop(address.parse()?),
        _ => bail!("is none of route, internal and stop"),
    }
    Ok(())
}
