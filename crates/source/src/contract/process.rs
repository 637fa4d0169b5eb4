//! Real servers, which end with the test.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

/// A server that a test has started.
pub struct Server {
    child: Child,
    start: Box<dyn Fn() -> Command + Send + Sync>,
}

/// Longer than any server takes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

impl Server {
    pub fn start(command: impl Fn() -> Command + Send + Sync + 'static) -> Self {
        let child = spawn(&mut command());
        Self { child, start: Box::new(command) }
    }

    pub async fn stop(&mut self) {
        self.child.kill().await.expect("a server can be ended");
    }

    /// Starts it again as it was started before.
    pub fn start_again(&mut self) {
        self.child = spawn(&mut (self.start)());
    }

    /// Waits until something holds of the server.
    pub async fn until<F: Future<Output = bool>>(&mut self, what: &str, mut holds: impl FnMut() -> F) {
        let waiting = async {
            while !holds().await {
                let ended = self.child.try_wait().expect("a child can be asked");
                assert!(ended.is_none(), "{what}: it ended with {ended:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "{what}: that never came true");
    }
}

fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command.spawn().expect("a server can be started")
}

/// The path that the environment names, if something is there. Without it the test says so and is skipped; where nothing
/// may be skipped, it fails.
#[allow(clippy::disallowed_methods, reason = "tests are told by the environment where programs are")]
pub fn wanted(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.exists());
    if path.is_none() {
        let required = std::env::var_os("PILOT_REQUIRE_ALL").is_some_and(|value| !value.is_empty());
        assert!(!required, "{variable} names no file: `make components` gets what it is for");
        println!("skipped: {variable} names no file; `make components` gets what it is for");
    }
    path
}

/// A port that nobody uses at the moment, and that the kernel gives to no client.
pub fn free_port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 9_000;
    let start = u16::try_from(std::process::id().wrapping_mul(131) % u32::from(COUNT)).unwrap_or_default();
    let all = (0..COUNT).map(|_| FIRST + (start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT));
    let free = |port: &u16| TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, *port))).is_ok();
    all.into_iter().find(free).expect("this machine has a free port")
}
