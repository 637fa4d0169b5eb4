//! The little of protobuf's wire format that is needed to put encoded messages together without decoding them.

/// Bytes that a varint takes.
pub fn varint_len(value: u64) -> usize {
    // 70 bits in steps of 7; zero takes one byte too.
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The tag of a length-delimited field and the length, without the content.
pub fn put_header(out: &mut Vec<u8>, field: u32, len: usize) {
    put_varint(out, u64::from(field) << 3 | 2);
    put_varint(out, len as u64);
}

pub fn put_bytes(out: &mut Vec<u8>, field: u32, content: &[u8]) {
    put_header(out, field, content.len());
    out.extend_from_slice(content);
}

/// Bytes that a length-delimited field takes, tag and length included.
pub fn field_len(field: u32, len: usize) -> usize {
    varint_len(u64::from(field) << 3) + varint_len(len as u64) + len
}

#[cfg(test)]
mod tests {
    use super::{field_len, put_bytes, put_varint, varint_len};

    #[test]
    fn lengths_agree_with_what_is_written() {
        for value in [0, 1, 127, 128, 300, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut out = vec![];
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_len(value), "{value}");
        }
        for (field, len) in [(1, 0), (2, 127), (15, 128), (16, 5), (5000, 70_000)] {
            let mut out = vec![];
            put_bytes(&mut out, field, &vec![0; len]);
            assert_eq!(out.len(), field_len(field, len));
        }
    }
}
