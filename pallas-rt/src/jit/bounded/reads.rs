//! The places where a function reads the true lengths of bounded arguments.
use super::{BoundedJit, BoundedSize};
use crate::jit::function::{CallArguments, Function};
use crate::tree::{self, Tree};
use pallas_device::error::Result;
use pallas_graph::bounded::GraphMismatch;
use pallas_ir::Loc;

/// A value or operation of a function that depends on the true length of a bounded size, so that calls pass it, or that
/// the function is compiled for each length.
pub(in crate::jit) struct LengthRead {
    /// Its line; `Loc::NONE` if no operation has it.
    pub at: Loc,
    /// Description of what depends on the lengths.
    pub what: String,
    /// True if it makes the function be compiled for each length on its own.
    pub is_alone: bool,
}

/// The places where a function reads the true lengths of its arguments, found by comparing traces for several lengths.
///
/// # Errors
/// Those of a call of a function with [bounded](crate::transform::Transformed::bounded) sizes.
pub(in crate::jit) fn find_length_reads<Args: Tree + 'static, F: Function<Args>>(
    at: Loc,
    sizes: &[BoundedSize],
    f: &F,
    given: &CallArguments<'_, Args>,
) -> Result<Vec<LengthRead>> {
    let bounded: BoundedJit<F::Out> = BoundedJit::new(at, sizes.to_vec(), false);
    let ((args, structures), tuple) = ((given.flat)(), (given.tuple)());
    let kind = bounded.make_argument_kind(&tuple, &args, &structures)?;
    let lengths = bounded.read_lengths(&kind, &args, || tree::paths(&tuple))?;
    let (_, own) = kind.trace_for_lengths(f, &tuple, &lengths)?;
    let alone = |why: GraphMismatch| LengthRead { at: why.at, what: why.what, is_alone: true };
    let family = match bounded.derive_bounded_graph(f, &tuple, &kind, &lengths, &own)? {
        Ok((family, _)) => family,
        Err(why) => return Ok(vec![alone(why)]),
    };
    let bounds: Vec<usize> = sizes.iter().map(|size| size.most).collect();
    let mut found: Vec<LengthRead> =
        family.size_dependent_args(&lengths, &own.graph).err().map(alone).into_iter().collect();
    for (lines, values) in family.size_dependent_literals() {
        let differs = (1..values.len()).filter(|&k| values[k] != values[0]).map(|k| &sizes[k - 1].name[..]);
        let of = differs.collect::<Vec<_>>().join(", ");
        let what = format!("the number {} for {} follows from {of}", values[0], bounded.lengths_text(&bounds));
        found.extend(lines.iter().map(|&at| LengthRead { at, what: what.clone(), is_alone: false }));
    }
    Ok(found)
}
