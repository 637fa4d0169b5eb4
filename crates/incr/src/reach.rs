use pilot_base::FastSet;

use crate::engine::Engine;
use crate::node::Cell;
use crate::reader::rows_of;
use crate::table::{Key, Table, Value};

/// The rows that looked at one row, directly or through others: what it may have shaped. It is worked out when somebody
/// asks, and is no part of a commit.
pub struct Reach {
    cells: FastSet<Cell>,
    is_whole: bool,
}

impl Reach {
    /// So many rows were followed.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Were all of them found? A row that nearly everything looks at is not followed to the end.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }
}

impl Engine {
    /// When a row of an input last changed; nothing if it is not there.
    pub fn changed_at<K: Key, V: Value>(&self, table: &Table<K, V>, key: &K) -> Option<u64> {
        let rows = rows_of(&self.nodes, table);
        let slot = rows.find(key)?;
        rows.value(slot)?;
        self.nodes[usize::from(table.id)].origin(slot).map(|origin| origin.changed)
    }

    /// Follows a row to those that looked at it, up to so many.
    ///
    /// A row is there because its driver has its key, and need not have looked at the driver's row: so the way goes
    /// along reads and contributions to groups, and not from driver to map.
    pub fn reach<K: Key, V: Value>(&self, table: &Table<K, V>, key: &K, most: usize) -> Reach {
        let mut reach = Reach { cells: FastSet::default(), is_whole: true };
        let Some(slot) = rows_of(&self.nodes, table).find(key) else { return reach };
        let mut open = vec![Cell { node: table.id, slot }];
        while let Some(cell) = open.pop() {
            if reach.cells.len() >= most {
                reach.is_whole = false;
                break;
            }
            if reach.cells.insert(cell) {
                open.extend(self.nodes[usize::from(cell.node)].table().readers(cell.slot));
                open.extend(self.groups_fed_by(cell));
            }
        }
        reach
    }

    /// The rows of a table that were reached, in order of their keys.
    pub fn reached<K: Key, V: Value>(&self, reach: &Reach, table: &Table<K, V>) -> Vec<&K> {
        let rows = rows_of(&self.nodes, table);
        let here = reach.cells.iter().filter(|cell| cell.node == table.id);
        let mut keys: Vec<&K> =
            here.filter(|cell| rows.value(cell.slot).is_some()).map(|cell| rows.key(cell.slot)).collect();
        keys.sort_unstable();
        keys
    }

    fn groups_fed_by(&self, cell: Cell) -> impl Iterator<Item = Cell> {
        self.fed[usize::from(cell.node)].iter().flat_map(move |node| {
            let groups = self.nodes[usize::from(*node)].fed_by(&self.nodes, cell);
            groups.into_iter().map(move |slot| Cell { node: *node, slot })
        })
    }
}
