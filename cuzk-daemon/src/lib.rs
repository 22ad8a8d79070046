//! The cuzk proving daemon.
