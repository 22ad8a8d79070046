use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use super::*;
use crate::budget::Ask;
use crate::listener::Listener;
use crate::sensor::{Host, SensorError};

const GIB: u64 = 1 << 30;

/// A machine of 100 GiB with so many available; broken while `available` is `u64::MAX`, and
/// worse while it is one less.
struct FakeSensor {
    begun: Instant,
    available: Arc<AtomicU64>,
    taken: Arc<AtomicU64>,
}

impl Sensor for FakeSensor {
    fn sample(&mut self, into: &mut Sample) -> Result<(), SensorError> {
        let available = self.available.load(SeqCst);
        if available == u64::MAX {
            let source = io::Error::from(io::ErrorKind::NotFound);
            return Err(SensorError::Unreadable { path: "fake".into(), source });
        }
        assert_ne!(available, u64::MAX - 1, "no sensor should panic");
        into.sequence += 1;
        into.at = self.begun.elapsed();
        into.host = Host { total: 100 * GIB, available };
        self.taken.fetch_add(1, SeqCst);
        Ok(())
    }
}

/// Rings when something is written to the other end.
struct FakeAlarm(UnixStream);

impl Alarm for FakeAlarm {
    fn wait(&mut self, timeout: Duration, wake: BorrowedFd<'_>) -> Woken {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled = [entry(self.0.as_raw_fd()), entry(wake.as_raw_fd())];
        // SAFETY: both descriptors are open and the array outlives the call.
        unsafe { libc::poll(polled.as_mut_ptr(), 2, timeout.as_millis() as i32) };
        match polled.map(|entry| entry.revents != 0) {
            [_, true] => Woken::ByCaller,
            [true, _] => {
                self.0.read_exact(&mut [0]).unwrap();
                Woken::ByPressure
            }
            _ => Woken::ByTimeout,
        }
    }
}

/// Two partitions of 10 GiB; notes what it is told; blocks in `apply` while `blocks`.
#[derive(Default)]
struct FakePlant {
    blocks: AtomicBool,
    told: Mutex<Vec<Action>>,
}

impl Plant for FakePlant {
    fn workload(&self, into: &mut Workload) {
        let partition = |id| policy::Partition {
            id,
            priority: crate::budget::Priority::Normal,
            shed: policy::Shed::Freely,
            held: 10 * GIB,
            to_come: 0,
            work: Duration::from_secs(id),
        };
        into.running.clear();
        into.running.extend([partition(1), partition(2)]);
        into.concurrency = 2;
        into.idle_bytes = GIB;
    }

    fn apply(&self, action: Action) {
        self.told.lock().push(action);
        while self.blocks.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

struct Rig {
    available: Arc<AtomicU64>,
    taken: Arc<AtomicU64>,
    bell: UnixStream,
    budget: MemoryBudget,
    plant: Arc<FakePlant>,
    governor: Governor,
}

fn setpoints() -> Setpoints {
    Setpoints {
        tick: Duration::from_millis(10),
        reaction: Duration::from_millis(30),
        watchdog: Duration::from_millis(50),
        retreat_cooldown: Duration::ZERO,
        trust_ticks: 1,
        margin_floor: 0.0,
        margin_start: 0.0,
        host_reserve: 0.0,
        max_concurrency: 2,
        ..Setpoints::default()
    }
}

fn rig(setpoints: Setpoints) -> Rig {
    let (bell, alarm) = UnixStream::pair().unwrap();
    let available = Arc::new(AtomicU64::new(50 * GIB));
    let taken = Arc::new(AtomicU64::new(0));
    let budget = MemoryBudget::new(0);
    let plant = Arc::new(FakePlant::default());
    let sensor =
        FakeSensor { begun: Instant::now(), available: available.clone(), taken: taken.clone() };
    let governor = Governor::start(Parts {
        sensor: Box::new(sensor),
        alarm: Box::new(FakeAlarm(alarm)),
        budget: budget.clone(),
        plant: plant.clone(),
        setpoints,
        observer: None,
    });
    Rig { available, taken, bell, budget, plant, governor: governor.unwrap() }
}

/// Waits for it, ten seconds at most; how long it took.
fn until(what: &str, holds: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(10), "never happened: {what}");
        thread::sleep(Duration::from_micros(200));
    }
    begun.elapsed()
}

fn in_two_seconds() -> Instant {
    Instant::now() + Duration::from_secs(2)
}

#[test]
fn the_budget_follows_the_kernel_while_running() {
    let rig = rig(setpoints());
    until("50 GiB", || (49 * GIB..=50 * GIB).contains(&rig.budget.usage().total));
    rig.available.store(20 * GIB, SeqCst);
    until("20 GiB", || rig.budget.usage().total <= 20 * GIB);
    rig.governor.stop(in_two_seconds()).unwrap();
}

#[test]
fn memory_that_is_short_makes_the_plant_give_back_and_the_status_tells_why() {
    let rig = rig(setpoints());
    until("a total", || rig.budget.usage().total > 0);
    let held = rig.budget.try_reserve(Ask::new("test", 20 * GIB)).unwrap();
    rig.available.store(0, SeqCst);
    let freed = Action::FreeIdleChunks(GIB);
    until("chunks freed", || rig.plant.told.lock().contains(&freed));
    let deeds = rig.governor.status().deeds;
    let deed = deeds.iter().find(|deed| deed.action == freed).unwrap();
    assert!(deed.headroom.deficit >= 19 * GIB, "{deed:?}");
    drop(held);
    rig.governor.stop(in_two_seconds()).unwrap();
}

#[test]
fn the_alarm_is_answered_within_fifty_milliseconds() {
    let mut rig = rig(Setpoints { tick: Duration::from_secs(60), ..setpoints() });
    until("the first sample", || rig.taken.load(SeqCst) == 1);
    for rung in 2..6 {
        rig.bell.write_all(&[1]).unwrap();
        let took = until("an early sample", || rig.taken.load(SeqCst) == rung);
        assert!(took < Duration::from_millis(50), "{took:?}");
    }
    let begun = Instant::now();
    rig.governor.stop(in_two_seconds()).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "stopping does not wait for a tick");
}

#[test]
fn a_stuck_plant_stops_neither_the_sampling_nor_the_budget_and_is_reported() {
    let rig = rig(setpoints());
    until("a total", || rig.budget.usage().total > 0);
    rig.plant.blocks.store(true, SeqCst);
    let held = rig.budget.try_reserve(Ask::new("test", 40 * GIB)).unwrap();
    rig.available.store(5 * GIB, SeqCst);
    until("stuck", || rig.governor.status().stuck >= Duration::from_millis(50));
    let before = rig.taken.load(SeqCst);
    rig.available.store(3 * GIB, SeqCst);
    until("more samples", || rig.taken.load(SeqCst) > before + 100);
    assert!(rig.budget.usage().total <= 3 * GIB);
    assert_eq!(rig.plant.told.lock().len(), 1, "it still has not come back");
    drop(held);
    let Rig { governor, plant, .. } = rig;
    let refused = governor.stop(Instant::now() + Duration::from_millis(100)).unwrap_err();
    assert_eq!(refused.thread, "hands");
    plant.blocks.store(false, SeqCst);
}

#[test]
fn a_plant_that_comes_back_is_no_longer_stuck() {
    let rig = rig(setpoints());
    until("a total", || rig.budget.usage().total > 0);
    rig.plant.blocks.store(true, SeqCst);
    let held = rig.budget.try_reserve(Ask::new("test", 40 * GIB)).unwrap();
    rig.available.store(0, SeqCst);
    until("stuck", || rig.governor.status().stuck > Duration::ZERO);
    rig.plant.blocks.store(false, SeqCst);
    until("back", || rig.governor.status().stuck == Duration::ZERO);
    drop(held);
    rig.governor.stop(in_two_seconds()).unwrap();
}

#[test]
fn a_tick_that_panics_does_not_end_the_governor() {
    let rig = rig(setpoints());
    until("a total", || rig.budget.usage().total > 49 * GIB);
    rig.available.store(u64::MAX - 1, SeqCst);
    thread::sleep(Duration::from_millis(20));
    rig.available.store(5 * GIB, SeqCst);
    until("less", || rig.budget.usage().total < 5 * GIB);
    rig.governor.stop(in_two_seconds()).unwrap();
}

#[test]
fn a_blind_governor_admits_less_and_less() {
    let rig = rig(setpoints());
    until("a total", || rig.budget.usage().total > 49 * GIB);
    rig.available.store(u64::MAX, SeqCst);
    until("less", || rig.budget.usage().total < 49 * GIB);
    assert!(rig.governor.status().headroom.stale_ticks > 0);
    rig.available.store(50 * GIB, SeqCst);
    until("sight", || rig.governor.status().headroom.stale_ticks == 0);
    rig.governor.stop(in_two_seconds()).unwrap();
}

#[test]
fn an_order_is_logged_with_its_figures_before_the_plant_has_it() {
    let rig = rig(setpoints());
    until("a total", || rig.budget.usage().total > 0);
    let told = rig.plant.clone();
    let log = Arc::new(Mutex::new(Vec::new()));
    let orders = log.clone();
    let hears = move |event: &tracing::Event<'_>| {
        let mut line = Line(String::new());
        event.record(&mut line);
        let ours = event.metadata().target().starts_with("cuzk_governor::governor");
        if ours && line.0.contains("governor_orders") {
            orders.lock().push((line.0, told.told.lock().len()));
        }
    };
    // The watcher logs on its own thread, so the listener must be everybody's.
    let _ = tracing::subscriber::set_global_default(Listener(hears));
    let held = rig.budget.try_reserve(Ask::new("test", 40 * GIB)).unwrap();
    rig.available.store(0, SeqCst);
    until("a first order", || !rig.plant.told.lock().is_empty());
    drop(held);
    rig.governor.stop(in_two_seconds()).unwrap();
    let log = log.lock();
    let (line, told) = &log[0];
    assert_eq!(*told, 0, "the plant had it already");
    for figure in ["action=", "usable=", "residual=", "margin=", "deficit=", "limit="] {
        assert!(line.contains(figure), "{figure} is missing in {line}");
    }
}

/// An event's fields.
struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}
