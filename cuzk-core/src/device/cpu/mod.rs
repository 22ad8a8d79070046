//! The CPU backend: transforms and multi-exponentiations on host threads.
