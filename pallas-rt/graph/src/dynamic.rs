//! Operations on a window of an array at positions that are known when they run.
//!
//! Positions are operands, an i32 scalar for each axis. As in XLA a window lies inside of its array: a position is moved
//! to the nearest one where it does.
use pallas_ir::{At, DType, Diag, Type};
use std::fmt;

/// An operation on a window at positions that are operands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Dynamic {
    /// The window of this size of the first operand; then the positions.
    Slice {
        /// Extents of the window.
        size: Vec<usize>,
    },
    /// The first operand with a window that has the elements of the second one; then the positions.
    Update,
}

impl Dynamic {
    /// Operands in front of the positions.
    pub fn arrays(&self) -> usize {
        match self {
            Dynamic::Slice { .. } => 1,
            Dynamic::Update => 2,
        }
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
        let (window, result) = match self {
            Dynamic::Slice { size } => (size, Type::new(x.dtype, size.clone())),
            Dynamic::Update if args[1].dtype != x.dtype => {
                let message = format!("{self} of {x} by {}", args[1]);
                return Err(Diag::new("dtype", At::Operand(1), message, "both have one element type: cast one"));
            }
            Dynamic::Update => (&args[1].shape, x.clone()),
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
        match self {
            Dynamic::Slice { size } => write!(f, "dynamic_slice size{size:?}"),
            Dynamic::Update => f.write_str("dynamic_update_slice"),
        }
    }
}
