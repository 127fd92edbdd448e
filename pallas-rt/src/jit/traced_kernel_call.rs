//! Kernels as operations of a function that is being traced.
use super::program::cache_kernel;
use super::trace::{apply_multi_result, type_of};
use crate::array::Array;
use crate::exec::Compiled;
use pallas_device::error::Result;
use pallas_device::{LaunchGeometry, output_indices};
use pallas_graph::call::KernelCall;
use pallas_ir::{Literal, Loc, Type};

/// Calls a kernel as an operation, for the sizes in `geometry`; returns its outputs. `arrays` are its inputs and
/// prefetches.
///
/// # Errors
/// Arrays of a function whose trace is over, or on another client.
pub(crate) fn append_kernel_call(
    compiled: &Compiled,
    geometry: &LaunchGeometry,
    params: Vec<Literal>,
    arrays: &[Array],
    at: Loc,
) -> Result<Vec<Array>> {
    let kernel = compiled.traced();
    let output = |i: usize| Type::new(kernel.operands[i].dtype, &geometry.shapes[i][..]);
    let call = KernelCall {
        kernel: kernel.clone(),
        sizes: geometry.sizes.to_vec(),
        params,
        takes: arrays.iter().map(type_of).collect(),
        gives: output_indices(kernel).map(output).collect(),
    };
    cache_kernel(compiled);
    let args: Vec<&Array> = arrays.iter().collect();
    apply_multi_result(&args, at, |graph, v| graph.push_multi_result(call, v))
}
