//! The file: who may open it, what is refused, and its history.

use butterfly_store::{Error, FILE, Keep, Kind, Layout, Patch, Put, Signed, Store, Ticket};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redb::ReadableTable;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn open(folder: &Path) -> Result<Store, Error> {
    Store::open(folder, Keep::default())
}

fn put(key: &str, value: Option<&str>) -> Put {
    Put {
        kind: Kind::Nic,
        key: key.into(),
        value: value.map(Into::into),
    }
}

fn write(store: &Store, author: &str, puts: &[Put]) {
    store.sync(written(store, author, puts)).unwrap();
}

/// Of who is called `tenant` it is a part's.
fn written(store: &Store, author: &str, puts: &[Put]) -> Ticket {
    let signed = Signed {
        author,
        unix_secs: 1_000,
        of_part: author == "tenant",
    };
    store.write(signed, puts).unwrap()
}

fn kept(store: &Store) -> Vec<u64> {
    let history = store.history().unwrap().into_iter();
    history.map(|revision| revision.number).collect()
}

fn values(store: &Store) -> Vec<(String, String)> {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let objects = store.objects().unwrap().into_iter();
    objects
        .map(|object| (text(object.key), text(object.value)))
        .collect()
}

#[test]
fn a_store_is_its_owner_s_and_one_process_s() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("made/on/the/way");
    let store = open(&folder).unwrap();
    write(&store, "one", &[put("a", Some("1"))]);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join(FILE)), 0o600);
    let said = open(&folder).err().unwrap().to_string();
    assert!(
        said.contains(&format!("{}/{FILE} is in use", folder.display())),
        "{said}"
    );
    drop(store);
    let store = open(&folder).unwrap();
    assert_eq!(values(&store), [("a".into(), "1".into())]);
}

#[test]
fn history_goes_back_as_far_as_it_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep {
        revisions: 3,
        objects: 100,
        ..Keep::default()
    };
    let store = Store::open(dir.path(), keep).unwrap();
    write(&store, "one", &[put("a", Some("1"))]);
    write(&store, "two", &[put("a", Some("2")), put("b", Some("2"))]);
    write(&store, "three", &[put("a", None)]);
    let authors = |store: &Store| -> Vec<(u64, String, u64)> {
        let history = store.history().unwrap().into_iter();
        history
            .map(|it| (it.number, it.author, it.objects))
            .collect()
    };
    let three = [
        (3, "three".into(), 1),
        (2, "two".into(), 2),
        (1, "one".into(), 1),
    ];
    assert_eq!(authors(&store), three);
    let of = |key: &str| (Kind::Nic, key.as_bytes().to_vec());
    let is = |value: &str| Some(value.as_bytes().to_vec());
    assert_eq!(store.back_to(3).unwrap(), Patch::new());
    assert_eq!(store.back_to(2).unwrap(), Patch::from([(of("a"), is("2"))]));
    let one = Patch::from([(of("a"), is("1")), (of("b"), None)]);
    assert_eq!(store.back_to(1).unwrap(), one);
    let nothing = Patch::from([(of("a"), None), (of("b"), None)]);
    assert_eq!(store.back_to(0).unwrap(), nothing);

    write(&store, "four", &[put("c", Some("4"))]);
    assert_eq!(authors(&store)[2].0, 2);
    let said = store.back_to(0).unwrap_err().to_string();
    assert_eq!(said, "there is no revision 0: those from 1 to 4 are kept");
    assert_eq!(store.back_to(1).unwrap().len(), 3);
    assert!(store.back_to(5).is_err());
    drop(store);
    let store = Store::open(dir.path(), keep).unwrap();
    assert_eq!(authors(&store)[0], (4, "four".into(), 1));
    // Of a change with more objects than are to be kept, the change itself is.
    let many: Vec<Put> = (0..200)
        .map(|key| put(&key.to_string(), Some("5")))
        .collect();
    write(&store, "five", &many);
    assert_eq!(authors(&store), [(5, "five".into(), 200)]);
    assert_eq!(store.back_to(4).unwrap().len(), 200);
}

/// Of a large object each change is as large: what was replaced is bounded by its bytes, and what
/// an earlier process wrote counts.
#[test]
fn history_of_large_objects_is_shorter() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep {
        bytes: 5_000,
        ..Keep::default()
    };
    let large = "x".repeat(1_000);
    let kept = |store: &Store| store.history().unwrap().len();
    let store = Store::open(dir.path(), keep).unwrap();
    for _ in 0..4 {
        write(&store, "somebody", &[put("a", Some(&large))]);
    }
    assert_eq!(kept(&store), 4);
    drop(store);
    let store = Store::open(dir.path(), keep).unwrap();
    for _ in 0..9 {
        write(&store, "somebody", &[put("a", Some(&large))]);
        assert!(kept(&store) <= 5);
    }
    // The first replaced nothing; each of the others is 1,001 bytes.
    assert_eq!(kept(&store), 4);
    let small = [put("b", Some("1"))];
    write(&store, "somebody", &small);
    write(&store, "somebody", &[put("b", Some("2"))]);
    assert_eq!(kept(&store), 6, "small changes are kept beside");
    let whole = "x".repeat(10_000);
    write(&store, "somebody", &[put("a", Some(&whole))]);
    write(&store, "somebody", &[put("a", None)]);
    assert_eq!(kept(&store), 1, "the newest always is");
}

/// Who has a part makes a change after the other, and the whole host can be gone back as before.
#[test]
fn revisions_of_parts_do_not_take_the_room_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep {
        revisions: 10,
        ..Keep::default()
    };
    let store = Store::open(dir.path(), keep).unwrap();
    write(&store, "host", &[put("a", Some("1"))]);
    for round in 1..=2_000 {
        let ticket = written(&store, "tenant", &[put("mine", Some(&round.to_string()))]);
        if round % 4 == 0 {
            store.sync(ticket).unwrap();
        }
        // What is not durable yet stays by itself, beyond the bound for as long.
        assert!(kept(&store).len() <= 10 + 4);
    }
    let host = Patch::from([((Kind::Nic, b"mine".to_vec()), None)]);
    assert_eq!(store.back_to(1).unwrap(), host);
    drop(store);
    let store = Store::open(dir.path(), keep).unwrap();
    write(&store, "host", &[put("a", Some("2"))]);
    let (now, kept) = (2_002, kept(&store));
    assert_eq!((kept.len(), kept[0], kept[9]), (10, now, 1));
    assert_eq!(store.back_to(1).unwrap().len(), 2);
    let before_last = store.back_to(now - 2).unwrap();
    assert_eq!(
        before_last[&(Kind::Nic, b"mine".to_vec())],
        Some(b"1999".to_vec())
    );
    let said = store.back_to(2).unwrap_err().to_string();
    let next = kept[8];
    assert_eq!(
        said,
        format!("revision 2 is not kept by itself: what it changed is in revision {next}")
    );
}

/// What is made and deleted over and over takes no room behind the revisions that did so.
#[test]
fn what_parts_make_and_delete_does_not_fill_the_history() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep {
        objects: 20,
        ..Keep::default()
    };
    let store = Store::open(dir.path(), keep).unwrap();
    write(&store, "host", &[put("a", Some("1"))]);
    for round in 0..200 {
        let key = round.to_string();
        write(&store, "tenant", &[put(&key, Some("1"))]);
        write(&store, "tenant", &[put(&key, Some("2"))]);
        write(&store, "tenant", &[put(&key, None)]);
    }
    assert_eq!(kept(&store).last(), Some(&1));
    assert_eq!(values(&store), [("a".into(), "1".into())]);
    let back = store.back_to(1).unwrap();
    assert!(back.len() <= 20 && back.values().all(Option::is_none));
}

/// Whatever became one with what: what can be had is what was.
#[test]
fn every_state_that_is_kept_is_as_it_was() {
    let mut random = StdRng::seed_from_u64(1);
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep {
        revisions: 8,
        objects: 16,
        bytes: 60,
    };
    let store = Store::open(dir.path(), keep).unwrap();
    let mut states = vec![values(&store)];
    for _ in 0..400 {
        let author = ["host", "tenant", "tenant", "tenant"][random.random_range(0..4)];
        let mut keys: Vec<u32> = (0..random.random_range(1..4))
            .map(|_| random.random_range(0..6))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let puts: Vec<Put> = keys
            .into_iter()
            .map(|key| {
                let value = "x".repeat(random.random_range(1..9));
                let value = random.random_bool(0.6).then_some(value.as_str());
                put(&key.to_string(), value)
            })
            .collect();
        let ticket = written(&store, author, &puts);
        if random.random_bool(0.7) {
            store.sync(ticket).unwrap();
        }
        let now = values(&store);
        states.push(now.clone());
        for revision in kept(&store) {
            let mut then: BTreeMap<String, String> = now.iter().cloned().collect();
            for ((_, key), value) in store.back_to(revision).unwrap() {
                let text = |bytes| String::from_utf8(bytes).unwrap();
                match value {
                    Some(value) => then.insert(text(key), text(value)),
                    None => then.remove(&text(key)),
                };
            }
            let then: Vec<_> = then.into_iter().collect();
            assert_eq!(then, states[revision as usize], "{revision}");
        }
    }
    // Each says how many objects it touched, and all of them are counted.
    type Before = (u64, u8, &'static [u8]);
    const BEFORE: redb::TableDefinition<Before, Option<&[u8]>> =
        redb::TableDefinition::new("before");
    const META: redb::TableDefinition<&str, u64> = redb::TableDefinition::new("meta");
    let history = store.history().unwrap().into_iter().rev();
    let said: Vec<(u64, u64)> = history.map(|it| (it.number, it.objects)).collect();
    drop(store);
    let database = redb::Database::open(dir.path().join(FILE)).unwrap();
    let transaction = database.begin_write().unwrap();
    let before = transaction.open_table(BEFORE).unwrap();
    let touched = |revision| {
        let rows = before.range((revision, 0, &[][..])..(revision + 1, 0, &[][..]));
        (revision, rows.unwrap().count() as u64)
    };
    let there: Vec<(u64, u64)> = said
        .iter()
        .map(|(revision, _)| touched(*revision))
        .collect();
    assert_eq!(said, there);
    let all: u64 = said.iter().map(|(_, objects)| objects).sum();
    let meta = transaction.open_table(META).unwrap();
    let counted = meta.get("history_objects").unwrap().unwrap().value();
    assert_eq!(counted, all);
}

#[test]
fn a_newer_format_is_refused_and_an_older_one_is_migrated_with_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    write(&store, "one", &[put("a", Some("1"))]);
    drop(store);
    const OBJECTS: redb::TableDefinition<(u8, &[u8]), &[u8]> =
        redb::TableDefinition::new("objects");
    let next = Layout {
        format: 2,
        migrations: &[|transaction| {
            let mut objects = transaction.open_table(OBJECTS)?;
            objects.insert((Kind::Nic as u8, &b"b"[..]), &b"migrated"[..])?;
            Ok(())
        }],
    };
    let fails = Layout {
        migrations: &[|transaction| {
            transaction.open_table(OBJECTS)?.retain(|_, _| false)?;
            Err(redb::Error::Corrupted("an object of another kind".into()))
        }],
        ..next
    };
    let said = Store::open_layout(dir.path(), Keep::default(), &fails)
        .err()
        .unwrap();
    assert!(
        said.to_string().contains("an object of another kind"),
        "{said}"
    );
    assert_eq!(values(&open(dir.path()).unwrap()).len(), 1);

    let store = Store::open_layout(dir.path(), Keep::default(), &next).unwrap();
    assert_eq!(values(&store)[1], ("b".into(), "migrated".into()));
    drop(store);
    let path = dir.path().join(FILE);
    let said = open(dir.path()).err().unwrap().to_string();
    let newer = format!(
        "the store {} was written by a newer version (format 2; this one knows 1)",
        path.display()
    );
    assert!(said.starts_with(&newer), "{said}");
    // The copy is a store of its own.
    let copy = dir.path().join(format!("{FILE}.format-1"));
    std::fs::rename(copy, path).unwrap();
    assert_eq!(
        values(&open(dir.path()).unwrap()),
        [("a".into(), "1".into())]
    );
}

/// Each part of the file is damaged in turn; whatever is hit, the answer is the content or a
/// sentence.
#[test]
fn a_damaged_file_is_refused_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let many: Vec<Put> = (0..500)
        .map(|key| put(&key.to_string(), Some(&"content ".repeat(20))))
        .collect();
    write(&store, "one", &many);
    drop(store);
    let path = dir.path().join(FILE);
    let whole = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for at in (0..whole.len()).step_by(whole.len() / 150) {
        let mut damaged = whole.clone();
        let end = damaged.len().min(at + 64);
        damaged[at..end].iter_mut().for_each(|byte| *byte ^= 0x5a);
        std::fs::write(&path, &damaged).unwrap();
        match open(dir.path()) {
            Ok(store) => assert_eq!(values(&store).len(), 500, "at {at}"),
            Err(error) => {
                refused += 1;
                let said = error.to_string();
                assert!(said.contains(path.to_str().unwrap()), "at {at}: {said}");
            }
        }
    }
    assert!(refused > 10, "{refused}");
    for bytes in [
        &b"not a database"[..],
        &[],
        &[0; 8192],
        &whole[..whole.len() / 2],
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = open(dir.path())
            .map(drop)
            .expect_err("it is no store of ours");
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "it is left as it is");
    }
}

/// A kind of object that this version does not know, as it is and as it once was.
#[test]
fn an_object_of_a_newer_version_is_no_damage() {
    type Before = (u64, u8, &'static [u8]);
    const OBJECTS: redb::TableDefinition<(u8, &[u8]), &[u8]> =
        redb::TableDefinition::new("objects");
    const BEFORE: redb::TableDefinition<Before, Option<&[u8]>> =
        redb::TableDefinition::new("before");
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    write(&store, "one", &[put("a", Some("1"))]);
    write(&store, "one", &[put("a", Some("2"))]);
    drop(store);
    let change = |change: &dyn Fn(&redb::WriteTransaction)| {
        let database = redb::Database::open(dir.path().join(FILE)).unwrap();
        let transaction = database.begin_write().unwrap();
        change(&transaction);
        transaction.commit().unwrap();
    };
    let is_newer = |said: Error| {
        let why = "by a newer version: it has objects of kind 200, which";
        assert!(said.to_string().contains(why), "{said}");
    };
    change(&|transaction| {
        let mut table = transaction.open_table(OBJECTS).unwrap();
        table.insert((200, &b"n"[..]), &b"new"[..]).unwrap();
    });
    is_newer(open(dir.path()).unwrap().objects().unwrap_err());
    change(&|transaction| {
        let mut table = transaction.open_table(OBJECTS).unwrap();
        table.remove((200, &b"n"[..])).unwrap();
        let mut table = transaction.open_table(BEFORE).unwrap();
        table
            .insert((2, 200, &b"n"[..]), Some(&b"new"[..]))
            .unwrap();
    });
    let store = open(dir.path()).unwrap();
    assert_eq!(values(&store), [("a".into(), "2".into())]);
    is_newer(store.back_to(1).unwrap_err());
    assert!(store.back_to(2).unwrap().is_empty());
}

#[test]
fn what_is_no_file_or_in_the_way_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let said = open(&file.join("below")).err().unwrap().to_string();
    assert!(said.contains("file/below cannot be made"), "{said}");
    let folder = dir.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(&file, folder.join(FILE)).unwrap();
    assert!(open(&folder).is_err());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn it_is_given_to_another_process_and_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let signed = Signed {
        author: "one",
        unix_secs: 1_000,
        of_part: false,
    };
    // Not synced by anybody yet.
    store.write(signed, &[put("a", Some("1"))]).unwrap();
    store.give_way().unwrap();
    assert!(store.objects().is_err(), "it is not opened behind our back");
    let other = open(dir.path()).unwrap();
    assert_eq!(values(&other), [("a".into(), "1".into())]);
    assert!(matches!(store.take_back(), Err(Error::InUse(_))));
    // Who needs it meanwhile does not open it behind the other's back, and does so behind that.
    assert!(store.objects().is_err());
    write(&other, "other", &[put("a", Some("1"))]);
    drop(other);
    assert_eq!(values(&store), [("a".into(), "1".into())]);
    let refused = open(dir.path()).err().unwrap();
    assert!(matches!(refused, Error::InUse(_)), "{refused}");
    store.take_back().unwrap();
    write(&store, "two", &[put("b", Some("2"))]);
    drop(store);
    let store = open(dir.path()).unwrap();
    assert_eq!(values(&store).len(), 2);
}
