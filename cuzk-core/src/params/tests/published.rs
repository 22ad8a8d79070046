use std::fs;

use super::*;
use crate::{
    device::Unhindered,
    params::{
        published::{check, Finding},
        Params, ParamsError, DEVELOPMENT_MARKER,
    },
    proof::CircuitId,
};

fn findings(params: &Params, stems: &[String]) -> Vec<(String, Finding)> {
    let results = check(params, stems, &mut silent, &Unhindered).unwrap();
    let name = |path: &Path| path.extension().unwrap().to_str().unwrap().to_owned();
    results.into_iter().map(|result| (name(&result.path), result.finding)).collect()
}

#[test]
fn every_circuit_has_a_published_file_of_its_name() {
    for circuit in CircuitId::all() {
        let name = format!("{}.params", circuit.file_stem().unwrap());
        assert!(super::super::published::published(Path::new(&name)).is_some(), "{circuit}");
    }
}

#[test]
fn a_missing_folder_holds_nothing_and_what_was_asked_for_is_missing() {
    let params = Params::new("/nonexistent/cuzk");
    assert!(findings(&params, &[]).is_empty());
    let found = findings(&params, &["v28-toy".into()]);
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|(_, finding)| !finding.is_good()));
}

#[test]
fn development_files_are_said_to_be_so_and_still_checked() {
    let toy = Toy::of(30);
    let folder = toy.folder();
    let params = folder.params();
    params.open(&toy, &mut silent, &Unhindered).unwrap();
    let found = findings(&params, &[]);
    assert!(matches!(
        &found[..],
        [(_, Finding::Native), (p, Finding::Development(_)), (v, Finding::Development(_))]
            if p == "params" && v == "vk"
    ));
    edit(&params.params_path(&toy.stem), |bytes| *bytes.last_mut().unwrap() ^= 1);
    edit(&params.vk_path(&toy.stem), |bytes| bytes[3] ^= 1);
    edit(&params.native_path(&toy.stem), |bytes| *bytes.last_mut().unwrap() ^= 1);
    let found = findings(&params, &[]);
    assert!(matches!(
        &found[..],
        [
            (_, Finding::Bad(ParamsError::Checksum { section: "b_g2", .. })),
            (_, Finding::Bad(ParamsError::Point { section: "b_g2", .. })),
            (_, Finding::Bad(ParamsError::Point { section: "alpha_g1", .. })),
        ]
    ));
}

#[test]
fn a_listed_file_with_another_digest_is_bad_and_an_unlisted_one_is_said_to_be_so() {
    let circuit = CircuitId::all().next().unwrap();
    let listed = Toy::of(4).named(circuit.file_stem().unwrap());
    let folder = listed.folder();
    crate::params::dev::ensure(&[Toy::of(5)], folder.0.path(), &mut silent, &Unhindered).unwrap();
    fs::remove_file(folder.0.path().join(DEVELOPMENT_MARKER)).unwrap();
    let found = check(&folder.params(), &[], &mut silent, &Unhindered).unwrap();
    assert_eq!(found.len(), 4);
    for result in found {
        let name = result.path.file_name().unwrap().to_str().unwrap();
        match result.finding {
            Finding::Unlisted(_) => assert!(name.starts_with("v28-toy"), "{name}"),
            Finding::Bad(ParamsError::Digest { expected, found, .. }) => {
                assert!(!name.starts_with("v28-toy"), "{name}");
                assert_ne!(expected, found);
                assert_eq!((expected.len(), found.len()), (32, 32));
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn the_digest_is_the_first_half_of_blake2b_in_hexadecimal() {
    let toy = Toy::of(4);
    let folder = toy.folder();
    let path = folder.params().vk_path(&toy.stem);
    let whole = blake2b_simd::blake2b(&fs::read(path).unwrap()).to_hex();
    let found = findings(&folder.params(), &[]);
    let digests: Vec<_> = found
        .iter()
        .filter_map(|(name, finding)| match finding {
            Finding::Development(digest) if name == "vk" => Some(digest.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(digests, [&whole[..32]]);
}
