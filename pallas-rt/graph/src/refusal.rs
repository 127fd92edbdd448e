//! The error of transformations and the partitioner.
use pallas_ir::{Diag, Loc};

/// The error for an equation that a transformation does not support, or a declared sharding that the partitioner cannot
/// follow.
#[derive(Clone, PartialEq, Debug)]
pub struct TransformError {
    /// The line of the user's program that the equation comes from.
    pub at: Loc,
    /// The mistake, and how to correct it.
    pub diag: Diag,
}
