use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use pilot_base::Micros;

use super::{KEPT, Lane, Lanes, MOST, News, Place, SILENCE};
use crate::clock::Held;

/// With one place for each sort.
fn lanes() -> (Lanes, Arc<Held>) {
    let clock = Arc::new(Held::default());
    clock.go_on(10 * MOST);
    (Lanes::with_places(1, 1, clock.clone()), clock)
}

fn poll(waiting: Pin<&mut impl Future<Output = Option<Place>>>) -> Option<Place> {
    match waiting.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(place) => place,
        Poll::Pending => None,
    }
}

fn take(lanes: &Lanes, lane: Lane) -> Option<Place> {
    poll(pin!(lanes.place(lane)))
}

/// What the task does that looks after places.
fn release(lanes: &Lanes) -> Option<Micros> {
    [&lanes.first, &lanes.push].into_iter().filter_map(|places| places.look()).min()
}

fn free(lanes: &Lanes) -> [usize; 2] {
    [&lanes.first, &lanes.push].map(|places| places.free())
}

#[test]
fn a_place_is_kept_until_the_client_answers_or_for_long_enough() {
    let (lanes, clock) = lanes();
    let answered = take(&lanes, Lane::Push).expect("it is free");
    lanes.keep(&answered);
    assert!(take(&lanes, Lane::Push).is_none());
    drop(answered);
    let silent = take(&lanes, Lane::Push).expect("it is free again");
    lanes.keep(&silent);
    clock.go_on(KEPT - 1);
    assert_eq!(release(&lanes), Some(clock.now_micros() + 1));
    assert!(take(&lanes, Lane::Push).is_none());
    clock.go_on(1);
    release(&lanes);
    assert!(take(&lanes, Lane::Push).is_some(), "nobody waits for that client any more");
    drop(silent);
    assert!(take(&lanes, Lane::Push).is_some());
    assert_eq!(release(&lanes), None);
    assert!(!lanes.push.is_had());
    assert_eq!(free(&lanes), [1, 1], "one place, whoever gave it back how often");
}

#[test]
fn who_does_not_run_holds_nobody_up_with_a_place_that_it_was_given() {
    for lane in [Lane::First, Lane::Push] {
        let (lanes, clock) = lanes();
        let first = take(&lanes, lane).expect("it is free");
        let mut stuck = pin!(lanes.place(lane));
        let mut next = pin!(lanes.place(lane));
        assert!(poll(stuck.as_mut()).is_none() && poll(next.as_mut()).is_none());
        drop(first);
        assert!(poll(next.as_mut()).is_none(), "it is another's turn");
        clock.go_on(MOST + KEPT);
        release(&lanes);
        assert!(poll(next.as_mut()).is_some(), "who was given the place was never seen again");
        assert!(poll(stuck.as_mut()).is_some(), "it may go on, late");
        assert_eq!(free(&lanes), [1, 1]);
    }
}

#[test]
fn who_leaves_while_it_waits_is_passed_over() {
    let (lanes, _clock) = lanes();
    let first = take(&lanes, Lane::Push).expect("it is free");
    assert!(take(&lanes, Lane::Push).is_none(), "this one gives up at once");
    let mut next = pin!(lanes.place(Lane::Push));
    assert!(poll(next.as_mut()).is_none());
    drop(first);
    assert!(poll(next.as_mut()).is_some());
    assert_eq!(free(&lanes), [1, 1]);
}

#[test]
fn a_new_proxy_does_not_wait_behind_a_push() {
    let (lanes, _clock) = lanes();
    let pushing = take(&lanes, Lane::Push).expect("nobody pushes yet");
    let mut second = pin!(lanes.place(Lane::Push));
    let mut third = pin!(lanes.place(Lane::Push));
    assert!(poll(second.as_mut()).is_none() && poll(third.as_mut()).is_none());
    assert!(take(&lanes, Lane::First).is_some());
    drop(pushing);
    assert!(poll(third.as_mut()).is_none(), "it asked later");
    assert!(poll(second.as_mut()).is_some());
}

#[test]
fn a_push_lets_small_news_go_first_but_not_for_ever() {
    let mut news = News::default();
    assert_eq!(news.over_at(10 * MOST), None, "there is none");
    let start = 10 * MOST;
    news.told(start);
    assert_eq!(news.over_at(start), Some(start + SILENCE));
    assert_eq!(news.over_at(start + SILENCE), None);
    let mut now = start;
    while now < start + 2 * MOST {
        now += SILENCE / 2;
        news.told(now);
        assert_eq!(news.over_at(now).is_some(), now < start + MOST, "{now}: news without end");
    }
    now += SILENCE;
    news.told(now);
    assert!(news.over_at(now).is_some(), "it was silent, so this is news again");
}

#[tokio::test(start_paused = true)]
async fn news_that_comes_again_and_again_holds_a_push_up_only_once() {
    let (lanes, clock) = lanes();
    lanes.told();
    let mut push = pin!(lanes.place(Lane::Push));
    // Each time something is told anew just when it was silent for long enough.
    for _ in 0..MOST / SILENCE {
        assert!(poll(push.as_mut()).is_none());
        clock.go_on(SILENCE);
        lanes.told();
        tokio::time::advance(std::time::Duration::from_micros(SILENCE)).await;
    }
    assert!(poll(push.as_mut()).is_some());
}
