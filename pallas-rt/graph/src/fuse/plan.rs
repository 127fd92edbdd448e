//! Plans: the steps that compute a graph, and the memory in which its values are stored.
use super::apart::Apart;
use crate::call::{Callback, Print};
use crate::graph::{Equation, Var};
use crate::mesh::Collective;
use pallas_ir::{DType, Kernel, Literal, Loc, Type};
use std::sync::Arc;

/// Memory in which a value of a plan is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The memory of the plan's parameter with this number.
    Param(usize),
    /// Memory that the call allocates and a result keeps; the index is into [`Plan::fresh`].
    Fresh(usize),
    /// A region of the arena, which the next call uses again; the index is into [`Plan::temporary`].
    Temporary(usize),
}

/// The operation that one step of a plan executes.
#[derive(Debug)]
pub enum Work {
    /// Launches a kernel.
    Kernel {
        /// The kernel that is launched.
        kernel: Arc<Kernel>,
        /// Extents of the kernel's symbolic dimensions, in order.
        sizes: Vec<i64>,
        /// Values of the kernel's scalar parameters, in order.
        params: Vec<Literal>,
    },
    /// Runs the body a fixed number of times. The body's parameters are the step's number (an i32 of rank 0), the
    /// inputs, and the outputs of the step before; its results are the next outputs.
    For {
        /// Plan of one step of the loop.
        body: Box<Plan>,
        /// Number of steps of the loop.
        length: usize,
        /// Number of inputs, which are the same in each step.
        inputs: usize,
    },
    /// Runs the body while the condition is true. The parameters of the condition are the first `captured` inputs and
    /// the outputs so far, those of the body the other inputs and the outputs so far.
    While {
        /// Plan that returns a bool of rank 0: true to run another step.
        condition: Box<Plan>,
        /// Number of inputs that the condition reads.
        captured: usize,
        /// Plan of one step of the loop.
        body: Box<Plan>,
        /// Number of inputs that the body reads.
        inputs: usize,
    },
    /// Runs one of several plans. The first input is the plan's number, an i32 of rank 0; the plan's parameters are the
    /// other inputs.
    Case {
        /// The plan of each branch, by number.
        branches: Vec<Plan>,
    },
    /// Runs a collective among devices, with at most one input and exactly one output.
    Collective {
        /// The collective.
        op: Collective,
        /// The type of the collective's output.
        ty: Type,
        /// The user's source line that traced the collective.
        at: Loc,
    },
    /// Prints the only input.
    Print {
        /// The label that is printed, and the axes of batches that the input has.
        print: Print,
        /// The type of the value that is printed.
        ty: Type,
        /// The user's source line that traced the print.
        at: Loc,
    },
    /// Calls a function of the host with the inputs; its results are the outputs.
    Callback {
        /// The function, with the types of its parameters and results.
        callback: Callback,
        /// The user's source line that traced the call.
        at: Loc,
    },
}

impl Work {
    /// Returns the launch of a kernel made from array operations, in which integers narrower than 32 bits wrap around,
    /// as NumPy's do.
    pub(super) fn launch(mut kernel: Kernel, sizes: Vec<i64>) -> Work {
        let is_narrow = |ty: &Type| ty.dtype.bytes() < 4 && !ty.dtype.is_float() && ty.dtype != DType::Bool;
        kernel.allow.overflow = kernel.values.iter().any(is_narrow);
        Work::Kernel { kernel: Arc::new(kernel), sizes, params: vec![] }
    }

    /// Returns the plans that this work runs: bodies, conditions and branches.
    pub fn bodies(&self) -> Vec<&Plan> {
        match self {
            Work::For { body, .. } => vec![body],
            Work::While { condition, body, .. } => vec![condition, body],
            Work::Case { branches } => branches.iter().collect(),
            Work::Kernel { .. } | Work::Collective { .. } | Work::Print { .. } | Work::Callback { .. } => vec![],
        }
    }

    /// Returns the text that names this work in printed plans.
    pub(super) fn name(&self) -> String {
        match self {
            Work::Kernel { kernel, sizes, .. } => format!("{} {sizes:?}", kernel.name),
            Work::For { length, .. } => format!("for {length} steps"),
            Work::While { .. } => "while".into(),
            Work::Case { .. } => "case".into(),
            Work::Collective { op, .. } => op.to_string(),
            Work::Print { .. } => "debug_print".into(),
            Work::Callback { .. } => "pure_callback".into(),
        }
    }
}

/// A step with the values of the graph that it reads and writes, before memory is assigned.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub work: Work,
    /// The values that it reads, in the order of the operands.
    pub inputs: Vec<Var>,
    /// The values that it writes, in the order of the results.
    pub outputs: Vec<Var>,
    /// By output, the value that its memory holds before the step, which is copied there if it may not give up its own
    /// memory; `None` if the step writes all elements.
    pub in_place: Vec<Option<Var>>,
}

impl Lowered {
    /// Returns the step of an equation that reads all operands of the equation and writes results with memory of their
    /// own.
    pub(crate) fn of(e: &Equation, work: Work) -> Lowered {
        let outputs = e.results.clone();
        Lowered { work, inputs: e.args.clone(), in_place: vec![None; outputs.len()], outputs }
    }
}

/// One step of a plan, with the memory of its inputs and outputs.
#[derive(Debug)]
pub struct Step {
    /// The operation that the step executes.
    pub work: Work,
    /// Copies that run before it, from the memory of a value to that of the output that starts with its elements.
    pub copies: Vec<(Place, Place)>,
    /// The memory of the inputs, in the order of the operands.
    pub inputs: Vec<Place>,
    /// By input, the reason why the step's kernel reads it instead of computing it; `None` if no kernel of the plan
    /// computes it.
    pub apart: Vec<Option<Apart>>,
    /// The memory of the outputs, in the order of the results.
    pub outputs: Vec<Place>,
    /// The outputs whose memory holds a value before the step, by number, each with the reason why the step's kernel
    /// does not compute that value; `None` if no kernel of the plan computes it.
    pub in_place: Vec<(usize, Option<Apart>)>,
    /// The part of the arena that the step needs while it runs ([`Work::scratch`]).
    pub scratch: Option<Region>,
}

/// The steps that compute a graph, and the memory that they use.
#[derive(Debug)]
pub struct Plan {
    /// The steps, in the order in which they run.
    pub steps: Vec<Step>,
    /// Size in bytes of each [`Place::Fresh`].
    pub fresh: Vec<usize>,
    /// The region of each [`Place::Temporary`]. Values that are needed at the same time have disjoint regions.
    pub temporary: Vec<Region>,
    /// Size of the arena in bytes, including what steps need while they run.
    pub arena: usize,
    /// The values in the arena, each with the steps during which it is kept.
    pub held: Vec<Held>,
    /// The memory and the type of each result.
    pub results: Vec<(Place, Type)>,
}

/// A range of bytes in the arena.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Region {
    /// Offset in the arena of the first byte.
    pub offset: usize,
    /// Number of bytes of the range.
    pub bytes: usize,
}

/// A value in the arena, with the steps during which it is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// The bytes of the arena that the value occupies.
    pub region: Region,
    /// The number of the step that makes the value.
    pub first: usize,
    /// The number of the last step that needs the value.
    pub last: usize,
    /// Type of the value; `None` for the arena that the plan inside a loop or a branch uses.
    pub ty: Option<Type>,
}
