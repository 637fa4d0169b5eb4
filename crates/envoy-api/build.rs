//! Generates Envoy's messages from the .proto files inside the crate `envoy-types`, with `BTreeMap` for map fields, so that
//! the same message always encodes to the same bytes. Nothing generated is kept in the repository.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use prost::Message as _;
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver};

/// The files whose messages we build or read; what they import comes along.
const ROOTS: &[&str] = &[
    "envoy/admin/v3/config_dump.proto",
    "envoy/config/bootstrap/v3/bootstrap.proto",
    "envoy/config/cluster/v3/cluster.proto",
    "envoy/config/endpoint/v3/endpoint.proto",
    "envoy/config/listener/v3/listener.proto",
    "envoy/config/route/v3/route.proto",
    "envoy/config/trace/v3/datadog.proto",
    "envoy/config/trace/v3/opentelemetry.proto",
    "envoy/config/trace/v3/skywalking.proto",
    "envoy/config/trace/v3/zipkin.proto",
    "envoy/extensions/access_loggers/file/v3/file.proto",
    "envoy/extensions/access_loggers/filters/cel/v3/cel.proto",
    "envoy/extensions/access_loggers/grpc/v3/als.proto",
    "envoy/config/rbac/v3/rbac.proto",
    "envoy/extensions/access_loggers/open_telemetry/v3/logs_service.proto",
    "envoy/extensions/clusters/dynamic_forward_proxy/v3/cluster.proto",
    "envoy/extensions/common/dynamic_forward_proxy/v3/dns_cache.proto",
    "envoy/extensions/filters/http/cors/v3/cors.proto",
    "envoy/extensions/filters/http/dynamic_forward_proxy/v3/dynamic_forward_proxy.proto",
    "envoy/extensions/filters/http/ext_authz/v3/ext_authz.proto",
    "envoy/extensions/filters/http/fault/v3/fault.proto",
    "envoy/extensions/filters/http/grpc_stats/v3/config.proto",
    "envoy/extensions/filters/http/grpc_web/v3/grpc_web.proto",
    "envoy/extensions/filters/http/jwt_authn/v3/config.proto",
    "envoy/extensions/filters/http/rbac/v3/rbac.proto",
    "envoy/extensions/filters/http/lua/v3/lua.proto",
    "envoy/extensions/filters/http/on_demand/v3/on_demand.proto",
    "envoy/extensions/filters/http/router/v3/router.proto",
    "envoy/extensions/filters/http/stateful_session/v3/stateful_session.proto",
    "envoy/extensions/filters/http/wasm/v3/wasm.proto",
    "envoy/extensions/filters/listener/http_inspector/v3/http_inspector.proto",
    "envoy/extensions/filters/listener/original_dst/v3/original_dst.proto",
    "envoy/extensions/filters/listener/original_src/v3/original_src.proto",
    "envoy/extensions/filters/listener/proxy_protocol/v3/proxy_protocol.proto",
    "envoy/extensions/filters/listener/tls_inspector/v3/tls_inspector.proto",
    "envoy/extensions/filters/network/ext_authz/v3/ext_authz.proto",
    "envoy/extensions/filters/network/http_connection_manager/v3/http_connection_manager.proto",
    "envoy/extensions/filters/network/mongo_proxy/v3/mongo_proxy.proto",
    "envoy/extensions/filters/network/rbac/v3/rbac.proto",
    "envoy/extensions/filters/network/redis_proxy/v3/redis_proxy.proto",
    "envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3/sni_dynamic_forward_proxy.proto",
    "envoy/extensions/filters/network/tcp_proxy/v3/tcp_proxy.proto",
    "envoy/extensions/path/match/uri_template/v3/uri_template_match.proto",
    "envoy/extensions/filters/network/wasm/v3/wasm.proto",
    "envoy/extensions/formatter/req_without_query/v3/req_without_query.proto",
    "envoy/extensions/http/stateful_session/cookie/v3/cookie.proto",
    "envoy/extensions/http/stateful_session/header/v3/header.proto",
    "envoy/extensions/network/dns_resolver/cares/v3/cares_dns_resolver.proto",
    "envoy/extensions/request_id/uuid/v3/uuid.proto",
    "envoy/extensions/retry/host/previous_hosts/v3/previous_hosts.proto",
    "envoy/extensions/retry/priority/previous_priorities/v3/previous_priorities_config.proto",
    "envoy/extensions/tracers/opentelemetry/resource_detectors/v3/dynatrace_resource_detector.proto",
    "envoy/extensions/tracers/opentelemetry/resource_detectors/v3/environment_resource_detector.proto",
    "envoy/extensions/tracers/opentelemetry/samplers/v3/dynatrace_sampler.proto",
    "envoy/extensions/transport_sockets/proxy_protocol/v3/upstream_proxy_protocol.proto",
    "envoy/extensions/transport_sockets/quic/v3/quic_transport.proto",
    "envoy/extensions/transport_sockets/raw_buffer/v3/raw_buffer.proto",
    "envoy/extensions/transport_sockets/tls/v3/tls.proto",
    "envoy/extensions/upstreams/http/v3/http_protocol_options.proto",
    "envoy/service/discovery/v3/ads.proto",
    "envoy/service/status/v3/csds.proto",
    // Ours: messages of Istio's Envoy build, and some that envoy-types leaves out.
    "istio/alpn.proto",
    "istio/nds.proto",
    "istio/stats.proto",
    "pilot/mysql_proxy.proto",
    "udpa/type/v1/typed_struct.proto",
];

/// Folders inside `envoy-types/proto` that import paths start from.
const INCLUDES: &[&str] = &[
    "data-plane-api",
    "xds",
    "googleapis",
    "protoc-gen-validate",
    "cel-spec/proto",
    "client_model",
    "opentelemetry-proto",
    "ratelimit/api",
];

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto");
    let shipped = proto_folder()?;
    let mut compiler = compiler(&shipped);
    compiler.open_files(ROOTS).map_err(io::Error::other)?;
    let set = compiler.file_descriptor_set();
    // EnvoyFilters may name any message of Envoy's: as data all of them are known, as code only those of `ROOTS`.
    let mut everything = prost_types::FileDescriptorSet::default();
    let mut known = BTreeSet::new();
    for file in all_files(&shipped)?.into_iter().filter_map(|file| file.to_str().map(str::to_owned)) {
        if !known.contains(&file) {
            let files = describe(&shipped, &file)?.file.into_iter();
            everything.file.extend(files.filter(|file| known.insert(file.name().to_owned())));
        }
    }

    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?);
    fs::write(out.join("descriptors.bin"), everything.encode_to_vec())?;
    // What a client of the discovery service may ask for by reflection is a small part of everything.
    let mut service = protox::Compiler::new(includes(&shipped)).map_err(io::Error::other)?;
    service.include_imports(true);
    service.open_file("envoy/service/discovery/v3/ads.proto").map_err(io::Error::other)?;
    fs::write(out.join("ads.bin"), service.file_descriptor_set().encode_to_vec())?;
    prost_build::Config::new()
        .btree_map(["."])
        .disable_comments(["."])
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com")
        .include_file("mod.rs")
        .compile_fds(set)
}

/// A file and what it imports. Each is compiled by itself: many use relative names, which would mean something else if
/// all packages were known.
fn describe(shipped: &Path, file: &str) -> io::Result<prost_types::FileDescriptorSet> {
    let mut compiler = compiler(shipped);
    compiler.open_file(file).map_err(io::Error::other)?;
    Ok(compiler.file_descriptor_set())
}

fn compiler(shipped: &Path) -> protox::Compiler {
    let mut resolver = ChainFileResolver::new();
    resolver.add(Corrected { shipped: shipped.to_owned() });
    includes(shipped).for_each(|folder| resolver.add(IncludeFileResolver::new(folder)));
    resolver.add(GoogleFileResolver::new());
    let mut compiler = protox::Compiler::with_file_resolver(resolver);
    compiler.include_imports(true);
    compiler
}

/// Files with a relative name that is ambiguous even so: a package two imports away hides the one it means.
struct Corrected {
    shipped: PathBuf,
}

impl FileResolver for Corrected {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let known = [
            "envoy/extensions/clusters/dynamic_forward_proxy/v3/cluster.proto",
            "envoy/extensions/filters/http/dynamic_forward_proxy/v3/dynamic_forward_proxy.proto",
            "envoy/extensions/filters/network/redis_proxy/v3/redis_proxy.proto",
            "envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3/sni_dynamic_forward_proxy.proto",
        ];
        if !known.contains(&name) {
            return Err(protox::Error::file_not_found(name));
        }
        let text =
            fs::read_to_string(self.shipped.join("data-plane-api").join(name)).map_err(protox::Error::new)?;
        let text = text
            .replace(" common.dynamic_forward_proxy.", " .envoy.extensions.common.dynamic_forward_proxy.")
            .replace(" common.aws.", " .envoy.extensions.common.aws.");
        File::from_source(name, &text)
    }
}

/// The folders whose files describe configuration, and ours.
fn all_files(shipped: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for (root, below) in [
        (shipped.join("data-plane-api"), "envoy/config"),
        (shipped.join("data-plane-api"), "envoy/extensions"),
        (shipped.join("data-plane-api"), "envoy/data"),
        (shipped.join("data-plane-api"), "envoy/type"),
        (shipped.join("data-plane-api"), "envoy/service/discovery"),
        (shipped.join("data-plane-api"), "envoy/admin"),
        (shipped.join("xds"), "xds"),
        (PathBuf::from("proto"), ""),
    ] {
        collect(&root, &root.join(below), &mut files)?;
    }
    files.sort();
    Ok(files)
}

/// Paths of .proto files below `folder`, as imports name them.
fn collect(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if path.extension().is_some_and(|e| e == "proto") {
            files.push(path.strip_prefix(root).map_err(io::Error::other)?.to_owned());
        }
    }
    Ok(())
}

fn includes(shipped: &Path) -> impl Iterator<Item = PathBuf> {
    INCLUDES.iter().map(|dir| shipped.join(dir)).chain([PathBuf::from("proto")])
}

/// Where cargo has put the sources of `envoy-types`.
fn proto_folder() -> io::Result<PathBuf> {
    let variable =
        |name: &str| env::var_os(name).ok_or_else(|| io::Error::other(format!("{name} is not set")));
    let manifest = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("Cargo.toml");
    let mut command = Command::new(variable("CARGO")?);
    command.args(["metadata", "--format-version", "1", "--locked", "--manifest-path"]).arg(&manifest);
    let output = command.output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let found = packages.filter(|p| p["name"] == "envoy-types").find_map(|p| p["manifest_path"].as_str());
    let path = found.ok_or_else(|| io::Error::other("cargo metadata does not list envoy-types"))?;
    Ok(Path::new(path).with_file_name("proto"))
}
