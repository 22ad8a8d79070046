//! Unix sockets: served, cleaned up after a crash, never taken from a live daemon.

use crate::harness::*;
use cuzk_daemon::{address::Address, client, config::Settings, server::Daemon, wire};
use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

fn on_socket(path: &Path) -> Settings {
    Settings { listen: vec![Address::Unix(path.to_owned())], ..settings() }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_addresses_serve_one_engine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cuzk.sock");
    let mut both = on_socket(&path);
    both.listen.push("127.0.0.1:0".parse().unwrap());
    let (daemon, mut on_unix) = start(&both).await;
    let mut on_tcp = client::connect(&daemon.addresses()[1]).await.unwrap();

    let job_id = submit(&mut on_unix, request(WINDOW, "both")).await;
    verified(WINDOW, &ended(&mut on_tcp, &job_id).await);
    let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o660, "owner and group may connect");
    daemon.shutdown(PATIENCE).await;
    assert!(!path.exists(), "the socket is gone at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_left_by_a_crash_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cuzk.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "left behind");
    let (daemon, mut client) = start(&on_socket(&path)).await;
    status(&mut client).await;
    daemon.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_socket_is_not_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cuzk.sock");
    let (daemon, mut client) = start(&on_socket(&path)).await;
    let error = Daemon::start(&on_socket(&path)).await.err().expect("refused").to_string();
    assert!(error.contains("is in use: a process listens there"), "{error}");
    let _ = client.get_status(wire::GetStatusRequest {}).await.expect("the first still serves");
    daemon.shutdown(Duration::ZERO).await;

    let foreign = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let error = Daemon::start(&on_socket(&path)).await.err().expect("refused").to_string();
    assert!(error.contains("is in use"), "somebody else's, without our lock: {error}");
    drop(foreign);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_socket_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious.txt");
    fs::write(&path, "precious").unwrap();
    let error = Daemon::start(&on_socket(&path)).await.err().expect("refused").to_string();
    assert!(error.contains("exists and is no socket"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_named() {
    let (daemon, _client) = start(&settings()).await;
    let taken = Settings { listen: daemon.addresses().to_vec(), ..settings() };
    let error = Daemon::start(&taken).await.err().expect("refused").to_string();
    assert!(error.contains(&format!("{} is in use", daemon.addresses()[0])), "{error}");
    daemon.shutdown(Duration::ZERO).await;
}
