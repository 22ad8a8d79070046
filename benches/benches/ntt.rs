//! Transforms and the quotient against bellperson's, on as many threads, in turn; medians.
//!
//! `cargo bench -p cuzk-benches --bench ntt [-- LOG2_SIZE]` (2^20 if not said otherwise). The last
//! line is JSON, in seconds and ratios (ours / bellperson's). Both pools have a thread per processor.

use std::time::Instant;

use anyhow::Context;
use bellperson::domain::EvaluationDomain;
use blstrs::Scalar;
use cuzk_core::device::cpu::domain::{Domain, Kernel};
use cuzk_core::device::cpu::quotient::quotient;
use cuzk_core::device::Unhindered;
use serde_json::json;

const ROUNDS: usize = 5;

fn main() -> anyhow::Result<()> {
    let log2_size = match std::env::args().skip(1).find(|arg| !arg.starts_with('-')) {
        Some(arg) => arg.parse().with_context(|| format!("'{arg}' is not a binary logarithm"))?,
        None => 20,
    };
    let best = Domain::with_kernel(log2_size, Kernel::best())?;
    let portable = Domain::with_kernel(log2_size, Kernel::Portable)?;
    let values = values(best.size());

    println!("2^{log2_size} on {} threads, seconds; ours: {:?}", threads(), Kernel::best());
    println!("{:10} {:>10} {:>10} {:>10} {:>8}", "", "bellperson", "portable", "ours", "ratio");
    let mut report = json!({ "log2_size": log2_size, "threads": threads() });
    for (name, run) in [("fft", fft as fn(Side, &[Scalar]) -> f64), ("quotient", whole_quotient)] {
        let [theirs, portable, ours] = in_turn([
            &|| run(Side::Bellperson, &values),
            &|| run(Side::Ours(&portable), &values),
            &|| run(Side::Ours(&best), &values),
        ]);
        let ratio = ours / theirs;
        println!("{name:10} {theirs:10.4} {portable:10.4} {ours:10.4} {ratio:8.3}");
        report[name] =
            json!({ "bellperson": theirs, "portable": portable, "ours": ours, "ratio": ratio });
    }
    println!("{report}");
    Ok(())
}

#[derive(Clone, Copy)]
enum Side<'a> {
    Bellperson,
    Ours(&'a Domain),
}

fn fft(side: Side, values: &[Scalar]) -> f64 {
    let mut x = values.to_vec();
    match side {
        Side::Ours(domain) => seconds(|| domain.fft(&mut x, &Unhindered).expect("unhindered")),
        Side::Bellperson => {
            let mut x = EvaluationDomain::from_coeffs(x).expect("a domain of the field");
            seconds(|| x.fft(&Default::default(), &mut None).expect("on the CPU"))
        }
    }
}

/// All rows used: `A = B`, so that `C`'s values are their squares.
fn whole_quotient(side: Side, values: &[Scalar]) -> f64 {
    let [mut a, b, scratch] = [(); 3].map(|()| values.to_vec());
    match side {
        Side::Ours(domain) => seconds(|| {
            quotient(domain, &mut a, b, scratch, &Unhindered).expect("unhindered");
        }),
        Side::Bellperson => {
            let c = a.iter().map(|a| a * a).collect();
            let worker = &Default::default();
            seconds(|| {
                let [mut a, b, c] = [a, b, c].map(|x| {
                    let mut x = EvaluationDomain::from_coeffs(x).expect("a domain of the field");
                    x.ifft(worker, &mut None).expect("on the CPU");
                    x.coset_fft(worker, &mut None).expect("on the CPU");
                    x
                });
                a.mul_assign(worker, &b);
                a.sub_assign(worker, &c);
                a.divide_by_z_on_coset(worker);
                a.icoset_fft(worker, &mut None).expect("on the CPU");
            })
        }
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Each contestant's median over the rounds; they take turns, so that a slow spell hits all of them.
fn in_turn<const N: usize>(contestants: [&dyn Fn() -> f64; N]) -> [f64; N] {
    let mut times = [[0.0; ROUNDS]; N];
    for round in 0..ROUNDS {
        for (times, run) in times.iter_mut().zip(contestants) {
            times[round] = run();
        }
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    })
}

/// Full-size values: powers of the field's generator.
fn values(count: usize) -> Vec<Scalar> {
    let step = Scalar::from(7);
    std::iter::successors(Some(step), |x| Some(*x * step)).take(count).collect()
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
