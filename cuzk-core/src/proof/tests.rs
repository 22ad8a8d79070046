//! What holds for requests of every kind, on freshly sealed 2 KiB sectors.

use std::sync::OnceLock;

use bellpepper_core::{LinearCombination, SynthesisError};
use blstrs::Scalar;
use filecoin_proofs_api::RegisteredSealProof;
use storage_proofs_core::parameter_cache::get_parameter_data_from_id;

use super::*;
use crate::circuit::{diagnose, AnyCircuit, ConstraintSink, Diagnosis};
use crate::sample::Sample;

/// One sector for all tests: sealing takes longer than most of them.
pub(super) fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| Sample::make(7).expect("a 2 KiB sector"))
}

fn parsed(kind: ProofKind) -> ProofRequest {
    ProofRequest::parse(&sample().request(kind)).expect("a request of the sample")
}

/// Constraints and aux variables of the 2 KiB circuits.
const COUNTS: [(ProofKind, usize, usize); 4] = [
    (ProofKind::PorepSealCommit, 2_687_961, 2_685_673),
    (ProofKind::SnapDealsUpdate, 1_705_044, 1_703_569),
    (ProofKind::WindowPostPartition, 21_889, 22_128),
    (ProofKind::WinningPost, 90_883, 91_674),
];

/// Counts, and keeps the public inputs.
#[derive(Default)]
pub(super) struct Count {
    with_values: bool,
    pub(super) inputs: Vec<Scalar>,
    aux: usize,
    pub(super) rows: usize,
}

impl ConstraintSink for Count {
    fn wants_values(&self) -> bool {
        self.with_values
    }

    fn input(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        self.inputs.extend(value);
        Ok(())
    }

    fn aux(&mut self, _: Option<Scalar>) -> Result<(), SynthesisError> {
        self.aux += 1;
        Ok(())
    }

    fn enforce(
        &mut self,
        _: LinearCombination<Scalar>,
        _: LinearCombination<Scalar>,
        _: LinearCombination<Scalar>,
    ) {
        self.rows += 1;
    }
}

impl Count {
    pub(super) fn of(
        circuit: Box<dyn AnyCircuit>,
        with_values: bool,
    ) -> Result<Self, SynthesisError> {
        let mut count = Self { with_values, ..Self::default() };
        circuit.synthesize_into(&mut count)?;
        Ok(count)
    }
}

#[test]
fn names_read_back() {
    for kind in ProofKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    for (name, kind) in [
        ("update", ProofKind::SnapDealsUpdate),
        ("window", ProofKind::WindowPostPartition),
        ("winning", ProofKind::WinningPost),
    ] {
        assert_eq!(name.parse(), Ok(kind));
    }
    for id in CircuitId::all() {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
    assert_eq!(CircuitId::all().count(), 20);
    for name in ["porep-32g", "wpost-32g", "winning-32g", "snap-32g", "porep-2k", "snap-512m"] {
        assert!(name.parse::<CircuitId>().is_ok(), "{name}");
    }
    let error = "porep-4k".parse::<CircuitId>().unwrap_err().to_string();
    assert!(error.contains("porep-4k") && error.contains("512m"), "{error}");
}

#[test]
fn urgent_kinds_go_first_by_default() {
    let priorities = ProofKind::ALL.map(ProofKind::default_priority);
    assert_eq!(
        priorities,
        [Priority::Normal, Priority::Normal, Priority::High, Priority::Critical]
    );
    assert!(Priority::Low < Priority::Normal && Priority::High < Priority::Critical);
}

#[test]
fn every_circuit_has_published_parameters_of_its_size() {
    let mut stems: Vec<_> = CircuitId::all()
        .map(|id| {
            let stem = id.file_stem().unwrap();
            let file = format!("{stem}.params");
            let data = get_parameter_data_from_id(&file);
            let data = data.unwrap_or_else(|| panic!("{id}: {stem} is not published"));
            assert_eq!(data.sector_size, id.sector_size.bytes(), "{id}");
            stem
        })
        .collect();
    stems.sort();
    stems.dedup();
    assert_eq!(stems.len(), 20, "no two circuits share parameters");
}

/// Why a circuit's id holds no variant.
#[test]
fn all_versions_of_a_proof_share_parameters() {
    let stem = |registered: RegisteredSealProof| registered.circuit_identifier().unwrap();
    for (i, size) in SectorSize::ALL.into_iter().enumerate() {
        let id = CircuitId { kind: ProofKind::PorepSealCommit, sector_size: size };
        for version in 0..4 {
            let registered = registered::seal(5 * version + i as u64).unwrap();
            assert!(id.file_stem().unwrap().ends_with(&stem(registered)), "{registered:?}");
        }
        let id = CircuitId { kind: ProofKind::WindowPostPartition, sector_size: size };
        for version in 1..3 {
            let registered = registered::post(5 * version + i as u64).unwrap();
            let identifier = registered.circuit_identifier().unwrap();
            assert!(id.file_stem().unwrap().ends_with(&identifier), "{registered:?}");
        }
    }
}

#[test]
fn blank_circuits_have_the_known_dimensions() {
    let rows = |name: &str| {
        let blank = name.parse::<CircuitId>().unwrap().blank().unwrap();
        Count::of(blank, false).unwrap().rows
    };
    assert_eq!(rows("winning-32g"), 370_723);
    assert_eq!(rows("porep-8m"), 3_844_969);
}

#[test]
fn witnesses_satisfy_every_constraint_and_state_the_public_inputs() {
    for (kind, rows, aux) in COUNTS {
        let request = parsed(kind);
        assert_eq!(request.partitions(), 1);
        let Partition { circuit, inputs } = request.partition(0).unwrap();
        let count = Count::of(circuit, true).unwrap();
        assert_eq!((count.rows, count.aux), (rows, aux), "{kind}");
        assert_eq!(count.inputs[1..], inputs[..], "{kind}");

        let blank = Count::of(request.circuit_id().blank().unwrap(), false).unwrap();
        assert_eq!((blank.rows, blank.aux), (rows, aux), "blank {kind}");

        let circuit = request.partition(0).unwrap().circuit;
        assert_eq!(diagnose(circuit), Diagnosis::Satisfied { rows }, "{kind}");
    }
}

#[test]
fn every_version_of_porep_is_proved_partition_by_partition() {
    use RegisteredSealProof::*;
    for (seal, partitions) in [
        (StackedDrg2KiBV1, 1),
        (StackedDrg2KiBV1_1_Feat_SyntheticPoRep, 1),
        (StackedDrg2KiBV1_2_Feat_NonInteractivePoRep, 13),
    ] {
        let sample = Sample::sealed_with(seal, 3).unwrap();
        let raw = sample.request(ProofKind::PorepSealCommit);
        let request = ProofRequest::parse(&raw).unwrap();
        assert_eq!(request.partitions(), partitions, "{seal:?}");
        let Partition { circuit, inputs } = request.partition(partitions - 1).unwrap();
        let count = Count::of(circuit, true).unwrap();
        assert_eq!((count.rows, count.aux), (COUNTS[0].1, COUNTS[0].2), "{seal:?}");
        assert_eq!(count.inputs[1..], inputs[..], "{seal:?}");
    }
}

#[test]
fn a_partition_that_is_not_there_is_an_error() {
    let request = parsed(ProofKind::WinningPost);
    let error = request.partition(1).err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some("partition 1 asked for, the proof has 1"));
}

#[test]
fn the_same_seed_makes_the_same_sector() {
    let again = Sample::make(7).unwrap();
    for kind in ProofKind::ALL {
        assert_eq!(again.request(kind), sample().request(kind), "{kind}");
    }
    let other = Sample::make(8).unwrap().request(ProofKind::WinningPost);
    assert_ne!(other.vanilla_proofs, sample().request(ProofKind::WinningPost).vanilla_proofs);
}

#[test]
fn the_content_hash_is_of_what_is_proved_not_of_who_asks() {
    let raw = sample().request(ProofKind::WindowPostPartition);
    let hash = |raw: &RawRequest| ProofRequest::parse(raw).unwrap().content_hash();
    let renamed = RawRequest { request_id: "other".into(), priority: 1, ..raw.clone() };
    assert_eq!(hash(&raw), hash(&renamed));
    let moved = RawRequest { partition_index: 1, ..raw.clone() };
    assert_ne!(hash(&raw), hash(&moved));
    let twice =
        RawRequest { vanilla_proofs: vec![raw.vanilla_proofs[0].clone(); 2], ..raw.clone() };
    assert_ne!(hash(&raw), hash(&twice));
}

#[test]
fn a_request_knows_its_memory() {
    for kind in ProofKind::ALL {
        let raw = sample().request(kind);
        let body = raw.vanilla_proof.len() + raw.vanilla_proofs.iter().map(Vec::len).sum::<usize>();
        let bytes = parsed(kind).memory_bytes();
        let plausible = body as u64 / 8..2 * body as u64;
        assert!(plausible.contains(&bytes), "{kind}: {bytes} B of a body of {body} B");
    }
}

/// A false vanilla proof of the right shape: SnapDeals' circuit asserts on its values.
#[test]
fn a_panic_in_synthesis_is_an_error_of_it() {
    let mut raw = sample().request(ProofKind::SnapDealsUpdate);
    // The new replica's leaf in the last path: before two layers of 7 siblings and an index.
    let leaf = raw.vanilla_proofs[0].len() - (32 + 8 + 2 * (8 + 7 * 32 + 8));
    raw.vanilla_proofs[0][leaf] ^= 1;
    let circuit = ProofRequest::parse(&raw).unwrap().partition(0).unwrap().circuit;
    match diagnose(circuit) {
        Diagnosis::Failed(why) => assert!(why.contains("the vanilla proof is false"), "{why}"),
        other => panic!("{other}"),
    }
}

#[test]
fn prover_ids_are_left_aligned_varints() {
    assert_eq!(prover_id(1000)[..3], [0xe8, 0x07, 0]);
    assert_eq!(prover_id(0), [0; 32]);
    let longest = prover_id(u64::MAX);
    assert_eq!((longest[8], longest[9], longest[10]), (0xff, 1, 0));
}
