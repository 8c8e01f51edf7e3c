//! A VMM's TAP device, made so that nobody has it open but who may.
//!
//! A device is everybody's who may open `/dev/net/tun` until the kernel is told whose it is, and
//! one of several queues can be opened beside us. A queue stays with whoever has it, so that the
//! device is closed to others first, and then the kernel is asked how many queues there are. Used
//! by [`Veths`](crate::Veths).

use io::tap::{HeldTap, MachineTap, TapError};
use netlink::change::{Changes, Device};

/// Who is as quick as that, so many times, does nothing else: it is somebody's to find out who.
const TRIES: u32 = 16;

/// Makes the device, or gives one of that name that is `there`, and was open to nobody, its owner.
/// Who opens that meanwhile is its VMM, since the kernel knows its owner of before, and keeps it.
/// What somebody else has a queue of is removed, and another one made.
pub(crate) fn make(
    changes: &mut Changes,
    tap: &MachineTap,
    there: Option<&Device>,
) -> Result<(), String> {
    let name = &tap.name;
    let refused = |e: netlink::Error| format!("interface {name}: {e}");
    let mut there = there.map(|device| device.index);
    for _ in 0..TRIES {
        let held = match (HeldTap::open(tap, there.is_some()), there) {
            (Err(why), Some(index)) => {
                let device = changes.by_index(index).map_err(refused)?;
                if device.is_some_and(|device| device.carrier) {
                    return Ok(());
                }
                // With another number of queues.
                let TapError::Exists(_) = why else {
                    return Err(why.to_string());
                };
                changes.remove(index).map_err(refused)?;
                there = None;
                continue;
            }
            (held, _) => held.map_err(|e| e.to_string())?,
        };
        let device = changes.by_name(held.name()).map_err(refused)?;
        let device = device.ok_or_else(|| format!("interface {name}: it is gone already"))?;
        // Of a device of one queue, which we have, the kernel tells no number.
        let is_ours_alone = device.queues == tap.multi_queue.then_some(1);
        if is_ours_alone || there == Some(device.index) {
            return held.hand_over().map_err(|e| e.to_string());
        }
        changes.remove(device.index).map_err(refused)?;
        there = None;
    }
    Err(format!(
        "interface {name}: another process has opened it each of the {TRIES} times that it was \
         made, before its owner was set"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "bf-machine-tap";

    fn wanted(multi_queue: bool) -> MachineTap {
        MachineTap {
            name: NAME.to_owned(),
            uid: Some(4711),
            gid: Some(4712),
            multi_queue,
        }
    }

    /// In a network namespace of its own, which ends with its thread.
    fn elsewhere(run: fn(&mut Changes)) {
        let thread = std::thread::spawn(move || {
            if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
                return eprintln!("skipped: no network namespace: {error}");
            }
            if let Err(error) = std::fs::metadata("/dev/net/tun") {
                return eprintln!("skipped: /dev/net/tun: {error}");
            }
            run(&mut Changes::new().unwrap());
        });
        thread.join().unwrap();
    }

    /// Makes it, or takes up what is there, and tells its index. Nobody has a queue then.
    fn made(changes: &mut Changes, multi_queue: bool) -> u32 {
        let there = changes.by_name(NAME).unwrap();
        make(changes, &wanted(multi_queue), there.as_ref()).unwrap();
        let device = changes.by_name(NAME).unwrap().unwrap();
        assert_eq!(device.queues, multi_queue.then_some(0));
        device.index
    }

    #[test]
    fn who_has_a_queue_has_none_of_the_device_that_is_handed_over() {
        elsewhere(|changes| {
            let first = made(changes, true);
            let there = changes.by_name(NAME).unwrap();
            // Another one comes in its place, which is not ours.
            changes.remove(first).unwrap();
            let other = HeldTap::open(&wanted(true), true).unwrap();
            let others = changes.by_name(NAME).unwrap().unwrap().index;
            make(changes, &wanted(true), there.as_ref()).unwrap();
            let device = changes.by_name(NAME).unwrap().unwrap();
            assert_eq!(device.queues, Some(0));
            assert!(![first, others].contains(&device.index));
            drop(other);
            assert_eq!(made(changes, true), device.index, "nobody has it open");
        });
    }

    /// The accident: a VMM opens its device when that was just seen to be open to nobody.
    #[test]
    fn a_vmm_keeps_the_device_that_it_opens_meanwhile() {
        elsewhere(|changes| {
            for multi_queue in [true, false] {
                let index = made(changes, multi_queue);
                let there = changes.by_name(NAME).unwrap();
                assert!(there.as_ref().is_some_and(|device| !device.carrier));
                let machine = HeldTap::open(&wanted(multi_queue), true).unwrap();
                make(changes, &wanted(multi_queue), there.as_ref()).unwrap();
                let device = changes.by_name(NAME).unwrap().unwrap();
                assert_eq!((device.index, device.carrier), (index, true));
                assert_eq!(device.queues, multi_queue.then_some(1));
                drop(machine);
                assert_eq!(made(changes, multi_queue), index);
            }
        });
    }

    #[test]
    fn what_has_another_number_of_queues_is_made_anew() {
        elsewhere(|changes| {
            let one = made(changes, false);
            assert_eq!(made(changes, false), one);
            let several = made(changes, true);
            assert_ne!(several, one);
            assert_ne!(made(changes, false), several);
        });
    }

    #[test]
    fn the_name_of_another_interface_is_not_taken() {
        elsewhere(|changes| {
            made(changes, true);
            let refused = make(changes, &wanted(true), None).unwrap_err();
            assert!(
                refused.contains("an interface of that name exists"),
                "{refused}"
            );
            let mut others = changes.devices().unwrap();
            others.retain(|device| device.name.starts_with("tap"));
            assert!(others.is_empty(), "{others:?}");
        });
    }
}
