//! A bitmap that lies in a file, a bounded number of its pages in memory.
//!
//! Variables are used near where they are allocated, so that the pages in memory are mostly those
//! in use; a circuit that does otherwise is recorded slowly, not in more memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::format::{Extent, PAGE};

/// Pages in memory: 1 MiB, for eight million variables.
const SLOTS: usize = 256;
const BITS: u64 = PAGE * 8;

/// Bits in an extent of a file that begins with zeros, on a page, and shares its last with nobody.
pub(super) struct FileBitmap {
    extent: Extent,
    slots: Vec<Option<Slot>>,
}

struct Slot {
    page: u64,
    changed: bool,
    bytes: Box<[u8; PAGE as usize]>,
}

impl FileBitmap {
    pub fn new(extent: Extent) -> Self {
        Self { extent, slots: (0..SLOTS).map(|_| None).collect() }
    }

    /// Sets bit `i`.
    #[inline]
    pub fn set(&mut self, file: &File, i: u64) -> io::Result<()> {
        let page = i / BITS;
        let slot = match &mut self.slots[page as usize % SLOTS] {
            Some(slot) if slot.page == page => slot,
            _ => self.load(file, page)?,
        };
        let (byte, bit) = ((i % BITS / 8) as usize, 1 << (i % 8));
        if slot.bytes[byte] & bit == 0 {
            slot.bytes[byte] |= bit;
            slot.changed = true;
        }
        Ok(())
    }

    #[cold]
    fn load(&mut self, file: &File, page: u64) -> io::Result<&mut Slot> {
        let entry = &mut self.slots[page as usize % SLOTS];
        let fresh = || Slot { page, changed: false, bytes: Box::new([0; PAGE as usize]) };
        let slot = entry.get_or_insert_with(fresh);
        slot.write(file, self.extent.offset)?;
        slot.page = page;
        file.read_exact_at(&mut slot.bytes[..], self.extent.offset + page * PAGE)?;
        Ok(slot)
    }

    /// Writes what is in memory; returns the checksum and how many bits are set.
    pub fn finish(self, file: &File) -> io::Result<(blake3::Hash, u64)> {
        for mut slot in self.slots.into_iter().flatten() {
            slot.write(file, self.extent.offset)?;
        }
        let mut hasher = blake3::Hasher::new();
        let mut ones = 0;
        let mut page = [0; PAGE as usize];
        for at in (0..self.extent.bytes).step_by(PAGE as usize) {
            let bytes = &mut page[..(self.extent.bytes - at).min(PAGE) as usize];
            file.read_exact_at(bytes, self.extent.offset + at)?;
            hasher.update(bytes);
            ones += bytes.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        }
        Ok((hasher.finalize(), ones))
    }
}

impl Slot {
    fn write(&mut self, file: &File, offset: u64) -> io::Result<()> {
        if std::mem::take(&mut self.changed) {
            file.write_all_at(&self.bytes[..], offset + self.page * PAGE)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_xorshift::XorShiftRng;

    use super::*;

    #[test]
    fn a_bitmap_of_more_pages_than_fit_in_memory_forgets_no_bit() {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut rng = XorShiftRng::seed_from_u64(seed);
        let bits = BITS * (SLOTS as u64 * 2 + 3) + 100;
        let extent = Extent { offset: PAGE, bytes: bits.div_ceil(64) * 8 };
        let file = tempfile::tempfile().unwrap();
        file.set_len((extent.offset + extent.bytes).next_multiple_of(PAGE)).unwrap();
        let mut bitmap = FileBitmap::new(extent);
        let mut expected = vec![0; extent.bytes as usize];
        for _ in 0..20_000 {
            let i = match rng.gen_ratio(1, 3) {
                true => rng.gen_range(0..100),
                false => rng.gen_range(0..bits),
            };
            bitmap.set(&file, i).unwrap();
            expected[i as usize / 8] |= 1u8 << (i % 8);
        }
        let (checksum, ones) = bitmap.finish(&file).unwrap();
        assert_eq!(checksum, blake3::hash(&expected));
        assert_eq!(ones, expected.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>());
        let mut found = vec![0; expected.len()];
        file.read_exact_at(&mut found, extent.offset).unwrap();
        assert_eq!(found, expected);
    }
}
