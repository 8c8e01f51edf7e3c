//! Our own giving of addresses: a file of leases for each network, read, changed and put in its
//! place as a whole, under a lock. Addresses are given in turn, so that one that was given back is
//! given again last.
//!
//! A crash at any moment leaves the file of before or the one of after.
//!
//! Whoever can open a file can lock it: the folder and its files are for their owner alone, and a
//! lock that somebody has had opened before is not waited for without end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::config::{Attachment, Range, Ranges};
use crate::error::Error;
use crate::result::{Addresses, Ip, Route};

/// How long other calls may have their turn before this one: each takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(5);
/// Of the folder and of the files in it, and of folders around it that are missing: those are
/// others' too.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const AROUND_MODE: u32 = 0o755;

/// Leases of one network, locked.
pub struct Leases {
    folder: PathBuf,
    sets: Vec<Vec<Run>>,
    routes: Vec<Route>,
    /// Holds the lock.
    _lock: File,
}

/// A run of addresses, checked.
struct Run {
    net: IpNet,
    first: u128,
    last: u128,
    gateway: IpAddr,
}

/// The file.
#[derive(Default, Serialize, Deserialize)]
struct Stored {
    /// Who has each address: the container and its interface.
    leases: BTreeMap<IpAddr, (String, String)>,
    /// The address of each set that was given last, in turn.
    last: BTreeMap<usize, IpAddr>,
}

impl Leases {
    /// Waits for its turn. An error of which another try may make something: others have it.
    pub fn open(ranges: &Ranges, network: &str) -> Result<Leases, Error> {
        Leases::open_within(ranges, network, PATIENCE)
    }

    fn open_within(ranges: &Ranges, network: &str, patience: Duration) -> Result<Leases, Error> {
        let (sets, routes) = checked(ranges)?;
        let folder = ranges.data_dir.join(network);
        let failed = |e: io::Error| Error::io(format!("{}: {e}", folder.display()));
        for (folder, mode) in [(&ranges.data_dir, AROUND_MODE), (&folder, FOLDER_MODE)] {
            let mut making = DirBuilder::new();
            making.recursive(true).mode(mode);
            making.create(folder).map_err(failed)?;
        }
        // One that is there may be of before these modes.
        let mode = Permissions::from_mode(FOLDER_MODE);
        std::fs::set_permissions(&folder, mode).map_err(failed)?;
        let lock = open_own(&folder.join("lock")).map_err(failed)?;
        let until = Instant::now() + patience;
        while let Err(e) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if e != Errno::WOULDBLOCK {
                return Err(failed(e.into()));
            }
            if Instant::now() >= until {
                return Err(Error::later(format!(
                    "{}/lock has been locked by another process for {} s",
                    folder.display(),
                    patience.as_secs()
                )));
            }
            std::thread::sleep(AGAIN);
        }
        Ok(Leases {
            folder,
            sets,
            routes,
            _lock: lock,
        })
    }

    /// An address of each set: those that are asked for, every one of them, and else the next that
    /// are free. What the container has already it gets again.
    pub fn take(&self, who: &Attachment, asked: &[IpAddr]) -> Result<Addresses, Error> {
        let mut stored = self.read()?;
        let mut given = vec![None; self.sets.len()];
        for ip in asked {
            let why = if !self.sets.iter().flatten().any(|run| run.has(*ip)) {
                "is in no range"
            } else if !stored.is_free(*ip, who) {
                "is taken"
            } else if !self.place(*ip, &mut given) {
                "is one too many: each set of ranges gives one address"
            } else {
                continue;
            };
            return Err(Error::no_address(format!("{ip} {why}")));
        }
        for ip in stored.of(who) {
            // Where what is asked for leaves a set for it.
            self.place(ip, &mut given);
        }
        let lease = (who.container.clone(), who.ifname.clone());
        let placed = given.iter().flatten().map(|ip| (*ip, lease.clone()));
        stored.leases.extend(placed);
        let mut ips: Vec<Ip> = Vec::new();
        for (number, (set, given)) in self.sets.iter().zip(given).enumerate() {
            let ip = match given {
                Some(ip) => ip,
                None => {
                    let ip = next(set, &stored, number)?;
                    stored.last.insert(number, ip);
                    stored.leases.insert(ip, lease.clone());
                    ip
                }
            };
            let run = set.iter().find(|run| run.has(ip));
            ips.extend(run.map(|run| run.gives(ip)));
        }
        self.write(&stored)?;
        Ok(Addresses {
            ips,
            routes: self.routes.clone(),
            ..Addresses::default()
        })
    }

    /// Finds a set that gives an address. Where sets overlap, an address that has its set already
    /// moves to another one if that makes room. `false`: there is no room.
    fn place(&self, ip: IpAddr, given: &mut [Option<IpAddr>]) -> bool {
        given.contains(&Some(ip)) || self.make_room(ip, given, &mut BTreeSet::new())
    }

    /// `asked` are the sets that have been asked to make room.
    fn make_room(
        &self,
        ip: IpAddr,
        given: &mut [Option<IpAddr>],
        asked: &mut BTreeSet<usize>,
    ) -> bool {
        let sets = self.sets.iter().enumerate();
        let have = sets.filter(|(_, set)| set.iter().any(|run| run.has(ip)));
        let have: Vec<usize> = have.map(|(number, _)| number).collect();
        let free = have.iter().find(|number| given[**number].is_none());
        let room = free.copied().or_else(|| {
            have.into_iter().find(|number| {
                let other = given[*number];
                asked.insert(*number)
                    && other.is_some_and(|other| self.make_room(other, given, asked))
            })
        });
        if let Some(number) = room {
            given[number] = Some(ip);
        }
        room.is_some()
    }

    /// What a container has by an interface.
    pub fn held(&self, who: &Attachment) -> Result<Vec<IpAddr>, Error> {
        Ok(self.read()?.of(who).collect())
    }

    /// Gives all back that a container has by an interface.
    pub fn give_back(&self, who: &Attachment) -> Result<(), Error> {
        self.give_back_but(who, &[])
    }

    /// Gives back what a container has by an interface beside these.
    pub fn give_back_but(&self, who: &Attachment, kept: &[IpAddr]) -> Result<(), Error> {
        self.retain(|ip, container, ifname| {
            (container, ifname) != (&who.container, &who.ifname) || kept.contains(ip)
        })
    }

    /// Gives all back but what is had by an attachment that is used: a container's interface.
    pub fn keep(&self, is_used: impl Fn(&str, &str) -> bool) -> Result<(), Error> {
        self.retain(|_, container, ifname| is_used(container, ifname))
    }

    /// Whether a container has an address of each set.
    pub fn check(&self, who: &Attachment) -> Result<(), Error> {
        let stored = self.read()?;
        for set in &self.sets {
            if !stored.of(who).any(|ip| set.iter().any(|run| run.has(ip))) {
                let (container, ifname) = (&who.container, &who.ifname);
                return Err(Error::differs(format!(
                    "{container} has no lease for {ifname}"
                )));
            }
        }
        Ok(())
    }

    /// Whether each set has a free address.
    pub fn status(&self) -> Result<(), Error> {
        let stored = self.read()?;
        let free = |(number, set): (usize, &Vec<Run>)| next(set, &stored, number).map(drop);
        let free = self.sets.iter().enumerate().try_for_each(free);
        free.map_err(|e| Error::unavailable(e.message))
    }

    fn retain(&self, keep: impl Fn(&IpAddr, &String, &String) -> bool) -> Result<(), Error> {
        let mut stored = self.read()?;
        let before = stored.leases.len();
        stored
            .leases
            .retain(|ip, (container, ifname)| keep(ip, container, ifname));
        match stored.leases.len() == before {
            true => Ok(()),
            false => self.write(&stored),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.join("leases.json")
    }

    fn read(&self) -> Result<Stored, Error> {
        let file = self.file();
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Stored::default()),
            Err(e) => return Err(Error::io(format!("{}: {e}", file.display()))),
        };
        let wrong = |e| Error::io(format!("{} cannot be read as leases: {e}", file.display()));
        serde_json::from_slice(&text).map_err(wrong)
    }

    fn write(&self, stored: &Stored) -> Result<(), Error> {
        let new = self.folder.join("leases.new");
        let failed = |e: std::io::Error| Error::io(format!("{}: {e}", self.file().display()));
        let text = serde_json::to_vec(stored).map_err(|e| failed(e.into()))?;
        let mut file = open_own(&new).map_err(failed)?;
        file.set_len(0)
            .and_then(|()| file.write_all(&text))
            .and_then(|()| file.sync_all())
            .map_err(failed)?;
        std::fs::rename(&new, self.file()).map_err(failed)?;
        let folder = File::open(&self.folder).and_then(|folder| folder.sync_all());
        folder.map_err(failed)
    }
}

/// Opens a file to write, and makes it if there is none; for its owner alone, whoever has made it.
fn open_own(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    let file = options.mode(FILE_MODE).open(path)?;
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    Ok(file)
}

/// Runs of addresses, and routes.
fn checked(ranges: &Ranges) -> Result<(Vec<Vec<Run>>, Vec<Route>), Error> {
    let sets = ranges.ranges.iter();
    let sets: Vec<Vec<Run>> = sets
        .map(|set| set.iter().map(Run::new).collect::<Result<_, _>>())
        .collect::<Result<_, _>>()?;
    if sets.is_empty() || sets.iter().any(Vec::is_empty) {
        return Err(Error::config(
            "ipam: ranges has a set without a range, or none",
        ));
    }
    let route = |route: &crate::config::Route| {
        let to: Result<IpNet, _> = route.dst.parse();
        let to = to.map_err(|_| Error::config(format!("ipam: '{}' is no route", route.dst)))?;
        Ok(Route {
            to: to.trunc(),
            via: route.gw,
        })
    };
    let routes = ranges
        .routes
        .iter()
        .map(route)
        .collect::<Result<_, Error>>()?;
    Ok((sets, routes))
}

/// What the first container gets where nobody has had anything yet.
pub fn first_of(ranges: &Ranges) -> Result<Addresses, Error> {
    let (sets, routes) = checked(ranges)?;
    let stored = Stored::default();
    let ip = |(number, set): (usize, &Vec<Run>)| -> Result<Option<Ip>, Error> {
        let ip = next(set, &stored, number)?;
        Ok(set.iter().find(|run| run.has(ip)).map(|run| run.gives(ip)))
    };
    let ips = sets.iter().enumerate().map(ip);
    let ips: Vec<Option<Ip>> = ips.collect::<Result<_, Error>>()?;
    Ok(Addresses {
        ips: ips.into_iter().flatten().collect(),
        routes,
        ..Addresses::default()
    })
}

impl Stored {
    fn is_free(&self, ip: IpAddr, who: &Attachment) -> bool {
        let of = self.leases.get(&ip);
        of.is_none_or(|(container, ifname)| (container, ifname) == (&who.container, &who.ifname))
    }

    fn of<'a>(&'a self, who: &'a Attachment) -> impl Iterator<Item = IpAddr> + 'a {
        let mine = self.leases.iter().filter(|(_, (container, ifname))| {
            (container, ifname) == (&who.container, &who.ifname)
        });
        mine.map(|(ip, _)| *ip)
    }
}

/// The first free address of a set behind the one that was given last, and from the start again.
fn next(set: &[Run], stored: &Stored, number: usize) -> Result<IpAddr, Error> {
    let last = stored.last.get(&number).copied();
    let at = last.and_then(|ip| set.iter().position(|run| run.has(ip)));
    let (at, after) = match (at, last) {
        (Some(at), Some(ip)) => (at, number_of(ip).saturating_add(1)),
        _ => (0, 0),
    };
    let runs = (0..=set.len()).map(|step| (step, &set[(at + step) % set.len()]));
    for (step, run) in runs {
        let from = if step == 0 {
            run.first.max(after)
        } else {
            run.first
        };
        // At most as many are taken as there are leases: one more is enough to find a free one.
        let steps = u128::try_from(stored.leases.len())
            .unwrap_or(u128::MAX)
            .saturating_add(2);
        let end = run.last.min(from.saturating_add(steps));
        let mut numbers = from..=end;
        let free = numbers.find_map(|number| {
            let ip = run.address(number);
            (ip != run.gateway && !stored.leases.contains_key(&ip)).then_some(ip)
        });
        if let Some(ip) = free {
            return Ok(ip);
        }
    }
    let nets = set
        .iter()
        .map(|run| run.net.to_string())
        .collect::<Vec<_>>();
    Err(Error::no_address(format!(
        "there is no free address in {}",
        nets.join(", ")
    )))
}

impl Run {
    fn new(range: &Range) -> Result<Run, Error> {
        let wrong = |what: String| Error::config(format!("ipam: {what}"));
        let net: Result<IpNet, _> = range.subnet.parse();
        let net = net
            .map_err(|_| wrong(format!("'{}' is not a network", range.subnet)))?
            .trunc();
        let (low, high) = (number_of(net.network()), number_of(net.broadcast()));
        // The first is the network's own (IPv4) or any router's (IPv6: RFC 4291, section 2.6.1),
        // and the last of IPv4 everybody's.
        let small = high - low < 3;
        let first = if small { low } else { low + 1 };
        let last = if small || !net.addr().is_ipv4() {
            high
        } else {
            high - 1
        };
        let inside = |ip: IpAddr| match net.contains(&ip) {
            true => Ok(number_of(ip)),
            false => Err(wrong(format!("{ip} is not in {net}"))),
        };
        let mut run = Run {
            net,
            first: range
                .range_start
                .map(inside)
                .transpose()?
                .unwrap_or(first)
                .max(first),
            last: range
                .range_end
                .map(inside)
                .transpose()?
                .unwrap_or(last)
                .min(last),
            gateway: net.network(),
        };
        run.gateway = match range.gateway {
            Some(gateway) if gateway.is_ipv4() == net.addr().is_ipv4() => gateway,
            Some(gateway) => return Err(wrong(format!("{gateway} is no router of {net}"))),
            None => run.address(first),
        };
        match run.first <= run.last {
            true => Ok(run),
            false => Err(wrong(format!("the range in {net} is empty"))),
        }
    }

    fn has(&self, ip: IpAddr) -> bool {
        let number = number_of(ip);
        self.net.contains(&ip) && (self.first..=self.last).contains(&number) && ip != self.gateway
    }

    /// An address of it as a container has it.
    fn gives(&self, ip: IpAddr) -> Ip {
        let net = IpNet::new(ip, self.net.prefix_len());
        Ip {
            net: net.unwrap_or_else(|_| ip.into()),
            gateway: Some(self.gateway),
        }
    }

    fn address(&self, number: u128) -> IpAddr {
        match self.net {
            IpNet::V4(_) => Ipv4Addr::from(number as u32).into(),
            IpNet::V6(_) => Ipv6Addr::from(number).into(),
        }
    }
}

fn number_of(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(folder: &Path, text: &str) -> Ranges {
        let text = format!(
            r#"{{"type":"butterfly","dataDir":"{}","ranges":{text}}}"#,
            folder.display()
        );
        serde_json::from_str(&text).unwrap()
    }

    fn who(container: &str) -> Attachment {
        Attachment {
            container: container.to_owned(),
            ifname: "eth0".to_owned(),
        }
    }

    fn taken(ranges: &Ranges, container: &str, asked: &[&str]) -> Result<Vec<String>, Error> {
        let asked: Vec<IpAddr> = asked.iter().map(|ip| ip.parse().unwrap()).collect();
        let all = Leases::open(ranges, "net")
            .unwrap()
            .take(&who(container), &asked)?;
        Ok(all.ips.iter().map(|ip| ip.net.to_string()).collect())
    }

    #[test]
    fn addresses_are_given_in_turn_and_last() {
        let dir = tempfile::tempdir().unwrap();
        let two = ranges(
            dir.path(),
            r#"[[{"subnet":"10.0.0.0/29"}],[{"subnet":"fd00::/64"}]]"#,
        );
        assert_eq!(
            taken(&two, "a", &[]).unwrap(),
            ["10.0.0.2/29", "fd00::2/64"]
        );
        assert_eq!(
            taken(&two, "a", &[]).unwrap(),
            ["10.0.0.2/29", "fd00::2/64"],
            "the same"
        );
        assert_eq!(
            taken(&two, "b", &[]).unwrap(),
            ["10.0.0.3/29", "fd00::3/64"]
        );
        Leases::open(&two, "net")
            .unwrap()
            .give_back(&who("a"))
            .unwrap();
        // What was given back is given again last.
        for (container, ip) in [
            ("c", "10.0.0.4/29"),
            ("d", "10.0.0.5/29"),
            ("e", "10.0.0.6/29"),
        ] {
            assert_eq!(taken(&two, container, &[]).unwrap()[0], ip);
        }
        assert_eq!(taken(&two, "f", &[]).unwrap()[0], "10.0.0.2/29");
        let full = taken(&two, "g", &[]).unwrap_err();
        assert_eq!(
            (full.code, full.message.as_str()),
            (102, "there is no free address in 10.0.0.0/29")
        );
        assert!(Leases::open(&two, "net").unwrap().status().is_err());
        // Those of another network are others.
        assert!(Leases::open(&two, "other").unwrap().status().is_ok());
        Leases::open(&two, "net")
            .unwrap()
            .keep(|container, ifname| (container, ifname) == ("b", "eth0"))
            .unwrap();
        assert!(Leases::open(&two, "net").unwrap().check(&who("b")).is_ok());
        assert!(Leases::open(&two, "net").unwrap().check(&who("c")).is_err());
    }

    #[test]
    fn what_is_asked_for_is_given_if_it_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let one = ranges(
            dir.path(),
            r#"[[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.10","rangeEnd":"10.0.0.20","gateway":"10.0.0.15"}]]"#,
        );
        assert_eq!(taken(&one, "a", &["10.0.0.12"]).unwrap(), ["10.0.0.12/24"]);
        assert!(
            taken(&one, "b", &["10.0.0.12"])
                .unwrap_err()
                .message
                .contains("is taken")
        );
        for outside in ["10.0.0.9", "10.0.0.15", "10.1.0.1"] {
            let error = taken(&one, "b", &[outside]).unwrap_err();
            assert!(
                error.message.contains("is in no range"),
                "{outside}: {error:?}"
            );
        }
        assert!(
            Leases::open(&one, "net").unwrap().check(&who("b")).is_err(),
            "nothing is left"
        );
    }

    /// Both of the IPv4 addresses that are asked for of one set, and of two that have both.
    #[test]
    fn each_address_that_is_asked_for_is_given_or_refused_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let net = r#"[{"subnet":"10.0.0.0/24"}]"#;
        let one = ranges(dir.path(), &format!("[{net}]"));
        for asked in [
            ["10.0.0.5", "10.0.0.6"],
            ["10.0.0.6", "10.0.0.5"],
            ["10.0.0.5", "10.1.0.1"],
        ] {
            let error = taken(&one, "a", &asked).unwrap_err();
            assert_eq!(error.code, 102, "{error:?}");
            assert!(error.message.starts_with(asked[1]), "{error:?}");
            let held = Leases::open(&one, "net").unwrap().held(&who("a"));
            assert!(held.unwrap().is_empty(), "nothing is left");
        }
        let twice = ["10.0.0.5", "10.0.0.5"];
        assert_eq!(taken(&one, "a", &twice).unwrap(), ["10.0.0.5/24"]);
        // Sets that overlap give an address once, also to who has it already.
        let dir = tempfile::tempdir().unwrap();
        let two = ranges(dir.path(), &format!("[{net},{net}]"));
        for _ in 0..2 {
            assert_eq!(
                taken(&two, "a", &["10.0.0.5", "10.0.0.6"]).unwrap(),
                ["10.0.0.5/24", "10.0.0.6/24"]
            );
            assert_eq!(
                taken(&two, "b", &["10.0.0.9"]).unwrap(),
                ["10.0.0.9/24", "10.0.0.2/24"]
            );
            assert_eq!(
                taken(&two, "c", &[]).unwrap(),
                ["10.0.0.3/24", "10.0.0.4/24"]
            );
        }
    }

    /// Whatever the order: a set that could give two of them gives the one that no other set has.
    /// Who has them already gets them again.
    #[test]
    fn sets_that_overlap_give_all_that_they_can() {
        for asked in [
            ["10.0.0.5", "10.0.0.12", "10.0.0.200"],
            ["10.0.0.5", "10.0.0.200", "10.0.0.12"],
            ["10.0.0.12", "10.0.0.5", "10.0.0.200"],
            ["10.0.0.200", "10.0.0.12", "10.0.0.5"],
        ] {
            let dir = tempfile::tempdir().unwrap();
            let sets = [24, 28, 29].map(|len| format!(r#"[{{"subnet":"10.0.0.0/{len}"}}]"#));
            let three = ranges(dir.path(), &format!("[{}]", sets.join(",")));
            let given = ["10.0.0.200/24", "10.0.0.12/28", "10.0.0.5/29"];
            for asked in [&asked[..], &asked[..1], &[]] {
                assert_eq!(taken(&three, "a", asked).unwrap(), given, "{asked:?}");
            }
            let leases = || Leases::open(&three, "net").unwrap();
            assert_eq!(leases().held(&who("a")).unwrap().len(), 3, "and no others");
            leases().give_back(&who("a")).unwrap();
            let error = taken(&three, "a", &["10.0.0.200", "10.0.0.201"]).unwrap_err();
            assert!(
                error.message.starts_with("10.0.0.201 is one too many"),
                "{error:?}"
            );
        }
    }

    /// What is asked for, or had already, is out of turn.
    #[test]
    fn what_was_given_back_comes_last_whatever_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let one = ranges(dir.path(), r#"[[{"subnet":"10.0.0.0/29"}]]"#);
        assert_eq!(taken(&one, "a", &[]).unwrap(), ["10.0.0.2/29"]);
        assert_eq!(taken(&one, "b", &[]).unwrap(), ["10.0.0.3/29"]);
        let leases = || Leases::open(&one, "net").unwrap();
        leases().give_back(&who("b")).unwrap();
        assert_eq!(taken(&one, "a", &[]).unwrap(), ["10.0.0.2/29"], "again");
        assert_eq!(
            taken(&one, "asks", &["10.0.0.6"]).unwrap(),
            ["10.0.0.6/29"],
            "out of turn"
        );
        for (container, ip) in [
            ("c", "10.0.0.4/29"),
            ("d", "10.0.0.5/29"),
            ("e", "10.0.0.3/29"),
        ] {
            assert_eq!(taken(&one, container, &[]).unwrap(), [ip]);
        }
    }

    /// A lock needs no right to write: whoever opened the file when everybody could read it can
    /// hold it.
    #[test]
    fn who_keeps_the_lock_is_not_waited_for_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let one = ranges(dir.path(), r#"[[{"subnet":"10.0.0.0/24"}]]"#);
        taken(&one, "a", &[]).unwrap();
        let lock = File::open(dir.path().join("net/lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let patience = Duration::from_millis(50);
        let error = Leases::open_within(&one, "net", patience).err().unwrap();
        assert_eq!(error.code, 11, "{error:?}");
        assert!(
            error.message.contains("net/lock has been locked"),
            "{error:?}"
        );
        assert!(Leases::open(&one, "other").is_ok(), "it is one network's");
        drop(lock);
        assert_eq!(taken(&one, "b", &[]).unwrap(), ["10.0.0.3/24"]);
    }

    #[test]
    fn the_leases_are_for_their_owner_alone_also_where_they_were_everybodys() {
        let dir = tempfile::tempdir().unwrap();
        let around = ["lib", "lib/cni"].map(|name| dir.path().join(name));
        let one = ranges(&around[1], r#"[[{"subnet":"10.0.0.0/24"}]]"#);
        let folder = around[1].join("net");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let files = ["lock", "leases.json"].map(|name| folder.join(name));
        let are_own = |when: &str| {
            assert_eq!(mode(&folder), 0o700, "{when}");
            let modes = files.each_ref().map(|file| mode(file));
            assert_eq!(modes, [0o600, 0o600], "{when}");
        };
        taken(&one, "a", &[]).unwrap();
        are_own("made");
        // Others have folders beside it.
        let usual = dir.path().join("usual");
        std::fs::create_dir(&usual).unwrap();
        let usual = mode(&usual) & 0o755;
        assert_eq!(around.each_ref().map(|folder| mode(folder)), [usual; 2]);
        for (path, mode) in [(&folder, 0o755), (&files[0], 0o644), (&files[1], 0o644)] {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        // What a crash has left.
        let left = folder.join("leases.new");
        std::fs::write(
            &left,
            "half a file, which is longer than the whole one will be".repeat(9),
        )
        .unwrap();
        std::fs::set_permissions(&left, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(taken(&one, "b", &[]).unwrap(), ["10.0.0.3/24"]);
        are_own("mended");
    }

    #[test]
    fn ranges_that_cannot_be_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for text in [
            "[]",
            "[[]]",
            r#"[[{"subnet":"x"}]]"#,
            r#"[[{"subnet":"10.0.0.0/24","rangeStart":"10.1.0.1"}]]"#,
            r#"[[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.9","rangeEnd":"10.0.0.8"}]]"#,
            r#"[[{"subnet":"10.0.0.0/24","gateway":"fd00::1"}]]"#,
        ] {
            let error = Leases::open(&ranges(dir.path(), text), "net").err();
            assert!(error.is_some_and(|error| error.code == 7), "{text}");
        }
    }
}
