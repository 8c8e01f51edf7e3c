//! What outlives a process without another one that holds it: a folder of a BPF file system, with a
//! folder in it for each item. Used by commands that run without a daemon; a daemon has a keeper.
//!
//! An item's descriptors are those of BPF objects, and files by their numbers. A file of that kind
//! of file system has no bytes, so the note is an array of the kernel's (`note`): its length in 8
//! bytes, and it. It is written last and removed first: an item without one is none. An item is
//! written beside the one that it replaces, and that goes behind it: who comes after a process that
//! was killed finds the one or the other.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use libbpf_rs::{MapHandle, MapInfo, MapType, libbpf_sys};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, statfs};
use rustix::process::geteuid;
use sys::bpf_array::BpfArray;
use sys::handed::{Handed, Items};

/// BPF_FS_MAGIC of linux/magic.h.
const BPF_FS: u64 = 0xcafe_4a11;
/// An element of a note's array, in bytes.
const ELEMENT: usize = 4096;
/// Bytes of a note at the most.
const NOTE_MAX: usize = 1 << 30;
/// Descriptors of an item at the most.
const FDS_MAX: usize = 16;
const NOTE: &str = "note";
/// What the name of an item that is being written ends with.
const BEGUN: &str = "~";

/// Each message names the file and what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The folder is of another file system.
    #[error("{0} is in no BPF file system (mount -t bpf bpf /sys/fs/bpf makes one)")]
    NoBpfFs(PathBuf),
    /// Others may write to the folder, or to the one that it is in.
    #[error("{0}, or the folder that it is in, is not this user's alone")]
    Shared(PathBuf),
    /// Another process has the folder.
    #[error("another process has {0}")]
    Taken(PathBuf),
    /// A file cannot be made, read or removed.
    #[error("{}: {source}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// A folder of items, as long as this is there no other process's. What is in it stays.
#[derive(Debug)]
pub struct Pins {
    folder: PathBuf,
    _lock: OwnedFd,
}

impl Pins {
    /// Makes the folder if it is not there, for this user alone.
    ///
    /// # Errors
    /// It is in no BPF file system, or another process has it.
    pub fn open(folder: &Path) -> Result<Pins, PinError> {
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder);
        // Another kind of file system may have no room for it either.
        let kind = folder.ancestors().find_map(|at| statfs(at).ok());
        if kind.is_some_and(|kind| kind.f_type as u64 != BPF_FS) {
            return Err(PinError::NoBpfFs(folder.to_owned()));
        }
        made.map_err(failed(folder))?;
        let lock = own_folder(folder)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => (),
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(PinError::Taken(folder.to_owned())),
            Err(e) => return Err(failed(folder)(e.into())),
        }
        Ok(Pins {
            folder: folder.to_owned(),
            _lock: lock.into(),
        })
    }

    /// All items. What a process that was killed had begun to write or to remove is ended.
    ///
    /// # Errors
    /// The folder cannot be read, or something cannot be removed.
    pub fn items(&self) -> Result<Items, PinError> {
        let mut items = Items::new();
        for (name, path) in entries(&self.folder)? {
            let item = read(&path);
            let (name, is_begun) = match name.strip_suffix(BEGUN) {
                Some(name) => (item_name(name), true),
                None => (item_name(&name), false),
            };
            match item {
                // The one that it was to replace was to go.
                Some(item) if is_begun => {
                    self.replace(&path, &name)?;
                    items.insert(name, item);
                }
                Some(item) => {
                    items.entry(name).or_insert(item);
                }
                None => remove(&path)?,
            }
        }
        Ok(items)
    }

    /// Has something stay, instead of what was of this name.
    ///
    /// # Errors
    /// The kernel is out of memory, or a descriptor is no BPF object's. What was stays.
    pub fn hold(&self, name: &str, item: &Handed) -> Result<(), PinError> {
        let begun = self.path(&format!("{name}{BEGUN}"));
        let made = fs::DirBuilder::new().mode(0o700).create(&begun);
        made.map_err(failed(&begun))?;
        let written = write(&begun, item).and_then(|()| self.replace(&begun, name));
        if written.is_err() {
            let _ = remove(&begun);
        }
        written
    }

    /// What is written under another name comes into its place.
    fn replace(&self, begun: &Path, name: &str) -> Result<(), PinError> {
        self.release(name)?;
        let path = self.path(name);
        fs::rename(begun, &path).map_err(failed(&path))
    }

    /// Lets something go, if it is there.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn release(&self, name: &str) -> Result<(), PinError> {
        let path = self.path(name);
        if path.exists() {
            remove(&path)?;
        }
        Ok(())
    }

    /// Lets all go, and the folder.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn remove(&self) -> Result<(), PinError> {
        for (_, path) in entries(&self.folder)? {
            remove(&path)?;
        }
        fs::remove_dir(&self.folder).map_err(failed(&self.folder))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Dots are the kernel's in a BPF file system, and slashes everywhere.
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name.replace('.', ":").replace('/', "|"))
    }
}

fn item_name(file: &str) -> String {
    file.replace(':', ".").replace('|', "/")
}

fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, PinError> {
    let entries = fs::read_dir(folder).map_err(failed(folder))?;
    let entries = entries.map(|entry| {
        let entry = entry.map_err(failed(folder))?;
        Ok((
            entry.file_name().to_string_lossy().into_owned(),
            entry.path(),
        ))
    });
    entries.collect()
}

/// Opens a folder that is this user's alone: what is in it is trusted.
fn own_folder(folder: &Path) -> Result<fs::File, PinError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty());
    let opened = fs::File::from(opened.map_err(|e| failed(folder)(e.into()))?);
    let own = opened.metadata().map_err(failed(folder))?;
    let above = folder.parent().unwrap_or(folder).metadata();
    let above = above.map_err(failed(folder))?;
    let is_ours = |uid| uid == geteuid().as_raw();
    let is_closed = |mode: u32| mode & 0o022 == 0;
    // In a folder with the sticky bit nobody moves what is another's.
    let stays = (is_ours(above.uid()) || above.uid() == 0)
        && (is_closed(above.mode()) || above.mode() & 0o1000 != 0);
    match is_ours(own.uid()) && is_closed(own.mode()) && stays {
        true => Ok(opened),
        false => Err(PinError::Shared(folder.to_owned())),
    }
}

/// An item's folder.
fn remove(item: &Path) -> Result<(), PinError> {
    let note = item.join(NOTE);
    if note.exists() {
        fs::remove_file(&note).map_err(failed(&note))?;
    }
    for (_, path) in entries(item)? {
        fs::remove_file(&path).map_err(failed(&path))?;
    }
    fs::remove_dir(item).map_err(failed(item))
}

fn write(item: &Path, Handed { note, fds }: &Handed) -> Result<(), PinError> {
    debug_assert!(fds.len() <= FDS_MAX);
    for (number, fd) in fds.iter().enumerate() {
        let path = item.join(number.to_string());
        sys::bpf::pin(fd.as_fd(), &path).map_err(failed(&path))?;
    }
    let path = item.join(NOTE);
    let array = array_of(note).map_err(failed(&path))?;
    sys::bpf::pin(array.as_fd(), &path).map_err(failed(&path))
}

/// What was written; `None`: it cannot be.
fn read(item: &Path) -> Option<Handed> {
    let note = bytes_of(&sys::bpf::pinned(&item.join(NOTE)).ok()?)?;
    let pinned = |number: usize| sys::bpf::pinned(&item.join(number.to_string())).ok();
    let fds = (0..FDS_MAX).map_while(pinned).collect();
    Some(Handed { note, fds })
}

fn array_of(note: &[u8]) -> io::Result<MapHandle> {
    let mut bytes = (note.len() as u64).to_ne_bytes().to_vec();
    bytes.extend_from_slice(note);
    let elements = bytes.len().div_ceil(ELEMENT);
    bytes.resize(elements * ELEMENT, 0);
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    let kind = MapType::Array;
    let map = MapHandle::create(
        kind,
        Some(NOTE),
        4,
        ELEMENT as u32,
        elements as u32,
        &options,
    );
    let map = map.map_err(io::Error::other)?;
    let array = BpfArray::new(map.as_fd(), bytes.len() / 4)?;
    for (word, bytes) in array.words().iter().zip(bytes.chunks_exact(4)) {
        word.store(bytemuck::pod_read_unaligned(bytes), Ordering::Relaxed);
    }
    Ok(map)
}

fn bytes_of(array: &OwnedFd) -> Option<Vec<u8>> {
    let info = MapInfo::new(array.as_fd()).ok()?.info;
    let len = (info.max_entries as usize).checked_mul(ELEMENT)?;
    if info.value_size as usize != ELEMENT || len > NOTE_MAX {
        return None;
    }
    let array = BpfArray::new(array.as_fd(), len / 4).ok()?;
    let words = array.words().iter();
    let bytes: Vec<u8> = words
        .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
        .collect();
    let (len, note) = bytes.split_first_chunk()?;
    let len = usize::try_from(u64::from_ne_bytes(*len)).ok()?;
    Some(note.get(..len)?.to_vec())
}

fn failed(path: &Path) -> impl Fn(io::Error) -> PinError {
    move |source| PinError::File {
        path: path.to_owned(),
        source,
    }
}
