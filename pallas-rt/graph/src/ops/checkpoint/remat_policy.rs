//! Policies of rematerialization: which values of a checkpoint are stored, as in `jax.checkpoint_policies`.
use super::super::CheckpointName;
use crate::graph::Op;
use pallas_ir::StructuralOp;

/// A rule that selects the values inside of a [`Checkpoint`](super::Checkpoint) that are stored for the derivative, as
/// in `jax.checkpoint_policies`. Operands of the checkpoint are always stored.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum CheckpointPolicy {
    /// `nothing_saveable`: no value.
    #[default]
    Nothing,
    /// `everything_saveable`: every value that the derivative needs.
    Everything,
    /// `dots_saveable`: results of matrix products and other contractions.
    Dots,
    /// `dots_with_no_batch_dims_saveable`: results of contractions without a batch axis, which both operands and the
    /// result share.
    DotsWithoutBatch,
    /// `save_only_these_names`: values that `checkpoint_name` gave one of these names.
    OnlyNames(Vec<String>),
    /// `save_any_names_but_these`: values that `checkpoint_name` gave any other name.
    NamesExcept(Vec<String>),
    /// `save_anything_except_these_names`: all values, named or not, but those with these names.
    AnythingExcept(Vec<String>),
}

impl CheckpointPolicy {
    /// Returns true if the results of an operation are stored.
    pub fn saves(&self, op: &Op) -> bool {
        let name = CheckpointName::of_op(op).map(|named| &named.name);
        let dot = match op {
            Op::Structural(StructuralOp::Dot(dot)) => Some(dot),
            _ => None,
        };
        match self {
            CheckpointPolicy::Nothing => false,
            CheckpointPolicy::Everything => true,
            CheckpointPolicy::Dots => dot.is_some(),
            CheckpointPolicy::DotsWithoutBatch => dot.is_some_and(|dot| dot.batch.is_empty()),
            CheckpointPolicy::OnlyNames(names) => name.is_some_and(|name| names.contains(name)),
            CheckpointPolicy::NamesExcept(names) => name.is_some_and(|name| !names.contains(name)),
            CheckpointPolicy::AnythingExcept(names) => name.is_none_or(|name| !names.contains(name)),
        }
    }
}
