//! A request from files and flags, for the commands that take one.

use super::CommandError;
use crate::{config::Size, wire};
use clap::Args;
use cuzk_core::proof::{Priority, ProofKind};
use std::{fs, path::PathBuf};

/// What is to be proved. The files hold the vanilla proofs, the flags the rest of the statement.
#[derive(Args)]
pub struct RequestArgs {
    /// PoRep: the C1 output as JSON, in Curio's wrapper or without. PoSt: one vanilla proof
    /// (bincode) a sector. SnapDeals: one a partition
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// porep, snap, window-post or winning-post
    #[arg(long, default_value = "porep", value_name = "KIND")]
    kind: ProofKind,
    /// Number of the RegisteredSealProof, -PoStProof or -UpdateProof; the rest can follow from it
    #[arg(long, default_value_t = 0, value_name = "N")]
    registered_proof: u64,
    /// As in 32GiB
    #[arg(long, value_parser = size, value_name = "SIZE")]
    sector_size: Option<u64>,
    /// The sector's number
    #[arg(long, default_value_t = 0, value_name = "N")]
    sector_number: u64,
    /// The miner's number (f01234 is 1234)
    #[arg(long, default_value_t = 0, value_name = "N")]
    miner_id: u64,
    /// PoSt: the challenge seed, 64 hexadecimal digits
    #[arg(long, value_parser = hexadecimal, value_name = "HEX")]
    randomness: Option<Hex>,
    /// WindowPoSt: the partition's place in the deadline
    #[arg(long, default_value_t = 0, value_name = "N")]
    partition_index: u32,
    /// SnapDeals: the old replica's commitment, hexadecimal
    #[arg(long, value_parser = hexadecimal, value_name = "HEX")]
    comm_r_old: Option<Hex>,
    /// SnapDeals: the new replica's commitment, hexadecimal
    #[arg(long, value_parser = hexadecimal, value_name = "HEX")]
    comm_r_new: Option<Hex>,
    /// SnapDeals: the new data's commitment, hexadecimal
    #[arg(long, value_parser = hexadecimal, value_name = "HEX")]
    comm_d_new: Option<Hex>,
    /// low, normal, high or critical [default: what the kind has]
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<Priority>,
    /// A name under which a repeat of this request joins this one
    #[arg(long, default_value = "", value_name = "ID")]
    request_id: String,
}

#[derive(Clone)]
struct Hex(Vec<u8>);

fn hexadecimal(text: &str) -> Result<Hex, hex::FromHexError> {
    hex::decode(text.strip_prefix("0x").unwrap_or(text)).map(Hex)
}

fn size(text: &str) -> Result<u64, String> {
    serde_json::from_value::<Size>(text.into()).map(|size| size.0).map_err(|e| e.to_string())
}

impl RequestArgs {
    /// Reads the files.
    pub fn read(&self) -> Result<wire::SubmitProofRequest, CommandError> {
        let read = |path: &PathBuf| {
            fs::read(path).map_err(|source| CommandError::File { path: path.clone(), source })
        };
        let mut files = self.files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let vanilla_proof = match self.kind {
            ProofKind::PorepSealCommit if files.len() > 1 => {
                let error = format!("porep takes one file, found {}", files.len());
                return Err(CommandError::Usage(error));
            }
            ProofKind::PorepSealCommit => files.pop().unwrap_or_default(),
            _ => Vec::new(),
        };
        let bytes = |hex: &Option<Hex>| hex.clone().map(|hex| hex.0).unwrap_or_default();
        Ok(wire::SubmitProofRequest {
            request_id: self.request_id.clone(),
            proof_kind: self.kind.wire_number(),
            sector_size: self.sector_size.unwrap_or(0),
            registered_proof: self.registered_proof,
            priority: self.priority.map_or(wire::Priority::Unspecified, urgency).into(),
            vanilla_proof,
            vanilla_proofs: files,
            sector_number: self.sector_number,
            miner_id: self.miner_id,
            randomness: bytes(&self.randomness),
            partition_index: self.partition_index,
            comm_r_old: bytes(&self.comm_r_old),
            comm_r_new: bytes(&self.comm_r_new),
            comm_d_new: bytes(&self.comm_d_new),
        })
    }
}

fn urgency(priority: Priority) -> wire::Priority {
    match priority {
        Priority::Low => wire::Priority::Low,
        Priority::Normal => wire::Priority::Normal,
        Priority::High => wire::Priority::High,
        Priority::Critical => wire::Priority::Critical,
    }
}
