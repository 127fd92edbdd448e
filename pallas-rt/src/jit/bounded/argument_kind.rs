//! One kind of arguments of a bounded function: finds it, traces the function for lengths, and runs the program for all
//! lengths.
use super::resize::{padding_value, resize_array};
use super::{BoundedArgumentKind, BoundedCall, ProgramForLengths};
use crate::array::Array;
use crate::jit::function::Function;
use crate::jit::sharded::matches_declaration;
use crate::jit::trace::{TracedFunction, TracedParameter};
use crate::jit::traced::trace_function_with_parameters;
use crate::sharding::shard_like;
use crate::tree::{self, Structure, Tree};
use pallas_device::error::Result;
use pallas_device::timeline;
use pallas_ir::{Literal, Type};

impl<Out: Tree + Send + Sync + 'static> BoundedArgumentKind<Out> {
    /// Returns true if these arguments are of this kind, whatever their lengths are.
    pub(super) fn matches_arguments(&self, structures: &[Structure], args: &[Array]) -> bool {
        let is_bounded = |leaf: usize, axis: usize| self.places.iter().any(|(l, a, _)| (*l, *a) == (leaf, axis));
        let fits = |(leaf, (ty, x)): (usize, (&Type, &Array))| {
            let shape = x.shape();
            ty.dtype == x.dtype()
                && *x.client() == self.about.client
                && ty.shape.len() == shape.len()
                && (0..shape.len()).all(|axis| ty.shape[axis] == shape[axis] || is_bounded(leaf, axis))
        };
        self.structures == structures
            && self.about.types.len() == args.len()
            && self.about.types.iter().zip(args).enumerate().all(fits)
            && self.declared.iter().zip(args).all(|(own, x)| matches_declaration(x, own.as_ref()))
    }

    /// Traces the function for arguments of these lengths.
    pub(super) fn trace_for_lengths<Args: Tree + 'static>(
        &self,
        f: &impl Function<Args, Out = Out>,
        tuple: &Args,
        lengths: &[usize],
    ) -> Result<(Out, TracedFunction)> {
        let mut types = self.about.types.clone();
        self.places.iter().for_each(|&(leaf, axis, size)| types[leaf].shape[axis] = lengths[size]);
        let takes: Vec<TracedParameter> = types.into_iter().map(|ty| TracedParameter::with_states(ty, None)).collect();
        trace_function_with_parameters(f, tuple, &takes, &self.about.client)
    }
}

impl<Out: Tree + Send + Sync + 'static> BoundedCall<Out> {
    /// Runs the call: pads the arguments to the bounds, and cuts the results. `function_name` returns the function's
    /// name.
    ///
    /// # Errors
    /// Memory; errors of the device.
    pub(in crate::jit) fn run(self, function_name: fn() -> &'static str) -> Result<Out> {
        let BoundedCall { kind, length, args } = self;
        let (ProgramForLengths::Shared { scalars, out, gives }, Some(ready)) = (&*length, kind.ready.get()) else {
            unreachable!("a member has a family");
        };
        let padded = |(x, ty): (Array, &Type)| resize_array(&x, &ty.shape, padding_value(ty));
        let run = || {
            let mut donated = args.into_iter().zip(&kind.about.types).map(padded).collect::<Result<Vec<Array>>>()?;
            let rest = donated.split_off(ready.donated);
            let rest: Vec<&Array> = rest.iter().chain(&ready.captured).chain(scalars).collect();
            ready.program.run_donating(donated, &rest)
        };
        let described = || (function_name().into(), format!("{} steps", ready.program.step_count()));
        let results = timeline::run_in_span(timeline::SpanKind::Call, described, run)?;
        tree::rebuild(out, results.into_iter().zip(gives).map(cut_result).collect::<Result<Vec<_>>>()?)
    }
}

/// Cuts a result `x` that was computed for the bounds to `ty`, the type that it has for the call's own lengths. If it
/// had to be joined from blocks to be cut, it is sharded again.
fn cut_result((x, ty): (Array, &Type)) -> Result<Array> {
    let y = resize_array(&x, &ty.shape, Literal::new(ty.dtype, 0.0))?;
    match x.placement().filter(|_| y.placement().is_none()) {
        Some(placement) => shard_like(&y, placement),
        None => Ok(y),
    }
}
