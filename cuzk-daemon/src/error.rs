//! The policy of errors towards callers, all in one place.
//!
//! - The caller sent something wrong: INVALID_ARGUMENT, naming the field, what was found and what
//!   was expected. Nothing that a caller does is ever answered with INTERNAL.
//! - The caller names a job that is not known (never was, or was let go of after `keep_finished`):
//!   NOT_FOUND.
//! - The job can never run here as things are set up: FAILED_PRECONDITION, saying what it needs
//!   and what there is. To repeat it is pointless until somebody changes the set-up.
//! - The daemon is full for now: RESOURCE_EXHAUSTED; it is about to stop: UNAVAILABLE. Both carry
//!   a retry hint in the text and in `grpc-retry-pushback-ms`.
//! - A job that was accepted and then failed is no call error: its AwaitProofResponse says FAILED
//!   and why.
//! - INTERNAL is left for our own faults; the log has the details, the caller gets one line.

use cuzk_core::{
    engine::{SubmitError, UnknownJob},
    params::ParamsError,
    proof::RequestError,
};
use std::{error::Error, sync::Arc, time::Duration};
use tonic::{body::Body, codegen::http, metadata::MetadataValue, Code, Status};

/// When to come back if nobody knows better.
const RETRY_AFTER: Duration = Duration::from_secs(15);

/// The longest message, in bytes. It travels as a header, three bytes for one at worst, and a client
/// that gets more than 8 or 16 KiB of those sees RESOURCE_EXHAUSTED of its own making instead.
const MAX_MESSAGE: usize = 2 << 10;

/// Full for now.
pub fn full(what: &str) -> Status {
    let what = format!("{what}: try again in {} s", RETRY_AFTER.as_secs());
    retry_later(Code::ResourceExhausted, what, RETRY_AFTER)
}

/// About to stop.
pub fn shutting_down() -> Status {
    retry_later(Code::Unavailable, SubmitError::Closing.to_string(), RETRY_AFTER)
}

/// A field of the request is wrong.
pub fn bad_request(error: RequestError) -> Status {
    answer(Code::InvalidArgument, error.to_string())
}

/// The job was not accepted.
pub fn refused(error: SubmitError) -> Status {
    match error {
        SubmitError::Full { retry_after, .. } => {
            retry_later(Code::ResourceExhausted, error.to_string(), retry_after)
        }
        SubmitError::Closing => shutting_down(),
        SubmitError::NeverFits { .. } => answer(Code::FailedPrecondition, error.to_string()),
        SubmitError::Params(error) => bad_params(error),
    }
}

/// Parameters are missing or are not what they should be.
pub fn bad_params(error: ParamsError) -> Status {
    answer(Code::FailedPrecondition, error.to_string())
}

/// No job has this name.
pub fn unknown_job(error: UnknownJob) -> Status {
    answer(Code::NotFound, error.to_string())
}

/// One of our own threads is gone.
pub fn internal(what: &str, error: impl Error + Send + Sync + 'static) -> Status {
    tracing::error!(event = "internal_error", what, %error);
    let mut status = Status::internal(format!("{what} failed inside the daemon; its log says why"));
    status.set_source(Arc::new(error));
    status
}

/// The gRPC library answers INTERNAL to a body that it cannot read, and then there is no error of
/// ours behind the answer: it is the caller who is told.
pub fn unreadable(response: http::Response<Body>) -> http::Response<Body> {
    match response.extensions().get::<Status>() {
        Some(status) if status.code() == Code::Internal && status.source().is_none() => {
            let found = status.message();
            let message = format!("body: expected one request, not compressed, found: {found}");
            answer(Code::InvalidArgument, message).into_http()
        }
        _ => response,
    }
}

/// What callers are told may repeat what they sent, however long that was.
fn answer(code: Code, mut message: String) -> Status {
    if message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE).rev().find(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or(0));
        message.push('…');
    }
    Status::new(code, message)
}

fn retry_later(code: Code, what: String, after: Duration) -> Status {
    let mut status = answer(code, what);
    let milliseconds = MetadataValue::from(after.as_millis().min(u64::MAX.into()) as u64);
    status.metadata_mut().insert("grpc-retry-pushback-ms", milliseconds);
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_faults_stay_internal() {
        let ours = internal("a test", std::io::Error::other("x"));
        let answer = unreadable(ours.into_http());
        assert_eq!(answer.extensions().get::<Status>().unwrap().code(), Code::Internal);
    }

    #[test]
    fn a_message_that_repeats_what_was_sent_fits_into_a_header() {
        let long = unknown_job(UnknownJob("é".repeat(1 << 20).into()));
        let message = long.message();
        assert!(message.len() <= MAX_MESSAGE + '…'.len_utf8(), "{}", message.len());
        assert!(message.ends_with("é…"), "{message}");
        let short = unknown_job(UnknownJob("j-1".to_owned().into()));
        assert!(short.message().starts_with("no job j-1: "), "{}", short.message());
    }
}
