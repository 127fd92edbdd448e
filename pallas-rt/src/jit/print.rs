//! Arrays that are printed when a function runs, also when the function was traced.
use super::trace::{create_array, is_tracing, type_of};
use crate::array::{Array, Client};
use pallas_device::error::Result;
use pallas_graph::call::Print;
use pallas_ir::{Loc, Type};
#[cfg(test)]
use parking_lot::Mutex;

/// Lines that were printed, for tests.
#[cfg(test)]
pub(super) static PRINTED_LINES: Mutex<Vec<String>> = Mutex::new(vec![]);

impl Array {
    /// Shows the array on standard error, with the caller's line and a label; `jax.debug.print`.
    ///
    /// In a function that is being traced it does so at each call, when the elements are known, while `println!` runs
    /// once for each trace. Lines of one call come in the order of the function; in a [`scan`](crate::scan()) for each
    /// step, and in a [`vmap`](crate::vmap()) for each example. A poisoned array is not shown.
    ///
    /// ```
    /// use pallas_rt::{Array, jit};
    /// let f = jit(|x: &Array| {
    ///     let y = x * 2.0;
    ///     y.debug_print("y");
    ///     y.sum(..)
    /// });
    /// f(&Array::full(&[2], 1.0f32)?)?; // src/main.rs:4:7: y = [2.0, 2.0]
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    pub fn debug_print(&self, label: &str) {
        let (at, print) = (Loc::caller(), Print { label: label.into(), batches: vec![] });
        if is_tracing() {
            // The result stands for the effect, which is part of the function from now on.
            let _ = create_array(&[self], at, |graph, v| graph.push(print, v));
        } else if let Ok(buffer) = self.buffer() {
            // Elements that cannot be read are reported where the array is used.
            let _ = buffer.contents().and_then(|bytes| print_elements(&print, &type_of(self), &bytes, at));
        }
    }
}

/// Prints elements of this type to standard error, with the line `at` and the label.
///
/// # Errors
/// No memory.
pub(super) fn print_elements(print: &Print, ty: &Type, bytes: &[u8], at: Loc) -> Result<()> {
    let own = Type::new(ty.dtype, &ty.shape[print.batches.len()..]);
    let size = own.elements() * ty.dtype.bytes();
    for i in 0..print.batches.iter().product::<usize>() {
        let x = Client::cpu().array_from_bytes(own.dtype, &own.shape, &bytes[i * size..(i + 1) * size])?;
        let line = format!("{at}: {} = {x}", print.label);
        #[cfg(test)]
        PRINTED_LINES.lock().push(line.clone());
        pallas_codegen::interp::print_debug_lines(&[line]);
    }
    Ok(())
}
