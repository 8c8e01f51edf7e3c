//! What is stored where one thing of it cannot be made: in which order the others are, and what is
//! gone back to when the disk fails.

use super::*;

use std::sync::atomic::Ordering;

use control::model::{AccessList, Group, Interface, Mode, Nic, NicId};
use control::{Features, InterfaceStatus};
use health::{Check, CheckError};

use crate::logging::LogControl;
use crate::nowhere::{Disk, Nowhere};

/// The features of a host without an interface `gone0`.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Access lists are refused.
    refuses: bool,
    /// There is an access list.
    judges: bool,
    /// Interfaces that are taken.
    taken: BTreeSet<String>,
    /// Those that were taken while there was no list.
    unjudged: Vec<String>,
}

impl Features for Told {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn admit(&self, _: &Check) -> Result<(), CheckError> {
        Ok(())
    }

    fn balance(&mut self, _: &::balancer::Services) -> Result<(), String> {
        Ok(())
    }

    fn judge(&mut self, acl: Option<&AccessList>) -> Result<(), String> {
        let mut state = self.0.lock().unwrap();
        if state.refuses && acl.is_some() {
            return Err("there is a list already".into());
        }
        state.judges = acl.is_some();
        Ok(())
    }

    fn take(
        &mut self,
        feature: Feature,
        name: &str,
        _: Option<Mode>,
    ) -> Result<InterfaceStatus, String> {
        if name == "gone0" {
            return Err("there is no interface gone0".into());
        }
        let mut state = self.0.lock().unwrap();
        if !state.judges {
            state.unjudged.push(name.to_owned());
        }
        state.taken.insert(name.to_owned());
        drop(state);
        self.interface(feature, name)?.ok_or_else(String::new)
    }

    fn interface(&self, _: Feature, name: &str) -> Result<Option<InterfaceStatus>, String> {
        let is_taken = self.0.lock().unwrap().taken.contains(name);
        Ok(is_taken.then(|| InterfaceStatus {
            name: name.to_owned(),
            mode: Some(Mode::Native),
            why: String::new(),
            asked: None,
        }))
    }

    fn give_back(&mut self, _: Feature, name: &str) -> Result<(), String> {
        self.0.lock().unwrap().taken.remove(name);
        Ok(())
    }

    fn restore(
        &mut self,
        feature: Feature,
        name: &str,
        before: Option<InterfaceStatus>,
    ) -> Result<(), String> {
        match before {
            Some(_) => Ok(()),
            None => self.give_back(feature, name),
        }
    }
}

fn list(rule: &str) -> Arc<AccessList> {
    Arc::new(AccessList {
        rules: vec![rule.parse().unwrap()],
        default_allows: false,
    })
}

/// A controller of such a host, which has nothing yet.
fn controller(told: &Told) -> Controller {
    Controller::new(
        HostSettings::default(),
        Box::new(Nowhere),
        Arc::new(Nowhere),
    )
    .with_features(Box::new(told.clone()))
}

/// A store with a list and interfaces of the router.
fn stored(disk: &Disk, names: &[&str]) -> Arc<Stored> {
    let interfaces = names.iter().map(|name| Interface::new(name, None).unwrap());
    let config = Config {
        interfaces: [(Feature::Router, interfaces.collect())].into(),
        router_acl: Some(Some(list("allow proto tcp"))),
        ..Config::default()
    };
    let store = disk.store();
    write(&store, &config);
    Stored::over(store, Changes::default())
}

fn write(store: &Store, config: &Config) {
    let signed = Signed {
        author: "root",
        unix_secs: 0,
        of_part: false,
    };
    let puts = objects(config).into_iter();
    let puts = puts.map(|((kind, key), value)| Put {
        kind,
        key,
        value: Some(value),
    });
    let written = store.write(signed, &puts.collect::<Vec<_>>()).unwrap();
    store.sync(written).unwrap();
}

#[test]
fn what_judges_is_made_before_what_is_judged() {
    for names in [
        &["eth0", "gone0"][..],
        &["gone0", "late0"],
        &["eth0", "gone0", "late0"],
    ] {
        let told = Told::default();
        let mut controller = controller(&told);
        let stored = stored(&Disk::default(), names);
        let loaded = stored.load(&mut controller, None).unwrap();
        assert!(!loaded.whole);
        assert_eq!(loaded.objects, names.len(), "all but one, and the list");
        let state = told.0.lock().unwrap();
        assert!(state.judges);
        assert_eq!(state.unjudged, [""; 0], "{names:?}");
        let there = names.iter().filter(|name| **name != "gone0");
        let there: Vec<&str> = there.copied().collect();
        assert!(state.taken.iter().eq(there), "{:?}", state.taken);
    }
    // So it is with all others: groups before NICs, who is out there before who hears them.
    let mut kinds = Kind::ALL;
    kinds.sort_by_key(|kind| turn(*kind));
    assert_eq!(
        kinds,
        [
            Kind::Group,
            Kind::RouterAcl,
            Kind::Network,
            Kind::Host,
            Kind::Binding,
            Kind::Nic,
            Kind::Service,
            Kind::BalancerInterface,
            Kind::RouterInterface,
            Kind::Uplink,
        ]
    );
}

/// What could not be made there does not matter: it is not handed over.
#[test]
fn a_store_that_lacks_what_a_daemon_has_declared_is_not_its_own() {
    let told = Told::default();
    let mut controller = controller(&told);
    let disk = Disk::default();
    let before = stored(&disk, &["eth0", "gone0"]);
    before.load(&mut controller, None).unwrap();
    let packed = before.packed(&controller).unwrap();
    before.give_way().unwrap();
    Stored::over(disk.store(), Changes::default())
        .has_all(&packed)
        .unwrap();
    let refused = |other: Arc<Stored>| other.has_all(&packed).unwrap_err();
    let empty = Stored::over(Disk::default().store(), Changes::default());
    assert_eq!(
        refused(empty),
        "the store the disk is not that of the daemon before: it lacks 2 of its objects; restart \
         the daemon instead"
    );
    // The list is there.
    let other = refused(stored(&Disk::default(), &["late0"]));
    assert!(other.contains("lacks 1 of its objects"), "{other}");
    // And here another one.
    let changed = stored(&Disk::default(), &["eth0"]);
    let another = Config {
        router_acl: Some(Some(list("allow proto udp"))),
        ..Config::default()
    };
    write(&changed.store, &another);
    assert!(refused(changed).contains("lacks 1 of its objects"));
}

/// Of a list that was not made, and was taken out of the store or declared anew, the disk keeps
/// neither: the list is stored again, and all else that was lost is undone as well.
#[test]
fn what_could_not_be_made_is_not_tried_when_the_disk_fails() {
    let (disk, told) = (Disk::default(), Told::default());
    // There may be another list, of an option.
    let refuse = |refuses| told.0.lock().unwrap().refuses = refuses;
    refuse(true);
    let stored = stored(&disk, &["eth0"]);
    let mut controller = controller(&told);
    assert!(!stored.load(&mut controller, None).unwrap().whole);
    let controller = controller.with_journal(stored.journal());
    let operations = Operations::new(controller, LogControl::detached(), || 0);
    let operations = Arc::new(operations.with_store(Some(stored)));
    for wanted in [None, Some(list("allow proto udp"))] {
        let changing = operations.changing();
        {
            let mut control = operations.control_by(Author::Client("somebody".into()));
            let lost = Group::new("lost".parse().unwrap());
            control.put_group(lost).unwrap();
            refuse(false);
            let config = Config {
                router_acl: Some(wanted.clone()),
                ..control.config()
            };
            control.apply(config, false).unwrap();
            refuse(true);
            assert_eq!(control.config().router_acl, Some(wanted));
            assert_eq!(control.unmade().router_acl, None);
        }
        disk.failing.store(1, Ordering::Relaxed);
        let why = changing.settle().unwrap_err();
        assert!(matches!(why, Error::Journal(_)), "{why}");
        let control = operations.control();
        assert_eq!(control.group_ids().len(), 0);
        assert_eq!(control.config().router_acl, Some(None));
        assert_eq!(control.interfaces(Feature::Router).len(), 1);
        assert_eq!(
            control.unmade().router_acl,
            Some(Some(list("allow proto tcp")))
        );
    }
}

/// The disk keeps neither its deletion nor another mode of it: it is the option's as before, and a
/// rollback leaves it.
#[test]
fn an_option_s_interface_stays_the_option_s_when_the_disk_fails() {
    let (disk, told) = (Disk::default(), Told::default());
    let stored = Stored::over(disk.store(), Changes::default());
    let controller = controller(&told).with_journal(stored.journal());
    let operations = Operations::new(controller, LogControl::detached(), || 0);
    let operations = Arc::new(operations.with_store(Some(stored.clone())));
    let somebody = || operations.control_by(Author::Client("somebody".into()));
    let eth0 = |mode| Interface::new("eth0", mode).unwrap();
    let named = operations
        .control()
        .add_interface(Feature::Router, eth0(None));
    named.unwrap();
    let changing = operations.changing();
    let group = Group::new("kept".parse().unwrap());
    somebody().put_group(group).unwrap();
    changing.settle().unwrap();
    let revision = stored.newest().unwrap();
    let is_there = || {
        let control = operations.control();
        let known = control.interfaces(Feature::Router);
        known.iter().map(|one| &*one.name).eq(["eth0"])
    };
    for deletes in [true, false] {
        let changing = operations.changing();
        let fails = || disk.failing.store(1, Ordering::Relaxed);
        match deletes {
            // It is synced before it is in force.
            true => {
                fails();
                let refused = somebody().delete_interface(Feature::Router, "eth0");
                refused.unwrap_err();
            }
            false => {
                let other = eth0(Some(Mode::Generic));
                let named = somebody().add_interface(Feature::Router, other);
                named.unwrap();
                fails();
            }
        }
        let settled = changing.settle();
        assert!(deletes || settled.is_err(), "it is lost");
        disk.failing.store(0, Ordering::Relaxed);
        assert!(is_there(), "{deletes}");
        let back = stored.roll_back(&mut somebody(), revision, false);
        back.unwrap();
        assert!(is_there(), "{deletes}: behind a rollback");
    }
    // One whose deletion is durable is no option's any more.
    let changing = operations.changing();
    let deleted = somebody().delete_interface(Feature::Router, "eth0");
    assert_eq!(deleted, Ok(true));
    changing.settle().unwrap();
    assert!(!is_there());
}

/// Those of options that a daemon has declared before it has its store, in another's place.
#[test]
fn what_options_name_of_what_is_handed_over_is_the_options() {
    let (disk, told) = (Disk::default(), Told::default());
    let stored = stored(&disk, &["eth0"]);
    let mut controller = controller(&told);
    stored.load(&mut controller, None).unwrap();
    let one = Interface::new("eth1", None).unwrap();
    controller.add_interface(Feature::Router, one).unwrap();
    stored.are_of_options(&[(Feature::Router, "eth1".into())]);
    let mut controller = controller.with_journal(stored.journal());
    let revision = stored.newest().unwrap();
    controller.set_author(Author::Client("somebody".into()));
    let group = Group::new("more".parse().unwrap());
    controller.put_group(group).unwrap();
    stored.roll_back(&mut controller, revision, false).unwrap();
    let names = controller.interfaces(Feature::Router).iter();
    let names: Vec<&str> = names.map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["eth0", "eth1"]);
    let packed = stored.packed(&controller).unwrap();
    let stored = unpacked(&packed).unwrap();
    let is_stored = |name: &str| stored.contains_key(&(Kind::RouterInterface, name.into()));
    assert!(is_stored("eth0") && !is_stored("eth1"));
}

/// It was stored by a version that did not say which network's NIC a sniffer hears. It has been
/// said since, and another network has the id by now.
#[test]
fn a_rollback_leaves_a_sniffer_the_network_that_it_hears() {
    let (disk, told) = (Disk::default(), Told::default());
    let stored = Stored::over(disk.store(), Changes::default());
    let mut controller = controller(&told).with_journal(stored.journal());
    controller.set_author(Author::Client("somebody".into()));
    let vni = |id| wire::Vni::new(id).unwrap();
    let nic = |id: &str, last: u8, network| {
        let mac = wire::Mac([0x52, 0x54, 0, 0x12, 0x34, last]);
        Nic::new(NicId::new(id).unwrap(), mac, vni(network))
    };
    let sniffer = |sniff_vni| Nic {
        sniff_target: Some(NicId::new("web-1").unwrap()),
        sniff_vni,
        ..nic("s", 1, 42)
    };
    let hears = |controller: &Controller| {
        let status = controller.nic(&NicId::new("s").unwrap()).unwrap();
        status.nic.sniff_vni
    };
    controller.put_nic(sniffer(None)).unwrap();
    let revision = stored.newest().unwrap();
    controller.put_nic(sniffer(Some(vni(42)))).unwrap();
    controller.put_nic(nic("web-1", 2, 7)).unwrap();
    stored.roll_back(&mut controller, revision, false).unwrap();
    assert_eq!(hears(&controller), Some(vni(42)));
    // Nothing was said of it before: it is its own network's, where the target is in none.
    let deleted = controller.delete_nic(&NicId::new("s").unwrap());
    deleted.unwrap();
    stored.roll_back(&mut controller, revision, false).unwrap();
    assert_eq!(hears(&controller), Some(vni(42)));
}
