//! Runs a scenario under every steering and tells how they compare, as a table and as one line of JSON.
//!
//! The oracle is the best fixed setting found by trying them all: every concurrency, with the SRS pinned
//! or mapped, with our books or the published daemon's, and none that is ever killed. It knows the
//! scenario beforehand, which no policy does.

use std::collections::BTreeMap;
use std::fmt;

use bytesize::ByteSize;
use serde::Serialize;

use crate::sim::plant::Books;
use crate::sim::run::{run, Observer, Outcome, Srs, Steering, Unobserved, Until};
use crate::sim::scenario::{limit_of, Scenario, Size};
use crate::sim::spec::World;

/// The oracle tries so many partitions at once.
const MOST_AT_ONCE: u32 = 48;

/// One steering's result.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name.
    pub policy: &'static str,
    /// What it does, in short.
    pub setting: String,
    /// How its run ended.
    pub outcome: Outcome,
}

/// A scenario's results.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The scenario.
    pub name: String,
    /// Its limit.
    pub limit: u64,
    /// One entry a steering; the oracle is left out where nothing survives.
    pub entries: Vec<Entry>,
}

/// The figures of one policy, as the last line of the output has them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// Times the plant was killed.
    pub kills: usize,
    /// Whole proofs an hour, loading and kills included.
    pub proofs_per_hour: f64,
    /// The same as a share of the oracle's; `null` where nothing survives.
    pub share_of_oracle: Option<f64>,
    /// Whether all work was finished or refused in time.
    pub done: bool,
}

/// Runs a world under every steering; `observer` looks at the governed run.
pub fn compare(world: &World, static_reserve: u64, observer: &mut dyn Observer) -> Comparison {
    let limit = limit_of(world);
    let below = limit.saturating_sub(static_reserve);
    let published = |total, after_kill| Steering::Fixed {
        total,
        concurrency: u32::MAX,
        books: Books::Published,
        srs: Srs::Pinned,
        after_kill,
    };
    let mut entries = vec![
        entry(world, "governed", "this crate's policy".into(), Steering::Governed, observer),
        entry(
            world,
            "static",
            format!("budget {}", ByteSize(below)),
            published(below, 1.0),
            &mut Unobserved,
        ),
        entry(
            world,
            "static-retry",
            "10 % less after each kill".into(),
            published(below, 0.9),
            &mut Unobserved,
        ),
        entry(world, "ungoverned", "no budget".into(), published(u64::MAX, 1.0), &mut Unobserved),
    ];
    entries.extend(oracle(world));
    Comparison { name: world.name.clone(), limit, entries }
}

fn entry(
    world: &World,
    policy: &'static str,
    setting: String,
    steering: Steering,
    observer: &mut dyn Observer,
) -> Entry {
    Entry { policy, setting, outcome: run(world, steering, Until::Done, observer) }
}

/// The best fixed setting that is never killed.
pub fn oracle(world: &World) -> Option<Entry> {
    let ways =
        [(Books::Published, Srs::Pinned), (Books::Whole, Srs::Pinned), (Books::Whole, Srs::Mapped)];
    let mut best: Option<Entry> = None;
    for (books, srs) in ways {
        for concurrency in 1..=MOST_AT_ONCE {
            let steering =
                Steering::Fixed { total: u64::MAX, concurrency, books, srs, after_kill: 1.0 };
            let outcome = run(world, steering, Until::Killed, &mut Unobserved);
            if !outcome.kills.is_empty() {
                // More at once takes more memory: none of them survives either.
                break;
            }
            let better = |b: &Entry| outcome.proofs_per_hour() > b.outcome.proofs_per_hour();
            if outcome.done && best.as_ref().is_none_or(better) {
                let setting =
                    format!("{concurrency} at once, SRS {srs:?}, {books:?} books").to_lowercase();
                best = Some(Entry { policy: "oracle", setting, outcome });
            }
        }
    }
    best
}

impl Comparison {
    /// The figures by name.
    pub fn figures(&self) -> BTreeMap<&'static str, Figures> {
        let best =
            self.entries.iter().find(|e| e.policy == "oracle").map(|e| e.outcome.proofs_per_hour());
        let figures = |e: &Entry| Figures {
            kills: e.outcome.kills.len(),
            proofs_per_hour: e.outcome.proofs_per_hour(),
            share_of_oracle: best.filter(|&b| b > 0.0).map(|b| e.outcome.proofs_per_hour() / b),
            done: e.outcome.done,
        };
        self.entries.iter().map(|e| (e.policy, figures(e))).collect()
    }

    /// The last line of the output: the figures as one line of JSON.
    pub fn json(&self) -> String {
        serde_json::json!({ "scenario": self.name, "policies": self.figures() }).to_string()
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = self.figures();
        writeln!(f, "{}, limit {}", self.name, ByteSize(self.limit))?;
        writeln!(
            f,
            "{:<13} {:>5} {:>10} {:>8} {:>8} {:>10} {:>6} {:>7}  setting",
            "policy", "kills", "first kill", "proofs", "proofs/h", "of oracle", "shed", "peak"
        )?;
        for e in &self.entries {
            let (o, fig) = (&e.outcome, &figures[e.policy]);
            writeln!(
                f,
                "{:<13} {:>5} {:>10} {:>8} {:>8.1} {:>10} {:>6} {:>7}  {}",
                e.policy,
                fig.kills,
                o.kills.first().map_or("-".into(), |at| format!("{:.0} s", at.as_secs_f64())),
                o.progress.proofs,
                fig.proofs_per_hour,
                fig.share_of_oracle.map_or("-".into(), |share| format!("{:.1} %", 100.0 * share)),
                o.progress.shed,
                format!("{} G", o.peak >> 30),
                e.setting,
            )?;
        }
        Ok(())
    }
}

/// The same workload on machines of several sizes.
#[derive(Debug, Clone)]
pub struct Sizes {
    rows: Vec<(Size, Comparison)>,
}

impl Sizes {
    /// Runs the scenario at each of its sizes.
    pub fn run(scenario: &Scenario) -> Self {
        let row = |size: &Size| {
            (
                *size,
                compare(&scenario.resized(size.limit.0), scenario.static_reserve, &mut Unobserved),
            )
        };
        Sizes { rows: scenario.sizes.iter().map(row).collect() }
    }

    /// One comparison a size.
    pub fn comparisons(&self) -> impl Iterator<Item = &Comparison> {
        self.rows.iter().map(|(_, comparison)| comparison)
    }
}

impl fmt::Display for Sizes {
    /// Seconds a proof are those of the full pipeline, from the first proof to the last.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>9} | {:>20} | {:>20} | {:>20} | {:>6} | {:>15}",
            "limit", "governed", "static", "oracle", "share", "published"
        )?;
        for (size, comparison) in &self.rows {
            let cell = |policy: &str| {
                let Some(e) = comparison.entries.iter().find(|e| e.policy == policy) else {
                    return "none".into();
                };
                match (e.outcome.kills.len(), e.outcome.seconds_a_proof()) {
                    (0, Some(s)) => format!("{s:.1} s, {} G", e.outcome.peak >> 30),
                    (0, None) => "no two proofs".into(),
                    (kills, Some(s)) => format!("{s:.1} s, {kills} kills"),
                    (kills, None) => format!("{kills} kills"),
                }
            };
            let published = match (size.seconds, size.peak) {
                (Some(s), Some(peak)) => format!("{s} s, {} G", peak.0 >> 30),
                _ => String::new(),
            };
            let share = comparison.figures().get("governed").and_then(|g| g.share_of_oracle);
            writeln!(
                f,
                "{:>9} | {:>20} | {:>20} | {:>20} | {:>6} | {:>15}",
                size.limit.to_string(),
                cell("governed"),
                cell("static"),
                cell("oracle"),
                share.map_or("-".into(), |s| format!("{:.0} %", 100.0 * s)),
                published,
            )?;
        }
        Ok(())
    }
}
