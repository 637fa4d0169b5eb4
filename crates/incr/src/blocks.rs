use std::ops::{Index, IndexMut};

/// A list that only grows, kept in blocks. It is never moved as a whole and never has room for twice what is in it.
pub(crate) struct Blocks<T> {
    /// All full but the last.
    blocks: Vec<Vec<T>>,
}

/// A power of two, large enough that few blocks are needed and small enough that the last one wastes little.
const SIZE: usize = 256;

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Self { blocks: Vec::new() }
    }
}

impl<T> Blocks<T> {
    /// Adds at the end, and tells where.
    pub(crate) fn push(&mut self, item: T) -> u32 {
        let is_full = self.blocks.last().is_none_or(|block| block.len() == SIZE);
        if is_full {
            // The first block of a table may stay small.
            let room = if self.blocks.is_empty() { 0 } else { SIZE };
            self.blocks.push(Vec::with_capacity(room));
        }
        let before = (self.blocks.len() - 1) * SIZE;
        let block = self.blocks.last_mut().expect("a block was added if there was none");
        block.push(item);
        u32::try_from(before + block.len() - 1).expect("fewer than 2^31 rows in a table")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flatten()
    }
}

impl<T> Index<u32> for Blocks<T> {
    type Output = T;
    fn index(&self, at: u32) -> &T {
        &self.blocks[at as usize / SIZE][at as usize % SIZE]
    }
}

impl<T> IndexMut<u32> for Blocks<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.blocks[at as usize / SIZE][at as usize % SIZE]
    }
}

#[cfg(test)]
mod tests {
    use super::{Blocks, SIZE};

    #[test]
    fn what_was_put_somewhere_is_there() {
        let mut blocks = Blocks::default();
        let count = u32::try_from(SIZE * 2 + 3).unwrap();
        for number in 0..count {
            assert_eq!(blocks.push(number), number);
        }
        blocks[300] = 7;
        assert_eq!(
            (blocks[0], blocks[255], blocks[256], blocks[300], blocks[count - 1]),
            (0, 255, 256, 7, count - 1)
        );
        assert_eq!(blocks.iter().count(), SIZE * 2 + 3);
    }
}
