//! Every kind at 2 KiB is proved, and accepted by Filecoin's verifier and by bellperson's.

use std::fs::File;
use std::io::BufReader;

use bellperson::groth16::{prepare_verifying_key, verify_proof, Proof, VerifyingKey};
use blstrs::{Bls12, Scalar};
use cuzk_core::groth16::PROOF_BYTES;
use cuzk_core::params::Params;
use cuzk_core::proof::{ProofKind, RawRequest};
use cuzk_core::sample::Sample;
use cuzk_tests::parameters;
use filecoin_proofs_api::RegisteredSealProof;

use super::{engine, parsed, proof, sample, submit, turn};

fn proved_and_verified_twice(kind: ProofKind) {
    let _turn = turn();
    let engine = engine(&[kind]);
    let sample = sample();
    let raw = sample.request(kind);
    let proof = proof(&engine, &submit(&engine, &raw));
    assert!(sample.verify_with_filecoin(kind, &proof).unwrap(), "Filecoin's API refuses it");
    assert!(bellperson_verifies(&raw, &proof), "bellperson refuses it");
    let mut other = proof.clone();
    other[..48].copy_from_slice(&proof[144..]);
    assert!(!bellperson_verifies(&raw, &other), "bellperson accepts anything");
    assert_eq!(engine.budget().usage().reserved, 0, "memory is still reserved");
}

/// Verifies with bellperson, and the key as bellperson reads it.
fn bellperson_verifies(raw: &RawRequest, proof: &[u8]) -> bool {
    let request = parsed(raw);
    let params = Params::new(parameters::development(&[request.kind()]));
    let key = params.vk_path(&request.circuit_id().file_stem().unwrap());
    let key = VerifyingKey::<Bls12>::read(BufReader::new(File::open(key).unwrap())).unwrap();
    let key = prepare_verifying_key(&key);
    assert_eq!(proof.len(), request.partitions() * PROOF_BYTES);
    proof.chunks(PROOF_BYTES).enumerate().all(|(k, bytes)| {
        let inputs: Vec<Scalar> = request.partition(k).unwrap().inputs;
        verify_proof(&key, &Proof::read(bytes).unwrap(), &inputs).unwrap()
    })
}

#[test]
fn a_winning_post_verifies_with_filecoin_and_bellperson() {
    proved_and_verified_twice(ProofKind::WinningPost);
}

#[test]
fn a_window_post_verifies_with_filecoin_and_bellperson() {
    proved_and_verified_twice(ProofKind::WindowPostPartition);
}

#[test]
fn a_snap_update_verifies_with_filecoin_and_bellperson() {
    proved_and_verified_twice(ProofKind::SnapDealsUpdate);
}

#[test]
fn a_porep_verifies_with_filecoin_and_bellperson() {
    proved_and_verified_twice(ProofKind::PorepSealCommit);
}

#[test]
fn non_interactive_and_synthetic_poreps_verify() {
    let _turn = turn();
    let kind = ProofKind::PorepSealCommit;
    let engine = engine(&[kind]);
    let synthetic = RegisteredSealProof::StackedDrg2KiBV1_1_Feat_SyntheticPoRep;
    let sample = Sample::sealed_with(synthetic, 3).unwrap();
    let bytes = proof(&engine, &submit(&engine, &sample.request(kind)));
    assert!(sample.verify_with_filecoin(kind, &bytes).unwrap());
    // Filecoin's API takes non-interactive proofs only aggregated: bellperson must do.
    let non_interactive = RegisteredSealProof::StackedDrg2KiBV1_2_Feat_NonInteractivePoRep;
    let raw = Sample::sealed_with(non_interactive, 3).unwrap().request(kind);
    let bytes = proof(&engine, &submit(&engine, &raw));
    assert!(bellperson_verifies(&raw, &bytes));
}
