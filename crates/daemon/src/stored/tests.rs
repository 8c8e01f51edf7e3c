//! In which order what is stored is made, where one thing of it cannot be.

use super::*;

use control::model::{AccessList, Interface, Mode};
use control::{Features, InterfaceStatus};
use health::{Check, CheckError};

use crate::nowhere::{Disk, Nowhere};

/// The features of a host without an interface `gone0`.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
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
        self.0.lock().unwrap().judges = acl.is_some();
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

/// A store with a list and interfaces of the router.
fn stored(names: &[&str]) -> Arc<Stored> {
    let interfaces = names.iter().map(|name| Interface::new(name, None).unwrap());
    let list = AccessList {
        rules: vec!["allow proto tcp".parse().unwrap()],
        default_allows: false,
    };
    let config = Config {
        interfaces: [(Feature::Router, interfaces.collect())].into(),
        router_acl: Some(Some(Arc::new(list))),
        ..Config::default()
    };
    let store = Disk::default().store();
    let signed = Signed {
        author: "root",
        unix_secs: 0,
        of_part: false,
    };
    let puts = objects(&config).into_iter();
    let puts = puts.map(|((kind, key), value)| Put {
        kind,
        key,
        value: Some(value),
    });
    store.write(signed, &puts.collect::<Vec<_>>()).unwrap();
    Stored::over(store, Changes::default())
}

#[test]
fn what_judges_is_made_before_what_is_judged() {
    for names in [
        &["eth0", "gone0"][..],
        &["gone0", "late0"],
        &["eth0", "gone0", "late0"],
    ] {
        let told = Told::default();
        let mut controller = Controller::new(
            HostSettings::default(),
            Box::new(Nowhere),
            Arc::new(Nowhere),
        )
        .with_features(Box::new(told.clone()));
        let loaded = stored(names).load(&mut controller, None).unwrap();
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
