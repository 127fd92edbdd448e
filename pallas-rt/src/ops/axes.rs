//! Axes as arguments.
pub(super) use crate::array::axis_of;
use pallas_ir::{At, Diag};
use std::ops::RangeFull;

/// Axes of an array: `..` for all, `1`, `-1` for the last, or `[0, -1]`. See [`keep`].
#[derive(Clone, Debug)]
pub struct Axes {
    /// `None` for all.
    which: Option<Vec<isize>>,
    kept: bool,
}

/// The same axes, which a reduction then keeps with extent 1.
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

impl Axes {
    /// Returns true if the axes stay with extent 1.
    pub(super) fn kept(&self) -> bool {
        self.kept
    }

    /// Returns true for all axes.
    pub(super) fn is_all(&self) -> bool {
        self.which.is_none()
    }

    /// The numbers of the axes in an array of this rank, in ascending order.
    ///
    /// # Errors
    /// An axis that does not exist, or is given twice.
    pub(super) fn of(&self, rank: usize) -> Result<Vec<usize>, Diag> {
        let Some(which) = &self.which else { return Ok((0..rank).collect()) };
        let mut found = which.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<Vec<_>, _>>()?;
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
        Axes { which: None, kept: false }
    }
}

impl From<isize> for Axes {
    fn from(axis: isize) -> Axes {
        Axes::from([axis])
    }
}

impl<const N: usize> From<[isize; N]> for Axes {
    fn from(axes: [isize; N]) -> Axes {
        Axes { which: Some(axes.to_vec()), kept: false }
    }
}

impl From<&[isize]> for Axes {
    fn from(axes: &[isize]) -> Axes {
        Axes { which: Some(axes.to_vec()), kept: false }
    }
}
