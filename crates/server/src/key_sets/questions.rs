//! Questions on their way, each on a thread of its own.

use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_model::KeySource;
use tokio::task::{Id, JoinSet};

use super::fetch::FetchError;

pub(super) type Answer = Result<Name, FetchError>;

#[derive(Default)]
pub(super) struct Questions {
    tasks: JoinSet<Answer>,
    /// Whom each task asks. A panic leaves nothing else to tell it by.
    sources: BTreeMap<Id, KeySource>,
}

impl Questions {
    pub(super) fn ask(&mut self, source: KeySource, ask: impl FnOnce(&KeySource) -> Answer + Send + 'static) {
        let asked = source.clone();
        let task = self.tasks.spawn_blocking(move || ask(&asked));
        self.sources.insert(task.id(), source);
    }

    /// Waits for the next answer. Nothing if nobody is being asked.
    pub(super) async fn answer(&mut self) -> Option<(KeySource, Answer)> {
        let (id, answer) = match self.tasks.join_next_with_id().await? {
            Ok(answered) => answered,
            Err(error) => {
                tracing::error!("a question for keys of a token issuer broke off: {error}");
                (error.id(), Err(FetchError::Broken))
            }
        };
        let source = self.sources.remove(&id).expect("every task asks somebody");
        Some((source, answer))
    }
}

#[cfg(test)]
mod tests {
    use super::Questions;
    use crate::key_sets::fetch::FetchError;
    use pilot_base::Name;
    use pilot_model::KeySource;
    use std::collections::BTreeMap;

    #[tokio::test]
    async fn a_panic_is_an_answer_too() {
        let [good, bad] = ["good", "bad"].map(|name| KeySource::Uri(Name::new(name)));
        let mut questions = Questions::default();
        questions.ask(good.clone(), |_| Ok(Name::new("keys")));
        questions.ask(bad.clone(), |source| panic!("asking {} must not end the fetcher", source.as_str()));
        let mut answers = BTreeMap::new();
        while let Some((source, answer)) = questions.answer().await {
            answers.insert(source, answer);
        }
        assert_eq!(answers.len(), 2);
        assert!(answers[&good].is_ok());
        assert!(matches!(answers[&bad], Err(FetchError::Broken)));
    }
}
