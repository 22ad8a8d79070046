use std::{fs, path::PathBuf};

use blstrs::{G1Affine, G2Affine};
use rand::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;

use super::*;
use crate::{
    device::Unhindered,
    params::{native::Srs, ParamsError, Query},
};

struct Case {
    _folder: Folder,
    path: PathBuf,
    params: PathBuf,
    stem: String,
}

/// A toy's parameters, converted.
fn case() -> Case {
    let toy = Toy::of(200);
    let folder = toy.folder();
    let params = folder.params();
    let srs = params.open(&toy, &mut silent, &Unhindered).unwrap();
    assert_eq!(srs.path(), params.native_path(&toy.stem));
    Case {
        path: srs.path().into(),
        params: params.params_path(&toy.stem),
        stem: toy.stem,
        _folder: folder,
    }
}

impl Case {
    fn verify(&self) -> Result<(), ParamsError> {
        Srs::open(&self.path, &self.stem)?.verify(&mut silent, &Unhindered)
    }
}

#[test]
fn a_native_file_holds_the_points_of_the_parameter_file() {
    let case = case();
    let srs = Srs::open(&case.path, &case.stem).unwrap();
    let bytes = fs::read(&case.params).unwrap();
    let mut rest = &bytes[868 + 96 * srs.vk().ic.len()..];
    let mut section = |count: usize, point: usize| {
        assert_eq!(rest[..4], (count as u32).to_be_bytes());
        let (points, after) = rest[4..].split_at(count * point);
        rest = after;
        points.chunks_exact(point)
    };
    for points in [srs.h(), srs.l(), srs.a(), srs.b_g1()] {
        for (point, encoded) in points.iter().zip(section(points.len(), 96)) {
            assert_eq!(*point, G1Affine::from_uncompressed(encoded.try_into().unwrap()).unwrap());
        }
    }
    for (point, encoded) in srs.b_g2().iter().zip(section(srs.b_g2().len(), 192)) {
        assert_eq!(*point, G2Affine::from_uncompressed(encoded.try_into().unwrap()).unwrap());
    }
    assert!(rest.is_empty());
    assert_eq!(srs.h().len(), 255);
    assert!(srs.header().development);
    assert_eq!(srs.size_bytes(), fs::metadata(&case.path).unwrap().len());
    case.verify().unwrap();
}

#[test]
fn any_flipped_bit_of_a_section_or_the_header_is_found_by_verifying() {
    let case = case();
    let whole = fs::read(&case.path).unwrap();
    let header = Srs::open(&case.path, &case.stem).unwrap().header().clone();
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = XorShiftRng::seed_from_u64(seed);
    let mut flip = |from: u64, bytes: u64| {
        let bit = rng.gen_range(from * 8..(from + bytes) * 8) as usize;
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        // Under another name first: a mapped file is never written.
        let other = case.path.with_extension("new");
        fs::write(&other, flipped).unwrap();
        fs::rename(other, &case.path).unwrap();
        (bit, case.verify().expect_err("a flipped bit is noticed"))
    };
    for _ in 0..100 {
        let (bit, error) = flip(0, 4096);
        assert!(matches!(error, ParamsError::NativeHeader { .. }), "bit {bit}: {error}");
        let (bit, error) = flip(header.extents[0].offset, header.extents[0].bytes);
        assert!(
            matches!(error, ParamsError::Checksum { section: "verifying key", .. }),
            "bit {bit}: {error}"
        );
        for query in Query::ALL {
            let extent = header.extents[1 + query as usize];
            let (bit, error) = flip(extent.offset, extent.bytes);
            assert!(
                matches!(error, ParamsError::Checksum { section, .. } if section == query.name()),
                "bit {bit}: {error}"
            );
        }
    }
}

#[test]
fn a_native_file_of_another_length_is_refused_at_open() {
    let case = case();
    let whole = fs::read(&case.path).unwrap();
    let replace = |bytes: &[u8]| {
        fs::remove_file(&case.path).unwrap();
        fs::write(&case.path, bytes).unwrap();
        Srs::open(&case.path, &case.stem).unwrap_err()
    };
    assert!(matches!(replace(&[]), ParamsError::Empty { .. }));
    assert!(matches!(replace(&whole[..4095]), ParamsError::Truncated { .. }));
    assert!(matches!(replace(&whole[..4096]), ParamsError::NativeHeader { .. }));
    assert!(matches!(replace(&whole[..whole.len() - 1]), ParamsError::NativeHeader { .. }));
    let message = replace(&[&whole[..], &[0]].concat()).to_string();
    assert!(message.contains(&format!("a file of {} bytes", whole.len() + 1)), "{message}");
}

#[test]
fn a_native_file_of_another_version_or_kind_is_refused_at_open() {
    let case = case();
    edit(&case.path, |bytes| bytes[8] = 9);
    let message = Srs::open(&case.path, &case.stem).unwrap_err().to_string();
    assert!(message.contains("version 9 where version 1 was expected"), "{message}");
    fs::copy(&case.params, &case.path).unwrap();
    let message = Srs::open(&case.path, &case.stem).unwrap_err().to_string();
    assert!(message.contains("magic"), "{message}");
}

#[test]
fn a_native_file_of_another_circuit_is_refused_at_open() {
    let case = case();
    let message = Srs::open(&case.path, "v28-other").unwrap_err().to_string();
    assert!(message.contains("circuit v28-toy-200 where circuit v28-other"), "{message}");
}

/// Whether the page of a mapped point is in memory.
fn is_resident(point: &G1Affine) -> bool {
    let page = (point as *const G1Affine as usize) / 4096 * 4096;
    let mut told = 0u8;
    // SAFETY: one byte for one page of a live mapping.
    assert_eq!(unsafe { libc::mincore(page as *mut libc::c_void, 4096, &mut told) }, 0);
    told & 1 == 1
}

#[test]
fn pinned_unpinned_and_dropped_points_are_still_the_same() {
    let case = case();
    let srs = Srs::open(&case.path, &case.stem).unwrap();
    let before = srs.h().to_vec();
    srs.pin(0..usize::MAX).unwrap();
    srs.unpin(0..usize::MAX).unwrap();
    srs.drop_pages(srs.byte_range(Query::H, 0..before.len()));
    assert!(!is_resident(&srs.h()[before.len() / 2]), "dropped, and still here");
    srs.drop_pages(0..usize::MAX);
    // Beyond the end and empty ranges are wishes like any other.
    srs.drop_pages(usize::MAX..usize::MAX);
    srs.pin(usize::MAX..usize::MAX).unwrap();
    assert_eq!(srs.h(), before);
    case.verify().unwrap();
}
