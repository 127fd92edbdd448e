//! Copies of arrays with another extent along an axis, by one kernel for all extents.
use crate::array::Array;
use crate::exec::{Argument, Compiled};
use pallas_device::error::Result;
use pallas_ir::{DType, Kernel, Literal};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::LazyLock;

/// Copies an array to this shape: elements beyond the array's are `fill`, elements beyond the shape are dropped.
///
/// # Errors
/// Memory; device errors.
pub(super) fn resize_array(x: &Array, shape: &[usize], fill: Literal) -> Result<Array> {
    let mut x = x.clone();
    for axis in 0..shape.len() {
        let (own, wanted) = (x.shape()[axis], shape[axis]);
        if own == wanted {
            continue;
        }
        let to: Vec<usize> = [&x.shape()[..axis], &shape[axis..=axis], &x.shape()[axis + 1..]].concat();
        // What follows the axis is contiguous: rows of a matrix become longer or shorter.
        let rows: usize = x.shape()[..axis].iter().product();
        let inner: usize = x.shape()[axis + 1..].iter().product();
        let sizes = [rows, own * inner, wanted * inner].map(|n| n as i64);
        let made = find_or_make_resize_kernel(x.dtype(), fill)?.launch(
            x.client(),
            &sizes,
            [Argument::Array(x.with_shape(&[rows, own * inner])?)],
        )?;
        x = made[0].with_shape(&to)?;
    }
    Ok(x)
}

/// Returns the kernel that copies the rows of a matrix to rows of another length, which it cuts or fills with `fill`; a
/// process compiles it once for each value of `fill`.
fn find_or_make_resize_kernel(dtype: DType, fill: Literal) -> Result<Compiled> {
    static RESIZE_KERNELS: LazyLock<Mutex<HashMap<Literal, Compiled>>> = LazyLock::new(Mutex::default);
    let mut all = RESIZE_KERNELS.lock();
    if let Some(known) = all.get(&fill) {
        return Ok(known.clone());
    }
    let text = format!(
        "kernel resized {{
  dim R
  dim A
  dim B
  grid R parallel
  grid cdiv(B, 1024) parallel
  in x: {dtype}[R, A] block [_, 1024] fill {fill}
  out y: {dtype}[R, B] block [_, 1024] empty {fill}
  map @x (%0: i32[], %1: i32[]) {{ yield %0, %1 }}
  map @y (%2: i32[], %3: i32[]) {{ yield %2, %3 }}
  body {{
    %4: {dtype}[1024] = load @x block[0:1024]
    store @y block[0:1024] %4
  }}
}}"
    );
    let kernel: Kernel = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    let compiled = Compiled::new(kernel)?;
    all.insert(fill, compiled.clone());
    Ok(compiled)
}

/// The value of the elements that pad an array from its length up to its bound. Results do not depend on it, which unit
/// tests ensure by padding with other values than 0.
#[cfg(not(test))]
pub(super) fn padding_value(ty: &pallas_ir::Type) -> Literal {
    Literal::new(ty.dtype, 0.0)
}
#[cfg(test)]
pub(super) use crate::jit::tests::sizes::padding_value;
