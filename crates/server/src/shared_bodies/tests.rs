use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use pilot_base::Name;
use pilot_xds::{ChildMap, Children, Chunk, Encoded, Parts, Protocol, Response, Summary, TypeUrl};

use super::SharedBodies;

fn response(resources: impl IntoIterator<Item = Encoded>) -> Response {
    Response {
        type_url: TypeUrl::Cluster,
        version: "1".to_owned(),
        nonce: "1".to_owned(),
        resources: resources.into_iter().map(Arc::new).collect::<Parts>(),
        removed: Vec::new(),
    }
}

fn clusters(names: &[String]) -> Response {
    response(names.iter().map(|name| Encoded::new(TypeUrl::Cluster, Name::new(name), &[7; 2000])))
}

fn blocks(bodies: &SharedBodies, response: &Response, protocol: Protocol) -> Vec<Bytes> {
    let resources = || response.resources.iter();
    let len = resources().map(|resource| resource.len(protocol)).sum();
    let blocks = bodies.of(response, protocol, len);
    let pieces = resources().flat_map(|resource| resource.entry(protocol));
    let whole: Vec<u8> = pieces.flat_map(|piece| piece.bytes).copied().collect();
    assert!(blocks.concat() == whole, "blocks are the body");
    blocks
}

#[test]
fn bodies_that_differ_in_one_place_share_the_rest() {
    let bodies = SharedBodies::default();
    let mut names: Vec<String> = (0..1000).map(|i| format!("c{i:04}")).collect();
    let common = blocks(&bodies, &clusters(&names), Protocol::Delta);
    names.insert(500, "own".to_owned());
    let own = blocks(&bodies, &clusters(&names), Protocol::Delta);
    let is_shared = |block: &&Bytes| common.iter().any(|other| other.as_ptr() == block.as_ptr());
    let shared = own.iter().filter(is_shared).count();
    assert!(own.len() > 20, "{} blocks", own.len());
    assert!(shared + 3 >= own.len(), "{shared} of {}", own.len());
}

#[test]
fn what_is_small_is_one_block() {
    let one = clusters(&["a".to_owned()]);
    assert_eq!(blocks(&SharedBodies::default(), &one, Protocol::Delta).len(), 1);
}

fn chunk(text: &str, len: usize) -> Option<Chunk> {
    Some(Chunk::new(2, text.repeat(len / text.len()).as_bytes()))
}

/// Of the names from 0 to 999 those that are even.
fn common() -> ChildMap {
    (0..1000).step_by(2).map(|i| (Name::new(&format!("{i:04}")), chunk("common ", 300 + i))).collect()
}

fn table(common: &ChildMap, own: ChildMap) -> Encoded {
    let children = Children::new(common.clone(), Summary::of(common), own, chunk("last", 40));
    Encoded::assemble(TypeUrl::Route, "80".into(), b"\x0a\x0280", children)
}

/// A body that is made of stretches must be the body, whatever stands where: replaced, hidden, or between others; at the
/// beginning, the end, and next to each other.
#[test]
fn tables_with_some_entries_of_their_own_are_themselves() {
    let (bodies, common) = (SharedBodies::default(), common());
    let all_of = |names: &[usize], text: Option<&str>| {
        let own = |i: &usize| (Name::new(&format!("{i:04}")), text.and_then(|text| chunk(text, 50 + i * 5)));
        names.iter().map(own).collect::<ChildMap>()
    };
    for names in [&[][..], &[0], &[998], &[999], &[500, 501, 502, 503], &[0, 2, 4], &[1, 3, 996, 998, 999]] {
        for text in [Some("own "), None] {
            let odd = [table(&common, all_of(names, text)), table(&common, ChildMap::new())];
            for protocol in [Protocol::Delta, Protocol::StateOfTheWorld] {
                blocks(&bodies, &response(odd.clone()), protocol);
            }
        }
    }
    let many: Vec<usize> = (0..400).collect();
    blocks(&bodies, &response([table(&common, all_of(&many, Some("many")))]), Protocol::Delta);
}

#[test]
fn what_tables_have_in_common_is_there_once() {
    let (bodies, common) = (SharedBodies::default(), common());
    let mut own_bytes = 0;
    let mut there = BTreeSet::new();
    for proxy in 0..50 {
        let own = (0..20).map(|i| (Name::new(&format!("{:04}", 50 * i + proxy)), chunk("own", 500)));
        for block in blocks(&bodies, &response([table(&common, own.collect())]), Protocol::Delta) {
            if block.len() < 2000 {
                own_bytes += block.len();
            } else {
                // A stretch lies within a block of the common part.
                there.insert(block.as_ptr().addr() >> 16);
            }
        }
    }
    assert!(own_bytes < 50 * 20 * 2000, "{own_bytes} bytes are of one table each");
    assert!(there.len() < 20, "the common part lies in {} places of 64 KiB", there.len());
}

#[test]
fn nothing_is_kept_for_longer_than_somebody_wants_it() {
    let bodies = SharedBodies::default();
    blocks(&bodies, &response([table(&common(), ChildMap::new())]), Protocol::Delta);
    assert!(!bodies.is_empty());
    let own = clusters(&(0..1000).map(|i| format!("c{i:04}")).collect::<Vec<_>>());
    blocks(&bodies, &own, Protocol::Delta);
    let held = || bodies.entries.lock().len();
    let both = held();
    bodies.forget_bytes();
    blocks(&bodies, &own, Protocol::Delta);
    bodies.forget_bytes();
    assert!(0 < held() && held() < both, "what was asked for again is kept");
    bodies.forget_bytes();
    assert_eq!(held(), 0);
    for _ in 0..2 {
        bodies.forget();
    }
    assert!(bodies.is_empty());
}
