//! What can be saved of an answer that cannot be read as a whole: the objects beside the one that is to blame, and which one
//! that is. JSON is cut into pieces here and not read.

use pilot_config::Document;

use crate::known::{Change, Known, Listing, Look};

/// Reads the objects of a page one by one. What cannot be read is an issue of its object, and keeps what was known of it.
/// Tells the metadata of the page; nothing if that is what cannot be read.
pub(super) fn page<L: Look>(
    json: &[u8],
    why: &str,
    listing: &mut Listing<L::Value>,
    look: &L,
) -> Option<Vec<u8>> {
    for object in elements(field(json, "items")?) {
        match Document::parse(object) {
            Ok(document) => listing.see(document.tree(), look),
            Err(_) => {
                let head = head(object)?;
                listing.see_unreadable(Document::parse(&head).ok()?.tree(), look, why);
            }
        }
    }
    head(json)
}

/// An event whose object cannot be read: what becomes of it, and its version. Nothing if not even that can be found out.
pub(super) fn event<L: Look>(
    json: &[u8],
    why: &str,
    known: &mut Known,
    look: &L,
) -> Option<(Option<Change<L::Value>>, String)> {
    let head = head(field(json, "object")?)?;
    let document = Document::parse(&head).ok()?;
    let version = document.tree().text_at(&["metadata", "resourceVersion"]).to_owned();
    let change = match field(json, "type")? {
        b"\"ADDED\"" | b"\"MODIFIED\"" => known.put_unreadable(document.tree(), look, why),
        b"\"DELETED\"" => known.gone(document.tree()),
        _ => return None,
    };
    Some((change, version))
}

/// The object with nothing but its metadata.
fn head(object: &[u8]) -> Option<Vec<u8>> {
    let metadata = field(object, "metadata")?;
    Some([b"{\"metadata\":", metadata, b"}"].concat())
}

/// The value of a field.
fn field<'a>(json: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut cutter = Cutter(json);
    cutter.take(b'{')?;
    loop {
        let key = cutter.value()?;
        cutter.take(b':')?;
        let value = cutter.value()?;
        if key.strip_prefix(b"\"").and_then(|key| key.strip_suffix(b"\"")) == Some(name.as_bytes()) {
            return Some(value);
        }
        cutter.take(b',')?;
    }
}

/// The elements of a list, as far as it goes.
fn elements(json: &[u8]) -> Vec<&[u8]> {
    let mut cutter = Cutter(json);
    let mut all = Vec::new();
    let mut more = cutter.take(b'[');
    while more.is_some()
        && let Some(element) = cutter.value()
    {
        all.push(element);
        more = cutter.take(b',');
    }
    all
}

/// What is left of a text.
struct Cutter<'a>(&'a [u8]);

impl<'a> Cutter<'a> {
    fn take(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.trim_ascii_start().strip_prefix(&[byte])?;
        Some(())
    }

    /// Cuts off a value, be it a word, a text, a list or a map.
    fn value(&mut self) -> Option<&'a [u8]> {
        self.0 = self.0.trim_ascii_start();
        let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
        for (at, byte) in self.0.iter().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = in_text,
                b'"' => in_text = !in_text,
                _ if in_text => continue,
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth > 0 => depth -= 1,
                b'}' | b']' | b',' | b':' if depth == 0 => return self.cut(at),
                _ => continue,
            }
            if depth == 0 && !in_text && matches!(byte, b'"' | b'}' | b']') {
                return self.cut(at + 1);
            }
        }
        self.cut(self.0.len())
    }

    fn cut(&mut self, at: usize) -> Option<&'a [u8]> {
        let (value, rest) = self.0.split_at_checked(at)?;
        self.0 = rest;
        Some(value.trim_ascii_end()).filter(|value| !value.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::{elements, event, field, page};
    use crate::known::testing::{Word, list, said};
    use crate::known::{Belief, Known};

    #[test]
    fn json_is_cut_at_its_seams() {
        let json = br#" {"a" : [1, "x,]\"", {"b": "}"}, [ ] ] , "c":{"d":null}, "e": true }"#;
        let texts: Vec<_> =
            elements(field(json, "a").unwrap()).into_iter().map(String::from_utf8_lossy).collect();
        assert_eq!(texts, ["1", r#""x,]\"""#, r#"{"b": "}"}"#, "[ ]"]);
        assert_eq!(field(json, "c").unwrap(), br#"{"d":null}"#);
        assert_eq!(field(json, "e").unwrap(), b"true");
        assert_eq!(
            (field(json, "f"), field(b"", "f"), field(b"[]", "f"), elements(b"{}").len()),
            (None, None, None, 0)
        );
        assert!(elements(b"[1, {").len() <= 2);
    }

    const BAD: &str = r#"{"metadata": {"name": "b", "resourceVersion": "2"}, "word": 1e999}"#;

    #[test]
    fn an_object_that_cannot_be_read_takes_no_other_along() {
        let mut known = Known::default();
        let good = |name: &str| {
            format!(r#"{{"metadata": {{"name": "{name}", "resourceVersion": "1"}}, "word": "x"}}"#)
        };
        list(&mut known, &[good("a"), good("b")]);
        let text = format!(
            r#"{{"metadata": {{"resourceVersion": "9"}}, "items": [{}, {BAD}, {}]}}"#,
            good("a"),
            good("c")
        );
        assert!(pilot_config::Document::parse(text.as_bytes()).is_err(), "or this shows nothing");
        let mut listing = known.begin();
        let metadata = page(text.as_bytes(), "why", &mut listing, &Word).unwrap();
        assert_eq!(metadata, br#"{"metadata":{"resourceVersion": "9"}}"#);
        let (changes, _) = listing.end(&mut known, Belief::Doubts);
        assert_eq!(said(changes), ["b same 1", "c=x 0"], "what was known of it stays");
    }

    #[test]
    fn an_event_that_cannot_be_read_is_a_mistake_of_its_object() {
        let mut known = Known::default();
        let mut hear = |kind: &str, object: &str| {
            let text = format!(r#"{{"type": "{kind}", "object": {object}}}"#);
            event(text.as_bytes(), "why", &mut known, &Word).map(|(change, version)| (said(change), version))
        };
        assert_eq!(hear("MODIFIED", BAD), Some((vec!["b same 1".to_owned()], "2".to_owned())));
        assert_eq!(hear("DELETED", BAD), Some((vec!["b same 0".to_owned()], "2".to_owned())));
        assert_eq!(hear("ERROR", BAD), None);
        assert_eq!(hear("ADDED", "{\"word\": 1}"), None);
    }
}
