//! A disk that loses power: of what was written and not synced some is there, some is not, and some
//! is there in part. What was synced has to be there all the same, and what is there whole.
//!
//! `BUTTERFLY_CRASHES` says how many crashes there are to be, `BUTTERFLY_SEED` which is the first.

use butterfly_store::{Error, Keep, Kind, Put, Signed, StorageBackend, Store};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CRASHES: u64 = 400;
/// What a disk writes at once.
const SECTOR: usize = 512;

#[derive(Debug, Clone)]
enum Operation {
    Write(usize, Vec<u8>),
    SetLen(usize),
}

impl Operation {
    fn make(&self, image: &mut Vec<u8>) {
        match self {
            Operation::SetLen(len) => image.resize(*len, 0),
            Operation::Write(offset, data) => {
                // A growth that was lost takes what was written behind the old end along.
                let end = image.len().min(offset + data.len());
                if let Some(part) = image.get_mut(*offset..end) {
                    part.copy_from_slice(&data[..part.len()]);
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct Platter {
    /// As the process sees it.
    now: Vec<u8>,
    /// As it was at the last sync.
    synced: Vec<u8>,
    /// What came since.
    pending: Vec<Operation>,
    /// Operations until the power goes; `None`: it stays.
    left: Option<u64>,
    /// Bytes that there is room for.
    room: Option<usize>,
    /// Syncs that will fail.
    failing_syncs: u32,
    syncs: u64,
    /// How long a sync takes.
    slow: Duration,
}

impl Platter {
    fn step(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => Err(io::Error::other("the power is gone")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn change(&mut self, operation: Operation) -> io::Result<()> {
        self.step()?;
        operation.make(&mut self.now);
        self.pending.push(operation);
        Ok(())
    }

    /// What is found when the power is back.
    fn crash(&self, random: &mut StdRng) -> Vec<u8> {
        let mut image = self.synced.clone();
        let share = random.random_range(0.0..=1.0);
        for operation in &self.pending {
            match operation {
                Operation::Write(offset, data) if random.random_bool(0.2) => {
                    for (index, sector) in data.chunks(SECTOR).enumerate() {
                        if random.random_bool(0.5) {
                            let at = offset + index * SECTOR;
                            Operation::Write(at, sector.to_vec()).make(&mut image);
                        }
                    }
                }
                whole if random.random_bool(share) => whole.make(&mut image),
                _ => {}
            }
        }
        image
    }
}

#[derive(Debug, Clone, Default)]
struct Disk(Arc<Mutex<Platter>>);

impl Disk {
    fn of(image: Vec<u8>) -> Disk {
        Disk(Arc::new(Mutex::new(Platter {
            now: image.clone(),
            synced: image,
            ..Platter::default()
        })))
    }

    fn store(&self) -> Result<Store, Error> {
        let disk = self.clone();
        let keep = Keep {
            revisions: 8,
            objects: 100,
            ..Keep::default()
        };
        Store::on("the disk", keep, move || disk.clone())
    }

    fn with<T>(&self, f: impl FnOnce(&mut Platter) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.with(|platter| platter.step().map(|()| platter.now.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|platter| {
            platter.step()?;
            let offset = offset as usize;
            let part = platter.now.get(offset..offset + out.len());
            let part = part.ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(part);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|platter| match platter.room {
            Some(room) if len as usize > room.max(platter.now.len()) => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => platter.change(Operation::SetLen(len as usize)),
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|platter| {
            platter.step()?;
            if platter.failing_syncs > 0 {
                platter.failing_syncs -= 1;
                return Err(io::Error::other("the disk is ill"));
            }
            platter.syncs += 1;
            std::thread::sleep(platter.slow);
            platter.synced = platter.now.clone();
            platter.pending.clear();
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|platter| platter.change(Operation::Write(offset as usize, data.to_vec())))
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn content(store: &Store) -> Model {
    let objects = store.objects().unwrap().into_iter();
    objects.map(|object| (object.key, object.value)).collect()
}

fn puts(random: &mut StdRng) -> Vec<Put> {
    let mut keys: Vec<u8> = (0..40).collect();
    let count = random.random_range(1..12);
    let mut puts = Vec::new();
    for _ in 0..count {
        let key = keys.swap_remove(random.random_range(0..keys.len()));
        let len = [0, 20, 300, 9_000][random.random_range(0..4)];
        puts.push(Put {
            kind: Kind::Nic,
            key: vec![key],
            value: random.random_bool(0.7).then(|| {
                let byte = random.random_range(0..=255);
                vec![byte; len]
            }),
        });
    }
    puts
}

fn make(model: &mut Model, puts: &[Put]) {
    for put in puts {
        match &put.value {
            Some(value) => model.insert(put.key.clone(), value.clone()),
            None => model.remove(&put.key),
        };
    }
}

const SIGNED: Signed = Signed {
    author: "a test",
    unix_secs: 7,
    of_part: false,
};

/// Works on a disk until the power goes; the states that may be found, by revision, and the oldest
/// of them.
fn work(disk: &Disk, models: &mut BTreeMap<u64, Model>, random: &mut StdRng) -> u64 {
    let mut durable = *models.first_key_value().unwrap().0;
    let Ok(store) = disk.store() else {
        return durable;
    };
    let Ok(mut number) = store.newest() else {
        return durable;
    };
    let mut model = models[&number].clone();
    for _ in 0..random.random_range(1..10) {
        let puts = puts(random);
        make(&mut model, &puts);
        number += 1;
        // One that fails may be found as well, or not: the power went in the middle of it.
        models.insert(number, model.clone());
        let Ok(ticket) = store.write(SIGNED, &puts) else {
            return durable;
        };
        if random.random_bool(0.5) {
            match store.sync(ticket) {
                Ok(()) => durable = number,
                Err(_) => return durable,
            }
        }
    }
    durable
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn what_was_answered_is_there_and_what_is_there_is_whole() {
    let first = number("BUTTERFLY_SEED", 1);
    // A new file gets its name when it is whole, so that no crash can be in the middle of that.
    let disk = Disk::default();
    drop(disk.store().unwrap());
    let fresh = disk.with(|platter| platter.now.clone());
    let mut image = fresh.clone();
    let mut models = BTreeMap::from([(0, Model::new())]);
    let (mut lost, mut kept) = (0, 0);
    for seed in first..first + number("BUTTERFLY_CRASHES", CRASHES) {
        let random = &mut StdRng::seed_from_u64(seed);
        if seed % 50 == 0 {
            (image, models) = (fresh.clone(), BTreeMap::from([(0, Model::new())]));
        }
        let disk = Disk::of(image);
        disk.with(|platter| platter.left = Some(random.random_range(0..600)));
        let durable = work(&disk, &mut models, random);
        image = disk.with(|platter| platter.crash(random));

        let disk = Disk::of(image);
        let store = disk.store().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let newest = store.newest().unwrap();
        assert!(newest >= durable, "seed {seed}: {newest}, not {durable}");
        let model = models.get(&newest);
        assert_eq!(Some(&content(&store)), model, "seed {seed}: {newest}");
        match newest == *models.last_key_value().unwrap().0 {
            true => kept += 1,
            false => lost += 1,
        }
        drop(store);
        image = disk.with(|platter| platter.now.clone());
        let model = models.remove(&newest).unwrap();
        models = BTreeMap::from([(newest, model)]);
    }
    // Power that never goes in the middle of anything would show nothing.
    println!("{kept} crashes lost nothing that was begun, {lost} did");
    assert!(lost > 10 && kept > 10, "{lost} {kept}");
}

#[test]
fn a_full_disk_refuses_a_change_and_loses_none() {
    let disk = Disk::default();
    let store = disk.store().unwrap();
    let put = |key: u8, len| Put {
        kind: Kind::Group,
        key: vec![key],
        value: Some(vec![key; len]),
    };
    let ticket = store
        .write(SIGNED, &[put(1, 100), put(3, 1 << 20)])
        .unwrap();
    store.sync(ticket).unwrap();
    let ticket = store.write(SIGNED, &[put(3, 100)]).unwrap();
    store.sync(ticket).unwrap();
    disk.with(|platter| platter.room = Some(0));
    let before = content(&store);
    let error = store.write(SIGNED, &[put(2, 64 << 20)]).unwrap_err();
    let said = error.to_string();
    assert!(
        said.starts_with("the store the disk cannot be used"),
        "{said}"
    );
    assert_eq!(content(&store), before);
    assert_eq!(store.newest().unwrap(), 2);
    // There is room for a small one, and for all when there is room again.
    let ticket = store.write(SIGNED, &[put(3, 100)]).unwrap();
    store.sync(ticket).unwrap();
    disk.with(|platter| platter.room = None);
    let ticket = store.write(SIGNED, &[put(2, 64 << 20)]).unwrap();
    store.sync(ticket).unwrap();
    assert_eq!(content(&store).len(), 3);
}

#[test]
fn a_sync_that_fails_says_so_to_all_that_waited_for_it_and_to_nobody_later() {
    let disk = Disk::default();
    let store = disk.store().unwrap();
    let put = |key: u8| Put {
        kind: Kind::Nic,
        key: vec![key],
        value: Some(vec![key]),
    };
    let first = store.write(SIGNED, &[put(1)]).unwrap();
    store.sync(first).unwrap();
    let lost = [2, 3].map(|key| store.write(SIGNED, &[put(key)]).unwrap());
    disk.with(|platter| platter.failing_syncs = 1);
    assert!(store.sync(lost[0]).is_err());
    assert!(matches!(store.sync(lost[1]), Err(Error::Lost(_))));
    assert_eq!(content(&store).len(), 1);
    let again = store.write(SIGNED, &[put(2)]).unwrap();
    store.sync(again).unwrap();
    store.sync(first).unwrap();
    assert!(store.sync(lost[0]).is_err());
    drop(store);
    let image = disk.with(|platter| platter.synced.clone());
    assert_eq!(content(&Disk::of(image).store().unwrap()).len(), 2);
}

#[test]
fn many_share_a_sync() {
    let disk = Disk::default();
    let store = disk.store().unwrap();
    disk.with(|platter| platter.slow = Duration::from_millis(2));
    let before = disk.with(|platter| platter.syncs);
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..50_u8 {
                    let announced = store.announce();
                    let put = Put {
                        kind: Kind::Nic,
                        key: vec![thread, number],
                        value: Some(vec![number; 50]),
                    };
                    let ticket = store.write(SIGNED, &[put]).unwrap();
                    drop(announced);
                    store.sync(ticket).unwrap();
                }
            });
        }
    });
    let syncs = disk.with(|platter| platter.syncs) - before;
    assert!(syncs <= 150, "{syncs} syncs of 400 changes");
    assert_eq!(content(&store).len(), 400);
}
