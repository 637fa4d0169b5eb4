use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{FastMap, FastSet, SharedMap};

use crate::graph::Graph;
use crate::node::{Cell, Lookback, Node, NodeId, RowTable, Step, Stopwatch};
use crate::reader::rows_of;
use crate::rows::Rows;
use crate::table::{Key, Table, Value};

/// Collects what one row contributes to a group.
pub struct Emit<G, M, V>(Collect<G, M, V>);

enum Collect<G, M, V> {
    All(BTreeMap<(G, M), V>),
    /// Only whether anything of these groups is among it, or this member of them: of thousands of rows that are looked
    /// through nothing is kept.
    Whether {
        groups: FastSet<G>,
        member: Option<M>,
        is_there: bool,
    },
}

impl<G: Key, M: Key, V> Emit<G, M, V> {
    pub fn emit(&mut self, group: G, member: M, value: V) {
        match &mut self.0 {
            Collect::All(all) => _ = all.insert((group, member), value),
            Collect::Whether { groups, member: of, is_there } => {
                *is_there |= groups.contains(&group) && of.as_ref().is_none_or(|of| member == *of);
            }
        }
    }

    fn all() -> Self {
        Self(Collect::All(BTreeMap::new()))
    }

    fn whether(groups: &[&G], member: Option<&M>) -> Self {
        let groups = groups.iter().map(|group| (*group).clone()).collect();
        Self(Collect::Whether { groups, member: member.cloned(), is_there: false })
    }

    fn into_all(self) -> BTreeMap<(G, M), V> {
        match self.0 {
            Collect::All(all) => all,
            Collect::Whether { .. } => BTreeMap::new(),
        }
    }

    /// Was it there since this was asked last?
    fn was_there(&mut self) -> bool {
        match &mut self.0 {
            Collect::All(all) => !all.is_empty(),
            Collect::Whether { is_there, .. } => std::mem::take(is_there),
        }
    }
}

/// Contributions that a feed takes back and adds in this epoch.
type Gather<G, M, V> = Box<dyn Fn(&[Box<dyn Node>], &mut Changes<G, M, V>) + Send + Sync>;

struct Changes<G, M, V> {
    removed: Vec<(G, M)>,
    added: Vec<(G, M, V)>,
}

/// The rows of the feeding table that contribute to some groups, or to one of their members.
type Contributors<G, M> =
    Box<dyn Fn(&[Box<dyn Node>], &[&G], Option<&M>, Lookback) -> Vec<Cell> + Send + Sync>;

/// The groups that a row of the feeding table contributes to.
type GroupsOf<G> = Box<dyn Fn(&[Box<dyn Node>], u32) -> Vec<G> + Send + Sync>;

struct Feed<G, M, V> {
    from: NodeId,
    groups_of: GroupsOf<G>,
    gather: Gather<G, M, V>,
    contributors: Contributors<G, M>,
}

/// Where the members of a group come from.
pub struct Feeds<'a, G, M, V> {
    graph: &'a Graph,
    feeds: Vec<Feed<G, M, V>>,
}

impl<'a, G: Key, M: Key, V: Value + Clone> Feeds<'a, G, M, V> {
    pub(crate) fn new(graph: &'a Graph) -> Self {
        Self { graph, feeds: Vec::new() }
    }

    /// Every row of `table` contributes what `spread` emits for it. `spread` sees nothing but the row, so what a row
    /// contributed before is known from its old value and need not be remembered.
    pub fn from<K: Key, T: Value>(
        &mut self,
        table: &Table<K, T>,
        spread: impl Fn(&K, &T, &mut Emit<G, M, V>) + Send + Sync + 'static,
    ) {
        self.graph.check_declared(table);
        let table = *table;
        let spread = Arc::new(spread);
        let spread_again = Arc::clone(&spread);
        let spread = Arc::new(move |key: &K, value: Option<&Arc<T>>| {
            let mut emit = Emit::all();
            if let Some(value) = value {
                spread(key, value, &mut emit);
            }
            emit.into_all()
        });
        let spread_for = Arc::clone(&spread);
        let groups_of = move |nodes: &[Box<dyn Node>], slot: u32| {
            let rows = rows_of(nodes, &table);
            let mut groups: Vec<G> =
                spread_for(rows.key(slot), rows.value(slot)).into_keys().map(|(group, _)| group).collect();
            groups.dedup();
            groups
        };
        let gather = move |nodes: &[Box<dyn Node>], changes: &mut Changes<G, M, V>| {
            for (_, key, old, new) in rows_of(nodes, &table).changes() {
                let (before, mut now) = (spread(key, old), spread(key, new));
                for (place, value) in before {
                    match now.get(&place) {
                        Some(same) if *same == value => {
                            now.remove(&place);
                        }
                        _ => changes.removed.push(place),
                    }
                }
                changes.added.extend(now.into_iter().map(|((g, m), v)| (g, m, v)));
            }
        };
        let contributors =
            move |nodes: &[Box<dyn Node>], groups: &[&G], member: Option<&M>, lookback: Lookback| {
                let rows = rows_of(nodes, &table);
                let mut emit = Emit::whether(groups, member);
                let mut contributes = |key: &K, value: Option<&Arc<T>>| {
                    if let Some(value) = value {
                        spread_again(key, value, &mut emit);
                    }
                    emit.was_there()
                };
                let slots: Vec<u32> = match lookback {
                    Lookback::All => {
                        let slots = rows.slots().filter(|(slot, key)| contributes(key, rows.value(*slot)));
                        slots.map(|(slot, _)| slot).collect()
                    }
                    Lookback::Changed => {
                        let slots = rows
                            .changes()
                            .filter(|(_, key, old, new)| contributes(key, *old) || contributes(key, *new));
                        slots.map(|(slot, ..)| slot).collect()
                    }
                };
                slots.into_iter().map(|slot| Cell { node: table.id, slot }).collect()
            };
        self.feeds.push(Feed {
            from: table.id,
            groups_of: Box::new(groups_of),
            gather: Box::new(gather),
            contributors: Box::new(contributors),
        });
    }

    pub(crate) fn into_node(self, name: &'static str, members: Members) -> GroupNode<G, M, V> {
        GroupNode { rows: Rows::new(name), feeds: self.feeds, members, others: FastMap::default() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Members {
    /// Each member has one contributor; its key says so by construction.
    Owned,
    /// A member is there while at least one contributor has it.
    Counted,
}

/// One shared ordered map per group key, changed member by member.
pub(crate) struct GroupNode<G, M, V> {
    rows: Rows<G, SharedMap<M, V>>,
    feeds: Vec<Feed<G, M, V>>,
    members: Members,
    /// How many contributors a member has beyond the first. Most have none and are not listed.
    others: FastMap<(G, M), u32>,
}

impl<G: Key, M: Key, V: Value + Clone> GroupNode<G, M, V> {
    fn current(&self, group: &G) -> SharedMap<M, V> {
        self.rows.get(group).map(|map| (**map).clone()).unwrap_or_default()
    }

    /// Takes one contributor away; tells whether it was the last.
    fn last_contributor(&mut self, place: &(G, M)) -> bool {
        let Some(others) = self.others.get_mut(place) else { return true };
        *others -= 1;
        if *others == 0 {
            self.others.remove(place);
        }
        false
    }

    fn apply(&mut self, changes: Changes<G, M, V>) {
        let mut touched: BTreeMap<G, SharedMap<M, V>> = BTreeMap::new();
        // Removals first: a member may move from one contributor to another within the epoch.
        for place in changes.removed {
            if self.last_contributor(&place) {
                let (group, member) = place;
                touched.entry(group.clone()).or_insert_with(|| self.current(&group)).remove(&member);
            }
        }
        for (group, member, value) in changes.added {
            let map = touched.entry(group.clone()).or_insert_with(|| self.current(&group));
            if map.insert(member.clone(), value).is_some() {
                debug_assert_eq!(
                    self.members,
                    Members::Counted,
                    "two rows contribute {member:?} to {group:?}"
                );
                *self.others.entry((group, member)).or_insert(0) += 1;
            }
        }
        for (group, map) in touched {
            self.put(&group, map);
        }
    }

    fn put(&mut self, group: &G, map: SharedMap<M, V>) {
        let slot = self.rows.slot(group);
        let had = self.rows.value(slot).is_some();
        match (had, map.is_empty()) {
            (false, true) => return,
            (false, false) => self.rows.want(slot),
            (true, true) => self.rows.unwant(slot),
            (true, false) => (),
        }
        self.rows.set(slot, (!map.is_empty()).then(|| Arc::new(map)));
    }
}

impl<G: Key, M: Key, V: Value + Clone> Node for GroupNode<G, M, V> {
    fn rows(&self) -> &dyn Any {
        &self.rows
    }

    fn table(&self) -> &dyn RowTable {
        &self.rows
    }

    fn table_mut(&mut self) -> &mut dyn RowTable {
        &mut self.rows
    }

    fn sources(&self, nodes: &[Box<dyn Node>], slots: &[u32], lookback: Lookback) -> Vec<Cell> {
        let groups: Vec<&G> = slots.iter().map(|slot| self.rows.key(*slot)).collect();
        self.feeds.iter().flat_map(|feed| (feed.contributors)(nodes, &groups, None, lookback)).collect()
    }

    fn looked_through(&self, nodes: &[Box<dyn Node>]) -> usize {
        self.feeds.iter().map(|feed| nodes[usize::from(feed.from)].table().len()).sum()
    }

    fn feeders(&self) -> BTreeSet<NodeId> {
        self.feeds.iter().map(|feed| feed.from).collect()
    }

    fn fed_by(&self, nodes: &[Box<dyn Node>], cell: Cell) -> Vec<u32> {
        let feeds = self.feeds.iter().filter(|feed| feed.from == cell.node);
        let groups = feeds.flat_map(|feed| (feed.groups_of)(nodes, cell.slot));
        groups.filter_map(|group| self.rows.find(&group)).collect()
    }

    fn is_group(&self) -> bool {
        true
    }

    fn member_sources(&self, nodes: &[Box<dyn Node>], slot: u32, member: &dyn Any) -> Option<Vec<Cell>> {
        let member = member.downcast_ref::<M>()?;
        self.rows.value(slot)?.get(member)?;
        let group = self.rows.key(slot);
        let of = |feed: &Feed<G, M, V>| (feed.contributors)(nodes, &[group], Some(member), Lookback::All);
        Some(self.feeds.iter().flat_map(of).collect())
    }

    fn step(&mut self, before: &[Box<dyn Node>], _stopwatch: Stopwatch) -> Step {
        let mut changes = Changes { removed: Vec::new(), added: Vec::new() };
        for feed in &self.feeds {
            (feed.gather)(before, &mut changes);
        }
        let computed = changes.removed.len() + changes.added.len();
        self.apply(changes);
        Step { computed, ..Step::default() }
    }
}
