//! The files in which Kubernetes tells a pod its own labels and annotations: lines of `key="quoted value"`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub(crate) enum DownwardError {
    /// The file is there but cannot be read.
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    /// A value is not in quotes, or has an escape that Go's strings do not have.
    #[error("{path}:{line}: value is not a quoted string")]
    Quote { path: PathBuf, line: usize },
}

/// `None` if there is no such file, as outside of Kubernetes.
pub(crate) fn read(path: &Path) -> Result<Option<BTreeMap<String, String>>, DownwardError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(DownwardError::Read { path: path.to_owned(), source }),
    };
    parse(&text).map(Some).map_err(|line| DownwardError::Quote { path: path.to_owned(), line })
}

/// An error is the number of the line.
fn parse(text: &str) -> Result<BTreeMap<String, String>, usize> {
    let pairs = text.lines().enumerate().filter_map(|(at, line)| Some((at, line.split_once('=')?)));
    pairs.map(|(at, (key, value))| Ok((key.to_owned(), unquote(value).ok_or(at + 1)?))).collect()
}

fn unquote(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut bytes = Vec::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return None,
            '\\' => escape(&mut chars, &mut bytes)?,
            c => push(&mut bytes, c),
        }
    }
    // `\xNN` stands for a byte, which need not be a whole character.
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn escape(chars: &mut std::str::Chars<'_>, bytes: &mut Vec<u8>) -> Option<()> {
    let simple = match chars.next()? {
        'a' => 0x07,
        'b' => 0x08,
        'f' => 0x0c,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 0x0b,
        '\\' => b'\\',
        '"' => b'"',
        'x' => u8::try_from(hex(chars, 2)?).ok()?,
        'u' => {
            push(bytes, char::from_u32(hex(chars, 4)?)?);
            return Some(());
        }
        'U' => {
            push(bytes, char::from_u32(hex(chars, 8)?)?);
            return Some(());
        }
        _ => return None,
    };
    bytes.push(simple);
    Some(())
}

fn push(bytes: &mut Vec<u8>, c: char) {
    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

fn hex(chars: &mut std::str::Chars<'_>, digits: usize) -> Option<u32> {
    (0..digits).try_fold(0, |value, _| Some(value * 16 + chars.next()?.to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn lines_are_keys_and_quoted_values() {
        let text = "app=\"web\"\nempty=\"\"\na/b=\"x=\\\"1\\\"\\n\\u00e9\\\\\\xc3\\xa9\"\nno pair\n";
        let pairs = parse(text).unwrap();
        assert_eq!(pairs["app"], "web");
        assert_eq!(pairs["empty"], "");
        assert_eq!(pairs["a/b"], "x=\"1\"\né\\é");
        assert_eq!(pairs.len(), 3);
    }

    #[test]
    fn a_broken_value_is_told_by_its_line() {
        for text in ["a=\"1\"\nb=2", "a=\"1\"\nb=\"2", "a=\"1\"\nb=\"\\q\"", "a=\"1\"\nb=\"a\"b\""] {
            assert_eq!(parse(text), Err(2), "{text}");
        }
    }
}
