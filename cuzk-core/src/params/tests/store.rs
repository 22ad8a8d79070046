use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, SystemTime},
};

use super::*;
use crate::{
    device::{Checkpoint, Interrupted, Unhindered},
    params::{Params, ParamsError, Srs, DEVELOPMENT_MARKER},
    proof::CircuitId,
};

fn open(params: &Params, toy: &Toy) -> Result<Srs, ParamsError> {
    params.open(toy, &mut silent, &Unhindered)
}

/// Interrupts at the second question.
struct Second(AtomicUsize);

impl Checkpoint for Second {
    fn check(&self) -> Result<(), Interrupted> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(Interrupted),
        }
    }
}

#[test]
fn missing_parameters_say_where_they_were_looked_for_and_how_to_get_them() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let params = folder.params();
    let error = open(&params, &Toy::of(3)).unwrap_err();
    assert!(matches!(error, ParamsError::Missing { .. }));
    let message = error.to_string();
    for part in [
        params.params_path("v28-toy-3").to_str().unwrap(),
        params.native_path("v28-toy-3").to_str().unwrap(),
        "cuzk params dev",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert!(matches!(params.verifying_key("v28-toy-3"), Err(ParamsError::Missing { .. })));
    assert!(folder.files().is_empty());
}

#[test]
fn a_native_file_is_made_once_and_used_without_its_source() {
    let toy = Toy::of(10);
    let folder = toy.folder();
    let params = folder.params();
    let made = open(&params, &toy).unwrap();
    let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(made.path()).unwrap());
    let first = inode();
    open(&params, &toy).unwrap();
    assert_eq!(inode(), first);
    fs::remove_file(params.params_path(&toy.stem)).unwrap();
    fs::remove_file(params.vk_path(&toy.stem)).unwrap();
    assert_eq!(open(&params, &toy).unwrap().h(), made.h());
    assert_eq!(params.verifying_key(&toy.stem).unwrap(), *made.vk());
}

/// As after unpacking an archive without times, or with a clock that was not set.
#[test]
fn a_native_file_of_a_source_from_before_1970_is_made_once() {
    let toy = Toy::of(10);
    let folder = toy.folder();
    let params = folder.params();
    let source = fs::File::options().write(true).open(params.params_path(&toy.stem)).unwrap();
    source.set_modified(SystemTime::UNIX_EPOCH - Duration::from_secs(10)).unwrap();
    let made = open(&params, &toy).unwrap();
    let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(made.path()).unwrap());
    let first = inode();
    open(&params, &toy).unwrap();
    assert_eq!(inode(), first);
}

#[test]
fn a_native_file_of_an_older_source_is_made_again() {
    let toy = Toy::of(10);
    let folder = toy.folder();
    let params = folder.params();
    let old = open(&params, &toy).unwrap();
    let progress = &mut silent;
    crate::params::dev::generate(&toy, params.dir(), [9; 16], progress, &Unhindered).unwrap();
    let new = open(&params, &toy).unwrap();
    assert_ne!(old.vk(), new.vk());
    // The old mapping is still the old file.
    old.verify(&mut silent, &Unhindered).unwrap();
}

#[test]
fn a_damaged_native_file_is_made_again_from_its_source_and_an_error_without() {
    let toy = Toy::of(10);
    let folder = toy.folder();
    let params = folder.params();
    let path = open(&params, &toy).unwrap().path().to_path_buf();
    edit(&path, |bytes| bytes[100] ^= 1);
    open(&params, &toy).unwrap().verify(&mut silent, &Unhindered).unwrap();
    edit(&path, |bytes| bytes.truncate(5000));
    fs::remove_file(params.params_path(&toy.stem)).unwrap();
    assert!(matches!(open(&params, &toy), Err(ParamsError::NativeHeader { .. })));
}

#[test]
fn a_bad_source_leaves_no_native_file_and_no_debris() {
    let toy = Toy::of(10);
    let folder = toy.folder();
    let params = folder.params();
    let before = folder.files();
    let path = params.params_path(&toy.stem);
    edit(&path, |bytes| *bytes.last_mut().unwrap() ^= 1);
    assert!(matches!(open(&params, &toy), Err(ParamsError::Point { .. })));
    edit(&path, |bytes| bytes.truncate(1000));
    assert!(matches!(open(&params, &toy), Err(ParamsError::Truncated { .. })));
    fs::write(&path, b"").unwrap();
    assert!(matches!(open(&params, &toy), Err(ParamsError::Empty { .. })));
    assert_eq!(folder.files(), before);
}

#[test]
fn parameters_of_another_circuit_under_a_circuits_name_are_refused() {
    let folder = Toy::of(10).named("v28-toy").folder();
    let error = open(&folder.params(), &Toy::of(11).named("v28-toy")).unwrap_err();
    assert!(matches!(error, ParamsError::Count { .. }), "{error}");
}

#[test]
fn an_interrupted_conversion_leaves_no_debris() {
    let toy = Toy::of(10);
    let folder = toy.folder();
    let before = folder.files();
    let checkpoint = Second(AtomicUsize::new(0));
    let stopped = folder.params().open(&toy, &mut silent, &checkpoint);
    assert!(matches!(stopped, Err(ParamsError::Interrupted(_))));
    assert_eq!(folder.files(), before);
}

#[test]
fn what_a_killed_converter_left_is_taken_over() {
    let toy = Toy::of(10);
    let folder = toy.folder();
    let params = folder.params();
    fs::create_dir(params.native_dir()).unwrap();
    let mut left = params.native_path(&toy.stem).into_os_string();
    left.push(".partial");
    fs::write(PathBuf::from(&left), vec![0xee; 1 << 20]).unwrap();
    open(&params, &toy).unwrap().verify(&mut silent, &Unhindered).unwrap();
    assert!(!PathBuf::from(left).exists());
}

#[test]
fn converters_at_the_same_time_make_one_file() {
    let toy = Toy::of(300);
    let folder = toy.folder();
    let params = folder.params();
    let conversions = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut progress = |at: crate::params::Progress| {
                    let begins = at.step == "read parameters" && at.done < 2000;
                    conversions.fetch_add(usize::from(begins), Ordering::Relaxed);
                };
                let srs = params.open(&toy, &mut progress, &Unhindered).unwrap();
                srs.verify(&mut silent, &Unhindered).unwrap();
            });
        }
    });
    assert_eq!(conversions.into_inner(), 1);
    assert!(!folder.files().iter().any(|name| name.ends_with(".partial")));
}

#[test]
fn a_waiting_converter_can_be_interrupted() {
    let toy = Toy::of(10);
    let folder = toy.folder();
    let params = folder.params();
    fs::create_dir(params.native_dir()).unwrap();
    let mut busy = params.native_path(&toy.stem).into_os_string();
    busy.push(".partial");
    let other = fs::File::create(busy).unwrap();
    other.lock().unwrap();
    let stopped = params.open(&toy, &mut silent, &Second(AtomicUsize::new(0)));
    assert!(matches!(stopped, Err(ParamsError::Interrupted(_))));
}

#[test]
fn production_parameters_with_another_digest_than_published_are_refused() {
    let listed = "window-2k";
    let circuit = CircuitId::all().find(|id| id.to_string() == "wpost-2k").expect(listed);
    let toy = Toy::of(10).named(circuit.file_stem().unwrap());
    let folder = toy.folder();
    open(&folder.params(), &toy).unwrap();
    fs::remove_dir_all(folder.params().native_dir()).unwrap();
    fs::remove_file(folder.0.path().join(DEVELOPMENT_MARKER)).unwrap();
    let before = folder.files();
    let error = open(&folder.params(), &toy).unwrap_err();
    assert!(matches!(error, ParamsError::Digest { .. }), "{error}");
    assert!(error.to_string().contains(DEVELOPMENT_MARKER), "{error}");
    assert_eq!(folder.files(), before);
}

#[test]
fn a_development_native_file_never_serves_a_production_folder() {
    let toy = Toy::of(10);
    let development = toy.folder();
    let native = open(&development.params(), &toy).unwrap().path().to_path_buf();
    let production = Folder(tempfile::tempdir().unwrap());
    let params = production.params().with_native_dir(native.parent().unwrap());
    assert!(matches!(open(&params, &toy), Err(ParamsError::Mixed { .. })));
    // With a source of its own it is made again.
    fs::copy(development.params().params_path(&toy.stem), params.params_path(&toy.stem)).unwrap();
    assert!(!open(&params, &toy).unwrap().header().development);
}

#[test]
fn a_folder_that_cannot_hold_native_files_says_to_configure_another() {
    let toy = Toy::of(10);
    let folder = toy.folder();
    let blocked = folder.0.path().join("file");
    fs::write(&blocked, b"").unwrap();
    let params = folder.params().with_native_dir(blocked.join("native"));
    let error = open(&params, &toy).unwrap_err();
    assert!(matches!(error, ParamsError::NativeFolder { .. }), "{error}");
    assert!(error.to_string().contains("configure another folder"), "{error}");
}

#[test]
fn a_full_disk_is_a_clear_error_and_leaves_no_debris() {
    let toy = Toy::of(5000);
    let Some(dir) = full_disk() else { return again_on_a_full_disk(toy.folder().0.path()) };
    let params = Params::new(dir);
    let error = open(&params, &toy).unwrap_err();
    assert!(matches!(error, ParamsError::NoSpace { needed, .. } if needed > 1 << 20));
    let native: Vec<_> = fs::read_dir(params.native_dir()).unwrap().collect();
    assert!(native.is_empty(), "{native:?}");
}

/// A pipe as well, whose opening would wait for a writer for ever.
#[test]
fn what_is_no_file_is_refused_at_once_and_left_alone() {
    let toy = Toy::of(10);
    let folder = toy.folder();
    let params = folder.params();
    let refused = |what: &str| {
        let (params, toy, (sender, done)) = (params.clone(), toy.clone(), mpsc::channel());
        thread::spawn(move || drop(sender.send(open(&params, &toy).map(drop))));
        let opened = done.recv_timeout(Duration::from_secs(30)).expect("it waits for nobody");
        let message = opened.unwrap_err().to_string();
        assert!(message.contains(&format!("found {what}, expected a file")), "{message}");
    };
    let native = params.native_path(&toy.stem);
    fs::create_dir_all(&native).unwrap();
    refused("a folder");
    fs::remove_dir(&native).unwrap();
    let source = params.params_path(&toy.stem);
    fs::remove_file(&source).unwrap();
    assert!(Command::new("mkfifo").arg(&source).status().unwrap().success());
    refused("a pipe or device");
    assert!(source.exists());
}
