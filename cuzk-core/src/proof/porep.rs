//! PoRep C2: proves that a replica encodes its sector, from the output of C1.
//!
//! The request carries one JSON, `{"SectorNum", "Phase1Out", "SectorSize"}` with Phase1Out the
//! base64 of what serde makes of filecoin-proofs-api's SealCommitPhase1Output, or that inner JSON
//! alone. Non-interactive PoRep is proved partition by partition like the others (what
//! `seal_commit_phase2_circuit_proofs` returns); aggregating them is left to the caller.

use std::borrow::Cow;

use base64::Engine as _;
use filecoin_hashers::poseidon::{PoseidonDomain, PoseidonHasher};
use filecoin_hashers::sha256::Sha256Domain;
use filecoin_proofs::constants::{DefaultPieceHasher, DRG_DEGREE, EXP_DEGREE};
use filecoin_proofs::parameters::{public_params, setup_params};
use filecoin_proofs_api::{MerkleTreeTrait, RegisteredSealProof};
use serde::Deserialize;
use storage_proofs_core::compound_proof::CompoundProof;
use storage_proofs_core::error::Result as FilecoinResult;
use storage_proofs_core::merkle::MerkleProof;
use storage_proofs_porep::stacked::{self, generate_replica_id, StackedCompound};

use super::circuit_id::with_tree;
use super::request::{agree, prover_id, Partition, RawRequest, RequestError};
use super::vanilla::{MerklePath, Node, TreeShape};
use super::{registered, SectorSize};
use crate::circuit::AnyCircuit;

type Compound<Tree> = StackedCompound<Tree, DefaultPieceHasher>;
type Path<Tree> = MerkleProof<
    <Tree as MerkleTreeTrait>::Hasher,
    <Tree as MerkleTreeTrait>::Arity,
    <Tree as MerkleTreeTrait>::SubTreeArity,
    <Tree as MerkleTreeTrait>::TopTreeArity,
>;
type ColumnPath<Tree> = stacked::ColumnProof<Path<Tree>>;

/// A checked C1 output.
pub(super) struct Porep {
    size: SectorSize,
    registered: RegisteredSealProof,
    comm_r: Node,
    comm_d: Node,
    replica_id: Node,
    seed: [u8; 32],
    partitions: Vec<Vec<Challenge>>,
}

#[derive(Deserialize)]
#[allow(non_snake_case)]
struct Envelope<'a> {
    SectorNum: Option<u64>,
    #[serde(borrow)]
    Phase1Out: Option<Cow<'a, str>>,
    SectorSize: Option<u64>,
}

#[derive(Deserialize)]
struct Phase1Output {
    registered_proof: RegisteredSealProof,
    vanilla_proofs: VanillaProofs,
    comm_r: Node,
    comm_d: Node,
    replica_id: Node,
    seed: [u8; 32],
    ticket: [u8; 32],
}

/// The tag stays V1 whatever the version.
#[derive(Deserialize)]
enum VanillaProofs {
    StackedDrg2KiBV1(Vec<Vec<Challenge>>),
    StackedDrg8MiBV1(Vec<Vec<Challenge>>),
    StackedDrg512MiBV1(Vec<Vec<Challenge>>),
    StackedDrg32GiBV1(Vec<Vec<Challenge>>),
    StackedDrg64GiBV1(Vec<Vec<Challenge>>),
}

/// The openings of one challenged node. C1 has more (label preimages, the encoding), which the
/// circuit computes itself.
#[derive(Deserialize)]
struct Challenge {
    comm_d_proofs: MerklePath,
    comm_r_last_proof: MerklePath,
    replica_column_proofs: Columns,
    labeling_proofs: Vec<Labeling>,
}

#[derive(Deserialize)]
struct Columns {
    c_x: ColumnOpening,
    drg_parents: Vec<ColumnOpening>,
    exp_parents: Vec<ColumnOpening>,
}

#[derive(Deserialize)]
struct ColumnOpening {
    column: Column,
    inclusion_proof: MerklePath,
}

#[derive(Deserialize)]
struct Column {
    index: u32,
    rows: Vec<Node>,
}

#[derive(Deserialize)]
struct Labeling {
    node: u64,
}

impl Porep {
    /// Reads and checks a request. Its `sector_size` and `registered_proof` may be 0: that is no
    /// size, and the latter, though it is StackedDrg2KiBV1's number, is also what a client sends
    /// that leaves it to the proof inside. Likewise `sector_number` against the envelope's.
    pub(super) fn parse(raw: &RawRequest) -> Result<Self, RequestError> {
        let body = raw.vanilla_proof.as_slice();
        let envelope: Envelope<'_> = from_json("vanilla_proof", body)?;
        let output: Phase1Output = match &envelope.Phase1Out {
            Some(text) => {
                let field = "vanilla_proof.Phase1Out";
                let inner = base64::engine::general_purpose::STANDARD.decode(&**text);
                let inner =
                    inner.map_err(|error| RequestError::new(field, "standard base64", error))?;
                from_json(field, &inner)?
            }
            None => from_json("vanilla_proof", body)?,
        };

        let registered = output.registered_proof;
        if raw.registered_proof != 0 && registered::seal(raw.registered_proof) != Some(registered) {
            return Err(RequestError::new(
                "registered_proof",
                format!("{}, the vanilla proof's {registered:?}", registered as u64),
                raw.registered_proof,
            ));
        }
        let (tag, partitions) = output.vanilla_proofs.into_parts();
        let size = SectorSize::from_bytes(registered.sector_size().into());
        let Some(size) = size.filter(|size| *size == tag) else {
            let expected = format!("proofs of {registered:?}");
            return Err(RequestError::new("vanilla_proof.vanilla_proofs", expected, tag));
        };
        agree("sector_size", raw.sector_size, size.bytes(), "vanilla_proof")?;
        let enveloped = envelope.SectorSize.unwrap_or(0);
        agree("vanilla_proof.SectorSize", enveloped, size.bytes(), "Phase1Out")?;
        let sector = envelope.SectorNum.unwrap_or(raw.sector_number);
        agree("sector_number", raw.sector_number, sector, "vanilla_proof.SectorNum")?;

        let porep = Self {
            size,
            registered,
            comm_r: output.comm_r,
            comm_d: output.comm_d,
            replica_id: output.replica_id,
            seed: output.seed,
            partitions,
        };
        porep.check().map_err(|error| error.within("vanilla_proof"))?;
        if raw.miner_id != 0 {
            porep.check_replica_id(raw.miner_id, sector, &output.ticket)?;
        }
        Ok(porep)
    }

    pub(super) fn sector_size(&self) -> SectorSize {
        self.size
    }

    pub(super) fn partitions(&self) -> usize {
        self.partitions.len()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.partitions.iter().flatten().map(Challenge::memory_bytes).sum()
    }

    pub(super) fn partition(&self, k: usize) -> FilecoinResult<Partition> {
        with_tree!(self.size, partition(self, k))
    }

    /// Everything the circuit, and the code that builds it, takes for granted.
    fn check(&self) -> Result<(), RequestError> {
        for (name, bytes) in
            [("comm_r", self.comm_r.bytes()), ("comm_d", self.comm_d.bytes()), ("seed", &self.seed)]
        {
            if *bytes == [0; 32] {
                return Err(RequestError::new(name, "32 bytes, not all zero", "zeros"));
            }
        }
        let config = self.registered.as_v1_config();
        let setup = setup_params(&config)
            .map_err(|error| RequestError::new("registered_proof", "a supported proof", error))?;
        let public =
            self.public_inputs().map_err(|error| RequestError::new("comm_r", "a node", error))?;
        let expected = usize::from(config.partitions);
        if self.partitions.len() != expected {
            let expected = format!("{expected} partitions");
            return Err(RequestError::new("vanilla_proofs", expected, self.partitions.len()));
        }
        for (k, partition) in self.partitions.iter().enumerate() {
            let challenges = public.challenges(&setup.challenges, setup.nodes, Some(k));
            self.check_partition(partition, &challenges, setup.num_layers)
                .map_err(|error| error.within(&format!("vanilla_proofs[{k}]")))?;
        }
        Ok(())
    }

    fn check_partition(
        &self,
        partition: &[Challenge],
        challenges: &[usize],
        layers: usize,
    ) -> Result<(), RequestError> {
        if partition.len() != challenges.len() {
            let expected = format!("{} challenges", challenges.len());
            return Err(RequestError::new("", expected, partition.len()));
        }
        for (i, (opening, challenge)) in partition.iter().zip(challenges).enumerate() {
            opening
                .check(self.size, *challenge as u64, layers)
                .map_err(|error| error.within(&format!("[{i}]")))?;
        }
        Ok(())
    }

    /// A replica id of another miner or sector makes a proof that the chain refuses.
    fn check_replica_id(
        &self,
        miner: u64,
        sector: u64,
        ticket: &[u8; 32],
    ) -> Result<(), RequestError> {
        let porep_id = self.registered.as_v1_config().porep_id;
        let expected: PoseidonDomain = generate_replica_id::<PoseidonHasher, _>(
            &prover_id(miner),
            sector,
            ticket,
            self.comm_d.bytes(),
            &porep_id,
        );
        if AsRef::<[u8]>::as_ref(&expected) == self.replica_id.bytes() {
            return Ok(());
        }
        Err(RequestError::new(
            "vanilla_proof.replica_id",
            format!("{}, of miner_id {miner}, sector {sector}", hex::encode(expected)),
            hex::encode(self.replica_id.bytes()),
        ))
    }

    fn public_inputs(&self) -> FilecoinResult<stacked::PublicInputs<PoseidonDomain, Sha256Domain>> {
        Ok(stacked::PublicInputs {
            replica_id: self.replica_id.to_domain()?,
            tau: Some(stacked::Tau {
                comm_d: self.comm_d.to_domain()?,
                comm_r: self.comm_r.to_domain()?,
            }),
            k: None,
            seed: Some(self.seed),
        })
    }
}

fn from_json<'a, T: Deserialize<'a>>(field: &str, json: &'a [u8]) -> Result<T, RequestError> {
    serde_json::from_slice(json)
        .map_err(|error| RequestError::new(field, "C1 output as JSON", error))
}

impl VanillaProofs {
    fn into_parts(self) -> (SectorSize, Vec<Vec<Challenge>>) {
        match self {
            Self::StackedDrg2KiBV1(proofs) => (SectorSize::KiB2, proofs),
            Self::StackedDrg8MiBV1(proofs) => (SectorSize::MiB8, proofs),
            Self::StackedDrg512MiBV1(proofs) => (SectorSize::MiB512, proofs),
            Self::StackedDrg32GiBV1(proofs) => (SectorSize::GiB32, proofs),
            Self::StackedDrg64GiBV1(proofs) => (SectorSize::GiB64, proofs),
        }
    }
}

impl Challenge {
    fn check(&self, size: SectorSize, challenge: u64, layers: usize) -> Result<(), RequestError> {
        let replica = TreeShape::replica(size);
        let columns = &self.replica_column_proofs;
        let named = |name: &'static str| move |error: RequestError| error.within(name);

        let data = TreeShape::data(size);
        self.comm_d_proofs.check_leaf(&data, challenge).map_err(named("comm_d_proofs"))?;
        self.comm_r_last_proof
            .check_leaf(&replica, challenge)
            .map_err(named("comm_r_last_proof"))?;
        columns.c_x.inclusion_proof.check_leaf(&replica, challenge).map_err(named("c_x"))?;
        for (name, parents, degree) in [
            ("drg_parents", &columns.drg_parents, DRG_DEGREE),
            ("exp_parents", &columns.exp_parents, EXP_DEGREE),
        ] {
            if parents.len() != degree {
                let expected = format!("{degree} parents");
                return Err(RequestError::new(name, expected, parents.len()));
            }
            for parent in parents {
                parent.check(&replica, layers).map_err(named(name))?;
            }
        }
        match self.labeling_proofs.first() {
            Some(label) if label.node == challenge => Ok(()),
            found => Err(RequestError::new(
                "labeling_proofs",
                format!("those of node {challenge}, the challenge"),
                found.map_or("none".into(), |label| label.node.to_string()),
            )),
        }
    }

    fn to_filecoin<Tree: 'static + MerkleTreeTrait>(
        &self,
    ) -> FilecoinResult<stacked::Proof<Tree, DefaultPieceHasher>> {
        let columns = &self.replica_column_proofs;
        let parents = |openings: &[ColumnOpening]| {
            openings.iter().map(ColumnOpening::to_filecoin::<Tree>).collect::<FilecoinResult<_>>()
        };
        let node = self.labeling_proofs.first().map_or(0, |label| label.node);
        Ok(stacked::Proof {
            comm_d_proofs: self.comm_d_proofs.to_filecoin()?,
            comm_r_last_proof: self.comm_r_last_proof.to_filecoin()?,
            replica_column_proofs: stacked::ReplicaColumnProof {
                c_x: columns.c_x.to_filecoin::<Tree>()?,
                drg_parents: parents(&columns.drg_parents)?,
                exp_parents: parents(&columns.exp_parents)?,
            },
            labeling_proofs: vec![stacked::LabelingProof::new(1, node, vec![])],
            encoding_proof: stacked::EncodingProof::new(1, node, vec![]),
        })
    }

    fn memory_bytes(&self) -> u64 {
        let columns = &self.replica_column_proofs;
        let parents = columns.drg_parents.iter().chain(&columns.exp_parents);
        let columns: u64 = parents.chain([&columns.c_x]).map(ColumnOpening::memory_bytes).sum();
        let paths = self.comm_d_proofs.memory_bytes() + self.comm_r_last_proof.memory_bytes();
        columns + paths + (self.labeling_proofs.len() * size_of::<Labeling>()) as u64
    }
}

impl ColumnOpening {
    fn check(&self, tree: &TreeShape, layers: usize) -> Result<(), RequestError> {
        if self.column.rows.len() != layers {
            let expected = format!("{layers} layers");
            return Err(RequestError::new("column.rows", expected, self.column.rows.len()));
        }
        self.inclusion_proof.check_leaf(tree, self.column.index.into())
    }

    fn to_filecoin<Tree: MerkleTreeTrait>(&self) -> FilecoinResult<ColumnPath<Tree>> {
        let rows = self.column.rows.iter().map(|row| row.to_domain());
        Ok(stacked::ColumnProof::new(
            self.column.index,
            rows.collect::<FilecoinResult<_>>()?,
            self.inclusion_proof.to_filecoin()?,
        ))
    }

    fn memory_bytes(&self) -> u64 {
        (size_of::<Column>() + self.column.rows.len() * 32) as u64
            + self.inclusion_proof.memory_bytes()
    }
}

fn partition<Tree: 'static + MerkleTreeTrait<Hasher = PoseidonHasher>>(
    porep: &Porep,
    k: usize,
) -> FilecoinResult<Partition> {
    let public = porep.public_inputs()?;
    let params = public_params::<Tree>(&porep.registered.as_v1_config())?;
    let vanilla = porep.partitions[k]
        .iter()
        .map(Challenge::to_filecoin::<Tree>)
        .collect::<FilecoinResult<Vec<_>>>()?;
    let circuit = Compound::<Tree>::circuit(&public, (), &vanilla, &params, Some(k))?;
    let inputs = Compound::<Tree>::generate_public_inputs(&public, &params, Some(k))?;
    Ok(Partition { circuit: Box::new(circuit), inputs })
}

pub(super) fn cache_identifier(size: SectorSize) -> FilecoinResult<String> {
    registered::interactive(size).circuit_identifier()
}

pub(super) fn blank(size: SectorSize) -> FilecoinResult<Box<dyn AnyCircuit>> {
    fn blank<Tree: 'static + MerkleTreeTrait>(
        registered: RegisteredSealProof,
    ) -> FilecoinResult<Box<dyn AnyCircuit>> {
        let params = public_params::<Tree>(&registered.as_v1_config())?;
        Ok(Box::new(Compound::<Tree>::blank_circuit(&params)))
    }
    with_tree!(size, blank(registered::interactive(size)))
}
