//! The file as redb writes it, with its space reserved.

use crate::error::Error;
use redb::{Builder, Database, StorageBackend};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Memory for pages: a configuration of the largest size is some ten MiB.
const CACHE_BYTES: usize = 32 << 20;

/// Opens a database over a backend, and checks every page of it: redb takes a file that is not as
/// it wrote it for its own else.
pub(crate) fn open(path: &Path, backend: impl StorageBackend) -> Result<Database, Error> {
    let opened = Builder::new()
        .set_cache_size(CACHE_BYTES)
        .set_check_integrity_on_open(true)
        .create_with_backend(backend);
    opened.map_err(|error| Error::database(path, error.into()))
}

/// A file that grows by real blocks: what is written into it finds room.
///
/// The descriptor is shared, and with it the lock that whoever opened it holds.
#[derive(Debug, Clone)]
pub struct Reserved {
    file: Arc<File>,
}

impl Reserved {
    /// Over a file that is open for reading and writing.
    pub fn new(file: Arc<File>) -> Reserved {
        Reserved { file }
    }
}

impl StorageBackend for Reserved {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        let now = self.file.metadata()?.len();
        if len <= now {
            return self.file.set_len(len);
        }
        match fallocate(&*self.file, FallocateFlags::empty(), now, len - now) {
            Ok(()) => Ok(()),
            // A file system that reserves nothing.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.file.set_len(len),
            Err(error) => Err(error.into()),
        }
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.file.write_all_at(data, offset)
    }
}
