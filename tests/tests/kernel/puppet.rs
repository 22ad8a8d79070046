//! A process that holds memory as it is told and says what its sensor sees.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cuzk_governor::probe::{serve, Probe, Touched};
use cuzk_governor::sensor::kernel::KernelSensor;
use cuzk_governor::sensor::pressure::{Trigger, Woken};
use cuzk_governor::sensor::resolve::{resolve, Root};
use cuzk_governor::sensor::{Sample, Sensor};
use cuzk_tests::cgroup::Cgroup;
use cuzk_tests::memory::Mapping;
use serde_json::{json, Value};

/// The variable that turns the test [`puppet`] into one.
const ROLE: &str = "CUZK_TEST_PUPPET";
/// The variable that turns the test [`taker`] into a probe's child.
const TAKER: &str = "CUZK_TEST_TAKER";
/// What its replies begin with; the test harness prints lines, too.
const REPLY: &str = "puppet: ";

/// A puppet's strings.
pub struct Puppet {
    process: Child,
    orders: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Puppet {
    /// Starts one in `cgroup`.
    pub fn start(cgroup: &Cgroup) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["puppet::puppet", "--exact", "--nocapture"]).env(ROLE, "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = cgroup.spawn(&mut command).unwrap();
        let orders = process.stdin.take().unwrap();
        let replies = BufReader::new(process.stdout.take().unwrap());
        Self { process, orders, replies }
    }

    /// Gives an order.
    pub fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// The next reply.
    pub fn reply(&mut self) -> Value {
        let mut line = String::new();
        loop {
            line.clear();
            if self.replies.read_line(&mut line).unwrap() == 0 {
                panic!("the puppet is dead: {:?}", self.process.wait());
            }
            if let Some((_, reply)) = line.split_once(REPLY) {
                return serde_json::from_str(reply).unwrap();
            }
        }
    }

    /// Gives an order and waits for the reply.
    pub fn tell(&mut self, order: &str) -> Value {
        self.order(order);
        self.reply()
    }

    pub fn sample(&mut self) -> Value {
        self.tell("sample")
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn puppet() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut strings = Strings::new();
    for order in std::io::stdin().lines() {
        let reply = strings.pull(&order.unwrap());
        println!("{REPLY}{reply}");
    }
}

/// What the puppet itself holds.
struct Strings {
    sensor: KernelSensor,
    sample: Sample,
    held: Vec<Mapping>,
}

impl Strings {
    fn new() -> Self {
        let sensor = KernelSensor::open(Root::default()).unwrap();
        Self { sensor, sample: Sample::default(), held: Vec::new() }
    }

    fn pull(&mut self, order: &str) -> Value {
        let words: Vec<_> = order.split(' ').collect();
        match *words.as_slice() {
            ["anon", bytes] => self.held.push(Mapping::touched(number(bytes), libc::MAP_PRIVATE)),
            ["shmem", bytes] => self.held.push(Mapping::touched(number(bytes), libc::MAP_SHARED)),
            ["drop"] => self.held.clear(),
            ["write", path, bytes] => write_file(Path::new(path), bytes.parse().unwrap()),
            ["read", path] => read_file(Path::new(path)),
            ["enter", folder] => {
                fs::write(PathBuf::from(folder).join("cgroup.procs"), "0").unwrap()
            }
            ["sample"] => {
                self.sensor.sample(&mut self.sample).unwrap();
                return to_json(&self.sample);
            }
            ["unprivileged"] => drop_privilege(),
            ["thrash", path, seconds] => {
                let end = Instant::now() + Duration::from_secs(seconds.parse().unwrap());
                while Instant::now() < end {
                    read_file(Path::new(path));
                }
            }
            ["await", kind, stall_ms, window_ms] => {
                return await_trigger(kind, ms(stall_ms), ms(window_ms));
            }
            ["probe", stop_short] => return probe(stop_short, "."),
            ["probe", stop_short, folder] => return probe(stop_short, folder),
            _ => panic!("no such order: {order}"),
        }
        json!("done")
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap()
}

fn ms(word: &str) -> Duration {
    Duration::from_millis(word.parse().unwrap())
}

fn to_json(sample: &Sample) -> Value {
    let levels: Vec<_> = sample
        .levels
        .iter()
        .map(|level| {
            json!({
                "path": &*level.path,
                "limit": level.limit,
                "usage": level.usage,
                "peak": level.peak,
                "unreclaimable": level.unreclaimable(),
            })
        })
        .collect();
    json!({
        "levels": levels,
        "oom_kill": sample.events.oom_kill,
        "max": sample.events.max,
        "anon": sample.own.anon,
        "shmem": sample.own.shmem,
        "stalled_us": sample.pressure.map(|pressure| pressure.some.total_us),
    })
}

/// Arms a trigger, says which, and waits up to ten seconds for it.
fn await_trigger(kind: &str, stall: Duration, window: Duration) -> Value {
    let root = Root::default();
    let mut hierarchy = resolve(&root).unwrap();
    if kind == "level" {
        hierarchy.unified = None;
    }
    let mut trigger = Trigger::arm(&root, &hierarchy, stall, window);
    println!("{REPLY}{}", json!(format!("{:?}", trigger.source())));
    json!(trigger.wait(Duration::from_secs(10), None) == Woken::ByPressure)
}

/// Probes, with the child in the cgroup `folder`.
fn probe(stop_short: &str, folder: &str) -> Value {
    let stop_short = stop_short.parse().unwrap();
    let probe = Probe { stop_short, smallest: 4 << 20, ..Probe::default() };
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["puppet::taker", "--exact", "--nocapture"]).env(TAKER, folder);
    let found = probe.run(&Root::default(), &mut child, None).unwrap();
    serde_json::to_value(found).unwrap()
}

/// The probe's child.
#[test]
fn taker() {
    let Some(folder) = std::env::var_os(TAKER) else { return };
    if folder != "." {
        fs::write(PathBuf::from(folder).join("cgroup.procs"), "0").unwrap();
    }
    serve(std::io::stdin().lock(), std::io::stdout(), &mut Touched::default()).unwrap();
}

/// Gives up CAP_SYS_RESOURCE, on which the kernel makes the PSI window depend.
fn drop_privilege() {
    const CAP_SYS_RESOURCE: u32 = 24;
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: version 3 has a header of two words and three sets of two words, all ours.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()), 0);
        sets[0] &= !(1 << CAP_SYS_RESOURCE);
        assert_eq!(libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()), 0);
    }
}

fn write_file(path: &Path, bytes: u64) {
    let mut file = File::create(path).unwrap();
    let block = vec![7; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&block).unwrap();
    }
    file.sync_all().unwrap();
}

pub fn read_file(path: &Path) {
    let mut file = File::open(path).unwrap();
    let mut block = vec![0; 1 << 20];
    while file.read(&mut block).unwrap() > 0 {}
}
