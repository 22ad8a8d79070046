//! Constraints as bytes: A's and B's terms of one row after the other.
//!
//! A row begins with a byte that counts them (A's in the low five bits, B's in the high three; all
//! ones: a varint follows). A term is a varint whose low two bits are its kind:
//!
//! | kind | the other bits | then |
//! |---|---|---|
//! | 0: 1 × aux, 1: −1 × aux | distance to the matrix's last aux, zigzag | |
//! | 2: k × aux | the same | coefficient |
//! | 3: k × input | input × 2, +1 unless k = 1 | coefficient, unless k = 1 |
//!
//! A coefficient is the varint number of an entry of the file's dictionary, from 1, or 0 and 32
//! bytes, canonical and little-endian. Varints are LEB128. Variables near each other are allocated
//! together and used together, so that most terms are a byte or two. Zero coefficients are left out.
//!
//! Reading trusts nothing: whatever the bytes, it ends with values or with what is wrong with them.

use std::collections::HashMap;

use bellpepper_core::LinearCombination;
use blst::blst_fr;
use blstrs::Scalar;
use ff::Field;

use crate::circuit::assignment::add_term as add_scaled;

/// Entries of the dictionary: 2 MiB of scalars, and less than 8 MiB with the recorder's index.
/// Filecoin's circuits have a few thousand distinct coefficients.
pub(super) const MAX_COEFFICIENTS: usize = 1 << 16;

const ONE: u64 = 0;
const MINUS_ONE: u64 = 1;
const COEFFICIENT: u64 = 2;
const INPUT: u64 = 3;

/// The largest counts that a row's first byte holds.
const A_TERMS: u64 = 0x1f;
const B_TERMS: u64 = 0x07;

/// Turns rows into bytes, block by block: each can be read without those before.
pub(super) struct Encoder {
    bytes: Vec<u8>,
    last: [u64; 2],
    minus_one: Scalar,
    numbers: HashMap<[u64; 4], u64>,
    coefficients: Vec<Scalar>,
}

impl Encoder {
    pub fn new() -> Self {
        Self {
            bytes: vec![],
            last: [0; 2],
            minus_one: -Scalar::ONE,
            numbers: HashMap::new(),
            coefficients: vec![],
        }
    }

    /// Bytes of the block so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Begins the next block.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.last = [0; 2];
    }

    /// The dictionary so far.
    pub fn coefficients(&self) -> &[Scalar] {
        &self.coefficients
    }

    /// Appends a row; returns how many terms it has.
    pub fn row(&mut self, a: &LinearCombination<Scalar>, b: &LinearCombination<Scalar>) -> u64 {
        let [in_a, in_b] = [a, b].map(|lc| lc.iter().filter(|(_, k)| !is_zero(k)).count() as u64);
        self.bytes.push((in_a.min(A_TERMS) | in_b.min(B_TERMS) << 5) as u8);
        if in_a >= A_TERMS {
            self.varint(in_a);
        }
        if in_b >= B_TERMS {
            self.varint(in_b);
        }
        self.terms(0, a);
        self.terms(1, b);
        in_a + in_b
    }

    fn terms(&mut self, matrix: usize, lc: &LinearCombination<Scalar>) {
        for (input, coefficient) in lc.iter_inputs().filter(|(_, k)| !is_zero(k)) {
            let input = (*input as u64) << 1;
            if *coefficient == Scalar::ONE {
                self.varint(input << 2 | INPUT);
            } else {
                self.varint((input | 1) << 2 | INPUT);
                self.coefficient(coefficient);
            }
        }
        for (aux, coefficient) in lc.iter_aux().filter(|(_, k)| !is_zero(k)) {
            let aux = *aux as u64;
            let distance = zigzag(aux.wrapping_sub(self.last[matrix]) as i64);
            self.last[matrix] = aux;
            if *coefficient == Scalar::ONE {
                self.varint(distance << 2 | ONE);
            } else if *coefficient == self.minus_one {
                self.varint(distance << 2 | MINUS_ONE);
            } else {
                self.varint(distance << 2 | COEFFICIENT);
                self.coefficient(coefficient);
            }
        }
    }

    fn coefficient(&mut self, coefficient: &Scalar) {
        let key = blst_fr::from(*coefficient).l;
        let known = self.numbers.get(&key).copied();
        let room = self.coefficients.len() < MAX_COEFFICIENTS;
        if let Some(number) = known {
            self.varint(number);
        } else if room {
            self.coefficients.push(*coefficient);
            let number = self.coefficients.len() as u64;
            self.numbers.insert(key, number);
            self.varint(number);
        } else {
            self.varint(0);
            self.bytes.extend(coefficient.to_bytes_le());
        }
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

fn is_zero(coefficient: &Scalar) -> bool {
    *coefficient == Scalar::ZERO
}

fn zigzag(distance: i64) -> u64 {
    (distance << 1 ^ distance >> 63) as u64
}

fn unzigzag(code: u64) -> u64 {
    code >> 1 ^ (code & 1).wrapping_neg()
}

/// What is wrong with bytes that are no rows of the circuit.
pub(super) type Fault = &'static str;

/// Reads a block's rows and evaluates them.
pub(super) struct Decoder<'a> {
    bytes: &'a [u8],
    last: [u64; 2],
    coefficients: &'a [Scalar],
    inputs: &'a [Scalar],
    aux: &'a [Scalar],
}

impl<'a> Decoder<'a> {
    pub fn new(
        bytes: &'a [u8],
        coefficients: &'a [Scalar],
        inputs: &'a [Scalar],
        aux: &'a [Scalar],
    ) -> Self {
        Self { bytes, last: [0; 2], coefficients, inputs, aux }
    }

    /// Writes the values of all the block's rows in A to `a`, in B to `b`: as many as there are.
    pub fn fill(mut self, a: &mut [Scalar], b: &mut [Scalar]) -> Result<(), Fault> {
        for (a, b) in a.iter_mut().zip(b) {
            (*a, *b) = self.row()?;
        }
        match self.bytes {
            [] => Ok(()),
            _ => Err("more rows than the index says"),
        }
    }

    /// The next row's value in A and in B.
    #[inline]
    fn row(&mut self) -> Result<(Scalar, Scalar), Fault> {
        let counts = u64::from(self.byte()?);
        let (mut in_a, mut in_b) = (counts & A_TERMS, counts >> 5);
        if in_a == A_TERMS {
            in_a = self.varint()?;
        }
        if in_b == B_TERMS {
            in_b = self.varint()?;
        }
        Ok((self.sum(0, in_a)?, self.sum(1, in_b)?))
    }

    #[inline]
    fn sum(&mut self, matrix: usize, terms: u64) -> Result<Scalar, Fault> {
        let mut sum = Scalar::ZERO;
        for _ in 0..terms {
            self.add_term(matrix, &mut sum)?;
        }
        Ok(sum)
    }

    #[inline]
    fn add_term(&mut self, matrix: usize, sum: &mut Scalar) -> Result<(), Fault> {
        let code = self.varint()?;
        let (kind, rest) = (code & 3, code >> 2);
        if kind == INPUT {
            let value = self.inputs.get((rest >> 1) as usize).ok_or("an input of no number")?;
            match rest & 1 {
                0 => *sum += value,
                _ => add_scaled(sum, value, &self.coefficient()?),
            }
            return Ok(());
        }
        let aux = self.last[matrix].wrapping_add(unzigzag(rest));
        self.last[matrix] = aux;
        let value = self.aux.get(aux as usize).ok_or("a variable of no number")?;
        match kind {
            ONE => {
                if *value != Scalar::ZERO {
                    *sum += value;
                }
            }
            MINUS_ONE => {
                if *value != Scalar::ZERO {
                    *sum -= value;
                }
            }
            _ => add_scaled(sum, value, &self.coefficient()?),
        }
        Ok(())
    }

    #[inline]
    fn coefficient(&mut self) -> Result<Scalar, Fault> {
        let number = self.varint()?;
        if number > 0 {
            let entry = self.coefficients.get(number as usize - 1);
            return entry.copied().ok_or("a coefficient of no number");
        }
        let (bytes, rest) = self.bytes.split_first_chunk().ok_or("no end of a coefficient")?;
        self.bytes = rest;
        Option::from(Scalar::from_bytes_le(bytes)).ok_or("a coefficient above the modulus")
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, Fault> {
        let (byte, rest) = self.bytes.split_first().ok_or("no end of a row")?;
        self.bytes = rest;
        Ok(*byte)
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Fault> {
        let byte = self.byte()?;
        if byte < 0x80 {
            return Ok(u64::from(byte));
        }
        let mut value = u64::from(byte & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number of more than 64 bits")
    }
}

#[cfg(test)]
mod tests {
    use bellpepper_core::{Index, Variable};
    use rand::{Rng, SeedableRng};
    use rand_xorshift::XorShiftRng;

    use super::*;

    fn any_coefficient(rng: &mut XorShiftRng) -> Scalar {
        match rng.gen_range(0..5) {
            0 => Scalar::ONE,
            1 => -Scalar::ONE,
            2 => Scalar::ZERO,
            3 => Scalar::from(2).pow([rng.gen_range(1..255)]),
            _ => Scalar::random(&mut *rng),
        }
    }

    fn any_row(rng: &mut XorShiftRng, inputs: usize, aux: usize) -> LinearCombination<Scalar> {
        let terms = if rng.gen_ratio(1, 50) { rng.gen_range(0..500) } else { rng.gen_range(0..9) };
        (0..terms).fold(LinearCombination::zero(), |lc, _| {
            let index = match rng.gen_ratio(1, 4) {
                true => Index::Input(rng.gen_range(0..inputs)),
                false => Index::Aux(rng.gen_range(0..aux)),
            };
            lc + (any_coefficient(rng), Variable(index))
        })
    }

    #[test]
    fn rows_evaluate_to_what_their_combinations_do_whatever_they_hold() {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut rng = XorShiftRng::seed_from_u64(seed);
        let inputs: Vec<_> = (0..40).map(|_| any_coefficient(&mut rng)).collect();
        let aux: Vec<_> = (0..100_000).map(|_| any_coefficient(&mut rng)).collect();
        let mut encoder = Encoder::new();
        for block in 0..3 {
            encoder.clear();
            let mut expected = vec![];
            for _ in 0..500 {
                let [a, b] = [(); 2].map(|()| any_row(&mut rng, inputs.len(), aux.len()));
                encoder.row(&a, &b);
                expected.push((a.eval(&inputs, &aux), b.eval(&inputs, &aux)));
            }
            let mut decoder = Decoder::new(encoder.bytes(), encoder.coefficients(), &inputs, &aux);
            for (row, expected) in expected.into_iter().enumerate() {
                assert_eq!(decoder.row(), Ok(expected), "row {row} of block {block}");
            }
            assert!(decoder.bytes.is_empty());
        }
    }

    #[test]
    fn a_coefficient_beyond_the_dictionary_is_written_out() {
        let mut encoder = Encoder::new();
        let x = Variable(Index::Aux(0));
        let one = LinearCombination::zero() + x;
        for k in 0..MAX_COEFFICIENTS as u64 + 10 {
            encoder.clear();
            let lc = LinearCombination::zero() + (Scalar::from(k + 2), x);
            encoder.row(&lc, &one);
            let row =
                Decoder::new(encoder.bytes(), encoder.coefficients(), &[], &[Scalar::ONE]).row();
            assert_eq!(row, Ok((Scalar::from(k + 2), Scalar::ONE)));
        }
        assert_eq!(encoder.coefficients().len(), MAX_COEFFICIENTS);
        assert_eq!(encoder.bytes().len(), 1 + 1 + 1 + 32 + 1);
    }

    #[test]
    fn any_bytes_end_in_values_or_in_a_fault() {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut rng = XorShiftRng::seed_from_u64(seed);
        let values = [Scalar::ONE; 3];
        for _ in 0..20_000 {
            let mut bytes = vec![0; rng.gen_range(0..60)];
            rng.fill(&mut bytes[..]);
            let mut decoder = Decoder::new(&bytes, &values, &values, &values);
            while !decoder.bytes.is_empty() && decoder.row().is_ok() {}
        }
    }

    #[test]
    fn a_count_that_no_block_can_hold_is_a_fault_and_takes_no_time() {
        let mut bytes = vec![0x1f];
        bytes.extend([0xff; 9]);
        bytes.push(1);
        let fault = Decoder::new(&bytes, &[], &[], &[]).row();
        assert_eq!(fault, Err("no end of a row"));
        bytes = vec![1, COEFFICIENT as u8, 0];
        bytes.extend(Scalar::char());
        let fault = Decoder::new(&bytes, &[], &[], &[Scalar::ONE]).row();
        assert_eq!(fault, Err("a coefficient above the modulus"));
    }
}
