//! WinningPoSt and WindowPoSt: prove that challenged leaves of sealed sectors are still there.
//!
//! One circuit, two uses. WindowPoSt's has room for a partition's sectors with ten challenges each;
//! WinningPoSt's opens one leaf in each of 66 "sectors", which are one sector's 66 challenges. Room
//! that is left over repeats the last sector.

use blstrs::Scalar;
use filecoin_hashers::poseidon::{PoseidonDomain, PoseidonHasher};
use filecoin_proofs::parameters::{window_post_setup_params, winning_post_setup_params};
use filecoin_proofs_api::{MerkleTreeTrait, PoStType, RegisteredPoStProof};
use serde::Deserialize;
use storage_proofs_core::compound_proof::CompoundProof;
use storage_proofs_core::error::Result as FilecoinResult;
use storage_proofs_post::fallback::{
    self, generate_leaf_challenge, get_challenge_index, FallbackPoStCircuit, FallbackPoStCompound,
    PublicParams, PublicSector, SectorProof,
};

use super::circuit_id::with_tree;
use super::request::{agree, bytes_32, Partition, RawRequest, RequestError};
use super::vanilla::{from_bincode, MerklePath, Node, TreeShape};
use super::{registered, ProofKind, SectorSize};
use crate::circuit::AnyCircuit;

/// Partitions a deadline may have (the miner actor's AddressedPartitionsMax).
const MAX_PARTITIONS: u32 = 3000;

/// A checked PoSt of one partition.
pub(super) struct Post {
    size: SectorSize,
    params: PublicParams,
    randomness: Node,
    /// Of the first slot, in the deadline: WindowPoSt V1 numbers its challenges through it.
    first_slot: usize,
    slots: Vec<Slot>,
}

/// What one of the circuit's sectors is filled with.
struct Slot {
    sector_id: u64,
    comm_r: Node,
    openings: Openings,
}

/// Mirrors filecoin-proofs' FallbackPoStSectorProof.
#[derive(Deserialize)]
struct Sector {
    sector_id: u64,
    comm_r: Node,
    vanilla_proof: Vanilla,
}

#[derive(Deserialize)]
struct Vanilla {
    sectors: Vec<Openings>,
}

#[derive(Deserialize)]
struct Openings {
    inclusion_proofs: Vec<MerklePath>,
    comm_c: Node,
    comm_r_last: Node,
}

impl Post {
    pub(super) fn parse(raw: &RawRequest, kind: ProofKind) -> Result<Self, RequestError> {
        let (registered, size) = registered_proof(raw.registered_proof, kind)?;
        agree("sector_size", raw.sector_size, size.bytes(), "registered_proof")?;
        let randomness = bytes_32("randomness", &raw.randomness)?;
        let randomness = Node::new(randomness).ok_or_else(|| {
            let expected = "a field element (clear the two top bits of the last byte)";
            RequestError::new("randomness", expected, hex::encode(randomness))
        })?;
        let params = params(registered)
            .map_err(|error| RequestError::new("registered_proof", "a supported proof", error))?;
        let sectors = registered.sector_count();
        if raw.vanilla_proofs.len() > sectors {
            let expected = format!("1 to {sectors} sectors for {registered:?}");
            return Err(RequestError::new("vanilla_proofs", expected, raw.vanilla_proofs.len()));
        }
        let partition =
            if kind == ProofKind::WindowPostPartition { raw.partition_index } else { 0 };
        if partition >= MAX_PARTITIONS {
            let expected = format!("below {MAX_PARTITIONS}");
            return Err(RequestError::new("partition_index", expected, partition));
        }

        let first_slot = partition as usize * params.sector_count;
        let mut post = Self { size, params, randomness, first_slot, slots: vec![] };
        for (i, bytes) in raw.vanilla_proofs.iter().enumerate() {
            post.add_sector(bytes, kind)
                .map_err(|error| error.within(&format!("vanilla_proofs[{i}]")))?;
        }
        Ok(post)
    }

    pub(super) fn sector_size(&self) -> SectorSize {
        self.size
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let paths = self.slots.iter().flat_map(|slot| &slot.openings.inclusion_proofs);
        let paths: u64 = paths.map(MerklePath::memory_bytes).sum();
        paths + (self.slots.len() * size_of::<Slot>()) as u64
    }

    pub(super) fn partition(&self) -> FilecoinResult<Partition> {
        let circuit = with_tree!(self.size, circuit(self))?;
        Ok(Partition { circuit, inputs: self.public_inputs()? })
    }

    fn add_sector(&mut self, bytes: &[u8], kind: ProofKind) -> Result<(), RequestError> {
        let Sector { sector_id, comm_r, vanilla_proof } = from_bincode(bytes)?;
        let sectors: Result<[Openings; 1], _> = vanilla_proof.sectors.try_into();
        let [openings] = sectors.map_err(|sectors| {
            RequestError::new("vanilla_proof.sectors", "1 sector", sectors.len())
        })?;
        let opened = openings.inclusion_proofs.len();
        let expected = match kind {
            ProofKind::WinningPost => self.params.sector_count,
            _ => self.params.challenge_count,
        };
        if opened != expected {
            let expected = format!("{expected} challenges");
            return Err(RequestError::new("inclusion_proofs", expected, opened));
        }
        let Openings { inclusion_proofs, comm_c, comm_r_last } = openings;
        let slot = |inclusion_proofs| Slot {
            sector_id,
            comm_r,
            openings: Openings { inclusion_proofs, comm_c, comm_r_last },
        };
        let first = self.slots.len();
        match kind {
            ProofKind::WinningPost => {
                self.slots.extend(inclusion_proofs.into_iter().map(|path| slot(vec![path])));
            }
            _ => self.slots.push(slot(inclusion_proofs)),
        }
        (first..self.slots.len()).try_for_each(|slot| self.check_slot(slot))
    }

    fn check_slot(&self, index: usize) -> Result<(), RequestError> {
        let slot = &self.slots[index];
        let challenges = self
            .challenges(index)
            .map_err(|error| RequestError::new("randomness", "a field element", error))?;
        for (n, (path, challenge)) in
            slot.openings.inclusion_proofs.iter().zip(challenges).enumerate()
        {
            let field = || format!("inclusion_proofs[{}]", index * self.params.challenge_count + n);
            path.check_leaf(&TreeShape::replica(self.size), challenge)
                .map_err(|error| error.within(&field()))?;
            if path.root != slot.openings.comm_r_last {
                let expected = format!("comm_r_last, {}", path_hex(&slot.openings.comm_r_last));
                let found = path_hex(&path.root);
                return Err(RequestError::new("root", expected, found).within(&field()));
            }
        }
        Ok(())
    }

    /// The leaves that the randomness challenges in a slot's sector.
    fn challenges(&self, slot: usize) -> FilecoinResult<Vec<u64>> {
        let count = self.params.challenge_count;
        let randomness: PoseidonDomain = self.randomness.to_domain()?;
        let challenge = |n| {
            let sector_index = self.first_slot + slot;
            let index = get_challenge_index(self.params.api_version, sector_index, count, n);
            generate_leaf_challenge(&self.params, randomness, self.slots[slot].sector_id, index)
        };
        Ok((0..count).map(challenge).collect())
    }

    /// Each slot's comm_r and challenges, as the verifier of a whole deadline computes them. (The
    /// compound proof's own function needs all sectors of the partitions before this one.)
    fn public_inputs(&self) -> FilecoinResult<Vec<Scalar>> {
        let mut inputs =
            Vec::with_capacity(self.params.sector_count * (1 + self.params.challenge_count));
        let mut last = vec![];
        for (i, slot) in self.slots.iter().enumerate() {
            let comm_r: PoseidonDomain = slot.comm_r.to_domain()?;
            last = vec![comm_r.into()];
            last.extend(self.challenges(i)?.into_iter().map(Scalar::from));
            inputs.extend_from_slice(&last);
        }
        for _ in self.slots.len()..self.params.sector_count {
            inputs.extend_from_slice(&last);
        }
        Ok(inputs)
    }
}

impl Slot {
    fn to_filecoin<Tree: 'static + MerkleTreeTrait<Hasher = PoseidonHasher>>(
        &self,
    ) -> FilecoinResult<fallback::Sector<Tree>> {
        let Openings { inclusion_proofs, comm_c, comm_r_last } = &self.openings;
        let inclusion_proofs = inclusion_proofs.iter().map(MerklePath::to_filecoin);
        let sector = PublicSector { id: self.sector_id.into(), comm_r: self.comm_r.to_domain()? };
        let proof = SectorProof::<Tree::Proof> {
            inclusion_proofs: inclusion_proofs.collect::<FilecoinResult<_>>()?,
            comm_c: comm_c.to_domain()?,
            comm_r_last: comm_r_last.to_domain()?,
        };
        fallback::Sector::circuit(&sector, &proof)
    }
}

fn path_hex(node: &Node) -> String {
    hex::encode(node.bytes())
}

fn registered_proof(
    number: u64,
    kind: ProofKind,
) -> Result<(RegisteredPoStProof, SectorSize), RequestError> {
    let typ = match kind {
        ProofKind::WinningPost => PoStType::Winning,
        _ => PoStType::Window,
    };
    registered::post(number)
        .filter(|registered| registered.typ() == typ)
        .and_then(|registered| {
            Some((registered, SectorSize::from_bytes(registered.sector_size().into())?))
        })
        .ok_or_else(|| {
            let expected = format!("a RegisteredPoStProof of {kind}");
            RequestError::new("registered_proof", expected, number)
        })
}

/// The circuit's dimensions; the crates' own way from a config needs a tree's type for nothing.
fn params(registered: RegisteredPoStProof) -> FilecoinResult<PublicParams> {
    let config = registered.as_v1_config();
    let setup = match config.typ {
        PoStType::Winning => winning_post_setup_params(&config)?,
        PoStType::Window => window_post_setup_params(&config),
    };
    let fallback::SetupParams { sector_size, challenge_count, sector_count, api_version } = setup;
    Ok(PublicParams { sector_size, challenge_count, sector_count, api_version })
}

/// What `FallbackPoStCompound::circuit` makes, sector by sector, so that no second copy of all
/// vanilla proofs is needed.
fn circuit<Tree: 'static + MerkleTreeTrait<Hasher = PoseidonHasher>>(
    post: &Post,
) -> FilecoinResult<Box<dyn AnyCircuit>> {
    let mut sectors = Vec::with_capacity(post.params.sector_count);
    for slot in &post.slots {
        sectors.push(slot.to_filecoin::<Tree>()?);
    }
    if let Some(last) = sectors.last().cloned() {
        sectors.resize(post.params.sector_count, last);
    }
    // No constraint uses the prover's id.
    Ok(Box::new(FallbackPoStCircuit { prover_id: None, sectors }))
}

fn registered(kind: ProofKind, size: SectorSize) -> RegisteredPoStProof {
    match kind {
        ProofKind::WinningPost => registered::winning(size),
        _ => registered::window(size),
    }
}

pub(super) fn cache_identifier(kind: ProofKind, size: SectorSize) -> FilecoinResult<String> {
    registered(kind, size).circuit_identifier()
}

pub(super) fn blank(kind: ProofKind, size: SectorSize) -> FilecoinResult<Box<dyn AnyCircuit>> {
    fn blank<Tree: 'static + MerkleTreeTrait>(params: &PublicParams) -> Box<dyn AnyCircuit> {
        Box::new(FallbackPoStCompound::<Tree>::blank_circuit(params))
    }
    Ok(with_tree!(size, blank(&params(registered(kind, size))?)))
}

#[cfg(test)]
mod tests {
    use filecoin_proofs::constants::{SectorShapeBase, SectorShapeSub8, SectorShapeTop2};

    use super::*;

    fn node(byte: u8) -> Node {
        Node::new([byte; 32]).unwrap_or_else(|| panic!("{byte} is too large"))
    }

    /// Slots without openings: public inputs need none.
    fn post(number: u64, kind: ProofKind, first_slot: usize, sectors: &[u64]) -> Post {
        let (registered, size) = registered_proof(number, kind).unwrap();
        let slot = |id: &u64| Slot {
            sector_id: *id,
            comm_r: node(*id as u8),
            openings: Openings { inclusion_proofs: vec![], comm_c: node(1), comm_r_last: node(2) },
        };
        let slots = sectors.iter().map(slot).collect();
        Post { size, params: params(registered).unwrap(), randomness: node(9), first_slot, slots }
    }

    fn filecoins<Tree: 'static + MerkleTreeTrait<Hasher = PoseidonHasher>>(
        post: &Post,
        sectors: &[u64],
        k: usize,
    ) -> Vec<Scalar> {
        let sector = |id: &u64| PublicSector {
            id: (*id).into(),
            comm_r: node(*id as u8).to_domain().unwrap(),
        };
        let public = fallback::PublicInputs {
            randomness: post.randomness.to_domain().unwrap(),
            prover_id: PoseidonDomain::default(),
            sectors: sectors.iter().map(sector).collect(),
            k: None,
        };
        FallbackPoStCompound::<Tree>::generate_public_inputs(&public, &post.params, Some(k))
            .unwrap()
    }

    #[test]
    fn public_inputs_are_filecoins_in_every_tree() {
        let window = ProofKind::WindowPostPartition;
        for number in 5..15 {
            let sectors = [3, 1, 4];
            let sectors = if number % 5 < 3 { &sectors[..1] } else { &sectors };
            let post = post(number, window, 0, sectors);
            let inputs = match number % 5 {
                3 => filecoins::<SectorShapeSub8>(&post, sectors, 0),
                4 => filecoins::<SectorShapeTop2>(&post, sectors, 0),
                _ => filecoins::<SectorShapeBase>(&post, sectors, 0),
            };
            assert_eq!(post.public_inputs().unwrap(), inputs, "registered proof {number}");
        }
        let sectors = [5; 66];
        let post = post(3, ProofKind::WinningPost, 0, &sectors);
        let inputs = filecoins::<SectorShapeSub8>(&post, &sectors, 0);
        assert_eq!(post.public_inputs().unwrap(), inputs);
    }

    #[test]
    fn a_later_partition_of_window_post_v1_continues_the_challenges() {
        // Two sectors a partition at 2 KiB: of these three the last is partition 1's.
        let sectors = [7, 8, 9];
        for (number, depends) in [(5, true), (10, false)] {
            let inputs = |first_slot| {
                let post = post(number, ProofKind::WindowPostPartition, first_slot, &sectors[2..]);
                (post.public_inputs().unwrap(), filecoins::<SectorShapeBase>(&post, &sectors, 1))
            };
            let (second, expected) = inputs(2);
            assert_eq!(second, expected, "registered proof {number}");
            assert_eq!(inputs(0).0 != second, depends, "registered proof {number}");
        }
    }
}
