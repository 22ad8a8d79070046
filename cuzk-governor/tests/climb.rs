//! How the climb does where equal partitions run in waves: begun together, they end together, so any
//! window that is not of whole waves shows a throughput that is off by far more than one partition.

use std::time::Duration;

use cuzk_governor::budget::Priority;
use cuzk_governor::policy::Shed;
use cuzk_governor::setpoints::Setpoints;
use cuzk_governor::sim::kernel::Machine;
use cuzk_governor::sim::report::oracle;
use cuzk_governor::sim::run::{run, Observer, Row, Steering, Until};
use cuzk_governor::sim::spec::{Job, PlantSpec, World, GIB};

/// What ran at each second at which work waited.
#[derive(Default)]
struct AtOnce(Vec<u32>);

impl Observer for AtOnce {
    fn row(&mut self, row: Row) {
        if row.waiting > 0 {
            self.0.push(row.running);
        }
    }
}

impl AtOnce {
    /// Over the last third, rounded.
    fn settled(&self) -> u32 {
        let late = &self.0[self.0.len() / 3 * 2..];
        (late.iter().sum::<u32>() + late.len() as u32 / 2) / late.len() as u32
    }
}

/// Room for ten partitions of 10 GiB and half of an eleventh; an SRS and a circuit so small that they
/// do not matter, and 40 proofs of ten.
fn ten_fit(plant: PlantSpec) -> World {
    let setpoints = Setpoints { grow_cooldown: Duration::from_secs(2), ..Setpoints::default() };
    World {
        name: "waves".into(),
        machine: Machine { total: 256 * GIB, reclaim_per_s: 4 * GIB, swap: 0, swap_per_s: 0 },
        limits: vec![Some(115 * GIB)],
        high: None,
        oom_score_adj: 0,
        plant: PlantSpec {
            srs: GIB,
            compiled: GIB,
            synthesis_threads: 64,
            finish_s: 0.5,
            arena_share: 0.0,
            ..plant
        },
        jobs: vec![
            Job {
                at: Duration::ZERO,
                priority: Priority::Normal,
                shed: Shed::Freely,
                estimate: 10 * GIB,
                peaks: vec![10 * GIB; 10],
                pinned_share: 0.1,
                scale: 1.0,
            };
            40
        ],
        in_flight: 4,
        events: vec![],
        neighbours: vec![],
        setpoints,
        step: Duration::from_millis(250),
        horizon: Duration::from_secs(24 * 3600),
    }
}

/// What ran at once in the end, and the share of the best fixed setting's throughput.
fn governed(world: &World) -> (u32, f64) {
    let mut at_once = AtOnce::default();
    let outcome = run(world, Steering::Governed, Until::Done, &mut at_once);
    let best = oracle(world).expect("something survives").outcome;
    assert!(outcome.done && outcome.kills.is_empty(), "{outcome:?}");
    (at_once.settled(), outcome.proofs_per_hour() / best.proofs_per_hour())
}

#[test]
fn where_all_that_fit_in_memory_pay_all_of_them_run() {
    for contention in [0.0, 0.02] {
        let plant = PlantSpec {
            synthesis_s: 200.0,
            contention,
            devices: 16,
            device_s: 10.0,
            ..PlantSpec::default()
        };
        let (settled, share) = governed(&ten_fit(plant));
        println!("contention {contention}: {settled} at once, {share:.3} of the oracle");
        assert!((9..=10).contains(&settled), "{settled} at once");
        assert!(share > 0.97, "{share:.3} of the oracle");
    }
}

#[test]
fn where_one_device_is_all_that_counts_fewer_run_than_fit() {
    let plant = PlantSpec {
        synthesis_s: 100.0,
        contention: 0.0,
        devices: 1,
        device_s: 25.0,
        ..PlantSpec::default()
    };
    let (settled, share) = governed(&ten_fit(plant));
    println!("{settled} at once, {share:.3} of the oracle");
    assert!((5..=7).contains(&settled), "{settled} at once, and five keep the device busy");
    assert!(share > 0.97, "{share:.3} of the oracle");
}
