//! Filecoin's published digests (they come with its own crate), and checking a folder against them.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use blake2b_simd::State;
use storage_proofs_core::parameter_cache::get_parameter_data_from_id;

use super::{
    filecoin::{read_vk, Digest, ParamsFile},
    open_file, Params, ParamsError, Progress, Srs,
};
use crate::device::Checkpoint;

/// What [`check`] found out about a file.
#[derive(Debug)]
pub struct CheckResult {
    /// The file.
    pub path: PathBuf,
    /// Its size, when it could be had.
    pub bytes: Option<u64>,
    /// What is to say of it.
    pub finding: Finding,
}

/// What is to say of a file.
#[derive(Debug)]
pub enum Finding {
    /// Its digest is the published one.
    Published(Digest),
    /// A sound file of insecure parameters, in a folder that says so.
    Development(Digest),
    /// A sound file under a name that Filecoin has published nothing for.
    Unlisted(Digest),
    /// A native file whose checksums are right.
    Native,
    /// It is not there, or it is not what it should be: see the error.
    Bad(ParamsError),
}

impl Finding {
    /// Whether the file can be used.
    pub fn is_good(&self) -> bool {
        !matches!(self, Self::Bad(_))
    }
}

/// Refuses a file whose name is on Filecoin's list with another digest.
pub(super) fn require(path: &Path, found: Digest) -> Result<(), ParamsError> {
    match published(path) {
        Some(expected) if expected != found.to_string() => Err(ParamsError::Digest {
            path: path.into(),
            expected: expected.into(),
            found: found.to_string(),
        }),
        _ => Ok(()),
    }
}

/// The digest on the list for a file of this name.
pub(super) fn published(path: &Path) -> Option<&str> {
    let listed = get_parameter_data_from_id(path.file_name()?.to_str()?)?;
    Some(&listed.digest)
}

/// Reads every parameter file there is, and those of the circuits named by `stems` whether they are
/// there or not, and says of each whether it is what it should be.
///
/// # Errors
/// When a folder cannot be listed, or at the checkpoint. What is wrong with a file is a finding.
pub fn check(
    params: &Params,
    stems: &[String],
    progress: &mut dyn FnMut(Progress),
    checkpoint: &dyn Checkpoint,
) -> Result<Vec<CheckResult>, ParamsError> {
    let mut paths = files(params.dir(), &["params", "vk"])?;
    paths.extend(files(params.native_dir(), &["srs"])?);
    paths.extend(stems.iter().flat_map(|stem| [params.params_path(stem), params.vk_path(stem)]));
    paths.sort();
    paths.dedup();
    let mut results = Vec::with_capacity(paths.len());
    for path in paths {
        let finding = match find(params, &path, progress, checkpoint) {
            Ok(finding) => finding,
            Err(ParamsError::Interrupted(interrupted)) => return Err(interrupted.into()),
            Err(error) => Finding::Bad(error),
        };
        let bytes = fs::metadata(&path).ok().map(|stat| stat.len());
        results.push(CheckResult { path, bytes, finding });
    }
    Ok(results)
}

/// The folder's files with one of these extensions; none when there is no folder.
fn files(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, ParamsError> {
    let listed = |entry: &PathBuf| {
        entry.extension().is_some_and(|has| extensions.iter().any(|wanted| has == *wanted))
    };
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(ParamsError::io(dir, "list"))?,
    };
    let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.map_err(ParamsError::io(dir, "list"))?;
    paths.retain(listed);
    Ok(paths)
}

fn find(
    params: &Params,
    path: &Path,
    progress: &mut dyn FnMut(Progress),
    checkpoint: &dyn Checkpoint,
) -> Result<Finding, ParamsError> {
    if path.extension().is_some_and(|extension| extension == "srs") {
        Srs::open_any(path)?.verify(progress, checkpoint)?;
        return Ok(Finding::Native);
    }
    let listed = published(path).is_some() && !params.is_development();
    // A published digest says all; without one the points themselves have to be sound.
    let digest = if path.extension().is_some_and(|extension| extension == "vk") {
        read_vk(path)?;
        digest(path, progress, checkpoint)?
    } else {
        let file = ParamsFile::open(path)?;
        match listed {
            true => digest(path, progress, checkpoint)?,
            false => file.verify(progress, checkpoint)?,
        }
    };
    if params.is_development() {
        return Ok(Finding::Development(digest));
    }
    require(path, digest)?;
    Ok(if listed { Finding::Published(digest) } else { Finding::Unlisted(digest) })
}

/// The digest of any file.
fn digest(
    path: &Path,
    progress: &mut dyn FnMut(Progress),
    checkpoint: &dyn Checkpoint,
) -> Result<Digest, ParamsError> {
    const CHUNK: usize = 4 << 20;
    let (mut file, stat) = open_file(path)?;
    let total = stat.len();
    let mut chunk = vec![0; CHUNK];
    let (mut state, mut done) = (State::new(), 0);
    loop {
        checkpoint.check()?;
        progress(Progress { step: "digest".into(), done, total });
        match file.read(&mut chunk) {
            Ok(0) => return Ok(Digest::of(&state)),
            Ok(read) => {
                state.update(&chunk[..read]);
                done += read as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(ParamsError::io(path, "read")(e)),
        }
    }
}
