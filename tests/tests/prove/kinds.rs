//! Every kind at 2 KiB is proved, and accepted by Filecoin's verifier and by bellperson's.

use std::fs::File;
use std::io::BufReader;

use bellperson::groth16::{prepare_verifying_key, verify_proof, Proof, VerifyingKey};
use blstrs::{Bls12, Scalar};
use cuzk_core::circuit::Matrices;
use cuzk_core::device::Unhindered;
use cuzk_core::groth16::PROOF_BYTES;
use cuzk_core::memory::{PinnedPool, Plain};
use cuzk_core::params::Params;
use cuzk_core::pipeline;
use cuzk_core::proof::{Partition, ProofKind, ProofRequest};
use cuzk_core::sample::Sample;
use cuzk_governor::budget::{Ask, MemoryBudget};
use cuzk_tests::parameters;
use filecoin_proofs_api::RegisteredSealProof;

use super::{engine, parsed, proof, sample, submit, turn};

fn proved_and_verified_twice(sample: &Sample, kind: ProofKind) {
    let _turn = turn();
    let engine = engine(&[kind]);
    let raw = sample.request(kind);
    let proof = proof(&engine, &submit(&engine, &raw));
    assert!(sample.verify_with_filecoin(kind, &proof).unwrap(), "Filecoin's API refuses it");
    let request = parsed(&raw);
    let inputs: Vec<_> =
        (0..request.partitions()).map(|k| request.partition(k).unwrap().inputs).collect();
    assert!(bellperson_verifies(&request, &inputs, &proof), "bellperson refuses it");
    let mut other = proof.clone();
    other[..48].copy_from_slice(&proof[144..]);
    assert!(!bellperson_verifies(&request, &inputs, &other), "bellperson accepts anything");
    assert_eq!(engine.budget().usage().reserved, 0, "memory is still reserved");
}

/// Verifies with bellperson, and the key as bellperson reads it.
fn bellperson_verifies(request: &ProofRequest, inputs: &[Vec<Scalar>], proof: &[u8]) -> bool {
    let params = Params::new(parameters::development(&[request.kind()]));
    let key = params.vk_path(&request.circuit_id().file_stem().unwrap());
    let key = VerifyingKey::<Bls12>::read(BufReader::new(File::open(key).unwrap())).unwrap();
    let key = prepare_verifying_key(&key);
    assert_eq!(proof.len(), inputs.len() * PROOF_BYTES);
    proof.chunks(PROOF_BYTES).zip(inputs).all(|(bytes, inputs)| {
        Proof::read(bytes).is_ok_and(|proof| verify_proof(&key, &proof, inputs).unwrap())
    })
}

#[test]
fn a_winning_post_verifies_with_filecoin_and_bellperson() {
    proved_and_verified_twice(&sample(), ProofKind::WinningPost);
}

#[test]
fn a_window_post_verifies_with_filecoin_and_bellperson() {
    proved_and_verified_twice(&sample(), ProofKind::WindowPostPartition);
}

#[test]
fn a_snap_update_verifies_with_filecoin_and_bellperson() {
    proved_and_verified_twice(&sample(), ProofKind::SnapDealsUpdate);
}

#[test]
fn a_porep_verifies_with_filecoin_and_bellperson() {
    proved_and_verified_twice(&sample(), ProofKind::PorepSealCommit);
}

#[test]
fn a_synthetic_porep_verifies_with_filecoin_and_bellperson() {
    let synthetic = RegisteredSealProof::StackedDrg2KiBV1_1_Feat_SyntheticPoRep;
    let sample = Sample::sealed_with(synthetic, 3).unwrap();
    proved_and_verified_twice(&sample, ProofKind::PorepSealCommit);
}

/// One partition of it: together they take minutes, and Filecoin's API verifies only their
/// aggregate.
#[test]
fn a_non_interactive_poreps_partition_verifies_with_bellperson() {
    let _turn = turn();
    let kind = ProofKind::PorepSealCommit;
    let non_interactive = RegisteredSealProof::StackedDrg2KiBV1_2_Feat_NonInteractivePoRep;
    let request = parsed(&Sample::sealed_with(non_interactive, 3).unwrap().request(kind));
    assert!(request.partitions() > 1);
    let params = Params::new(parameters::development(&[kind]));
    let srs = params.open(&request.circuit_id(), &mut |_| {}, &Unhindered).unwrap();
    let pool = PinnedPool::new(1 << 30, 4 << 20, Box::new(Plain)).unwrap();
    let needs = pipeline::footprint(&srs.header().counts, 2, &pool).total();
    let mut memory = MemoryBudget::new(needs).try_reserve(Ask::new("partition", needs)).unwrap();
    let Partition { circuit, inputs } = request.partition(request.partitions() - 1).unwrap();
    let rng = &mut rand::rngs::OsRng;
    let (proof, _) =
        pipeline::prove(circuit, Matrices::Circuit, &srs, &pool, &mut memory, &Unhindered, rng)
            .unwrap();
    assert!(bellperson_verifies(&request, &[inputs], &proof.to_bytes()));
}
