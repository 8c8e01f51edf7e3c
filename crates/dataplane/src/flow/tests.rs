//! The table under several workers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use super::*;
use crate::drop_reason::DropReason;
use crate::ids::{PortSlot, PortUid};

const TCP: u8 = 6;

fn key(number: u32) -> Key {
    let end = |uid, host: u32, port| Party {
        uid: PortUid(uid),
        address: std::net::Ipv4Addr::from_bits(0x0a00_0000 | host).into(),
        port,
    };
    Key::between(
        TCP,
        false,
        (end(1, 1 + number / 1000, 1024), end(2, 2, number as u16)),
    )
    .0
}

fn new_flow(flows: &Flows, number: u32, share: u32) -> NewFlow {
    let key = key(number);
    NewFlow {
        key,
        hash: flows.hash(&key),
        initiator: 0,
        owner: PortSlot(number % 4),
        peer: PortSlot(7),
        share,
        state: FlowState::Established,
        timeout_secs: 60,
        epoch: 1,
        now_ms: 0,
        now_secs: 0,
    }
}

#[test]
fn an_entry_is_not_used_again_while_another_worker_may_read_it() {
    let table = FlowTable::shared(1, 1, 3);
    let [mut first, mut second, mut third] = [0, 1, 2].map(|me| Flows::new(table.clone(), me));
    let id = first.insert(&new_flow(&first, 1, 9)).unwrap().unwrap();
    assert_eq!(second.find(&key(1), second.hash(&key(1))), Some(id));
    // The third sleeps and holds up nobody.
    third.sleep();
    // Taken out by one that has not made it: its maker has to come by.
    second.remove(id, FlowEnd::Idle);
    assert_eq!(
        (table.len(), table.find(&key(1), table.hash(&key(1)))),
        (0, None)
    );
    first.sweep(1, 0, |_| false);
    for turn in 0..3 {
        assert!(
            first.insert(&new_flow(&first, 2, 9)).is_err(),
            "turn {turn}"
        );
        first.begin_turn();
        if turn > 0 {
            second.begin_turn();
        }
    }
    assert_eq!(first.insert(&new_flow(&first, 2, 9)), Ok(Some(id)));
    third.wake();
    assert_eq!(third.find(&key(2), third.hash(&key(2))), Some(id));
}

#[test]
fn a_state_changes_once_and_a_flow_goes_once() {
    let table = FlowTable::shared(8, 1, 2);
    let [mut mine, mut other] = [0, 1].map(|me| Flows::new(table.clone(), me));
    let id = mine.insert(&new_flow(&mine, 1, 9)).unwrap().unwrap();
    assert!(other.set_state(id, FlowState::Established, FlowState::FinWait, 120));
    assert!(!mine.set_state(id, FlowState::Established, FlowState::Close, 10));
    assert_eq!(table.entry(id).state(), FlowState::FinWait);
    mine.remove(id, FlowEnd::Idle);
    other.remove(id, FlowEnd::Idle);
    assert_eq!(table.len(), 0);
}

/// What one worker has made goes for what another one begins, as its own does: transient flows
/// first, the oldest of all workers; then those that were idle for a minute; none that is in use.
#[test]
fn a_share_that_one_worker_has_filled_has_room_for_another_ones_flows() {
    use FlowState::{Established, SynSent, TimeWait};
    let table = FlowTable::shared(64, 1, 2);
    let [mut first, mut second] = [0, 1].map(|me| Flows::new(table.clone(), me));
    let begin = |flows: &mut Flows, number, state, now_ms| {
        let new = NewFlow {
            owner: PortSlot(0),
            state,
            timeout_secs: 432_000,
            now_ms,
            ..new_flow(flows, number, 4)
        };
        flows.insert(&new).map(Option::unwrap)
    };
    let there = |numbers: std::ops::Range<u32>| -> Vec<u32> {
        let is = |number: &u32| {
            table
                .find(&key(*number), table.hash(&key(*number)))
                .is_some()
        };
        numbers.filter(is).collect()
    };
    for (number, state) in [
        (0, Established),
        (1, TimeWait),
        (2, SynSent),
        (3, Established),
    ] {
        begin(&mut first, number, state, 10 * number).unwrap();
    }
    let ids = [10, 11, 12].map(|number| {
        assert!(
            second
                .would_take(PortSlot(0), PortSlot(7), 4, 10 * number)
                .is_ok()
        );
        begin(&mut second, number, SynSent, 10 * number).unwrap()
    });
    // The other worker's two transient ones, and then the older one of its own.
    assert_eq!(there(0..13), [0, 3, 11, 12]);
    assert_eq!((first.evicted(), second.evicted()), (0, 3));
    assert_eq!(second.next_asked(), Some((PortSlot(0), 1)));
    assert_eq!(second.next_asked(), None);
    first.put_right(PortSlot(0), 120);

    for id in &ids[1..] {
        assert!(second.set_state(*id, SynSent, Established, 432_000));
    }
    assert_eq!(
        second.would_take(PortSlot(0), PortSlot(7), 4, 130),
        Err(DropReason::FlowShareFull)
    );
    assert_eq!(
        begin(&mut second, 13, SynSent, 130),
        Err(DropReason::FlowShareFull)
    );
    assert_eq!(there(0..14), [0, 3, 11, 12]);
    // The next turn: of the other worker's idle ones the one that was idle longest.
    while second.next_asked().is_some() {}
    begin(&mut second, 14, SynSent, 60_040).unwrap();
    assert_eq!(there(0..15), [3, 11, 12, 14]);
}

/// Those that are in use stand before one that is not, more than are looked at at once: the worker
/// that has them puts that right when it is asked to.
#[test]
fn another_workers_idle_flow_is_found_behind_many_in_use() {
    const FLOWS: u32 = 40;
    let table = FlowTable::shared(256, 1, 2);
    let [mut first, mut second] = [0, 1].map(|me| Flows::new(table.clone(), me));
    let begin = |flows: &mut Flows, number, now_ms| {
        let new = NewFlow {
            owner: PortSlot(0),
            timeout_secs: 432_000,
            now_ms,
            ..new_flow(flows, number, FLOWS)
        };
        flows.insert(&new).map(Option::unwrap)
    };
    let ids: Vec<_> = (0..FLOWS)
        .map(|number| begin(&mut first, number, 0).unwrap())
        .collect();
    let now_ms = 100_000;
    for id in &ids[..FLOWS as usize - 1] {
        table.entry(*id).sides[0].touch(now_ms);
    }
    let mut refused = 0;
    while begin(&mut second, 100, now_ms).is_err() {
        // Once in a turn the other worker is asked.
        assert!(begin(&mut second, 100, now_ms).is_err());
        assert_eq!(second.next_asked(), Some((PortSlot(0), 1)));
        assert_eq!(second.next_asked(), None);
        first.put_right(PortSlot(0), now_ms);
        refused += 1;
        assert!(refused < 4);
    }
    let last = key(FLOWS - 1);
    assert_eq!(table.find(&last, table.hash(&last)), None);
    assert_eq!(table.len(), FLOWS);
}

/// However often others look at its flows, and however long it does not come by.
#[test]
fn a_worker_is_asked_once_until_it_has_put_its_lists_right() {
    let table = FlowTable::shared(256, 1, 3);
    let [mut first, mut second, mut third] = [0, 1, 2].map(|me| Flows::new(table.clone(), me));
    let begin = |flows: &mut Flows, number| {
        let new = NewFlow {
            owner: PortSlot(0),
            state: FlowState::SynSent,
            now_ms: number,
            ..new_flow(flows, number, 4)
        };
        flows.insert(&new).unwrap().unwrap()
    };
    for number in 0..4 {
        begin(&mut first, number);
    }
    begin(&mut second, 10);
    assert_eq!(second.next_asked(), Some((PortSlot(0), 1)));
    for (flows, number) in [(&mut second, 11), (&mut third, 12)] {
        begin(flows, number);
        assert_eq!(flows.next_asked(), Some((PortSlot(0), 0)), "{number}");
        assert_eq!(flows.next_asked(), None);
    }
    // The three that were taken out are before the one that is left.
    assert_eq!(first.put_right(PortSlot(0), 13), 3);
    begin(&mut third, 14);
    assert_eq!(third.next_asked(), Some((PortSlot(0), 1)));
    // There was no room for that in the ring.
    third.was_not_asked(PortSlot(0), 0);
    begin(&mut second, 15);
    assert_eq!(second.next_asked(), Some((PortSlot(0), 1)));
}

/// Its entry is free when all workers have let go of it.
#[test]
fn a_new_flow_costs_one_flow_where_no_entry_is_free() {
    let table = FlowTable::shared(4, 1, 2);
    let [mut first, mut second] = [0, 1].map(|me| Flows::new(table.clone(), me));
    let begin = |flows: &mut Flows, number| {
        let new = NewFlow {
            owner: PortSlot(0),
            state: FlowState::SynSent,
            ..new_flow(flows, number, 4)
        };
        flows.insert(&new).map(Option::unwrap)
    };
    for number in 0..4 {
        begin(&mut first, number).unwrap();
    }
    assert_eq!(begin(&mut first, 4), Err(DropReason::FlowShareFull));
    assert_eq!((table.len(), first.evicted()), (3, 1));
    for flows in [&mut first, &mut second] {
        flows.begin_turn();
    }
    first.begin_turn();
    begin(&mut first, 4).unwrap();
    assert_eq!((table.len(), first.evicted()), (4, 1));
}

/// The worker that has the list does not come by. What is before the flows that can go is passed
/// over once in a turn and not for each flow that begins, and those that begin it are charged.
#[test]
fn a_long_list_of_what_is_out_is_passed_over_once_in_a_turn() {
    const OUT: u32 = 100;
    let table = FlowTable::shared(1024, 1, 2);
    let [mut first, mut second] = [0, 1].map(|me| Flows::new(table.clone(), me));
    let begin = |flows: &mut Flows, number, share, now_ms| {
        let new = NewFlow {
            owner: PortSlot(0),
            state: FlowState::SynSent,
            now_ms,
            ..new_flow(flows, number, share)
        };
        flows.insert(&new).unwrap().unwrap()
    };
    let ids: Vec<_> = (0..2 * OUT)
        .map(|number| begin(&mut first, number, 2 * OUT, 0))
        .collect();
    for id in &ids[..OUT as usize] {
        second.remove(*id, FlowEnd::Idle);
    }
    assert_eq!((table.len(), second.looked), (OUT, 0));
    let mut looked = 0;
    for turn in 0..3u32 {
        // One that is behind them, and then those that this worker has made itself.
        looked += u64::from(1 + OUT + turn);
        for number in 0..64 {
            let number = 1000 + 64 * turn + number;
            begin(&mut second, number, OUT, number);
            assert_eq!(second.looked, looked, "flow {number}");
        }
        let left = ids.iter().filter(|id| !table.entry(**id).is_out());
        assert_eq!(left.count() as u32, OUT - 1 - turn);
        let asked = u32::from(turn == 0);
        assert_eq!(second.next_asked(), Some((PortSlot(0), asked)));
        assert_eq!(second.next_asked(), None);
        second.begin_turn();
    }
    assert_eq!((table.len(), first.looked), (OUT, 0));
}

/// Three workers look up, make and take out flows of one set of keys for a while. What one has
/// found stays the flow that it was until its turn is over; in the end nothing is lost and nothing
/// is left over.
#[test]
fn workers_do_not_pull_flows_from_under_each_other() {
    workers_at_once(512);
}

/// And where they do, for room for their own, all the same.
#[test]
fn workers_that_give_up_each_others_flows_lose_none() {
    assert!(workers_at_once(48) > 0);
}

/// Each of four NICs may have so many flows. Gives how many were given up.
fn workers_at_once(share: u32) -> u64 {
    const MAX: u32 = 512;
    const KEYS: u32 = 700;
    let table = FlowTable::shared(MAX, 3, 3);
    let done = AtomicBool::new(false);
    let mut workers = std::thread::scope(|scope| {
        let done = &done;
        let spawned: Vec<_> = (0..3)
            .map(|me| {
                let table = Arc::clone(&table);
                scope.spawn(move || {
                    let mut flows = Flows::new(table, me);
                    let mut random = 0x9e37_79b9_u32.wrapping_add(me as u32);
                    let mut found = 0;
                    for step in 0..60_000u32 {
                        flows.begin_turn();
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let number = (random >> 16) % KEYS;
                        let wanted = key(number);
                        match flows.find(&wanted, flows.hash(&wanted)) {
                            Some(id) => {
                                found += 1;
                                if random & 3 == 0 {
                                    flows.remove(id, FlowEnd::Idle);
                                }
                                flows.entry(id).sides[me & 1].count(1, 64);
                                assert_eq!(flows.entry(id).key(), wanted);
                            }
                            None => {
                                let mut new = new_flow(&flows, number, share);
                                if number.is_multiple_of(3) {
                                    new.state = FlowState::OneWay;
                                }
                                let _ = flows.insert(&new);
                            }
                        }
                        flows.sweep(4, 0, |_| false);
                        while flows.next_asked().is_some() {}
                        flows.put_right(PortSlot(step % 4), 0);
                        if step % 64 == 0 {
                            flows.sleep();
                            std::thread::yield_now();
                            flows.wake();
                        }
                    }
                    flows.sleep();
                    assert!(found > 1000, "{found}");
                    done.store(true, Ordering::Relaxed);
                    flows
                })
            })
            .collect();
        spawned
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert!(done.load(Ordering::Relaxed));
    let alive = |table: &FlowTable| {
        let found = |number: &u32| {
            table
                .find(&key(*number), table.hash(&key(*number)))
                .is_some()
        };
        (0..KEYS).filter(found).count()
    };
    // Two that were made at once for one key count as two until the second one is over.
    assert!(alive(&table) <= table.len() as usize);
    for worker in &mut workers {
        worker.wake();
        for slot in 0..4 {
            while worker.remove_owned(PortSlot(slot), None) {}
        }
        worker.sweep(MAX, 0, |_| true);
    }
    assert_eq!((table.len(), alive(&table)), (0, 0));
    for _ in 0..4 {
        workers.iter_mut().for_each(Flows::begin_turn);
    }
    // Every entry has come back; what two workers keep for themselves the third does not get.
    let kept = 2 * (MAX / 12 + 32);
    let first = &mut workers[0];
    let again = (1000..2000).filter(|number| {
        let new = new_flow(first, *number, MAX + 1);
        matches!(first.insert(&new), Ok(Some(_)))
    });
    assert!(again.count() as u32 >= MAX - kept);
    workers.iter().map(Flows::evicted).sum()
}

/// Both look for the one that was idle longest, and that is one that the first has made.
#[test]
fn workers_that_give_up_one_flow_at_once_begin_no_more_than_the_share() {
    const SHARE: u32 = 4096;
    const WORKERS: u32 = 2;
    let table = FlowTable::shared(4 * SHARE, 1, WORKERS as usize);
    let begin = |flows: &mut Flows, number, now_ms| {
        let new = NewFlow {
            owner: PortSlot(0),
            state: FlowState::SynSent,
            now_ms,
            ..new_flow(flows, number, SHARE)
        };
        flows.begin_turn();
        let _ = flows.insert(&new);
        while flows.next_asked().is_some() {}
    };
    let mut workers = [0, 1].map(|me| Flows::new(table.clone(), me));
    for number in 0..SHARE {
        begin(&mut workers[0], number, 0);
    }
    assert_eq!(table.len(), SHARE);
    let start = Barrier::new(WORKERS as usize);
    std::thread::scope(|scope| {
        for (flows, first) in workers.iter_mut().zip([SHARE, 2 * SHARE]) {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for number in first..first + SHARE {
                    begin(flows, number, 1000);
                }
                flows.sleep();
            });
        }
    });
    // Each may have begun one while the other had given up one and not yet begun its own.
    let most = SHARE + WORKERS;
    assert!(table.len() <= most, "{} flows", table.len());
    assert_eq!(table.begun(0).load(Ordering::Relaxed), table.len());
}

/// However many NICs have all that they can get, by one worker, others find room for a few flows
/// each, by another one.
#[test]
fn the_last_of_a_table_is_for_nics_that_have_few() {
    const MAX: u32 = 65_536;
    const SHARE: u32 = MAX / 4;
    const FEW: u32 = 32;
    let table = FlowTable::shared(MAX, 1, 2);
    let [mut first, mut second] = [0, 1].map(|me| Flows::new(table.clone(), me));
    let mut number = 0;
    let mut begin = |flows: &mut Flows, nic| {
        number += 1;
        let new = NewFlow {
            owner: PortSlot(nic),
            ..new_flow(flows, number, SHARE)
        };
        flows.insert(&new).map(Option::unwrap)
    };
    for greedy in 100..200 {
        while begin(&mut first, greedy).is_ok() {}
    }
    assert!(table.len() > MAX - MAX / 16, "{} flows", table.len());
    for nic in [1, 2, 3] {
        for flow in 0..FEW {
            let room = second.would_take(PortSlot(nic), PortSlot(7), SHARE, 0);
            assert_eq!(room, Ok(()), "flow {flow} of NIC {nic}");
            begin(&mut second, nic).unwrap();
        }
        assert_eq!(begin(&mut second, nic), Err(DropReason::FlowTableFull));
    }
}

/// What one worker has taken for its next flows is not what the other one's last ones are to find.
#[test]
fn of_a_small_table_no_worker_takes_more_than_it_keeps() {
    const MAX: u32 = 64;
    let table = FlowTable::shared(MAX, 1, 2);
    let [mut first, mut second] = [0, 1].map(|me| Flows::new(table.clone(), me));
    for number in 0..MAX {
        let flows = match number <= MAX / 2 {
            true => &mut first,
            false => &mut second,
        };
        let new = new_flow(flows, number, MAX);
        assert!(matches!(flows.insert(&new), Ok(Some(_))), "flow {number}");
    }
    assert_eq!(table.len(), MAX);
}

/// A NIC that keeps all of its share in use has what is looked at for one to give up counted.
#[test]
fn what_is_looked_at_in_vain_is_counted() {
    let table = FlowTable::shared(1024, 1, 1);
    let mut flows = Flows::new(table, 0);
    let begin = |flows: &mut Flows, number| {
        let new = NewFlow {
            owner: PortSlot(0),
            ..new_flow(flows, number, 100)
        };
        flows.insert(&new)
    };
    for number in 0..100 {
        begin(&mut flows, number).unwrap();
    }
    assert_eq!(flows.looked, 0);
    for refused in 1..=3 {
        assert_eq!(begin(&mut flows, 100), Err(DropReason::FlowShareFull));
        assert_eq!(flows.looked, refused * 16);
    }
}

/// A table that is full goes on taking new flows for old ones, however often.
#[test]
fn a_full_table_takes_new_flows_for_the_oldest() {
    const MAX: u32 = 4096;
    let table = FlowTable::shared(MAX, 1, 1);
    let mut flows = Flows::new(table.clone(), 0);
    let mut refused = 0;
    for number in 0..16 * MAX {
        let mut new = new_flow(&flows, number, 2 * MAX);
        new.owner = PortSlot(0);
        new.state = FlowState::OneWay;
        match flows.insert(&new) {
            Ok(Some(_)) => {}
            // All six buckets of a hash may be full: the table's seed is another one each time.
            Err(DropReason::FlowTableFull) => refused += 1,
            other => panic!("{number}: {other:?}"),
        }
        assert!(table.len() <= MAX);
    }
    assert!(refused <= 16 * MAX / 1_000, "{refused} found no place");
    let stored = u64::from(16 * MAX - refused);
    assert_eq!(flows.evicted(), stored - u64::from(table.len()));
    assert!(table.len() >= MAX - refused);
}

/// A flow is as idle as the side that has sent last. One of which only one side ever sends lives
/// for months while it does, and no longer than its timeout when it does not, wherever the clock
/// has come to.
#[test]
fn a_silent_side_neither_ends_a_flow_nor_keeps_it() {
    const DAY_MS: u32 = 86_400_000;
    let table = FlowTable::shared(8, 1, 1);
    let mut flows = Flows::new(table.clone(), 0);
    let id = flows.insert(&new_flow(&flows, 1, 9)).unwrap().unwrap();
    let entry = table.entry(id);
    let mut now_ms = 0u32;
    for half_day in 0..240 {
        now_ms = now_ms.wrapping_add(DAY_MS / 2);
        entry.sides[0].touch(now_ms);
        flows.sweep(1, now_ms, |_| false);
        assert_eq!(table.len(), 1, "after {half_day} half days");
        let later = now_ms.wrapping_add(59_999);
        assert!(entry.is_fresh(0, later) && entry.is_fresh(1, later));
        let over = now_ms.wrapping_add(60_000);
        assert!(
            entry.expired(over) && !entry.is_fresh(0, over),
            "after {half_day} half days"
        );
    }
    // A worker whose clock is a moment behind.
    assert_eq!(entry.idle_ms(now_ms.wrapping_sub(5)), 0);
    flows.sweep(1, now_ms.wrapping_add(60_000), |_| false);
    assert_eq!(table.len(), 0);
}
