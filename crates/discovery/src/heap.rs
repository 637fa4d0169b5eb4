use pilot_server::Heap;
use tikv_jemalloc_ctl::{Result, epoch, stats};

/// What the allocator has handed out. It counts by epoch, so it is told that a new one begins.
pub(crate) fn usage() -> Option<Heap> {
    let read = || -> Result<Heap> {
        epoch::advance()?;
        Ok(Heap {
            allocated: stats::allocated::read()? as u64,
            active: stats::active::read()? as u64,
            mapped: stats::mapped::read()? as u64,
        })
    };
    read().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_held_is_counted() {
        let held = |heap: Option<pilot_server::Heap>| heap.expect("it is counted").allocated;
        let before = held(super::usage());
        let block = vec![1_u8; 64 << 20];
        assert!(held(super::usage()) >= before + (60 << 20));
        assert_eq!(block[block.len() - 1], 1);
    }
}
