//! Vanilla proofs as they arrive, read into types of our own and checked to be of the right shape.
//!
//! Filecoin's own types accept any shape and any bytes, and panic later: on a node that is no field
//! element, a path of another length, an index beyond the arity. So nothing hostile is ever
//! deserialised into them. These mirror their serde form (field order matters to bincode, names to
//! JSON) and keep only what a circuit needs; what a circuit is built from is made by
//! [`MerklePath::to_filecoin`] from what passed.

use bincode::Options as _;
use blstrs::Scalar;
use ff::PrimeField;
use filecoin_hashers::{Domain, Hasher, PoseidonArity};
use serde::de::{Deserialize, Deserializer, Error as _};
use storage_proofs_core::error::Result as FilecoinResult;
use storage_proofs_core::merkle::MerkleProof;

use super::{RequestError, SectorSize};

/// 32 bytes that are a field element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node([u8; 32]);

impl Node {
    pub(super) fn new(bytes: [u8; 32]) -> Option<Self> {
        Scalar::from_repr_vartime(bytes).map(|_| Self(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(super) fn to_domain<D: Domain>(self) -> FilecoinResult<D> {
        D::try_from_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(<[u8; 32]>::deserialize(deserializer)?)
            .ok_or_else(|| D::Error::custom("32 bytes that are no field element"))
    }
}

/// Reads one vanilla proof, every byte of it. Lengths inside cannot make it allocate more than some
/// times the bytes there are.
pub(super) fn from_bincode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, RequestError> {
    let options = bincode::options().with_fixint_encoding().with_limit(bytes.len() as u64);
    options.deserialize(bytes).map_err(|error| {
        RequestError::new(
            "",
            "a vanilla proof in bincode",
            format!("{} bytes: {error}", bytes.len()),
        )
    })
}

/// The arities and the height of a tree: what every path in it must look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreeShape {
    arity: usize,
    base_len: usize,
    /// Arities of the layers above the base: none, sub, or sub and top.
    upper: &'static [usize],
}

impl TreeShape {
    /// Trees C and R: octal, with 8 base trees at 32 GiB and two times 8 at 64 GiB.
    pub(super) const fn replica(size: SectorSize) -> Self {
        let (base_len, upper): (usize, &[usize]) = match size {
            SectorSize::KiB2 => (2, &[]),
            SectorSize::MiB8 => (6, &[]),
            SectorSize::MiB512 => (8, &[]),
            SectorSize::GiB32 => (9, &[8]),
            SectorSize::GiB64 => (9, &[8, 2]),
        };
        Self { arity: 8, base_len, upper }
    }

    /// Tree D: binary.
    pub(super) const fn data(size: SectorSize) -> Self {
        Self { arity: 2, base_len: size.nodes().trailing_zeros() as usize, upper: &[] }
    }

    /// From the leaves up.
    fn arities(&self) -> Vec<usize> {
        [&vec![self.arity; self.base_len], self.upper].concat()
    }
}

#[derive(serde::Deserialize)]
struct Inclusion {
    path: Vec<Element>,
}

/// One layer of a path: the siblings and where among them the node goes.
#[derive(Debug, serde::Deserialize)]
struct Element {
    hashes: Vec<Node>,
    index: u64,
}

#[derive(serde::Deserialize)]
enum Layers {
    Single {
        root: Node,
        leaf: Node,
        path: Inclusion,
    },
    Sub {
        base_proof: Inclusion,
        sub_proof: Inclusion,
        root: Node,
        leaf: Node,
    },
    Top {
        base_proof: Inclusion,
        sub_proof: Inclusion,
        top_proof: Inclusion,
        root: Node,
        leaf: Node,
    },
}

#[derive(serde::Deserialize)]
struct WireMerkleProof {
    data: Layers,
}

/// The path from a leaf to the root of a tree, all layers in order.
#[derive(Debug, serde::Deserialize)]
#[serde(from = "WireMerkleProof")]
pub(super) struct MerklePath {
    pub(super) leaf: Node,
    pub(super) root: Node,
    /// How many layers of trees above the base its form names.
    upper_len: usize,
    path: Vec<Element>,
}

impl From<WireMerkleProof> for MerklePath {
    fn from(wire: WireMerkleProof) -> Self {
        let (leaf, root, base, upper) = match wire.data {
            Layers::Single { root, leaf, path } => (leaf, root, path, vec![]),
            Layers::Sub { base_proof, sub_proof, root, leaf } => {
                (leaf, root, base_proof, vec![sub_proof])
            }
            Layers::Top { base_proof, sub_proof, top_proof, root, leaf } => {
                (leaf, root, base_proof, vec![sub_proof, top_proof])
            }
        };
        let upper_len = upper.len();
        let mut path = base.path;
        path.extend(upper.into_iter().flat_map(|layer| layer.path));
        Self { leaf, root, upper_len, path }
    }
}

impl MerklePath {
    /// Whether this is a path in a tree of that shape.
    pub(super) fn check(&self, shape: &TreeShape) -> Result<(), RequestError> {
        let arities = shape.arities();
        if self.upper_len != shape.upper.len() || self.path.len() != arities.len() {
            return Err(RequestError::new(
                "path",
                format!("{} layers, {} of them above the base", arities.len(), shape.upper.len()),
                format!("{} layers, {}", self.path.len(), self.upper_len),
            ));
        }
        for (height, (element, arity)) in self.path.iter().zip(arities).enumerate() {
            let (siblings, index) = (element.hashes.len(), element.index);
            if siblings + 1 != arity || index >= arity as u64 {
                return Err(RequestError::new(
                    format!("path[{height}]"),
                    format!("{} siblings and an index below {arity}", arity - 1),
                    format!("{siblings} and {index}"),
                ));
            }
        }
        Ok(())
    }

    /// Checks the shape and that the path leads to leaf number `challenge`.
    pub(super) fn check_leaf(&self, shape: &TreeShape, challenge: u64) -> Result<(), RequestError> {
        self.check(shape)?;
        let arities = shape.arities();
        let digits = self.path.iter().zip(arities).rev();
        let found = digits.fold(0, |sum, (element, arity)| sum * arity as u64 + element.index);
        if found == challenge {
            return Ok(());
        }
        Err(RequestError::new("path", format!("leaf {challenge}, the challenge"), found))
    }

    /// The same for Filecoin's crates; only after [`check`](Self::check).
    pub(super) fn to_filecoin<H, A, B, C>(&self) -> FilecoinResult<MerkleProof<H, A, B, C>>
    where
        H: Hasher,
        A: 'static + PoseidonArity,
        B: 'static + PoseidonArity,
        C: 'static + PoseidonArity,
    {
        let path = self.path.iter().map(|element| {
            let hashes = element.hashes.iter().map(|node| node.to_domain());
            Ok((hashes.collect::<FilecoinResult<_>>()?, element.index as usize))
        });
        let path = path.collect::<FilecoinResult<_>>()?;
        Ok(MerkleProof::from_parts(self.leaf.to_domain()?, self.root.to_domain()?, path))
    }

    /// Host memory it occupies.
    pub(super) fn memory_bytes(&self) -> u64 {
        let nodes: usize = self.path.iter().map(|element| element.hashes.len()).sum();
        (size_of::<Self>() + self.path.len() * size_of::<Element>() + nodes * 32) as u64
    }
}

#[cfg(test)]
pub(super) mod tests {
    use filecoin_proofs::constants::{SectorShapeBase, SectorShapeSub8, SectorShapeTop2};
    use filecoin_proofs_api::MerkleTreeTrait;
    use storage_proofs_core::merkle::MerkleProofTrait;
    use storage_proofs_update::constants::TreeD;

    use super::*;

    /// A path to that leaf, of the right shape and with made-up hashes.
    pub(in crate::proof) fn made_up<H, A, B, C>(
        shape: &TreeShape,
        mut leaf: usize,
    ) -> MerkleProof<H, A, B, C>
    where
        H: Hasher,
        A: 'static + PoseidonArity,
        B: 'static + PoseidonArity,
        C: 'static + PoseidonArity,
    {
        let node = |byte| H::Domain::try_from_bytes(&[byte; 32]).unwrap();
        let layer = |arity| {
            let index = leaf % arity;
            leaf /= arity;
            (vec![node(index as u8); arity - 1], index)
        };
        let path = shape.arities().into_iter().map(layer).collect();
        MerkleProof::from_parts(node(1), node(2), path)
    }

    fn made_up_in<T: MerkleTreeTrait>(
        shape: &TreeShape,
    ) -> MerkleProof<T::Hasher, T::Arity, T::SubTreeArity, T::TopTreeArity> {
        made_up(shape, 0o654_321)
    }

    /// Filecoin's proof of that shape, read by us, is the same when given back, leaf index and all.
    fn reads_back<T: MerkleTreeTrait>(shape: &TreeShape, size: SectorSize) {
        let theirs = made_up_in::<T>(shape);
        assert_eq!(theirs.path().len(), theirs.expected_len(size.nodes()), "{shape:?}");
        let leaf = theirs.path_index() as u64;

        let json = serde_json::to_vec(&theirs).unwrap();
        let bytes = bincode::serialize(&theirs).unwrap();
        let from_json: MerklePath = serde_json::from_slice(&json).unwrap();
        for ours in [from_json, from_bincode(&bytes).unwrap()] {
            assert_eq!(ours.check_leaf(shape, leaf), Ok(()));
            assert!(ours.check_leaf(shape, leaf + 1).is_err());
            let back = ours.to_filecoin::<T::Hasher, T::Arity, T::SubTreeArity, T::TopTreeArity>();
            assert_eq!(bincode::serialize(&back.unwrap()).unwrap(), bytes);
        }
    }

    #[test]
    fn paths_of_every_size_are_filecoins() {
        for size in SectorSize::ALL {
            let shape = TreeShape::replica(size);
            match size {
                SectorSize::GiB32 => reads_back::<SectorShapeSub8>(&shape, size),
                SectorSize::GiB64 => reads_back::<SectorShapeTop2>(&shape, size),
                _ => reads_back::<SectorShapeBase>(&shape, size),
            }
            reads_back::<TreeD>(&TreeShape::data(size), size);
        }
    }

    #[test]
    fn a_path_of_another_size_is_refused() {
        for size in SectorSize::ALL {
            let shape = TreeShape::data(size);
            let bytes = bincode::serialize(&made_up_in::<TreeD>(&shape)).unwrap();
            let path: MerklePath = from_bincode(&bytes).unwrap();
            assert_eq!(path.check(&shape), Ok(()));
            for other in SectorSize::ALL.into_iter().filter(|other| *other != size) {
                assert!(path.check(&TreeShape::data(other)).is_err());
                assert!(path.check(&TreeShape::replica(other)).is_err());
            }
        }
    }

    #[test]
    fn a_node_beyond_the_field_is_refused() {
        assert!(Node::new([0xff; 32]).is_none());
        assert!(Node::new([0x3f; 32]).is_some());
    }
}
