use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use pilot_base::{Hash64, Hasher64, Name, SharedMap, combine_unordered};
use smallvec::SmallVec;

use crate::wire::{field_len, put_bytes, put_header};
use crate::{Protocol, TypeUrl, held_entry};

/// The field number that `Resource.resource`, `DiscoveryResponse.resources` and `DeltaDiscoveryResponse.resources` share.
const RESOURCE: u32 = 2;
const RESOURCE_NAME: u32 = 3;
const RESOURCE_VERSION: u32 = 1;
const ANY_TYPE_URL: u32 = 1;
const ANY_VALUE: u32 = 2;

/// One resource, encoded once and shared by everyone who is sent it.
///
/// It is laid out as an entry of a delta response: `Resource { version, name, resource }` with `resource` last. Because of
/// the shared field number its tail, from the tag of `resource` on, is byte for byte an entry of a state-of-the-world
/// response: one buffer serves both protocols.
#[derive(Clone)]
pub struct Encoded {
    name: Name,
    version: Hash64,
    /// The entry up to the first child.
    head: Box<[u8]>,
    /// Where in it the tag of `resource` stands. What is before it only delta needs.
    resource_at: u32,
    /// Where in it the message begins.
    message_at: u32,
    /// Of the [entry](held_entry) by which a client that comes back says that it holds it.
    mark: Hash64,
    /// Only tables have any.
    children: Option<Box<Children>>,
    len: usize,
}

/// A run of bytes of a resource, and what tells it from others of its type without a look at them.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    pub mark: Hash64,
    pub bytes: &'a [u8],
}

/// A pre-encoded part of a resource, such as a virtual host, tag and length included.
#[derive(Clone)]
pub struct Chunk {
    bytes: Bytes,
    hash: Hash64,
}

impl Chunk {
    /// Wraps an encoded message as field `field` of its parent.
    pub fn new(field: u32, message: &[u8]) -> Self {
        let mut out = Vec::with_capacity(field_len(field, message.len()));
        put_bytes(&mut out, field, message);
        Self { hash: Hash64::of(&out), bytes: out.into() }
    }

    /// Several messages of the same field as one part, in this order.
    pub fn of_many<'a>(field: u32, messages: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut out = Vec::new();
        messages.into_iter().for_each(|message| put_bytes(&mut out, field, message));
        Self { hash: Hash64::of(&out), bytes: out.into() }
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn piece(&self) -> Piece<'_> {
        Piece { mark: self.hash, bytes: &self.bytes }
    }

    /// The message without tag and length; the first one of several.
    pub fn message(&self) -> &[u8] {
        take_field(&self.bytes).map(|(_, message)| message).unwrap_or_default()
    }
}

impl PartialEq for Chunk {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.bytes.len() == other.bytes.len()
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.hash, self.bytes.len())
    }
}

/// Children by name; `None` in an upper layer hides what a lower one has.
pub type ChildMap = SharedMap<Name, Option<Chunk>>;

/// The length and the hash of a map of children. Both can be changed child by child.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    len: usize,
    hash: u64,
}

impl Summary {
    /// Walks the whole map: done once per change of the map, not once per resource that contains it.
    pub fn of(map: &ChildMap) -> Self {
        let mut summary = Self::default();
        for (name, chunk) in map {
            summary.add(name, chunk.as_ref());
        }
        summary
    }

    fn add(&mut self, name: &Name, chunk: Option<&Chunk>) {
        if let Some(chunk) = chunk {
            self.len += chunk.bytes.len();
            self.hash = self.hash.wrapping_add(combine_unordered(name, chunk.hash));
        }
    }

    fn sub(&mut self, name: &Name, chunk: Option<&Chunk>) {
        if let Some(chunk) = chunk {
            self.len -= chunk.bytes.len();
            self.hash = self.hash.wrapping_sub(combine_unordered(name, chunk.hash));
        }
    }
}

/// The children of a large resource: a shared layer, what stands over it, and what comes last whatever its name.
#[derive(Clone, Default)]
pub struct Children {
    base: ChildMap,
    over: ChildMap,
    last: Option<Chunk>,
    summary: Summary,
}

static NO_CHILDREN: Children = Children {
    base: ChildMap::new(),
    over: ChildMap::new(),
    last: None,
    summary: Summary { len: 0, hash: 0 },
};

impl Children {
    /// Costs what `over` costs, however large `base` is.
    pub fn new(base: ChildMap, base_summary: Summary, over: ChildMap, last: Option<Chunk>) -> Self {
        let mut summary = base_summary;
        for (name, chunk) in &over {
            summary.sub(name, base.get(name).and_then(Option::as_ref));
            summary.add(name, chunk.as_ref());
        }
        summary.add(&Name::empty(), last.as_ref());
        Self { base, over, last, summary }
    }

    /// The same children with some put in place of others and another last one. Costs what is changed.
    #[must_use]
    pub fn changed(&self, changes: &ChildMap, last: Option<Chunk>) -> Self {
        let mut out = self.clone();
        for (name, chunk) in changes {
            let there = self.over.get(name).or_else(|| self.base.get(name));
            out.summary.sub(name, there.and_then(Option::as_ref));
            out.summary.add(name, chunk.as_ref());
            out.over.insert(name.clone(), chunk.clone());
        }
        out.summary.sub(&Name::empty(), self.last.as_ref());
        out.summary.add(&Name::empty(), last.as_ref());
        Self { last, ..out }
    }

    fn is_empty(&self) -> bool {
        self.base.is_empty() && self.over.is_empty() && self.last.is_none()
    }

    /// The shared layer.
    pub fn base(&self) -> &ChildMap {
        &self.base
    }

    /// What stands over the shared layer.
    pub fn over(&self) -> &ChildMap {
        &self.over
    }

    pub fn last(&self) -> Option<&Chunk> {
        self.last.as_ref()
    }

    /// The children in order of their names, the last one last.
    pub fn iter(&self) -> impl Iterator<Item = &Chunk> {
        let (mut base, mut over) = (self.base.iter().peekable(), self.over.iter().peekable());
        let merged = std::iter::from_fn(move || {
            loop {
                let from_base = match (base.peek(), over.peek()) {
                    (None, None) => return None,
                    (Some(_), None) => true,
                    (None, Some(_)) => false,
                    (Some((a, _)), Some((b, _))) if a == b => {
                        base.next();
                        false
                    }
                    (Some((a, _)), Some((b, _))) => a < b,
                };
                let (_, chunk) = if from_base { base.next()? } else { over.next()? };
                if let Some(chunk) = chunk {
                    return Some(chunk);
                }
            }
        });
        merged.chain(&self.last)
    }
}

impl Encoded {
    /// A resource from its encoded message.
    pub fn new(type_url: TypeUrl, name: Name, message: &[u8]) -> Self {
        Self::assemble(type_url, name, message, Children::default())
    }

    /// A resource from an encoded message and pre-encoded children that belong to it. Protobuf lets fields stand in any
    /// order, so the children simply follow.
    pub fn assemble(type_url: TypeUrl, name: Name, message: &[u8], children: Children) -> Self {
        let value_len = message.len() + children.summary.len;
        let any_len = field_len(ANY_TYPE_URL, type_url.as_str().len()) + field_len(ANY_VALUE, value_len);
        let sotw_len = field_len(RESOURCE, any_len);
        let version = Hasher64::default().write(message).write_u64(children.summary.hash).finish();
        let text = version.to_text();
        let inner = field_len(RESOURCE_VERSION, text.len()) + field_len(RESOURCE_NAME, name.len()) + sotw_len;
        let len = field_len(RESOURCE, inner);

        let mut head = Vec::with_capacity(len - children.summary.len);
        put_header(&mut head, RESOURCE, inner);
        put_bytes(&mut head, RESOURCE_VERSION, &text);
        put_bytes(&mut head, RESOURCE_NAME, name.as_bytes());
        let resource_at = place(&head);
        put_header(&mut head, RESOURCE, any_len);
        put_bytes(&mut head, ANY_TYPE_URL, type_url.as_str().as_bytes());
        put_header(&mut head, ANY_VALUE, value_len);
        let message_at = place(&head);
        head.extend_from_slice(message);
        let mark = Hash64::of(&held_entry(&name, version));
        let children = (!children.is_empty()).then(|| Box::new(children));
        Self { name, version, head: head.into(), resource_at, message_at, mark, children, len }
    }

    pub fn name(&self) -> &Name {
        &self.name
    }

    pub fn version(&self) -> Hash64 {
        self.version
    }

    /// Equal for equal names and versions.
    pub(crate) fn mark(&self) -> Hash64 {
        self.mark
    }

    /// The message without its children.
    pub fn header(&self) -> &[u8] {
        &self.head[self.message_at as usize..]
    }

    pub fn children(&self) -> &Children {
        self.children.as_deref().unwrap_or(&NO_CHILDREN)
    }

    /// Bytes of the entry in a response.
    pub fn len(&self, protocol: Protocol) -> usize {
        self.len - self.start(protocol)
    }

    /// What stands before it is not part of the entry.
    fn start(&self, protocol: Protocol) -> usize {
        match protocol {
            Protocol::Delta => 0,
            Protocol::StateOfTheWorld => self.resource_at as usize,
        }
    }

    /// The entry of a response, piece by piece.
    pub fn entry(&self, protocol: Protocol) -> impl Iterator<Item = Piece<'_>> {
        let head = Piece { mark: self.mark, bytes: self.opening(protocol) };
        std::iter::once(head).chain(self.children().iter().map(Chunk::piece))
    }

    /// The entry of a response up to the first child.
    pub fn opening(&self, protocol: Protocol) -> &[u8] {
        &self.head[self.start(protocol)..]
    }

    /// The message itself, put together again: for debug pages, tests and simulation.
    pub fn message(&self) -> Vec<u8> {
        let entry: Vec<u8> =
            self.entry(Protocol::StateOfTheWorld).flat_map(|piece| piece.bytes).copied().collect();
        any_value(&entry).unwrap_or_default().to_vec()
    }
}

/// No message is so long that its parts stand further behind.
fn place(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// The value of the `Any` in a state-of-the-world entry.
fn any_value(entry: &[u8]) -> Option<&[u8]> {
    let (_, any) = take_field(entry)?;
    let (rest, _type_url) = take_field(any)?;
    take_field(rest).map(|(_, value)| value)
}

/// One length-delimited field from the front: what follows it, and its content.
fn take_field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_tag, rest) = take_varint(bytes)?;
    let (len, rest) = take_varint(rest)?;
    let (content, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    Some((rest, content))
}

fn take_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

/// The same name and content. The content is compared by its hash, as a proxy's version of it will be.
impl PartialEq for Encoded {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version && self.name == other.name
    }
}

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}

/// Resources that are handed on together; one is the common case.
pub type EncodedList = SmallVec<[Arc<Encoded>; 1]>;

#[cfg(test)]
mod tests {
    use super::{ChildMap, Children, Chunk, Encoded, Summary};
    use crate::{Protocol, TypeUrl};
    use pilot_base::Name;

    fn chunk(text: &str) -> Option<Chunk> {
        Some(Chunk::new(2, text.as_bytes()))
    }

    fn map(entries: &[(&str, Option<&str>)]) -> ChildMap {
        entries.iter().map(|(name, text)| (Name::new(name), text.and_then(chunk))).collect()
    }

    #[test]
    fn one_buffer_is_an_entry_of_both_protocols() {
        let encoded = Encoded::new(TypeUrl::Cluster, "c".into(), b"\x0a\x01c");
        let entry =
            |protocol| encoded.entry(protocol).flat_map(|piece| piece.bytes).copied().collect::<Vec<_>>();
        let (delta, sotw) = (entry(Protocol::Delta), entry(Protocol::StateOfTheWorld));
        assert!(delta.ends_with(&sotw));
        assert_eq!(
            (delta.len(), sotw.len()),
            (encoded.len(Protocol::Delta), encoded.len(Protocol::StateOfTheWorld))
        );
        assert_eq!(encoded.message(), b"\x0a\x01c");
    }

    #[test]
    fn layers_of_children_read_as_one_sorted_list() {
        let base = map(&[("a", Some("A")), ("b", Some("B")), ("d", Some("D"))]);
        let over = map(&[("b", None), ("c", Some("C")), ("d", Some("DD"))]);
        let children = Children::new(base.clone(), Summary::of(&base), over, chunk("*"));
        let text: Vec<_> =
            children.iter().map(|c| String::from_utf8_lossy(&c.bytes()[2..]).into_owned()).collect();
        assert_eq!(text, ["A", "C", "DD", "*"]);
    }

    #[test]
    fn changed_children_read_as_if_they_had_been_there_from_the_start() {
        let base = map(&[("a", Some("A")), ("b", Some("B")), ("d", Some("D"))]);
        let over = map(&[("c", Some("C")), ("d", Some("DD"))]);
        let before = Children::new(base.clone(), Summary::of(&base), over, chunk("*"));
        let changes = map(&[("a", None), ("b", Some("BB")), ("c", Some("CC")), ("e", Some("E"))]);
        let flat = map(&[("b", Some("BB")), ("c", Some("CC")), ("d", Some("DD")), ("e", Some("E"))]);
        let direct = Children::new(flat.clone(), Summary::of(&flat), ChildMap::new(), chunk("+"));
        let make = |children| Encoded::assemble(TypeUrl::Route, "80".into(), b"\x0a\x0280", children);
        let (changed, direct) = (make(before.changed(&changes, chunk("+"))), make(direct));
        assert_eq!(changed.version(), direct.version());
        assert_eq!(changed.message(), direct.message());
        assert_eq!(changed.header(), b"\x0a\x0280");
        assert_eq!(
            changed.len(Protocol::Delta),
            changed.entry(Protocol::Delta).map(|piece| piece.bytes.len()).sum()
        );
    }

    #[test]
    fn the_version_depends_on_content_not_on_layers() {
        let flat = map(&[("a", Some("A")), ("c", Some("C"))]);
        let direct = Children::new(flat.clone(), Summary::of(&flat), ChildMap::new(), None);
        let base = map(&[("a", Some("X")), ("b", Some("B"))]);
        let over = map(&[("a", Some("A")), ("b", None), ("c", Some("C"))]);
        let layered = Children::new(base.clone(), Summary::of(&base), over, None);
        let make = |children| Encoded::assemble(TypeUrl::Route, "80".into(), b"\x0a\x0280", children);
        let (direct, layered) = (make(direct), make(layered));
        assert_eq!(direct.version(), layered.version());
        assert_eq!(direct.message(), layered.message());
        assert_eq!(
            direct.len(Protocol::Delta),
            layered.entry(Protocol::Delta).map(|piece| piece.bytes.len()).sum()
        );
    }
}
