//! Questions about meshes that functions ask before they call kernels.
use crate::array::Array;

/// Number of parts into which devices may divide a dimension in the function that is being traced: the size of the
/// longest axis of a mesh that arguments or constraints name so far, 1 without one. A function that calls kernels
/// chooses by it among forms of a computation: devices share the programs of a grid axis and plain sums over one, and
/// gather everything else that a kernel reads.
///
/// ```
/// use pallas_rt::launch::launch_parts;
/// assert_eq!(launch_parts(), 1);
/// ```
pub fn launch_parts() -> usize {
    #[cfg(feature = "graph")]
    return crate::jit::longest_traced_mesh_axis_size();
    #[cfg(not(feature = "graph"))]
    1
}

/// Returns the array, marked so that kernels may gather it though it is declared to be sharded. Without the mark, a
/// kernel that cannot be sharded as its argument is declared refuses the argument. Nothing is computed, and shardings
/// propagate through the mark.
///
/// ```
/// use pallas_rt::launch::may_gather;
/// use pallas_rt::{Array};
/// let w = Array::from_slice(&[1.0f32, 2.0], &[2])?;
/// assert_eq!(may_gather(&w).to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn may_gather(x: &Array) -> Array {
    #[cfg(feature = "graph")]
    if launch_parts() > 1 {
        return crate::jit::propagation_barrier(x, crate::sharding::PropagationDirection::Both);
    }
    x.clone()
}
