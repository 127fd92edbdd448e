//! Questions of functions of kernels about meshes.
use crate::array::Array;

/// Number of parts into which devices may divide a dimension in the function that is being traced: the size of the longest
/// axis of a mesh that arguments or constraints name so far, 1 without one. A function of kernels chooses by it among forms
/// of one computation: devices share programs of a grid axis and plain sums over one, and gather what else a kernel reads.
///
/// ```
/// use pallas_rt::launch::launch_parts;
/// assert_eq!(launch_parts(), 1);
/// ```
pub fn launch_parts() -> usize {
    #[cfg(feature = "graph")]
    return crate::jit::parts_on_mesh();
    #[cfg(not(feature = "graph"))]
    1
}

/// The array, for kernels that may have it gathered though it is declared to be sharded: without this, a kernel that cannot
/// be sharded as an argument is declared refuses it. It computes nothing, and shardings pass it.
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
        return crate::jit::propagation_barrier(x, crate::sharding::Flow::Both);
    }
    x.clone()
}
