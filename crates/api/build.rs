//! Turns `proto/` into Rust: prost for the wire, pbjson for JSON. Nothing generated is kept in the repository.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use prost::Message as _;

/// Messages that are plain values in Rust.
const OWN_TYPES: &[(&str, &str)] = &[
    ("Duration", "crate::Duration"),
    ("BoolValue", "bool"),
    ("Int32Value", "i32"),
    ("Int64Value", "i64"),
    ("UInt32Value", "u32"),
    ("UInt64Value", "u64"),
    ("DoubleValue", "f64"),
    ("StringValue", "String"),
];

fn main() -> io::Result<()> {
    let root = Path::new("proto");
    println!("cargo:rerun-if-changed=proto");
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    let set = protox::compile(&files, [root]).map_err(io::Error::other)?;
    let bytes = set.encode_to_vec();

    let mut wire = prost_build::Config::new();
    let mut json = pbjson_build::Builder::new();
    wire.btree_map(["."]).compile_well_known_types();
    json.register_descriptors(&bytes)?.btree_map(["."]);
    for (message, rust) in OWN_TYPES {
        let path = format!(".google.protobuf.{message}");
        wire.extern_path(&path, *rust);
        json.extern_path(&path, *rust);
    }
    wire.extern_path(".google.protobuf", "::pbjson_types").include_file("mod.rs").compile_fds(set)?;
    json
        // Istio ignores fields it does not know; whoever reads JSON through us learns their names from the deserializer.
        .ignore_unknown_fields()
        .build(&[".istio"])?;
    merge_json(&PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?))
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "proto") {
            files.push(path);
        }
    }
    Ok(())
}

/// The JSON half of a package belongs into the same module as its messages.
fn merge_json(out: &Path) -> io::Result<()> {
    for entry in fs::read_dir(out)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        if let Some(package) = name.strip_suffix(".serde.rs") {
            let messages = out.join(format!("{package}.rs"));
            let mut text = fs::read_to_string(&messages)?;
            text.push_str(&fs::read_to_string(&path)?);
            fs::write(messages, text)?;
        }
    }
    Ok(())
}
