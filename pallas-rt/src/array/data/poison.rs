//! Poisoned arrays: those that hold the error of an operation instead of elements.
use super::{Array, ArrayContents};
use crate::array::Client;
use pallas_device::error::{Error, Result};
use pallas_ir::DType;
use std::sync::Arc;

/// Contents of a poisoned array: the error that it has instead of elements, and its client.
pub(crate) struct PoisonedContents {
    error: Error,
    pub(super) client: Client,
}

impl Array {
    /// Returns a poisoned array: the result that an operation would have, and the error that it has instead.
    pub(crate) fn new_poisoned(error: Error, client: Client, dtype: DType, shape: &[usize]) -> Array {
        Array::from_contents(dtype, shape, ArrayContents::Poisoned(Arc::new(PoisonedContents { error, client })))
    }

    /// Returns the array itself, unless it is poisoned.
    ///
    /// # Errors
    /// The first mistake among the operations that led to a poisoned array.
    pub fn check(&self) -> Result<&Array> {
        match self.contents() {
            ArrayContents::InMemory(_) | ArrayContents::Sharded(_) | ArrayContents::Traced(_) => Ok(self),
            ArrayContents::Poisoned(bad) => Err(bad.error.clone()),
        }
    }

    /// Returns the error that a poisoned array carries, else [`Error::Traced`] with this message.
    pub(super) fn poison_or_traced_error(&self, message: impl FnOnce() -> String) -> Error {
        self.check().err().unwrap_or_else(|| Error::Traced { message: message() })
    }
}
