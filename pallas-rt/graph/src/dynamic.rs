//! Operations on a window of an array at positions that are known when they run.
//!
//! Positions are operands, an i32 scalar for each axis. As in XLA a window lies inside of its array: a position is moved
//! to the nearest one where it does. Types, plans, texts and graphs for all sizes follow from the [`WindowAccess`] of an operation, which
//! is linear in its arrays.
use crate::graph::{Equation, Graph, Name, Var};
pub use crate::ops::{Dynamic, DynamicSlice, DynamicUpdateSlice};
use pallas_ir::{At, DType, Diag, Type};
use std::fmt;

/// The elements that an operation on a window reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowAccess<'a> {
    /// The result is the window of this size of the first operand; then the positions.
    Read(&'a [usize]),
    /// The result is the first operand, whose window has the elements of the second one; then the positions.
    Write,
}

/// Properties of every operation on a window. No method has a default.
pub(crate) trait Windowed: Name {
    /// The elements that it reads and writes.
    fn access(&self) -> WindowAccess<'_>;
}

impl Dynamic {
    /// The name in texts.
    pub fn name(&self) -> &'static str {
        self.data().name()
    }

    /// The elements that it reads and writes.
    pub fn access(&self) -> WindowAccess<'_> {
        self.data().access()
    }

    /// The size of the window, if the operation states it.
    pub(crate) fn size(&self) -> Option<&[usize]> {
        if let WindowAccess::Read(size) = self.access() { Some(size) } else { None }
    }

    /// Operands in front of the positions.
    pub fn arrays(&self) -> usize {
        if self.access() == WindowAccess::Write { 2 } else { 1 }
    }

    /// The variable that has the elements of the window.
    pub fn part(&self, e: &Equation) -> Var {
        if self.access() == WindowAccess::Write { e.args[1] } else { e.result() }
    }

    /// The type of the result.
    pub(crate) fn infer(&self, args: &[&Type]) -> Result<Type, Diag> {
        let rank = args.first().map_or(0, |x| x.shape.len());
        let expected = self.arrays() + rank;
        if args.len() != expected {
            let message = format!("{self} of an array of {rank} axes has {} operands", args.len());
            return Err(Diag::new("arity", At::Op, message, "one position for each axis"));
        }
        let (x, positions) = (args[0], &args[self.arrays()..]);
        if let Some(i) = positions.iter().position(|ty| **ty != Type::scalar(DType::I32)) {
            let message = format!("position {i} of {self} is {}", positions[i]);
            return Err(Diag::new("dtype", At::Operand(self.arrays() + i), message, "positions are i32 scalars"));
        }
        let (window, result) = match self.access() {
            WindowAccess::Read(size) => (size, Type::new(x.dtype, size)),
            WindowAccess::Write if args[1].dtype != x.dtype => {
                let message = format!("{self} of {x} by {}", args[1]);
                return Err(Diag::new("dtype", At::Operand(1), message, "both have one element type: cast one"));
            }
            WindowAccess::Write => (&args[1].shape[..], x.clone()),
        };
        if window.len() != rank || window.iter().zip(&x.shape).any(|(size, n)| size > n) {
            let message = format!("{self}: a window of {window:?} of an array of {:?}", x.shape);
            return Err(Diag::new("window", At::Op, message, "along each axis it is as long as the array or shorter"));
        }
        Ok(result)
    }
}

impl fmt::Display for Dynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.size().map_or(Ok(()), |size| write!(f, " size{size:?}"))
    }
}

impl Graph {
    /// Appends the window of this size of an array that it is known to fit.
    pub(crate) fn window(&mut self, x: Var, size: &[usize], starts: &[Var]) -> Var {
        self.fitting(DynamicSlice { size: size.to_vec() }, &[&[x], starts].concat())
    }

    /// Appends the array with a window that has the elements of `part`, which is known to fit.
    pub(crate) fn with_window(&mut self, x: Var, part: Var, starts: &[Var]) -> Var {
        self.fitting(DynamicUpdateSlice, &[&[x, part], starts].concat())
    }
}
