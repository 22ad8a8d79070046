//! The policy in ten thousand unkind worlds, and the scenario it was made for.
//!
//! Replay a failing seed with `cuzk simulate --seed N`, or run another range with
//! `CUZK_SIM_FIRST=20000 CUZK_SIM_WORLDS=50000 cargo test -p cuzk-governor --test worlds`.

use std::num::NonZero;
use std::ops::Range;

use cuzk_governor::sim::report::compare;
use cuzk_governor::sim::run::Unobserved;
use cuzk_governor::sim::scenario::{Scenario, ScenarioError, BUILT_IN};
use cuzk_governor::sim::worlds::{judge, Verdict};

fn from_environment(key: &str, default: u64) -> u64 {
    std::env::var(key).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{key}={text} is no number"))
    })
}

/// Judges a range of seeds on all cores.
fn verdicts(seeds: Range<u64>) -> Vec<Verdict> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get) as u64;
    std::thread::scope(|scope| {
        let part = |thread| seeds.clone().skip(thread as usize).step_by(threads as usize);
        let workers: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || part_verdicts(part(thread)))).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a judge panicked")).collect()
    })
}

fn part_verdicts(seeds: impl Iterator<Item = u64>) -> Vec<Verdict> {
    seeds.map(judge).collect()
}

#[test]
fn in_ten_thousand_worlds_nothing_avoidable_happens() {
    let first = from_environment("CUZK_SIM_FIRST", 0);
    let count = from_environment("CUZK_SIM_WORLDS", 10_000);
    let verdicts = verdicts(first..first + count);
    let sum = |value: fn(&Verdict) -> u64| verdicts.iter().map(value).sum::<u64>();
    println!(
        "seeds {first}..{}: {} killed where nothing could have helped, {} partitions finished, {} refused, {} shed",
        first + count,
        verdicts.iter().filter(|v| v.broken.is_none() && !v.outcome.kills.is_empty()).count(),
        sum(|v| v.outcome.progress.finished),
        sum(|v| v.outcome.progress.refused),
        sum(|v| v.outcome.progress.shed),
    );
    let broken: Vec<String> = verdicts
        .iter()
        .filter_map(|v| {
            v.broken
                .as_ref()
                .map(|b| format!("seed {}: {b}; replay: cuzk simulate --seed {0}", v.seed))
        })
        .collect();
    assert!(broken.is_empty(), "{} worlds broke a rule:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn a_seed_is_one_world_and_one_run() {
    for seed in [3, 14, 159] {
        assert_eq!(judge(seed).outcome, judge(seed).outcome, "seed {seed}");
    }
}

#[test]
fn on_seed_342_the_static_margin_is_killed_and_the_governor_is_near_the_oracle() {
    let scenario = Scenario::load("seed-342").expect("built in");
    let comparison = compare(&scenario.world, scenario.static_reserve, &mut Unobserved);
    println!("{comparison}{}", comparison.json());
    let figures = comparison.figures();
    let fixed = comparison.entries.iter().find(|e| e.policy == "static").expect("an entry");
    let four_proofs = std::time::Duration::from_secs(240);
    assert!(
        fixed.outcome.kills.first().is_some_and(|&at| at < four_proofs),
        "{:?}",
        fixed.outcome.kills
    );
    assert_eq!(figures["governed"].kills, 0);
    assert!(figures["governed"].share_of_oracle >= Some(0.95), "{figures:?}");
}

#[test]
fn in_no_shipped_scenario_the_governor_is_killed() {
    for (name, _) in BUILT_IN {
        let scenario = Scenario::load(name).expect("built in");
        let comparison = compare(&scenario.world, scenario.static_reserve, &mut Unobserved);
        let governed = comparison.figures()["governed"];
        assert_eq!(governed.kills, 0, "{comparison}");
        assert!(governed.done, "{comparison}");
    }
}

#[test]
fn a_wrong_value_is_an_error_that_names_its_key() {
    let (_, text) = BUILT_IN[0];
    for (from, to, key) in [
        ("srs = \"44GiB\"", "srs = \"44 parsecs\"", "srs"),
        ("srs = \"44GiB\"", "sars = \"44GiB\"", "sars"),
        ("released = \"12.5GiB\"", "released = \"20GiB\"", "jobs[0].released"),
        ("synthesis_threads = 18", "synthesis_threads = 0", "plant.synthesis_threads"),
        ("horizon = \"3h\"", "horizon = \"3 parsecs\"", "horizon"),
    ] {
        let error: ScenarioError = Scenario::parse("test", &text.replace(from, to)).expect_err(to);
        assert!(error.to_string().contains(key), "{error}");
    }
}
