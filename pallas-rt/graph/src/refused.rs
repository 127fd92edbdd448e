//! Mistakes that transformations and the partitioner find.
use pallas_ir::{Diag, Loc};

/// A transformation that an equation does not admit, or a declaration that the partitioner cannot follow.
#[derive(Clone, PartialEq, Debug)]
pub struct Refused {
    /// The user's line of the equation.
    pub at: Loc,
    /// The mistake, and the way out.
    pub diag: Diag,
}
