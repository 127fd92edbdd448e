//! Checked conversions of shapes and elements to bytes.
use pallas_device::devices::memory;
use pallas_device::error::{Error, Result};
use pallas_ir::{DType, Elem, Loc};

/// Number of bytes of an array.
///
/// # Errors
/// [`Error::Overflow`] if no address space holds it.
pub(crate) fn byte_count(dtype: DType, shape: &[usize]) -> Result<usize> {
    let overflow = || Error::Overflow { shape: shape.to_vec(), dtype };
    // An extent of 0 anywhere makes the array empty, however large the others are.
    if shape.contains(&0) {
        return Ok(0);
    }
    let bytes =
        shape.iter().try_fold(dtype.bytes(), |bytes, &extent| bytes.checked_mul(extent)).ok_or_else(overflow)?;
    if isize::try_from(bytes).is_ok() { Ok(bytes) } else { Err(overflow()) }
}

/// Refuses data for an array of this shape if its length (`found`, in `unit`) is not the `expected` one.
#[track_caller]
pub(crate) fn check_data_length(shape: &[usize], expected: usize, found: usize, unit: &'static str) -> Result<()> {
    if expected == found {
        Ok(())
    } else {
        Err(Error::Length { called: Loc::caller(), shape: shape.to_vec(), expected, found, unit })
    }
}

/// Refuses bytes that are not values of the element type; only `bool` has such bytes.
pub(crate) fn check_element_bytes(dtype: DType, bytes: &[u8]) -> Result<()> {
    if dtype != DType::Bool {
        return Ok(());
    }
    match bytes.iter().position(|&byte| byte > 1) {
        None => Ok(()),
        Some(at) => {
            Err(Error::Value { message: format!("byte {at} of a bool array is {}; a bool is 0 or 1", bytes[at]) })
        }
    }
}

/// Returns the bytes of elements; refuses another number of elements than an array of this shape has.
#[track_caller]
pub(crate) fn elements_as_bytes<'a, T: Elem>(elements: &'a [T], shape: &[usize]) -> Result<&'a [u8]> {
    let expected = byte_count(T::DTYPE, shape)? / T::DTYPE.bytes();
    check_data_length(shape, expected, elements.len(), "elements")?;
    Ok(memory::bytes_of(elements))
}
