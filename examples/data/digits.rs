//! Images of handwritten digits, and random numbers that are the same in every language.
#![allow(dead_code, reason = "no example uses all of it")]
use flate2::read::GzDecoder;
use std::io::Read;

const CLASSES: usize = 10;

/// Images of 64 pixels from 0 to 1, and the digit that each shows.
#[derive(Default)]
pub struct Images {
    pub pixels: Vec<f32>,
    pub labels: Vec<i32>,
}

/// Images to learn from, and others to test with.
pub struct Digits {
    pub train: Images,
    pub test: Images,
}

impl Digits {
    /// The images of `data/digits.csv.gz`: 64 pixels from 0 to 16 and the digit in each line. Every fifth image of each
    /// digit is held out.
    pub fn load() -> Digits {
        let mut text = String::new();
        let file = &include_bytes!("digits.csv.gz")[..];
        GzDecoder::new(file).read_to_string(&mut text).expect("the file is whole");
        let mut digits = Digits { train: Images::default(), test: Images::default() };
        let mut seen = [0; CLASSES];
        for line in text.lines() {
            let mut numbers: Vec<i32> = line.split(',').map(|n| n.parse().expect("a number")).collect();
            let label = numbers.pop().expect("a label");
            let count = &mut seen[label as usize];
            *count += 1;
            let to = if *count % 5 == 0 { &mut digits.test } else { &mut digits.train };
            to.pixels.extend(numbers.iter().map(|&n| n as f32 / 16.0));
            to.labels.push(label);
        }
        digits
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014): the same numbers in every language.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number from 0 to 1, exclusively.
    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// So many numbers from `-range` to `range`.
    pub fn between(&mut self, count: usize, range: f32) -> Vec<f32> {
        (0..count).map(|_| (2.0 * self.uniform() - 1.0) * range).collect()
    }

    /// Brings numbers into another order (Fisher and Yates).
    pub fn shuffle(&mut self, order: &mut [usize]) {
        (1..order.len()).rev().for_each(|i| order.swap(i, self.below(i + 1)));
    }
}
