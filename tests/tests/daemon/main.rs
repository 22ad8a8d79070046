//! The daemon from outside: a server in this process, on loopback or a socket of its own, and
//! clients of the wire. What is proved is a fresh 2 KiB sector with development parameters.

mod answers;
mod bad_input;
mod clients;
mod harness;
mod intake;
mod shutdown;
mod sockets;
