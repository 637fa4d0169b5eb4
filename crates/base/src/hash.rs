use std::fmt;

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

/// A content hash: the same bytes give the same value in every process, on every replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hash64(pub u64);

impl Hash64 {
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxh3_64(bytes))
    }

    /// Of a name together with what is behind it.
    pub fn of_named(name: &str, content: Self) -> Self {
        Self(xxh3_64_with_seed(name.as_bytes(), content.0))
    }

    /// Eleven characters of the URL-safe base-64 alphabet: short enough to stand in every resource.
    pub fn to_text(self) -> [u8; 11] {
        let mut text = [0; 11];
        for (i, c) in text.iter_mut().enumerate() {
            let shift = 58_i32 - 6 * i32::try_from(i).unwrap_or(0);
            let six = if shift >= 0 { self.0 >> shift } else { self.0 << -shift };
            *c = ALPHABET[(six & 63) as usize];
        }
        text
    }

    /// What [`to_text`](Self::to_text) made a text of.
    pub fn from_text(text: &[u8]) -> Option<Self> {
        let text: &[u8; 11] = text.try_into().ok()?;
        let mut wrong = 0;
        let mut six = |c: u8| {
            let six = SIX_BITS[usize::from(c)];
            wrong |= six & NO_LETTER;
            u64::from(six)
        };
        // Ten letters have sixty bits; the last one has four and no others.
        let most = text[..10].iter().fold(0, |value, c| (value << 6) | six(*c));
        let last = six(text[10]);
        (wrong == 0 && last & 3 == 0).then_some(Self((most << 4) | (last >> 2)))
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

const NO_LETTER: u8 = 0x80;

/// What each letter of the alphabet stands for. Who comes back says thousands of versions, so it is looked up.
const SIX_BITS: [u8; 256] = {
    let mut table = [NO_LETTER; 256];
    let mut at = 0;
    while at < ALPHABET.len() {
        table[ALPHABET[at] as usize] = at as u8;
        at += 1;
    }
    table
};

impl fmt::Display for Hash64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_text().iter().try_for_each(|&c| write!(f, "{}", char::from(c)))
    }
}

impl fmt::Debug for Hash64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Hashes several pieces as if they were one.
#[derive(Default)]
pub struct Hasher64(Xxh3);

impl Hasher64 {
    pub fn write(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(bytes);
        self
    }

    pub fn write_u64(&mut self, value: u64) -> &mut Self {
        self.write(&value.to_le_bytes())
    }

    pub fn finish(&self) -> Hash64 {
        Hash64(self.0.digest())
    }
}

/// Adds a child to, or with [`u64::wrapping_sub`] takes it from, the hash of a set of named children.
///
/// The sum does not depend on the order of insertion, so a large resource keeps its hash up to date in constant time
/// when one of its thousand children changes.
pub fn combine_unordered(name: &str, content: Hash64) -> u64 {
    Hash64::of_named(name, content).0
}

#[cfg(test)]
mod tests {
    use super::Hash64;

    #[test]
    fn text_is_injective_on_single_bits() {
        let all: std::collections::BTreeSet<_> = (0..64).map(|b| Hash64(1 << b).to_text()).collect();
        assert_eq!(all.len(), 64);
        for hash in (0..64).map(|bit| Hash64(1 << bit)).chain([Hash64(0), Hash64(u64::MAX), Hash64::of(b"x")])
        {
            assert_eq!(Hash64::from_text(&hash.to_text()), Some(hash));
        }
        assert_eq!(Hash64::from_text(b"AAAAAAAAAA"), None);
        assert_eq!(Hash64::from_text(b"AAAAAAAAAA_"), None, "bits that nobody wrote");
        assert_eq!(Hash64::from_text(b"AAAAA AAAAA"), None);
        assert_eq!(Hash64(u64::MAX).to_string(), "__________8");
    }
}
