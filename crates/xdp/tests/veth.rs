//! Programs on a veth of a namespace of their own: what is attached, in which mode, and what is
//! handed on to whom.

use butterfly_xdp as xdp;
use butterfly_xdp::{
    AttachPoint, Error, Feature, Interfaces, LinkLayers, Mode, Program, Table, Verdict, objects,
};
use testkit::netns::Namespace;

/// A namespace with a veth pair `left`, `right`, both up.
fn veth() -> (Namespace, u32, u32) {
    let namespace = Namespace::new().unwrap();
    namespace
        .ok("ip link add left type veth peer name right")
        .unwrap();
    namespace
        .ok("ip link set left up && ip link set right up")
        .unwrap();
    let (a, b) = (
        namespace.ifindex("left").unwrap(),
        namespace.ifindex("right").unwrap(),
    );
    (namespace, a, b)
}

fn pass() -> Program {
    Program::load("pass", objects::PASS, |_| Ok(())).unwrap()
}

fn transmit() -> Program {
    Program::load("transmit", objects::TRANSMIT, |_| Ok(())).unwrap()
}

#[test]
fn a_trial_gives_the_verdict_and_the_whole_packet() {
    let frame: Vec<u8> = (0..100).collect();
    let run = xdp::run(&pass(), &frame, 0, 1).unwrap();
    assert_eq!((run.verdict, &run.frame), (Verdict::Pass, &frame));
    let run = xdp::run(&transmit(), &frame, 0, 10).unwrap();
    assert_eq!((run.verdict, &run.frame), (Verdict::Transmit, &frame));
    let refused = xdp::run(&pass(), &frame[..5], 0, 1).unwrap_err();
    assert!(
        refused.to_string().starts_with("cannot try a program"),
        "{refused}"
    );
}

#[test]
fn a_program_is_attached_while_its_owner_lives() {
    let (namespace, a, _) = veth();
    let shown = || namespace.ok("ip link show left").unwrap();
    namespace
        .inside(|| {
            let program = pass();

            let attachment = xdp::attach(&program, a, None).unwrap();
            assert_eq!(
                (attachment.mode(), attachment.why_generic()),
                (Mode::Native, None)
            );
            assert!(shown().contains(" xdp "), "{}", shown());

            let Err(Error::Occupied { ifindex, name, id }) = xdp::attach(&transmit(), a, None)
            else {
                panic!("a second program has to be refused");
            };
            assert_eq!((ifindex, name.as_str()), (a, "pass"));
            assert_ne!(id, 0);

            drop(attachment);
            assert!(!shown().contains("xdp"), "{}", shown());
            let generic = xdp::attach(&program, a, Some(Mode::Generic)).unwrap();
            assert_eq!(generic.mode(), Mode::Generic);
            assert!(shown().contains(" xdpgeneric "), "{}", shown());

            let nowhere = xdp::attach(&program, 9999, None).unwrap_err();
            assert_eq!(nowhere.to_string(), "there is no interface 9999");
        })
        .unwrap();
}

#[test]
fn features_on_one_interface_hand_on_what_is_not_theirs() {
    let (namespace, a, b) = veth();
    let shown = |device: &str| namespace.ok(&format!("ip -d link show {device}")).unwrap();
    let frame = [0x42; 64];
    namespace
        .inside(|| {
            let mut interfaces = Interfaces::new();
            let (uplink, balancer, router) = (pass(), pass(), drop_all());
            interfaces.add(a, Feature::Router, &router, None).unwrap();
            let verdict = |program| xdp::run(program, &frame, 0, 1).unwrap().verdict;
            assert_eq!(verdict(&uplink), Verdict::Pass, "it is in no chain yet");

            // It comes before the router: it is attached now, and hands on to it.
            let before = shown("left");
            interfaces.add(a, Feature::Uplink, &uplink, None).unwrap();
            assert_ne!(before, shown("left"), "another program is attached");
            assert_eq!(verdict(&uplink), Verdict::Drop);
            interfaces
                .add(b, Feature::Balancer, &balancer, None)
                .unwrap();
            assert_eq!(
                (verdict(&uplink), verdict(&balancer)),
                (Verdict::Drop, Verdict::Drop)
            );
            assert_eq!(interfaces.features(a), [Feature::Uplink, Feature::Router]);

            let again = interfaces
                .add(a, Feature::Uplink, &uplink, None)
                .unwrap_err();
            assert_eq!(
                again.to_string(),
                format!("interface {a} has the uplink already")
            );

            interfaces.remove(a, Feature::Router);
            assert_eq!(
                (verdict(&uplink), verdict(&balancer)),
                (Verdict::Pass, Verdict::Pass)
            );
            interfaces.remove(a, Feature::Uplink);
            assert!(!shown("left").contains("xdp"), "{}", shown("left"));
            assert!(shown("right").contains("xdp"), "{}", shown("right"));
        })
        .unwrap();
    assert!(!shown("right").contains("xdp"), "{}", shown("right"));
}

/// One that a second interface refuses is taken back from the first one, and can be added to both
/// later.
#[test]
fn a_feature_that_was_added_goes_and_the_others_stay() {
    let (namespace, a, b) = veth();
    namespace
        .inside(|| {
            let mut interfaces = Interfaces::new();
            let (balancer, probe) = (pass(), pass());
            let points = [a, b].map(|ifindex| {
                let layers = LinkLayers {
                    ifindex,
                    ..LinkLayers::default()
                };
                let members = [(Feature::Balancer, &balancer)];
                AttachPoint::take(&layers, &mut interfaces, &members, None).unwrap()
            });
            interfaces.add(b, Feature::Probe, &probe, None).unwrap();
            let add = |interfaces: &mut Interfaces, at: usize| {
                points[at].add(interfaces, Feature::Probe, &probe)
            };
            add(&mut interfaces, 0).unwrap();
            let refused = add(&mut interfaces, 1).unwrap_err();
            assert!(matches!(refused, Error::Twice { ifindex, .. } if ifindex == b));
            points[0].remove(&mut interfaces, Feature::Probe);
            assert_eq!(interfaces.features(a), [Feature::Balancer]);
            points[1].remove(&mut interfaces, Feature::Probe);
            add(&mut interfaces, 0).unwrap();
            add(&mut interfaces, 1).unwrap();
        })
        .unwrap();
}

/// The end of a chain that can be told from the kernel: it drops.
fn drop_all() -> Program {
    Program::load("drop", objects::DROP, |_| Ok(())).unwrap()
}

#[test]
fn a_table_has_the_shape_of_its_map() {
    let program = pass();
    let wrong: Result<Table<u64, u32>, Error> = program.table("chain");
    assert_eq!(
        wrong.unwrap_err().to_string(),
        "map chain has keys of 4 and values of 4 bytes, opened with 8 and 4"
    );
    let missing: Result<Table<u32, u32>, Error> = program.table("nothing");
    assert_eq!(
        missing.unwrap_err().to_string(),
        "program pass has no map nothing"
    );
}

/// Who takes another process's place knows which features that one ran where.
#[test]
fn what_runs_where_is_handed_over() {
    let (namespace, a, b) = veth();
    namespace
        .inside(|| {
            let (first, second) = (pass(), pass());
            let mut before = Interfaces::new();
            let generic = Some(Mode::Generic);
            before.add(a, Feature::Balancer, &first, generic).unwrap();
            before.add(b, Feature::Balancer, &first, generic).unwrap();
            before.add(b, Feature::Router, &second, generic).unwrap();
            let items = before.hand_over().unwrap();
            let next = Interfaces::handed(items);
            assert!(next.waits_at(a) && next.waits_at(b));
            let ran = |at| {
                let features = [Feature::Balancer, Feature::Router];
                features.map(|feature| next.was_handed(at, feature))
            };
            assert_eq!(ran(a), [Some(true), Some(false)]);
            assert_eq!(ran(b), [Some(true); 2]);
            // A version of before has not said it.
            let mut items = before.hand_over().unwrap();
            items.retain(|name, _| !name.starts_with("features "));
            let next = Interfaces::handed(items);
            assert!(next.waits_at(a));
            assert_eq!(next.was_handed(a, Feature::Balancer), None);
        })
        .unwrap();
}
