//! Requests of production sizes. There is no such sector here, so their vanilla proofs are made up:
//! of the right shape, false in content. They must be accepted and give the production circuits.

use filecoin_hashers::poseidon::{PoseidonDomain, PoseidonHasher};
use filecoin_hashers::sha256::Sha256Domain;
use filecoin_hashers::Domain;
use filecoin_proofs::constants::{SectorShapeSub8, SectorShapeTop2};
use filecoin_proofs::parameters::setup_params;
use filecoin_proofs::types::{FallbackPoStSectorProof, VanillaSealProof};
use filecoin_proofs_api::seal::{self, SealCommitPhase1Output};
use filecoin_proofs_api::{MerkleTreeTrait, RegisteredSealProof};
use storage_proofs_porep::stacked;
use storage_proofs_post::fallback::{self, generate_leaf_challenge, SectorProof};
use storage_proofs_update::vanilla::ChallengeProof;
use storage_proofs_update::{PartitionProof, PublicParams};

use super::tests::Count;
use super::vanilla::tests::made_up;
use super::vanilla::TreeShape;
use super::*;

type Tree = SectorShapeSub8;
const GIB_32: SectorSize = SectorSize::GiB32;

fn node(byte: u8) -> PoseidonDomain {
    PoseidonDomain::try_from_bytes(&[byte; 32]).unwrap()
}

fn seal_opening(challenge: usize) -> VanillaSealProof<Tree> {
    let replica = TreeShape::replica(GIB_32);
    let column = |index: usize| {
        let path = made_up(&replica, index);
        stacked::ColumnProof::new(index as u32, vec![node(3); 11], path)
    };
    let labels = vec![node(4); 37];
    let node = challenge as u64;
    stacked::Proof {
        comm_d_proofs: made_up(&TreeShape::data(GIB_32), challenge),
        comm_r_last_proof: made_up(&replica, challenge),
        replica_column_proofs: stacked::ReplicaColumnProof {
            c_x: column(challenge),
            drg_parents: (0..6).map(column).collect(),
            exp_parents: (6..14).map(column).collect(),
        },
        labeling_proofs: (1..12)
            .map(|layer| stacked::LabelingProof::new(layer, node, labels.clone()))
            .collect(),
        encoding_proof: stacked::EncodingProof::new(11, node, labels.clone()),
    }
}

fn porep() -> RawRequest {
    let registered = RegisteredSealProof::StackedDrg32GiBV1_1;
    let setup = setup_params(&registered.as_v1_config()).unwrap();
    let public = stacked::PublicInputs {
        replica_id: node(5),
        seed: Some([6; 32]),
        tau: Some(stacked::Tau { comm_d: Sha256Domain([7; 32]), comm_r: node(8) }),
        k: None,
    };
    let partition = |k| {
        let challenges = public.challenges(&setup.challenges, GIB_32.nodes(), Some(k));
        challenges.into_iter().map(seal_opening).collect()
    };
    let output = SealCommitPhase1Output {
        registered_proof: registered,
        vanilla_proofs: seal::VanillaSealProof::StackedDrg32GiBV1((0..10).map(partition).collect()),
        comm_r: [8; 32],
        comm_d: [7; 32],
        replica_id: node(5),
        seed: [6; 32],
        ticket: [9; 32],
    };
    RawRequest {
        proof_kind: ProofKind::PorepSealCommit.wire_number(),
        registered_proof: registered as u64,
        vanilla_proof: serde_json::to_vec(&output).unwrap(),
        ..RawRequest::default()
    }
}

fn winning<T: 'static + MerkleTreeTrait<Hasher = PoseidonHasher>>(size: SectorSize) -> RawRequest {
    let params = fallback::PublicParams {
        sector_size: size.bytes(),
        challenge_count: 1,
        sector_count: 66,
        api_version: filecoin_proofs_api::ApiVersion::V1_0_0,
    };
    let path = |n| {
        let leaf = generate_leaf_challenge(&params, node(9), 1, n);
        made_up(&TreeShape::replica(size), leaf as usize)
    };
    let sector = SectorProof::<T::Proof> {
        inclusion_proofs: (0..66).map(path).collect(),
        comm_c: node(3),
        comm_r_last: node(2),
    };
    let sector = FallbackPoStSectorProof::<T> {
        sector_id: 1.into(),
        comm_r: node(4),
        vanilla_proof: fallback::Proof { sectors: vec![sector] },
    };
    RawRequest {
        proof_kind: ProofKind::WinningPost.wire_number(),
        registered_proof: size as u64,
        vanilla_proofs: vec![bincode::serialize(&sector).unwrap()],
        randomness: vec![9; 32],
        ..RawRequest::default()
    }
}

fn snap() -> RawRequest {
    let params = PublicParams::from_sector_size(GIB_32.bytes());
    let challenge = |leaf| ChallengeProof::<Tree> {
        proof_r_old: made_up(&TreeShape::replica(GIB_32), leaf),
        proof_d_new: made_up(&TreeShape::data(GIB_32), leaf),
        proof_r_new: made_up(&TreeShape::replica(GIB_32), leaf),
    };
    let partition = |k| PartitionProof {
        comm_c: node(3),
        apex_leafs: vec![Sha256Domain([4; 32]); params.apex_leaf_count],
        challenge_proofs: (0..params.challenge_count).map(|i| challenge(k << 26 | i)).collect(),
    };
    let partitions = (0..params.partition_count).map(partition);
    RawRequest {
        proof_kind: ProofKind::SnapDealsUpdate.wire_number(),
        registered_proof: 3,
        vanilla_proofs: partitions.map(|proof| bincode::serialize(&proof).unwrap()).collect(),
        comm_r_old: vec![5; 32],
        comm_r_new: vec![6; 32],
        comm_d_new: vec![7; 32],
        ..RawRequest::default()
    }
}

#[test]
fn winning_post_of_production_size_gives_its_circuit() {
    for (raw, name) in [
        (winning::<SectorShapeSub8>(SectorSize::GiB32), "winning-32g"),
        (winning::<SectorShapeTop2>(SectorSize::GiB64), "winning-64g"),
    ] {
        let request = ProofRequest::parse(&raw).unwrap();
        assert_eq!(request.circuit_id().to_string(), name);
        let Partition { circuit, inputs } = request.partition(0).unwrap();
        let count = Count::of(circuit, true).unwrap();
        let blank = Count::of(request.circuit_id().blank().unwrap(), false).unwrap();
        assert_eq!(count.rows, blank.rows, "{name}");
        assert_eq!(count.inputs[1..], inputs[..], "{name}");
    }
}

#[test]
fn porep_of_production_size_is_accepted() {
    let request = ProofRequest::parse(&porep()).unwrap();
    assert_eq!(
        (request.circuit_id().to_string().as_str(), request.partitions()),
        ("porep-32g", 10)
    );
    // Three commitments; a challenge has four leaves of its own and fourteen parents.
    let inputs = request.partition(9).unwrap().inputs;
    assert_eq!(inputs.len(), 3 + 18 * 18);
}

#[test]
fn snap_of_production_size_is_accepted() {
    let request = ProofRequest::parse(&snap()).unwrap();
    assert_eq!((request.circuit_id().to_string().as_str(), request.partitions()), ("snap-32g", 16));
    assert_eq!(request.partition(15).unwrap().inputs.len(), 4);
}

#[test]
#[ignore = "synthesises 211 million constraints"]
fn partitions_of_production_size_have_the_known_dimensions() {
    for (raw, rows) in [(porep(), 130_278_869), (snap(), 81_049_504)] {
        let partition = ProofRequest::parse(&raw).unwrap().partition(0).unwrap();
        assert_eq!(Count::of(partition.circuit, false).unwrap().rows, rows);
    }
}
