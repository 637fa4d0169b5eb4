use pilot_server::BuildInfo;

use crate::args::VersionArgs;

pub(crate) const BUILD: BuildInfo =
    BuildInfo { version: env!("CARGO_PKG_VERSION"), revision: "unknown", status: "Clean" };

pub(crate) fn run(args: &VersionArgs) -> anyhow::Result<()> {
    let BuildInfo { version, revision, status } = BUILD;
    match args.output.as_deref() {
        _ if args.short => println!("{version}"),
        Some("json") => {
            println!(
                r#"{{"clientVersion":{{"version":"{version}","revision":"{revision}","status":"{status}"}}}}"#
            );
        }
        Some(_) => {
            println!("clientVersion:\n  revision: {revision}\n  status: {status}\n  version: {version}");
        }
        None => println!(
            "version.BuildInfo{{Version:\"{version}\", GitRevision:\"{revision}\", BuildStatus:\"{status}\"}}"
        ),
    }
    Ok(())
}
