//! What is worked off, in which limits.

use std::time::Duration;

use cuzk_core::device::Unhindered;
use cuzk_core::params::Params;
use cuzk_core::proof::{CircuitId, ProofKind, SectorSize};
use cuzk_tests::load::{Content, Job, Pace};
use cuzk_tests::parameters;
use cuzk_tests::scripted::{Script, CHUNK};

use crate::policy::Policy;

const MIB: u64 = 1 << 20;

/// Real proofs run on so many threads.
const THREADS: u32 = 2;

/// A partition like a GPU node's, 1 : 145 in size and 1 : 100 in time: 12.5 of its 13.6 GiB are
/// pinned, and go as the device takes them.
const SCRIPT: Script = Script {
    partitions: 5,
    chunks: 22,
    heap: 8 * MIB,
    hidden: 5 * MIB,
    estimate: 1.0,
    synthesis: Duration::from_millis(2000),
    device: Duration::from_millis(200),
    contention: 0.02,
};
/// All of it.
const PARTITION: u64 = SCRIPT.chunks as u64 * CHUNK + SCRIPT.heap + SCRIPT.hidden;
/// The SRS beside it, 44 : 13.6.
const SRS: u64 = 308 * MIB;
/// Driver, threads' arenas: 6 GiB there.
const HIDDEN: u64 = 40 * MIB;
/// The idle process.
const BASE: u64 = 12 * MIB;
/// Where one device is busy all the time.
const PAYS: u64 = 11;

/// How long a run may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// CI's.
    Quick,
    /// Until warming up counts for little.
    Full,
}

/// Jobs, and what is held beside them.
pub struct Workload {
    /// Its name in rows.
    pub name: &'static str,
    /// For the head of its table.
    pub about: String,
    /// Bytes, ascending.
    pub limits: Vec<u64>,
    /// How the governor's knobs are set.
    pub pace: Pace,
    /// A pinned SRS; mapped ones are none of it.
    pub srs: u64,
    /// Held, and on no ledger.
    pub hidden: u64,
    /// Fixed concurrency from which the oracle looks for the best.
    pub sweep_from: fn(limit: u64) -> u32,
    /// Its jobs.
    pub jobs: Box<dyn Fn(u64) -> Vec<Job>>,
    /// Who works it off.
    pub policies: Vec<Policy>,
    /// Called before each run.
    pub prepare: fn(),
}

/// The real and the scripted one, and the PoRep alone.
pub fn all(length: Length) -> Vec<Workload> {
    vec![real(length), scripted(length), porep(length)]
}

fn mib(limits: &[u64]) -> Vec<u64> {
    limits.iter().map(|mib| mib * MIB).collect()
}

/// Partitions that a limit has room for, as far as they pay.
fn fits(limit: u64) -> u64 {
    (limit.saturating_sub(SRS + HIDDEN + BASE) / PARTITION).clamp(1, PAYS)
}

fn scripted(length: Length) -> Workload {
    let (limits, rounds) = match length {
        Length::Quick => (mib(&[512, 1024]), 1),
        Length::Full => (mib(&[512, 704, 1024, 1344, 1792]), 2),
    };
    let jobs = move |limit| {
        let jobs = rounds * fits(limit);
        (0..jobs).map(|i| Job::scripted(format!("scripted-{i}"), SCRIPT)).collect()
    };
    Workload {
        name: "scripted",
        about: format!(
            "SRS {} MiB pinned, partitions of {} MiB ({} of them unknown to the ledger), {} MiB of overhead, \
             synthesis {:?}, device {:?}; the governor's times are scaled as the partitions' (tick {:?}). \
             Limits lie about half a partition above a whole number of them.",
            SRS / MIB,
            PARTITION / MIB,
            SCRIPT.hidden / MIB,
            HIDDEN / MIB,
            SCRIPT.synthesis,
            SCRIPT.device,
            Pace::Scaled.setpoints().tick,
        ),
        limits,
        pace: Pace::Scaled,
        srs: SRS,
        hidden: HIDDEN,
        sweep_from: |limit| fits(limit).saturating_sub(1).max(1) as u32,
        jobs: Box::new(jobs),
        policies: Policy::ALL.to_vec(),
        prepare: || {},
    }
}

fn real(length: Length) -> Workload {
    let (limits, rounds, policies) = match length {
        Length::Quick => (mib(&[768]), 1, vec![Policy::Ungoverned, Policy::Governed]),
        Length::Full => (mib(&[512, 768, 2048]), 2, Policy::ALL.to_vec()),
    };
    let kinds = [
        ProofKind::PorepSealCommit,
        ProofKind::WinningPost,
        ProofKind::WindowPostPartition,
        ProofKind::SnapDealsUpdate,
        ProofKind::WindowPostPartition,
        ProofKind::WinningPost,
    ];
    Workload {
        name: "real",
        about: format!(
            "{} proofs of 2 KiB sectors (PoRep, Winning, Window, Snap) on {THREADS} threads, the page cache of \
             their parameters in the cgroup; the governor's times are production's",
            rounds * kinds.len()
        ),
        limits,
        pace: Pace::Production { threads: THREADS },
        srs: 0,
        hidden: 0,
        sweep_from: |_| 1,
        jobs: Box::new(move |_| {
            let kinds = (0..rounds).flat_map(|_| kinds);
            kinds.enumerate().map(|(i, kind)| proof(kind, i)).collect()
        }),
        policies,
        prepare: forget_parameters,
    }
}

fn porep(length: Length) -> Workload {
    let limits = match length {
        Length::Quick => mib(&[512]),
        Length::Full => mib(&[512, 768, 1024, 2048, 4096]),
    };
    Workload {
        name: "porep",
        about: "one 2 KiB PoRep, governed, its parameters read from the disk".into(),
        limits,
        jobs: Box::new(|_| vec![proof(ProofKind::PorepSealCommit, 0)]),
        policies: vec![Policy::Governed],
        ..real(length)
    }
}

fn proof(kind: ProofKind, i: usize) -> Job {
    Job { name: format!("{kind}-{i}"), kind, after: Duration::ZERO, content: Content::Real }
}

/// Each run reads its parameters itself.
fn forget_parameters() {
    let params = Params::new(parameters::development(&ProofKind::ALL));
    for kind in ProofKind::ALL {
        let circuit = CircuitId { kind, sector_size: SectorSize::KiB2 };
        // Makes the native file if nobody has yet.
        if let Err(why) = params.open(&circuit, &mut |_| {}, &Unhindered) {
            panic!("the parameters of {circuit} cannot be used: {why}");
        }
        parameters::forget(kind);
    }
}
