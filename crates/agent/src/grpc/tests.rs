use std::time::Duration;

use bytes::{Buf as _, Bytes};
use proptest::prelude::*;

use super::{Code, Deframer, FrameError, Outgoing, Rope, Socket, SocketError, Status, Upstream, framed};
use crate::proxy_config::HostPort;

fn whole(rope: Rope) -> Vec<u8> {
    rope.into_pieces().flat_map(|piece| piece.to_vec()).collect()
}

proptest! {
    #[test]
    fn messages_are_found_however_they_are_cut(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..5),
        at in proptest::collection::vec(1_usize..20, 1..20),
    ) {
        let mut bytes: Bytes = messages
            .iter()
            .flat_map(|message| framed(Rope::from(Bytes::from(message.clone()))))
            .flat_map(|piece| piece.to_vec())
            .collect::<Vec<u8>>()
            .into();
        let (mut deframer, mut found, mut cuts) = (Deframer::new(100), Vec::new(), at.into_iter().cycle());
        while bytes.has_remaining() {
            deframer.push(bytes.split_to(cuts.next().unwrap().min(bytes.len())));
            while let Some(message) = deframer.next().unwrap() {
                found.push(whole(message));
            }
        }
        prop_assert_eq!(found, messages);
        prop_assert_eq!(deframer.end(), Ok(()));
    }
}

#[test]
fn a_message_that_is_too_long_is_refused_before_it_arrives() {
    let mut deframer = Deframer::new(3);
    deframer.push(Bytes::from_static(&[0, 0, 0, 0, 4]));
    assert_eq!(deframer.next(), Err(FrameError::TooLong { length: 4, limit: 3 }));
    let mut deframer = Deframer::new(3);
    deframer.push(Bytes::from_static(&[1, 0, 0, 0, 1, 0]));
    assert_eq!(deframer.next(), Err(FrameError::Compressed));
    let mut deframer = Deframer::new(3);
    deframer.push(Bytes::from_static(&[0, 0, 0, 0, 2, 0]));
    assert_eq!((deframer.next(), deframer.end()), (Ok(None), Err(FrameError::Cut)));
}

#[test]
fn a_status_survives_its_headers() {
    for message in ["", "plain", "100 % of\nthis, größer", "%zz%4"] {
        let status = Status::new(Code::Unavailable, message);
        assert_eq!(Status::read(&status.trailers()), Some(status));
    }
    assert_eq!(Status::read(&Status::new(Code::Other(9), "").trailers()).unwrap().code, Code::Other(9));
    assert_eq!(Status::read(&http::HeaderMap::new()), None);
}

#[tokio::test]
async fn a_socket_that_cannot_be_is_told_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let advice = "do this";
    let bind = |name: &str| Socket::bind(&directory.path().join(name), advice);
    let long = bind(&"x".repeat(120)).err().unwrap();
    assert!(matches!(long, SocketError::TooLong { .. }) && long.to_string().contains("107"), "{long}");
    std::fs::write(directory.path().join("file"), "").unwrap();
    assert!(matches!(bind("file").err().unwrap(), SocketError::InTheWay { .. }));
    let error = bind("file/socket").err().unwrap();
    assert!(error.to_string().contains(advice), "{error}");
    let path = directory.path().join("deep/socket");
    let first = Socket::bind(&path, advice).unwrap();
    let second = Socket::bind(&path, advice).unwrap();
    assert!(path.exists(), "the place of one that was left behind is taken");
    drop(second);
    assert!(!path.exists());
    drop(first);
}

#[tokio::test]
async fn a_server_that_accepts_and_is_silent_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let upstream = Upstream {
        server: HostPort { host: "127.0.0.1".to_owned(), port },
        tls: None,
        token: None,
        headers: Vec::new(),
        keepalive: (Duration::from_millis(20), Duration::from_millis(20)),
    };
    let connection = upstream.connect().await.unwrap();
    let _silent = listener.accept().await.unwrap();
    let called = upstream.call(connection, "/a/b", Outgoing::once(Bytes::from_static(b"hello"))).await;
    assert_eq!(called.err().unwrap().status().code, Code::Unavailable);
}
