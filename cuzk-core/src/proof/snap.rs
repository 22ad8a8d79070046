//! SnapDeals: proves that a committed-capacity sector was updated to hold data.

use filecoin_hashers::poseidon::PoseidonHasher;
use filecoin_proofs_api::MerkleTreeTrait;
use serde::Deserialize;
use storage_proofs_core::compound_proof::CompoundProof;
use storage_proofs_core::error::Result as FilecoinResult;
use storage_proofs_core::parameter_cache::CacheableParameters;
use storage_proofs_update::constants::h_default;
use storage_proofs_update::vanilla::ChallengeProof;
use storage_proofs_update::{
    EmptySectorUpdateCompound, PartitionProof, PublicInputs, PublicParams,
};

use super::circuit_id::with_tree;
use super::request::{agree, bytes_32, Partition, RawRequest, RequestError};
use super::vanilla::{from_bincode, MerklePath, Node, TreeShape};
use super::{registered, SectorSize};
use crate::circuit::AnyCircuit;

/// A checked update.
pub(super) struct Snap {
    size: SectorSize,
    comm_r_old: Node,
    comm_r_new: Node,
    comm_d_new: Node,
    partitions: Vec<UpdatePartition>,
}

/// Mirrors storage-proofs-update's PartitionProof.
#[derive(Deserialize)]
struct UpdatePartition {
    comm_c: Node,
    apex_leafs: Vec<Node>,
    challenge_proofs: Vec<Challenge>,
}

#[derive(Deserialize)]
struct Challenge {
    proof_r_old: MerklePath,
    proof_d_new: MerklePath,
    proof_r_new: MerklePath,
}

impl Snap {
    pub(super) fn parse(raw: &RawRequest) -> Result<Self, RequestError> {
        let size = registered::update(raw.registered_proof).ok_or_else(|| {
            RequestError::new("registered_proof", "a RegisteredUpdateProof", raw.registered_proof)
        })?;
        agree("sector_size", raw.sector_size, size.bytes(), "registered_proof")?;
        let params = PublicParams::from_sector_size(size.bytes());
        if raw.vanilla_proofs.len() != params.partition_count {
            let expected = format!("{} partitions for {size}", params.partition_count);
            return Err(RequestError::new("vanilla_proofs", expected, raw.vanilla_proofs.len()));
        }
        let commitment = |field, bytes: &[u8]| {
            let bytes = bytes_32(field, bytes)?;
            let node = Node::new(bytes).filter(|_| bytes != [0; 32]);
            node.ok_or_else(|| {
                RequestError::new(
                    field,
                    "a commitment, a non-zero field element",
                    hex::encode(bytes),
                )
            })
        };
        let partitions = raw.vanilla_proofs.iter().enumerate().map(|(k, bytes)| {
            UpdatePartition::parse(bytes, size, &params)
                .map_err(|error| error.within(&format!("vanilla_proofs[{k}]")))
        });
        Ok(Self {
            size,
            comm_r_old: commitment("comm_r_old", &raw.comm_r_old)?,
            comm_r_new: commitment("comm_r_new", &raw.comm_r_new)?,
            comm_d_new: commitment("comm_d_new", &raw.comm_d_new)?,
            partitions: partitions.collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn sector_size(&self) -> SectorSize {
        self.size
    }

    pub(super) fn partitions(&self) -> usize {
        self.partitions.len()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.partitions.iter().map(UpdatePartition::memory_bytes).sum()
    }

    pub(super) fn partition(&self, k: usize) -> FilecoinResult<Partition> {
        with_tree!(self.size, partition(self, k))
    }
}

impl UpdatePartition {
    fn parse(bytes: &[u8], size: SectorSize, params: &PublicParams) -> Result<Self, RequestError> {
        let partition: Self = from_bincode(bytes)?;
        partition.check(size, params)?;
        Ok(partition)
    }

    fn check(&self, size: SectorSize, params: &PublicParams) -> Result<(), RequestError> {
        let counts = [
            ("apex_leafs", self.apex_leafs.len(), params.apex_leaf_count),
            ("challenge_proofs", self.challenge_proofs.len(), params.challenge_count),
        ];
        for (field, found, expected) in counts {
            if found != expected {
                return Err(RequestError::new(field, expected, found));
            }
        }
        let (replica, data) = (TreeShape::replica(size), TreeShape::data(size));
        for (i, challenge) in self.challenge_proofs.iter().enumerate() {
            let paths = [
                ("proof_r_old", &challenge.proof_r_old, &replica),
                ("proof_d_new", &challenge.proof_d_new, &data),
                ("proof_r_new", &challenge.proof_r_new, &replica),
            ];
            for (name, path, shape) in paths {
                path.check(shape)
                    .map_err(|error| error.within(&format!("challenge_proofs[{i}].{name}")))?;
            }
        }
        Ok(())
    }

    fn memory_bytes(&self) -> u64 {
        let paths: u64 = self
            .challenge_proofs
            .iter()
            .map(|challenge| {
                let Challenge { proof_r_old, proof_d_new, proof_r_new } = challenge;
                [proof_r_old, proof_d_new, proof_r_new]
                    .map(MerklePath::memory_bytes)
                    .iter()
                    .sum::<u64>()
            })
            .sum();
        paths + (size_of::<Self>() + self.apex_leafs.len() * 32) as u64
    }

    fn to_filecoin<Tree: MerkleTreeTrait<Hasher = PoseidonHasher>>(
        &self,
    ) -> FilecoinResult<PartitionProof<Tree>> {
        let apex_leafs = self.apex_leafs.iter().map(|leaf| leaf.to_domain());
        let challenges = self.challenge_proofs.iter().map(|challenge| {
            Ok(ChallengeProof {
                proof_r_old: challenge.proof_r_old.to_filecoin()?,
                proof_d_new: challenge.proof_d_new.to_filecoin()?,
                proof_r_new: challenge.proof_r_new.to_filecoin()?,
            })
        });
        Ok(PartitionProof {
            comm_c: self.comm_c.to_domain()?,
            apex_leafs: apex_leafs.collect::<FilecoinResult<_>>()?,
            challenge_proofs: challenges.collect::<FilecoinResult<_>>()?,
        })
    }
}

fn partition<Tree: 'static + MerkleTreeTrait<Hasher = PoseidonHasher>>(
    snap: &Snap,
    k: usize,
) -> FilecoinResult<Partition> {
    let params = PublicParams::from_sector_size(snap.size.bytes());
    let public = PublicInputs {
        k: params.partition_count,
        comm_r_old: snap.comm_r_old.to_domain()?,
        comm_d_new: snap.comm_d_new.to_domain()?,
        comm_r_new: snap.comm_r_new.to_domain()?,
        h: h_default(params.sector_nodes),
    };
    let vanilla = snap.partitions[k].to_filecoin::<Tree>()?;
    type Compound<Tree> = EmptySectorUpdateCompound<Tree>;
    let circuit = Compound::<Tree>::circuit(&public, (), &vanilla, &params, Some(k))?;
    let inputs = Compound::<Tree>::generate_public_inputs(&public, &params, Some(k))?;
    Ok(Partition { circuit: Box::new(circuit), inputs })
}

/// RegisteredUpdateProof's own identifier is PoRep's; the compound proof's is the file's.
pub(super) fn cache_identifier(size: SectorSize) -> FilecoinResult<String> {
    fn identifier<Tree: 'static + MerkleTreeTrait<Hasher = PoseidonHasher>>(
        params: &PublicParams,
    ) -> String {
        EmptySectorUpdateCompound::<Tree>::cache_identifier(params)
    }
    Ok(with_tree!(size, identifier(&PublicParams::from_sector_size(size.bytes()))))
}

pub(super) fn blank(size: SectorSize) -> FilecoinResult<Box<dyn AnyCircuit>> {
    fn blank<Tree: 'static + MerkleTreeTrait<Hasher = PoseidonHasher>>(
        params: &PublicParams,
    ) -> Box<dyn AnyCircuit> {
        Box::new(EmptySectorUpdateCompound::<Tree>::blank_circuit(params))
    }
    Ok(with_tree!(size, blank(&PublicParams::from_sector_size(size.bytes()))))
}
