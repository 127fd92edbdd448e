//! The places where a function reads the true lengths of bounded arguments.
use super::{Bounded, BoundedSize};
use crate::jit::function::{Function, Given};
use crate::tree::{self, Tree};
use pallas_device::error::Result;
use pallas_graph::bounded::Unlike;
use pallas_ir::Loc;

/// A value or operation in a function that depends on true lengths, which the function reads on the host.
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
pub(in crate::jit) fn reads_of_lengths<Args: Tree + 'static, F: Function<Args>>(
    at: Loc,
    sizes: &[BoundedSize],
    f: &F,
    given: &Given<'_, Args>,
) -> Result<Vec<LengthRead>> {
    let bounded: Bounded<F::Out> = Bounded::new(at, sizes.to_vec(), false);
    let ((args, structures), tuple) = ((given.flat)(), (given.tuple)());
    let kind = bounded.kind(&tuple, &args, &structures)?;
    let lengths = bounded.lengths(&kind, &args, || tree::paths(&tuple))?;
    let (_, own) = kind.trace(f, &tuple, &lengths)?;
    let alone = |why: Unlike| LengthRead { at: why.at, what: why.what, is_alone: true };
    let family = match bounded.family(f, &tuple, &kind, &lengths, &own)? {
        Ok((family, _)) => family,
        Err(why) => return Ok(vec![alone(why)]),
    };
    let bounds: Vec<usize> = sizes.iter().map(|size| size.most).collect();
    let mut found: Vec<LengthRead> = family.scalars(&lengths, &own.graph).err().map(alone).into_iter().collect();
    for (lines, values) in family.numbers() {
        let differs = (1..values.len()).filter(|&k| values[k] != values[0]).map(|k| &sizes[k - 1].name[..]);
        let of = differs.collect::<Vec<_>>().join(", ");
        let what = format!("the number {} for {} follows from {of}", values[0], bounded.describe(&bounds));
        found.extend(lines.iter().map(|&at| LengthRead { at, what: what.clone(), is_alone: false }));
    }
    Ok(found)
}
