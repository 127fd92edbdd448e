//! Functions that call kernels and state their gradient.
use crate::array::Array;
#[cfg(feature = "graph")]
use crate::jit::{BackwardTrace, GradientTrace};
use pallas_device::error::Result;
use pallas_ir::Loc;
#[cfg(not(feature = "graph"))]
use std::convert::{Infallible as GradientTrace, Infallible as BackwardTrace};

/// A call of a function of arrays that states its reverse-mode derivative. Library functions need it so that `grad`
/// passes through the kernels that they call; `custom_vjp` does the same for functions of trees. Forward mode
/// differentiates the function itself, kernel by kernel: the stated derivative must be the function's own. The gradient
/// of a gradient follows from both; one of third order is refused.
///
/// [`begin`](Differentiable::begin) returns the arguments to compute with. [`end`](Differentiable::end) returns the
/// results, or, inside of a traced function, the arrays from which to compute the gradient. No closure is needed, so
/// that `#[track_caller]` reaches through. Without the feature `graph` no function is traced.
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::launch::Ended;
/// use pallas_rt::{Differentiable};
///
/// #[kernel(grid = (cdiv(N, 8)))]
/// fn squares(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
///     out.store(x.load() * x.load());
/// }
/// #[kernel(grid = (cdiv(N, 8)))]
/// fn squares_backward(
///     #[block([N] => [8], |i| (i,))] x: In<f32>,
///     #[block([N] => [8], |i| (i,))] dy: In<f32>,
///     #[block([N] => [8], |i| (i,))] out: Out<f32>,
/// ) {
///     out.store(x.load() * dy.load() * 2.0);
/// }
/// fn square(x: &Array) -> Result<Array, Error> {
///     let (call, [x]) = Differentiable::begin([x])?;
///     let y = squares(&x)?;
///     let [y] = match call.end([y], &[&x])? {
///         Ended::Results(results) => results,
///         Ended::Backward { call, residuals, cotangents: [dy] } => call.end(&[squares_backward(&residuals[0], &dy)?])?,
///     };
///     Ok(y)
/// }
/// let x = Array::from_slice(&[1.0f32, 2.0], &[2])?;
/// assert_eq!(square(&x)?.to_vec::<f32>()?, [1.0, 4.0]);
/// # Ok::<(), Error>(())
/// ```
pub struct Differentiable {
    /// The call in the function that is being traced; `None` if none is.
    stated: Option<GradientTrace>,
    at: Loc,
}

/// Outcome of [`Differentiable::end`]: the results, or, inside of a traced function, the arrays from which the caller
/// computes the gradient.
pub enum Ended<const N: usize> {
    /// The results; no function is being traced.
    Results([Array; N]),
    /// The gradient is to be computed from these arrays, and given to `call`.
    Backward {
        /// The call, which takes the cotangents of the arguments.
        call: Backward<N>,
        /// The values that [`Differentiable::end`] was given to compute the gradient from.
        residuals: Vec<Array>,
        /// The cotangents of the results.
        cotangents: [Array; N],
    },
}

/// A [`Differentiable`] call whose gradient is being computed.
pub struct Backward<const N: usize> {
    stated: Box<BackwardTrace>,
    at: Loc,
}

impl Differentiable {
    /// Begins a call with these arguments, and returns the arguments to compute with. Other arrays may be used, but
    /// have no gradient: asking for one is an error.
    ///
    /// # Errors
    /// Arguments on several clients.
    #[track_caller]
    pub fn begin<const N: usize>(args: [&Array; N]) -> Result<(Differentiable, [Array; N])> {
        let at = Loc::caller();
        let args = args.map(Array::clone);
        #[cfg(feature = "graph")]
        if args.iter().any(Array::is_traced) {
            let (stated, inside) = GradientTrace::begin(args.to_vec())?;
            return Ok((Differentiable { stated: Some(stated), at }, into_fixed_array(inside)));
        }
        Ok((Differentiable { stated: None, at }, args))
    }

    /// Ends the form of the function that runs where no gradient is asked for, which has these results. The code after
    /// this call is the form that runs where one is: it computes the same results from the arguments that this returns,
    /// and may keep more of its values. `None` instead of arguments means that no gradient is asked for, as outside of
    /// traced functions.
    ///
    /// # Errors
    /// The error of a poisoned result; a call that is not the innermost one. [`end`](Differentiable::end) refuses
    /// results of other types than these.
    ///
    /// ```
    /// use pallas_rt::launch::Ended;
    /// use pallas_rt::{Array, Differentiable, grad};
    /// // The exponential is kept for the gradient, and made only then.
    /// fn softplus(x: &Array) -> pallas_rt::Result<Array> {
    ///     let (call, [inside]) = Differentiable::begin([x])?;
    ///     let y = inside.softplus();
    ///     let (call, Some(args)) = call.begin_forward([&y])? else { return Ok(y) };
    ///     let e = args[0].exp();
    ///     let [y] = match call.end([(&e + 1.0).log()], &[&e])? {
    ///         Ended::Results(results) => results,
    ///         Ended::Backward { call, residuals, cotangents: [dy] } => {
    ///             call.end(&[&residuals[0] / (&residuals[0] + 1.0) * dy])?
    ///         }
    ///     };
    ///     Ok(y)
    /// }
    /// let x = Array::from_slice(&[0.0f32], &[1])?;
    /// let slope = grad(|x: &Array| softplus(x).map(|y| y.sum(..)))(&x)?;
    /// assert_eq!(slope.to_vec::<f32>()?, [0.5]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[cfg(feature = "graph")]
    pub fn begin_forward<const N: usize>(self, results: [&Array; N]) -> Result<(Differentiable, Option<Vec<Array>>)> {
        let Some(stated) = self.stated else { return Ok((self, None)) };
        let (stated, args) = stated.begin_forward(&results.map(Array::clone))?;
        Ok((Differentiable { stated: Some(stated), at: self.at }, Some(args)))
    }

    /// Ends the call, whose results are `results`. The `residuals` are values from which the gradient is computed.
    ///
    /// # Errors
    /// The error of a poisoned result.
    pub fn end<const N: usize>(self, results: [Array; N], residuals: &[&Array]) -> Result<Ended<N>> {
        match self.stated {
            None => Ok(Ended::Results(results)),
            #[cfg(feature = "graph")]
            Some(stated) => {
                let residuals: Vec<Array> = residuals.iter().map(|&x| x.clone()).collect();
                let (stated, residuals, cotangents) = stated.end(&results, &residuals, self.at)?;
                // What is declared of an argument is a demand on the function's kernels, not on those of its gradient.
                let residuals = residuals.iter().map(super::may_gather).collect();
                let call = Backward { stated: Box::new(stated), at: self.at };
                Ok(Ended::Backward { call, residuals, cotangents: into_fixed_array(cotangents) })
            }
            #[cfg(not(feature = "graph"))]
            Some(never) => match (never, residuals, self.at) {},
        }
    }
}

impl<const N: usize> Backward<N> {
    /// Ends the call with a cotangent for each argument, which has the argument's type; for an integer argument it is
    /// zeros, which nothing reads. Returns the call's results.
    ///
    /// # Errors
    /// Cotangents of other types; the error of a poisoned one.
    pub fn end(self, cotangents: &[Array]) -> Result<[Array; N]> {
        #[cfg(feature = "graph")]
        return self.stated.end(cotangents, self.at).map(into_fixed_array);
        #[cfg(not(feature = "graph"))]
        match (*self.stated, self.at, cotangents) {}
    }
}

#[cfg(feature = "graph")]
fn into_fixed_array<const N: usize>(arrays: Vec<Array>) -> [Array; N] {
    arrays.try_into().expect("as many as before")
}
