//! Keeps what the demo proved: its requests as the files that `cuzk prove` takes, the proofs, and the
//! commands that prove and verify them again.

use super::CommandError;
use crate::file::write_atomically;
use cuzk_core::proof::{ProofKind, RawRequest};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A folder for what was proved.
pub struct Kept {
    folder: PathBuf,
}

impl Kept {
    /// In `folder`, which is made if need be.
    pub fn in_folder(folder: &Path) -> Result<Kept, CommandError> {
        fs::create_dir_all(folder)
            .map_err(|source| CommandError::File { path: folder.to_owned(), source })?;
        Ok(Kept { folder: folder.to_owned() })
    }

    /// Writes the request's files, and gives the arguments that make the same request of them.
    pub fn request(
        &self,
        kind: ProofKind,
        request: &RawRequest,
    ) -> Result<Vec<String>, CommandError> {
        let mut arguments = Vec::new();
        match kind {
            ProofKind::PorepSealCommit => {
                arguments.push(self.write("porep.json", &request.vanilla_proof)?);
            }
            _ => {
                for (index, vanilla) in request.vanilla_proofs.iter().enumerate() {
                    arguments.push(self.write(&format!("{kind}-{index}.vanilla"), vanilla)?);
                }
            }
        }
        arguments.extend([
            format!("--kind={kind}"),
            format!("--registered-proof={}", request.registered_proof),
            format!("--sector-number={}", request.sector_number),
            format!("--miner-id={}", request.miner_id),
        ]);
        for (flag, bytes) in [
            ("randomness", &request.randomness),
            ("comm-r-old", &request.comm_r_old),
            ("comm-r-new", &request.comm_r_new),
            ("comm-d-new", &request.comm_d_new),
        ] {
            if !bytes.is_empty() {
                arguments.push(format!("--{flag}={}", hex::encode(bytes)));
            }
        }
        Ok(arguments)
    }

    /// Writes a proof.
    pub fn proof(&self, kind: ProofKind, proof: &[u8]) -> Result<String, CommandError> {
        self.write(&format!("{kind}.proof"), proof)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<String, CommandError> {
        let path = self.folder.join(name);
        match write_atomically(&path, bytes) {
            Ok(()) => Ok(path.display().to_string()),
            Err(source) => Err(CommandError::File { path, source }),
        }
    }
}

/// A command line as one types it.
pub fn typed<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,".contains(c);
    let quoted = words.into_iter().map(|word| match word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::request::RequestArgs;
    use clap::Parser;
    use cuzk_core::sample::Sample;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        request: RequestArgs,
    }

    #[test]
    fn what_was_kept_is_read_back_as_the_same_request() {
        let folder = tempfile::tempdir().unwrap();
        std::env::set_var("FIL_PROOFS_PARENT_CACHE", folder.path().join("parents"));
        let sample = Sample::make(5).unwrap();
        let kept = Kept::in_folder(&folder.path().join("new/folder")).unwrap();
        for kind in ProofKind::ALL {
            let request = sample.request(kind);
            let mut arguments = kept.request(kind, &request).unwrap();
            arguments.insert(0, "prove".to_owned());
            let read = Line::try_parse_from(arguments).unwrap().request.read().unwrap();
            let expected = RawRequest { request_id: String::new(), sector_size: 0, ..request };
            assert_eq!(RawRequest::from(read), expected, "{kind}");
        }
    }

    #[test]
    fn words_that_a_shell_would_change_are_quoted() {
        assert_eq!(typed(["cuzk", "prove", "a b", "it's"]), r"cuzk prove 'a b' 'it'\''s'");
    }
}
