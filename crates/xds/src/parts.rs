use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::{Encoded, Protocol, Run};

/// Resources that are sent together, in order: whole runs that many streams are sent, and others one by one.
#[derive(Clone, Default)]
pub struct Parts(SmallVec<[Part; 2]>);

#[derive(Clone)]
pub enum Part {
    Whole(Arc<Run>),
    Some(Vec<Arc<Encoded>>),
}

impl Parts {
    pub fn push(&mut self, resource: Arc<Encoded>) {
        match self.0.last_mut() {
            Some(Part::Some(resources)) => resources.push(resource),
            _ => self.0.push(Part::Some(vec![resource])),
        }
    }

    pub(crate) fn push_run(&mut self, run: Arc<Run>) {
        if !run.is_empty() {
            self.0.push(Part::Whole(run));
        }
    }

    pub fn parts(&self) -> &[Part] {
        &self.0
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Encoded>> {
        self.0.iter().flat_map(Part::resources)
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|part| part.resources().len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of their entries in a response.
    pub(crate) fn bytes(&self, protocol: Protocol) -> usize {
        let of = |part: &Part| match part {
            Part::Whole(run) => run.len(protocol),
            Part::Some(resources) => resources.iter().map(|resource| resource.len(protocol)).sum(),
        };
        self.0.iter().map(of).sum()
    }
}

impl Part {
    pub fn resources(&self) -> &[Arc<Encoded>] {
        match self {
            Self::Whole(run) => run.entries(),
            Self::Some(resources) => resources,
        }
    }
}

impl FromIterator<Arc<Encoded>> for Parts {
    fn from_iter<I: IntoIterator<Item = Arc<Encoded>>>(resources: I) -> Self {
        let mut parts = Self::default();
        resources.into_iter().for_each(|resource| parts.push(resource));
        parts
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
