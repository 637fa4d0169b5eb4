//! Starts agents and looks at what they do. Waits for things to be so, never for time to pass.
#![allow(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use tempfile::TempDir;

#[path = "../shared/until.rs"]
mod until;
pub(crate) use until::until;

/// How an agent is started. Nothing listens unless it is asked for, so that tests can run side by side.
pub(crate) struct Settings {
    directory: TempDir,
    proxy: String,
    flags: Vec<String>,
    variables: Vec<(String, String)>,
    admin_port: u16,
    status_port: u16,
}

impl Settings {
    /// With a script in Envoy's place.
    pub(crate) fn script(commands: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("envoy");
        std::fs::write(&path, format!("#!/bin/sh\n{commands}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self::new(directory, path.to_str().unwrap())
    }

    pub(crate) fn binary(path: &str) -> Self {
        Self::new(tempfile::tempdir().unwrap(), path)
    }

    /// The same ports for another binary, in a directory of its own.
    pub(crate) fn again(&self, binary: &str) -> Self {
        let again = Self::with_admin(tempfile::tempdir().unwrap(), binary, self.admin_port);
        Self { status_port: self.status_port, ..again }
    }

    fn new(directory: TempDir, binary: &str) -> Self {
        Self::with_admin(directory, binary, free_port())
    }

    fn with_admin(directory: TempDir, binary: &str, admin_port: u16) -> Self {
        let proxy = format!(
            "configPath: {}\nbinaryPath: {binary}\nproxyAdminPort: {admin_port}\ndiscoveryAddress: 127.0.0.1:{}\ncontrolPlaneAuthPolicy: NONE\n",
            directory.path().display(),
            free_port(),
        );
        Self { directory, proxy, flags: Vec::new(), variables: Vec::new(), admin_port, status_port: 0 }
            .variable("ENVOY_STATUS_PORT", "0")
            .variable("ENVOY_PROMETHEUS_PORT", "0")
    }

    pub(crate) fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// More settings of the proxy, or others in place of those that are there.
    pub(crate) fn proxy(mut self, text: &str) -> Self {
        let key = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
        let kept = self.proxy.lines().filter(|old| !text.lines().any(|line| key(line) == key(old)));
        self.proxy = kept.chain(text.lines()).map(|line| format!("{line}\n")).collect();
        self
    }

    pub(crate) fn with_status_port(self) -> Self {
        self.with_status_port_at(free_port())
    }

    pub(crate) fn with_status_port_at(mut self, port: u16) -> Self {
        self.status_port = port;
        self
    }

    /// Another value for a setting that is there already.
    pub(crate) fn instead(mut self, field: &str, value: &str) -> Self {
        let others = self.proxy.lines().filter(|line| !line.starts_with(&format!("{field}:")));
        self.proxy = others.map(|line| format!("{line}\n")).collect();
        self.proxy(&format!("{field}: {value}"))
    }

    /// An annotation of the pod, where Kubernetes would put it.
    pub(crate) fn annotation(self, name: &str, value: &str) -> Self {
        let pod = self.file("etc/istio/pod");
        std::fs::create_dir_all(&pod).unwrap();
        let mut file = File::options().create(true).append(true).open(pod.join("annotations")).unwrap();
        writeln!(file, "{name}={value:?}").unwrap();
        self
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn admin_port(&self) -> u16 {
        self.admin_port
    }

    pub(crate) fn ask_admin(&self, method: &str, path: &str) -> Option<String> {
        ask(self.admin_port, method, path)
    }

    fn proxy_config(&self) -> String {
        let drain = if self.proxy.contains("terminationDrainDuration") {
            ""
        } else {
            "terminationDrainDuration: 0s\n"
        };
        format!("{}{drain}statusPort: {}\n", self.proxy, self.status_port)
    }
}

pub(crate) struct Agent {
    child: Child,
    pub(crate) settings: Settings,
}

impl Agent {
    pub(crate) fn start(settings: Settings) -> Self {
        let command = Command::new(env!("CARGO_BIN_EXE_pilot-agent"));
        Self { child: Self::spawn(&settings, command), settings }
    }

    /// By a program that is told which one to run.
    pub(crate) fn start_in(settings: Settings, mut program: Command) -> Self {
        program.arg(env!("CARGO_BIN_EXE_pilot-agent"));
        Self { child: Self::spawn(&settings, program), settings }
    }

    /// Another one, with the same settings in the same place.
    pub(crate) fn again(&mut self) -> Agent {
        let empty = Settings::binary("/none");
        Self::start(std::mem::replace(&mut self.settings, empty))
    }

    fn spawn(settings: &Settings, mut command: Command) -> Child {
        let log = settings.file("log");
        let append = |log: &PathBuf| File::options().create(true).append(true).open(log).unwrap();
        command
            .args(["proxy", "sidecar"])
            .args(&settings.flags)
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .env("PROXY_CONFIG", settings.proxy_config())
            .envs(settings.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(settings.directory.path())
            .stdout(append(&log))
            .stderr(append(&log))
            .spawn()
            .unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.settings.file("log")).unwrap()
    }

    pub(crate) fn ask_status(&self, method: &str, path: &str) -> Option<String> {
        ask(self.settings.status_port, method, path)
    }

    /// The process number of an Envoy that is not this one.
    pub(crate) fn envoy_other_than(&self, old: u32) -> u32 {
        until("an Envoy", || {
            let log = self.log();
            let line = log.lines().rfind(|line| line.contains("Envoy started"))?;
            let digits = line.split("pid=").nth(1)?.split(' ').next()?;
            Some(digits.parse().unwrap()).filter(|pid| *pid != old && is_alive(*pid))
        })
    }

    /// The status that it ends with, `None` if by a signal.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let child = &mut self.child;
        until("the end of the agent", || child.try_wait().unwrap()).code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // A test that failed leaves nothing behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[allow(clippy::disallowed_methods, reason = "tests are told what the machine has by its environment")]
pub(crate) fn real_envoy() -> Option<String> {
    match std::env::var("PILOT_ENVOY") {
        Ok(path) if !path.is_empty() => Some(path),
        _ => {
            missing("PILOT_ENVOY must name an Envoy");
            None
        }
    }
}

/// Says what is not there, which is a failure where everything must be.
#[allow(clippy::disallowed_methods, reason = "tests are told what the machine has by its environment")]
pub(crate) fn missing(what: &str) {
    let required = std::env::var("PILOT_REQUIRE_ALL").is_ok_and(|value| !value.is_empty());
    assert!(!required, "{what}");
    println!("skipped: {what}");
}

pub(crate) fn kill(signal: &str, pid: u32) {
    let status = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

/// A process that ended and was not waited for yet is not alive.
pub(crate) fn is_alive(pid: u32) -> bool {
    let output = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap();
    let state = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    !state.is_empty() && !state.starts_with('Z')
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) fn ask(port: u16, method: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer).filter(|answer| !answer.is_empty())
}
