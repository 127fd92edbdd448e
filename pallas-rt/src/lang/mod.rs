//! The language: what a kernel's body is written with.
//!
//! [`context`] has the running kernel, and executes or records every operation; [`tile`] has tiles and scalars;
//! [`operand`] what stands beside them; [`operators`] the rows of the scalar table; [`refs`] blocks of operands;
//! [`make`] free functions, [`methods`] those of tiles; [`cmp`] comparisons and logic; [`decide`] the time at which
//! conditions are decided, [`stage`] control flow, [`staged_while`] its `while`; [`threefry`] random numbers.
pub mod cmp;
pub(crate) mod context;
pub mod decide;
#[cfg(test)]
mod for_tests;
pub mod make;
mod methods;
pub mod operand;
pub mod operators;
#[cfg(test)]
pub(crate) mod random;
pub mod refs;
#[cfg(test)]
mod scalar_row_tests;
#[cfg(test)]
mod size_overflow_tests;
#[cfg(test)]
mod slice_tests;
pub mod stage;
mod staged_while;
pub mod threefry;
pub mod tile;
