//! Random arrays from keys; `jax.random`.
//!
//! A [`Key`] is 64 bits, from which a function makes all its numbers: the same key, shape and element type give the
//! same numbers on every device, at once and under [`jit`](crate::jit), whatever else runs. Bits are those of JAX's
//! default generator (Threefry-2x32, `jax_threefry_partitionable`), so equal seeds give equal numbers there:
//!
//! | functions | compared with JAX 0.12 on the CPU |
//! |---|---|
//! | [`key`], [`split`], [`fold_in`], [`bits`], [`randint`], [`uniform`], [`bernoulli`], [`rademacher`], [`permutation`], [`permuted`], [`shuffled`], [`choice`], [`choice_from`] | equal bits |
//! | [`weighted_choice`] | equal, unless a number lies within rounding errors of a sum of weights, or two scores do |
//! | [`normal`], [`truncated_normal`] | within 4 units in the last place; `truncated_normal` of f64 between -3 and 3 within 64 |
//! | [`gamma`], [`loggamma`], [`beta`], [`dirichlet`], [`chisquare`], [`f`], [`t`], [`poisson`], [`binomial`], [`multinomial`], [`geometric`] | the same algorithms: within rounding errors, unless a number is accepted or rejected by less than these |
//! | [`lognormal`], [`pareto`], [`rayleigh`], [`weibull_min`], [`triangular`], [`wald`], [`generalized_normal`], [`maxwell`], [`double_sided_maxwell`], [`ball`], [`multivariate_normal`], [`orthogonal`] | within rounding errors |
//! | [`categorical`] | equal, unless two scores differ by less than 1e-6 |
//! | [`exponential`], [`gumbel`], [`laplace`], [`logistic`], [`cauchy`] | within the errors of `ln` and `tan` |
//!
//! Seeds of more than 32 bits lose their upper bits, as in JAX without 64-bit types.
//!
//! ```
//! use pallas_rt::ir::DType;
//! use pallas_rt::random;
//!
//! let [for_weights, for_noise] = random::split(random::key(42));
//! let weights = random::normal(for_weights, &[3, 2], DType::F32);
//! let noise = random::uniform(for_noise, &[2], DType::F32);
//! assert_eq!((weights.shape(), noise.shape()), (&[3, 2][..], &[2][..]));
//! assert!(noise.to_vec::<f32>()?.iter().all(|x| (0.0..1.0).contains(x)));
//! # Ok::<(), pallas_rt::Error>(())
//! ```
//!
//! # A key is used once
//!
//! Two arrays from one key are not independent of each other, so every function takes its key by value, and a second
//! use does not compile:
//!
//! ```compile_fail,E0382
//! use pallas_rt::{ir::DType, random};
//! let key = random::key(42);
//! let a = random::normal(key, &[2], DType::F32);
//! let b = random::normal(key, &[2], DType::F32);
//! ```
//!
//! Functions of trees, which `jit` and `grad` take, get their arguments by reference, and nothing can be moved out of a
//! reference. [`Tree`](crate::Tree) therefore requires `Clone`, for keys too. A clone is the same key: it knows whether
//! the other was used, and the second use gives an array that holds an error with both lines, in every build. A traced
//! function has keys of its own, so passing one to a compiled function is no use of it; pass another one at each call.
//!
//! ```
//! use pallas_rt::{ir::DType, jit, random};
//! let noisy = jit(|key: &random::Key| {
//!     let [next, this] = random::split(key.clone());
//!     (next, random::normal(this, &[2], DType::F32))
//! });
//! let (key, first) = noisy(&random::key(0))?;
//! let (_, second) = noisy(&key)?;
//! assert_ne!(first.to_vec::<f32>()?, second.to_vec::<f32>()?);
//!
//! let key = random::key(1);
//! let once = random::uniform(key.clone(), &[2], DType::F32);
//! let twice = random::uniform(key, &[2], DType::F32);
//! assert!(once.check().is_ok() && twice.check().is_err());
//! # Ok::<(), pallas_rt::Error>(())
//! ```
//!
//! # Inside of traced functions
//!
//! Numbers are made by equations of the graph, so they are computed by the kernel that reads them, without memory of
//! their own. Inside of a function that is being traced, functions of this module are part of it even if their key is
//! not an argument: the key is then a constant, and every call gives the same numbers.
//!
//! A step of [`scan`](crate::scan) or another loop and a function of [`vmap`](crate::vmap) are traced once, so a key
//! that they capture gives the same numbers in every step and for every example. Give each its own: [`fold_in`] the
//! number of the step or example, or split the key before and pass the parts.
//!
//! ```
//! use pallas_rt::{Array, ir::DType, ops, random, scan, vmap};
//! let steps = ops::arange(0, 3, 1, DType::I32);
//! let key = random::key(0);
//! let (_, rows): (Array, Array) = scan(&ops::zeros(&[], DType::F32), &steps, |sum: &Array, step: &Array| {
//!     let noise = random::normal(random::fold_in(key.clone(), step), &[2], DType::F32);
//!     (sum + noise.sum(..), noise)
//! })?;
//! let rows = rows.to_vec::<f32>()?;
//! assert!(rows[..2] != rows[2..4] && rows[2..4] != rows[4..]);
//!
//! let key = random::key(1);
//! let dropped = vmap(move |x: &Array, number: &Array| {
//!     random::bernoulli(random::fold_in(key.clone(), number), 0.5, &[16]).cast(DType::F32) * x
//! });
//! let each = dropped(&ops::ones(&[3], DType::F32), &steps)?.to_vec::<f32>()?;
//! assert!(each[..16] != each[16..32] && each[16..32] != each[32..]);
//! # Ok::<(), pallas_rt::Error>(())
//! ```
//!
//! Kernels draw with [`threefry`](crate::threefry), which shares the rounds of the generator with this module.
//!
//! - `key`: keys; `lanes`: bits for each element of a shape;
//! - `uniform`: bits, uniform numbers, and what compares them; `integer`: `randint`;
//! - `normal`: the inverse of the error function; `continuous`: other distributions, and `categorical`;
//! - `gamma`: the gamma distribution; `parameters`: those that are made of it, and others with parameters; `counts`:
//!   those of whole numbers;
//! - `shuffle`: random orders and choices.
mod continuous;
mod counts;
mod gamma;
mod integer;
mod key;
mod lanes;
mod normal;
mod parameters;
mod shuffle;
#[cfg(test)]
mod tests;
mod uniform;

pub use continuous::{categorical, cauchy, exponential, gumbel, laplace, logistic};
pub use counts::{binomial, geometric, multinomial, poisson};
pub use gamma::{gamma, loggamma};
pub use integer::randint;
pub use key::{Key, fold_in, key, split, split_batch, split_into};
pub(crate) use normal::machine_epsilon;
pub use normal::{normal, truncated_normal};
pub use parameters::{
    ball, beta, chisquare, dirichlet, double_sided_maxwell, f, generalized_normal, lognormal, maxwell,
    multivariate_normal, orthogonal, pareto, rayleigh, t, triangular, wald, weibull_min,
};
pub use shuffle::{choice, choice_from, permutation, permuted, shuffled, weighted_choice};
pub use uniform::{bernoulli, bits, rademacher, uniform, uniform_between};

use crate::array::Array;
use crate::jit::create_array;
use crate::ops::Operand;
use lanes::{ElementwiseBuilder, VarResult};
use pallas_ir::{At, DType, Diag, Loc};

/// Makes an array of a shape by `equations`, from a key and from operands that stretch to the shape.
fn draw_array(
    key: Key,
    operands: &[&Array],
    shape: &[usize],
    at: Loc,
    equations: impl FnOnce(&mut ElementwiseBuilder<'_>, [pallas_graph::Var; 2], &[pallas_graph::Var]) -> VarResult,
) -> Array {
    let data = key.consume_bits(at);
    let args: Vec<&Array> = [&data].into_iter().chain(operands.iter().copied()).collect();
    create_array(&args, at, |graph, vars| {
        let key = lanes::key_words(graph, vars[0])?;
        equations(&mut ElementwiseBuilder::new(graph, shape)?, key, &vars[1..])
    })
}

/// Makes an array of a distribution's parameter `x` at every element of a shape, of a floating-point type, on the key's
/// client. `name` is the distribution's, for messages.
pub(crate) fn broadcast_parameter(name: &str, key: &Key, x: &Operand, shape: &[usize], dtype: DType, at: Loc) -> Array {
    let args: Vec<&Array> = [key.data()].into_iter().chain(uniform::array_operands(&[x])).collect();
    create_array(&args, at, |graph, vars| {
        check_float(name, dtype)?;
        ElementwiseBuilder::new(graph, shape)?.float_operand(x, &mut vars[1..].iter(), dtype)
    })
}

/// Refuses element types that are not floats.
fn check_float(name: &str, dtype: DType) -> Result<(), Diag> {
    if dtype.is_float() {
        return Ok(());
    }
    Err(Diag::new("dtype", At::Op, format!("`{name}` of {dtype}"), "a floating-point type: f32, f16, bf16 or f64"))
}
