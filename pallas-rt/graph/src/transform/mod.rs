//! From a graph to others that compute its derivatives.
//!
//! - `active`: which values depend on which parameters in a way that has a derivative;
//! - `vjp`: reverse mode; `control` has the rules of loops and branches.
mod active;
mod control;
mod vjp;

pub use vjp::vjp;

use pallas_ir::{Diag, Loc};

/// A transformation that an equation does not admit.
#[derive(Clone, PartialEq, Debug)]
pub struct Refused {
    /// The user's line of the equation.
    pub at: Loc,
    /// What is wrong, and what to do.
    pub diag: Diag,
}
