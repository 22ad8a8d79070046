//! A process that works in partitions, each of which takes more memory than it reserves: what a
//! governor is for. Started governed, or with a fixed budget instead.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use cuzk_governor::budget::{Ask, MemoryBudget, Priority};
use cuzk_governor::governor::{Governor, Parts, Plant};
use cuzk_governor::policy::{Action, Partition, Shed, Workload};
use cuzk_governor::sensor::kernel::KernelSensor;
use cuzk_governor::sensor::pressure::Trigger;
use cuzk_governor::sensor::resolve::Root;
use cuzk_governor::setpoints::Setpoints;
use cuzk_tests::cgroup::Cgroup;
use cuzk_tests::memory::Mapping;
use cuzk_tests::ticks;
use serde_json::{json, Value};

use crate::MIB;

/// The variable that turns the test [`plant`] into one; holds its [`Work`].
const ROLE: &str = "CUZK_TEST_PLANT";
const REPLY: &str = "plant: ";

/// Partitions to work off, and what each reserves.
const PARTITIONS: u32 = 10;
const PARTITION: u64 = 24 * MIB;
/// What each takes beyond that, unknown to the ledger: in hundredths.
const HIDDEN: u64 = 30;
/// A partition's memory grows in so many steps, for so long, and is held as long again.
const STEPS: u64 = 24;
const RAMP: Duration = Duration::from_millis(1200);
/// Nothing here takes as long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who says how much may be reserved at once.
#[derive(Clone, Copy)]
pub enum Regime {
    Governed,
    /// An operator, once and for all.
    Static(u64),
}

/// What beside the partitions takes memory.
#[derive(Clone, Default)]
pub struct Work {
    /// Shared memory held all along, of which the ledger knows nothing.
    pub shmem: u64,
    /// A file read all along, for its page cache.
    pub file: Option<PathBuf>,
}

/// Starts a plant in `cgroup`.
pub fn start(cgroup: &Cgroup, regime: Regime, work: &Work) -> Running {
    let total = match regime {
        Regime::Governed => None,
        Regime::Static(total) => Some(total),
    };
    let role = json!({ "total": total, "shmem": work.shmem, "file": work.file });
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["plant::plant", "--exact", "--nocapture"]).env(ROLE, role.to_string());
    Running { process: cgroup.spawn(command.stdout(Stdio::piped())).unwrap() }
}

/// A plant at work.
pub struct Running {
    process: Child,
}

impl Running {
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Waits for its end; what it said if it ended by itself.
    pub fn end(mut self) -> (ExitStatus, Option<Value>) {
        let deadline = Instant::now() + PATIENCE;
        while !self.has_ended() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        self.process.kill().unwrap();
        let mut said = String::new();
        self.process.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        let report = said.split_once(REPLY).map(|(_, line)| line.lines().next().unwrap());
        (self.process.wait().unwrap(), report.map(|line| serde_json::from_str(line).unwrap()))
    }
}

#[test]
fn plant() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let role: Value = serde_json::from_str(&role).unwrap();
    let shmem = role["shmem"].as_u64().filter(|bytes| *bytes > 0);
    let _shmem = shmem.map(|bytes| Mapping::touched(bytes, libc::MAP_SHARED));
    let node = Arc::new(Node::new(role["total"].as_u64()));
    let governor = role["total"].is_null().then(|| node.govern());
    let finished = AtomicBool::new(false);
    thread::scope(|scope| {
        if let Some(file) = role["file"].as_str() {
            let finished = &finished;
            scope.spawn(move || {
                while !finished.load(Ordering::Relaxed) {
                    crate::puppet::read_file(file.as_ref());
                }
            });
        }
        let partitions: Vec<_> =
            (0..PARTITIONS).map(|_| scope.spawn(|| while !node.work() {})).collect();
        for partition in partitions {
            partition.join().unwrap();
        }
        finished.store(true, Ordering::Relaxed);
    });
    let report = json!({
        "finished": node.finished.load(Ordering::Relaxed),
        "shed": node.shed.load(Ordering::Relaxed),
        "most_at_once": node.most_at_once.load(Ordering::Relaxed),
        "status": governor.map(|governor| format!("{:?}", governor.status())),
    });
    println!("{REPLY}{report}");
}

/// The plant's state.
struct Node {
    budget: MemoryBudget,
    running: Mutex<Vec<Arc<Working>>>,
    concurrency: AtomicU32,
    finished: AtomicU32,
    shed: AtomicU32,
    most_at_once: AtomicU32,
    numbers: AtomicU64,
}

/// A partition at work.
struct Working {
    id: u64,
    since: Instant,
    held: AtomicU64,
    stopped: AtomicBool,
}

impl Node {
    fn new(total: Option<u64>) -> Self {
        Self {
            budget: MemoryBudget::new(total.unwrap_or(u64::MAX / 2)),
            running: Mutex::default(),
            concurrency: AtomicU32::new(PARTITIONS),
            finished: AtomicU32::new(0),
            shed: AtomicU32::new(0),
            most_at_once: AtomicU32::new(0),
            numbers: AtomicU64::new(0),
        }
    }

    /// Starts the governor and waits for its first decision.
    fn govern(self: &Arc<Self>) -> Governor {
        let set = setpoints();
        let sensor = KernelSensor::open(Root::default()).unwrap();
        let (stall, window) = (set.trigger_stall, set.trigger_window);
        let alarm = Trigger::arm(&Root::default(), sensor.hierarchy(), stall, window);
        let governor = Governor::start(Parts {
            sensor: Box::new(sensor),
            alarm: Box::new(alarm),
            budget: self.budget.clone(),
            plant: self.clone(),
            setpoints: set,
            observer: Some(Box::new(ticks::trace)),
        })
        .unwrap();
        while governor.status().ticks == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        governor
    }

    fn running(&self) -> MutexGuard<'_, Vec<Arc<Working>>> {
        self.running.lock().unwrap()
    }

    /// Works at a partition; whether it was finished.
    fn work(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let ask = Ask::new("partition", PARTITION).at(Priority::Normal);
        let mut reserved = self.budget.reserve(ask, deadline).unwrap();
        let Some(partition) = self.admit() else {
            drop(reserved);
            thread::sleep(Duration::from_millis(10));
            return false;
        };
        let mut held = Vec::new();
        let slice = PARTITION / STEPS;
        let whole = (0..2 * STEPS).all(|step| {
            thread::sleep(RAMP / STEPS as u32);
            if step < STEPS {
                held.push(Mapping::touched(slice + slice * HIDDEN / 100, libc::MAP_PRIVATE));
                let resident = slice * held.len() as u64;
                partition.held.store(resident, Ordering::Relaxed);
                reserved.report_resident(resident);
            }
            !partition.stopped.load(Ordering::Relaxed)
        });
        drop(held);
        drop(reserved);
        self.running().retain(|other| other.id != partition.id);
        let count = if whole { &self.finished } else { &self.shed };
        count.fetch_add(1, Ordering::Relaxed);
        whole
    }

    /// Enters a partition among those that run, unless there are as many as may.
    fn admit(&self) -> Option<Arc<Working>> {
        let mut running = self.running();
        if running.len() >= self.concurrency.load(Ordering::Relaxed) as usize {
            return None;
        }
        running.push(Arc::new(Working {
            id: self.numbers.fetch_add(1, Ordering::Relaxed),
            since: Instant::now(),
            held: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }));
        self.most_at_once.fetch_max(running.len() as u32, Ordering::Relaxed);
        running.last().cloned()
    }
}

/// Faster than in production, as the partitions are.
fn setpoints() -> Setpoints {
    Setpoints {
        tick: Duration::from_millis(25),
        reaction: Duration::from_millis(150),
        retreat_cooldown: Duration::from_millis(50),
        grow_cooldown: Duration::from_millis(300),
        ..Setpoints::default()
    }
}

impl Plant for Node {
    fn workload(&self, into: &mut Workload) {
        let running = self.running();
        into.running.clear();
        into.running.extend(running.iter().map(|partition| {
            let held = partition.held.load(Ordering::Relaxed);
            Partition {
                id: partition.id,
                priority: Priority::Normal,
                shed: Shed::Freely,
                held,
                to_come: PARTITION - held,
                work: partition.since.elapsed(),
            }
        }));
        into.concurrency = self.concurrency.load(Ordering::Relaxed);
        into.finished = self.finished.load(Ordering::Relaxed).into();
        into.waiting = PARTITIONS - into.finished as u32 - into.running.len() as u32;
        into.smallest_waiting = if into.waiting > 0 { PARTITION } else { 0 };
    }

    fn apply(&self, action: Action) {
        match action {
            Action::Concurrency(most) => self.concurrency.store(most, Ordering::Relaxed),
            Action::Shed(id) => {
                let running = self.running();
                if let Some(partition) = running.iter().find(|partition| partition.id == id) {
                    partition.stopped.store(true, Ordering::Relaxed);
                }
            }
            // There is nothing else to give.
            _ => {}
        }
    }
}
