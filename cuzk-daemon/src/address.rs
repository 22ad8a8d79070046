//! Where a daemon listens and where a client finds it: `HOST:PORT`, or `unix:///path`.

use serde::{Deserialize, Serialize};
use std::{fmt, path::PathBuf, str::FromStr};

/// A TCP address or the path of a unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    /// `HOST:PORT`; the host may be a name.
    Tcp(String),
    /// `unix:///path`, always absolute.
    Unix(PathBuf),
}

/// The text is no address.
#[derive(Debug, thiserror::Error)]
#[error("'{found}' is not an address: {reason}; write HOST:PORT (127.0.0.1:9820) or unix:///path")]
pub struct AddressError {
    found: String,
    reason: &'static str,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let refuse = |reason| AddressError { found: text.to_owned(), reason };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path.strip_prefix("//").unwrap_or(path));
            let absolute = path.is_absolute() && path.file_name().is_some();
            return absolute
                .then_some(Address::Unix(path))
                .ok_or_else(|| refuse("the socket's path has to be absolute"));
        }
        let endpoint = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let (host, port) =
            endpoint.rsplit_once(':').ok_or_else(|| refuse("it has no port after a colon"))?;
        if host.is_empty() || host.contains('/') {
            return Err(refuse("it has no host before the colon"));
        }
        port.parse::<u16>().map_err(|_| refuse("the port has to be a number up to 65535"))?;
        Ok(Address::Tcp(endpoint.to_owned()))
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(endpoint) => f.write_str(endpoint),
            Address::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_are_read_and_written_back() {
        for text in ["127.0.0.1:9820", "[::1]:9820", "prover.lan:1", "unix:///run/cuzk.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let same = "http://127.0.0.1:9820/".parse::<Address>().unwrap();
        assert_eq!(same, Address::Tcp("127.0.0.1:9820".into()));
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        for (text, reason) in [
            ("9820", "no port after a colon"),
            (":9820", "no host before"),
            ("localhost:http", "has to be a number"),
            ("localhost:70000", "has to be a number"),
            ("unix://relative.sock", "has to be absolute"),
            ("unix:///", "has to be absolute"),
        ] {
            let message = text.parse::<Address>().unwrap_err().to_string();
            assert!(message.contains(reason) && message.contains(text), "{message}");
        }
    }
}
