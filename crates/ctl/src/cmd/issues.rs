use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::Value;

/// Show everything that a running server finds wrong with rules, files and proxies. Exit status 1 if there is any
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The monitoring address of the server
    #[arg(long, default_value = "127.0.0.1:15014")]
    address: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let body = crate::page(&args.address, "/debug/issues")?;
    let issues: Vec<Value> = serde_json::from_str(&body).context("the answer is not a list of issues")?;
    for issue in &issues {
        println!("{}", line(issue));
    }
    if issues.is_empty() {
        println!("nothing is wrong");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

fn line(issue: &Value) -> String {
    let text = |field: &str| issue[field].as_str().unwrap_or_default();
    let place = match text("place") {
        "" => String::new(),
        place => format!("{place}: "),
    };
    let name = match text("namespace") {
        "" => text("name").to_owned(),
        namespace => format!("{namespace}/{}", text("name")),
    };
    let path = match text("path") {
        "" => String::new(),
        path => format!("{path}: "),
    };
    format!("{place}{}: {} {name}: {path}{}", text("severity"), text("kind"), text("message"))
}

#[cfg(test)]
mod tests {
    use super::line;
    use serde_json::json;

    #[test]
    fn an_issue_is_one_line() {
        let issue = json!({
            "severity": "error", "kind": "VirtualService", "namespace": "shop", "name": "cart", "path": "spec.http[0]",
            "place": "cart.yaml:7", "message": "has no route",
        });
        assert_eq!(line(&issue), "cart.yaml:7: error: VirtualService shop/cart: spec.http[0]: has no route");
        let short = json!({"severity": "warning", "kind": "File", "name": "x.yaml", "message": "is odd"});
        assert_eq!(line(&short), "warning: File x.yaml: is odd");
    }
}
