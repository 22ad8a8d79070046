//! Bounds the memory that request messages hold while they are received and parsed. A message is
//! announced by its length, so the layer waits for twice that much (the message as received, and
//! decoded) of a fixed allowance before it lets the message in: in order of arrival, whole, with a
//! deadline. What it lets in is reserved in the engine's memory budget, before the partitions of
//! ordinary urgency: where memory is what limits, one of them always waits. Modest messages share
//! an allowance of their own and are entered in the budget without being asked for, so that a
//! WinningPoSt waits neither for the upload of others nor for their partitions. Small messages
//! need neither, so status and cancellation answer however many proofs are being uploaded.
//!
//! It relies on gRPC's framing (a flag byte, then the length in four) and on the server's windows
//! being wide enough that a stream which waits here does not stall its connection.

use cuzk_governor::budget::{Ask, MemoryBudget, Priority, Reservation, ReserveError};
use std::{
    convert::Infallible,
    future::{poll_fn, Future},
    pin::Pin,
    sync::Arc,
    task::{ready, Context, Poll},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout, Sleep},
};
use tonic::{
    body::Body,
    codegen::{http, Body as HttpBody, BoxFuture, Bytes, Service},
    Status,
};
use tower::Layer;

/// The largest message, either way.
pub const MAX_MESSAGE: usize = 256 << 20;

/// What one largest message takes of the allowance, and so the least that makes sense.
pub const MIN_ALLOWANCE: u64 = 2 * MAX_MESSAGE as u64;

/// Messages up to this size need no allowance.
const SMALL_MESSAGE: usize = 64 << 10;

/// Messages up to this size share [`MODEST_ALLOWANCE`] and wait for nobody's memory. A WinningPoSt's
/// message is well below: 66 challenges with paths of 2 KiB to 4 KiB.
const MODEST_MESSAGE: usize = 1 << 20;

/// What modest messages may hold together.
const MODEST_ALLOWANCE: usize = 8 << 20;

/// gRPC puts this many bytes before a message.
const PREFIX: usize = 5;

/// The allowance is counted in units of this many bytes.
const UNIT: usize = 4 << 10;

/// The ledger's line for messages.
const LABEL: &str = "message";

/// How long a message may wait for its share before the caller is asked to come back.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// How long a message that has its share may take to arrive.
const MAX_TRANSFER: Duration = Duration::from_secs(300);

/// How often the budget is asked again while a message waits.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// The allowance that a message holds. Dropped when the message has been parsed.
#[derive(Clone, Debug)]
pub struct Allowance {
    _permit: Arc<OwnedSemaphorePermit>,
    _memory: Arc<Reservation>,
}

/// Wraps a service so that its requests share `bytes` of memory.
#[derive(Clone, Debug)]
pub struct Intake {
    allowance: Arc<Semaphore>,
    modest: Arc<Semaphore>,
    budget: MemoryBudget,
    patience: Duration,
}

impl Intake {
    /// An intake whose messages hold at most `bytes` of `budget` together.
    pub fn new(bytes: u64, budget: MemoryBudget) -> Intake {
        let units = (bytes / UNIT as u64).min(Semaphore::MAX_PERMITS as u64);
        Intake {
            allowance: Arc::new(Semaphore::new(units as usize)),
            modest: Arc::new(Semaphore::new(MODEST_ALLOWANCE / UNIT)),
            budget,
            patience: MAX_WAIT,
        }
    }

    async fn admit(self, request: http::Request<Body>) -> Result<http::Request<Body>, Status> {
        let (mut parts, mut rest) = request.into_parts();
        let head = timeout(self.patience, read_head(&mut rest))
            .await
            .map_err(|_| Status::deadline_exceeded("the request's message did not arrive"))??;
        let size = announced(&head);
        if size > MAX_MESSAGE {
            return Err(Status::invalid_argument(format!(
                "message of {size} bytes; the limit is {MAX_MESSAGE} bytes (256 MiB)"
            )));
        }
        if size <= SMALL_MESSAGE {
            return Ok(http::Request::from_parts(
                parts,
                Body::new(Arriving::at_leisure(head, rest)),
            ));
        }
        let modest = size <= MODEST_MESSAGE;
        let allowance = if modest { self.modest.clone() } else { self.allowance.clone() };
        let (held, units) = (2 * size as u64, (2 * size).div_ceil(UNIT) as u32);
        let permit = timeout(self.patience, allowance.acquire_many_owned(units))
            .await
            .map_err(|_| crate::error::full("requests being received fill their memory"))?
            .map_err(|_| crate::error::shutting_down())?;
        let memory = match modest {
            true => self.budget.enter(LABEL, held),
            false => timeout(self.patience, self.reserve(held))
                .await
                .map_err(|_| crate::error::full("proofs and requests fill the memory budget"))??,
        };
        parts.extensions.insert(Allowance { _permit: Arc::new(permit), _memory: Arc::new(memory) });
        Ok(http::Request::from_parts(parts, Body::new(Arriving::before_deadline(head, rest))))
    }
}

impl Intake {
    /// Asks until there is room; the budget's own wait would block the thread.
    async fn reserve(&self, bytes: u64) -> Result<Reservation, Status> {
        loop {
            match self.budget.try_reserve(Ask::new(LABEL, bytes).at(Priority::High)) {
                Ok(memory) => return Ok(memory),
                Err(ReserveError::NeverFits { asked, total }) => {
                    return Err(Status::failed_precondition(format!(
                        "receiving the message needs {asked} bytes of memory; the budget has \
                         {total}: raise `memory_budget`"
                    )))
                }
                Err(ReserveError::Closed) => return Err(crate::error::shutting_down()),
                Err(_) => sleep(ASK_AGAIN).await,
            }
        }
    }
}

/// Reads until the message's prefix is there, or the body ends.
async fn read_head(body: &mut Body) -> Result<Bytes, Status> {
    let mut head = Vec::new();
    while head.len() < PREFIX {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
            None => break,
            Some(frame) => match frame?.into_data() {
                Ok(data) if head.is_empty() && data.len() >= PREFIX => return Ok(data),
                Ok(data) => head.extend_from_slice(&data),
                Err(_trailers) => break,
            },
        }
    }
    Ok(head.into())
}

fn announced(head: &[u8]) -> usize {
    match head {
        [_compressed, a, b, c, d, ..] => u32::from_be_bytes([*a, *b, *c, *d]) as usize,
        _ => 0,
    }
}

/// A body whose first bytes were read already.
struct Arriving {
    head: Option<Bytes>,
    rest: Body,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Arriving {
    fn at_leisure(head: Bytes, rest: Body) -> Arriving {
        Arriving { head: Some(head), rest, deadline: None }
    }

    fn before_deadline(head: Bytes, rest: Body) -> Arriving {
        Arriving {
            deadline: Some(Box::pin(sleep(MAX_TRANSFER))),
            ..Arriving::at_leisure(head, rest)
        }
    }
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        if let Some(head) = self.head.take() {
            return Poll::Ready(Some(Ok(http_body::Frame::data(head))));
        }
        let late = self.deadline.as_mut().is_some_and(|d| d.as_mut().poll(cx).is_ready());
        if late {
            let error = Status::deadline_exceeded("the request's message took too long to arrive");
            return Poll::Ready(Some(Err(error)));
        }
        Poll::Ready(ready!(Pin::new(&mut self.rest).poll_frame(cx)))
    }
}

/// A service behind an [`Intake`].
#[derive(Clone, Debug)]
pub struct Admitting<S> {
    intake: Intake,
    inner: S,
}

impl<S> Layer<S> for Intake {
    type Service = Admitting<S>;

    fn layer(&self, inner: S) -> Admitting<S> {
        Admitting { intake: self.clone(), inner }
    }
}

impl<S> Service<http::Request<Body>> for Admitting<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let intake = self.intake.clone();
        Box::pin(async move {
            match intake.admit(request).await {
                Ok(request) => inner.call(request).await.map(crate::error::unreadable),
                Err(status) => Ok(status.into_http()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A service that keeps each request's allowance for a while, and counts how many it holds.
    #[derive(Clone, Default)]
    struct Slow {
        held: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    impl Service<http::Request<Body>> for Slow {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = BoxFuture<Self::Response, Infallible>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
            let Slow { held, most } = self.clone();
            Box::pin(async move {
                let allowance = request.extensions_mut().remove::<Allowance>();
                if allowance.is_some() {
                    most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                }
                sleep(Duration::from_millis(20)).await;
                held.fetch_sub(usize::from(allowance.is_some()), Ordering::SeqCst);
                Ok(http::Response::new(Body::empty()))
            })
        }
    }

    /// A body that announces a message of `size` bytes, its prefix in two pieces.
    fn announcing(size: usize) -> http::Request<Body> {
        let prefix = [&[0][..], &(size as u32).to_be_bytes()].concat();
        let rest = Body::new(Arriving::at_leisure(prefix[2..].to_vec().into(), Body::empty()));
        let head = prefix[..2].to_vec().into();
        http::Request::new(Body::new(Arriving::at_leisure(head, rest)))
    }

    fn intake() -> Intake {
        Intake::new(MIN_ALLOWANCE, MemoryBudget::new(2 * MIN_ALLOWANCE))
    }

    async fn most_at_once(size: usize) -> usize {
        let slow = Slow::default();
        let service = intake().layer(slow.clone());
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..32 {
            calls.spawn(service.clone().call(announcing(size)));
        }
        for response in calls.join_all().await {
            assert_eq!(response.unwrap().headers().get("grpc-status"), None);
        }
        slow.most.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn only_as_many_messages_are_in_as_the_memory_holds_twice() {
        assert_eq!(most_at_once(MAX_MESSAGE).await, 1);
        assert_eq!(most_at_once(MAX_MESSAGE / 4).await, 4);
        assert_eq!(most_at_once(SMALL_MESSAGE).await, 0, "small ones hold nothing");
    }

    #[tokio::test]
    async fn who_waits_too_long_is_asked_to_come_back() {
        let intake = Intake { patience: Duration::from_millis(20), ..intake() };
        let first = intake.clone().admit(announcing(MAX_MESSAGE)).await.unwrap();
        let refusal = intake.clone().admit(announcing(MAX_MESSAGE)).await.unwrap_err();
        assert_eq!(refusal.code(), tonic::Code::ResourceExhausted);
        assert!(refusal.metadata().contains_key("grpc-retry-pushback-ms"));
        drop(first);
        intake.admit(announcing(MAX_MESSAGE)).await.unwrap();
    }

    #[tokio::test]
    async fn a_body_without_a_whole_prefix_is_left_to_the_decoder() {
        let request = http::Request::new(Body::empty());
        intake().admit(request).await.unwrap();
    }

    #[tokio::test]
    async fn a_message_is_in_the_budget_until_it_is_parsed_and_waits_for_room_there() {
        let budget = MemoryBudget::new(8 << 20);
        let intake = Intake {
            patience: Duration::from_millis(200),
            ..Intake::new(MIN_ALLOWANCE, budget.clone())
        };
        let first = intake.clone().admit(announcing(4 << 20)).await.unwrap();
        assert_eq!(budget.usage().reserved, 8 << 20);
        let refusal = intake.clone().admit(announcing(4 << 20)).await.unwrap_err();
        assert_eq!(refusal.code(), tonic::Code::ResourceExhausted);
        drop(first);
        assert_eq!(budget.usage().reserved, 0);
        let never = intake.admit(announcing(8 << 20)).await.unwrap_err();
        assert_eq!(never.code(), tonic::Code::FailedPrecondition);
        assert!(never.message().contains("16777216") && never.message().contains("8388608"));
    }

    #[tokio::test]
    async fn a_modest_message_waits_neither_for_partitions_nor_for_large_messages() {
        let budget = MemoryBudget::new(2 * MIN_ALLOWANCE);
        let intake = Intake {
            patience: Duration::from_millis(200),
            ..Intake::new(MIN_ALLOWANCE, budget.clone())
        };
        let _large = intake.clone().admit(announcing(MAX_MESSAGE)).await.unwrap();
        let _partitions = budget.try_reserve(Ask::new("partitions", MIN_ALLOWANCE)).unwrap();
        let modest = intake.admit(announcing(MODEST_MESSAGE)).await.unwrap();
        assert_eq!(budget.usage().reserved, 2 * MIN_ALLOWANCE + 2 * MODEST_MESSAGE as u64);
        drop(modest);
        assert_eq!(budget.usage().reserved, 2 * MIN_ALLOWANCE);
        assert_eq!(most_at_once(MODEST_MESSAGE).await, MODEST_ALLOWANCE / MODEST_MESSAGE / 2);
    }
}
