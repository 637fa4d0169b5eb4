use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Follow, Update};
use crate::client::testing;
use crate::known::testing::Word;
use crate::resource::Resource;

const LIST: &str = r#"{"metadata": {"resourceVersion": "7"}, "items": []}"#;
/// What an API server says that cannot convert what it has.
const ERROR: &str =
    r#"{"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "unable to decode"}}"#;

/// How often it was asked for a list, and for a watch.
#[derive(Default)]
struct Asked([AtomicUsize; 2]);

async fn answer(stream: TcpStream, asked: Arc<Asked>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut first = String::new();
    stream.read_line(&mut first).await?;
    let mut line = first.clone();
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).await?;
    }
    let watches = first.contains("watch=true");
    asked.0[usize::from(watches)].fetch_add(1, Ordering::Relaxed);
    let body = format!("{}\n", if watches { ERROR } else { LIST });
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await
}

#[tokio::test]
async fn an_error_that_a_watch_says_again_leads_to_a_list() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = testing::client(&format!("http://{}", listener.local_addr().unwrap()));
    let asked = Arc::new(Asked::default());
    let mut tasks = JoinSet::new();
    let counted = Arc::clone(&asked);
    tasks.spawn(async move {
        let mut answers = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let counted = Arc::clone(&counted);
            answers.spawn(async move {
                let _gone = answer(stream, counted).await;
            });
        }
    });
    let (teller, mut updates) = mpsc::channel(64);
    tasks.spawn(Follow::fixed(client, Resource::new("", "v1", "words"), Word).run(teller, |update| update));
    let mut whole = 0;
    while whole < 3 {
        if let Update::Changed { whole: true, .. } = updates.recv().await.unwrap() {
            whole += 1;
        }
    }
    let [lists, watches] = [0, 1].map(|of| asked.0[of].load(Ordering::Relaxed));
    assert_eq!((lists, watches), (3, 4), "the first time it may have passed");
}
