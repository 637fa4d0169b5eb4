use std::sync::Arc;

use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_model::MeshOptions;
use tokio::sync::watch;

use super::{Engine, EngineOptions};
use crate::{Metrics, SystemClock, node};

#[tokio::test]
async fn a_stream_that_comes_and_goes_in_one_step_keeps_no_seat() {
    let options = EngineOptions {
        mesh: MeshOptions::default(),
        sources: 0,
        debounce: None,
        most_kinds: None,
        settings: watch::Sender::default(),
    };
    let metrics = Arc::new(Metrics::new("test").unwrap());
    let engine = Engine::start(options, Arc::new(SystemClock::default()), metrics).unwrap();
    let handle = engine.handle().clone();
    let id = "sidecar~10.9.0.1~cart-1.shop~shop.svc.cluster.local".to_owned();
    let proxy = Arc::new(node::proxy(Some(&Node { id, ..Node::default() })).unwrap());

    // While the engine is busy it comes, and gives up waiting for its seat.
    let (go_on, busy) = std::sync::mpsc::channel::<()>();
    let blocked = handle.look(move |_, _| busy.recv().is_ok());
    let mut blocked = Box::pin(blocked);
    assert!(now_or_never(blocked.as_mut()).is_none());
    let guest = handle.next_id();
    let mut waiting = Box::pin(handle.connect(guest, Arc::clone(&proxy)));
    assert!(now_or_never(waiting.as_mut()).is_none());
    drop(waiting);
    handle.disconnect(guest, proxy.name.clone());
    go_on.send(()).unwrap();
    assert_eq!(blocked.await, Some(true));

    assert_eq!(handle.look(|_, publisher| publisher.seats()).await, Some(0));
    let stays = handle.next_id();
    let _seat = handle.connect(stays, Arc::clone(&proxy)).await.unwrap();
    assert_eq!(handle.look(|_, publisher| publisher.seats()).await, Some(1));
    engine.stop();
}

/// What it comes to, if it does not have to wait.
fn now_or_never<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}
