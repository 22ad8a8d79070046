use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use proptest::prelude::*;

use super::*;

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

fn late() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn ask(bytes: u64) -> Ask {
    Ask::new("test", bytes)
}

/// Waits until `n` asks wait.
fn until_waiting(budget: &MemoryBudget, n: usize) {
    while lock(&budget.inner.ledger).queue.len() < n {
        thread::yield_now();
    }
}

/// Starts waiters one after the other, each with its ask, then frees `held`; the order in which
/// they were served, one at a time.
fn order_of(budget: &MemoryBudget, held: Reservation, asks: &[Ask]) -> Vec<usize> {
    let served = parking_lot::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (at, &ask) in asks.iter().enumerate() {
            let served = &served;
            scope.spawn(move || {
                let got = budget.reserve(ask, late()).unwrap();
                served.lock().push(at);
                drop(got);
            });
            until_waiting(budget, at + 1);
        }
        drop(held);
    });
    served.into_inner()
}

#[test]
fn each_refusal_says_why_and_with_which_numbers() {
    let budget = MemoryBudget::new(100);
    let never = ReserveError::NeverFits { asked: 101, total: 100 };
    assert_eq!(budget.try_reserve(ask(101)).unwrap_err(), never);
    assert_eq!(budget.reserve(ask(101), late()).unwrap_err(), never);
    assert_eq!(budget.try_reserve(ask(0)).unwrap_err(), ReserveError::Zero);
    let mut held = budget.try_reserve(ask(60)).unwrap();
    let full = ReserveError::Full { asked: 41, free: 40 };
    assert_eq!(budget.try_reserve(ask(41)).unwrap_err(), full);
    assert_eq!(held.try_grow(41).unwrap_err(), never, "held and more count together");
    let refused = budget.reserve(ask(41), soon()).unwrap_err();
    assert!(matches!(refused, ReserveError::Deadline { asked: 41, free: 40, .. }), "{refused}");
    budget.close();
    assert_eq!(budget.try_reserve(ask(1)).unwrap_err(), ReserveError::Closed);
    assert_eq!(held.release(60), 60, "what is held still comes back");
    assert_eq!(budget.usage(), Usage { total: 100, ..Usage::default() });
}

#[test]
fn dropping_gives_all_back_and_wakes_the_next() {
    let budget = MemoryBudget::new(10);
    let held = budget.try_reserve(ask(10)).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| budget.reserve(ask(7), late()).map(|got| got.bytes()));
        until_waiting(&budget, 1);
        assert_eq!(budget.usage().waiting, 7);
        drop(held);
        assert_eq!(waiter.join().unwrap(), Ok(7));
    });
    assert_eq!(budget.usage(), Usage { total: 10, ..Usage::default() });
}

#[test]
fn those_of_one_priority_are_served_in_order_of_arrival() {
    let budget = MemoryBudget::new(10);
    let held = budget.try_reserve(ask(10)).unwrap();
    assert_eq!(order_of(&budget, held, &[ask(10), ask(10), ask(10)]), [0, 1, 2]);
}

#[test]
fn a_higher_priority_is_served_before_those_that_came_earlier() {
    use Priority::*;
    let budget = MemoryBudget::new(10);
    let held = budget.try_reserve(ask(10)).unwrap();
    let asks = [Low, Normal, Critical, High].map(|priority| ask(10).at(priority));
    assert_eq!(order_of(&budget, held, &asks), [2, 3, 1, 0]);
}

#[test]
fn a_waiter_older_than_a_lead_is_not_overtaken_by_that_priority() {
    let budget = MemoryBudget::new(10);
    let held = budget.try_reserve(ask(9)).unwrap();
    let served = parking_lot::Mutex::new(Vec::new());
    let wait_as = |priority, name| {
        let got = budget.reserve(ask(10).at(priority), late()).unwrap();
        served.lock().push(name);
        drop(got);
    };
    thread::scope(|scope| {
        scope.spawn(|| wait_as(Priority::Low, "old"));
        until_waiting(&budget, 1);
        for _ in 0..Priority::Normal.lead() {
            let _ = budget.try_reserve(ask(10)).unwrap_err();
        }
        scope.spawn(|| wait_as(Priority::Normal, "young"));
        until_waiting(&budget, 2);
        drop(held);
    });
    assert_eq!(*served.lock(), ["old", "young"]);
}

#[test]
fn a_waiter_that_does_not_fit_is_passed_sixteen_times_and_then_no_more() {
    let budget = MemoryBudget::new(10);
    let held = budget.try_reserve(ask(9)).unwrap();
    thread::scope(|scope| {
        let big = scope.spawn(|| budget.reserve(ask(10), late()).map(drop));
        until_waiting(&budget, 1);
        for pass in 0..PASSES {
            drop(budget.try_reserve(ask(1)).unwrap_or_else(|e| panic!("pass {pass}: {e}")));
        }
        let full = ReserveError::Full { asked: 1, free: 1 };
        assert_eq!(budget.try_reserve(ask(1)).unwrap_err(), full);
        drop(held);
        assert_eq!(big.join().unwrap(), Ok(()));
    });
}

#[test]
fn nobody_passes_a_critical_waiter_so_that_small_pieces_add_up_for_it() {
    let budget = MemoryBudget::new(10);
    let pieces: Vec<_> = (0..10).map(|_| budget.try_reserve(ask(1)).unwrap()).collect();
    let served = parking_lot::Mutex::new(Vec::new());
    thread::scope(|scope| {
        let wait = |ask, name| {
            let got = budget.reserve(ask, late()).unwrap();
            served.lock().push(name);
            drop(got);
        };
        scope.spawn(move || wait(ask(2), "small"));
        until_waiting(&budget, 1);
        scope.spawn(move || wait(ask(8).at(Priority::Critical), "critical"));
        until_waiting(&budget, 2);
        for piece in pieces {
            drop(piece);
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert_eq!(*served.lock(), ["critical", "small"]);
}

#[test]
fn a_deadline_lets_those_behind_go_on() {
    let budget = MemoryBudget::new(10);
    let _held = budget.try_reserve(ask(9)).unwrap();
    thread::scope(|scope| {
        let big = scope.spawn(|| {
            budget.reserve(ask(10), Instant::now() + Duration::from_millis(200)).map(drop)
        });
        until_waiting(&budget, 1);
        lock(&budget.inner.ledger).queue[0].passes = 0;
        assert!(budget.try_reserve(ask(1)).is_err(), "the big one's patience is at its end");
        let small = scope.spawn(|| budget.reserve(ask(1), late()).map(drop));
        assert!(big.join().unwrap().is_err());
        assert_eq!(small.join().unwrap(), Ok(()));
    });
}

#[test]
fn growth_of_what_is_held_goes_before_new_asks() {
    let budget = MemoryBudget::new(10);
    let mut held = budget.try_reserve(ask(5)).unwrap();
    let other = budget.try_reserve(ask(5)).unwrap();
    let served = parking_lot::Mutex::new(Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            let _got = budget.reserve(ask(5).at(Priority::Critical), late()).unwrap();
            served.lock().push("new");
        });
        until_waiting(&budget, 1);
        scope.spawn(|| {
            held.grow(5, late()).unwrap();
            served.lock().push("grown");
            drop(held);
        });
        until_waiting(&budget, 2);
        drop(other);
    });
    assert_eq!(*served.lock(), ["grown", "new"]);
}

#[test]
fn a_cancelled_wait_ends_at_once_when_nudged_and_soon_when_not() {
    for nudged in [true, false] {
        let budget = MemoryBudget::new(1);
        let _held = budget.try_reserve(ask(1)).unwrap();
        let cancel = AtomicBool::new(false);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                budget.reserve_unless(ask(1), late(), &|| cancel.load(SeqCst)).unwrap_err()
            });
            until_waiting(&budget, 1);
            cancel.store(true, SeqCst);
            if nudged {
                budget.nudge();
            }
            let begun = Instant::now();
            assert_eq!(waiter.join().unwrap(), ReserveError::Cancelled { asked: 1 });
            assert!(begun.elapsed() < 10 * CANCEL_POLL);
        });
        assert_eq!(budget.usage().waiting, 0);
    }
}

#[test]
fn a_total_below_what_is_held_grants_nothing_until_enough_has_come_back() {
    let budget = MemoryBudget::new(10);
    let mut held = budget.try_reserve(ask(8)).unwrap();
    budget.set_total(4);
    assert_eq!(budget.usage(), Usage { total: 4, reserved: 8, resident: 0, waiting: 0 });
    let full = |asked| ReserveError::Full { asked, free: 0 };
    assert_eq!(budget.try_reserve(ask(1)).unwrap_err(), full(1));
    assert_eq!(held.try_grow(1).unwrap_err(), full(1));
    assert_eq!(budget.try_reserve(ask(10)).unwrap_err(), full(10), "10 may fit again");
    held.release(5);
    drop(budget.try_reserve(ask(1)).unwrap());
}

#[test]
fn memory_in_use_already_is_entered_whatever_is_free_and_whoever_waits() {
    let budget = MemoryBudget::new(100);
    let held = budget.try_reserve(ask(90)).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| budget.reserve(ask(20), late()).unwrap().bytes());
        until_waiting(&budget, 1);
        let entered = budget.enter("message", 30);
        let usage = Usage { total: 100, reserved: 120, resident: 30, waiting: 20 };
        assert_eq!(budget.usage(), usage);
        drop(entered);
        assert_eq!(budget.usage().waiting, 20, "of what exceeded the total nothing is granted");
        drop(held);
        assert_eq!(waiter.join().unwrap(), 20);
    });
    assert_eq!(budget.usage(), Usage { total: 100, ..Usage::default() });
}

#[test]
fn a_ceiling_refuses_those_that_wait_already() {
    let budget = MemoryBudget::new(10);
    let _held = budget.try_reserve(ask(5)).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| budget.reserve(ask(8), late()).map(drop));
        until_waiting(&budget, 1);
        budget.set_total(6);
        budget.set_ceiling(7);
        let never = ReserveError::NeverFits { asked: 8, total: 7 };
        assert_eq!(waiter.join().unwrap(), Err(never));
    });
}

#[test]
fn lines_add_up_to_the_sums_also_after_a_merge() {
    let budget = MemoryBudget::new(100);
    let mut srs = budget.try_reserve(Ask::new("srs", 40)).unwrap();
    let mut pool = budget.try_reserve(Ask::new("pool", 30)).unwrap();
    srs.report_resident(40);
    pool.report_resident(10);
    let part = pool.split(25).unwrap();
    assert_eq!((pool.resident(), part.resident()), (5, 5));
    assert!(pool.split(6).is_none());
    srs.merge(part).unwrap();
    let mut lines = Vec::new();
    budget.lines(&mut lines);
    let line = |label, reserved, resident| Line { label, reserved, resident };
    assert_eq!(lines, [line("srs", 65, 45), line("pool", 5, 5)]);
    assert_eq!(budget.usage(), Usage { total: 100, reserved: 70, resident: 50, waiting: 0 });
    let stranger = MemoryBudget::new(1).try_reserve(ask(1)).unwrap();
    assert_eq!(srs.merge(stranger).unwrap_err().bytes(), 1);
}

#[test]
fn released_bytes_count_as_resident_first() {
    let budget = MemoryBudget::new(100);
    let mut held = budget.try_reserve(ask(50)).unwrap();
    held.report_resident(80);
    assert_eq!(held.resident(), 50, "not more than there is");
    held.report_resident(30);
    assert_eq!(held.release(20), 20);
    assert_eq!((held.bytes(), held.resident()), (30, 10));
    assert_eq!(held.release(99), 30);
    assert_eq!(budget.usage(), Usage { total: 100, ..Usage::default() });
}

#[test]
fn the_queue_has_an_end() {
    let budget = MemoryBudget::new(1);
    let _held = budget.try_reserve(ask(1)).unwrap();
    let mut ledger = lock(&budget.inner.ledger);
    for _ in 0..MAX_WAITERS {
        ledger.asks += 1;
        ledger.line_up(0, Claim::of(ask(1)));
    }
    drop(ledger);
    let crowded = ReserveError::Crowded { waiting: MAX_WAITERS };
    assert_eq!(budget.reserve(ask(1), late()).unwrap_err(), crowded);
}

#[test]
fn under_many_threads_no_more_than_the_total_is_ever_held() {
    let budget = MemoryBudget::new(100);
    let held = std::sync::atomic::AtomicU64::new(0);
    thread::scope(|scope| {
        for seed in 0..16u64 {
            let (budget, held) = (&budget, &held);
            scope.spawn(move || {
                for round in 0..500u64 {
                    let bytes = 1 + (seed * 7919 + round * 104_729) % 60;
                    let got = budget.reserve(ask(bytes), late()).unwrap();
                    assert!(held.fetch_add(bytes, SeqCst) + bytes <= 100);
                    held.fetch_sub(bytes, SeqCst);
                    drop(got);
                }
            });
        }
    });
    assert_eq!(budget.usage(), Usage { total: 100, ..Usage::default() });
}

#[derive(Clone, Debug)]
enum Step {
    Reserve(u64, u8),
    Grow(usize, u64),
    Release(usize, u64),
    Split(usize, u64),
    Merge(usize, usize),
    Report(usize, u64),
    Drop(usize),
    Total(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (which, bytes) = (0usize..64, 0u64..2_000);
    prop_oneof![
        (bytes.clone(), 0u8..4).prop_map(|(b, label)| Step::Reserve(b, label)),
        (which.clone(), bytes.clone()).prop_map(|(w, b)| Step::Grow(w, b)),
        (which.clone(), bytes.clone()).prop_map(|(w, b)| Step::Release(w, b)),
        (which.clone(), bytes.clone()).prop_map(|(w, b)| Step::Split(w, b)),
        (which.clone(), which.clone()).prop_map(|(a, b)| Step::Merge(a, b)),
        (which.clone(), bytes.clone()).prop_map(|(w, b)| Step::Report(w, b)),
        which.prop_map(Step::Drop),
        bytes.prop_map(Step::Total),
    ]
}

/// Does one step; what it refuses, it must leave as it was, which the sums then show.
fn take(budget: &MemoryBudget, held: &mut Vec<Reservation>, step: Step) {
    let count = held.len();
    let at = |which: usize| which % count;
    match step {
        Step::Reserve(bytes, label) => {
            let label = ["srs", "pool", "witness", "body"][usize::from(label)];
            held.extend(budget.try_reserve(Ask::new(label, bytes)));
        }
        Step::Total(total) => budget.set_total(total),
        _ if held.is_empty() => {}
        Step::Grow(which, bytes) => drop(held[at(which)].try_grow(bytes)),
        Step::Release(which, bytes) => drop(held[at(which)].release(bytes)),
        Step::Split(which, bytes) => {
            let part = held[at(which)].split(bytes);
            held.extend(part);
        }
        Step::Merge(which, other) if at(which) != at(other) => {
            let other = held.remove(at(other));
            let into = at(which).min(held.len() - 1);
            held[into].merge(other).unwrap();
        }
        Step::Merge(..) => {}
        Step::Report(which, bytes) => held[at(which)].report_resident(bytes),
        Step::Drop(which) => drop(held.remove(at(which))),
    }
}

proptest! {
    #[test]
    fn the_sums_are_those_of_what_is_held_and_end_at_zero(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let budget = MemoryBudget::new(1_000);
        let mut held = Vec::new();
        let mut lines = Vec::new();
        let mut before = 0;
        for step in steps {
            take(&budget, &mut held, step);
            let usage = budget.usage();
            prop_assert_eq!(usage.reserved, held.iter().map(Reservation::bytes).sum::<u64>());
            prop_assert_eq!(usage.resident, held.iter().map(Reservation::resident).sum::<u64>());
            prop_assert!(usage.resident <= usage.reserved);
            prop_assert!(usage.reserved <= usage.total.max(before), "granted beyond the total");
            budget.lines(&mut lines);
            prop_assert_eq!(usage.reserved, lines.iter().map(|line| line.reserved).sum::<u64>());
            prop_assert_eq!(usage.resident, lines.iter().map(|line| line.resident).sum::<u64>());
            before = usage.reserved;
        }
        held.clear();
        let total = budget.usage().total;
        prop_assert_eq!(budget.usage(), Usage { total, ..Usage::default() });
    }
}
