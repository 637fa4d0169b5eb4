use std::sync::Arc;

use pilot_base::Name;

use super::{Holding, Watch, named_in};
use crate::{Commons, Encoded, Held, Layer, Manifest, NameSet, TypeUrl};

fn blamed(error: &str, names: &[&str]) -> Vec<String> {
    let encode = |name: &&str| Arc::new(Encoded::new(TypeUrl::Listener, (*name).into(), b""));
    let resources: Vec<_> = names.iter().map(encode).collect();
    named_in(error, &resources.iter().collect::<Vec<_>>()).into_iter().map(|r| r.name().to_string()).collect()
}

#[test]
fn only_whole_names_are_blamed() {
    let envoy = "Error adding/updating listener(s) 0.0.0.0_8080: filter not found\n";
    assert_eq!(blamed(envoy, &["0.0.0.0_80", "0.0.0.0_8080", "virtualInbound"]), ["0.0.0.0_8080"]);
    let clusters = ["outbound|80||a.b", "outbound|80||a.b.c", "outbound|80|v1|a.b"];
    assert_eq!(blamed("cluster outbound|80||a.b.c is bad", &clusters), ["outbound|80||a.b.c"]);
    assert_eq!(blamed("cluster outbound|80||a.b.", &clusters), ["outbound|80||a.b"]);
    assert_eq!(blamed("c10, c2", &["c1", "c2", "c10"]), ["c10", "c2"]);
    assert!(blamed("no good", &["c1", "c2"]).is_empty());
}

fn set(names: &[&str]) -> Arc<NameSet> {
    Arc::new(names.iter().map(|name| Name::new(name)).collect())
}

fn layer(names: &[&str]) -> Layer {
    let encode = |name: &&str| {
        let name = Name::new(name);
        (name.clone(), Some(Arc::new(Encoded::new(TypeUrl::Cluster, name, b""))))
    };
    names.iter().map(encode).collect()
}

#[test]
fn clients_that_follow_the_same_change_share_their_names_again() {
    let mut watch = Watch::new(TypeUrl::Endpoint);
    watch.set_names(&set(&["a", "b"]));
    let (more, fewer) = (set(&["a", "b", "c"]), set(&["b", "c"]));
    for asked in [&more, &fewer] {
        watch.set_names(asked);
        assert!(watch.names.is(asked), "each answer would be compared name by name");
        assert!(asked.iter().all(|name| watch.wants(name)) && watch.names.len() == asked.len());
    }
    assert!(watch.is_unsure(&Name::new("c")), "it was not sent yet");
    assert!(!watch.wants(&Name::new("a")));
}

#[test]
fn names_that_are_made_up_and_let_go_of_leave_nothing_behind() {
    let everything = Manifest::new([layer(&["a", "b"])]);
    let on_demand = Manifest::new([layer(&["a", "b"])]).with_at_once([layer(&["a"])]);
    for base in [everything, on_demand] {
        let mut watch = Watch::new(TypeUrl::Cluster);
        watch.change_names(&set(&["*"]), &[]);
        watch.base = base;
        for made_up in ["x", "y", "z"] {
            watch.change_names(&set(&[made_up]), &[]);
            assert!(watch.is_unsure(&Name::new(made_up)), "who asks is told");
            watch.change_names(&set(&[]), &[Name::new(made_up)]);
        }
        assert_eq!((watch.names_size(), watch.unsure.len(), watch.except.len()), (0, 0, 0));
    }
}

#[test]
fn what_a_client_says_that_it_holds_is_counted() {
    let target = Manifest::new([layer(&["a", "b"])]);
    let mut watch = Watch::new(TypeUrl::Endpoint);
    watch.change_names(&set(&["*"]), &[]);
    let made_up = |n: usize| Held { name: Name::from(format!("made-up-{n}")), version: None, served: None };
    watch.set_initial((0..1000).map(made_up).collect(), &target);
    assert!(watch.names_size() > 1000 * 64, "{}", watch.names_size());
}

#[test]
fn what_was_found_out_about_layers_is_that_of_these_layers() {
    let commons = Commons::with_least(2);
    let (below, apart, over) = (layer(&["a", "b", "c"]), layer(&["d", "e"]), layer(&["c", "d"]));
    let run = commons.run(&below).unwrap();
    for _ in 0..2 {
        let is_all_seen =
            |upper: &Layer| commons.is_all_seen(&run, &Manifest::new([below.clone(), upper.clone()]), 0);
        assert!(is_all_seen(&apart));
        assert!(!is_all_seen(&over));
        for n in 0..20 {
            assert!(is_all_seen(&layer(&["d", "e", &format!("f{n}")])), "more than are remembered");
        }
    }
}

#[test]
fn what_was_put_off_is_still_sent_to_who_lets_go_of_its_name_and_wants_everything() {
    let mut watch = Watch::new(TypeUrl::Cluster);
    watch.change_names(&set(&["*"]), &[]);
    watch.base = Manifest::new([layer(&["a", "b", "c"])]);
    // While it is looked for what a client refuses, the rest is put off.
    let put_off = Name::new("c");
    watch.except.insert(put_off.clone(), Holding::Nothing);
    watch.unsure.insert(put_off.clone());
    watch.change_names(&set(&[]), std::slice::from_ref(&put_off));
    assert!(watch.is_unsure(&put_off), "nothing else would make anybody think of it");
}
