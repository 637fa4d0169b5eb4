//! Who the server is, whom it certifies and whom it lets in: istiod's flags and environment variables for that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use pilot_ca::{Limits, Plugged, plugged_in};
use pilot_cli::Env;
use pilot_kube_write::CaSecret;
use pilot_server::{
    AuthOptions, Authenticator, EngineHandle, Gate, Identity, IdentityOptions, Issuance, JwtRule, KeyOptions,
    Metrics, SelfSigned, TlsFiles, unix_seconds,
};

use crate::args::{DiscoveryArgs, namespace_of};

const DAY: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_TTL: Duration = DAY;
const MAX_TTL: Duration = Duration::from_secs(90 * 24 * 3600);
const ROOT_LIFETIME: Duration = Duration::from_secs(3650 * 24 * 3600);
/// Where charts mount a CA, and a certificate for the server, that somebody else has made.
const PLUGGED: &str = "./etc/cacerts";
const MOUNTED: &str = "./var/run/secrets/istiod";
/// Where a CA of our own is kept outside Kubernetes.
const SELF_SIGNED: &str = "./var/lib/pilot/ca";
const AUDIENCE: &str = "istio-ca";

pub(crate) struct IdentitySettings {
    /// Nothing if neither certificates nor TLS are wanted.
    identity: Option<IdentityOptions>,
    limits: Limits,
    auth: AuthOptions,
    /// `JWT_RULE`
    rule: Option<JwtRule>,
    /// `TOKEN_ISSUER`, whose tokens are good for certificates only.
    issuer: Option<JwtRule>,
}

/// Who is asked who a caller is.
pub(crate) struct Gates {
    pub(crate) xds: Arc<Gate>,
    pub(crate) certificates: Arc<Gate>,
}

impl IdentitySettings {
    pub(crate) fn new(args: &DiscoveryArgs, env: &Env) -> anyhow::Result<Self> {
        let flag = |name: &str, default: bool| env.flag(name).unwrap_or(default);
        let auth = AuthOptions {
            xds_auth: flag("XDS_AUTH", true),
            plaintext: flag("XDS_AUTH_PLAINTEXT", false),
            identity_check: flag("PILOT_ENABLE_XDS_IDENTITY_CHECK", true),
        };
        let rule = env.get("JWT_RULE").map(JwtRule::parse).transpose().context("JWT_RULE")?;
        let audience = env.get("AUDIENCE").unwrap_or(AUDIENCE);
        let issuer = env.get("TOKEN_ISSUER").map(|issuer| JwtRule::of_issuer(issuer, audience));
        let seconds = |name: &str, default: Duration| {
            i64::try_from(env.span(name).unwrap_or(default).as_secs()).unwrap_or(i64::MAX)
        };
        let limits = Limits {
            default_ttl: seconds("DEFAULT_WORKLOAD_CERT_TTL", DEFAULT_TTL),
            max_ttl: seconds("MAX_WORKLOAD_CERT_TTL", MAX_TTL),
        };
        // In plain text nobody gets a certificate unless he is asked who he is there.
        let has_tls = !args.secure_grpc_addr.is_empty() || !args.https_addr.is_empty();
        let wanted = has_tls || auth.plaintext;
        let identity = if wanted { identity_options(args, env)? } else { None };
        Ok(Self { identity, limits, auth, rule, issuer })
    }

    /// In a cluster an authority of our own is kept there, beside all servers of it.
    pub(crate) async fn keep_in(&mut self, secret: &CaSecret) -> anyhow::Result<()> {
        let Some(options) = self.identity.as_mut().filter(|options| options.has_authority) else {
            return Ok(());
        };
        if matches!(plugged_in(&options.plugged)?, Plugged::Present(_)) {
            return Ok(());
        }
        let lifetime = i64::try_from(options.root_lifetime.as_secs()).unwrap_or(i64::MAX);
        let material = secret.keep(&options.organisation, lifetime, unix_seconds()).await?;
        let place = format!("Secret {}", secret.place()).into();
        options.self_signed = SelfSigned::Kept { place, material };
        Ok(())
    }

    /// `cluster` knows the tokens of a Kubernetes cluster.
    pub(crate) fn gates(
        &self,
        engine: &EngineHandle,
        keys: &KeyOptions,
        cluster: Option<Arc<dyn Authenticator>>,
    ) -> Gates {
        let mut common = Gate::authenticators(engine, self.rule.clone(), keys);
        common.extend(cluster);
        let mut all = common.clone();
        if let Some(issuer) = &self.issuer {
            all.push(Gate::token_authenticator(engine, issuer.clone(), keys));
        }
        Gates {
            xds: Arc::new(Gate::new(common, self.auth)),
            certificates: Arc::new(Gate::new(all, self.auth)),
        }
    }

    pub(crate) fn open(&self, metrics: &Arc<Metrics>) -> anyhow::Result<Option<Identity>> {
        let Some(options) = self.identity.clone() else { return Ok(None) };
        let identity = Identity::open(options, Arc::clone(metrics)).context(
            "the server has no certificate; mend it, or serve without TLS: --secureGRPCAddr= --httpsAddr= (empty)",
        )?;
        Ok(Some(identity))
    }

    pub(crate) fn issuance(&self, identity: &Identity, gate: Arc<Gate>) -> Option<Issuance> {
        identity.authority().map(|authority| Issuance { gate, authority, limits: self.limits })
    }
}

/// Nothing if there is neither an authority nor a certificate: then nothing is served with TLS, as in istiod.
fn identity_options(args: &DiscoveryArgs, env: &Env) -> anyhow::Result<Option<IdentityOptions>> {
    let files = tls_files(args, Path::new(MOUNTED))?;
    let has_authority = env.flag("ENABLE_CA_SERVER").unwrap_or(true);
    if !has_authority && files.is_none() {
        tracing::warn!(
            "there is no certificate, so nothing is served with TLS: ENABLE_CA_SERVER is false and --tlsCertFile is empty"
        );
        return Ok(None);
    }
    let namespace = namespace_of(args.namespace.as_deref(), env);
    let namespace = namespace.as_str();
    Ok(Some(IdentityOptions {
        plugged: env.get("ROOT_CA_DIR").unwrap_or(PLUGGED).into(),
        self_signed: SelfSigned::Folder(env.get("SELF_SIGNED_CA_DIR").unwrap_or(SELF_SIGNED).into()),
        root_lifetime: env.span("CITADEL_SELF_SIGNED_CA_CERT_TTL").unwrap_or(ROOT_LIFETIME),
        organisation: args.domain.clone(),
        has_authority,
        multiroot: env.flag("ISTIO_MULTIROOT_MESH").unwrap_or(false),
        names: names(namespace, env),
        files,
        only_tls13: args.tls_min_version == "1.3",
    }))
}

/// What flags name, else what is mounted where cert-manager's users have it.
fn tls_files(args: &DiscoveryArgs, mounted: &Path) -> anyhow::Result<Option<TlsFiles>> {
    let named = [&args.tls_cert_file, &args.tls_key_file, &args.ca_cert_file];
    match named.map(|name| !name.is_empty()) {
        [true, true, true] => {
            let [certificate, key, ca] = named.map(PathBuf::from);
            return Ok(Some(TlsFiles { certificate, key, ca }));
        }
        [false, false, false] => {}
        _ => bail!("--tlsCertFile, --tlsKeyFile and --caCertFile go together: give all three, or none"),
    }
    let (certificate, key) = (mounted.join("tls/tls.crt"), mounted.join("tls/tls.key"));
    let roots = ["ca/root-cert.pem", "tls/ca.crt"].map(|name| mounted.join(name));
    let ca = roots.into_iter().find(|path| path.exists());
    Ok(ca.filter(|_| certificate.exists() && key.exists()).map(|ca| TlsFiles { certificate, key, ca }))
}

/// How clients may call us.
fn names(namespace: &str, env: &Env) -> Vec<String> {
    let mut services = vec!["istiod".to_owned(), "istiod-remote".to_owned(), "istio-pilot".to_owned()];
    if let Some(revision) = env.get("REVISION").filter(|revision| *revision != "default") {
        services.push(format!("istiod-{revision}"));
    }
    let mut names: Vec<String> =
        services.iter().map(|service| format!("{service}.{namespace}.svc")).collect();
    let custom = env.get("ISTIOD_CUSTOM_HOST").unwrap_or_default().split(',').map(str::trim);
    for name in custom.filter(|name| !name.is_empty()) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::names;
    use pilot_cli::Env;

    #[test]
    fn the_server_goes_by_istiods_names() {
        let env = Env::from([("REVISION", "canary"), ("ISTIOD_CUSTOM_HOST", "istiod.ns.svc, 127.0.0.1,")]);
        assert_eq!(
            names("ns", &env),
            [
                "istiod.ns.svc",
                "istiod-remote.ns.svc",
                "istio-pilot.ns.svc",
                "istiod-canary.ns.svc",
                "127.0.0.1"
            ]
        );
        assert_eq!(names("ns", &Env::from([("REVISION", "default")])).len(), 3);
    }
}
