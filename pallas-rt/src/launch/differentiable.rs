//! Functions of kernels that state their gradient.
use crate::array::Array;
use crate::error::Result;
use pallas_ir::Loc;

/// A call of a function of arrays with a stated reverse-mode derivative. It is what a library's function needs so that
/// `grad` passes through the kernels that it calls; `custom_vjp` is the same for functions of trees.
///
/// [`begin`](Differentiable::begin) returns the arguments to compute with, and [`end`](Differentiable::end) the results.
/// Outside of traced functions, and without the feature `graph`, both return what they are given.
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::Differentiable;
///
/// #[kernel(grid = (cdiv(N, 8)))]
/// fn scaled(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>, by: f32) {
///     out.store(x.load() * by);
/// }
/// fn double(x: &Array) -> Result<Array, Error> {
///     let (call, [x]) = Differentiable::begin([x])?;
///     let y = scaled(&x, 2.0)?;
///     // The gradient needs no value of before, and is the same kernel of the cotangent.
///     let [y] = call.end([y], &[], |_, [dy]| Ok(vec![scaled(dy, 2.0)?]))?;
///     Ok(y)
/// }
/// let x = Array::from_slice(&[1.0f32, 2.0], &[2])?;
/// assert_eq!(double(&x)?.to_vec::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), Error>(())
/// ```
pub struct Differentiable {
    #[cfg(feature = "graph")]
    stated: Option<crate::jit::Stated>,
    at: Loc,
}

impl Differentiable {
    /// Begins a call with these arguments; returns those to compute with.
    ///
    /// # Errors
    /// Arguments on several clients.
    #[track_caller]
    pub fn begin<const N: usize>(args: [&Array; N]) -> Result<(Differentiable, [Array; N])> {
        let at = Loc::caller();
        let args = args.map(Array::clone);
        #[cfg(feature = "graph")]
        if args.iter().any(Array::is_traced) {
            let (stated, inside) = crate::jit::Stated::begin(args.to_vec())?;
            let inside = inside.try_into().expect("as many as before");
            return Ok((Differentiable { stated: Some(stated), at }, inside));
        }
        #[cfg(feature = "graph")]
        let call = Differentiable { stated: None, at };
        #[cfg(not(feature = "graph"))]
        let call = Differentiable { at };
        Ok((call, args))
    }

    /// Ends the call. `backward` takes the residuals, which are values of before, and the cotangents of the results; it
    /// returns a cotangent for each argument, of the argument's type (zeros, which nothing reads, for integers).
    ///
    /// # Errors
    /// Those of `backward`; cotangents of other types; the error of a poisoned result.
    pub fn end<const N: usize>(
        self,
        results: [Array; N],
        residuals: &[&Array],
        backward: impl FnOnce(&[Array], &[Array; N]) -> Result<Vec<Array>>,
    ) -> Result<[Array; N]> {
        let Differentiable { at, .. } = self;
        #[cfg(feature = "graph")]
        if let Some(stated) = self.stated {
            let residuals: Vec<Array> = residuals.iter().map(|&x| x.clone()).collect();
            let backward = |residuals: &[Array], cotangents: &[Array]| {
                backward(residuals, cotangents.try_into().expect("one for each result"))
            };
            let made = stated.end(at, &results, &residuals, backward)?;
            return Ok(made.try_into().expect("as many as before"));
        }
        let _ = (residuals, backward, at);
        Ok(results)
    }
}
