//! The shipped kernels with arguments, for tests and benches. An [`Entry`] says how the operands of a function are
//! made, how it is called and which function gives its gradients; a reader asks for it by name or by family, with the
//! sizes, the element type and the numbers that it wants. A new kernel is one more entry.
//!
//! Included by path, so that the crate has none of it. Letters name the extents of operands:
//!
//! | letter | extent |
//! |---|---|
//! | `n`, `d` | rows, and elements of each; `e` is half of `d` unless it is given |
//! | `k`, `m` | terms, and columns of products; `q` rows of a group of quantised weights, all of them if it is not given |
//! | `v` | classes, or rows of a table |
//! | `b`, `h`, `g`, `s`, `l` | examples, heads of queries, heads of keys, queries, keys; `y`, `z` examples and heads of a bias |
//! | `p`, `t`, `r`, `c` | pages, places of a page, requests, and queries of the first one; of others it is one |
//! | `w` | keys in front of a query that a window leaves |
//! | `a` | parts that keys are split into |
//! | `u` | elements of a block along every axis, where the device does not choose |
use pallas_rt::prelude::*;
use std::cell::Cell;
use std::sync::Arc;

mod attention;
pub mod blocks;
mod caches;
mod losses;
mod products;
mod rows;

pub use attention::{ATTENTION, ATTENTION_IN_BLOCKS, CAPPED_MASKS, MASKS, OPTIONS_IN_BLOCKS};
pub use blocks::{CLASSES_IN_BLOCKS, GATES_IN_BLOCKS, ROWS_IN_BLOCKS};
pub use caches::{CACHES, PAGES};
pub use losses::{LOSSES, TABLES};
pub use products::{BYTES, PRODUCTS, PRODUCTS_IN_BLOCKS, QUANTISED};
pub use rows::{GATES, ROTARY, ROWS};

/// Functions that choose their blocks.
pub const FUNCTIONS: [&[Entry]; 13] =
    [PRODUCTS, BYTES, QUANTISED, ROWS, GATES, ROTARY, LOSSES, TABLES, ATTENTION, MASKS, CAPPED_MASKS, CACHES, PAGES];

/// Kernels in blocks of the extent `u`.
pub const IN_BLOCKS: [&[Entry]; 6] =
    [PRODUCTS_IN_BLOCKS, ROWS_IN_BLOCKS, GATES_IN_BLOCKS, CLASSES_IN_BLOCKS, ATTENTION_IN_BLOCKS, OPTIONS_IN_BLOCKS];

/// A call with `$E` the float type of `$x`.
macro_rules! typed {
    ($x:expr, $E:ident => $call:expr) => {
        match $x.dtype() {
            DType::F16 => {
                type $E = f16;
                $call
            }
            DType::Bf16 => {
                type $E = bf16;
                $call
            }
            DType::F64 => {
                type $E = f64;
                $call
            }
            _ => {
                type $E = f32;
                $call
            }
        }
    };
}
use typed;

/// Extents by letter.
pub type Extents = [(char, usize)];

/// A function of arrays.
pub type Call = Arc<dyn Fn(&[Array]) -> Result<Vec<Array>> + Send + Sync>;

/// A shipped function.
pub struct Entry {
    pub name: &'static str,
    make: fn(&Given<'_>) -> Result<Case>,
}

/// A function with its operands.
#[derive(Clone)]
pub struct Case {
    pub operands: Vec<Array>,
    pub call: Call,
    /// Operations, where they are not counted but known: multiplications, additions.
    pub flops: Option<f64>,
    pub backward: Option<Backward>,
}

/// The function of a function's gradients.
#[derive(Clone)]
pub struct Backward {
    /// Values that gradients are computed from, as a function of the operands.
    residuals: Call,
    /// Takes residuals and the cotangent of the first result, and gives the gradients by the first operands.
    pub call: Call,
    pub flops: Option<f64>,
}

impl Case {
    fn new(
        operands: impl Into<Vec<Array>>,
        call: impl Fn(&[Array]) -> Result<Vec<Array>> + Send + Sync + 'static,
    ) -> Case {
        Case { operands: operands.into(), call: Arc::new(call), flops: None, backward: None }
    }
    /// Says how gradients are computed: their residuals, and from these.
    fn backward(
        self,
        residuals: impl Fn(&[Array]) -> Result<Vec<Array>> + Send + Sync + 'static,
        call: impl Fn(&[Array]) -> Result<Vec<Array>> + Send + Sync + 'static,
    ) -> Case {
        let backward = Backward { residuals: Arc::new(residuals), call: Arc::new(call), flops: None };
        Case { backward: Some(backward), ..self }
    }
    /// Says how many operations it is, and how many times as many the gradients are.
    fn flops(self, flops: f64, backward: f64) -> Case {
        let of = |found: Backward| Backward { flops: Some(backward * flops), ..found };
        Case { flops: Some(flops), backward: self.backward.map(of), ..self }
    }
    /// Calls it with its operands.
    pub fn run(&self) -> Result<Vec<Array>> {
        (self.call)(&self.operands)
    }
    /// Calls it with its operands, and its gradients with zeros for the cotangent: to see their kernels.
    pub fn run_all(&self) -> Result<Vec<Array>> {
        let found = self.run()?;
        match (self.gradients(), found.first()) {
            (Some(gradients), Some(y)) => {
                let dy = y.client().zeros(y.shape(), y.dtype())?;
                Ok([found, gradients(&[&self.operands[..], &[dy]].concat())?].concat())
            }
            _ => Ok(found),
        }
    }
    /// The gradients by the first operands, as a function of all operands and of the first result's cotangent.
    pub fn gradients(&self) -> Option<Call> {
        let backward = self.backward.clone()?;
        Some(Arc::new(move |x| {
            let (operands, dy) = x.split_at(x.len().saturating_sub(1));
            (backward.call)(&[(backward.residuals)(operands)?, dy.to_vec()].concat())
        }))
    }
}

impl Backward {
    /// Its operands, for these of the function and this cotangent.
    pub fn operands(&self, operands: &[Array], dy: &Array) -> Result<Vec<Array>> {
        Ok([(self.residuals)(operands)?, vec![dy.clone()]].concat())
    }
}

impl Entry {
    const fn new(name: &'static str, make: fn(&Given<'_>) -> Result<Case>) -> Entry {
        Entry { name, make }
    }
    /// Makes its operands.
    pub fn case(&self, given: &Given<'_>) -> Result<Case> {
        given.made.set(0);
        (self.make)(given)
    }
}

/// The entry of this name.
pub fn entry(name: &str) -> &'static Entry {
    let mut all = FUNCTIONS.into_iter().chain(IN_BLOCKS).flatten();
    let found = all.find(|entry| entry.name == name);
    found.unwrap_or_else(|| panic!("kernels/cases has no `{name}`"))
}

/// Wishes of a reader: where arrays are, of which type and extents, and which numbers they hold.
#[derive(Clone)]
pub struct Given<'a> {
    pub client: &'a Client,
    pub dtype: DType,
    pub extents: &'a Extents,
    /// So many numbers, another sequence for each operand.
    pub numbers: fn(usize, usize) -> Vec<f64>,
    /// Labels for so many rows, below a number.
    pub labels: fn(usize, usize) -> Vec<i32>,
    made: Cell<usize>,
}

impl<'a> Given<'a> {
    pub fn new(client: &'a Client, dtype: DType, extents: &'a Extents, numbers: fn(usize, usize) -> Vec<f64>) -> Self {
        Given { client, dtype, extents, numbers, labels: whole_numbers, made: Cell::new(0) }
    }
    /// An extent, if it is given.
    fn get(&self, letter: char) -> Option<usize> {
        let given = self.extents.iter().find(|(name, _)| *name == letter).map(|(_, extent)| *extent);
        match letter {
            '1'..='9' => letter.to_digit(10).map(|digit| digit as usize),
            'e' => given.or_else(|| self.get('d').map(|d| d / 2)),
            _ => given,
        }
    }
    fn of(&self, letter: char) -> usize {
        self.get(letter).unwrap_or_else(|| panic!("a case needs the extent `{letter}`"))
    }
    fn shape(&self, axes: &str) -> Vec<usize> {
        axes.chars().map(|letter| self.of(letter)).collect()
    }
    /// Numbers of the asked type.
    fn floats(&self, axes: &str) -> Result<Array> {
        self.array(self.dtype, axes)
    }
    /// Numbers of a type.
    fn array(&self, dtype: DType, axes: &str) -> Result<Array> {
        self.shaped(dtype, &self.shape(axes))
    }
    fn shaped(&self, dtype: DType, shape: &[usize]) -> Result<Array> {
        self.made.set(self.made.get() + 1);
        array(self.client, dtype, shape, &(self.numbers)(shape.iter().product(), self.made.get()))
    }
    /// Numbers of rows of a table, some of them equal.
    fn ids(&self, axes: &str, below: char) -> Result<Array> {
        let shape = self.shape(axes);
        self.client.array(&whole_numbers(shape.iter().product(), self.of(below)), &shape)
    }
    fn labels(&self, axes: &str, below: char) -> Result<Array> {
        let shape = self.shape(axes);
        self.client.array(&(self.labels)(shape.iter().product(), self.of(below)), &shape)
    }
}

fn whole_numbers(n: usize, below: usize) -> Vec<i32> {
    (0..n).map(|i| (i * 7919 % below.max(1)) as i32).collect()
}

/// As many zeros.
pub fn zeros(n: usize, _: usize) -> Vec<f64> {
    vec![0.0; n]
}

/// An array of a float type, or of bytes.
pub fn array(client: &Client, dtype: DType, shape: &[usize], numbers: &[f64]) -> Result<Array> {
    match dtype {
        DType::F64 => client.array(numbers, shape),
        DType::F32 => client.array(&numbers.iter().map(|&x| x as f32).collect::<Vec<_>>(), shape),
        DType::F16 => client.array(&numbers.iter().map(|&x| f16::from_f64(x)).collect::<Vec<_>>(), shape),
        DType::Bf16 => client.array(&numbers.iter().map(|&x| bf16::from_f64(x)).collect::<Vec<_>>(), shape),
        DType::I8 => client.array(&numbers.iter().map(|&x| (x * 127.0) as i8).collect::<Vec<_>>(), shape),
        other => panic!("no numbers of type {other}"),
    }
}

fn one(x: Array) -> Result<Vec<Array>> {
    Ok(vec![x])
}
fn two((x, y): (Array, Array)) -> Result<Vec<Array>> {
    Ok(vec![x, y])
}
fn three((x, y, z): (Array, Array, Array)) -> Result<Vec<Array>> {
    Ok(vec![x, y, z])
}
