use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pilot_base::parse_span;
use pilot_model::RegistryMerge;

/// Flags of registries. Those that old Pilot had have its names.
#[derive(Args)]
pub(crate) struct RegistryArgs {
    /// The namespace of services from registries other than Kubernetes
    #[arg(long = "registryNamespace", value_name = "NAMESPACE", default_value = "default")]
    pub(crate) registry_namespace: String,
    /// The suffix of their hosts, so that one service in several registries is one host [default: service.consul, …]
    #[arg(long = "registryDomain", value_name = "DOMAIN")]
    pub(crate) registry_domain: Option<String>,
    /// The port by which all of their services are called, wherever instances listen; metadata may say another
    /// [default: the ports of instances; 80 for Nomad]
    #[arg(long = "registryServicePort", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) registry_service_port: Option<u16>,
    /// What becomes of a host that several registries have: union of all instances; priority of the registry that comes
    /// first and has any; conflict, which is the same and reported
    #[arg(long = "registryMerge", value_name = "RULE", default_value = "union", value_parser = parse_merge)]
    pub(crate) registry_merge: RegistryMerge,
    /// How long instances are kept that a registry no longer has after a loss, where most of what it had is missing; 0s
    /// if it is believed at once
    #[arg(long = "registryGrace", value_name = "DURATION", default_value = "90s", value_parser = parse_span)]
    pub(crate) registry_grace: Duration,
    /// Consul's agent or servers
    #[arg(long = "consulserverURL", value_name = "URL,…", value_delimiter = ',')]
    pub(crate) consul_servers: Vec<String>,
    /// Datacenters of Consul that are followed [default: the agent's own]
    #[arg(long = "consulDatacenters", value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) consul_datacenters: Vec<String>,
    /// The namespace in Consul Enterprise
    #[arg(long = "consulNamespace", value_name = "NAME", default_value = "")]
    pub(crate) consul_namespace: String,
    /// The partition in Consul Enterprise
    #[arg(long = "consulPartition", value_name = "NAME", default_value = "")]
    pub(crate) consul_partition: String,
    /// File with Consul's ACL token; it is read again when the token is refused
    #[arg(long = "consulTokenFile", value_name = "FILE")]
    pub(crate) consul_token_file: Option<PathBuf>,
    /// Roots for Consul's certificate [default: those of the system]
    #[arg(long = "consulCAFile", value_name = "FILE")]
    pub(crate) consul_ca_file: Option<PathBuf>,
    /// Our certificate for Consul
    #[arg(long = "consulCertFile", value_name = "FILE")]
    pub(crate) consul_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long = "consulKeyFile", value_name = "FILE")]
    pub(crate) consul_key_file: Option<PathBuf>,
    /// Rules are read from Consul's keys below this one; empty for none
    #[arg(long = "consulConfigPrefix", value_name = "KEY", default_value = "")]
    pub(crate) consul_config_prefix: String,
    /// Pages with rules, which are asked for again and again
    #[arg(long = "configURL", value_name = "URL,…", value_delimiter = ',')]
    pub(crate) config_urls: Vec<String>,
    /// How often that is
    #[arg(long = "configURLInterval", value_name = "DURATION", default_value = "10s", value_parser = parse_span)]
    pub(crate) config_url_interval: Duration,
    /// File with the token that such pages want; it is read again when the token is refused
    #[arg(long = "configURLTokenFile", value_name = "FILE")]
    pub(crate) config_url_token_file: Option<PathBuf>,
    /// Roots for the certificates of their servers [default: those of the system]
    #[arg(long = "configURLCAFile", value_name = "FILE")]
    pub(crate) config_url_ca_file: Option<PathBuf>,
    /// How often --configDir is looked at, on file systems of which the kernel tells nothing, such as those of a network
    /// [default: only when the kernel tells of a change]
    #[arg(long = "configPoll", value_name = "DURATION", value_parser = parse_span)]
    pub(crate) config_poll: Option<Duration>,
    /// etcd's servers, in which rules stand
    #[arg(long = "etcdserverURL", value_name = "URL,…", value_delimiter = ',')]
    pub(crate) etcd_servers: Vec<String>,
    /// Rules are read from etcd's keys below this one
    #[arg(long = "etcdConfigPrefix", value_name = "KEY", default_value = "/istio/config")]
    pub(crate) etcd_config_prefix: String,
    /// File with user:password for etcd
    #[arg(long = "etcdAuthFile", value_name = "FILE")]
    pub(crate) etcd_auth_file: Option<PathBuf>,
    /// Roots for etcd's certificate [default: those of the system]
    #[arg(long = "etcdCAFile", value_name = "FILE")]
    pub(crate) etcd_ca_file: Option<PathBuf>,
    /// Our certificate for etcd
    #[arg(long = "etcdCertFile", value_name = "FILE")]
    pub(crate) etcd_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long = "etcdKeyFile", value_name = "FILE")]
    pub(crate) etcd_key_file: Option<PathBuf>,
    /// Eureka's servers, such as http://host:8761/eureka; user and password may stand in it
    #[arg(long = "eurekaserverURL", value_name = "URL,…", value_delimiter = ',')]
    pub(crate) eureka_servers: Vec<String>,
    /// How often Eureka is asked what changed; 100ms is the least, and 60s the most
    #[arg(long = "eurekaserverInterval", value_name = "DURATION", default_value = "2s", value_parser = parse_span)]
    pub(crate) eureka_interval: Duration,
    /// File with user:password for Eureka, over what its URL says; it is read again when it is refused
    #[arg(long = "eurekaAuthFile", value_name = "FILE")]
    pub(crate) eureka_auth_file: Option<PathBuf>,
    /// Roots for Eureka's certificate [default: those of the system]
    #[arg(long = "eurekaCAFile", value_name = "FILE")]
    pub(crate) eureka_ca_file: Option<PathBuf>,
    /// Our certificate for Eureka
    #[arg(long = "eurekaCertFile", value_name = "FILE")]
    pub(crate) eureka_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long = "eurekaKeyFile", value_name = "FILE")]
    pub(crate) eureka_key_file: Option<PathBuf>,
    /// ZooKeeper's servers
    #[arg(long = "zookeeperserverURL", value_name = "HOST:PORT,…", value_delimiter = ',')]
    pub(crate) zookeeper_servers: Vec<String>,
    /// How services stand in ZooKeeper: curator, dubbo or plain
    #[arg(long = "zookeeperLayout", value_name = "LAYOUT", default_value = "curator")]
    pub(crate) zookeeper_layout: String,
    /// The node below which they stand [default: /services, or /dubbo]
    #[arg(long = "zookeeperRoot", value_name = "PATH")]
    pub(crate) zookeeper_root: Option<String>,
    /// File with user:password for ZooKeeper
    #[arg(long = "zookeeperAuthFile", value_name = "FILE")]
    pub(crate) zookeeper_auth_file: Option<PathBuf>,
    /// How ZooKeeper is told: digest, its own scheme, which sends the password; or sasl with DIGEST-MD5, which does not
    #[arg(long = "zookeeperAuthScheme", value_name = "SCHEME", default_value = "digest")]
    pub(crate) zookeeper_auth_scheme: String,
    /// Nomad's servers
    #[arg(long = "nomadserverURL", value_name = "URL,…", value_delimiter = ',')]
    pub(crate) nomad_servers: Vec<String>,
    /// The namespace of Nomad that is followed; * for all
    #[arg(long = "nomadNamespace", value_name = "NAME", default_value = "*")]
    pub(crate) nomad_namespace: String,
    /// File with Nomad's ACL token; it is read again when the token is refused
    #[arg(long = "nomadTokenFile", value_name = "FILE")]
    pub(crate) nomad_token_file: Option<PathBuf>,
    /// Roots for Nomad's certificate [default: those of the system]
    #[arg(long = "nomadCAFile", value_name = "FILE")]
    pub(crate) nomad_ca_file: Option<PathBuf>,
    /// Our certificate for Nomad
    #[arg(long = "nomadCertFile", value_name = "FILE")]
    pub(crate) nomad_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long = "nomadKeyFile", value_name = "FILE")]
    pub(crate) nomad_key_file: Option<PathBuf>,
    /// Marathon's servers, for services that run in Mesos
    #[arg(long = "marathonserverURL", value_name = "URL,…", value_delimiter = ',')]
    pub(crate) marathon_servers: Vec<String>,
    /// File with the token that DC/OS wants before Marathon; it is read again when the token is refused
    #[arg(long = "marathonTokenFile", value_name = "FILE")]
    pub(crate) marathon_token_file: Option<PathBuf>,
    /// Roots for Marathon's certificate [default: those of the system]
    #[arg(long = "marathonCAFile", value_name = "FILE")]
    pub(crate) marathon_ca_file: Option<PathBuf>,
    /// Our certificate for Marathon
    #[arg(long = "marathonCertFile", value_name = "FILE")]
    pub(crate) marathon_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long = "marathonKeyFile", value_name = "FILE")]
    pub(crate) marathon_key_file: Option<PathBuf>,
    /// Where Cloud Foundry's Copilot is, and how it is asked
    #[arg(long = "cfConfig", value_name = "FILE")]
    pub(crate) cf_config: Option<PathBuf>,
    /// The name server that is asked for --dnsNames
    #[arg(long = "dnsserver", value_name = "IP:PORT")]
    pub(crate) dns_server: Option<SocketAddr>,
    /// Names with SRV records that are services, such as _http._tcp.shop.example.com
    #[arg(long = "dnsNames", value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) dns_names: Vec<String>,
    /// Where the memory registry is written
    #[arg(long = "memoryAddr", value_name = "ADDRESS", default_value = "127.0.0.1:15016")]
    pub(crate) memory_address: SocketAddr,
    /// File in which the memory registry is kept, so that it is there after a restart [default: it is forgotten]
    #[arg(long = "memoryFile", value_name = "FILE")]
    pub(crate) memory_file: Option<PathBuf>,
    /// File with the token that writers of the memory registry need; without it anybody who reaches it may write
    #[arg(long = "memoryTokenFile", value_name = "FILE")]
    pub(crate) memory_token_file: Option<PathBuf>,
}

fn parse_merge(text: &str) -> Result<RegistryMerge, String> {
    RegistryMerge::parse(text).ok_or_else(|| "it is union, priority or conflict".to_owned())
}
