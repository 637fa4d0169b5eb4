use std::any::Any;

use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};

/// What one run of rows came to. Its type is known to who asked for it.
pub(crate) struct Run {
    pub(crate) rows: Box<dyn Any + Send>,
    /// Nanoseconds that it took.
    pub(crate) spent: u64,
}

/// Does all runs, on all cores, and tells what came of them in their order.
///
/// It has no type parameters on purpose: with them rayon was compiled once for each of a hundred tables, which took
/// longer than all the rest of the graph.
pub(crate) fn on_all_cores(runs: usize, run: &(dyn Fn(usize) -> Run + Sync)) -> Vec<Run> {
    (0..runs).into_par_iter().map(run).collect()
}
