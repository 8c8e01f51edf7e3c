//! Interfaces that options name, when another program takes the daemon's place: they have a program
//! all the time, stay the options', and one that cannot be had keeps no other one.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use api::v1::balancer_client::BalancerClient;
use sys::bpf::{TcSide, tc_programs};
use tonic::Code;
use xdp::{Mode, Program, objects};

use super::upgrade::upgrade;
use super::*;

/// Cables of a test's own: what their ends here are called.
struct Cables(Vec<String>);

impl Cables {
    /// `None`, having said why, where they cannot be had.
    fn lay(name: &str, count: usize) -> Option<Cables> {
        let mut cables = Cables(Vec::new());
        for number in 1..=count {
            let end = format!("{name}{number}");
            if !lay(&end) {
                println!("skipped: no interface can be made");
                return None;
            }
            cables.0.push(end);
        }
        Some(cables)
    }

    fn names<const N: usize>(&self) -> [&str; N] {
        let names = self.0.iter().map(String::as_str);
        names.collect::<Vec<_>>().try_into().unwrap()
    }
}

impl Drop for Cables {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&format!("link del {name}"));
        }
    }
}

fn lay(name: &str) -> bool {
    ip(&format!("link add {name} type veth peer name {name}p"))
        && ip(&format!("link set {name} up"))
        && ip(&format!("link set {name}p up"))
}

fn ip(line: &str) -> bool {
    let done = Command::new("ip").args(line.split(' ')).status();
    done.is_ok_and(|status| status.success())
}

fn index(name: &str) -> u32 {
    let index = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"));
    index.unwrap().trim().parse().unwrap()
}

/// The programs at tc ingress, by their numbers.
fn programs(name: &str) -> Vec<u32> {
    tc_programs(index(name), TcSide::Ingress).unwrap()
}

/// Settings that have the load balancer and the router work on these.
fn settings(balanced: &[&str], routed: &[&str]) -> String {
    let mut text = "[general]\n".to_owned();
    for (key, names) in [
        ("balance-interfaces", balanced),
        ("router-interfaces", routed),
    ] {
        if !names.is_empty() {
            text += &format!("{key} = {}\n", names.join(", "));
        }
    }
    text
}

/// A daemon with a store, a keeper and a file of settings.
struct Host {
    daemon: Option<Daemon>,
    args: Vec<String>,
    settings: PathBuf,
    store: tempfile::TempDir,
}

impl Host {
    fn start(settings: &str) -> Host {
        let store = tempfile::tempdir().unwrap();
        let path = |name: &str| store.path().join(name).to_str().unwrap().to_owned();
        let args = ["-c", "--store", "--keeper"].into_iter();
        let args = args.zip(["settings", "state", "keeper"]);
        let args = args.flat_map(|(option, name)| [option.to_owned(), path(name)]);
        let mut host = Host {
            daemon: None,
            args: args.collect(),
            settings: store.path().join("settings"),
            store,
        };
        host.set(settings);
        host.daemon = Some(Daemon::start(&host.args()));
        host
    }

    fn args(&self) -> Vec<&str> {
        self.args.iter().map(String::as_str).collect()
    }

    fn set(&self, settings: &str) {
        std::fs::write(&self.settings, settings).unwrap();
    }

    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    async fn upgrade(&mut self) {
        let daemon = self.daemon.as_mut().unwrap();
        let done = upgrade(daemon, "").await;
        done.unwrap_or_else(|why| panic!("{why}: {}", self.daemon().log()));
    }

    async fn balancer(&self) -> BalancerClient<Channel> {
        BalancerClient::new(self.daemon().channel().await)
    }

    /// The interfaces that the load balancer and the router are attached to, by name.
    async fn attached(&self) -> [Vec<String>; 2] {
        let request = v1::ListBalancerInterfacesRequest {};
        let balanced = within(self.balancer().await.list_balancer_interfaces(request)).await;
        let request = v1::ListRouterInterfacesRequest {};
        let routed = within(self.daemon().router().await.list_router_interfaces(request)).await;
        let balanced = balanced.unwrap().into_inner().interfaces.into_iter();
        let routed = routed.unwrap().into_inner().interfaces.into_iter();
        let is = |mode: v1::XdpMode| mode != v1::XdpMode::Unspecified;
        let balanced = balanced.filter(|one| is(one.mode())).map(|one| one.name);
        let routed = routed.filter(|one| is(one.mode())).map(|one| one.name);
        let mut both = [balanced.collect(), routed.collect()];
        both.iter_mut()
            .for_each(|names: &mut Vec<String>| names.sort());
        both
    }

    /// Waits until they are attached to these.
    async fn until_attached(&self, wanted: [Vec<String>; 2]) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let attached = self.attached().await;
            if attached == wanted {
                return;
            }
            let log = self.daemon().log();
            assert!(Instant::now() < deadline, "still {attached:?}: {log}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn config(&self) -> v1::Config {
        let mut client = self.daemon().v1().await;
        let config = within(client.get_config(v1::GetConfigRequest {})).await;
        config.unwrap().into_inner()
    }

    async fn put_group(&self, id: &str) {
        let group = v1::Group {
            id: id.into(),
            ..Default::default()
        };
        let put = v1::PutGroupRequest { group: Some(group) };
        within(self.daemon().v1().await.put_group(put))
            .await
            .unwrap();
    }

    async fn roll_back(&self, revision: u64) {
        let back = v1::RollbackRequest {
            revision,
            dry_run: false,
        };
        within(self.daemon().v1().await.rollback(back))
            .await
            .unwrap();
    }
}

/// The keeper is not to outlive the test.
impl Drop for Host {
    fn drop(&mut self) {
        drop(self.daemon.take());
        end_keepers(self.store.path());
    }
}

fn names<const N: usize>(names: [&str; N]) -> Vec<String> {
    let mut names = names.map(str::to_owned).to_vec();
    names.sort();
    names
}

/// Says so, and is true, where programs at tc have no links (before Linux 6.6): none is handed
/// over.
fn has_no_links(name: &str) -> bool {
    let has_none = programs(name).is_empty();
    if has_none {
        println!("skipped: this kernel has no links of programs at tc");
    }
    has_none
}

/// Looks at interfaces all the time; gives those that it ever saw without a program.
struct Watch(Arc<AtomicBool>, JoinHandle<BTreeSet<String>>);

impl Watch {
    fn begin(names: Vec<String>) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let look = move || {
            let mut bare = BTreeSet::new();
            while !stopped.load(Ordering::Relaxed) {
                let now = names.iter().filter(|name| programs(name).is_empty());
                bare.extend(now.cloned());
                std::thread::yield_now();
            }
            bare
        };
        Watch(stop, std::thread::spawn(look))
    }

    fn end(self) -> BTreeSet<String> {
        self.0.store(true, Ordering::Relaxed);
        self.1.join().unwrap()
    }
}

/// Again and again, to the same settings: each goes on, and stays the option's. Then to others: one
/// that they name no more is left, and one more is taken.
#[tokio::test(flavor = "multi_thread")]
async fn interfaces_of_options_have_a_program_all_the_time() {
    let Some(cables) = Cables::lay("bfopta", 4) else {
        return;
    };
    let [one, two, both, more] = cables.names();
    let mut host = Host::start(&settings(&[one, both], &[two, both]));
    let attached = [names([one, both]), names([two, both])];
    assert_eq!(host.attached().await, attached);
    if has_no_links(one) {
        return;
    }
    host.put_group("first").await;
    let watch = Watch::begin(names([one, two, both]));
    let mut before = [one, two, both].map(programs);
    for turn in 0..3 {
        host.upgrade().await;
        // The daemon before has ended.
        assert_eq!(host.attached().await, attached, "turn {turn}");
        let now = [one, two, both].map(programs);
        for (before, now) in before.iter().zip(&now) {
            assert_eq!((before.len(), now.len()), (1, 1), "turn {turn}");
            assert_ne!(before, now, "turn {turn}: it is the next program's");
        }
        before = now;
    }
    assert_eq!(watch.end(), BTreeSet::new(), "they were without a program");
    host.put_group("second").await;
    host.roll_back(1).await;
    assert_eq!(host.attached().await, attached, "they are the options'");

    host.set(&settings(&[both], &[two, both, more]));
    let watch = Watch::begin(names([two, both]));
    host.upgrade().await;
    let attached = [names([both]), names([two, both, more])];
    assert_eq!(host.attached().await, attached);
    wait_for("nothing to run where nothing is to", PATIENCE, || {
        Ok(programs(one).is_empty().then_some(()))
    })
    .unwrap();
    assert_eq!(watch.end(), BTreeSet::new(), "they were without a program");
    let log = host.daemon().log();
    assert!(!log.contains("ERROR"), "{log}");
    // The store has none of them.
    host.set("[general]\n");
    let daemon = host.daemon.take().unwrap();
    host.daemon = Some(daemon.killed_and_started_again(&host.args()));
    assert_eq!(host.attached().await, [names([]), names([])]);
}

/// Somebody else's program is on an interface that the settings name by now: others are taken, it
/// is told, and it is taken when it can be.
#[tokio::test(flavor = "multi_thread")]
async fn an_interface_that_cannot_be_had_in_an_upgrade_is_wanted_and_told() {
    let Some(cables) = Cables::lay("bfoptb", 3) else {
        return;
    };
    let [old, taken, free] = cables.names();
    let mut host = Host::start(&settings(&[old], &[]));
    if has_no_links(old) {
        return;
    }
    let both = (objects::PASS, objects::tc::PASS);
    let pass = Program::load_both("pass", both.0, both.1, |_| Ok(())).unwrap();
    let occupant = xdp::attach(&pass, index(taken), Some(Mode::Tc)).unwrap();
    host.set(&settings(&[taken, old, free], &[taken]));
    host.upgrade().await;
    assert_eq!(host.attached().await, [names([old, free]), vec![]]);
    let log = host.daemon().log();
    let said = format!("ERROR --balance-interface: interface {taken}");
    assert!(log.contains(&said), "{log}");
    assert!(log.contains("ERROR --router: "), "{log}");
    let mut client = host.daemon().v1().await;
    let status = within(client.get_status(v1::GetStatusRequest::default())).await;
    let warnings = status.unwrap().into_inner().warnings;
    for feature in ["the load balancer", "the router"] {
        let told = format!("{feature} is not attached to {taken}: ");
        let is_told = warnings.iter().any(|warning| warning.starts_with(&told));
        assert!(is_told, "{told}{warnings:?}");
    }
    // It is looked at again when interfaces change.
    drop(occupant);
    assert!(ip(&format!("link set {taken} down")) && ip(&format!("link set {taken} up")));
    let attached = [names([old, taken, free]), names([taken])];
    host.until_attached(attached).await;
    let status = within(client.get_status(v1::GetStatusRequest::default())).await;
    let warnings = status.unwrap().into_inner().warnings.join("\n");
    assert!(!warnings.contains("is not attached"), "{warnings}");
}

/// What is attached anew is declared as before: an option's is not stored, and the mode that was
/// asked for stays. One that has gone is wanted still, and taken when it comes.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_attached_anew_is_declared_as_before() {
    let Some(cables) = Cables::lay("bfoptc", 2) else {
        return;
    };
    let [one, two] = cables.names();
    let mut host = Host::start(&settings(&[one], &[]));
    host.put_group("first").await;
    let add = v1::AddBalancerInterfaceRequest {
        name: two.into(),
        mode: v1::XdpMode::Generic.into(),
    };
    let mut balancer = host.balancer().await;
    within(balancer.add_balancer_interface(add)).await.unwrap();
    let before = host.config().await;
    let mut again = async |name: &str| {
        let request = v1::ReattachBalancerInterfaceRequest { name: name.into() };
        within(balancer.reattach_balancer_interface(request)).await
    };
    again(one).await.unwrap();
    let attached = again(two).await.unwrap().into_inner();
    assert_eq!(attached.mode(), v1::XdpMode::Generic);
    assert_eq!(host.config().await, before);
    let refused = again("bfoptc9").await.unwrap_err();
    let why = "nothing is balanced on interface 'bfoptc9'";
    assert_eq!((refused.code(), refused.message()), (Code::NotFound, why));

    assert!(ip(&format!("link del {two}")));
    let refused = again(two).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let says = "it stays among those that are balanced on";
    assert!(refused.message().contains(says), "{refused}");
    assert_eq!(host.config().await, before);
    assert!(lay(two));
    host.until_attached([names([one, two]), vec![]]).await;
    let list = v1::ListBalancerInterfacesRequest {};
    let mut balancer = host.balancer().await;
    let listed = within(balancer.list_balancer_interfaces(list)).await;
    let listed = listed.unwrap().into_inner().interfaces;
    let its = listed.iter().find(|interface| interface.name == two);
    assert_eq!(its.unwrap().mode(), v1::XdpMode::Generic);

    host.roll_back(1).await;
    host.until_attached([names([one]), vec![]]).await;
    host.set("[general]\n");
    let daemon = host.daemon.take().unwrap();
    host.daemon = Some(daemon.killed_and_started_again(&host.args()));
    assert_eq!(
        host.attached().await,
        [names([]), names([])],
        "nothing is stored"
    );
}
