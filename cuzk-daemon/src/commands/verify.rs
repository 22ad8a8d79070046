//! `cuzk verify`: checks a proof against the request that it is to prove. Needs the verifying key
//! only, no proving parameters.

use super::{print, request::RequestArgs, CommandError};
use crate::config::Settings;
use clap::Args;
use cuzk_core::{
    groth16::{self, PROOF_BYTES},
    params::Params,
    proof::{ProofRequest, RawRequest},
};
use std::{fs, path::PathBuf};

/// Shown under `cuzk verify --help`.
pub const EXAMPLES: &str = "\
Examples:
  cuzk verify c1.json --proof proof.bin
  cuzk verify sector7.vanilla --kind winning-post --sector-number 7 --miner-id 1234 \\
              --randomness 0909...09 --proof proof.hex

Exit code 0: the proof is valid; 4: it is not.";

/// The flags of `cuzk verify`.
#[derive(Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// The proof: its bytes, or hexadecimal digits
    #[arg(long, value_name = "FILE")]
    proof: PathBuf,
}

/// Says whether the proof is valid.
pub fn run(args: &VerifyArgs, settings: &Settings) -> Result<(), CommandError> {
    let request = ProofRequest::parse(&RawRequest::from(args.request.read()?))?;
    let partitions = request.partitions();
    let proof = read_proof(&args.proof, partitions * PROOF_BYTES)?;
    let failed = |error: &dyn std::fmt::Display| CommandError::Failed(error.to_string());
    let inputs = (0..partitions)
        .map(|index| request.partition(index).map(|partition| partition.inputs))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| failed(&error))?;
    let stem = request.circuit_id().file_stem().map_err(|error| failed(&error))?;
    let params = Params::new(&settings.params_dir).with_native_dir(&settings.native_dir);
    let key = params.verifying_key(&stem)?;

    match groth16::verify(&key, &proof, &inputs) {
        Ok(true) => print(&format!("valid: {} partition(s) of {}\n", partitions, request.kind())),
        Ok(false) => Err(CommandError::Invalid("it does not prove this request".to_owned())),
        Err(error) => Err(CommandError::Invalid(error.to_string())),
    }
}

fn read_proof(path: &PathBuf, expected: usize) -> Result<Vec<u8>, CommandError> {
    let bytes =
        fs::read(path).map_err(|source| CommandError::File { path: path.clone(), source })?;
    if bytes.len() == expected {
        return Ok(bytes);
    }
    let digits = bytes.trim_ascii();
    Ok(hex::decode(digits).unwrap_or(bytes))
}
