use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use pilot_base::{Name, ObjectRef, SharedMap};
use proptest::prelude::*;

use crate::{Engine, Graph, Input, Shard, Table, Txn};

/// One of everything: misses, rows without a value, groups fed by two tables, counted members, a map over groups, pairs.
struct World {
    a: Input<u16, u16>,
    b: Input<u16, u16>,
    sums: Table<u16, u16>,
    buckets: Table<u16, SharedMap<(u8, u16), u16>>,
    heads: Table<u16, Vec<u16>>,
    tops: Table<u16, Vec<u16>>,
    kinds: Table<u16, SharedMap<u16, ()>>,
    reports: Table<u16, String>,
    pairs: Table<(u16, u16, u16), ()>,
}

fn object(kind: &str, key: u16) -> ObjectRef {
    ObjectRef::new(kind, Name::empty(), key.to_string())
}

fn world() -> (Engine, World) {
    let mut graph = Graph::new();
    let a = graph.input("a", |key| object("A", *key));
    let b = graph.input("b", |key| object("B", *key));
    let sums = graph.map("sums", &a, move |key, reader| {
        let own = *reader.get(&a, key)?;
        assert_ne!(own, 13, "unlucky");
        let other = reader.get(&b, &((key + 1) % 12)).copied().unwrap_or(0);
        let sum = own + other;
        (sum % 5 != 0).then_some(sum)
    });
    let buckets = graph.group("buckets", |feeds| {
        feeds.from(&sums, |key, sum, out| out.emit(sum % 3, (0, *key), *sum));
        feeds.from(&b, |key, value, out| out.emit(value % 3, (1, *key), *value));
    });
    let heads = graph.stack("heads", &buckets, move |key, reader| {
        Some(reader.get(&buckets, key)?.iter().take(3).map(|(_, v)| *v).collect())
    });
    let tops = graph.stack("tops", &buckets, move |key, reader| reader.get(&heads, key).cloned());
    let kinds = graph.tally("kinds", |feeds| {
        feeds.from(&a, |_, value, out| out.emit(value % 4, value % 2, ()));
        feeds.from(&b, |_, value, out| out.emit(value % 4, value % 2, ()));
    });
    let reports = graph.map("reports", &kinds, move |key, reader| {
        let heads = reader.get(&heads, &(key % 3));
        Some(format!("{heads:?} {:?} {:?}", reader.get(&kinds, key), reader.get(&sums, key)))
    });
    let sums_by_parity = graph.tally("sums by parity", |feeds| {
        feeds.from(&sums, |key, sum, out| out.emit((sum % 2, *key), (), ()));
    });
    let thirds_by_parity = graph.tally("thirds by parity", |feeds| {
        feeds.from(&b, |_, value, out| out.emit((value % 2, value % 3), (), ()));
    });
    let pairs = graph.product("pairs", &sums_by_parity, &thirds_by_parity);
    (graph.build(), World { a, b, sums, buckets, heads, tops, kinds, reports, pairs })
}

fn show(engine: &Engine, world: &World) -> String {
    format!(
        "{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}",
        engine.dump(&world.sums),
        engine.dump(&world.buckets),
        engine.dump(&world.heads),
        engine.dump(&world.kinds),
        engine.dump(&world.reports),
        engine.dump(&world.pairs)
    )
}

const SHARD: Shard = Shard(1);

/// (which input, key, new value or none)
type Change = (bool, u16, Option<u16>);

fn txn(world: &World, changes: &[Change]) -> Txn {
    let mut txn = Txn::new();
    for &(first, key, value) in changes {
        let input = if first { &world.a } else { &world.b };
        match value {
            Some(value) => txn.upsert(input, SHARD, key, value),
            None => txn.remove(input, SHARD, key),
        }
    }
    txn
}

fn changes() -> impl Strategy<Value = Vec<Vec<Change>>> {
    let change = (any::<bool>(), 0..12u16, prop::option::weighted(0.7, 0..12u16));
    prop::collection::vec(prop::collection::vec(change, 0..6), 1..12)
}

proptest! {
    /// The licence to be incremental: after any transactions the tables are those built from scratch.
    #[test]
    fn incremental_equals_from_scratch(transactions in changes()) {
        let (mut engine, tables) = world();
        let mut state: BTreeMap<(bool, u16), u16> = BTreeMap::new();
        for changes in transactions {
            engine.commit(txn(&tables, &changes));
            for (first, key, value) in changes {
                match value {
                    Some(value) => state.insert((first, key), value),
                    None => state.remove(&(first, key)),
                };
            }
            let (mut fresh, fresh_tables) = world();
            let all: Vec<Change> = state.iter().map(|(&(first, key), &v)| (first, key, Some(v))).collect();
            fresh.commit(txn(&fresh_tables, &all));
            prop_assert_eq!(show(&engine, &tables), show(&fresh, &fresh_tables));
            // What an engine says has changed, together with what stayed, is the whole.
            prop_assert_eq!(engine.faults().count(), 0);
        }
    }

    /// Nothing is left behind: rows, memories of misses and counts go when what they were for is gone.
    #[test]
    fn memory_returns_after_churn(transactions in changes()) {
        let (mut engine, tables) = world();
        for changes in &transactions {
            engine.commit(txn(&tables, changes));
        }
        let mut empty = Txn::new();
        empty.replace(&tables.a, SHARD, vec![]);
        empty.replace(&tables.b, SHARD, vec![]);
        engine.commit(empty);
        engine.commit(Txn::new());
        for stats in engine.stats() {
            prop_assert_eq!(stats.rows, 0, "rows left in {}", stats.name);
        }
    }

    /// Whatever a change of a row changes was in its reach, before or after.
    #[test]
    fn nothing_changes_out_of_reach(transactions in changes(), key in 0..12u16, value in 0..12u16) {
        let (mut engine, tables) = world();
        for changes in &transactions {
            engine.commit(txn(&tables, changes));
        }
        let before = engine.reach(&tables.b, &key, usize::MAX);
        let was = [engine.reached(&before, &tables.sums), engine.reached(&before, &tables.heads)];
        let was = was.map(|keys| keys.into_iter().copied().collect::<Vec<_>>());
        engine.commit(txn(&tables, &[(false, key, Some(value))]));
        let after = engine.reach(&tables.b, &key, usize::MAX);
        let is = [engine.reached(&after, &tables.sums), engine.reached(&after, &tables.heads)];
        let changed = [
            engine.changes(&tables.sums).into_iter().map(|(key, ..)| *key).collect::<Vec<_>>(),
            engine.changes(&tables.heads).into_iter().map(|(key, ..)| *key).collect(),
        ];
        for at in 0..2 {
            for key in &changed[at] {
                prop_assert!(was[at].contains(key) || is[at].contains(&key), "{key} of table {at}");
            }
        }
        prop_assert!(engine.reached(&after, &tables.sums).len() < 3, "a row is read by one other");
    }

    /// One large transaction or many small ones, in one thread or several: the same tables.
    #[test]
    fn the_way_there_does_not_matter(transactions in changes()) {
        let (mut one, tables) = world();
        one.commit(txn(&tables, &transactions.concat()));
        let (mut many, many_tables) = world();
        for change in transactions.concat() {
            many.commit(txn(&many_tables, &[change]));
        }
        prop_assert_eq!(show(&one, &tables), show(&many, &many_tables));
    }
}

#[test]
fn equal_results_go_no_further() {
    let (mut engine, tables) = world();
    engine.commit(txn(&tables, &[(true, 1, Some(3)), (false, 2, Some(4)), (true, 7, Some(1))]));
    // 3 + 4 = 4 + 3: the sum is the same, so nothing behind it is touched.
    engine.commit(txn(&tables, &[(true, 1, Some(4)), (false, 2, Some(3))]));
    assert!(engine.changes(&tables.sums).is_empty());
    // Nothing but the row itself is computed when an input is written again with the value it has.
    let commit = engine.commit(txn(&tables, &[(true, 7, Some(1))]));
    assert_eq!(commit.computed, 0);
}

#[test]
fn a_panic_keeps_the_last_good_value_and_names_the_guilty() {
    let (mut engine, tables) = world();
    engine.commit(txn(&tables, &[(true, 1, Some(3)), (true, 2, Some(4))]));
    let commit = engine.commit(txn(&tables, &[(true, 1, Some(13)), (true, 2, Some(6))]));
    assert!(commit.faults_changed);
    assert_eq!(engine.get(&tables.sums, &1).map(|v| **v), Some(3), "the last good value stays");
    assert_eq!(engine.get(&tables.sums, &2).map(|v| **v), Some(6), "all else flows");
    let fault = engine.faults().next().expect("one row is at fault");
    assert_eq!((fault.table, fault.key.as_str()), ("sums", "1"));
    assert!(fault.message.contains("unlucky"));
    assert_eq!(fault.changed.iter().map(ToString::to_string).collect::<Vec<_>>(), ["A 1"]);
    // Mended: computed again, no longer at fault.
    let commit = engine.commit(txn(&tables, &[(true, 1, Some(2))]));
    assert!(commit.faults_changed);
    assert_eq!(engine.get(&tables.sums, &1).map(|v| **v), Some(2));
    assert_eq!(engine.faults().count(), 0);
    // A row that goes away takes its fault with it.
    engine.commit(txn(&tables, &[(true, 1, Some(13))]));
    engine.commit(txn(&tables, &[(true, 1, None)]));
    assert_eq!(engine.faults().count(), 0);
    assert_eq!(engine.get(&tables.sums, &1), None);
}

#[test]
fn provenance_reaches_through_maps_and_groups() {
    let (mut engine, tables) = world();
    engine.commit(txn(
        &tables,
        &[(true, 1, Some(4)), (false, 2, Some(3)), (true, 5, Some(9)), (false, 9, Some(2))],
    ));
    let names = |objects: std::collections::BTreeSet<ObjectRef>| {
        objects.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // 4 + 3 = 7; the miss at b[2] would count too, were it one.
    assert_eq!(names(engine.provenance(&tables.sums, &1)), ["A 1", "B 2"]);
    assert_eq!(names(engine.provenance(&tables.sums, &5)), ["A 5", "B 6"], "a miss is a reason too");
    // Bucket 1 holds the sum 7 of key 1; bucket 2 holds b[9].
    assert_eq!(names(engine.provenance(&tables.heads, &1)), ["A 1", "B 2"]);
    assert_eq!(names(engine.provenance(&tables.heads, &2)), ["B 9"]);
    // The sum 7 is odd, and so is b[2], which asks for pairs; it is named because the sum was made of it.
    assert_eq!(names(engine.provenance(&tables.pairs, &(1, 1, 0))), ["A 1", "B 2"]);
    assert_eq!(names(engine.provenance(&tables.pairs, &(1, 5, 0))), ["A 5", "B 6"]);
}

#[test]
fn the_provenance_of_a_member_is_its_own() {
    let (mut engine, tables) = world();
    engine.commit(txn(&tables, &[(true, 1, Some(4)), (false, 2, Some(3)), (false, 9, Some(2))]));
    engine.commit(txn(&tables, &[(true, 1, Some(6)), (false, 2, Some(1))]));
    let origins = |table, member: (u8, u16)| {
        let found = engine.member_provenance(table, &1, &member);
        found
            .origins
            .into_iter()
            .map(|origin| (origin.object.to_string(), origin.changed))
            .collect::<Vec<_>>()
    };
    let told = |text: &str, epoch| (text.to_owned(), epoch);
    for table in [&tables.heads, &tables.tops] {
        assert_eq!(origins(table, (0, 1)), [told("A 1", 2), told("B 2", 2)]);
        assert!(origins(table, (0, 7)).is_empty(), "who is not a member has no origin");
    }
}

#[test]
fn a_reach_ends_where_nobody_looked_and_where_it_is_told_to() {
    let (mut engine, tables) = world();
    engine.commit(txn(&tables, &[(true, 1, Some(3)), (true, 5, Some(4)), (false, 2, Some(1))]));
    assert_eq!([engine.changed_at(&tables.a, &1), engine.changed_at(&tables.a, &2)], [Some(1), None]);
    let reach = engine.reach(&tables.b, &2, usize::MAX);
    assert_eq!(engine.reached(&reach, &tables.sums), [&1], "the sum of five did not look at it");
    assert!(reach.is_whole());
    assert!(!engine.reach(&tables.b, &2, 1).is_whole());
    engine.commit(txn(&tables, &[(true, 1, Some(3)), (true, 5, Some(6))]));
    assert_eq!(
        [engine.changed_at(&tables.a, &1), engine.changed_at(&tables.a, &5)],
        [Some(1), Some(2)],
        "what is written again as it was has not changed"
    );
}

#[test]
fn only_the_owner_takes_a_row_away() {
    let (mut engine, tables) = world();
    let (mine, other) = (Shard(1), Shard(2));
    let mut first = Txn::new();
    first.replace(&tables.a, mine, vec![(1, 1), (2, 2)]);
    first.replace(&tables.a, other, vec![(3, 3)]);
    engine.commit(first);
    let mut second = Txn::new();
    second.remove(&tables.a, other, 1);
    second.replace(&tables.a, other, vec![(4, 4)]);
    engine.commit(second);
    let keys: Vec<u16> = engine.dump(&tables.a).into_iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, [1, 2, 4]);
}

#[test]
fn of_several_shards_the_lowest_counts_whoever_came_first() {
    let (low, high) = (Shard(1), Shard(2));
    let row = |engine: &Engine, tables: &World| engine.get(&tables.a, &1).map(|value| **value);
    for order in [[low, high], [high, low]] {
        let (mut engine, tables) = world();
        let write = |engine: &mut Engine, shard: Shard, value: u16| {
            let mut txn = Txn::new();
            txn.upsert(&tables.a, shard, 1, value);
            engine.commit(txn);
        };
        for shard in order {
            write(&mut engine, shard, u16::try_from(shard.0).unwrap());
        }
        assert_eq!(row(&engine, &tables), Some(1), "{order:?}");
        write(&mut engine, high, 7);
        assert_eq!(row(&engine, &tables), Some(1), "what the other says does not count");
        let mut txn = Txn::new();
        txn.replace(&tables.a, low, vec![(2, 2)]);
        let commit = engine.commit(txn);
        assert_eq!((row(&engine, &tables), engine.changed_at(&tables.a, &1)), (Some(7), Some(commit.epoch)));
        write(&mut engine, low, 3);
        let mut txn = Txn::new();
        txn.replace(&tables.a, high, vec![(2, 9), (4, 4)]);
        engine.commit(txn);
        let mut txn = Txn::new();
        txn.remove(&tables.a, low, 1);
        txn.remove(&tables.a, low, 2);
        engine.commit(txn);
        let rows: Vec<(u16, u16)> =
            engine.dump(&tables.a).into_iter().map(|(key, value)| (*key, **value)).collect();
        assert_eq!(rows, [(2, 9), (4, 4)], "nobody says 1 any more, and the other one says 2");
    }
}

#[test]
fn many_rows_are_computed_on_all_cores_with_the_same_result() {
    let (mut engine, tables) = world();
    let mut all = Txn::new();
    for key in 0..5000 {
        all.upsert(&tables.a, SHARD, key, if key == 13 { 1 } else { key % 7 });
        all.upsert(&tables.b, SHARD, key, key % 5);
    }
    engine.commit(all);
    let sums: Vec<u16> = engine.dump(&tables.sums).into_iter().map(|(_, v)| **v).collect();
    let expected = |key: u16| (if key == 13 { 1 } else { key % 7 }) + ((key + 1) % 12) % 5;
    assert_eq!(sums, (0..5000).map(expected).filter(|sum| sum % 5 != 0).collect::<Vec<_>>());
    // A change costs what it touches, not what there is.
    let commit = engine.commit(txn(&tables, &[(true, 4000, Some(1))]));
    assert!(commit.computed < 12, "computed {}", commit.computed);
}

#[test]
fn a_commit_tells_whose_change_it_was() {
    let (mut engine, tables) = world();
    engine.commit(txn(&tables, &[(true, 1, Some(3)), (false, 2, Some(4)), (true, 7, Some(1))]));
    let changed =
        |engine: &Engine| engine.changed_objects().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(changed(&engine), ["A 1", "A 7", "B 2"]);
    // What is written again as it was has changed nothing; what is gone has.
    engine.commit(txn(&tables, &[(true, 1, Some(3)), (false, 2, None)]));
    assert_eq!(changed(&engine), ["B 2"]);
}

#[test]
fn rows_are_counted_and_misses_are_not() {
    let (mut engine, tables) = world();
    engine.commit(txn(&tables, &[(true, 1, Some(3)), (true, 2, Some(4)), (false, 2, Some(4))]));
    assert_eq!((engine.count(&tables.a), engine.count(&tables.b)), (2, 1), "b[3] was only looked for");
    engine.commit(txn(&tables, &[(true, 1, None)]));
    assert_eq!(engine.counts().take(3).collect::<Vec<_>>(), [("a", 1), ("b", 1), ("sums", 1)]);
}

#[test]
fn what_other_threads_did_is_counted_too() {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    let (mut engine, tables) = world();
    assert_eq!(engine.commit(txn(&tables, &[(true, 1, Some(3))])).spent, 0, "nobody measures");
    engine.measure(|| TICKS.fetch_add(1, Ordering::Relaxed));
    assert_eq!(engine.commit(txn(&tables, &[(true, 1, Some(4))])).spent, 1);
    let mut all = Txn::new();
    (0..800).for_each(|key| all.upsert(&tables.a, SHARD, key, 1));
    let spent = engine.commit(all).spent;
    assert!(spent > 100, "each of a hundred runs took at least one tick, all of them {spent}");
}
