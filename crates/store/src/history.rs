//! Revisions: written, counted, forgotten, and gone back to.
//!
//! A revision is forgotten at the old end of the history, where that only makes it shorter. In its
//! middle it becomes one with the next: states behind all others are then the same as before.

use crate::error::Error;
use crate::layout::{
    BEFORE, BeforeKey, HISTORY_KEY, Kind, MERGED, META, NEWEST_KEY, OBJECTS, PARTS, REVISIONS,
};
use crate::{Keep, Put, Signed, Store};
use redb::{
    ReadTransaction, ReadableTable, ReadableTableMetadata, Table, TableDefinition, TableError,
    WriteTransaction,
};
use std::collections::{BTreeMap, BTreeSet};

/// A change that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Revision {
    /// Its number. They only grow.
    pub number: u64,
    /// When, Unix seconds.
    pub unix_secs: u64,
    /// By whom.
    pub author: String,
    /// How many objects it touched.
    pub objects: u64,
}

/// Objects as they are to be, by kind and key; `None`: not there.
pub type Patch = BTreeMap<(Kind, Vec<u8>), Option<Vec<u8>>>;

/// How large the history was behind a revision. It is not in the file: a program that writes there
/// and does not know it, another process and a disk that fails all make another newest revision.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    pub revision: u64,
    all: Rows,
    /// Those of the revisions in [`PARTS`].
    parts: Rows,
}

/// Rows of [`BEFORE`], and the bytes of their keys and values.
#[derive(Clone, Copy, Debug, Default)]
struct Rows {
    count: u64,
    bytes: u64,
}

impl Size {
    fn add(&mut self, bytes: u64, of_part: bool) {
        for rows in self.of(of_part) {
            rows.count += 1;
            rows.bytes += bytes;
        }
    }

    fn remove(&mut self, bytes: u64, of_part: bool) {
        for rows in self.of(of_part) {
            rows.count = rows.count.saturating_sub(1);
            rows.bytes = rows.bytes.saturating_sub(bytes);
        }
    }

    fn of(&mut self, of_part: bool) -> impl Iterator<Item = &mut Rows> {
        let parts = of_part.then_some(&mut self.parts);
        std::iter::once(&mut self.all).chain(parts)
    }
}

fn row_bytes(key: &[u8], image: Option<&[u8]>) -> u64 {
    (key.len() + image.map_or(0, <[u8]>::len)) as u64
}

/// The rows of a revision.
fn rows_of(revision: u64) -> std::ops::Range<(u64, u8, &'static [u8])> {
    (revision, 0, &[])..(revision + 1, 0, &[])
}

/// Writes a change and what it replaces, and forgets the oldest revisions that are too many.
/// `durable`: the newest revision that no failure of the disk undoes.
pub(crate) fn append(
    transaction: &WriteTransaction,
    signed: Signed,
    puts: &[Put],
    keep: Keep,
    known: Option<Size>,
    durable: u64,
) -> Result<Size, redb::Error> {
    let mut meta = transaction.open_table(META)?;
    let newest = meta.get(NEWEST_KEY)?.map_or(0, |newest| newest.value());
    let number = newest + 1;
    let mut history = History {
        objects: transaction.open_table(OBJECTS)?,
        revisions: transaction.open_table(REVISIONS)?,
        before: transaction.open_table(BEFORE)?,
        parts: transaction.open_table(PARTS)?,
        merged: transaction.open_table(MERGED)?,
        size: Size::default(),
    };
    match known.filter(|known| known.revision == newest) {
        Some(known) => history.size = known,
        None => history.measure()?,
    }
    history.size.revision = number;
    for put in puts {
        let key = (put.kind as u8, put.key.as_slice());
        let old = match &put.value {
            Some(value) => history.objects.insert(key, value.as_slice())?,
            None => history.objects.remove(key)?,
        };
        let old = old.as_ref().map(|old| old.value());
        history.size.add(row_bytes(key.1, old), signed.of_part);
        history.before.insert((number, key.0, key.1), old)?;
    }
    let count = puts.len() as u64;
    let row = (signed.unix_secs, signed.author, count);
    history.revisions.insert(number, row)?;
    if signed.of_part {
        history.parts.insert(number, ())?;
    }
    history.bound(keep, durable)?;
    meta.insert(NEWEST_KEY, number)?;
    meta.insert(HISTORY_KEY, history.size.all.count)?;
    Ok(history.size)
}

/// The tables while a change is written.
struct History<'t> {
    objects: Table<'t, (u8, &'static [u8]), &'static [u8]>,
    revisions: Table<'t, u64, (u64, &'static str, u64)>,
    before: Table<'t, BeforeKey, Option<&'static [u8]>>,
    parts: Table<'t, u64, ()>,
    merged: Table<'t, u64, u64>,
    size: Size,
}

impl History<'_> {
    /// Counts what is there. A version that does not know parts may have forgotten revisions.
    fn measure(&mut self) -> Result<(), redb::Error> {
        let revisions = &self.revisions;
        let kept = |number: u64| revisions.get(number).is_ok_and(|row| row.is_some());
        self.parts.retain(|number, ()| kept(number))?;
        self.merged.retain(|number, _| kept(number))?;
        for row in self.before.iter()? {
            let (key, image) = row?;
            let (revision, _, key) = key.value();
            let of_part = self.parts.get(revision)?.is_some();
            self.size.add(row_bytes(key, image.value()), of_part);
        }
        Ok(())
    }

    /// Forgets what is too much. Of what parts have beyond their share the oldest goes, else the
    /// oldest of all.
    fn bound(&mut self, keep: Keep, durable: u64) -> Result<(), redb::Error> {
        loop {
            let (revisions, parts) = (self.revisions.len()?, self.parts.len()?);
            let Size {
                all, parts: rows, ..
            } = self.size;
            let bounds = [
                (revisions, parts, keep.revisions.max(1)),
                (all.count, rows.count, keep.objects),
                (all.bytes, rows.bytes, keep.bytes),
            ];
            let over = bounds.into_iter().find(|(all, _, limit)| all > limit);
            let Some((_, of_parts, limit)) = over.filter(|_| revisions > 1) else {
                return Ok(());
            };
            let Some(oldest) = self.revisions.first()?.map(|(number, _)| number.value()) else {
                return Ok(());
            };
            let part = self.parts.first()?.map(|(number, _)| number.value());
            let part = part.filter(|part| of_parts > limit / 2 && *part > oldest);
            let next = part.map(|part| self.next(part)).transpose()?.flatten();
            match part.zip(next) {
                // What a failure of the disk undoes is to be what its revision itself changed.
                Some((_, next)) if next > durable => return Ok(()),
                Some((part, next)) => self.merge(part, next)?,
                None => self.forget(oldest)?,
            }
        }
    }

    /// The revision behind this one that is kept.
    fn next(&self, revision: u64) -> Result<Option<u64>, redb::Error> {
        let next = self.revisions.range(revision + 1..)?.next().transpose()?;
        Ok(next.map(|(number, _)| number.value()))
    }

    fn forget(&mut self, revision: u64) -> Result<(), redb::Error> {
        self.revisions.remove(revision)?;
        self.merged.remove(revision)?;
        let of_part = self.parts.remove(revision)?.is_some();
        let size = &mut self.size;
        self.before
            .retain_in(rows_of(revision), |(_, _, key), image| {
                size.remove(row_bytes(key, image), of_part);
                false
            })?;
        Ok(())
    }

    /// Makes a part's revision one with the next: what the two replaced is what was there before
    /// the first of them.
    fn merge(&mut self, part: u64, next: u64) -> Result<(), redb::Error> {
        let mut images = Vec::new();
        for row in self.before.range(rows_of(part))? {
            let (key, image) = row?;
            let (_, kind, key) = key.value();
            images.push((kind, key.to_vec(), image.value().map(<[u8]>::to_vec)));
        }
        let since = self.merged.get(part)?.map(|since| since.value());
        self.forget(part)?;
        self.merged.insert(next, since.unwrap_or(part - 1))?;
        let of_part = self.parts.get(next)?.is_some();
        let mut made = BTreeSet::new();
        let mut more = 0;
        for (kind, key, image) in images {
            let image = image.as_deref();
            let later = self.before.insert((next, kind, key.as_slice()), image)?;
            match &later {
                Some(later) => self.size.remove(row_bytes(&key, later.value()), of_part),
                None => more += 1,
            }
            self.size.add(row_bytes(&key, image), of_part);
            let is_gone = self.objects.get((kind, key.as_slice()))?.is_none();
            if later.is_some() && image.is_none() && is_gone {
                made.insert((kind, key));
            }
        }
        let fewer = self.drop_passing(next, made, of_part)?;
        let row = self.revisions.get(next)?.map(|row| {
            let (unix_secs, author, objects) = row.value();
            (unix_secs, author.to_owned(), objects)
        });
        if let Some((unix_secs, author, objects)) = row {
            let objects = (objects + more).saturating_sub(fewer);
            let row = (unix_secs, author.as_str(), objects);
            self.revisions.insert(next, row)?;
        }
        Ok(())
    }

    /// Of these objects, which were not there before a revision and are not now: forgets in the
    /// revision those that were not behind it either; how many. Who makes and deletes things
    /// without end would fill the history.
    fn drop_passing(
        &mut self,
        revision: u64,
        mut made: BTreeSet<(u8, Vec<u8>)>,
        of_part: bool,
    ) -> Result<u64, redb::Error> {
        let mut passing = Vec::new();
        // The first image behind the revision says what was there then. A revision with many
        // objects is asked for each of these, one with few is read.
        for row in self.revisions.range(revision + 1..)? {
            if made.is_empty() {
                break;
            }
            let (behind, row) = row?;
            let (behind, (_, _, objects)) = (behind.value(), row.value());
            if objects < made.len() as u64 {
                for row in self.before.range(rows_of(behind))? {
                    let (key, image) = row?;
                    let (_, kind, key) = key.value();
                    let made = made.take(&(kind, key.to_vec()));
                    passing.extend(made.filter(|_| image.value().is_none()));
                }
                continue;
            }
            for (kind, key) in std::mem::take(&mut made) {
                match self.before.get((behind, kind, key.as_slice()))? {
                    Some(image) if image.value().is_none() => passing.push((kind, key)),
                    Some(_) => {}
                    None => {
                        made.insert((kind, key));
                    }
                }
            }
        }
        let mut dropped = 0;
        for (kind, key) in passing.into_iter().chain(made) {
            self.before.remove((revision, kind, key.as_slice()))?;
            self.size.remove(row_bytes(&key, None), of_part);
            dropped += 1;
        }
        Ok(dropped)
    }
}

/// Undoes and forgets all revisions behind this one.
pub(crate) fn cut(transaction: &WriteTransaction, revision: u64) -> Result<(), redb::Error> {
    let mut meta = transaction.open_table(META)?;
    let mut objects = transaction.open_table(OBJECTS)?;
    let mut revisions = transaction.open_table(REVISIONS)?;
    let mut before = transaction.open_table(BEFORE)?;
    let mut parts = transaction.open_table(PARTS)?;
    let mut merged = transaction.open_table(MERGED)?;
    let behind = (revision + 1, 0, &[][..])..;
    for row in before.range(behind.clone())?.rev() {
        let (key, image) = row?;
        let (_, kind, key) = key.value();
        match image.value() {
            Some(image) => drop(objects.insert((kind, key), image)?),
            None => drop(objects.remove((kind, key))?),
        }
    }
    before.retain_in(behind, |_, _| false)?;
    revisions.retain_in(revision + 1.., |_, _| false)?;
    parts.retain_in(revision + 1.., |_, ()| false)?;
    merged.retain_in(revision + 1.., |_, _| false)?;
    if meta
        .get(NEWEST_KEY)?
        .is_some_and(|newest| newest.value() > revision)
    {
        meta.insert(NEWEST_KEY, revision)?;
    }
    meta.insert(HISTORY_KEY, before.len()?)?;
    Ok(())
}

impl Store {
    /// The revisions that are kept, newest first.
    pub fn history(&self) -> Result<Vec<Revision>, Error> {
        self.read(|transaction| {
            let table = transaction.open_table(REVISIONS)?;
            let mut revisions = Vec::new();
            for row in table.iter()?.rev() {
                let (number, row) = row?;
                let (unix_secs, author, objects) = row.value();
                revisions.push(Revision {
                    number: number.value(),
                    unix_secs,
                    author: author.to_owned(),
                    objects,
                });
            }
            Ok(revisions)
        })
    }

    /// The newest revision's number; 0: there was none.
    pub fn newest(&self) -> Result<u64, Error> {
        Ok(self.meta(NEWEST_KEY)?.unwrap_or(0))
    }

    /// What makes the state of now the one after a revision: each object that was touched since.
    /// The one before the oldest revision that is kept can be had as well.
    pub fn back_to(&self, revision: u64) -> Result<Patch, Error> {
        enum Found {
            Images(BTreeMap<(u8, Vec<u8>), Option<Vec<u8>>>),
            Bounds(u64, u64),
            Merged(u64),
        }
        let found = self.read(|transaction| {
            let (oldest, newest) = bounds(transaction)?;
            if !(oldest..=newest).contains(&revision) {
                return Ok(Found::Bounds(oldest, newest));
            }
            let revisions = transaction.open_table(REVISIONS)?;
            let kept = revisions.range(revision..)?.next().transpose()?;
            let kept = kept.map(|(number, _)| number.value());
            if let Some(next) = kept.filter(|next| *next > revision && revision > oldest) {
                return Ok(Found::Merged(next));
            }
            let table = transaction.open_table(BEFORE)?;
            let mut images = BTreeMap::new();
            // Of each object the oldest image behind the revision is the one that held then.
            for row in table.range((revision + 1, 0, &[][..])..)? {
                let (key, value) = row?;
                let (_, number, key) = key.value();
                let image = value.value().map(<[u8]>::to_vec);
                images.entry((number, key.to_vec())).or_insert(image);
            }
            Ok(Found::Images(images))
        })?;
        match found {
            Found::Images(images) => {
                let of = |((number, key), image)| Ok(((self.kind(number)?, key), image));
                images.into_iter().map(of).collect()
            }
            Found::Merged(next) => Err(Error::Merged { revision, next }),
            Found::Bounds(oldest, newest) => Err(Error::NoRevision {
                revision,
                oldest,
                newest,
            }),
        }
    }
}

/// The oldest and the newest state that can be had.
fn bounds(transaction: &ReadTransaction) -> Result<(u64, u64), redb::Error> {
    let meta: TableDefinition<&str, u64> = META;
    let newest = transaction.open_table(meta)?.get(NEWEST_KEY)?;
    let newest = newest.map_or(0, |newest| newest.value());
    let revisions = transaction.open_table(REVISIONS)?;
    let Some((first, _)) = revisions.first()? else {
        return Ok((newest, newest));
    };
    let since = match transaction.open_table(MERGED) {
        Ok(merged) => merged.get(first.value())?.map(|since| since.value()),
        Err(TableError::TableDoesNotExist(_)) => None,
        Err(error) => return Err(error.into()),
    };
    Ok((since.unwrap_or(first.value() - 1), newest))
}
