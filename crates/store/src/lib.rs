//! What is declared, kept on disk, with its history.
//!
//! # Theory of operation
//!
//! A [`Store`] is one file, `state.redb`, in a folder of its own. It holds *objects*, each by its
//! [`Kind`] and key, as bytes whose meaning is the caller's, and *revisions*: who made a change,
//! when, and each object that it touched as it was before. So the state as it was after any kept
//! revision is the state of now with those images put back, newest first.
//!
//! A change is one transaction ([`Store::write`]): after a crash it is there whole, or not at all.
//! It outlives a crash once [`Store::sync`] has returned for its ticket; a sync covers all changes
//! that were written before it, and waits a moment for those that are announced
//! ([`Store::announce`]), so that many clients share one.
//!
//! The database is redb: a B-tree that is never written in place, with checksums, tried by its
//! authors against torn writes. Beside it stands only what it does not know: space is reserved
//! before it is used, so that a full disk refuses a change when it is written and not when it is
//! synced; and after an error of the disk the file is opened anew, and those changes are named that
//! were written and are not there ([`Error::Lost`]).
//!
//! # Formats
//!
//! The file says its format. One of a newer format is refused; of one of an older format a copy is
//! kept beside it, and it is migrated in one transaction.

mod backend;
mod error;
mod file;
mod history;
mod layout;
mod sync;

pub use backend::Reserved;
pub use error::Error;
pub use file::FILE;
pub use history::{Patch, Revision};
pub use layout::{FORMAT, Kind, Layout, Migration};
pub use redb::StorageBackend;
pub use sync::Announced;

use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableError, WriteTransaction};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use layout::{BEFORE, META, OBJECTS, REVISIONS};

/// One object as it is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Put {
    /// What it is.
    pub kind: Kind,
    /// Which one.
    pub key: Vec<u8>,
    /// `None`: it is not there any more.
    pub value: Option<Vec<u8>>,
}

/// An object that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// What it is.
    pub kind: Kind,
    /// Which one.
    pub key: Vec<u8>,
    /// Its content.
    pub value: Vec<u8>,
}

/// Who makes a change, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signed<'a> {
    /// In words.
    pub author: &'a str,
    /// Unix seconds.
    pub unix_secs: u64,
    /// Who makes it may change a part of the host alone.
    pub of_part: bool,
}

/// A change that was written, to be waited for with [`Store::sync`]. They only grow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Ticket(u64);

/// How much history is kept: the newest revisions, as many as meet all bounds, and always one.
/// Revisions of parts of the host do not take more than half of each bound from the others: those
/// beyond become one with the next, so that states behind the others can still be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keep {
    /// Revisions.
    pub revisions: u64,
    /// Objects in all of them.
    pub objects: u64,
    /// Bytes of what they replaced. A change of a group with 10,000 rules replaces some 400 KB.
    pub bytes: u64,
}

impl Default for Keep {
    fn default() -> Keep {
        Keep {
            revisions: 1_000,
            objects: 1 << 18,
            bytes: 64 << 20,
        }
    }
}

/// The database, since it was opened last.
struct Opened {
    /// How often it was opened: who meets an error closes the one that had it, and no later one.
    times: u64,
    /// `None`: an error, and it could not be opened again; or another process has it.
    database: Option<Database>,
    whose: Whose,
}

/// Which process may have the file open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Ours,
    /// Another one's.
    Given,
    /// Ours, as soon as the other one's right to it has ended.
    Returning,
}

/// Makes a backend over one and the same storage, again after an error.
type Reopen = Box<dyn Fn() -> Result<Database, Error> + Send + Sync>;

/// The open file.
pub struct Store {
    path: PathBuf,
    keep: Keep,
    /// The right to the file; `None`: there is none.
    lock: Option<Arc<File>>,
    reopen: Reopen,
    database: RwLock<Opened>,
    sync: sync::State,
    history: Mutex<Option<history::Size>>,
}

impl Store {
    /// Opens the store of a folder, and makes both when missing. Nobody else may read the file
    /// (0600), and no second process may open it.
    pub fn open(folder: &Path, keep: Keep) -> Result<Store, Error> {
        Store::open_layout(folder, keep, &Layout::CURRENT)
    }

    /// [`Store::open`] for a format that may not be this version's: for tests of migrations.
    pub fn open_layout(folder: &Path, keep: Keep, layout: &Layout) -> Result<Store, Error> {
        let file::Opened {
            path,
            file,
            lock,
            fresh,
        } = file::open(folder)?;
        let (file, of) = (Arc::new(file), path.clone());
        let reopen = move || backend::open(&of, Reserved::new(file.clone()));
        let mut store = Store::over(path, keep, Box::new(reopen))?;
        // Held as long as the file can be opened.
        store.lock = Some(Arc::new(lock));
        let is_fresh = fresh.is_some();
        store.prepare(layout, is_fresh, |from| {
            file::copy(&store.path, from).map(drop)
        })?;
        if let Some(fresh) = fresh {
            fresh.name(&store.path)?;
        }
        Ok(store)
    }

    /// A store over any storage, whose name in errors is `name`: for tests of what a disk may do.
    /// `make` gives a backend over the same storage each time.
    pub fn on<B: StorageBackend>(
        name: &str,
        keep: Keep,
        make: impl Fn() -> B + Send + Sync + 'static,
    ) -> Result<Store, Error> {
        let path = PathBuf::from(name);
        let of = path.clone();
        let reopen = move || backend::open(&of, make());
        let store = Store::over(path, keep, Box::new(reopen))?;
        store.prepare(&Layout::CURRENT, true, |_| Ok(()))?;
        Ok(store)
    }

    fn over(path: PathBuf, keep: Keep, reopen: Reopen) -> Result<Store, Error> {
        let database = reopen()?;
        Ok(Store {
            path,
            keep,
            lock: None,
            reopen,
            database: RwLock::new(Opened {
                times: 1,
                database: Some(database),
                whose: Whose::Ours,
            }),
            sync: sync::State::default(),
            history: Mutex::default(),
        })
    }

    /// Writes the format into a file that `may_be_bare`, and brings an old one up to this
    /// version's.
    fn prepare(
        &self,
        layout: &Layout,
        may_be_bare: bool,
        copy: impl FnOnce(u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let found = match self.meta(layout::FORMAT_KEY)? {
            Some(format) => format,
            None if self.is_bare()? && may_be_bare => 0,
            None if self.is_bare()? => return Err(Error::damaged(&self.path, "it has no format")),
            None => return Err(Error::Foreign(self.path.clone())),
        };
        if found > layout.format {
            return Err(Error::Newer {
                path: self.path.clone(),
                found,
                known: layout.format,
            });
        }
        if found == layout.format {
            self.sync.begin(self.newest()?);
            return Ok(());
        }
        if found > 0 {
            copy(found)?;
        }
        let write = |transaction: &WriteTransaction| {
            if found > 0 {
                layout.migrate(transaction, found)?;
            } else {
                transaction.open_table(OBJECTS)?;
                transaction.open_table(REVISIONS)?;
                transaction.open_table(BEFORE)?;
            }
            let mut meta = transaction.open_table(META)?;
            meta.insert(layout::FORMAT_KEY, layout.format)?;
            Ok(())
        };
        self.transact(Durability::Immediate, write, |()| ())?;
        self.sync.begin(self.newest()?);
        Ok(())
    }

    /// The file's path: what errors name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All objects, by kind and key.
    pub fn objects(&self) -> Result<Vec<Object>, Error> {
        let rows = self.read(|transaction| {
            let table = transaction.open_table(OBJECTS)?;
            let mut rows = Vec::new();
            for row in table.iter()? {
                let (key, value) = row?;
                let (kind, key) = key.value();
                rows.push((kind, key.to_vec(), value.value().to_vec()));
            }
            Ok(rows)
        })?;
        let object = |(kind, key, value)| {
            let kind = self.kind(kind)?;
            Ok(Object { kind, key, value })
        };
        rows.into_iter().map(object).collect()
    }

    /// The kind of a number in the file.
    fn kind(&self, number: u8) -> Result<Kind, Error> {
        let mut all = Kind::ALL.into_iter();
        all.find(|kind| *kind as u8 == number)
            .ok_or_else(|| Error::NewerKind {
                path: self.path.clone(),
                kind: number,
            })
    }

    /// Writes a change, all or nothing, as a revision of its own. It is there for whoever reads,
    /// and outlives a crash once it is synced.
    pub fn write(&self, signed: Signed, puts: &[Put]) -> Result<Ticket, Error> {
        let size = || self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let write = |transaction: &WriteTransaction| {
            let (known, durable) = (*size(), self.sync.durable());
            history::append(transaction, signed, puts, self.keep, known, durable)
        };
        self.transact(Durability::None, write, |now| {
            *size() = Some(now);
            self.sync.written(now.revision)
        })
    }

    /// Runs a transaction, and `done` before anybody can find that the disk has failed since.
    fn transact<R, T>(
        &self,
        durability: Durability,
        body: impl FnOnce(&WriteTransaction) -> Result<R, redb::Error>,
        done: impl FnOnce(R) -> T,
    ) -> Result<T, Error> {
        let opened = self.opened();
        let database = opened.database.as_ref().ok_or_else(|| self.gone(&opened))?;
        match transact(database, durability, body) {
            Ok(result) => Ok(done(result)),
            Err(error) => {
                let times = opened.times;
                drop(opened);
                self.recover(times);
                Err(Error::database(&self.path, error))
            }
        }
    }

    /// After an error of the disk: the file is opened again, and has what was durable, no less and
    /// no more. Of what was written and not synced some may have got there.
    fn recover(&self, times: u64) {
        let mut opened = self.writable();
        let is_had = match opened.whose {
            Whose::Ours => true,
            Whose::Given => false,
            Whose::Returning => self
                .lock
                .as_deref()
                .is_none_or(|lock| file::try_lock(&self.path, lock).is_ok()),
        };
        if opened.times != times || !is_had {
            return;
        }
        let durable = self.sync.lost();
        // What it has in memory goes before the file is read again.
        drop(opened.database.take());
        let again = (self.reopen)().ok().filter(|database| {
            let Some(durable) = durable else { return true };
            let back = |transaction: &WriteTransaction| history::cut(transaction, durable);
            transact(database, Durability::Immediate, back).is_ok()
        });
        *opened = Opened {
            times: times + 1,
            database: again,
            whose: Whose::Ours,
        };
    }

    /// Syncs all that was written and closes the file, so that another process can open it. Until
    /// it is [taken back](Store::take_back) every use is an error.
    ///
    /// # Errors
    /// The disk fails; the store is as it was.
    pub fn give_way(&self) -> Result<(), Error> {
        self.sync(self.last())?;
        let mut opened = self.writable();
        drop(opened.database.take());
        opened.whose = Whose::Given;
        self.lock.as_deref().map_or(Ok(()), file::unlock)
    }

    /// Opens the file again, which the other process has closed or has not changed.
    ///
    /// # Errors
    /// Somebody has it, or it cannot be opened; the next use tries again.
    pub fn take_back(&self) -> Result<(), Error> {
        self.writable().whose = Whose::Returning;
        if let Some(lock) = &self.lock {
            file::lock(&self.path, lock)?;
        }
        let mut opened = self.writable();
        // Somebody may have had need of it meanwhile.
        if opened.whose == Whose::Returning {
            opened.whose = Whose::Ours;
            opened.times += 1;
            opened.database = Some((self.reopen)()?);
        }
        Ok(())
    }

    fn writable(&self) -> RwLockWriteGuard<'_, Opened> {
        let opened = self.database.write();
        opened.unwrap_or_else(PoisonError::into_inner)
    }

    /// The database; once more from the file, should it have been impossible until now.
    fn opened(&self) -> RwLockReadGuard<'_, Opened> {
        let read = || self.database.read().unwrap_or_else(PoisonError::into_inner);
        let opened = read();
        if opened.database.is_some() {
            return opened;
        }
        let times = opened.times;
        drop(opened);
        self.recover(times);
        read()
    }

    /// Why it is not open.
    fn gone(&self, opened: &Opened) -> Error {
        match opened.whose {
            Whose::Given => Error::Given(self.path.clone()),
            Whose::Ours | Whose::Returning => Error::Closed(self.path.clone()),
        }
    }

    fn read<T>(
        &self,
        body: impl FnOnce(&redb::ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, Error> {
        let opened = self.opened();
        let database = opened.database.as_ref().ok_or_else(|| self.gone(&opened))?;
        let run = || body(&database.begin_read()?);
        run().map_err(|error| Error::database(&self.path, error))
    }

    fn meta(&self, key: &str) -> Result<Option<u64>, Error> {
        self.read(|transaction| match transaction.open_table(META) {
            Ok(table) => Ok(table.get(key)?.map(|value| value.value())),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        })
    }

    fn is_bare(&self) -> Result<bool, Error> {
        self.read(|transaction| Ok(transaction.list_tables()?.next().is_none()))
    }
}

fn transact<R>(
    database: &Database,
    durability: Durability,
    body: impl FnOnce(&WriteTransaction) -> Result<R, redb::Error>,
) -> Result<R, redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(durability)?;
    let result = body(&transaction)?;
    transaction.commit()?;
    Ok(result)
}
