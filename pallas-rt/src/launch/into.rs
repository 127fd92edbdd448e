//! Launching into existing outputs: no allocation, the arrays keep their memory.
//!
//! While the closure runs, the first launch on this thread whose outputs fit takes over the arrays' memory. A result
//! that lies elsewhere in the end (the closure called several kernels, or an interpreter computed it) is copied.
use super::scope;
use crate::exec::{Compiled, exclusive_output_buffer};
use crate::{Array, Client, DeviceKind, Error, Result};
use pallas_device::{LaunchGeometry, output_indices};
use pallas_ir::OperandKind;
use std::cell::RefCell;

/// The results of a call of kernels: an array, or several in a tuple, array or vector.
pub trait Results {
    #[doc(hidden)]
    fn arrays(self) -> Vec<Array>;
}
impl Results for Array {
    fn arrays(self) -> Vec<Array> {
        vec![self]
    }
}
impl Results for Vec<Array> {
    fn arrays(self) -> Vec<Array> {
        self
    }
}
impl<const N: usize> Results for [Array; N] {
    fn arrays(self) -> Vec<Array> {
        self.into()
    }
}
/// Implements [`Results`] for tuples of up to eight arrays.
macro_rules! results {
    (@ $A:ident) => { Array };
    ($($A:ident $a:ident $i:tt),*) => {
        impl Results for ($(results!(@ $A),)*) {
            fn arrays(self) -> Vec<Array> {
                vec![$(self.$i),*]
            }
        }
    };
}
tuples! { results }

/// Runs `f` and leaves its results in `outputs`, whose memory they use: a step that runs many times allocates once.
///
/// Element type, shape and client of each output must be those of the result. No clone of an output may be alive, since
/// it would change too.
///
/// ```
/// use pallas_rt::prelude::*;
///
/// #[kernel(grid = (cdiv(N, 8)))]
/// fn double(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
///     out.store(x.load() * 2.0);
/// }
/// let client = Client::cpu();
/// let mut y = client.zeros(&[3], DType::F32)?;
/// for step in 0..10 {
///     let x = client.full(&[3], step as f32)?;
///     into([&mut y], || double(&x))?;
/// }
/// assert_eq!(y.to_vec::<f32>()?, [18.0; 3]);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// [`Error::Output`] if an output is shared or a result does not fit it; what `f` returns; [`Error::Traced`] if an
/// output or a result is traced; the error of a poisoned one. Outputs then hold what they held before, except where a
/// kernel has begun to write them.
pub fn into<'a, R: Results>(
    outputs: impl IntoIterator<Item = &'a mut Array>,
    f: impl FnOnce() -> Result<R>,
) -> Result<()> {
    let mut outputs: Vec<&mut Array> = outputs.into_iter().collect();
    // The launch takes the outputs' memory, and nothing is written unless all have some.
    for output in &outputs {
        output.buffer()?;
    }
    if scope::current_call_scope().purpose.is_recording() {
        return f().map(drop);
    }
    for (i, output) in outputs.iter_mut().enumerate() {
        exclusive_output_buffer(i, output)?;
    }
    let lent = outputs.iter().map(|output| Array::clone(output)).collect();
    let results = scope::run_with_lent_outputs(lent, f)?.arrays();
    copy_results(&mut outputs, results)
}

/// Takes the lent arrays, in the shapes of the outputs, if a launch of this kernel can write its outputs there; else
/// none.
pub(super) fn take_lent_outputs(
    lent: &RefCell<Vec<Array>>,
    compiled: &Compiled,
    client: &Client,
    geometry: &LaunchGeometry,
) -> Result<Vec<Array>> {
    let mut lent = lent.borrow_mut();
    // The interpreter's results are copied at the end.
    if lent.is_empty() || client.kind() == DeviceKind::Interpreter || geometry.is_empty() {
        return Ok(vec![]);
    }
    let operands = &compiled.traced().operands;
    let fits = |(array, i): (&Array, usize)| {
        // An output that aliases an input takes over its memory.
        matches!(operands[i].kind, OperandKind::Output { alias: None, .. })
            && (array.dtype(), array.client()) == (operands[i].dtype, client)
            && is_axis_merge(array.shape(), &geometry.shapes[i])
    };
    let outputs = output_indices(compiled.traced());
    if lent.len() != outputs.clone().count() || !lent.iter().zip(outputs.clone()).all(fits) {
        return Ok(vec![]);
    }
    let lent = std::mem::take(&mut *lent).into_iter().zip(outputs);
    lent.map(|(array, i)| array.with_shape(&geometry.shapes[i])).collect()
}

/// Returns true if one shape is the other with adjacent axes merged or axes of extent 1 dropped, as `[2, 3, 4]` and
/// `[6, 4]`.
fn is_axis_merge(a: &[usize], b: &[usize]) -> bool {
    let borders = |shape: &[usize]| -> Vec<usize> {
        let mut borders = vec![1];
        borders.extend(shape.iter().scan(1usize, |n, &extent| {
            *n = n.saturating_mul(extent);
            Some(*n)
        }));
        borders
    };
    let (x, y) = (borders(a), borders(b));
    let within = |x: &[usize], y: &[usize]| x.iter().all(|n| y.contains(n));
    a == b || x.last() == y.last() && !a.contains(&0) && (within(&x, &y) || within(&y, &x))
}

/// Copies each result to its output, unless it is already there.
fn copy_results(outputs: &mut [&mut Array], results: Vec<Array>) -> Result<()> {
    if outputs.len() != results.len() {
        let message = format!("{} outputs for {} results", outputs.len(), results.len());
        return Err(Error::Output { index: outputs.len().min(results.len()), message });
    }
    for (i, (output, result)) in outputs.iter().zip(&results).enumerate() {
        result.buffer()?;
        output.check_client(result.client(), &|| format!("output {i}"))?;
        if (output.dtype(), output.shape()) != (result.dtype(), result.shape()) {
            let of = |x: &Array| format!("{} {:?}", x.dtype(), x.shape());
            let message = format!("it is {}, the result {}", of(output), of(result));
            return Err(Error::Output { index: i, message });
        }
        if outputs.iter().enumerate().any(|(k, other)| k != i && result.shares_memory(other)) {
            let message = "its result is another output: return them in the kernel's order".into();
            return Err(Error::Output { index: i, message });
        }
    }
    for (i, (output, result)) in outputs.iter_mut().zip(results).enumerate() {
        if !result.shares_memory(output) {
            exclusive_output_buffer(i, output)?.copy_from(result.buffer()?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_axis_merge;

    #[test]
    fn shapes_that_lie_alike_in_memory() {
        let check = |a: &[usize], b: &[usize], expected| assert_eq!(is_axis_merge(a, b), expected, "{a:?} {b:?}");
        check(&[2, 3, 4], &[6, 4], true);
        check(&[5, 7], &[1, 5, 7], true);
        check(&[6], &[2, 3], true);
        check(&[2, 3], &[3, 2], false);
        check(&[2, 3], &[2, 4], false);
        check(&[0, 3], &[0, 3], true);
        check(&[0, 3], &[0, 4], false);
        check(&[], &[1], true);
    }
}
