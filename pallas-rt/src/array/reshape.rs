//! Reshapes of arrays.
use super::data::Array;
use super::host;
use pallas_device::error::{Error, Result};
use pallas_ir::Loc;

/// Extent of a new shape: a number of elements, or -1 for as many as are left.
pub trait Extent: Copy {
    #[doc(hidden)]
    fn number(self) -> isize;
}

impl Extent for usize {
    fn number(self) -> isize {
        isize::try_from(self).unwrap_or(isize::MAX)
    }
}
impl Extent for isize {
    fn number(self) -> isize {
        self
    }
}
/// Type of integer literals whose type nothing else determines.
impl Extent for i32 {
    fn number(self) -> isize {
        self as isize
    }
}

impl Array {
    /// Returns the elements of an array that has memory, row-major, under another shape, without a copy; the result
    /// holds the error if they do not fit.
    #[track_caller]
    pub(crate) fn reshape_in_memory<E: Extent>(&self, shape: &[E]) -> Array {
        let made = match self.resolve_extents(shape) {
            Ok(shape) => self.with_shape(&shape),
            Err(error) => Err(error),
        };
        made.unwrap_or_else(|error| self.to_poisoned(error))
    }

    /// Returns the same elements under another shape; the array must have memory.
    #[track_caller]
    pub(crate) fn with_shape(&self, shape: &[usize]) -> Result<Array> {
        let help = "reshape an argument or the result of the traced function";
        let buffer = self.require_buffer(Loc::NONE, || format!("reshape to {shape:?}"), help)?;
        match host::byte_count(self.dtype(), shape) {
            Ok(bytes) if bytes == buffer.len() => Ok(Array::from_shared_buffer(self.dtype(), shape, buffer.clone())),
            _ => {
                let to = shape.iter().map(|extent| extent.number()).collect();
                Err(Error::Reshape { called: Loc::caller(), from: self.shape().to_vec(), to })
            }
        }
    }

    /// Returns the shape with -1 replaced by the number of elements that are left.
    ///
    /// # Errors
    /// The error of a poisoned array; several extents of -1, one that does not divide the elements, another negative
    /// one.
    #[track_caller]
    pub(crate) fn resolve_extents<E: Extent>(&self, shape: &[E]) -> Result<Vec<usize>> {
        self.check()?;
        let to: Vec<isize> = shape.iter().map(|extent| extent.number()).collect();
        let elements: usize = self.shape().iter().product();
        let known = to.iter().filter_map(|&n| usize::try_from(n).ok()).fold(1, usize::saturating_mul);
        let left = elements.checked_div(known).unwrap_or(0);
        let is_open = to.iter().any(|&n| n < 0);
        if is_open && (known.saturating_mul(left) != elements || to.iter().map(|&n| n.min(0)).sum::<isize>() != -1) {
            return Err(Error::Reshape { called: Loc::caller(), from: self.shape().to_vec(), to });
        }
        Ok(to.iter().map(|&n| usize::try_from(n).unwrap_or(left)).collect())
    }

    /// Returns an array of this array's type and client that holds an error.
    pub(crate) fn to_poisoned(&self, error: Error) -> Array {
        Array::new_poisoned(error, self.client().clone(), self.dtype(), self.shape())
    }

    /// The same elements, row-major, under another shape, in which one extent may be -1: as many as are left; no copy.
    ///
    /// # Errors
    /// A shape with another number of elements gives an array that holds [`Error::Reshape`].
    #[cfg(not(feature = "graph"))]
    #[track_caller]
    #[must_use]
    pub fn reshape<E: Extent>(&self, shape: &[E]) -> Array {
        self.reshape_in_memory(shape)
    }
}
