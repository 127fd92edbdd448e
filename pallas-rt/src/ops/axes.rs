//! Axes as arguments.
use super::elementwise_broadcast::cast;
pub(super) use crate::array::canonicalize_axis;
use crate::jit::AssociativeScan;
use pallas_graph::{Graph, Var};
use pallas_ir::{At, DType, Diag};
use std::ops::RangeFull;

/// Axes of an array: `..` for all, `1`, `-1` for the last, or `[0, -1]`. See [`keep`] and [`accumulate`].
#[derive(Clone, Debug)]
pub struct Axes {
    /// `None` for all.
    which: Option<Vec<isize>>,
    /// True if a reduction keeps the axes, with extent 1.
    kept: bool,
    /// The element type in which a reduction is computed; `None` for that of its operand.
    dtype: Option<DType>,
}

/// Axes that a reduction keeps, with extent 1.
///
/// ```
/// use pallas_rt::{Array, keep};
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// assert_eq!(x.sum(-1).shape(), [2]);
/// assert_eq!(x.sum(keep(-1)).shape(), [2, 1]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
pub fn keep(axes: impl Into<Axes>) -> Axes {
    Axes { kept: true, ..axes.into() }
}

/// Axes along which a reduction is computed on elements of another type, which is that of its result; JAX's `dtype`
/// argument.
///
/// Without it sums and products of `f16` and `bf16` accumulate in `f32` and are rounded once, those of `bool` and
/// narrow integers are computed in 32 bits, and others in the type of their operand.
///
/// ```
/// use pallas_rt::ops::accumulate;
/// use pallas_rt::{Array, ir::DType};
/// let x = Array::from_slice(&[1e8f32, 1.0, -1e8], &[3])?;
/// assert_eq!(x.sum(accumulate(0, DType::F64)).to_vec::<f64>()?, [1.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
pub fn accumulate(axes: impl Into<Axes>, dtype: DType) -> Axes {
    Axes { dtype: Some(dtype), ..axes.into() }
}

impl Axes {
    /// Casts the operand to the type in which the reduction is computed.
    pub(super) fn cast_operand(&self, graph: &mut Graph, v: Var) -> Result<Var, Diag> {
        self.dtype.map_or(Ok(v), |dtype| cast(graph, v, dtype))
    }

    /// Returns true if the type in which the reduction is computed was asked for.
    pub(super) fn has_requested_dtype(&self) -> bool {
        self.dtype.is_some()
    }

    /// Returns true if the axes stay with extent 1.
    pub(super) fn keeps_axes(&self) -> bool {
        self.kept
    }

    /// Returns true if all axes of an array are meant.
    pub(super) fn is_all(&self) -> bool {
        self.which.is_none()
    }

    /// Returns the numbers of the axes in an array of this rank, in ascending order.
    ///
    /// # Errors
    /// An axis that does not exist, or is given twice.
    pub(super) fn resolve(&self, rank: usize) -> Result<Vec<usize>, Diag> {
        let Some(which) = &self.which else { return Ok((0..rank).collect()) };
        let mut found = which.iter().map(|&axis| canonicalize_axis(axis, rank)).collect::<Result<Vec<_>, _>>()?;
        found.sort_unstable();
        match found.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => {
                Err(Diag::new("axis", At::Op, format!("axis {} is given twice", pair[0]), "each axis at most once"))
            }
            None => Ok(found),
        }
    }
}

impl From<RangeFull> for Axes {
    fn from(_: RangeFull) -> Axes {
        Axes { which: None, kept: false, dtype: None }
    }
}

impl From<isize> for Axes {
    fn from(axis: isize) -> Axes {
        Axes::from([axis])
    }
}

impl<const N: usize> From<[isize; N]> for Axes {
    fn from(axes: [isize; N]) -> Axes {
        Axes { which: Some(axes.to_vec()), kept: false, dtype: None }
    }
}

impl From<&[isize]> for Axes {
    fn from(axes: &[isize]) -> Axes {
        Axes { which: Some(axes.to_vec()), kept: false, dtype: None }
    }
}

/// An axis along which elements are accumulated, and the direction: `1`, `-1` for the last axis; see [`reverse`].
#[derive(Clone, Copy, Debug)]
pub struct ScanAxis {
    axis: isize,
    reversed: bool,
}

/// An axis along which elements are accumulated from the last to the first; the `reverse` argument of `jax.lax.cumsum`.
///
/// ```
/// use pallas_rt::{Array, ops::reverse};
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0], &[3])?;
/// assert_eq!(x.cumsum(0).to_vec::<f32>()?, [1.0, 3.0, 6.0]);
/// assert_eq!(x.cumsum(reverse(0)).to_vec::<f32>()?, [6.0, 5.0, 3.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
pub fn reverse(axis: isize) -> ScanAxis {
    ScanAxis { axis, reversed: true }
}

impl ScanAxis {
    /// Returns the number of the axis in an array of this rank.
    ///
    /// # Errors
    /// An axis that does not exist.
    pub(super) fn resolve_axis(self, rank: usize) -> Result<usize, Diag> {
        canonicalize_axis(self.axis, rank)
    }

    /// Returns the options of an associative scan along the axis.
    pub(super) fn to_associative_scan(self) -> AssociativeScan {
        AssociativeScan::new().axis(self.axis).reverse(self.reversed)
    }

    /// Returns true if elements are accumulated from the last to the first.
    pub(super) fn is_reversed(self) -> bool {
        self.reversed
    }
}

impl From<isize> for ScanAxis {
    fn from(axis: isize) -> ScanAxis {
        ScanAxis { axis, reversed: false }
    }
}
