//! Stores of a header's bytes: a template, and numbers over it.

/// Copies a header to memory of its length. All but the longest are two stretches of a fixed
/// length, which overlap: `memcpy` takes as long to choose a way as it takes to copy them.
#[inline]
pub(crate) fn copy_header(from: &[u8], to: &mut [u8]) {
    match from.len() {
        64..=128 => ends::<64>(from, to),
        32..64 => ends::<32>(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// Copies the first and the last `N` bytes, which are there.
#[inline]
fn ends<const N: usize>(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len());
    to[..N].copy_from_slice(&from[..N]);
    let behind = from.len() - N;
    to[behind..behind + N].copy_from_slice(&from[behind..behind + N]);
}

/// Stores a number of 16 bits.
#[inline]
pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Stores a number of 32 bits.
#[inline]
pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_any_length_is_copied_exactly() {
        let from: Vec<u8> = (0..=255).collect();
        for len in 0..256 {
            let mut to = [0xa5; 256];
            copy_header(&from[..len], &mut to[..len]);
            assert_eq!(to[..len], from[..len]);
            assert!(
                to[len..].iter().all(|&byte| byte == 0xa5),
                "wrote outside at {len}"
            );
        }
    }
}
