//! The loop around every adapter: ask, tell, and after a loss wait longer each time before asking again.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher as _, RandomState};
use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Batch, Contact, Shelf, Sink};

/// Why an adapter stopped following its registry.
#[derive(Debug)]
pub enum Ended {
    /// Nobody listens any more.
    Closed,
    /// The registry cannot be asked, for a reason that people read; it has no secrets in it.
    Lost(String),
}

impl Ended {
    pub fn lost(why: impl fmt::Display) -> Self {
        Self::Lost(why.to_string())
    }
}

/// An adapter while it is connected.
pub trait Session<K = Shelf>: Send {
    /// Follows the backend until that is no longer possible. What was told before stays.
    fn follow(&mut self, teller: &mut Teller<K>) -> impl Future<Output = Ended> + Send;
}

/// What an adapter keeps of what it told.
pub trait Keeps: Send {
    /// The backend cannot be asked: that is told once, and nothing is taken back.
    fn lose(&mut self, why: &str) -> Batch;
    /// When something is to be told though the backend says nothing.
    fn due(&self) -> Option<Instant>;
    /// What is to be told then.
    fn give_up(&mut self) -> Batch;
    /// Where it is noted that the backend was heard of.
    fn contact(&self) -> &Contact;
}

impl Keeps for Shelf {
    fn lose(&mut self, why: &str) -> Batch {
        Self::lose(self, &why)
    }

    fn due(&self) -> Option<Instant> {
        Self::due(self)
    }

    fn give_up(&mut self) -> Batch {
        Self::give_up(self)
    }

    fn contact(&self) -> &Contact {
        &self.options().contact
    }
}

/// What is told, and to whom.
pub struct Teller<K = Shelf> {
    pub shelf: K,
    sink: Sink,
    /// Losses since something was told.
    losses: u32,
}

impl<K: Keeps> Teller<K> {
    /// Passes on what the backend has just said, which may be nothing new.
    pub async fn tell(&mut self, batch: Batch) -> Result<(), Ended> {
        self.losses = 0;
        self.heard();
        self.pass_on(batch).await
    }

    /// The backend is there.
    pub fn heard(&self) {
        self.shelf.contact().heard();
    }

    /// Waits for something. What is due meanwhile is told by the way.
    pub async fn until<T>(&mut self, something: impl Future<Output = T>) -> Result<T, Ended> {
        let mut something = std::pin::pin!(something);
        loop {
            let Some(due) = self.shelf.due() else { return Ok(something.await) };
            tokio::select! {
                out = &mut something => return Ok(out),
                () = tokio::time::sleep_until(due) => {
                    let batch = self.shelf.give_up();
                    self.pass_on(batch).await?;
                }
            }
        }
    }

    async fn pass_on(&self, batch: Batch) -> Result<(), Ended> {
        if batch.is_empty() {
            return Ok(());
        }
        self.sink.send(batch).await.map_err(|_| Ended::Closed)
    }
}

/// Runs an adapter for as long as somebody listens.
pub async fn follow<K: Keeps>(mut session: impl Session<K>, shelf: K, sink: Sink) {
    let closed = sink.clone();
    let mut teller = Teller { shelf, sink, losses: 0 };
    let following = async {
        loop {
            let why = match caught(session.follow(&mut teller)).await {
                Some(Ended::Closed) => return,
                Some(Ended::Lost(why)) => why,
                None => PANICKED.to_owned(),
            };
            let batch = teller.shelf.lose(&why);
            if !batch.is_empty() && teller.sink.send(batch).await.is_err() {
                return;
            }
            teller.losses = teller.losses.saturating_add(1);
            tokio::time::sleep(pause(teller.losses, chance())).await;
        }
    };
    tokio::select! {
        () = following => {}
        () = closed.closed() => {}
    }
}

const PANICKED: &str = "reading its answer failed (a bug in Pilot, please report it)";

/// What it comes to; nothing if it panics. One answer that nobody has thought of should not end the server.
async fn caught<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let poll = |cx: &mut Context<'_>| {
        // Whatever was left half done is looked at again from the beginning.
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        polled.map_or(Poll::Ready(None), |poll| poll.map(Some))
    };
    std::future::poll_fn(poll).await
}

/// Until a moment, if there is one.
pub async fn until_due(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// The first pause is not felt by anybody; the longest still finds a registry that came back soon enough.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(15);

/// How long to wait after so many losses: twice as long each time, half of it by chance, so that replicas do not come
/// back together.
fn pause(losses: u32, chance: u64) -> Duration {
    let whole = SHORTEST.saturating_mul(1 << losses.min(10)).min(LONGEST);
    let share = u32::try_from(chance % 1000).unwrap_or_default();
    whole / 2 + whole / 2 * share / 1000
}

/// A number that nobody can foretell; the standard library draws its seeds for maps that way.
fn chance() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::JoinSet;

    use super::{Ended, LONGEST, SHORTEST, Session, Teller, follow, pause};
    use crate::contract::Mirror;
    use crate::{Instance, InstancePort, Registration, RegistryOptions, Shelf};

    /// Knows a service, is lost, and then knows nobody and says nothing.
    struct Forgetful(u32);

    impl Session for Forgetful {
        async fn follow(&mut self, teller: &mut Teller) -> Ended {
            self.0 += 1;
            let ports = vec![InstancePort { number: 80, ..InstancePort::default() }];
            let one = Instance { id: "1".into(), address: "10.0.0.1".into(), ports, ..Instance::default() };
            let shop = Registration { name: "shop".into(), instances: vec![one], ..Registration::default() };
            let batch = teller.shelf.replace((self.0 == 1).then_some(shop));
            match teller.tell(batch).await {
                Ok(()) if self.0 == 1 => Ended::lost("it broke off"),
                Ok(()) => teller.until(std::future::pending::<()>()).await.err().unwrap_or(Ended::Closed),
                Err(ended) => ended,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_is_given_up_though_the_registry_says_nothing() {
        let (sink, mut batches) = tokio::sync::mpsc::channel(8);
        let options = RegistryOptions::new("memory", "mesh");
        let contact = options.contact.clone();
        let mut running = JoinSet::new();
        running.spawn(follow(Forgetful(0), Shelf::new(options), sink));
        let mut mirror = Mirror::default();
        // Known, lost, and lost no more but held.
        for _ in 0..3 {
            mirror.apply(batches.recv().await.unwrap());
        }
        let issue = mirror.issues.values().flatten().next().unwrap().to_string();
        assert!(mirror.objects().count() == 1 && issue.contains("1 of 1 instances are missing"), "{issue}");
        let held = tokio::time::Instant::now();
        mirror.apply(batches.recv().await.unwrap());
        assert_eq!((mirror.objects().count(), mirror.issues.len()), (0, 0));
        assert!(held.elapsed() >= Duration::from_secs(89) && contact.age() >= Some(Duration::from_secs(89)));
    }

    /// Is met by an answer that nobody has thought of, and then by one that is right.
    struct Clumsy(Forgetful);

    impl Session for Clumsy {
        async fn follow(&mut self, teller: &mut Teller) -> Ended {
            self.0.0 += 1;
            assert_ne!(self.0.0, 1, "an answer that nobody has thought of");
            self.0.0 = 0;
            self.0.follow(teller).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_a_loss_like_any_other() {
        let (sink, mut batches) = tokio::sync::mpsc::channel(8);
        let mut running = JoinSet::new();
        running.spawn(follow(Clumsy(Forgetful(0)), Shelf::new(RegistryOptions::new("memory", "mesh")), sink));
        let mut mirror = Mirror::default();
        mirror.apply(batches.recv().await.unwrap());
        let issue = mirror.issues.values().flatten().next().unwrap().to_string();
        assert!(!mirror.ready && issue.contains("a bug in Pilot"), "{issue}");
        mirror.apply(batches.recv().await.unwrap());
        assert!(mirror.ready && mirror.objects().count() == 1 && mirror.issues.is_empty());
    }

    #[test]
    fn pauses_grow_up_to_a_limit() {
        assert!(pause(1, 0) >= SHORTEST && pause(1, 999) < SHORTEST * 2);
        assert!(pause(5, 0) > pause(2, 999));
        assert!(pause(u32::MAX, 999) <= LONGEST && pause(20, 0) >= LONGEST / 2);
    }
}
