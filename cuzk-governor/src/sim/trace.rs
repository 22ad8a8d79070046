//! What a governor saw and decided, tick by tick, as lines of JSON: recorded live, replayed later.
//!
//! A replay feeds the recorded samples, ledgers and workloads to today's policy and compares what it
//! orders. It is open-loop: a different order does not change the samples that follow. It assumes the
//! setpoints of the recording; with others it shows what they would have changed.

use std::fs::File;
use std::io::{self, BufRead, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::budget::Usage;
use crate::governor::{Observer, Tick};
use crate::headroom::Forecaster;
use crate::policy::{self, Action, Workload};
use crate::sensor::Sample;
use crate::setpoints::Setpoints;

/// One tick.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What the kernel showed.
    pub sample: Sample,
    /// The ledger's sums.
    pub usage: Usage,
    /// What the plant reported.
    pub workload: Workload,
    /// The ledger's total as decided.
    pub total: u64,
    /// What was ordered.
    pub actions: Vec<Action>,
}

/// A trace that cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It could not be read.
    #[error("cannot read the trace: {0}")]
    Unreadable(#[from] io::Error),
    /// A line is no tick.
    #[error("line {line} of the trace is no tick: {source}; expected one JSON object a line")]
    Malformed {
        /// Which, from 1.
        line: usize,
        /// What was wrong.
        source: serde_json::Error,
    },
}

/// A tick for which today's policy decides otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The line, from 1.
    pub line: usize,
    /// What was recorded.
    pub recorded: (u64, Vec<Action>),
    /// What is decided now.
    pub now: (u64, Vec<Action>),
}

/// Writes one tick as one line.
pub fn record(tick: &Tick<'_>, into: &mut impl Write) -> io::Result<()> {
    let line = Line {
        sample: tick.sample.clone(),
        usage: *tick.usage,
        workload: tick.workload.clone(),
        total: tick.decision.total,
        actions: tick.actions.to_vec(),
    };
    serde_json::to_writer(&mut *into, &line)?;
    into.write_all(b"\n")
}

/// An observer for a live governor that appends to `path`, a line a tick. It allocates, and it writes on
/// the watcher's thread: for diagnosis. The first write that fails is reported and ends the recording.
pub fn recorder(path: &Path) -> io::Result<Observer> {
    let file = File::options().create(true).append(true).open(path)?;
    let mut writer = Some(BufWriter::new(file));
    Ok(Box::new(move |tick| {
        let Some(open) = &mut writer else { return };
        if let Err(error) = record(tick, open).and_then(|()| open.flush()) {
            tracing::warn!(%error, "the governor's trace ends here");
            writer = None;
        }
    }))
}

/// Feeds a trace to today's policy; returns how many ticks it had, and where the decisions differ.
pub fn replay(
    trace: impl BufRead,
    set: &Setpoints,
) -> Result<(usize, Vec<Difference>), TraceError> {
    let mut forecaster = Forecaster::new();
    let mut state = policy::State::new();
    let mut actions = Vec::new();
    let mut differences = Vec::new();
    let mut ticks = 0;
    for text in trace.lines() {
        ticks += 1;
        let line: Line = serde_json::from_str(&text?)
            .map_err(|source| TraceError::Malformed { line: ticks, source })?;
        let headroom = forecaster.observe(&line.sample, &line.usage, set);
        let decision = policy::decide(&mut state, &headroom, &line.workload, set, &mut actions);
        let (recorded, now) = ((line.total, line.actions), (decision.total, actions.clone()));
        if recorded != now {
            differences.push(Difference { line: ticks, recorded, now });
        }
    }
    Ok((ticks, differences))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::run::{run, Observer as Onlooker, Steering, Until};
    use crate::sim::worlds::world;

    struct Recorded(Vec<u8>);

    impl Onlooker for Recorded {
        fn tick(&mut self, tick: &Tick<'_>) {
            record(tick, &mut self.0).expect("a vector takes all");
        }
    }

    fn recorded(seed: u64) -> Vec<u8> {
        let mut trace = Recorded(Vec::new());
        run(&world(seed), Steering::Governed, Until::Killed, &mut trace);
        trace.0
    }

    #[test]
    fn a_replay_decides_what_was_decided() {
        for seed in [3, 306, 1281] {
            let (ticks, differences) =
                replay(&recorded(seed)[..], &Setpoints::default()).expect("a trace");
            assert!(ticks > 30, "{ticks}");
            assert_eq!(differences, [], "seed {seed}");
        }
    }

    #[test]
    fn other_setpoints_show_where_they_decide_otherwise() {
        let wider = Setpoints { margin_floor: 0.1, ..Setpoints::default() };
        let (_, differences) = replay(&recorded(3)[..], &wider).expect("a trace");
        assert!(!differences.is_empty());
    }

    #[test]
    fn a_broken_line_is_an_error_that_names_it() {
        let mut trace = recorded(3);
        let first = trace.iter().position(|&b| b == b'\n').expect("a line");
        trace.truncate(first + 40);
        let error = replay(&trace[..], &Setpoints::default()).expect_err("half a line");
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
