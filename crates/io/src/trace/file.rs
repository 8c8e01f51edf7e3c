//! The file of a trace: opened safely where others may write, gone on with where it ends, and its
//! last block.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, ResolveFlags, flock, openat, openat2};
use wire::{pcap, pcapng};

/// How long a file is waited for that another trace still writes: one that was ended a moment ago,
/// of a NIC that was deleted and added again, has 16 MiB to write at the most.
const PATIENCE: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(5);
/// The longest pcap that is gone on with, in bytes.
const WALK_MAX: u64 = 1 << 30;

/// How frames are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    /// pcap, which the original wrote: for names that end in `.pcap`.
    Pcap,
    /// pcapng, with directions and the reasons of drops.
    Pcapng,
}

impl Format {
    pub fn of(path: &Path) -> Format {
        match path.extension() {
            Some(extension) if extension.eq_ignore_ascii_case("pcap") => Format::Pcap,
            _ => Format::Pcapng,
        }
    }

    /// What a file or a part of it begins with. A pcapng file may have any number of sections; a
    /// pcap has one header.
    pub fn begin(self, out: &mut Vec<u8>, nic: &str, is_new: bool) {
        match self {
            Format::Pcap if is_new => pcap::header(out),
            Format::Pcap => {}
            Format::Pcapng => {
                pcapng::section_header(out, super::APPLICATION);
                pcapng::interface(out, nic, 0);
            }
        }
    }
}

/// A file that frames are appended to, and its length.
///
/// It is beneath `dir`, whatever links are there: none is followed, of a folder or of a file.
/// Traces go to `/tmp` by default, where anybody can make files: one that exists is gone on with
/// only if it is a regular file of this process's user with no other name, and a trace of this
/// format.
pub(super) fn open(dir: &Path, path: &Path, format: Format) -> io::Result<(File, u64)> {
    let inside = path.strip_prefix(dir).ok().filter(|inside| {
        let mut parts = inside.components();
        parts.clone().next().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
    });
    let Some(inside) = inside else {
        let what = format!("'{}' is not beneath {}", path.display(), dir.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    };
    let folder = openat(
        CWD,
        dir,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // O_NONBLOCK: a FIFO in the file's place must not make anybody wait; regular files do not mind.
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mut file = File::from(openat2(
        &folder,
        inside,
        flags,
        Mode::RUSR | Mode::WUSR,
        beneath,
    )?);
    let there = file.metadata()?;
    let own = there.uid() == rustix::process::geteuid().as_raw();
    let refuse = |why: &str| {
        let what = format!("'{}' exists and {why}", path.display());
        Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
    };
    if !there.is_file() || !own || there.nlink() != 1 {
        return refuse("is not a file of our own alone");
    }
    // One writer a file: two would write over each other.
    let start = Instant::now();
    while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(error.into());
        }
        if start.elapsed() > PATIENCE {
            return refuse("is written by another trace");
        }
        std::thread::sleep(AGAIN);
    }
    let there = file.metadata()?;
    if there.len() > 0 && !can_go_on(&file, there.len(), format)? {
        return refuse(match format {
            Format::Pcap => "is not a pcap file of Ethernet frames that could go on",
            Format::Pcapng => "is not a pcapng file of ours that could go on",
        });
    }
    let length = match (there.len(), format) {
        (0, _) | (_, Format::Pcapng) => there.len(),
        (length, Format::Pcap) => match whole_packets(&file, length)? {
            Ok(whole) => whole,
            Err(why) => return refuse(why),
        },
    };
    if length < there.len() {
        // What a crash or a full disk has cut off: behind it nobody would find the next packet.
        file.set_len(length)?;
    }
    file.seek(SeekFrom::End(0))?;
    Ok((file, length))
}

/// Up to where a pcap has whole packets. Nothing in it says where the last one begins: it is gone
/// through from its start.
fn whole_packets(file: &File, length: u64) -> io::Result<Result<u64, &'static str>> {
    if length > WALK_MAX {
        return Ok(Err("is too long to be looked through: move it away"));
    }
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut at = pcap::HEADER_LEN as u64;
    reader.seek(SeekFrom::Start(at))?;
    loop {
        let left = length - at;
        if left < pcap::PACKET_HEADER_LEN as u64 {
            return Ok(Ok(at));
        }
        let mut header = [0; pcap::PACKET_HEADER_LEN];
        reader.read_exact(&mut header)?;
        match pcap::packet_len(&header) {
            None => return Ok(Err("has a packet that is broken: move it away")),
            Some(packet) if packet > left => return Ok(Ok(at)),
            Some(packet) => {
                reader.seek_relative(packet as i64 - header.len() as i64)?;
                at += packet;
            }
        }
    }
}

/// The file is of this format, and as far as that can be seen it ends with a whole block.
fn can_go_on(file: &File, length: u64, format: Format) -> io::Result<bool> {
    let mut head = [0; 64];
    let head = &mut head[..length.min(64) as usize];
    file.read_exact_at(head, 0)?;
    match format {
        Format::Pcap => Ok(pcap::can_go_on(head)),
        Format::Pcapng => {
            let mut ours = Vec::new();
            pcapng::section_header(&mut ours, "butterfly");
            // Byte order and version; then the name of the application, behind which ours has its
            // version.
            let name = 28..28 + "butterfly".len();
            let alike = |range: std::ops::Range<usize>| head.get(range.clone()) == ours.get(range);
            Ok(alike(0..4) && alike(8..16) && alike(name) && ends_whole(file, length)?)
        }
    }
}

/// A block of pcapng has its length at both ends.
fn ends_whole(file: &File, length: u64) -> io::Result<bool> {
    let mut last = [0; 4];
    let Some(end) = length.checked_sub(4) else {
        return Ok(false);
    };
    file.read_exact_at(&mut last, end)?;
    let start = length.checked_sub(u64::from(u32::from_le_bytes(last)));
    let Some(start) = start.filter(|start| start + 8 <= end) else {
        return Ok(false);
    };
    let mut first = [0; 4];
    file.read_exact_at(&mut first, start + 4)?;
    Ok(first == last)
}
