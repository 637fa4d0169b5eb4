use std::collections::BTreeSet;
use std::error::Error;
use std::time::Duration;

use http::uri::PathAndQuery;
use pilot_base::Name;
use pilot_config::ReadOptions;
use pilot_source::{
    Batch, Contact, Ended, Keeps, RegistryOptions, Running, Session, Shelf, Sink, Source, Teller, follow,
};
use pilot_source_http::{GrpcConnector, TlsError};
use pilot_source_store::{Documents, StoreOptions};
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::config::CfConfig;
use crate::message::{INTERNAL_ROUTES, InternalRoutes, Nothing, ROUTES, Routes};
use crate::routes::{Host, Settings, hosts};

/// How Copilot is followed.
pub struct CloudFoundryOptions {
    pub registry: RegistryOptions,
    pub config: CfConfig,
    pub read: ReadOptions,
    /// How long Copilot may take to answer.
    pub patience: Duration,
}

/// Copilot, which knows Cloud Foundry's routes and where their applications run.
pub struct CloudFoundrySource {
    registry: RegistryOptions,
    read: ReadOptions,
    copilot: Copilot,
}

struct Copilot {
    config: CfConfig,
    settings: Settings,
    patience: Duration,
}

impl CloudFoundrySource {
    pub fn open(options: CloudFoundryOptions) -> Result<Self, TlsError> {
        let CloudFoundryOptions { registry, config, read, patience } = options;
        // Files that are wrong are told at the start; later ones are read again with every connection.
        let _usable = GrpcConnector::new(&config.tls)?;
        let settings = Settings {
            namespace: registry.namespace.to_string(),
            service_port: config.service_port,
            gateways: config.gateways.clone(),
        };
        Ok(Self { registry, read, copilot: Copilot { config, settings, patience } })
    }
}

impl Source for CloudFoundrySource {
    fn name(&self) -> Name {
        self.registry.name.clone()
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.registry.contact.clone())
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        let store = StoreOptions::new(&format!("{}-rules", self.registry.name), self.read);
        let rules = Documents::new(store);
        let told = Told {
            shelf: Shelf::new(self.registry),
            rules,
            ruled: BTreeSet::new(),
            unnamed: BTreeSet::new(),
        };
        Box::pin(follow(self.copilot, told, sink))
    }
}

/// What was told of services and of rules.
struct Told {
    shelf: Shelf,
    rules: Documents,
    /// The hosts that have rules.
    ruled: BTreeSet<String>,
    /// Those of them that Copilot no longer has rules for.
    unnamed: BTreeSet<String>,
}

impl Keeps for Told {
    fn lose(&mut self, why: &str) -> Batch {
        self.shelf.lose(&why)
    }

    fn due(&self) -> Option<Instant> {
        self.shelf.due()
    }

    fn give_up(&mut self) -> Batch {
        let mut batch = self.shelf.give_up();
        self.drop_rules(&mut batch);
        batch
    }

    fn contact(&self) -> &Contact {
        self.shelf.contact()
    }
}

impl Told {
    fn replace(&mut self, all: std::collections::BTreeMap<String, Host>) -> Batch {
        let (mut registrations, mut rules) = (Vec::with_capacity(all.len()), Vec::new());
        for (name, host) in all {
            rules.extend(host.rules.map(|text| (name, text)));
            registrations.push(host.registration);
        }
        let mut batch = self.shelf.replace(registrations);
        let named = rules.iter().map(|(host, _)| host.clone()).collect();
        self.unnamed = self.ruled.difference(&named).cloned().collect();
        self.ruled.extend(named);
        for (host, text) in rules {
            batch.extend(self.rules.put(&host, text.as_bytes()));
        }
        self.drop_rules(&mut batch);
        batch
    }

    /// The rules of a host that is held stay as long as it does.
    fn drop_rules(&mut self, batch: &mut Batch) {
        let gone: Vec<String> = self.unnamed.iter().filter(|host| !self.shelf.holds(host)).cloned().collect();
        for host in gone {
            self.unnamed.remove(&host);
            self.ruled.remove(&host);
            batch.extend(self.rules.remove(&host));
        }
    }
}

impl Session<Told> for Copilot {
    async fn follow(&mut self, teller: &mut Teller<Told>) -> Ended {
        match self.ask(teller).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }
}

enum Never {}

/// Ten thousand routes with ten back ends each are some ten megabytes.
const MAX_ANSWER: usize = 256 << 20;

impl Copilot {
    async fn ask(&self, teller: &mut Teller<Told>) -> Result<Never, Ended> {
        let channel = self.channel().map_err(Ended::Lost)?;
        loop {
            let routes: Routes = self.everything(&channel, ROUTES).await?;
            let internal: InternalRoutes = self.everything(&channel, INTERNAL_ROUTES).await?;
            let batch = teller.shelf.replace(hosts(routes, internal, &self.settings));
            teller.tell(batch).await?;
            teller.until(tokio::time::sleep(self.config.every)).await?;
        }
    }

    fn channel(&self) -> Result<Channel, String> {
        let address = &self.config.address;
        let wrong = |error: &dyn Error| format!("copilot.address {address}: {error}");
        // What is asked for in plain words is carried by TLS, which is none of the channel's business.
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| wrong(&error))?;
        let origin = format!("https://{address}").parse().map_err(|error| wrong(&error))?;
        let endpoint = endpoint.origin(origin).timeout(self.patience).connect_timeout(self.patience);
        let connector = GrpcConnector::new(&self.config.tls).map_err(|error| error.to_string())?;
        Ok(endpoint.connect_with_connector_lazy(connector))
    }

    async fn everything<T>(&self, channel: &Channel, path: &'static str) -> Result<T, Ended>
    where
        T: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(MAX_ANSWER);
        let codec: ProstCodec<Nothing, T> = ProstCodec::default();
        let asked = async {
            let ready = grpc.ready().await;
            ready.map_err(|error| Status::unavailable(deepest(&error)))?;
            grpc.unary(Request::new(Nothing {}), PathAndQuery::from_static(path), codec).await
        };
        match asked.await {
            Ok(answer) => Ok(answer.into_inner()),
            // Copilots older than internal routes do not know what that is.
            Err(status) if status.code() == Code::Unimplemented && path == INTERNAL_ROUTES => {
                Ok(T::default())
            }
            Err(status) => {
                Err(Ended::Lost(format!("{} cannot be asked: {}", self.config.address, why(&status))))
            }
        }
    }
}

fn why(status: &Status) -> String {
    let hint = match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => "; is the certificate right?",
        _ => "",
    };
    let cause = status.source().map(deepest);
    format!("{}{hint}", cause.unwrap_or_else(|| format!("{:?}: {}", status.code(), status.message())))
}

/// The innermost cause is what people look for.
fn deepest(error: &(dyn Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
