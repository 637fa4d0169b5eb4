//! Network namespaces, and programs that run in them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

#[path = "../shared/until.rs"]
mod until;
pub(crate) use until::until;

const AGENT: &str = env!("CARGO_BIN_EXE_pilot-agent");
/// Where iptables is, which not everybody's path has.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

#[allow(clippy::disallowed_methods, reason = "tests are told what the machine has by its environment")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What a test needs, or a word that it was skipped.
fn needed<T>(found: Option<T>, otherwise: &str) -> Option<T> {
    assert!(found.is_some() || variable("PILOT_REQUIRE_ALL").is_none(), "{otherwise}");
    if found.is_none() {
        eprintln!("skipped: {otherwise}");
    }
    found
}

pub(crate) fn module() -> Option<PathBuf> {
    let found = variable("PILOT_ISTIO_MODULE").map(PathBuf::from);
    needed(found, "Istio's module is not there; `make corpora` gets it")
}

pub(crate) fn envoy() -> Option<String> {
    needed(variable("PILOT_ENVOY"), "PILOT_ENVOY must name an Envoy")
}

/// May this process make network namespaces?
pub(crate) fn root() -> Option<()> {
    let made =
        Command::new("unshare").args(["--net", "true"]).env("PATH", PATH).stderr(Stdio::null()).status();
    let made = made.is_ok_and(|status| status.success());
    needed(made.then_some(()), "network namespaces need root, and unshare of util-linux")
}

/// The programs that rules are made with.
pub(crate) fn tools() -> Option<()> {
    root()?;
    let programs = ["ip", "iptables-legacy", "iptables-nft", "nft", "setpriv", "python3"];
    let missing: Vec<&str> = programs.into_iter().filter(|program| !is_there(program)).collect();
    let words =
        format!("missing: {missing:?}; `make tools` gets iproute2, iptables and nftables where apt is");
    needed(missing.is_empty().then_some(()), &words)
}

fn is_there(program: &str) -> bool {
    PATH.split(':').any(|folder| Path::new(folder).join(program).exists())
}

/// A machine for one command, with one address and a resolver.
pub(crate) struct Alone<'a> {
    pub(crate) address: &'a str,
    pub(crate) resolver: &'a str,
}

impl Alone<'_> {
    pub(crate) fn run(&self, flags: &str, variables: &[(&str, &str)]) -> Output {
        let folder = tempfile::tempdir().unwrap();
        let resolver = folder.path().join("resolv.conf");
        std::fs::write(&resolver, self.resolver).unwrap();
        let setup = "set -e; ip link set lo up; ip addr add $ADDRESS dev lo; mount --bind $RESOLVER /etc/resolv.conf; exec \"$@\"";
        let address = if self.address.is_empty() { "127.0.0.9/32" } else { self.address };
        Command::new("unshare")
            .args(["--net", "--mount", "sh", "-c", setup, "sh", AGENT, "istio-iptables"])
            .args(flags.split_whitespace())
            .env_clear()
            .envs(variables.iter().copied())
            .env("PATH", PATH)
            .env("ADDRESS", address)
            .env("RESOLVER", &resolver)
            .output()
            .unwrap()
    }

    /// Where only what sets the machine up can be found.
    pub(crate) fn run_without_programs(&self, flags: &str) -> Output {
        let folder = tempfile::tempdir().unwrap();
        let setup =
            "set -e; ip link set lo up; ip addr add $ADDRESS dev lo; PATH=$NOWHERE exec $AGENT \"$@\"";
        Command::new("unshare")
            .args(["--net", "sh", "-c", setup, "sh", "istio-iptables"])
            .args(flags.split_whitespace())
            .env_clear()
            .env("PATH", PATH)
            .env("ADDRESS", self.address)
            .env("NOWHERE", folder.path())
            .env("AGENT", AGENT)
            .output()
            .unwrap()
    }

    /// What a dry run writes into its file.
    pub(crate) fn dry_run(&self, flags: &str, variables: &[(&str, &str)]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plan");
        let mut variables = variables.to_vec();
        variables.push(("DRY_RUN_FILE_PATH", file.to_str().unwrap()));
        let output = self.run(&format!("--dry-run {flags}"), &variables);
        assert!(output.status.success(), "{flags}: {}", said(&output));
        std::fs::read_to_string(&file).unwrap()
    }
}

pub(crate) fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Lines that only one of two texts has.
pub(crate) fn difference(expected: &str, found: &str) -> String {
    let only = |sign: char, own: &str, other: &str| -> Vec<String> {
        let others: Vec<&str> = other.lines().collect();
        own.lines().filter(|line| !others.contains(line)).map(|line| format!("  {sign} {line}")).collect()
    };
    let lines = [only('-', expected, found), only('+', found, expected)].concat();
    if lines.is_empty() { "  another order".to_owned() } else { lines.join("\n") }
}

/// As the proxy's user, who may yet open what lies in folders of others, and mark packets.
pub(crate) const PROXY: &[&str] = &[
    "setpriv",
    "--reuid=1337",
    "--regid=1337",
    "--clear-groups",
    "--inh-caps=+dac_override,+net_admin",
    "--ambient-caps=+dac_override,+net_admin",
];

/// As the same group only, which is how Istio runs proxies that keep the client's address: what the user sends to its own
/// workload would come back.
pub(crate) const PROXY_GROUP: &[&str] = &["setpriv", "--regid=1337", "--clear-groups"];

fn peer<'a>(user: &[&'a str], words: &'a str) -> Vec<&'a str> {
    // Nothing of the machine's own, so that it starts quickly.
    let python = ["python3", "-I", "-S", "-c", include_str!("peer.py")];
    user.iter().copied().chain(python).chain(words.split_whitespace()).collect()
}

/// A network namespace with a name; everything in it ends with it.
pub(crate) struct Space {
    name: String,
    children: Vec<Child>,
    folder: TempDir,
}

impl Space {
    pub(crate) fn new(what: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pilot-{what}-{}-{number}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).env("PATH", PATH).status().unwrap();
        assert!(made.success());
        let space = Self { name, children: Vec::new(), folder: tempfile::tempdir().unwrap() };
        space.must("ip link set lo up");
        space
    }

    /// Two machines with a wire between them: 10.77.0.1 and .2, fd77::1 and ::2.
    pub(crate) fn pair() -> (Self, Self) {
        let (one, two) = (Self::new("world"), Self::new("pod"));
        one.must(&format!("ip link add w0 type veth peer name eth0 netns {}", two.name));
        for (space, name, number) in [(&one, "w0", 1), (&two, "eth0", 2)] {
            space.must(&format!("ip addr add 10.77.0.{number}/24 dev {name}"));
            space.must(&format!("ip -6 addr add fd77::{number}/64 dev {name} nodad"));
            space.must(&format!("ip link set {name} up"));
        }
        two.must("ip route add default via 10.77.0.1");
        (one, two)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).args(words);
        command.env_clear().env("PATH", PATH);
        command
    }

    pub(crate) fn run(&self, words: &str) -> Output {
        self.command(&words.split_whitespace().collect::<Vec<_>>()).output().unwrap()
    }

    /// What a command that must succeed prints.
    pub(crate) fn must(&self, words: &str) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What a program that knows nothing of proxies prints; `peer.py` says what it can do.
    pub(crate) fn peer(&self, user: &[&str], words: &str) -> Result<String, String> {
        let output = self.command(&peer(user, words)).output().unwrap();
        let text = said(&output).trim().to_owned();
        if output.status.success() { Ok(text) } else { Err(text) }
    }

    pub(crate) fn start_peer(&mut self, user: &[&str], words: &str) {
        self.start(&peer(user, words));
    }

    pub(crate) fn redirect(&self, flags: &str) -> Output {
        self.run(&format!("{AGENT} istio-iptables {flags}"))
    }

    /// By the name that old installations know.
    pub(crate) fn clean(&self, flags: &str) -> Output {
        self.run(&format!("{AGENT} istio-clean-iptables {flags}"))
    }

    pub(crate) fn redirect_as_proxy(&self, flags: &str) -> Output {
        let words: Vec<&str> =
            PROXY.iter().copied().chain([AGENT, "istio-iptables"]).chain(flags.split_whitespace()).collect();
        self.command(&words).output().unwrap()
    }

    pub(crate) fn must_redirect(&self, flags: &str) {
        let output = self.redirect(flags);
        assert!(output.status.success(), "{flags}: {}", said(&output));
    }

    pub(crate) fn start(&mut self, words: &[&str]) {
        let log = File::create(self.folder.path().join(format!("log-{}", self.children.len()))).unwrap();
        let child = self.command(words).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.children.push(child);
    }

    pub(crate) fn log(&self) -> String {
        let logs = (0..self.children.len()).map(|n| self.folder.path().join(format!("log-{n}")));
        logs.map(|log| std::fs::read_to_string(log).unwrap()).collect()
    }

    /// Every rule and chain there is, without how often it was used and when it was asked.
    pub(crate) fn rules(&self) -> String {
        let programs = ["iptables-legacy-save", "ip6tables-legacy-save", "nft -a list ruleset"];
        let texts = programs.map(|program| self.must(program));
        let nft: String = texts[2]
            .lines()
            .filter(|line| !line.starts_with('#'))
            .fold(String::new(), |text, line| text + &without_counters(line) + "\n");
        let legacy = texts[..2].iter().flat_map(|text| text.lines());
        let legacy = legacy.filter(|line| line.starts_with("-A") || line.starts_with(":ISTIO"));
        legacy.map(|line| format!("{line}\n")).collect::<String>() + &nft
    }

    /// Addresses of the loopback, and where marked packets go.
    pub(crate) fn routes(&self) -> String {
        let words = [
            "ip rule",
            "ip -6 rule",
            "ip route show table all",
            "ip -6 route show table all",
            "ip addr show lo",
        ];
        words.map(|words| self.must(words)).concat()
    }
}

/// `counter packets 5 bytes 300` becomes `counter`; numbers of rules go too.
fn without_counters(line: &str) -> String {
    let mut words = Vec::new();
    let mut rest = line.split(' ').peekable();
    while let Some(word) = rest.next() {
        if word == "#" {
            break;
        }
        words.push(word);
        if word == "counter" && rest.peek() == Some(&"packets") {
            rest.by_ref().take(4).for_each(drop);
        }
    }
    words.join(" ")
}

impl Drop for Space {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = Command::new("ip").args(["netns", "del", &self.name]).env("PATH", PATH).status();
    }
}
