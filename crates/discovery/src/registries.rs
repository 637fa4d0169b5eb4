//! Registries other than Kubernetes and files: their flags, and one function for each that opens it.

mod args;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use pilot_base::Name;
use pilot_config::ReadOptions;
use pilot_source::{RegistryOptions, Source};
use pilot_source_cloudfoundry::{CfConfig, CloudFoundryOptions, CloudFoundrySource};
use pilot_source_consul::{ConsulKv, ConsulKvOptions, ConsulOptions, ConsulSource};
use pilot_source_dns::{DnsOptions, DnsSource};
use pilot_source_etcd::{EtcdOptions, EtcdSource};
use pilot_source_eureka::{EurekaOptions, EurekaSource};
use pilot_source_http::{ClientOptions, Secret, ServerAddress, TlsFiles};
use pilot_source_marathon::{MarathonOptions, MarathonSource};
use pilot_source_memory::{MemoryOptions, MemorySource};
use pilot_source_nomad::{NomadOptions, NomadSource};
use pilot_source_store::StoreOptions;
use pilot_source_url::UrlOptions;
use pilot_source_zookeeper::{Credentials, Layout, Login, ZooKeeperOptions, ZooKeeperSource};

pub(crate) use args::RegistryArgs;

/// A question may wait so long at a server; longer ones are cut off by what stands between.
const WAIT: Duration = Duration::from_secs(55);

/// Parts of one registry, such as datacenters, have ranks of their own between those of their registry and the next one.
const RANKS: u16 = 100;

/// What all registries have in common, for the one at a place in `--registries`.
struct Opening<'a> {
    args: &'a RegistryArgs,
    read: &'a ReadOptions,
    rank: u16,
}

/// Opens a registry by the name it has in `--registries`; nothing if there is no such.
pub(crate) fn open(
    name: &str,
    rank: u16,
    args: &RegistryArgs,
    read: &ReadOptions,
) -> anyhow::Result<Option<Vec<Box<dyn Source>>>> {
    let opening = Opening { args, read, rank: rank.saturating_mul(RANKS) };
    let sources = match name {
        "Consul" => opening.consul().context("--registries Consul")?,
        "Eureka" => vec![opening.eureka().context("--registries Eureka")?],
        "ZooKeeper" => vec![opening.zookeeper().context("--registries ZooKeeper")?],
        "Nomad" => vec![opening.nomad().context("--registries Nomad")?],
        "Marathon" => vec![opening.marathon().context("--registries Marathon")?],
        "CloudFoundry" => vec![opening.cloudfoundry().context("--registries CloudFoundry")?],
        "DNS" => vec![opening.dns().context("--registries DNS")?],
        "Memory" => vec![opening.memory().context("--registries Memory")?],
        _ => return Ok(None),
    };
    Ok(Some(sources))
}

/// Stores of rules that are followed beside `--configDir`.
pub(crate) fn open_stores(args: &RegistryArgs, read: &ReadOptions) -> anyhow::Result<Vec<Box<dyn Source>>> {
    let opening = Opening { args, read, rank: 0 };
    let mut stores: Vec<Box<dyn Source>> = Vec::new();
    if !args.consul_config_prefix.is_empty() {
        stores.push(opening.consul_kv().context("--consulConfigPrefix")?);
    }
    if !args.etcd_servers.is_empty() {
        stores.push(opening.etcd().context("--etcdserverURL")?);
    }
    for (i, url) in args.config_urls.iter().enumerate() {
        // The text itself may have a password in it.
        let which = || format!("--configURL: address {} of {}", i + 1, args.config_urls.len());
        stores.push(opening.page(i, url).with_context(which)?);
    }
    Ok(stores)
}

impl Opening<'_> {
    fn options(&self, name: &str, domain: &str) -> RegistryOptions {
        RegistryOptions {
            rank: self.rank,
            namespace: Name::new(&self.args.registry_namespace),
            grace: self.args.registry_grace,
            service_port: self.args.registry_service_port.map(u32::from),
            ..RegistryOptions::new(name, self.args.registry_domain.as_deref().unwrap_or(domain))
        }
    }

    fn store(&self, name: &str) -> StoreOptions {
        StoreOptions { grace: self.args.registry_grace, ..StoreOptions::new(name, self.read.clone()) }
    }

    fn consul(&self) -> anyhow::Result<Vec<Box<dyn Source>>> {
        let args = self.args;
        let mut sources: Vec<Box<dyn Source>> = Vec::new();
        let datacenters =
            if args.consul_datacenters.is_empty() { &[String::new()][..] } else { &args.consul_datacenters };
        for (i, datacenter) in datacenters.iter().enumerate() {
            let name = if i == 0 { "consul".to_owned() } else { format!("consul-{datacenter}") };
            let registry = self.options(&name, "service.consul");
            let is_named = !datacenter.is_empty() && args.registry_domain.is_none();
            let options = ConsulOptions {
                // The first one counts before the others, as far as anything is said of priority.
                registry: RegistryOptions {
                    rank: registry.rank.saturating_add(u16::try_from(i)?),
                    ..registry
                },
                client: self.consul_client()?,
                datacenter: datacenter.clone(),
                other_domains: is_named.then(|| format!("service.{datacenter}.consul")).into_iter().collect(),
                namespace: args.consul_namespace.clone(),
                partition: args.consul_partition.clone(),
                wait: WAIT,
            };
            sources.push(Box::new(ConsulSource::open(options)?));
        }
        Ok(sources)
    }

    fn consul_client(&self) -> anyhow::Result<ClientOptions> {
        let args = self.args;
        let own = (args.consul_cert_file.as_ref(), args.consul_key_file.as_ref());
        let tls = tls(args.consul_ca_file.as_ref(), own).context("--consulCertFile, --consulKeyFile")?;
        let secret = secret("x-consul-token", "", args.consul_token_file.as_deref(), "--consulTokenFile")?;
        let servers = servers(&args.consul_servers, "--consulserverURL")?;
        Ok(ClientOptions { secret, tls, ..ClientOptions::new(servers) })
    }

    fn consul_kv(&self) -> anyhow::Result<Box<dyn Source>> {
        let options = ConsulKvOptions {
            store: self.store("consul-kv"),
            client: self.consul_client()?,
            prefix: self.args.consul_config_prefix.clone(),
            datacenter: self.args.consul_datacenters.first().cloned().unwrap_or_default(),
            namespace: self.args.consul_namespace.clone(),
            partition: self.args.consul_partition.clone(),
            wait: WAIT,
        };
        Ok(Box::new(ConsulKv::open(options)?))
    }

    fn etcd(&self) -> anyhow::Result<Box<dyn Source>> {
        let user = match read_secret(self.args.etcd_auth_file.as_deref(), "--etcdAuthFile")? {
            None => None,
            Some(text) => {
                let pair =
                    text.split_once(':').context("--etcdAuthFile: what is in it is not user:password")?;
                Some((pair.0.to_owned(), pair.1.to_owned()))
            }
        };
        let own = (self.args.etcd_cert_file.as_ref(), self.args.etcd_key_file.as_ref());
        let tls = tls(self.args.etcd_ca_file.as_ref(), own).context("--etcdCertFile, --etcdKeyFile")?;
        let options = EtcdOptions {
            store: self.store("etcd"),
            client: ClientOptions {
                tls,
                ..ClientOptions::new(servers(&self.args.etcd_servers, "--etcdserverURL")?)
            },
            prefix: self.args.etcd_config_prefix.clone(),
            user,
            alive: Duration::from_secs(10),
        };
        Ok(Box::new(EtcdSource::open(options)?))
    }

    fn page(&self, i: usize, url: &str) -> anyhow::Result<Box<dyn Source>> {
        let args = self.args;
        let name = if i == 0 { "config-url".to_owned() } else { format!("config-url-{}", i + 1) };
        let file = args.config_url_token_file.as_deref();
        let secret = secret("authorization", "Bearer ", file, "--configURLTokenFile")?;
        let tls = TlsFiles { roots: args.config_url_ca_file.clone(), own: None };
        let options = UrlOptions {
            store: self.store(&name),
            client: ClientOptions { secret, tls, ..ClientOptions::new(Vec::new()) },
            url: url.to_owned(),
            // Servers are not to be asked all the time, whatever somebody writes there.
            every: args.config_url_interval.max(Duration::from_secs(1)),
        };
        Ok(Box::new(pilot_source_url::open(options)?))
    }

    fn eureka(&self) -> anyhow::Result<Box<dyn Source>> {
        let args = self.args;
        let servers = servers(&args.eureka_servers, "--eurekaserverURL")?;
        let own = (args.eureka_cert_file.as_ref(), args.eureka_key_file.as_ref());
        let tls = tls(args.eureka_ca_file.as_ref(), own).context("--eurekaCertFile, --eurekaKeyFile")?;
        let secret = match args.eureka_auth_file.as_deref() {
            None => None,
            Some(file) => {
                let cannot = || format!("--eurekaAuthFile {}: cannot be read", file.display());
                Secret::login(file).with_context(cannot)?
            }
        };
        let options = EurekaOptions {
            registry: self.options("eureka", "service.eureka"),
            client: ClientOptions { secret, tls, ..ClientOptions::new(servers) },
            every: self.args.eureka_interval,
        };
        Ok(Box::new(EurekaSource::open(options)?))
    }

    fn zookeeper(&self) -> anyhow::Result<Box<dyn Source>> {
        let args = self.args;
        if args.zookeeper_servers.is_empty() {
            bail!("--zookeeperserverURL=HOST:PORT,… is needed");
        }
        let layout = Layout::parse(&args.zookeeper_layout);
        let layout = layout.context("--zookeeperLayout is curator, dubbo or plain")?;
        let options = ZooKeeperOptions {
            registry: self.options("zookeeper", "service.zookeeper"),
            servers: args.zookeeper_servers.clone(),
            root: args.zookeeper_root.clone().unwrap_or_else(|| layout.root().to_owned()),
            layout,
            credentials: self.zookeeper_credentials()?,
            session: Duration::from_secs(10),
            again: Duration::from_secs(60),
        };
        Ok(Box::new(ZooKeeperSource::new(options)))
    }

    fn zookeeper_credentials(&self) -> anyhow::Result<Option<Credentials>> {
        let file = self.args.zookeeper_auth_file.as_deref();
        let Some(text) = read_secret(file, "--zookeeperAuthFile")? else { return Ok(None) };
        let login = Login::parse(&text).context("--zookeeperAuthFile: what is in it is not user:password")?;
        match self.args.zookeeper_auth_scheme.as_str() {
            "digest" => Ok(Some(Credentials::Digest(login))),
            "sasl" => Ok(Some(Credentials::Sasl(login))),
            _ => bail!("--zookeeperAuthScheme is digest or sasl"),
        }
    }

    fn nomad(&self) -> anyhow::Result<Box<dyn Source>> {
        let args = self.args;
        let secret = secret("x-nomad-token", "", args.nomad_token_file.as_deref(), "--nomadTokenFile")?;
        let own = (args.nomad_cert_file.as_ref(), args.nomad_key_file.as_ref());
        let tls = tls(args.nomad_ca_file.as_ref(), own).context("--nomadCertFile, --nomadKeyFile")?;
        let servers = servers(&args.nomad_servers, "--nomadserverURL")?;
        // Nomad makes ports up, so services are called where HTTP is, unless they say otherwise.
        let service_port = Some(args.registry_service_port.map_or(80, u32::from));
        let options = NomadOptions {
            registry: RegistryOptions { service_port, ..self.options("nomad", "service.nomad") },
            client: ClientOptions { secret, tls, ..ClientOptions::new(servers) },
            namespace: args.nomad_namespace.clone(),
            alive: Duration::from_secs(10),
            // Nomad says every ten seconds that it is alive.
            silence: Duration::from_secs(60),
        };
        Ok(Box::new(NomadSource::open(options)?))
    }

    fn marathon(&self) -> anyhow::Result<Box<dyn Source>> {
        let args = self.args;
        let secret =
            secret("authorization", "token=", args.marathon_token_file.as_deref(), "--marathonTokenFile")?;
        let own = (args.marathon_cert_file.as_ref(), args.marathon_key_file.as_ref());
        let tls =
            tls(args.marathon_ca_file.as_ref(), own).context("--marathonCertFile, --marathonKeyFile")?;
        let servers = servers(&args.marathon_servers, "--marathonserverURL")?;
        let options = MarathonOptions {
            registry: self.options("marathon", "marathon.mesos"),
            client: ClientOptions { secret, tls, ..ClientOptions::new(servers) },
            alive: Duration::from_secs(10),
            anew: Duration::from_secs(300),
        };
        Ok(Box::new(MarathonSource::open(options)?))
    }

    fn cloudfoundry(&self) -> anyhow::Result<Box<dyn Source>> {
        let file = self.args.cf_config.as_ref().context("--cfConfig=FILE is needed")?;
        let config = CfConfig::read(file).with_context(|| format!("--cfConfig {}", file.display()))?;
        let options = CloudFoundryOptions {
            // Hosts are whole names there.
            registry: self.options("cloudfoundry", ""),
            config,
            read: self.read.clone(),
            patience: Duration::from_secs(10),
        };
        Ok(Box::new(CloudFoundrySource::open(options)?))
    }

    fn dns(&self) -> anyhow::Result<Box<dyn Source>> {
        let args = self.args;
        let server = args.dns_server.context("--dnsserver=IP:PORT is needed")?;
        if args.dns_names.is_empty() {
            bail!("--dnsNames=_http._tcp.HOST,… is needed");
        }
        let options = DnsOptions {
            registry: self.options("dns", ""),
            server,
            names: args.dns_names.clone(),
            patience: Duration::from_secs(5),
            shortest: Duration::from_secs(1),
        };
        Ok(Box::new(DnsSource::new(options)))
    }

    fn memory(&self) -> anyhow::Result<Box<dyn Source>> {
        let address = &self.args.memory_address;
        let options = MemoryOptions {
            registry: self.options("memory", "service.mesh"),
            read: self.read.clone(),
            token: read_secret(self.args.memory_token_file.as_deref(), "--memoryTokenFile")?,
            file: self.args.memory_file.clone(),
        };
        let listening = MemorySource::listen(*address, options);
        Ok(Box::new(listening.with_context(|| format!("--memoryAddr {address}, --memoryFile"))?))
    }
}

fn servers(texts: &[String], flag: &str) -> anyhow::Result<Vec<ServerAddress>> {
    if texts.is_empty() {
        bail!("{flag}=URL,… is needed");
    }
    // The text itself may have a password in it.
    let read = |(i, text): (usize, &String)| {
        ServerAddress::parse(text).with_context(|| format!("{flag}: address {} of {}", i + 1, texts.len()))
    };
    texts.iter().enumerate().map(read).collect()
}

fn read_secret(file: Option<&Path>, flag: &str) -> anyhow::Result<Option<String>> {
    let Some(path) = file else { return Ok(None) };
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("{flag} {}: cannot be read", path.display()))?;
    Ok(Some(text.trim().to_owned()))
}

/// A token that is read again when it is refused.
fn secret(
    header: &'static str,
    before: &str,
    file: Option<&Path>,
    flag: &str,
) -> anyhow::Result<Option<Secret>> {
    let Some(path) = file else { return Ok(None) };
    let secret = Secret::read(header, before, path);
    let secret = secret.with_context(|| format!("{flag} {}: cannot be read", path.display()))?;
    Ok(Some(secret.with_context(|| format!("{flag}: what is in it cannot be a token"))?))
}

/// Whom to trust, and a certificate of our own with its key.
fn tls(
    roots: Option<&PathBuf>,
    (certificate, key): (Option<&PathBuf>, Option<&PathBuf>),
) -> anyhow::Result<TlsFiles> {
    let own = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
        (None, None) => None,
        _ => bail!("a certificate and its key belong together"),
    };
    Ok(TlsFiles { roots: roots.cloned(), own })
}
