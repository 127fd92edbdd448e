//! Element types of kernels over floats, and what they are computed in.
use pallas_rt::ir::dtype::Accumulate;
use pallas_rt::prelude::*;

/// What kernels compute in: the type that sums of products have.
pub trait Wide: Real + Accumulate<Acc = Self> {}
impl Wide for f32 {}
impl Wide for f64 {}

/// A float that kernels compute in `Self::Acc`: f32, or f64 for f64.
pub trait Floating: Real + Accumulate<Acc: Wide> {}
impl<E: Real + Accumulate<Acc: Wide>> Floating for E {}
