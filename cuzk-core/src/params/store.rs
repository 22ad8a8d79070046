//! Where parameters lie, and how to come by a circuit's SRS.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use super::{
    atomic::AtomicFile,
    convert::Conversion,
    filecoin::{read_vk, Digest, ParamsFile, Stamp},
    open_file, published, Counts, NamedCircuit, ParamsError, Progress, Srs,
};
use crate::{device::Checkpoint, groth16::VerifyingKey};

/// The file that marks a folder as one of development parameters.
pub const DEVELOPMENT_MARKER: &str = "INSECURE-DEVELOPMENT-PARAMETERS";

/// A folder of Filecoin's parameter files and the folder of the native files made from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    dir: PathBuf,
    native_dir: PathBuf,
}

/// A native file.
enum Native {
    Good(Box<Srs>),
    /// It is not there, or not of the present `.params` file.
    ToBeMade,
    /// It is no good, for this reason.
    Unusable(ParamsError),
}

impl Params {
    /// Parameters in `dir`, their native files in its subfolder `cuzk-native`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        let native_dir = dir.join("cuzk-native");
        Self { dir, native_dir }
    }

    /// With the native files elsewhere: on a faster disk, or because `dir` is read-only.
    pub fn with_native_dir(self, native_dir: impl Into<PathBuf>) -> Self {
        Self { native_dir: native_dir.into(), ..self }
    }

    /// Where Filecoin's own programs look: `FIL_PROOFS_PARAMETER_CACHE`, or a folder in `/var/tmp`.
    pub fn default_dir() -> PathBuf {
        env::var_os("FIL_PROOFS_PARAMETER_CACHE")
            .filter(|dir| !dir.is_empty())
            .map_or_else(|| "/var/tmp/filecoin-proof-parameters".into(), PathBuf::from)
    }

    /// The folder of Filecoin's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder of native files.
    pub fn native_dir(&self) -> &Path {
        &self.native_dir
    }

    /// Where a circuit's `.params` file is expected.
    pub fn params_path(&self, stem: &str) -> PathBuf {
        self.dir.join(format!("{stem}.params"))
    }

    /// Where a circuit's `.vk` file is expected.
    pub fn vk_path(&self, stem: &str) -> PathBuf {
        self.dir.join(format!("{stem}.vk"))
    }

    /// Where a circuit's native file is expected.
    pub fn native_path(&self, stem: &str) -> PathBuf {
        self.native_dir.join(format!("{stem}.srs"))
    }

    /// Where a circuit's matrices are expected.
    pub fn compiled_path(&self, stem: &str) -> PathBuf {
        self.native_dir.join(format!("{stem}.csr"))
    }

    /// Whether the folder is marked as one of insecure development parameters.
    pub fn is_development(&self) -> bool {
        self.dir.join(DEVELOPMENT_MARKER).exists()
    }

    /// A circuit's verifying key alone, from its `.vk`, `.params` or native file.
    ///
    /// # Errors
    /// [`ParamsError`] when none is there, or the first that is there is no good.
    pub fn verifying_key(&self, stem: &str) -> Result<VerifyingKey, ParamsError> {
        for path in [self.vk_path(stem), self.params_path(stem)] {
            match read_vk(&path) {
                Err(error) if error.is_not_found() => {}
                read => return read,
            }
        }
        match Srs::open(&self.native_path(stem), stem) {
            Ok(srs) => Ok(srs.vk().clone()),
            Err(error) if error.is_not_found() => Err(self.missing(stem)),
            Err(error) => Err(error),
        }
    }

    /// A circuit's parameters, mapped from its native file; this is first made, by one process at a
    /// time, where it is missing, damaged or not of the present `.params` file. Only then is the
    /// circuit counted: the file must be that circuit's.
    ///
    /// # Errors
    /// [`ParamsError`] when neither file is there, or what is there is no good.
    pub fn open(
        &self,
        circuit: &dyn NamedCircuit,
        progress: &mut dyn FnMut(Progress),
        checkpoint: &dyn Checkpoint,
    ) -> Result<Srs, ParamsError> {
        let stem = circuit.stem()?;
        if let Native::Good(srs) = self.open_native(&stem)? {
            return Ok(*srs);
        }
        fs::create_dir_all(&self.native_dir).map_err(ParamsError::native_dir(&self.native_dir))?;
        let native = self.native_path(&stem);
        let target = AtomicFile::begin_shown(&native, progress, checkpoint)?;
        // Another process may have made it while this one waited for its turn.
        match self.open_native(&stem)? {
            Native::Good(srs) => return Ok(*srs),
            Native::Unusable(error) => {
                tracing::warn!(%error, "native srs unusable, making it again");
            }
            Native::ToBeMade => {}
        }
        let source = ParamsFile::open(&self.params_path(&stem))?;
        source.require_counts(&stem, &circuit.size()?.counts())?;
        let development = self.is_development();
        let accept = |digest: Digest| match development {
            true => Ok(()),
            false => published::require(source.path(), digest),
        };
        tracing::info!(circuit = stem, native = %native.display(), "srs conversion");
        let conversion = Conversion { source: &source, circuit: &stem, development };
        conversion.write(target, accept, progress, checkpoint)?;
        Srs::open(&native, &stem)
    }

    /// How many points a circuit's parameters have, from the head of the native file or, where there
    /// is none yet, of the `.params` file.
    ///
    /// # Errors
    /// As [`Params::open`].
    pub fn counts(&self, circuit: &dyn NamedCircuit) -> Result<Counts, ParamsError> {
        let stem = circuit.stem()?;
        if let Native::Good(srs) = self.open_native(&stem)? {
            return Ok(srs.header().counts);
        }
        Ok(*ParamsFile::open(&self.params_path(&stem))?.counts())
    }

    /// The native file, or that it has to be made and can be.
    fn open_native(&self, stem: &str) -> Result<Native, ParamsError> {
        let source = match open_file(&self.params_path(stem)) {
            Ok((_, stat)) => Some(Stamp::of(&stat, &self.params_path(stem))?),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        let opened = Srs::open(&self.native_path(stem), stem);
        match (opened, source) {
            (Ok(srs), None) if srs.header().development == self.is_development() => {
                Ok(Native::Good(Box::new(srs)))
            }
            (Ok(srs), None) => Err(ParamsError::Mixed {
                path: srs.path().into(),
                what: "a native file of development parameters beside production ones, or the \
                       other way round",
            }),
            (Ok(srs), Some(source)) => {
                let header = srs.header();
                let fresh = header.source == source && header.development == self.is_development();
                Ok(if fresh { Native::Good(Box::new(srs)) } else { Native::ToBeMade })
            }
            // Nothing can be renamed over it.
            (Err(error @ ParamsError::NoFile { .. }), _) => Err(error),
            (Err(error), None) if error.is_not_found() => Err(self.missing(stem)),
            (Err(error), None) => Err(error),
            (Err(error), Some(_)) if error.is_not_found() => Ok(Native::ToBeMade),
            (Err(error), Some(_)) => Ok(Native::Unusable(error)),
        }
    }

    fn missing(&self, stem: &str) -> ParamsError {
        ParamsError::Missing {
            circuit: stem.into(),
            params: self.params_path(stem),
            native: self.native_path(stem),
        }
    }
}
