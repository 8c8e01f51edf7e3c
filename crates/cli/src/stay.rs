//! What stays when `butterfly balance` or `butterfly forward` ends: programs and what they know, in
//! a folder of a BPF file system, for the next such command. Until that one has all in force, the
//! folder is as the one before has left it.

use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sys::handed::{Handed, Items};
use xdp::{PinError, Pins};

use crate::error::Error;
use crate::output::say;
use crate::query::Alone;

/// Where it is, unless another folder was asked for.
pub const FOLDER: &str = "/sys/fs/bpf/butterfly";

/// What the names of points and chains begin with.
const POINTS: [&str; 3] = ["xdp ", "tc ", "chain "];

/// What a command before has left, and what this one leaves.
pub struct Stay {
    pinned: Pinned,
    left: Items,
    names_left: BTreeSet<String>,
    is_settled: bool,
}

/// The folder, and the names of what this command has put there.
#[derive(Clone)]
struct Pinned {
    pins: Arc<Pins>,
    names: Arc<Mutex<BTreeSet<String>>>,
}

impl Stay {
    /// For a command in this network namespace: all that one before has left in the folder.
    pub fn begin(kind: Alone, folder: &Path) -> Result<Stay, Error> {
        let refused = |e: PinError| Error::Refused(format!("nothing can stay: {e}"));
        let pins = Pins::open(&folder_of(kind, folder)?).map_err(refused)?;
        let left = pins.items().map_err(refused)?;
        Ok(Stay {
            names_left: left.keys().cloned().collect(),
            left,
            pinned: Pinned {
                pins: Arc::new(pins),
                names: Arc::default(),
            },
            is_settled: false,
        })
    }

    /// Something that was left.
    pub fn take(&mut self, name: &str) -> Option<Handed> {
        self.left.remove(name)
    }

    /// The points where programs run that were left. By what they find each other stays as it is
    /// until others are in their place.
    pub fn take_points(&mut self) -> Items {
        let (points, others) = std::mem::take(&mut self.left)
            .into_iter()
            .partition(|(name, _)| is_point(name));
        self.left = others;
        points
    }

    /// Has something stay.
    pub fn hold(&self, name: &str, item: &Handed) -> Result<(), Error> {
        let held = self.pinned.set(name, Some(item));
        held.map_err(|e| Error::Refused(format!("{name} cannot stay: {e}")))
    }

    /// Lets something go that was left.
    pub fn release(&self, name: &str) {
        self.pinned.set_or_say(name, None);
    }

    /// To be called with each point that is to stay, or with its name alone when it goes.
    pub fn point_keeper(&self) -> impl Fn(&str, Option<Handed>) + Send + 'static {
        let pinned = self.pinned.clone();
        move |name, point| pinned.set_or_say(name, point.as_ref())
    }

    /// To be called with what is to stay by this name, each time in the place of the last; `None`:
    /// nothing.
    pub fn keeper(&self, name: &'static str) -> impl Fn(Option<Handed>) + Send + 'static {
        let pinned = self.pinned.clone();
        move |item| pinned.set_or_say(name, item.as_ref())
    }

    /// As [`keeper`](Self::keeper) of bytes.
    pub fn byte_keeper(&self, name: &'static str) -> impl Fn(&[u8]) + Send + 'static {
        let keep = self.keeper(name);
        move |bytes| {
            let (note, fds) = (bytes.to_owned(), Vec::new());
            keep(Some(Handed { note, fds }));
        }
    }

    /// All of this command's is in force: what it has not taken up of the one before's goes.
    pub fn settle(&mut self) {
        self.is_settled = true;
        let names = lock(&self.pinned.names).clone();
        for name in self.names_left.difference(&names) {
            self.release(name);
        }
    }

    /// Where it stays.
    pub fn folder(&self) -> &Path {
        self.pinned.pins.folder()
    }
}

impl Pinned {
    /// Has something stay, or lets it go.
    fn set(&self, name: &str, item: Option<&Handed>) -> Result<(), PinError> {
        match item {
            Some(item) => {
                self.pins.hold(name, item)?;
                lock(&self.names).insert(name.to_owned());
            }
            None => {
                self.pins.release(name)?;
                lock(&self.names).remove(name);
            }
        }
        Ok(())
    }

    /// For who cannot do anything about it.
    fn set_or_say(&self, name: &str, item: Option<&Handed>) {
        if let Err(e) = self.set(name, item) {
            say(&format!("butterfly: {name} does not stay: {e}\n"));
        }
    }
}

impl Drop for Stay {
    /// What did not come into force does not stay.
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let names = lock(&self.pinned.names).clone();
        for name in names.difference(&self.names_left) {
            self.release(name);
        }
        if self.names_left.is_empty() {
            // Nothing is left in it.
            let _ = self.pinned.pins.remove();
        }
    }
}

impl fmt::Debug for Stay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stay")
    }
}

/// A folder in it for each network namespace: interfaces are a namespace's.
fn folder_of(kind: Alone, folder: &Path) -> Result<PathBuf, Error> {
    let namespace = std::fs::metadata("/proc/self/ns/net")?;
    Ok(folder.join(format!("{kind}-{}", namespace.ino())))
}

/// What is to be said of an interface that cannot be had, where a command before has left
/// something.
pub fn hint(kind: Alone) -> String {
    let folder = match folder_of(kind, Path::new(FOLDER)) {
        Ok(folder) if folder.exists() => folder,
        _ => return String::new(),
    };
    // One that runs has its folder.
    let is_left = Pins::open(&folder).is_ok_and(|pins| {
        let items = pins.items();
        items.is_ok_and(|items| items.keys().any(|name| is_point(name)))
    });
    match is_left {
        true => format!(
            "; `butterfly {kind} --stay` has left its programs: --stay goes on with them, and \
             rm -r {} ends them",
            folder.display()
        ),
        false => String::new(),
    }
}

/// A place where a program runs, or by which one finds the next.
fn is_point(name: &str) -> bool {
    POINTS.iter().any(|start| name.starts_with(start))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
