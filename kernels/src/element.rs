//! Element types of kernels over floats, and the types in which these compute.
use pallas_rt::ir::dtype::Accumulate;
use pallas_rt::prelude::*;

/// A type in which kernels compute: its sums of products have the same type.
pub trait Wide: Real + Accumulate<Acc = Self> {}
impl Wide for f32 {}
impl Wide for f64 {}

/// A float type of operands, with which kernels compute in `Self::Acc`: f32, or f64 for f64.
pub trait Floating: Real + Accumulate<Acc: Wide> {}
impl<E: Real + Accumulate<Acc: Wide>> Floating for E {}
