use std::panic::resume_unwind;

use tokio::task::JoinError;

/// Takes note of a task that has ended. Whoever depends on one that broke down goes down with it: what it followed would stay
/// as it was for ever, and nobody would know.
pub(crate) fn ended(outcome: Result<(), JoinError>) {
    if let Err(error) = outcome
        && let Ok(panic) = error.try_into_panic()
    {
        resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    #[tokio::test]
    async fn who_depends_on_a_task_goes_down_with_it() {
        let mut inner = JoinSet::new();
        inner.spawn(async { panic!("broken") });
        let mut outer = JoinSet::new();
        outer.spawn(async move { inner.join_next().await.into_iter().for_each(super::ended) });
        assert!(outer.join_next().await.unwrap().unwrap_err().is_panic());
        // One that was told to end is no such thing.
        let mut inner: JoinSet<()> = JoinSet::new();
        inner.spawn(std::future::pending());
        inner.abort_all();
        inner.join_next().await.into_iter().for_each(super::ended);
    }
}
