//! A store that tells nobody that something changed: it is asked for everything, again and again.

use std::time::Duration;

use pilot_base::Name;
use pilot_source::{Contact, Ended, Running, Session, Sink, Source, Teller, follow};

use crate::documents::{Documents, StoreOptions};

/// All documents of a store as they are at one moment.
pub trait Snapshots: Send + 'static {
    /// Documents by their keys; nothing if they are those of the last time. Or why they cannot be had, in words without
    /// secrets.
    fn take(&mut self) -> impl Future<Output = Result<Option<Vec<(String, Vec<u8>)>>, String>> + Send;
}

/// Turns snapshots into events: what did not change is none.
pub struct Monitor<S> {
    store: StoreOptions,
    polled: Polled<S>,
}

struct Polled<S> {
    snapshots: S,
    every: Duration,
}

impl<S: Snapshots> Monitor<S> {
    pub fn new(store: StoreOptions, snapshots: S, every: Duration) -> Self {
        Self { store, polled: Polled { snapshots, every } }
    }
}

impl<S: Snapshots> Source for Monitor<S> {
    fn name(&self) -> Name {
        self.store.name.clone()
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.store.contact.clone())
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.polled, Documents::new(self.store), sink))
    }
}

impl<S: Snapshots> Session<Documents> for Polled<S> {
    async fn follow(&mut self, teller: &mut Teller<Documents>) -> Ended {
        match self.watch(teller).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }
}

enum Never {}

impl<S: Snapshots> Polled<S> {
    async fn watch(&mut self, teller: &mut Teller<Documents>) -> Result<Never, Ended> {
        loop {
            let taken = teller.until(self.snapshots.take()).await?.map_err(Ended::Lost)?;
            let batch = match taken {
                Some(documents) => teller.shelf.replace(documents),
                None => teller.shelf.found(),
            };
            teller.tell(batch).await?;
            teller.until(tokio::time::sleep(self.every)).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use pilot_config::ReadOptions;
    use pilot_source::Source as _;
    use pilot_source::contract::Mirror;
    use tokio::task::JoinSet;

    use super::{Monitor, Snapshots};
    use crate::StoreOptions;

    type Taken = Result<Option<Vec<(String, Vec<u8>)>>, String>;

    /// Says one thing after the other, and then always that nothing is new.
    struct Script(VecDeque<Taken>);

    impl Snapshots for Script {
        async fn take(&mut self) -> Taken {
            self.0.pop_front().unwrap_or(Ok(None))
        }
    }

    fn rule(name: &str, host: &str) -> (String, Vec<u8>) {
        let head =
            "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {namespace: shop, name: ";
        (name.to_owned(), format!("{head}{name}}}\nspec: {{host: {host}}}\n").into_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn what_did_not_change_is_no_event_and_a_failure_takes_nothing_back() {
        let script: [Taken; 6] = [
            Ok(Some(vec![rule("a", "a.com"), rule("b", "b.com")])),
            Ok(Some(vec![rule("a", "a.com"), rule("b", "b.com")])),
            Ok(Some(vec![rule("a", "a.com"), rule("b", "c.com")])),
            Err("nobody answers".to_owned()),
            Ok(None),
            Ok(Some(vec![rule("b", "c.com")])),
        ];
        let options = StoreOptions::new("page", ReadOptions::default());
        let contact = options.contact.clone();
        let every = Duration::from_secs(10);
        let monitor = Monitor::new(options, Script(script.into()), every);
        let (sink, mut batches) = tokio::sync::mpsc::channel(8);
        let mut running = JoinSet::new();
        running.spawn(Box::new(monitor).run(sink));
        let mut mirror = Mirror::default();
        let mut seen = Vec::new();
        for _ in 0..5 {
            mirror.apply(batches.recv().await.unwrap());
            seen.push((mirror.objects().count(), mirror.rows, mirror.issues.len()));
        }
        // Everything, one change, a loss, that it is over, and one that is gone.
        assert_eq!(seen, [(2, 0, 0), (2, 1, 0), (2, 1, 1), (2, 1, 0), (1, 2, 0)]);
        tokio::time::sleep(5 * every).await;
        assert!(
            batches.try_recv().is_err() && contact.age() <= Some(every),
            "nothing is new, and it is heard of"
        );
    }
}
