//! Work without proofs: partitions that take real memory over time as a script says, through the
//! engine that runs real ones.
//!
//! A partition synthesises: buffers of the pool fill one after the other, and the heap beside them.
//! Then it takes its turn on the device, to which its buffers go one by one in the first half, and
//! ends. Nearly all of its time is sleep: many run at once on few processors, as on a node with many.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use blstrs::Scalar;
use cuzk_core::device::{Checkpoint, Interrupted};
use cuzk_core::engine::{Admitted, Work, WorkError};
use cuzk_core::memory::ScalarBuf;
use cuzk_core::params::ParamsError;
use cuzk_core::pipeline::Footprint;
use cuzk_core::proof::{Priority, ProofKind};
use serde::{Deserialize, Serialize};

use crate::memory::Mapping;

/// A buffer: one chunk of the engine's pool.
pub const CHUNK: u64 = 4 << 20;

/// The heap is taken in pieces that the allocator maps, and unmaps when they are freed.
const HEAP_PIECE: u64 = 1 << 20;

/// Bytes of a page.
const PAGE: usize = 4096;

/// Between two checkpoints.
const STEP: Duration = Duration::from_millis(10);

/// Scripted partitions that synthesise now, in this process.
static SYNTHESISING: AtomicU32 = AtomicU32::new(0);

/// What a job's partitions take, and for how long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Script {
    /// How many there are.
    pub partitions: usize,
    /// Buffers at the peak, of [`CHUNK`] bytes each.
    pub chunks: u32,
    /// Bytes on the heap at the peak.
    pub heap: u64,
    /// Bytes at the peak beside both, of which the ledger knows nothing.
    pub hidden: u64,
    /// What the heap is estimated at, as a share of what it takes: 1 is right, less is too little.
    pub estimate: f64,
    /// Host work, if nobody is in the way.
    pub synthesis: Duration,
    /// Device work.
    pub device: Duration,
    /// By how much each partition more at once slows host work: memory bandwidth is shared.
    pub contention: f64,
}

/// A job made of it.
#[derive(Debug, Clone)]
pub struct Scripted {
    /// Its name, and idempotency key.
    pub name: String,
    /// In whose queue it is, with whose urgency.
    pub kind: ProofKind,
    /// What it does.
    pub script: Script,
}

impl Work for Scripted {
    fn kind(&self) -> ProofKind {
        self.kind
    }

    fn priority(&self) -> Priority {
        self.kind.default_priority()
    }

    fn request_id(&self) -> &str {
        &self.name
    }

    fn content_hash(&self) -> blake3::Hash {
        blake3::hash(self.name.as_bytes())
    }

    fn body_bytes(&self) -> u64 {
        self.name.len() as u64
    }

    fn partitions(&self) -> usize {
        self.script.partitions
    }

    fn path(&self) -> String {
        format!("scripted-{}-{}", self.kind, self.script.heap)
    }

    fn footprint(&self) -> Result<Footprint, ParamsError> {
        let Script { chunks, heap, estimate, .. } = self.script;
        let heap = (heap as f64 * estimate) as u64;
        Ok(Footprint { buffers: u64::from(chunks) * CHUNK, heap })
    }

    fn run(&self, partition: usize, admitted: &mut Admitted<'_>) -> Result<Vec<u8>, WorkError> {
        admitted.stage("synthesising");
        let mut held = self.synthesise(admitted)?;
        let chunks = std::mem::take(&mut held.chunks);
        let there: &Admitted<'_> = admitted;
        there.device(|turn| self.compute(chunks, there, turn))??;
        Ok(vec![partition as u8])
    }
}

/// What a partition holds.
#[derive(Default)]
struct Held {
    chunks: Vec<ScalarBuf>,
    heap: Vec<Vec<u8>>,
    hidden: Vec<Mapping>,
    hidden_bytes: u64,
}

/// Counts a partition among those that synthesise.
struct Synthesising;

impl Synthesising {
    fn begin() -> Self {
        SYNTHESISING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Synthesising {
    fn drop(&mut self) {
        SYNTHESISING.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Scripted {
    /// Works at the host until everything is held.
    fn synthesise(&self, admitted: &mut Admitted<'_>) -> Result<Held, WorkError> {
        let _counted = Synthesising::begin();
        let steps = (self.script.synthesis.as_millis() / STEP.as_millis()).max(1) as u32;
        let mut held = Held::default();
        for step in 1..=steps {
            let others = SYNTHESISING.load(Ordering::Relaxed).saturating_sub(1);
            thread::sleep(STEP.mul_f64(1.0 + self.script.contention * f64::from(others)));
            admitted.host().check()?;
            held.grow(&self.script, f64::from(step) / f64::from(steps), admitted)?;
        }
        Ok(held)
    }

    /// Works on the device; its buffers are there after half of the time.
    fn compute(
        &self,
        mut chunks: Vec<ScalarBuf>,
        admitted: &Admitted<'_>,
        turn: &dyn Checkpoint,
    ) -> Result<(), Interrupted> {
        let uploads = chunks.len() as u32;
        let upload = self.script.device / 2 / uploads.max(1);
        while let Some(chunk) = chunks.pop() {
            thread::sleep(upload);
            drop(chunk);
            admitted.gave_back(CHUNK);
            turn.check()?;
        }
        let mut left = self.script.device - upload * uploads;
        while left > Duration::ZERO {
            thread::sleep(left.min(STEP));
            left = left.saturating_sub(STEP);
            turn.check()?;
        }
        Ok(())
    }
}

impl Held {
    /// Grows to this share of the peak.
    fn grow(
        &mut self,
        script: &Script,
        share: f64,
        admitted: &mut Admitted<'_>,
    ) -> Result<(), WorkError> {
        let due = |whole: u64| (whole as f64 * share) as u64;
        while (self.chunks.len() as u64) < due(u64::from(script.chunks)) {
            let mut chunk = admitted.scalars(CHUNK as usize / size_of::<Scalar>())?;
            for scalar in chunk.iter_mut().step_by(PAGE / size_of::<Scalar>()) {
                *scalar = Scalar::from(1);
            }
            self.chunks.push(chunk);
        }
        while (self.heap.len() as u64 + 1) * HEAP_PIECE <= due(script.heap) {
            self.heap.push(vec![1; HEAP_PIECE as usize]);
        }
        let piece =
            due(script.hidden).saturating_sub(self.hidden_bytes) / PAGE as u64 * PAGE as u64;
        if piece > 0 {
            self.hidden.push(Mapping::touched(piece, libc::MAP_PRIVATE));
            self.hidden_bytes += piece;
        }
        Ok(())
    }
}
