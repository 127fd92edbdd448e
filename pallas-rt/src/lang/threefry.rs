//! Random numbers of tiles from counters: the same bits for the same key and counter, wherever and in whatever order
//! they are made.
//!
//! Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3; SC 2011), the
//! generator behind JAX's keys. A kernel counts with the coordinates of its elements, so that what it draws depends
//! neither on block sizes nor on the device. Whole arrays of random numbers are made by `pallas_rt::random`, from the
//! same rounds.
//!
//! ```
//! use pallas_rt::prelude::*;
//! use pallas_rt::threefry;
//!
//! #[kernel(grid = (cdiv(N, 4)))]
//! fn noise(#[block([N] => [4], |i| (i,))] out: Out<f32>, seed: u32, #[dim] N: usize) {
//!     let element = iota::<u32>([4], 0) + (program_id(0) * 4).cast::<u32>();
//!     out.store(threefry::uniform(threefry::bits([seed, scalar(0u32)], [element, element * 0])));
//! }
//! let x = noise(1, 1000)?.to_vec::<f32>()?;
//! assert!(x.iter().all(|x| (0.0..1.0).contains(x)));
//! assert!((x.iter().sum::<f32>() / 1000.0 - 0.5).abs() < 0.05);
//! # Ok::<(), Error>(())
//! ```
use super::make::scalar;
use super::tile::{Scalar, Tile};
use std::convert::Infallible;

/// Bits by which the words are rotated: a row for four rounds, both rows alternately.
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
/// Constant in the third word of the key, which keeps a key of zeros from having only zeros.
const KEY_PARITY: u32 = 0x1bd1_1bda;

/// Arithmetic on words of 32 bits: [`threefry_rounds`] is written once, for tiles and for equations of a graph.
pub(crate) trait WordArithmetic {
    /// A word, or many of them.
    type Word: Copy;
    /// The reason why an operation can't be appended.
    type Error;
    /// Appends a constant.
    fn constant(&mut self, x: u32) -> Result<Self::Word, Self::Error>;
    /// Appends the sum modulo 2^32.
    fn add(&mut self, a: Self::Word, b: Self::Word) -> Result<Self::Word, Self::Error>;
    /// Appends the bitwise exclusive or of two words to the kernel or graph that is being built.
    fn xor(&mut self, a: Self::Word, b: Self::Word) -> Result<Self::Word, Self::Error>;
    /// The word rotated to the left by 1 to 31 bits.
    fn rotate_left(&mut self, x: Self::Word, by: u32) -> Result<Self::Word, Self::Error>;
}

/// The 20 rounds of Threefry-2x32.
///
/// # Errors
/// The first error of an operation.
pub(crate) fn threefry_rounds<W: WordArithmetic>(
    words: &mut W,
    key: [W::Word; 2],
    counter: [W::Word; 2],
) -> Result<[W::Word; 2], W::Error> {
    let mixed = words.xor(key[0], key[1])?;
    let parity = words.constant(KEY_PARITY)?;
    let keys = [key[0], key[1], words.xor(mixed, parity)?];
    let [mut x, mut y] = counter;
    x = words.add(x, keys[0])?;
    y = words.add(y, keys[1])?;
    for group in 0..5 {
        for by in ROTATIONS[group % 2] {
            x = words.add(x, y)?;
            y = words.rotate_left(y, by)?;
            y = words.xor(y, x)?;
        }
        x = words.add(x, keys[(group + 1) % 3])?;
        let number = words.constant(group as u32 + 1)?;
        let key = words.add(keys[(group + 2) % 3], number)?;
        y = words.add(y, key)?;
    }
    Ok([x, y])
}

/// Implements [`WordArithmetic`] on tiles of u32; a scalar is a tile that fits every shape.
struct TileWords;

impl WordArithmetic for TileWords {
    type Word = Tile<u32>;
    type Error = Infallible;
    fn constant(&mut self, x: u32) -> Result<Tile<u32>, Infallible> {
        Ok(Tile::new(scalar(x).handle))
    }
    fn add(&mut self, a: Tile<u32>, b: Tile<u32>) -> Result<Tile<u32>, Infallible> {
        Ok(a + b)
    }
    fn xor(&mut self, a: Tile<u32>, b: Tile<u32>) -> Result<Tile<u32>, Infallible> {
        Ok(a ^ b)
    }
    fn rotate_left(&mut self, x: Tile<u32>, by: u32) -> Result<Tile<u32>, Infallible> {
        Ok((x << by) | (x >> (32 - by)))
    }
}

/// Two words of random bits for each pair of counters.
///
/// Equal to Random123's `threefry2x32` and to JAX's `threefry_2x32`.
#[track_caller]
#[must_use]
pub fn threefry2x32(key: [Scalar<u32>; 2], counter: [Tile<u32>; 2]) -> [Tile<u32>; 2] {
    let Ok(words) = threefry_rounds(&mut TileWords, key.map(|word| Tile::new(word.handle)), counter);
    words
}

/// 32 random bits for each pair of counters: the first word of [`threefry2x32`].
#[track_caller]
#[must_use]
pub fn bits(key: [Scalar<u32>; 2], counter: [Tile<u32>; 2]) -> Tile<u32> {
    let [word, _] = threefry2x32(key, counter);
    word
}

/// Random bits as numbers in [0, 1), multiples of 2^-24.
#[track_caller]
#[must_use]
pub fn uniform(bits: Tile<u32>) -> Tile<f32> {
    (bits >> 8u32).cast::<f32>() * (1.0 / 16_777_216.0)
}

/// Two words of random bits as normally distributed numbers of mean 0 and variance 1 (Box and Muller 1958).
#[track_caller]
#[must_use]
pub fn normal([a, b]: [Tile<u32>; 2]) -> Tile<f32> {
    // In (0, 1]: the logarithm is finite.
    let radius = ((1.0 - uniform(a)).log() * -2.0).sqrt();
    radius * (uniform(b) * std::f32::consts::TAU).cos()
}
