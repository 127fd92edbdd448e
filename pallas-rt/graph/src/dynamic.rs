//! Operations on a window of an array whose position is computed at run time (`dynamic_slice`, `dynamic_update_slice`).
//!
//! Positions are operands, an i32 scalar for each axis. As in XLA, they are clamped so that the window lies inside of
//! the array. Types, plans, texts and graphs for all sizes follow from the [`WindowAccess`] of an operation, which is
//! linear in its arrays.
use crate::graph::{Equation, Graph, OpName, Var};
pub use crate::ops::{Dynamic, DynamicSlice, DynamicUpdateSlice};
use pallas_ir::{At, DType, Diag, Type};
use std::fmt;

/// The elements that an operation on a window reads and writes, and the order of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowAccess<'a> {
    /// The result is the window of this size of the first operand. The positions follow it.
    Read(&'a [usize]),
    /// The result is the first operand with its window replaced by the elements of the second operand. The positions
    /// follow both.
    Write,
}

/// Properties of every operation on a window: the elements that it reads and writes. No method has a default.
pub(crate) trait WindowInterface: OpName {
    /// Returns which elements the operation reads and writes.
    fn access(&self) -> WindowAccess<'_>;
}

impl Dynamic {
    /// Returns the name of the operation in texts.
    pub fn name(&self) -> &'static str {
        self.data().name()
    }

    /// Returns which elements the operation reads and writes.
    pub fn access(&self) -> WindowAccess<'_> {
        self.data().access()
    }

    /// Returns the size of the window of an operation that reads; `None` for one that writes.
    pub(crate) fn size_of_read_window(&self) -> Option<&[usize]> {
        if let WindowAccess::Read(size) = self.access() { Some(size) } else { None }
    }

    /// Returns the number of array operands; the positions follow them.
    pub fn array_operand_count(&self) -> usize {
        if self.access() == WindowAccess::Write { 2 } else { 1 }
    }

    /// Returns the variable that holds the window's elements: the result of a read, the second operand of a write.
    pub fn window_var(&self, e: &Equation) -> Var {
        if self.access() == WindowAccess::Write { e.args[1] } else { e.result() }
    }

    /// Returns the type of the result for operands of types `args`.
    pub(crate) fn infer(&self, args: &[&Type]) -> Result<Type, Diag> {
        let rank = args.first().map_or(0, |x| x.shape.len());
        let expected = self.array_operand_count() + rank;
        if args.len() != expected {
            let message = format!("{self} of an array of {rank} axes has {} operands", args.len());
            return Err(Diag::new("arity", At::Op, message, "one position for each axis"));
        }
        let (x, positions) = (args[0], &args[self.array_operand_count()..]);
        if let Some(i) = positions.iter().position(|ty| **ty != Type::scalar(DType::I32)) {
            let message = format!("position {i} of {self} is {}", positions[i]);
            return Err(Diag::new(
                "dtype",
                At::Operand(self.array_operand_count() + i),
                message,
                "positions are i32 scalars",
            ));
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
        self.size_of_read_window().map_or(Ok(()), |size| write!(f, " size{size:?}"))
    }
}

impl Graph {
    /// Appends a read of the window of this size at `starts`, which is known to fit the array.
    pub(crate) fn push_dynamic_slice(&mut self, x: Var, size: &[usize], starts: &[Var]) -> Var {
        self.push_valid(DynamicSlice { size: size.to_vec() }, &[&[x], starts].concat())
    }

    /// Appends `x` with its window at `starts` replaced by `part`, which is known to fit.
    pub(crate) fn push_dynamic_update_slice(&mut self, x: Var, part: Var, starts: &[Var]) -> Var {
        self.push_valid(DynamicUpdateSlice, &[&[x, part], starts].concat())
    }
}
