//! The real inputs of examples and tests, from the safetensors files of this folder.
use pallas_rt::ir::DType;
use pallas_rt::{Array, Client, Error, Result};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::collections::BTreeMap;
use std::path::Path;

/// Loads every array of a file onto a client, by name. `file` is relative to this folder, or absolute.
///
/// # Errors
/// [`Error::File`] if it cannot be read, is truncated, has gaps or overlaps, or holds an element type that no kernel
/// has.
pub fn load(client: &Client, file: impl AsRef<Path>) -> Result<BTreeMap<String, Array>> {
    // Packages of several folders include this file.
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|root| root.join("examples/data"));
    let path = folders.find(|folder| folder.is_dir()).unwrap_or_default().join(file);
    let refused = |message: String| Error::File { path: path.display().to_string(), message };
    let bytes = std::fs::read(&path).map_err(|error| refused(error.to_string()))?;
    // `deserialize` checks that the arrays tile the data exactly: no gap, no overlap, nothing missing at the end.
    let tensors = SafeTensors::deserialize(&bytes)
        .map_err(|error| refused(format!("no whole safetensors file of {} bytes: {error}", bytes.len())))?;
    let upload = |(name, view): (&str, TensorView)| {
        let dtype =
            dtype(view.dtype()).ok_or_else(|| refused(format!("`{name}` has elements of type {:?}", view.dtype())))?;
        Ok((name.to_string(), client.array_from_bytes(dtype, view.shape(), view.data())?))
    };
    tensors.iter().map(upload).collect()
}

/// Takes one array out of those loaded.
///
/// # Errors
/// [`Error::File`] if there is none of this name.
pub fn take(arrays: &mut BTreeMap<String, Array>, name: &str) -> Result<Array> {
    arrays.remove(name).ok_or_else(|| {
        let names: Vec<&str> = arrays.keys().map(String::as_str).collect();
        Error::File { path: "the file".into(), message: format!("no array `{name}`, only [{}]", names.join(", ")) }
    })
}

fn dtype(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::Bf16),
        Dtype::F32 => Some(DType::F32),
        Dtype::F64 => Some(DType::F64),
        Dtype::I8 => Some(DType::I8),
        Dtype::U8 => Some(DType::U8),
        Dtype::I16 => Some(DType::I16),
        Dtype::U16 => Some(DType::U16),
        Dtype::I32 => Some(DType::I32),
        Dtype::U32 => Some(DType::U32),
        Dtype::I64 => Some(DType::I64),
        Dtype::U64 => Some(DType::U64),
        Dtype::BOOL => Some(DType::Bool),
        _ => None,
    }
}
