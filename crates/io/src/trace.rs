//! Packet traces: frames of one NIC into a pcap or pcapng file, without ever holding up a worker.
//!
//! A worker puts copies of frames into a bounded queue; a thread of the trace's own writes them.
//! When the disk is slower than the traffic the queue is full and frames are lost to the trace,
//! never to the guest: they are counted, and the count ends up in a pcapng file's interface
//! statistics. All traces of a [`Folder`] have so much of the disk together. The thread ends, and
//! the file is complete, when the last [`Trace`] is dropped. Directions are the guest's: what it
//! sent is outbound.

pub mod capture;
mod file;
mod folder;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use capture::{Effort, Tap};
use file::Format;
pub use folder::Folder;
use tracing::warn;
use wire::pcap;
pub use wire::pcapng::Direction;
use wire::pcapng::{self, PacketBlock};

use crate::frame::Batch;

/// Frames that wait to be written at most.
const QUEUE_FRAMES: usize = 4096;

/// Bytes of frames that wait to be written at most.
const QUEUE_BYTES: usize = 16 << 20;

/// A file grows to this many bytes; frames after that are lost to the trace.
const FILE_MAX: u64 = 1 << 30;

const APPLICATION: &str = concat!("butterfly ", env!("CARGO_PKG_VERSION"));

/// Where frames of a NIC are recorded: a file, a mirror's collector, captures that somebody reads
/// while they run ([`capture`]), or several of them. Clones record into the same ones.
#[derive(Clone, Debug)]
pub struct Trace {
    file: Option<ToFile>,
    mirror: Option<Tap>,
    taps: Arc<[Tap]>,
}

/// A file, and the queue towards it.
#[derive(Clone, Debug)]
struct ToFile {
    queue: SyncSender<Entry>,
    counts: Arc<Counts>,
    path: Arc<Path>,
}

/// One frame on its way to the file.
struct Entry {
    time_ns: u64,
    direction: Direction,
    dropped: Option<&'static str>,
    bytes: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Bytes in the queue.
    waiting_bytes: AtomicUsize,
    /// Frames that are not in the file: the queue or the file was full, or writing failed.
    lost: AtomicU64,
    /// There is no room in the folder for what comes.
    no_room: AtomicBool,
}

impl Trace {
    /// Makes the file, readable by its owner alone, and starts its thread. `path` must be beneath
    /// the folder, by no link. Where that is full a trace is begun, and records nothing. One that
    /// is there is gone on with when it is a trace of our own; anything else is refused and stays
    /// as it is. A name that ends in `.pcap` makes a pcap file, any other a pcapng one.
    pub fn open(folder: &Folder, path: &Path, nic: &str) -> io::Result<Trace> {
        let format = Format::of(path);
        let (file, before) = file::open(folder.path(), path, format)?;
        let mut head = Vec::new();
        format.begin(&mut head, nic, before == 0);
        let mut out = BufWriter::with_capacity(1 << 16, file);
        out.write_all(&head)?;
        out.flush()?;
        Self::start(folder, out, path, before + head.len() as u64, format)
    }

    fn start(
        folder: &Folder,
        out: BufWriter<File>,
        path: &Path,
        file_len: u64,
        format: Format,
    ) -> io::Result<Trace> {
        let (queue, entries) = sync_channel(QUEUE_FRAMES);
        let counts = Arc::new(Counts::default());
        folder.begin(&counts);
        let writer = Writer {
            room: Room {
                folder: folder.clone(),
                counts: counts.clone(),
                left: 0,
            },
            out,
            path: path.to_owned(),
            format,
            counts: Arc::clone(&counts),
            file_len,
            seen: 0,
            unwritten: 0,
            full: false,
            last_time_ns: 0,
            failed: false,
            block: Vec::new(),
        };
        std::thread::Builder::new()
            .name("trace".to_owned())
            .stack_size(256 << 10)
            .spawn(move || writer.run(&entries))?;
        let file = ToFile {
            queue,
            counts,
            path: path.into(),
        };
        Ok(Trace {
            file: Some(file),
            mirror: None,
            taps: Arc::default(),
        })
    }

    /// The file of `trace`, if there is one, and a mirror; `None` when that is neither.
    pub fn mirrored(trace: Option<&Trace>, mirror: Option<&Tap>) -> Option<Trace> {
        let file = trace.and_then(|trace| trace.file.clone());
        (file.is_some() || mirror.is_some()).then(|| Trace {
            file,
            mirror: mirror.cloned(),
            taps: Arc::default(),
        })
    }

    /// The file and the mirror of `trace`, as far as they are there, and these captures; `None`
    /// when that is nothing.
    pub fn tapped(trace: Option<&Trace>, taps: &Arc<[Tap]>) -> Option<Trace> {
        let file = trace.and_then(|trace| trace.file.clone());
        let mirror = trace.and_then(|trace| trace.mirror.clone());
        (file.is_some() || mirror.is_some() || !taps.is_empty()).then(|| Trace {
            file,
            mirror,
            taps: taps.clone(),
        })
    }

    /// Records frame `index` of a batch as it is now. `dropped` is the reason's name if it is not
    /// delivered. Never waits. Gives what that took.
    pub fn record(
        &self,
        direction: Direction,
        batch: &Batch,
        index: usize,
        dropped: Option<&'static str>,
        time_ns: u64,
    ) -> Effort {
        let mut effort = Effort::default();
        let len = batch.frames()[index].len();
        if let Some(file) = &self.file {
            file.put(len, direction, dropped, time_ns, || {
                effort += Effort::copy(len);
                batch.to_bytes(index).into()
            });
        }
        for tap in self.mirror.iter().chain(self.taps.iter()) {
            effort += tap.offer(direction, batch, index, dropped, time_ns);
        }
        effort
    }

    /// Records a frame that is in no batch.
    pub fn record_bytes(
        &self,
        direction: Direction,
        frame: &[u8],
        dropped: Option<&'static str>,
        time_ns: u64,
    ) {
        if let Some(file) = &self.file {
            file.put(frame.len(), direction, dropped, time_ns, || frame.into());
        }
        for tap in self.mirror.iter().chain(self.taps.iter()) {
            tap.offer_bytes(direction, frame, dropped, time_ns);
        }
    }

    /// Frames that did not get into the file.
    pub fn lost(&self) -> u64 {
        let file = self.file.as_ref();
        file.map_or(0, |file| file.counts.lost.load(Ordering::Relaxed))
    }

    /// The file.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| &*file.path)
    }
}

impl ToFile {
    fn put(
        &self,
        len: usize,
        direction: Direction,
        dropped: Option<&'static str>,
        time_ns: u64,
        bytes: impl FnOnce() -> Box<[u8]>,
    ) {
        let waiting = &self.counts.waiting_bytes;
        // A bound, not a balance: two workers may pass it together by a frame.
        let fits = waiting.load(Ordering::Relaxed) + len <= QUEUE_BYTES;
        if fits {
            waiting.fetch_add(len, Ordering::Relaxed);
            let entry = Entry {
                time_ns,
                direction,
                dropped,
                bytes: bytes(),
            };
            if self.queue.try_send(entry).is_ok() {
                return;
            }
            waiting.fetch_sub(len, Ordering::Relaxed);
        }
        self.counts.lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a trace may write of its folder's.
struct Room {
    folder: Folder,
    counts: Arc<Counts>,
    /// Bytes that were asked for and are not written.
    left: u64,
}

impl Room {
    fn take(&mut self, bytes: u64) -> Result<(), String> {
        if self.left < bytes {
            let piece = bytes.max(folder::PIECE);
            self.folder.take(piece)?;
            self.left += piece;
        }
        self.left -= bytes;
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.folder.end(&self.counts, self.left);
    }
}

/// The thread's side.
struct Writer {
    room: Room,
    out: BufWriter<File>,
    path: PathBuf,
    format: Format,
    counts: Arc<Counts>,
    file_len: u64,
    /// Frames taken out of the queue.
    seen: u64,
    last_time_ns: u64,
    /// Of these, not written.
    unwritten: u64,
    /// The file has its full length: no more frames.
    full: bool,
    /// Writing has failed: no more anything.
    failed: bool,
    /// One block, reused.
    block: Vec<u8>,
}

impl Writer {
    fn run(mut self, entries: &Receiver<Entry>) {
        loop {
            let entry = match entries.try_recv() {
                Ok(entry) => entry,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    // Idle: what there is can be read now.
                    self.flush();
                    match entries.recv() {
                        Ok(entry) => entry,
                        Err(_) => break,
                    }
                }
            };
            self.counts
                .waiting_bytes
                .fetch_sub(entry.bytes.len(), Ordering::Relaxed);
            self.write(&entry);
        }
        self.finish();
    }

    fn write(&mut self, entry: &Entry) {
        self.seen += 1;
        self.last_time_ns = self.last_time_ns.max(entry.time_ns);
        self.block.clear();
        self.put_frame(entry);
        if !self.full && self.file_len + self.block.len() as u64 > FILE_MAX {
            self.full = true;
            warn!(
                "trace '{}' ends: it has grown to {FILE_MAX} bytes",
                self.path.display()
            );
        }
        if self.full || self.failed {
            return self.count_unwritten();
        }
        if let Err(why) = self.room.take(self.block.len() as u64) {
            self.full = true;
            self.counts.no_room.store(true, Ordering::Relaxed);
            warn!("trace '{}' ends: {why}", self.path.display());
            return self.count_unwritten();
        }
        match self.out.write_all(&self.block) {
            Ok(()) => self.file_len += self.block.len() as u64,
            Err(error) => {
                self.count_unwritten();
                self.fail(&error);
            }
        }
    }

    fn put_frame(&mut self, entry: &Entry) {
        if self.format == Format::Pcap {
            return pcap::packet(&mut self.block, entry.time_ns, &entry.bytes);
        }
        let comment = entry.dropped.map(|reason| format!("dropped: {reason}"));
        let packet = PacketBlock {
            interface: 0,
            time_ns: entry.time_ns,
            frame_len: entry.bytes.len() as u32,
            data: &entry.bytes,
            direction: Some(entry.direction),
            comment: comment.as_deref(),
        };
        pcapng::packet(&mut self.block, &packet);
    }

    fn count_unwritten(&mut self) {
        self.unwritten += 1;
        self.counts.lost.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(&mut self) {
        if !self.failed
            && let Err(error) = self.out.flush()
        {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.failed = true;
        warn!("trace '{}' ends: {error}", self.path.display());
    }

    /// Where frames are missing, how many there were and how many are missing is the last block.
    /// Else nothing is written at the end.
    fn finish(mut self) {
        if self.failed {
            return;
        }
        let lost = self.counts.lost.load(Ordering::Relaxed);
        if lost == 0 || self.format == Format::Pcap {
            return self.flush();
        }
        // Frames that found no room in the queue were never seen here.
        let offered = self.seen + (lost - self.unwritten);
        self.block.clear();
        pcapng::statistics(&mut self.block, 0, self.last_time_ns, offered, lost);
        let written = self
            .out
            .write_all(&self.block)
            .and_then(|()| self.out.flush());
        if let Err(error) = written {
            self.fail(&error);
        }
    }
}

#[cfg(test)]
mod tests;
