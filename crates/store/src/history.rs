//! Revisions: written, counted, forgotten, and gone back to.

use crate::error::Error;
use crate::layout::{BEFORE, HISTORY_KEY, Kind, META, NEWEST_KEY, OBJECTS, REVISIONS};
use crate::{Keep, Put, Signed, Store};
use redb::{
    ReadTransaction, ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction,
};
use std::collections::BTreeMap;

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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub revision: u64,
    /// Keys and values of [`BEFORE`].
    bytes: u64,
}

/// Writes a change and what it replaces, and forgets the oldest revisions that are too many.
pub(crate) fn append(
    transaction: &WriteTransaction,
    signed: Signed,
    puts: &[Put],
    keep: Keep,
    known: Option<Size>,
) -> Result<Size, redb::Error> {
    let mut meta = transaction.open_table(META)?;
    let mut objects = transaction.open_table(OBJECTS)?;
    let mut revisions = transaction.open_table(REVISIONS)?;
    let mut before = transaction.open_table(BEFORE)?;
    let newest = meta.get(NEWEST_KEY)?.map_or(0, |newest| newest.value());
    let number = newest + 1;
    let mut history = meta.get(HISTORY_KEY)?.map_or(0, |count| count.value());
    let row_bytes =
        |key: &[u8], image: Option<&[u8]>| (key.len() + image.map_or(0, <[u8]>::len)) as u64;
    let mut bytes = match known.filter(|known| known.revision == newest) {
        Some(known) => known.bytes,
        None => before.iter()?.try_fold(0, |bytes, row| {
            let (key, image) = row?;
            Ok::<_, redb::Error>(bytes + row_bytes(key.value().2, image.value()))
        })?,
    };
    for put in puts {
        let key = (put.kind as u8, put.key.as_slice());
        let old = match &put.value {
            Some(value) => objects.insert(key, value.as_slice())?,
            None => objects.remove(key)?,
        };
        let old = old.as_ref().map(|old| old.value());
        bytes += row_bytes(key.1, old);
        before.insert((number, key.0, key.1), old)?;
    }
    let count = puts.len() as u64;
    revisions.insert(number, (signed.unix_secs, signed.author, count))?;
    meta.insert(NEWEST_KEY, number)?;
    history += count;
    while revisions.len()? > 1
        && (revisions.len()? > keep.revisions.max(1)
            || history > keep.objects
            || bytes > keep.bytes)
    {
        let Some((oldest, objects)) = revisions
            .pop_first()?
            .map(|(number, row)| (number.value(), row.value().2))
        else {
            break;
        };
        let bounds = (oldest, 0, &[][..])..(oldest + 1, 0, &[][..]);
        before.retain_in(bounds, |(_, _, key), image| {
            bytes = bytes.saturating_sub(row_bytes(key, image));
            false
        })?;
        history = history.saturating_sub(objects);
    }
    meta.insert(HISTORY_KEY, history)?;
    Ok(Size {
        revision: number,
        bytes,
    })
}

/// Undoes and forgets all revisions behind this one.
pub(crate) fn cut(transaction: &WriteTransaction, revision: u64) -> Result<(), redb::Error> {
    let mut meta = transaction.open_table(META)?;
    let mut objects = transaction.open_table(OBJECTS)?;
    let mut revisions = transaction.open_table(REVISIONS)?;
    let mut before = transaction.open_table(BEFORE)?;
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
        }
        let found = self.read(|transaction| {
            let (oldest, newest) = bounds(transaction)?;
            if !(oldest..=newest).contains(&revision) {
                return Ok(Found::Bounds(oldest, newest));
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
    let oldest = revisions
        .first()?
        .map_or(newest, |(oldest, _)| oldest.value() - 1);
    Ok((oldest, newest))
}
