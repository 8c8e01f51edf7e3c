//! Programs at tc ingress of a veth: the trial, the chain, how they are attached, and what is left
//! of them when their process is killed.

use rustix::thread::{CapabilitySet, CapabilitySets};
use std::time::{Duration, Instant};

use butterfly_xdp as xdp;
use butterfly_xdp::{Feature, Interfaces, Mode, Program, Verdict, objects};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use testkit::netns::Namespace;

fn pass_both() -> Program {
    Program::load_both("pass", objects::PASS, objects::tc::PASS, |_| Ok(())).unwrap()
}

fn drop_both() -> Program {
    Program::load_both("drop", objects::DROP, objects::tc::DROP, |_| Ok(())).unwrap()
}

/// What a program's part at tc says of a frame.
fn at_tc(program: &Program) -> Verdict {
    let frame = [0x42; 64];
    xdp::run(program.tc().unwrap(), &frame, 0, 1)
        .unwrap()
        .verdict
}

#[test]
fn a_trial_at_tc_gives_the_verdict_and_the_whole_packet() {
    let frame: Vec<u8> = (0..100).collect();
    let (pass, drop) = (pass_both(), drop_both());
    let run = xdp::run(pass.tc().unwrap(), &frame, 0, 1).unwrap();
    assert_eq!((run.verdict, &run.frame), (Verdict::Pass, &frame));
    let run = xdp::run_segments(drop.tc().unwrap(), &frame, 0, 10, 1).unwrap();
    assert_eq!((run.verdict, &run.frame), (Verdict::Drop, &frame));
}

#[test]
fn tc_has_a_chain_of_its_own() {
    let namespace = Namespace::new().unwrap();
    namespace
        .ok("ip link add left type veth peer name right; ip link set left up")
        .unwrap();
    let a = namespace.ifindex("left").unwrap();
    let frame = [0x42; 64];
    namespace
        .inside(|| {
            let mut interfaces = Interfaces::new();
            let pass = || Program::load("pass", objects::PASS, |_| Ok(())).unwrap();
            let (uplink, balancer, router) = (pass(), pass_both(), drop_both());
            interfaces.add(a, Feature::Uplink, &uplink, None).unwrap();
            let (mode, _) = interfaces
                .add(a, Feature::Balancer, &balancer, Some(Mode::Tc))
                .unwrap();
            assert_eq!(mode, Mode::Tc);
            assert_eq!(at_tc(&balancer), Verdict::Pass, "nothing behind it");
            interfaces
                .add(a, Feature::Router, &router, Some(Mode::Tc))
                .unwrap();
            assert_eq!(at_tc(&balancer), Verdict::Drop);
            let in_xdp = xdp::run(&uplink, &frame, 0, 1).unwrap().verdict;
            assert_eq!(in_xdp, Verdict::Pass, "the router is behind it at tc only");
            assert_eq!(
                interfaces.features(a),
                [Feature::Uplink, Feature::Balancer, Feature::Router]
            );
            assert_eq!(interfaces.mode(a), Some(Mode::Native));

            let refused = interfaces.add(a, Feature::Probe, &pass(), Some(Mode::Tc));
            assert_eq!(
                refused.unwrap_err().to_string(),
                "program pass does not run at tc"
            );

            // One feature in both places.
            interfaces.add(a, Feature::Router, &router, None).unwrap();
            let in_xdp = || xdp::run(&uplink, &frame, 0, 1).unwrap().verdict;
            assert_eq!(in_xdp(), Verdict::Drop);
            interfaces.remove_from_tc(a, Feature::Router);
            assert_eq!((in_xdp(), at_tc(&balancer)), (Verdict::Drop, Verdict::Pass));
            interfaces.remove(a, Feature::Router);
            assert_eq!(in_xdp(), Verdict::Pass);
        })
        .unwrap();
}

/// `left` has 10.0.0.1; 10.0.0.2 is behind it, in a namespace of its own. What 10.0.0.1 answers to
/// a ping is what `left` lets in.
fn neighbours() -> (Namespace, Namespace, u32) {
    let (here, there) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    here.ok("ip link add left type veth peer name right")
        .unwrap();
    here.ok(&format!("ip link set right netns {}", there.pid()))
        .unwrap();
    here.ok("ip addr add 10.0.0.1/24 dev left; ip link set left up")
        .unwrap();
    there
        .ok("ip addr add 10.0.0.2/24 dev right; ip link set right up")
        .unwrap();
    let left = here.ifindex("left").unwrap();
    (here, there, left)
}

fn answers(there: &Namespace) -> bool {
    there.ok("ping -qc 1 -W 1 10.0.0.1").is_ok()
}

/// A program leaves when the last descriptor of it is closed; a test that starts a process at that
/// moment still has it for a while.
fn until(there: &Namespace, answering: bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while answers(there) != answering {
        assert!(Instant::now() < deadline, "answering: {}", !answering);
    }
}

#[test]
fn a_program_at_tc_is_attached_while_its_owner_lives() {
    let (here, there, left) = neighbours();
    assert!(answers(&there));
    here.inside(|| {
        let drop_all = drop_both();
        let program = drop_all.tc().unwrap();
        let attachment = xdp::attach(program, left, Some(Mode::Tc)).unwrap();
        assert_eq!(attachment.mode(), Mode::Tc);
        until(&there, false);
        drop(attachment);
        until(&there, true);

        // A kernel before 6.6 attaches like this.
        let mut attachment = xdp::attach_by_filter(program, left).unwrap();
        until(&there, false);
        attachment
            .replace(pass_both().tc().unwrap().fd().unwrap())
            .unwrap();
        until(&there, true);
        drop(attachment);
        let filters = here.ok("tc filter show dev left ingress").unwrap();
        assert_eq!(filters.trim(), "");
    })
    .unwrap();
}

/// Run by the test below in a process of its own, which is killed.
#[test]
#[ignore = "half of a test: the other half starts it"]
fn somebody_who_is_killed() {
    let Ok(left) = std::env::var("LEFT") else {
        return;
    };
    let drop_all = drop_both();
    let _attachment = xdp::attach_by_filter(&drop_all, left.parse().unwrap()).unwrap();
    std::thread::sleep(Duration::from_secs(20));
}

#[test]
fn a_filter_that_is_left_behind_does_nothing() {
    let (here, there, left) = neighbours();
    let mut process = here
        .inside(|| {
            std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "somebody_who_is_killed"])
                .env("LEFT", left.to_string())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .unwrap();
    until(&there, false);
    process.kill().unwrap();
    process.wait().unwrap();
    until(&there, true);
    let filters = || here.ok("tc filter show dev left ingress").unwrap();
    assert!(filters().contains("bpf"), "{}", filters());

    // The next one has its point, with the rights that a daemon has which is not root.
    here.inside(|| {
        let rights = CapabilitySet::NET_ADMIN | CapabilitySet::BPF | CapabilitySet::PERFMON;
        let only = CapabilitySets {
            effective: rights,
            permitted: rights,
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, only).unwrap();
        let next = drop_both();
        let attachment = xdp::attach_by_filter(&next, left).unwrap();
        until(&there, false);
        drop(attachment);
        assert_eq!(filters().trim(), "");
    })
    .unwrap();
}

/// Whoever is there already would not see what is forwarded: neither way of attaching takes an
/// interface from him, nor is he replaced.
#[test]
fn an_interface_that_somebody_has_at_tc_is_refused() {
    let (here, there, left) = neighbours();
    let refused = |what: &str| {
        let next = pass_both();
        for tried in [
            xdp::attach(&next, left, Some(Mode::Tc)),
            xdp::attach_by_filter(&next, left),
        ] {
            let said = tried.expect_err("it is taken").to_string();
            let start = format!(
                "interface {left} has a program or filter at tc ingress already, which would not \
                 see what is forwarded: {what}"
            );
            assert!(said.starts_with(&start), "{said}");
        }
    };
    here.inside(|| {
        let drop_all = drop_both();
        let first = xdp::attach(&drop_all, left, Some(Mode::Tc)).unwrap();
        refused("drop (id ");
        drop(first);
        until(&there, true);

        // As before Linux 6.6: the filter of a process that lives.
        let first = xdp::attach_by_filter(&drop_all, left).unwrap();
        until(&there, false);
        refused("pass (id ");
        assert!(!answers(&there), "the first one is still there");
        drop(first);
        until(&there, true);

        // Somebody else's, of another kind.
        here.ok("tc qdisc replace dev left clsact").unwrap();
        let police = "tc filter add dev left ingress matchall action drop";
        if here.succeeds(police).unwrap() {
            refused("a filter (matchall)");
            here.ok("tc filter del dev left ingress").unwrap();
        } else {
            println!("skipped: this kernel has no filters of the kind matchall");
        }
        // What looks at packets that leave is in nobody's way.
        xdp::attach(&drop_all, left, Some(Mode::Tc)).unwrap();
    })
    .unwrap();
}

/// What is not used is not loaded: no program in the kernel has the maps yet.
#[test]
fn a_part_is_loaded_at_its_first_use() {
    let both = Program::load_both("probe", objects::PROBE, objects::tc::PROBE, |_| Ok(())).unwrap();
    let map = both.map("probes").unwrap();
    let map = libbpf_rs::MapCore::info(&map).unwrap().info.id;
    let loaded = || {
        let options = ProgInfoQueryOptions::default().include_map_ids(true);
        let all = ProgInfoIter::with_query_opts(options);
        all.filter(|program| program.map_ids.contains(&map)).count()
    };
    assert_eq!(loaded(), 0);
    let frame = [0x42; 64];
    xdp::run(both.tc().unwrap(), &frame, 0, 1).unwrap();
    assert_eq!(loaded(), 1);
    xdp::run(&both, &frame, 0, 1).unwrap();
    xdp::run(both.tc().unwrap(), &frame, 0, 1).unwrap();
    assert_eq!(loaded(), 2);
}
