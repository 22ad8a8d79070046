//! Points in their two forms: ZCash's uncompressed big-endian encoding (Filecoin's files) and blst's
//! affine Montgomery words (native files, devices). Assumes a little-endian 64-bit machine, which is
//! all blst's assembly runs on here; the casts between points and bytes live in this file only.

use blstrs::{Fp, Fp2, G1Affine, G2Affine};
use ff::Field;

use super::PointFault;

/// One of the two groups' affine points.
pub trait Point: Copy + Default + Send + Sync + 'static + sealed::Plain {
    /// The coordinates' field.
    type Coordinate: Field;
    /// Bytes of a point, the same in both forms.
    const BYTES: usize;

    /// From ZCash's encoding; refuses all that is not a point of the curve other than infinity.
    /// Whether it is in the group of prime order is [`Point::in_subgroup`]'s to say.
    ///
    /// # Errors
    /// What is wrong with it.
    fn decode(bytes: &[u8]) -> Result<Self, PointFault>;
    /// Into ZCash's encoding; `out` has [`Point::BYTES`] bytes.
    fn encode(&self, out: &mut [u8]);
    /// Whether a point of the curve is in the group of prime order.
    fn in_subgroup(&self) -> bool;
    /// Its coordinates; (0, 0) stands for infinity.
    fn coordinates(&self) -> (Self::Coordinate, Self::Coordinate);
    /// From coordinates that satisfy the curve's equation.
    fn from_coordinates(x: Self::Coordinate, y: Self::Coordinate) -> Self;
}

mod sealed {
    /// Sized, aligned and built of plain words: every bit pattern is a value, none is padding.
    ///
    /// # Safety
    /// Implement it only for such types.
    pub unsafe trait Plain {}
    // SAFETY: `repr(transparent)` over blst's `repr(C)` struct of two coordinates of six u64 each.
    unsafe impl Plain for blstrs::G1Affine {}
    // SAFETY: as above, with two coordinates of twice six u64.
    unsafe impl Plain for blstrs::G2Affine {}
}

const _: () = {
    assert!(size_of::<G1Affine>() == 96 && align_of::<G1Affine>() == 8);
    assert!(size_of::<G2Affine>() == 192 && align_of::<G2Affine>() == 8);
    assert!(cfg!(target_endian = "little"));
};

/// The points' words as bytes, as native files hold them.
pub(super) fn as_bytes<P: Point>(points: &[P]) -> &[u8] {
    // SAFETY: `Plain` says that there is no padding; the length is that of the same memory.
    unsafe { std::slice::from_raw_parts(points.as_ptr().cast(), size_of_val(points)) }
}

/// A native file's bytes as points; `None` when they are misaligned or not whole points. They are
/// as good as the bytes are: a checksum guards those.
pub(super) fn from_bytes<P: Point>(bytes: &[u8]) -> Option<&[P]> {
    let aligned = (bytes.as_ptr() as usize).is_multiple_of(align_of::<P>());
    if !aligned || !bytes.len().is_multiple_of(P::BYTES) {
        return None;
    }
    // SAFETY: aligned, of whole points, and every bit pattern is a `Plain` value; the borrow keeps
    // the bytes alive and unwritten.
    Some(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / P::BYTES) })
}

const COMPRESSED: u8 = 0x80;
const INFINITY: u8 = 0x40;
const SIGN: u8 = 0x20;

fn check_flags(bytes: &[u8]) -> Result<(), PointFault> {
    match bytes[0] {
        flags if flags & COMPRESSED != 0 => Err(PointFault::Compressed),
        flags if flags & INFINITY != 0 => Err(PointFault::Infinity),
        flags if flags & SIGN != 0 => Err(PointFault::SignFlag),
        _ => Ok(()),
    }
}

/// Why blst refused `bytes`, whose flags are fine.
fn fault(bytes: &[u8], on_curve: impl FnOnce(&[Fp]) -> bool) -> PointFault {
    let words: Option<Vec<Fp>> = bytes
        .chunks_exact(48)
        .map(|word| word.try_into().ok().and_then(|word| Fp::from_bytes_be(word).into()))
        .collect();
    match words {
        None => PointFault::NotCanonical,
        // blst takes (0, 0) for infinity and so for a point of the curve, but it has no flag.
        Some(words) if words.iter().all(|word| word.is_zero_vartime()) => PointFault::NotOnCurve,
        Some(words) if on_curve(&words) => PointFault::NotInSubgroup,
        Some(_) => PointFault::NotOnCurve,
    }
}

macro_rules! point {
    ($point:ty, $coordinate:ty, $bytes:literal, $from_words:expr) => {
        impl Point for $point {
            type Coordinate = $coordinate;
            const BYTES: usize = $bytes;

            fn decode(bytes: &[u8]) -> Result<Self, PointFault> {
                check_flags(bytes)?;
                bytes
                    .try_into()
                    .ok()
                    .and_then(|bytes| Self::from_uncompressed_unchecked(bytes).into())
                    .ok_or_else(|| {
                        let from_words: fn(&[Fp]) -> Self = $from_words;
                        fault(bytes, |words| from_words(words).is_on_curve().into())
                    })
            }

            fn encode(&self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_uncompressed());
            }

            fn in_subgroup(&self) -> bool {
                self.is_torsion_free().into()
            }

            fn coordinates(&self) -> (Self::Coordinate, Self::Coordinate) {
                (self.x(), self.y())
            }

            fn from_coordinates(x: Self::Coordinate, y: Self::Coordinate) -> Self {
                Self::from_raw_unchecked(x, y, false)
            }
        }
    };
}

point!(G1Affine, Fp, 96, |w| G1Affine::from_raw_unchecked(w[0], w[1], false));
point!(G2Affine, Fp2, 192, |w| G2Affine::from_raw_unchecked(
    Fp2::new(w[1], w[0]),
    Fp2::new(w[3], w[2]),
    false
));
