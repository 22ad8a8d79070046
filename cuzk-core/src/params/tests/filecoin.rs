use std::{fs, path::PathBuf};

use blstrs::{G1Affine, G2Affine};
use rand::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;

use super::*;
use crate::{
    device::Unhindered,
    params::{
        filecoin::{read_vk, ParamsFile},
        CircuitSize, NamedCircuit, ParamsError, PointFault, Query,
    },
};

struct Case {
    _folder: Folder,
    path: PathBuf,
    vk: PathBuf,
}

fn case() -> Case {
    let toy = Toy::of(20);
    let folder = toy.folder();
    let (path, vk) = (folder.params().params_path(&toy.stem), folder.params().vk_path(&toy.stem));
    Case { _folder: folder, path, vk }
}

/// Opens and checks every point.
fn read(path: &Path) -> Result<(), ParamsError> {
    ParamsFile::open(path)?.verify(&mut silent, &Unhindered).map(drop)
}

/// Where a section's first point is.
fn start(path: &Path, query: Query) -> usize {
    let file = ParamsFile::open(path).expect("sound");
    let before = Query::ALL.into_iter().take_while(|q| *q != query);
    let bytes: u64 = before.map(|q| 4 + file.counts().of(q) * q.point_bytes()).sum();
    file.vk_bytes().len() + bytes as usize + 4
}

#[test]
fn a_sound_file_is_read_and_its_counts_are_those_of_the_circuit() {
    let case = case();
    read(&case.path).unwrap();
    let file = ParamsFile::open(&case.path).unwrap();
    let size = CircuitSize::of(Toy::of(20).blank().unwrap()).unwrap();
    file.require_counts("toy", &size.counts()).unwrap();
    assert_eq!(read_vk(&case.vk).unwrap(), *file.vk());
    assert_eq!(read_vk(&case.path).unwrap(), *file.vk());
    assert_eq!(fs::read(&case.vk).unwrap(), file.vk_bytes());
}

#[test]
fn a_circuit_is_counted_with_its_input_rows_and_only_non_zero_coefficients() {
    let size = CircuitSize::of(Toy::of(20).blank().unwrap()).unwrap();
    assert_eq!((size.inputs, size.aux), (2, 24));
    // 20 squarings, "only", "cancels", one input bound, and a row each of the two inputs.
    assert_eq!(size.constraints, 25);
    // In A: the secret and all squares, a, both inputs. In B: all but the last square, b, the one.
    assert_eq!((size.dense_a, size.dense_b), (21 + 1 + 2, 20 + 1 + 1));
    assert_eq!(size.counts().h, 31);
}

#[test]
fn an_empty_file_is_refused_as_empty() {
    let case = case();
    for path in [&case.path, &case.vk] {
        fs::write(path, b"").unwrap();
        assert!(matches!(read_vk(path), Err(ParamsError::Empty { .. })));
        assert!(matches!(ParamsFile::open(path), Err(ParamsError::Empty { .. })));
    }
}

#[test]
fn a_file_cut_anywhere_is_refused_as_truncated_and_names_the_section() {
    let case = case();
    let whole = fs::read(&case.path).unwrap();
    for length in (1..whole.len()).step_by(37).chain([whole.len() - 1]) {
        fs::write(&case.path, &whole[..length]).unwrap();
        let error = ParamsFile::open(&case.path).unwrap_err();
        let ParamsError::Truncated { offset, expected, found, .. } = error else {
            panic!("{length}: {error}")
        };
        assert!(offset + found == length as u64 || offset >= length as u64 && found == 0);
        assert!(expected > found);
    }
    let h = start_of_whole(&whole, &case.path, Query::H);
    fs::write(&case.path, &whole[..h + 96 * 3]).unwrap();
    let message = ParamsFile::open(&case.path).unwrap_err().to_string();
    assert!(message.contains("h at offset") && message.contains("2976 bytes"), "{message}");
    assert!(message.contains("after 288"), "{message}");
}

fn start_of_whole(whole: &[u8], path: &Path, query: Query) -> usize {
    fs::write(path, whole).unwrap();
    start(path, query)
}

#[test]
fn a_verifying_key_cut_anywhere_is_refused() {
    let case = case();
    let whole = fs::read(&case.vk).unwrap();
    for length in 1..whole.len() {
        fs::write(&case.vk, &whole[..length]).unwrap();
        assert!(matches!(read_vk(&case.vk), Err(ParamsError::Truncated { .. })), "{length}");
    }
}

#[test]
fn bytes_after_the_end_are_refused() {
    let case = case();
    for path in [&case.path, &case.vk] {
        edit(path, |bytes| bytes.push(0));
    }
    assert!(matches!(ParamsFile::open(&case.path), Err(ParamsError::TrailingBytes { .. })));
    assert!(matches!(read_vk(&case.vk), Err(ParamsError::TrailingBytes { .. })));
}

#[test]
fn a_count_that_the_file_cannot_hold_is_refused_without_allocating_for_it() {
    let case = case();
    let whole = fs::read(&case.path).unwrap();
    for query in Query::ALL {
        let at = start_of_whole(&whole, &case.path, query) - 4;
        edit(&case.path, |bytes| bytes[at..at + 4].copy_from_slice(&[0xff; 4]));
        let error = ParamsFile::open(&case.path).unwrap_err();
        assert!(
            matches!(error, ParamsError::Truncated { section, .. } if section == query.name()),
            "{error}"
        );
    }
    fs::write(&case.path, &whole).unwrap();
    edit(&case.path, |bytes| bytes[864..868].copy_from_slice(&[0xff; 4]));
    let error = ParamsFile::open(&case.path).unwrap_err();
    assert!(matches!(error, ParamsError::Truncated { section: "ic", .. }), "{error}");
}

#[test]
fn any_flipped_bit_is_refused() {
    let case = case();
    let whole = fs::read(&case.path).unwrap();
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = XorShiftRng::seed_from_u64(seed);
    for _ in 0..400 {
        let bit = rng.gen_range(0..whole.len() * 8);
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(&case.path, &flipped).unwrap();
        assert!(read(&case.path).is_err(), "bit {bit} of {} was not noticed", whole.len());
    }
}

#[test]
fn a_bad_point_is_refused_with_its_place_and_what_is_wrong_with_it() {
    let case = case();
    let whole = fs::read(&case.path).unwrap();
    let modulus = hex::decode(
        "1a0111ea397fe69a4b1ba7b6434bacd764774b84f38512bf6730d2a0f6b0f6241eabfffeb153ffffb9feffffffffaaab",
    )
    .unwrap();
    type Change<'a> = &'a dyn Fn(&mut [u8]);
    let cases: [(PointFault, Change<'_>); 7] = [
        (PointFault::Compressed, &|point| point[0] |= 0x80),
        (PointFault::Infinity, &|point| point[0] |= 0x40),
        (PointFault::Infinity, &|point| {
            point.fill(0);
            point[0] = 0x40;
        }),
        (PointFault::SignFlag, &|point| point[0] |= 0x20),
        (PointFault::NotCanonical, &|point| point[48..96].copy_from_slice(&modulus)),
        (PointFault::NotOnCurve, &|point| point[95] ^= 1),
        // A page that the disk lost.
        (PointFault::NotOnCurve, &|point| point.fill(0)),
    ];
    for query in Query::ALL {
        let first = start_of_whole(&whole, &case.path, query);
        for (expected, change) in &cases {
            let bytes = query.point_bytes() as usize;
            let at = first + 2 * bytes;
            let mut changed = whole.clone();
            change(&mut changed[at..at + bytes]);
            fs::write(&case.path, &changed).unwrap();
            let error = read(&case.path).unwrap_err();
            let ParamsError::Point { section, index: 2, offset, fault, .. } = error else {
                panic!("{query:?}: {error}")
            };
            assert_eq!((section, offset as usize, fault), (query.name(), at, *expected));
        }
    }
}

#[test]
fn a_point_outside_the_subgroup_is_refused_in_a_verifying_key() {
    let case = case();
    // (0, 2) satisfies y² = x³ + 4; small x that do are outside the subgroup but by a miracle.
    let outside = (1..)
        .find_map(|x: u64| {
            let mut bytes = [0; 48];
            bytes[40..].copy_from_slice(&x.to_be_bytes());
            bytes[0] = 0x80;
            Option::<G1Affine>::from(G1Affine::from_compressed_unchecked(&bytes))
                .filter(|point| bool::from(point.is_on_curve() & !point.is_torsion_free()))
        })
        .unwrap();
    let two = [vec![0; 95], vec![2]].concat();
    for bad in [outside.to_uncompressed().to_vec(), two] {
        edit(&case.vk, |bytes| bytes[96..192].copy_from_slice(&bad));
        let error = read_vk(&case.vk).unwrap_err();
        assert!(
            matches!(
                error,
                ParamsError::Point {
                    section: "beta_g1",
                    fault: PointFault::NotInSubgroup,
                    offset: 96,
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn parameters_of_another_circuit_are_refused_with_both_counts() {
    let case = case();
    let file = ParamsFile::open(&case.path).unwrap();
    let size = |toy: Toy| CircuitSize::of(toy.blank().unwrap()).unwrap().counts();
    let message = file.require_counts("toy-21", &size(Toy::of(21))).unwrap_err().to_string();
    assert!(message.contains("l has 24 points, circuit toy-21 needs 25"), "{message}");
    let more_inputs = Toy { inputs: 3, ..Toy::of(20) };
    assert!(matches!(
        file.require_counts("toy", &size(more_inputs)),
        Err(ParamsError::Count { section: "ic", found: 2, expected: 3, .. })
    ));
}

#[test]
fn points_are_encoded_as_they_were_decoded() {
    use crate::params::point::Point;
    fn round<P: Point + PartialEq + std::fmt::Debug>(encoded: &[u8]) {
        let mut again = vec![0; P::BYTES];
        P::decode(encoded).unwrap().encode(&mut again);
        assert_eq!(encoded, again);
    }
    let case = case();
    let whole = fs::read(&case.path).unwrap();
    let (h, b_g2) = (start(&case.path, Query::H), start(&case.path, Query::BG2));
    round::<G1Affine>(&whole[h..h + 96]);
    round::<G2Affine>(&whole[b_g2..b_g2 + 192]);
}
