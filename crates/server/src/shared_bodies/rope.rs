use bytes::{Bytes, BytesMut};

/// Bytes that follow each other. Long pieces are shared; short ones are put together, because each piece is a frame.
#[derive(Default)]
pub(super) struct Rope {
    pieces: Vec<Bytes>,
    /// Short pieces since the last long one.
    open: BytesMut,
}

/// What is no longer is copied: that costs less than writing a frame of its own.
const SHORT: usize = 1 << 10;

impl Rope {
    pub(super) fn push(&mut self, piece: Bytes) {
        if piece.len() <= SHORT {
            return self.copy(&piece);
        }
        self.close();
        self.pieces.push(piece);
    }

    pub(super) fn copy(&mut self, piece: &[u8]) {
        self.open.extend_from_slice(piece);
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.pieces.push(self.open.split().freeze());
        }
    }

    pub(super) fn into_pieces(mut self) -> Vec<Bytes> {
        self.close();
        self.pieces
    }
}

impl Extend<Bytes> for Rope {
    fn extend<T: IntoIterator<Item = Bytes>>(&mut self, pieces: T) {
        pieces.into_iter().for_each(|piece| self.push(piece));
    }
}
