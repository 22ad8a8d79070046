//! The client's side of the wire: a connection to a running daemon.

use crate::{
    address::Address, intake::MAX_MESSAGE, wire::proving_engine_client::ProvingEngineClient,
};
use std::{future::Future, time::Duration};
use tokio::time::timeout;
use tonic::{
    transport::{Channel, Endpoint},
    Response, Status,
};

/// What the commands talk to.
pub type Client = ProvingEngineClient<Channel>;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A daemon that is well takes no time for a short answer.
const SHORT_ANSWER: Duration = Duration::from_secs(10);

/// No daemon answers there.
#[derive(Debug, thiserror::Error)]
#[error("no daemon answers on {address} ({reason}); start one with `cuzk serve`, or say where it is with --server")]
pub struct Unreachable {
    address: Address,
    reason: String,
}

/// Connects, with messages of the protocol's full size.
pub async fn connect(address: &Address) -> Result<Client, Unreachable> {
    let unreachable = |reason: String| Unreachable { address: address.clone(), reason };
    let uri = match address {
        Address::Tcp(endpoint) => format!("http://{endpoint}"),
        Address::Unix(_) => address.to_string(),
    };
    let channel = Endpoint::from_shared(uri)
        .map_err(|error| unreachable(error.to_string()))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_while_idle(true)
        .connect()
        .await
        .map_err(|error| unreachable(root_cause(&error)))?;
    Ok(ProvingEngineClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE))
}

/// Waits for a call that needs no waiting. Nobody accepts the connections of a daemon that is stopped
/// or has too many, though the kernel does.
pub async fn short<T>(
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    match timeout(SHORT_ANSWER, call).await {
        Ok(answer) => answer.map(Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded(format!(
            "no answer within {} s; is it stopped, or are all its connections taken?",
            SHORT_ANSWER.as_secs()
        ))),
    }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
