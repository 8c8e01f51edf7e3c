//! What one process hands over to the next: descriptors and notes, each by its name. Names of a
//! kind are the kind, a blank, and what is called so.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

/// Descriptors, and what is to be known of them.
#[derive(Debug, Default)]
pub struct Handed {
    /// As whoever made it says it.
    pub note: Vec<u8>,
    /// The descriptors, in the order in which they were given.
    pub fds: Vec<OwnedFd>,
}

/// By their names.
pub type Items = BTreeMap<String, Handed>;

impl Handed {
    /// The descriptors, if there are exactly so many.
    pub fn take<const COUNT: usize>(self) -> Option<[OwnedFd; COUNT]> {
        self.fds.try_into().ok()
    }
}

/// What is called so in a name of this kind; `None`: the name is of another kind.
pub fn name_of_kind<'a>(kind: &str, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(kind)?.strip_prefix(' ')
}

/// Bytes of any length as a descriptor: a file in memory.
///
/// # Errors
/// There is no memory, or no descriptor, for it.
pub fn file_of(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("butterfly-handed", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// The bytes again, `max` at the most.
///
/// # Errors
/// The descriptor is of no file that can be read from its beginning.
pub fn bytes_of(file: OwnedFd, max: u64) -> std::io::Result<Vec<u8>> {
    let file = File::from(file);
    let (mut bytes, mut piece) = (Vec::new(), [0; 8 << 10]);
    // By offsets: the position is its maker's, and who reads only may not seek (`reading_only`).
    while let left @ 1.. = max - bytes.len() as u64 {
        let most = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match file.read_at(&mut piece[..most], bytes.len() as u64)? {
            0 => break,
            len => bytes.extend_from_slice(&piece[..len]),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_into_a_file_and_come_out_up_to_a_limit() {
        let file = file_of(b"bytes").unwrap();
        assert_eq!(bytes_of(file.try_clone().unwrap(), 4).unwrap(), b"byte");
        assert_eq!(bytes_of(file, 5).unwrap(), b"bytes");
    }

    #[test]
    fn a_kind_ends_at_the_blank() {
        assert_eq!(name_of_kind("point", "point xdp 3"), Some("xdp 3"));
        assert_eq!(name_of_kind("point", "points xdp 3"), None);
        assert_eq!(name_of_kind("point", "point"), None);
    }
}
