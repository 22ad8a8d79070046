//! Registered proofs: Filecoin's numbers for a kind, a sector size and a version.
//!
//! The numbers are go-state-types' (`abi/sector.go`: "must match the proofs library and never
//! change"), five sizes a version in the order of [`SectorSize::ALL`]; for seals also
//! filecoin-proofs-api's `REGISTERED_PROOF_IDS`. Its names for them differ in one place: what Go
//! calls WindowPoSt V1_1 is V1_2 here.

use filecoin_proofs_api::{RegisteredPoStProof, RegisteredSealProof};

use super::SectorSize;

/// By number, 0 to 19: V1, V1_1, synthetic, non-interactive.
#[rustfmt::skip]
const SEAL: [RegisteredSealProof; 20] = {
    use RegisteredSealProof::*;
    [
        StackedDrg2KiBV1, StackedDrg8MiBV1, StackedDrg512MiBV1, StackedDrg32GiBV1, StackedDrg64GiBV1,
        StackedDrg2KiBV1_1, StackedDrg8MiBV1_1, StackedDrg512MiBV1_1, StackedDrg32GiBV1_1,
        StackedDrg64GiBV1_1,
        StackedDrg2KiBV1_1_Feat_SyntheticPoRep, StackedDrg8MiBV1_1_Feat_SyntheticPoRep,
        StackedDrg512MiBV1_1_Feat_SyntheticPoRep, StackedDrg32GiBV1_1_Feat_SyntheticPoRep,
        StackedDrg64GiBV1_1_Feat_SyntheticPoRep,
        StackedDrg2KiBV1_2_Feat_NonInteractivePoRep, StackedDrg8MiBV1_2_Feat_NonInteractivePoRep,
        StackedDrg512MiBV1_2_Feat_NonInteractivePoRep, StackedDrg32GiBV1_2_Feat_NonInteractivePoRep,
        StackedDrg64GiBV1_2_Feat_NonInteractivePoRep,
    ]
};

/// By number, 0 to 14: WinningPoSt, WindowPoSt V1, WindowPoSt V1_2.
#[rustfmt::skip]
const POST: [RegisteredPoStProof; 15] = {
    use RegisteredPoStProof::*;
    [
        StackedDrgWinning2KiBV1, StackedDrgWinning8MiBV1, StackedDrgWinning512MiBV1,
        StackedDrgWinning32GiBV1, StackedDrgWinning64GiBV1,
        StackedDrgWindow2KiBV1, StackedDrgWindow8MiBV1, StackedDrgWindow512MiBV1,
        StackedDrgWindow32GiBV1, StackedDrgWindow64GiBV1,
        StackedDrgWindow2KiBV1_2, StackedDrgWindow8MiBV1_2, StackedDrgWindow512MiBV1_2,
        StackedDrgWindow32GiBV1_2, StackedDrgWindow64GiBV1_2,
    ]
};

fn by_number<T: Copy>(table: &[T], number: u64) -> Option<T> {
    table.get(usize::try_from(number).ok()?).copied()
}

/// The RegisteredSealProof of a number.
pub(super) fn seal(number: u64) -> Option<RegisteredSealProof> {
    by_number(&SEAL, number)
}

/// The RegisteredPoStProof of a number.
pub(super) fn post(number: u64) -> Option<RegisteredPoStProof> {
    by_number(&POST, number)
}

/// The RegisteredUpdateProof of a number is its sector size: there is one version.
pub(super) fn update(number: u64) -> Option<SectorSize> {
    by_number(&SectorSize::ALL, number)
}

/// A size's PoRep V1_1.
pub(super) fn interactive(size: SectorSize) -> RegisteredSealProof {
    SEAL[5 + size as usize]
}

/// A size's WinningPoSt.
pub(super) fn winning(size: SectorSize) -> RegisteredPoStProof {
    POST[size as usize]
}

/// A size's WindowPoSt V1_2.
pub(super) fn window(size: SectorSize) -> RegisteredPoStProof {
    POST[10 + size as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_filecoins() {
        for (number, proof) in (0..).zip(SEAL) {
            assert_eq!(proof as u64, number, "{proof:?}");
            let size = SectorSize::ALL[number as usize % 5];
            assert_eq!(u64::from(proof.sector_size()), size.bytes(), "{proof:?}");
        }
        for (number, proof) in (0..).zip(POST) {
            assert_eq!(proof as u64, number, "{proof:?}");
            let size = SectorSize::ALL[number as usize % 5];
            assert_eq!(u64::from(proof.sector_size()), size.bytes(), "{proof:?}");
        }
        assert_eq!((seal(20), post(15), update(5)), (None, None, None));
    }
}
