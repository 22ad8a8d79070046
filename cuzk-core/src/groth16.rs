//! Groth16 over BLS12-381: the verifying key, the proof's bytes, and verification.
//!
//! Points are Filecoin's: compressed G1 48 bytes, G2 96, in ZCash's encoding. Everything decoded
//! here is checked to be on the curve and in the subgroup and not to be infinity; a proof that is
//! not is no proof.

use blstrs::{Bls12, G1Affine, G1Projective, G2Affine, G2Prepared, G2Projective, Gt, Scalar};
use group::prime::PrimeCurveAffine;
use group::{Curve, Group};
use pairing::{MillerLoopResult, MultiMillerLoop};

/// Bytes of one partition's proof: A (G1), B (G2), C (G1), compressed.
pub const PROOF_BYTES: usize = 48 + 96 + 48;

/// A circuit's verifying key; also what its proofs need besides the MSM bases.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct VerifyingKey {
    pub alpha_g1: G1Affine,
    pub beta_g1: G1Affine,
    pub beta_g2: G2Affine,
    pub gamma_g2: G2Affine,
    pub delta_g1: G1Affine,
    pub delta_g2: G2Affine,
    /// One point a public input, the constant one first.
    pub ic: Vec<G1Affine>,
}

/// A partition's proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Proof {
    pub a: G1Affine,
    pub b: G2Affine,
    pub c: G1Affine,
}

/// The results of a proof's multi-exponentiations over the parameters' queries.
#[derive(Debug, Clone, Copy)]
pub struct Queries {
    /// The quotient's coefficients over h.
    pub h: G1Projective,
    /// The witness over l.
    pub l: G1Projective,
    /// Inputs and witness over a.
    pub a: G1Projective,
    /// Inputs and witness over b, in G1.
    pub b_g1: G1Projective,
    /// The same in G2.
    pub b_g2: G2Projective,
}

impl Queries {
    /// The proof, blinded by `r` and `s` (Groth, "On the Size of Pairing-based Non-interactive
    /// Arguments", 2016, section 3.2).
    pub fn finish(&self, key: &VerifyingKey, r: Scalar, s: Scalar) -> Proof {
        let a = self.a + key.alpha_g1 + key.delta_g1 * r;
        let b = self.b_g2 + key.beta_g2 + key.delta_g2 * s;
        let b_g1 = self.b_g1 + key.beta_g1 + key.delta_g1 * s;
        let c = self.h + self.l + a * s + b_g1 * r - key.delta_g1 * (r * s);
        Proof { a: a.to_affine(), b: b.to_affine(), c: c.to_affine() }
    }
}

/// Why bytes cannot be, or cannot be checked to be, a proof. A proof that is merely wrong is not an
/// error: [`verify`] says `false`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// Not 192 bytes a partition.
    #[error("a proof of {partitions} partition(s) has {expected} bytes, found {found}", expected = partitions * PROOF_BYTES)]
    Length {
        /// How many partitions were to be verified.
        partitions: usize,
        /// How many bytes there are.
        found: usize,
    },
    /// Bytes that are no point of the prime-order subgroup, or infinity.
    #[error("partition {partition}: {point} is no point of the subgroup")]
    Point {
        /// The partition.
        partition: usize,
        /// `A`, `B` or `C`.
        point: &'static str,
    },
    /// The key belongs to another circuit.
    #[error(
        "partition {partition} has {found} public inputs, the verifying key is for {expected}"
    )]
    Inputs {
        /// The partition.
        partition: usize,
        /// Inputs the key has points for.
        expected: usize,
        /// Inputs given.
        found: usize,
    },
}

impl Proof {
    /// A, B, C compressed.
    pub fn to_bytes(&self) -> [u8; PROOF_BYTES] {
        let mut bytes = [0; PROOF_BYTES];
        bytes[..48].copy_from_slice(&self.a.to_compressed());
        bytes[48..144].copy_from_slice(&self.b.to_compressed());
        bytes[144..].copy_from_slice(&self.c.to_compressed());
        bytes
    }

    /// Decodes and checks all three points; the error names the one that is none.
    pub fn from_bytes(bytes: &[u8; PROOF_BYTES]) -> Result<Self, &'static str> {
        let (a, rest) = bytes.split_at(48);
        let (b, c) = rest.split_at(96);
        Ok(Self { a: g1(a).ok_or("A")?, b: g2(b).ok_or("B")?, c: g1(c).ok_or("C")? })
    }
}

fn g1(bytes: &[u8]) -> Option<G1Affine> {
    let point: Option<G1Affine> = G1Affine::from_compressed(bytes.try_into().ok()?).into();
    point.filter(|p| !bool::from(p.is_identity()))
}

fn g2(bytes: &[u8]) -> Option<G2Affine> {
    let point: Option<G2Affine> = G2Affine::from_compressed(bytes.try_into().ok()?).into();
    point.filter(|p| !bool::from(p.is_identity()))
}

/// Whether `proof` (192 bytes a partition, in order) proves every partition's public inputs, given
/// without the constant one.
pub fn verify<I: AsRef<[Scalar]>>(
    key: &VerifyingKey,
    proof: &[u8],
    inputs: &[I],
) -> Result<bool, VerifyError> {
    if inputs.is_empty() || proof.len() != inputs.len() * PROOF_BYTES {
        return Err(VerifyError::Length { partitions: inputs.len(), found: proof.len() });
    }
    let (partitions, _) = proof.as_chunks::<PROOF_BYTES>();
    for (partition, (bytes, inputs)) in partitions.iter().zip(inputs).enumerate() {
        let proof =
            Proof::from_bytes(bytes).map_err(|point| VerifyError::Point { partition, point })?;
        if !verify_one(key, partition, &proof, inputs.as_ref())? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// e(A, B) = e(α, β) · e(Σ xᵢ·icᵢ, γ) · e(C, δ), as one product that must be one.
fn verify_one(
    key: &VerifyingKey,
    partition: usize,
    proof: &Proof,
    inputs: &[Scalar],
) -> Result<bool, VerifyError> {
    if inputs.len() + 1 != key.ic.len() {
        let expected = key.ic.len().saturating_sub(1);
        return Err(VerifyError::Inputs { partition, expected, found: inputs.len() });
    }
    let points: Vec<G1Projective> = key.ic[1..].iter().map(G1Projective::from).collect();
    let sum = (G1Projective::multi_exp(&points, inputs) + key.ic[0]).to_affine();
    let product = Bls12::multi_miller_loop(&[
        (&proof.a, &G2Prepared::from(proof.b)),
        (&-key.alpha_g1, &G2Prepared::from(key.beta_g2)),
        (&-sum, &G2Prepared::from(key.gamma_g2)),
        (&-proof.c, &G2Prepared::from(key.delta_g2)),
    ]);
    Ok(product.final_exponentiation() == Gt::identity())
}

#[cfg(test)]
mod tests {
    use bellpepper_core::{num::AllocatedNum, Circuit, ConstraintSystem, SynthesisError};
    use bellperson::groth16 as bellperson;
    use ff::Field;
    use rand::SeedableRng;
    use rand_xorshift::XorShiftRng;

    use super::*;

    /// Knows a square root and a cube root.
    #[derive(Clone, Copy)]
    struct Roots(Option<Scalar>);

    impl Circuit<Scalar> for Roots {
        fn synthesize<CS: ConstraintSystem<Scalar>>(
            self,
            cs: &mut CS,
        ) -> Result<(), SynthesisError> {
            let root = AllocatedNum::alloc(cs.namespace(|| "root"), || {
                self.0.ok_or(SynthesisError::AssignmentMissing)
            })?;
            let square = root.square(cs.namespace(|| "square"))?;
            let cube = square.mul(cs.namespace(|| "cube"), &root)?;
            square.inputize(cs.namespace(|| "square is public"))?;
            cube.inputize(cs.namespace(|| "cube is public"))
        }
    }

    /// A key, and a proof of each of two roots.
    fn proved() -> (VerifyingKey, Vec<u8>, [Vec<Scalar>; 2]) {
        let mut rng = XorShiftRng::seed_from_u64(1);
        let params =
            bellperson::generate_random_parameters::<Bls12, _, _>(Roots(None), &mut rng).unwrap();
        let roots = [Scalar::from(3), Scalar::from(5)];
        let mut proof = vec![];
        for root in roots {
            let circuit = Roots(Some(root));
            let one = bellperson::create_random_proof(circuit, &params, &mut rng).unwrap();
            one.write(&mut proof).unwrap();
        }
        let vk = params.vk;
        let key = VerifyingKey {
            alpha_g1: vk.alpha_g1,
            beta_g1: vk.beta_g1,
            beta_g2: vk.beta_g2,
            gamma_g2: vk.gamma_g2,
            delta_g1: vk.delta_g1,
            delta_g2: vk.delta_g2,
            ic: vk.ic,
        };
        (key, proof, roots.map(|root| vec![root.square(), root.square() * root]))
    }

    #[test]
    fn a_proof_verifies_for_its_inputs_and_no_others() {
        let (key, proof, [first, second]) = proved();
        assert_eq!(verify(&key, &proof, &[&first, &second]), Ok(true));
        assert_eq!(verify(&key, &proof[..192], &[&first]), Ok(true));
        assert_eq!(verify(&key, &proof, &[&second, &first]), Ok(false));
        assert_eq!(verify(&key, &proof, &[&first, &first]), Ok(false), "the last counts");

        let other = VerifyingKey { delta_g2: -key.delta_g2, ..key.clone() };
        assert_eq!(verify(&other, &proof[..192], &[&first]), Ok(false));
    }

    #[test]
    fn a_tampered_point_is_no_proof() {
        let (key, proof, [first, _]) = proved();
        let one: &[u8; PROOF_BYTES] = proof[..192].try_into().unwrap();
        let whole = Proof::from_bytes(one).unwrap();
        assert_eq!(whole.to_bytes(), *one);
        for tampered in [
            Proof { a: -whole.a, ..whole },
            Proof { b: -whole.b, ..whole },
            Proof { c: -whole.c, ..whole },
            Proof { a: whole.c, c: whole.a, ..whole },
        ] {
            assert_eq!(verify(&key, &tampered.to_bytes(), &[&first]), Ok(false));
        }
    }

    /// On the curve but outside the subgroup.
    fn stray() -> G1Affine {
        (0u8..)
            .find_map(|x| {
                let mut bytes = [0; 48];
                (bytes[0], bytes[47]) = (0x80, x);
                let point: Option<G1Affine> = G1Affine::from_compressed_unchecked(&bytes).into();
                point.filter(|point| !bool::from(point.is_torsion_free()))
            })
            .expect("most points are")
    }

    #[test]
    fn what_is_no_point_of_the_subgroup_is_refused_by_name() {
        let (key, proof, [first, _]) = proved();
        let spoilt = |at: usize, bytes: &[u8]| {
            let mut proof = proof[..192].to_vec();
            proof[at..at + bytes.len()].copy_from_slice(bytes);
            verify(&key, &proof, &[&first])
        };
        let point = |point| Err(VerifyError::Point { partition: 0, point });
        assert_eq!(spoilt(0, &stray().to_compressed()), point("A"));
        assert_eq!(spoilt(144, &stray().to_compressed()), point("C"));
        assert_eq!(spoilt(0, &G1Affine::identity().to_compressed()), point("A"));
        assert_eq!(spoilt(48, &G2Affine::identity().to_compressed()), point("B"));
        assert_eq!(spoilt(48, &[0xff; 96]), point("B"));
        assert_eq!(spoilt(0, &[0; 1]), point("A"), "not marked compressed");
    }

    #[test]
    fn lengths_must_fit() {
        let (key, proof, [first, _]) = proved();
        for (bytes, inputs) in [(0, 0), (191, 1), (193, 1), (192, 2), (384, 1)] {
            let found = verify(&key, &proof[..bytes], &vec![&first; inputs]);
            assert_eq!(found, Err(VerifyError::Length { partitions: inputs, found: bytes }));
        }
        let found = verify(&key, &proof[..192], &[&first[..1]]);
        assert_eq!(found, Err(VerifyError::Inputs { partition: 0, expected: 2, found: 1 }));
        let error = VerifyError::Length { partitions: 2, found: 3 }.to_string();
        assert_eq!(error, "a proof of 2 partition(s) has 384 bytes, found 3");
    }
}
