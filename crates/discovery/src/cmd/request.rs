use anyhow::bail;

use crate::args::RequestArgs;

pub(crate) fn run(args: &RequestArgs) -> anyhow::Result<()> {
    let address = format!("127.0.0.1:{}", args.port);
    let (status, body) = pilot_cli::request(&address, &args.method.to_uppercase(), &args.path, &args.body)?;
    println!("{body}");
    // What a server does not know is not a mistake: tools ask for more than every version has.
    if status > 399 && status != 404 {
        bail!("the server answered with status {status}");
    }
    Ok(())
}
