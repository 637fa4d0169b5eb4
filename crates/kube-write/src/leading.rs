//! What only a leader does.

use crate::Leadership;

/// Does `work` anew whenever we begin to lead, and gives it up when we do not any more.
pub(crate) async fn while_leading<F: Future<Output = ()>>(
    mut leads: Leadership,
    mut work: impl FnMut() -> F,
) {
    // Whoever could say that we lead is gone, and so is the server.
    while leads.wait_for(|leads| *leads).await.is_ok() {
        let mut lost = leads.clone();
        tokio::select! {
            () = work() => return,
            _ = lost.wait_for(|leads| !*leads) => {}
        }
    }
}
