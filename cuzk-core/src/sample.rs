//! A real 2 KiB sector made on the spot, and a request of every kind about it.
//!
//! For demonstrations, tests and benches: sealing it with Filecoin's own API takes a fraction of a
//! second, so no fixtures are shipped. The same seed makes the same sector. Filecoin's crates read
//! FIL_PROOFS_PARENT_CACHE (a file of 4 KiB is written there) and, to verify,
//! FIL_PROOFS_PARAMETER_CACHE once, on their first use in the process, as well as
//! `rust-fil-proofs.config.toml` in the current folder: set them before.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Cursor;
use std::path::PathBuf;

use base64::Engine as _;
use filecoin_proofs_api::{
    post, seal, update, PieceInfo, PrivateReplicaInfo, PublicReplicaInfo, RegisteredPoStProof,
    RegisteredSealProof, RegisteredUpdateProof, SectorId, UnpaddedBytesAmount,
};
use rand::{RngCore, SeedableRng};
use rand_xorshift::XorShiftRng;

use crate::proof::{prover_id, ProofKind, RawRequest};

const SECTOR_BYTES: u64 = 2 << 10;
/// What fits into a sector before bit padding.
const PAYLOAD_BYTES: u64 = SECTOR_BYTES / 128 * 127;
const WINNING: RegisteredPoStProof = RegisteredPoStProof::StackedDrgWinning2KiBV1;
const WINDOW: RegisteredPoStProof = RegisteredPoStProof::StackedDrgWindow2KiBV1_2;
const UPDATE: RegisteredUpdateProof = RegisteredUpdateProof::StackedDrg2KiBV1;

/// Filecoin's crates would not make or verify the sample.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {reason}")]
pub struct SampleError {
    step: &'static str,
    reason: String,
}

/// What an API of Filecoin's says, as an error of ours that names the step.
trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, SampleError>;
}

impl<T, E: std::fmt::Display> Step<T> for Result<T, E> {
    fn step(self, step: &'static str) -> Result<T, SampleError> {
        self.map_err(|error| SampleError { step, reason: format!("{error:#}") })
    }
}

/// A sealed sector, and what is needed to prove it and to verify the proofs.
pub struct Sample {
    seal: RegisteredSealProof,
    miner_id: u64,
    sector_number: u64,
    ticket: [u8; 32],
    seed: [u8; 32],
    randomness: [u8; 32],
    comm_r: [u8; 32],
    comm_d: [u8; 32],
    comm_r_new: [u8; 32],
    comm_d_new: [u8; 32],
    requests: BTreeMap<ProofKind, RawRequest>,
}

impl Sample {
    /// Seals a sector, challenges it, updates it.
    pub fn make(seed: u64) -> Result<Self, SampleError> {
        Self::sealed_with(RegisteredSealProof::StackedDrg2KiBV1_1, seed)
    }

    /// The same with another seal proof of 2 KiB: V1, synthetic, non-interactive.
    pub fn sealed_with(seal: RegisteredSealProof, seed: u64) -> Result<Self, SampleError> {
        let mut rng = XorShiftRng::seed_from_u64(seed);
        let mut element = || {
            let mut bytes = [0; 32];
            rng.fill_bytes(&mut bytes);
            bytes[31] &= 0x3f;
            bytes
        };
        let mut sample = Self {
            seal,
            miner_id: 1000,
            sector_number: 1 + seed % 1000,
            ticket: element(),
            seed: element(),
            randomness: element(),
            comm_r: [0; 32],
            comm_d: [0; 32],
            comm_r_new: [0; 32],
            comm_d_new: [0; 32],
            requests: BTreeMap::new(),
        };
        let folder = Folder::new()?;
        let payload = folder.stage("staged", &mut rng)?;
        sample.seal(&folder, payload)?;
        sample.challenge(&folder, ProofKind::WinningPost, WINNING)?;
        sample.challenge(&folder, ProofKind::WindowPostPartition, WINDOW)?;
        let payload = folder.stage("new-staged", &mut rng)?;
        sample.update(&folder, payload)?;
        Ok(sample)
    }

    /// The request to prove that kind of proof.
    pub fn request(&self, kind: ProofKind) -> RawRequest {
        self.requests.get(&kind).cloned().unwrap_or_default()
    }

    /// Whether Filecoin's API accepts the proof. Non-interactive PoRep it only takes aggregated,
    /// which needs more than this proves: an error.
    pub fn verify_with_filecoin(&self, kind: ProofKind, proof: &[u8]) -> Result<bool, SampleError> {
        let prover = prover_id(self.miner_id);
        let replicas = |registered| {
            BTreeMap::from([(self.sector(), PublicReplicaInfo::new(registered, self.comm_r))])
        };
        let verified = match kind {
            ProofKind::PorepSealCommit => seal::verify_seal(
                self.seal,
                self.comm_r,
                self.comm_d,
                prover,
                self.sector(),
                self.ticket,
                self.seed,
                proof,
            ),
            ProofKind::WinningPost => {
                post::verify_winning_post(&self.randomness, proof, &replicas(WINNING), prover)
            }
            ProofKind::WindowPostPartition => post::verify_window_post(
                &self.randomness,
                &[(WINDOW, proof)],
                &replicas(WINDOW),
                prover,
            ),
            ProofKind::SnapDealsUpdate => update::verify_empty_sector_update_proof(
                UPDATE,
                proof,
                self.comm_r,
                self.comm_r_new,
                self.comm_d_new,
            ),
        };
        verified.step("verify")
    }

    fn sector(&self) -> SectorId {
        SectorId::from(self.sector_number)
    }

    fn base(&self, kind: ProofKind, registered_proof: u64) -> RawRequest {
        RawRequest {
            request_id: format!("{kind}-{}-{}", self.miner_id, self.sector_number),
            proof_kind: kind.wire_number(),
            sector_size: SECTOR_BYTES,
            registered_proof,
            sector_number: self.sector_number,
            miner_id: self.miner_id,
            ..RawRequest::default()
        }
    }

    fn seal(&mut self, folder: &Folder, payload: PieceInfo) -> Result<(), SampleError> {
        let prover = prover_id(self.miner_id);
        let (cache, sealed) = (folder.path("cache"), folder.path("sealed"));
        fs::create_dir(&cache).step("make the cache")?;
        File::create(&sealed).step("make the replica")?;
        let pieces = [payload];
        let phase1 = seal::seal_pre_commit_phase1(
            self.seal,
            &cache,
            folder.path("staged"),
            &sealed,
            prover,
            self.sector(),
            self.ticket,
            &pieces,
        )
        .step("pre-commit 1")?;
        let phase2 = seal::seal_pre_commit_phase2(phase1, &cache, &sealed).step("pre-commit 2")?;
        (self.comm_r, self.comm_d) = (phase2.comm_r, phase2.comm_d);
        if self.seal == RegisteredSealProof::StackedDrg2KiBV1_1_Feat_SyntheticPoRep {
            seal::generate_synth_proofs(
                &cache,
                &sealed,
                prover,
                self.sector(),
                self.ticket,
                phase2.clone(),
                &pieces,
            )
            .step("synthetic proofs")?;
        }
        let output = seal::seal_commit_phase1(
            &cache,
            &sealed,
            prover,
            self.sector(),
            self.ticket,
            self.seed,
            phase2,
            &pieces,
        )
        .step("commit 1")?;
        let output = serde_json::to_vec(&output).step("commit 1")?;
        let kind = ProofKind::PorepSealCommit;
        let envelope = serde_json::json!({
            "SectorNum": self.sector_number,
            "Phase1Out": base64::engine::general_purpose::STANDARD.encode(output),
            "SectorSize": SECTOR_BYTES,
        });
        let vanilla_proof = serde_json::to_vec(&envelope).step("commit 1")?;
        let request = RawRequest { vanilla_proof, ..self.base(kind, self.seal as u64) };
        self.requests.insert(kind, request);
        Ok(())
    }

    fn challenge(
        &mut self,
        folder: &Folder,
        kind: ProofKind,
        registered: RegisteredPoStProof,
    ) -> Result<(), SampleError> {
        let sector = self.sector();
        let prover = prover_id(self.miner_id);
        let challenges = post::generate_fallback_sector_challenges(
            registered,
            &self.randomness,
            &[sector],
            prover,
        );
        let challenges = challenges.step("challenges")?.remove(&sector).unwrap_or_default();
        let replica = PrivateReplicaInfo::new(
            registered,
            self.comm_r,
            folder.path("cache"),
            folder.path("sealed"),
        );
        let vanilla =
            post::generate_single_vanilla_proof(registered, sector, &replica, &challenges)
                .step("vanilla proof")?;
        let request = RawRequest {
            vanilla_proofs: vec![vanilla],
            randomness: self.randomness.to_vec(),
            ..self.base(kind, registered as u64)
        };
        self.requests.insert(kind, request);
        Ok(())
    }

    fn update(&mut self, folder: &Folder, payload: PieceInfo) -> Result<(), SampleError> {
        let (key, key_cache) = (folder.path("sealed"), folder.path("cache"));
        let (replica, cache) = (folder.path("new-sealed"), folder.path("new-cache"));
        fs::create_dir(&cache).step("make the new cache")?;
        let file = File::create(&replica).step("make the new replica")?;
        file.set_len(SECTOR_BYTES).step("make the new replica")?;
        let encoded = update::empty_sector_update_encode_into(
            UPDATE,
            &replica,
            &cache,
            &key,
            &key_cache,
            folder.path("new-staged"),
            &[payload],
        )
        .step("encode the update")?;
        (self.comm_r_new, self.comm_d_new) = (encoded.comm_r_new, encoded.comm_d_new);
        let vanilla = update::generate_partition_proofs(
            UPDATE,
            self.comm_r,
            self.comm_r_new,
            self.comm_d_new,
            &key,
            &key_cache,
            &replica,
            &cache,
        )
        .step("update proofs")?;
        let kind = ProofKind::SnapDealsUpdate;
        let request = RawRequest {
            vanilla_proofs: vanilla.into_iter().map(|proof| proof.0).collect(),
            comm_r_old: self.comm_r.to_vec(),
            comm_r_new: self.comm_r_new.to_vec(),
            comm_d_new: self.comm_d_new.to_vec(),
            ..self.base(kind, UPDATE as u64)
        };
        self.requests.insert(kind, request);
        Ok(())
    }
}

/// Where a sector lives while it is sealed; gone afterwards.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Result<Self, SampleError> {
        tempfile::tempdir().map(Self).step("make a temporary folder")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A sector full of random data.
    fn stage(&self, name: &str, rng: &mut impl RngCore) -> Result<PieceInfo, SampleError> {
        let mut payload = vec![0; PAYLOAD_BYTES as usize];
        rng.fill_bytes(&mut payload);
        let mut file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(self.path(name))
            .step("stage a sector")?;
        let seal = RegisteredSealProof::StackedDrg2KiBV1_1;
        let amount = UnpaddedBytesAmount(PAYLOAD_BYTES);
        let (piece, _) = seal::add_piece(seal, Cursor::new(payload), &mut file, amount, &[])
            .step("stage a sector")?;
        Ok(piece)
    }
}
