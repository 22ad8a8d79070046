//! Opens the sockets that the daemon listens on. A unix socket outlives the process that made it,
//! so next to it lies a lock file, held as long as the daemon runs: who holds the lock may remove
//! a stale socket, and nobody takes a live one over.

use crate::address::Address;
use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
};
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// Who may connect to a unix socket: its owner and group.
const SOCKET_MODE: u32 = 0o660;

/// An open socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A unix socket, and what removes it at the end (until [`Listener::take_file`]).
    Unix(UnixListener, Option<SocketFile>),
}

/// Removes the socket's file when dropped, while the lock is still held.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    _lock: File,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Why the daemon cannot listen there.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody listens there already.
    #[error("{address} is in use: a process listens there; stop it or choose another --listen")]
    InUse {
        /// The address asked for.
        address: Address,
    },
    /// The path is taken by something that is no socket.
    #[error("{path} exists and is no socket; it was left alone. Choose another --listen")]
    NoSocket {
        /// The path asked for.
        path: PathBuf,
    },
    /// The kernel refused.
    #[error("cannot listen on {address}: {source}")]
    Refused {
        /// The address asked for.
        address: Address,
        /// Its reason.
        source: io::Error,
    },
}

/// Opens one socket.
pub async fn open(address: &Address) -> Result<Listener, ListenError> {
    match address {
        Address::Tcp(endpoint) => {
            TcpListener::bind(endpoint).await.map(Listener::Tcp).map_err(|error| {
                if error.kind() == io::ErrorKind::AddrInUse {
                    return ListenError::InUse { address: address.clone() };
                }
                ListenError::Refused { address: address.clone(), source: error }
            })
        }
        Address::Unix(path) => open_unix(address, path).await,
    }
}

async fn open_unix(address: &Address, path: &Path) -> Result<Listener, ListenError> {
    let refused = |source| ListenError::Refused { address: address.clone(), source };
    let in_use = || ListenError::InUse { address: address.clone() };

    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(lock_path(path))
        .map_err(refused)?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => in_use(),
        TryLockError::Error(source) => refused(source),
    })?;

    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::NoSocket { path: path.to_owned() })
        }
        Ok(_) if UnixStream::connect(path).await.is_ok() => return Err(in_use()),
        Ok(_) => fs::remove_file(path).map_err(refused)?,
    }
    let listener = UnixListener::bind(path).map_err(refused)?;
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE)).map_err(refused)?;
    Ok(Listener::Unix(listener, Some(SocketFile { path: path.to_owned(), _lock: lock })))
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

impl Listener {
    /// The address in force: with the port that the kernel chose, where it was asked to.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Listener::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?.to_string())),
            Listener::Unix(listener, _) => {
                let address = listener.local_addr()?;
                Ok(Address::Unix(address.as_pathname().unwrap_or(Path::new("")).to_owned()))
            }
        }
    }

    /// What removes the socket's file, for whoever outlives the listener.
    pub fn take_file(&mut self) -> Option<SocketFile> {
        match self {
            Listener::Tcp(_) => None,
            Listener::Unix(_, file) => file.take(),
        }
    }
}
