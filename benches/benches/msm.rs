//! Multi-scalar multiplications of random scalars against the yardsticks, on the same threads.
//!
//! The contestants alternate and their median counts. `cargo bench --bench msm -- 20 16 5` takes
//! 2^20 points of G1, 2^16 of G2 and five rounds. blst brings its own threads: one a CPU.

use bellperson::{gpu::LockedMultiexpKernel, multiexp::multiexp};
use blst::MultiPoint;
use blstrs::{G1Affine, G1Projective, G2Affine, G2Projective, Scalar};
use cuzk_core::device::cpu::msm::{msm_g1, msm_g2, portable_msm_g1, portable_msm_g2, Scalars};
use cuzk_core::device::Unhindered;
use ec_gpu_gen::{multiexp_cpu::FullDensity, threadpool::Worker};
use ff::{Field, PrimeField};
use group::{Curve, Group};
use rand::{rngs::StdRng, SeedableRng};
use serde_json::{json, Map, Value};
use std::sync::Arc;
use std::time::Instant;

/// A contestant: its name and what it does.
type Contestant<'a, T> = (&'static str, Box<dyn Fn() -> T + 'a>);

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|arg| arg.parse::<usize>().ok());
    let (g1, g2) = (1 << arguments.next().unwrap_or(18), 1 << arguments.next().unwrap_or(16));
    let rounds = arguments.next().unwrap_or(3);
    let mut rng = StdRng::seed_from_u64(1);
    let scalars: Vec<_> = (0..g1.max(g2)).map(|_| Scalar::random(&mut rng)).collect();
    let threads = rayon::current_num_threads();
    println!("{threads} threads, median of {rounds}, seconds");
    let g1_seconds = measure_g1(&scalars[..g1], rounds);
    let g2_seconds = measure_g2(&scalars[..g2], rounds);
    let report = json!({
        "bench": "msm", "threads": threads, "rounds": rounds,
        "g1": { "points": g1, "seconds": g1_seconds },
        "g2": { "points": g2, "seconds": g2_seconds },
    });
    println!("{report}");
}

macro_rules! measure {
    ($name:ident, $title:expr, $affine:ty, $projective:ty, $blst:ty, $fast:ident, $portable:ident) => {
        fn $name(scalars: &[Scalar], rounds: usize) -> Map<String, Value> {
            let n = scalars.len();
            let generator = <$projective>::generator();
            let multiples: Vec<_> =
                std::iter::successors(Some(generator), |p| Some(p + generator)).take(n).collect();
            let mut points = vec![<$affine>::default(); n];
            <$projective>::batch_normalize(&multiples, &mut points);
            let points = Arc::new(points);
            let exponents: Arc<Vec<_>> = Arc::new(scalars.iter().map(|s| s.to_repr()).collect());
            let worker = Worker::new();
            let all = || Scalars::all(scalars);
            compare::<$projective>(
                &format!("{}, {n} points", $title),
                rounds,
                vec![
                    ("cuzk", Box::new(|| $fast(&points, all(), &Unhindered).unwrap())),
                    ("cuzk portable", Box::new(|| $portable(&points, all(), &Unhindered).unwrap())),
                    (
                        "blst",
                        Box::new(|| {
                            // SAFETY: blstrs' point is a transparent wrapper of blst's.
                            let points = unsafe {
                                std::slice::from_raw_parts(points.as_ptr().cast::<$blst>(), n)
                            };
                            let mut sum = <$projective>::identity();
                            *sum.as_mut() = points.mult(exponents.as_flattened(), 255);
                            sum
                        }),
                    ),
                    (
                        "bellperson",
                        Box::new(|| {
                            let mut kernel = LockedMultiexpKernel::<$affine>::new(false);
                            let (bases, exponents) = ((points.clone(), 0), exponents.clone());
                            multiexp(&worker, bases, FullDensity, exponents, &mut kernel)
                                .wait()
                                .unwrap()
                        }),
                    ),
                ],
            )
        }
    };
}

measure!(measure_g1, "G1", G1Affine, G1Projective, blst::blst_p1_affine, msm_g1, portable_msm_g1);
measure!(measure_g2, "G2", G2Affine, G2Projective, blst::blst_p2_affine, msm_g2, portable_msm_g2);

/// Runs everybody in turn, checks that all agree, prints and returns the medians.
fn compare<T: PartialEq>(
    title: &str,
    rounds: usize,
    contestants: Vec<Contestant<'_, T>>,
) -> Map<String, Value> {
    let mut seconds = vec![vec![]; contestants.len()];
    for _ in 0..rounds {
        let mut first = None;
        for ((name, run), seconds) in contestants.iter().zip(&mut seconds) {
            let start = Instant::now();
            let result = run();
            seconds.push(start.elapsed().as_secs_f64());
            assert!(first.as_ref().is_none_or(|first| *first == result), "{name} disagrees");
            first = Some(result);
        }
    }
    println!("{title}");
    let mut medians = Map::new();
    for ((name, _), mut seconds) in contestants.iter().zip(seconds) {
        seconds.sort_by(f64::total_cmp);
        let median = seconds[seconds.len() / 2];
        println!("  {name:<16}{median:8.3}");
        medians.insert((*name).into(), median.into());
    }
    medians
}
