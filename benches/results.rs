//! Results of our side of a comparison, as a file that the script reads.
use pallas_rt::ir::DType;
use pallas_rt::{Array, Error, Result};
use safetensors::{Dtype, tensor::TensorView};
use std::path::Path;

/// Writes arrays as `0`, `1`, .. in a safetensors file.
///
/// # Errors
/// [`Error::File`] for a file that cannot be written and for an element type that no case returns.
pub fn write(file: &str, arrays: &[Array]) -> Result<()> {
    let refused = |message: String| Error::File { path: file.into(), message };
    let bytes: Vec<Vec<u8>> = arrays.iter().map(Array::to_bytes).collect::<Result<_>>()?;
    let views = arrays.iter().zip(&bytes).enumerate().map(|(i, (array, bytes))| {
        let dtype = match array.dtype() {
            DType::F32 => Dtype::F32,
            DType::F16 => Dtype::F16,
            DType::Bf16 => Dtype::BF16,
            DType::I32 => Dtype::I32,
            DType::U32 => Dtype::U32,
            other => return Err(refused(format!("no case returns {other}"))),
        };
        let view = TensorView::new(dtype, array.shape().to_vec(), bytes).map_err(|e| refused(e.to_string()))?;
        Ok((i.to_string(), view))
    });
    let views: Vec<_> = views.collect::<Result<_>>()?;
    safetensors::serialize_to_file(views, None, Path::new(file)).map_err(|e| refused(e.to_string()))
}
