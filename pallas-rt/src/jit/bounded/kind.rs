//! One kind of arguments of a bounded function: finds it, traces the function for lengths, and runs the program for all
//! lengths.
use super::resize::{padding, resized};
use super::{BoundedKind, Length, Member};
use crate::array::Array;
use crate::jit::function::Function;
use crate::jit::sharded::is_declared_as;
use crate::jit::trace::{Taken, TracedFunction};
use crate::jit::traced::traced_as;
use crate::sharding::placed_like;
use crate::tree::{self, Structure, Tree};
use pallas_device::error::Result;
use pallas_device::timeline;
use pallas_ir::{Literal, Type};

impl<Out: Tree + Send + Sync + 'static> BoundedKind<Out> {
    /// Returns true if these arguments are of this kind, whatever their lengths are.
    pub(super) fn fits(&self, structures: &[Structure], args: &[Array]) -> bool {
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
            && self.declared.iter().zip(args).all(|(own, x)| is_declared_as(x, own.as_ref()))
    }

    /// Traces the function for arguments of these lengths.
    pub(super) fn trace<Args: Tree + 'static>(
        &self,
        f: &impl Function<Args, Out = Out>,
        tuple: &Args,
        lengths: &[usize],
    ) -> Result<(Out, TracedFunction)> {
        let mut types = self.about.types.clone();
        self.places.iter().for_each(|&(leaf, axis, size)| types[leaf].shape[axis] = lengths[size]);
        let takes: Vec<Taken> = types.into_iter().map(|ty| Taken::of_states(ty, None)).collect();
        traced_as(f, tuple, &takes, &self.about.client)
    }
}

impl<Out: Tree + Send + Sync + 'static> Member<Out> {
    /// Runs the call: pads the arguments to the bounds, and cuts the results. `name` returns the function's name.
    ///
    /// # Errors
    /// Memory; errors of the device.
    pub(in crate::jit) fn run(self, name: fn() -> &'static str) -> Result<Out> {
        let Member { kind, length, args } = self;
        let (Length::Member { scalars, out, gives }, Some(ready)) = (&*length, kind.ready.get()) else {
            unreachable!("a member has a family");
        };
        let padded = |(x, ty): (Array, &Type)| resized(&x, &ty.shape, padding(ty));
        let run = || {
            let mut donated = args.into_iter().zip(&kind.about.types).map(padded).collect::<Result<Vec<Array>>>()?;
            let rest = donated.split_off(ready.donated);
            let rest: Vec<&Array> = rest.iter().chain(&ready.captured).chain(scalars).collect();
            ready.program.run_donating(donated, &rest)
        };
        let described = || (name().into(), format!("{} steps", ready.program.kernels()));
        let results = timeline::span(timeline::Kind::Call, described, run)?;
        tree::rebuild(out, results.into_iter().zip(gives).map(cut).collect::<Result<Vec<_>>>()?)
    }
}

/// Cuts a result for the bounds to its own type. If it had to be joined from blocks to be cut, it is sharded again.
fn cut((x, ty): (Array, &Type)) -> Result<Array> {
    let y = resized(&x, &ty.shape, Literal::new(ty.dtype, 0.0))?;
    match x.placement().filter(|_| y.placement().is_none()) {
        Some(placement) => placed_like(&y, placement),
        None => Ok(y),
    }
}
