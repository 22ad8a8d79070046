//! Every interleaving of the wait path: no wake-up is lost, no byte either. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p cuzk-governor --lib budget::loom --release`.

use std::time::{Duration, Instant};

use ::loom::sync::atomic::{AtomicBool, Ordering};
use ::loom::sync::Arc;
use ::loom::thread;

use super::*;

fn never() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

#[test]
fn a_release_wakes_the_waiter() {
    ::loom::model(|| {
        let budget = MemoryBudget::new(1);
        let held = budget.try_reserve(Ask::new("a", 1)).unwrap();
        let waiter = {
            let budget = budget.clone();
            thread::spawn(move || drop(budget.reserve(Ask::new("b", 1), never()).unwrap()))
        };
        drop(held);
        waiter.join().unwrap();
        assert_eq!(budget.usage().reserved, 0);
    });
}

#[test]
fn two_waiters_are_both_served() {
    ::loom::model(|| {
        let budget = MemoryBudget::new(2);
        let threads: Vec<_> = [2, 1]
            .into_iter()
            .map(|bytes| {
                let budget = budget.clone();
                thread::spawn(move || drop(budget.reserve(Ask::new("a", bytes), never()).unwrap()))
            })
            .collect();
        drop(budget.reserve(Ask::new("b", 2), never()).unwrap());
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(budget.usage(), Usage { total: 2, ..Usage::default() });
    });
}

#[test]
fn a_cancel_that_races_a_grant_loses_no_bytes() {
    ::loom::model(|| {
        let budget = MemoryBudget::new(1);
        let cancel = Arc::new(AtomicBool::new(false));
        let held = budget.try_reserve(Ask::new("a", 1)).unwrap();
        let waiter = {
            let (budget, cancel) = (budget.clone(), cancel.clone());
            thread::spawn(move || {
                let cancelled = || cancel.load(Ordering::SeqCst);
                match budget.reserve_unless(Ask::new("b", 1), never(), &cancelled) {
                    Ok(_) | Err(ReserveError::Cancelled { asked: 1 }) => {}
                    Err(other) => panic!("{other}"),
                }
            })
        };
        let releaser = thread::spawn(move || drop(held));
        cancel.store(true, Ordering::SeqCst);
        budget.nudge();
        waiter.join().unwrap();
        releaser.join().unwrap();
        assert_eq!(budget.usage(), Usage { total: 1, ..Usage::default() });
    });
}

#[test]
fn a_cancel_alone_ends_the_wait() {
    ::loom::model(|| {
        let budget = MemoryBudget::new(1);
        let cancel = Arc::new(AtomicBool::new(false));
        let held = budget.try_reserve(Ask::new("a", 1)).unwrap();
        let waiter = {
            let (budget, cancel) = (budget.clone(), cancel.clone());
            thread::spawn(move || {
                let cancelled = || cancel.load(Ordering::SeqCst);
                budget.reserve_unless(Ask::new("b", 1), never(), &cancelled).unwrap_err()
            })
        };
        cancel.store(true, Ordering::SeqCst);
        budget.nudge();
        assert_eq!(waiter.join().unwrap(), ReserveError::Cancelled { asked: 1 });
        drop(held);
    });
}

#[test]
fn closing_ends_every_wait() {
    ::loom::model(|| {
        let budget = MemoryBudget::new(1);
        let held = budget.try_reserve(Ask::new("a", 1)).unwrap();
        let waiter = {
            let budget = budget.clone();
            thread::spawn(move || budget.reserve(Ask::new("b", 1), never()).unwrap_err())
        };
        budget.close();
        assert_eq!(waiter.join().unwrap(), ReserveError::Closed);
        drop(held);
        assert_eq!(budget.usage().reserved, 0);
    });
}

#[test]
fn a_raised_total_wakes_a_waiter_and_a_growth() {
    ::loom::model(|| {
        let budget = MemoryBudget::new(3);
        let mut held = budget.try_reserve(Ask::new("a", 1)).unwrap();
        budget.set_total(1);
        let waiter = {
            let budget = budget.clone();
            thread::spawn(move || drop(budget.reserve(Ask::new("b", 1), never()).unwrap()))
        };
        let grower = thread::spawn(move || held.grow(1, never()).unwrap());
        budget.set_total(3);
        waiter.join().unwrap();
        grower.join().unwrap();
        assert_eq!(budget.usage().reserved, 0);
    });
}
