//! The wire protocol's messages, client and server, generated from `proto/cuzk/v1/proving.proto`.

#![allow(missing_docs, clippy::all)]

tonic::include_proto!("cuzk.v1");
