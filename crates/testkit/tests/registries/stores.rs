//! Rules from several stores at once, each of which has some of its own.

use std::time::Duration;

use http::Method;
use pilot_source_http::{Client, ClientOptions, ServerAddress};
use pilot_testkit::http_call;
use pilot_testkit::process::free_address;
use pilot_testkit::server::PilotServer;

fn rule(name: &str, host: &str) -> String {
    let head =
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {namespace: shop, name: ";
    format!("{head}{name}}}\nspec: {{host: {host}}}\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_two_stores_have_is_told_with_both_and_the_others_flow() {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("config");
    std::fs::create_dir(&config).unwrap();
    std::fs::write(config.join("cart.yaml"), rule("cart", "of-file.example.com")).unwrap();
    let memory = free_address().unwrap();
    let flags = ["--registries=Memory".to_owned(), format!("--memoryAddr={memory}")];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut server = PilotServer::start_in(scratch.path(), &flags, &[]).await.unwrap();
    let client = Client::new(ClientOptions::new(vec![ServerAddress::parse(&memory.to_string()).unwrap()]));
    let client = client.unwrap();
    for (key, text) in
        [("cart", rule("cart", "of-memory.example.com")), ("shop", rule("shop", "own.example.com"))]
    {
        let path = format!("/v1/rules/{key}");
        let written = client.ask(Method::PUT, &path, text.into(), Duration::ZERO).await.unwrap();
        assert!(written.status.is_success(), "{}", written.status);
    }
    let monitoring = server.monitoring;
    // Nobody has these hosts, so what is said of them tells which rules count.
    let issues = || async move {
        http_call::get(monitoring, "/debug/issues").await.map(|(_, body)| body).unwrap_or_default()
    };
    const BOTH: &str = "/config and memory have this object; what ";
    let is_told = || async {
        let told = issues().await;
        told.contains(BOTH) && told.contains("own.example.com") && told.contains("of-file.example.com")
    };
    server.process.until("both stores are named, and what only one has counts", is_told).await.unwrap();
    assert!(!issues().await.contains("of-memory.example.com"), "files come first");
    // Once the first one has no such rule any more, what the other says is the rule.
    std::fs::remove_file(config.join("cart.yaml")).unwrap();
    let is_handed_over = || async {
        let told = issues().await;
        !told.contains(BOTH) && told.contains("of-memory.example.com") && !told.contains("of-file")
    };
    server.process.until("the other one counts", is_handed_over).await.unwrap();
    // Files come first, also where they come later.
    std::fs::write(config.join("cart.yaml"), rule("cart", "of-file.example.com")).unwrap();
    let is_taken_over = || async {
        let told = issues().await;
        told.contains(BOTH) && told.contains("of-file.example.com") && !told.contains("of-memory.example.com")
    };
    server.process.until("the file counts", is_taken_over).await.unwrap();
}
