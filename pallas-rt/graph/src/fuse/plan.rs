//! Plans: the steps that compute a graph, and the memory in which its values are stored.
use super::unfused_reasons::UnfusedReason;
use crate::call::{Callback, Print};
use crate::graph::{Equation, Var};
use crate::mesh::Collective;
use pallas_ir::{DType, Kernel, Literal, Loc, Type};
use std::sync::Arc;

/// Memory in which a value of a plan is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryLocation {
    /// The memory of the plan's parameter with this number.
    Param(usize),
    /// Memory that the call allocates and a result keeps; the index is into [`Plan::fresh`].
    Fresh(usize),
    /// A region of the arena, which the next call uses again; the index is into [`Plan::temporary`].
    Temporary(usize),
}

/// The operation that one step of a plan executes.
#[derive(Debug)]
pub enum StepOp {
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

impl StepOp {
    /// Returns the launch of a kernel made from array operations, in which integers narrower than 32 bits wrap around,
    /// as NumPy's do.
    pub(super) fn from_kernel(mut kernel: Kernel, sizes: Vec<i64>) -> StepOp {
        let is_narrow = |ty: &Type| ty.dtype.bytes() < 4 && !ty.dtype.is_float() && ty.dtype != DType::Bool;
        kernel.allow.overflow = kernel.values.iter().any(is_narrow);
        StepOp::Kernel { kernel: Arc::new(kernel), sizes, params: vec![] }
    }

    /// Returns the plans that the operation runs: bodies, conditions and branches.
    pub fn bodies(&self) -> Vec<&Plan> {
        match self {
            StepOp::For { body, .. } => vec![body],
            StepOp::While { condition, body, .. } => vec![condition, body],
            StepOp::Case { branches } => branches.iter().collect(),
            StepOp::Kernel { .. } | StepOp::Collective { .. } | StepOp::Print { .. } | StepOp::Callback { .. } => {
                vec![]
            }
        }
    }

    /// Returns the text that names the operation in printed plans.
    pub(super) fn name(&self) -> String {
        match self {
            StepOp::Kernel { kernel, sizes, .. } => format!("{} {sizes:?}", kernel.name),
            StepOp::For { length, .. } => format!("for {length} steps"),
            StepOp::While { .. } => "while".into(),
            StepOp::Case { .. } => "case".into(),
            StepOp::Collective { op, .. } => op.to_string(),
            StepOp::Print { .. } => "debug_print".into(),
            StepOp::Callback { .. } => "pure_callback".into(),
        }
    }
}

/// A step with the values of the graph that it reads and writes, before memory is assigned.
#[derive(Debug)]
pub(crate) struct LoweredStep {
    pub work: StepOp,
    /// The values that it reads, in the order of the operands.
    pub inputs: Vec<Var>,
    /// The values that it writes, in the order of the results.
    pub outputs: Vec<Var>,
    /// By output, the value that its memory holds before the step, which is copied there if it may not give up its own
    /// memory; `None` if the step writes all elements.
    pub in_place: Vec<Option<Var>>,
}

impl LoweredStep {
    /// Returns the step of an equation that reads all operands of the equation and writes results with memory of their
    /// own.
    pub(crate) fn from_equation(e: &Equation, op: StepOp) -> LoweredStep {
        let outputs = e.results.clone();
        LoweredStep { work: op, inputs: e.args.clone(), in_place: vec![None; outputs.len()], outputs }
    }
}

/// One step of a plan, with the memory of its inputs and outputs.
#[derive(Debug)]
pub struct PlanStep {
    /// The operation that the step executes.
    pub work: StepOp,
    /// Copies that run before it, from the memory of a value to that of the output that starts with its elements.
    pub copies: Vec<(MemoryLocation, MemoryLocation)>,
    /// The memory of the inputs, in the order of the operands.
    pub inputs: Vec<MemoryLocation>,
    /// By input, the reason why the step's kernel reads it instead of computing it; `None` if no kernel of the plan
    /// computes it.
    pub apart: Vec<Option<UnfusedReason>>,
    /// The memory of the outputs, in the order of the results.
    pub outputs: Vec<MemoryLocation>,
    /// The outputs whose memory holds a value before the step, by number, each with the reason why the step's kernel
    /// does not compute that value; `None` if no kernel of the plan computes it.
    pub in_place: Vec<(usize, Option<UnfusedReason>)>,
    /// The part of the arena that the step needs while it runs ([`StepOp::scratch_bytes`]).
    pub scratch: Option<ArenaRegion>,
}

/// The steps that compute a graph, and the memory that they use.
#[derive(Debug)]
pub struct Plan {
    /// The steps, in the order in which they run.
    pub steps: Vec<PlanStep>,
    /// Size in bytes of each [`MemoryLocation::Fresh`].
    pub fresh: Vec<usize>,
    /// The region of each [`MemoryLocation::Temporary`]. Values that are needed at the same time have disjoint regions.
    pub temporary: Vec<ArenaRegion>,
    /// Size of the arena in bytes, including what steps need while they run.
    pub arena: usize,
    /// The values in the arena, each with the steps during which it is kept.
    pub held: Vec<ArenaValue>,
    /// The memory and the type of each result.
    pub results: Vec<(MemoryLocation, Type)>,
}

/// A range of bytes in the arena.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ArenaRegion {
    /// Offset in the arena of the first byte.
    pub offset: usize,
    /// Number of bytes of the range.
    pub bytes: usize,
}

/// A value in the arena, with the steps during which it is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArenaValue {
    /// The bytes of the arena that the value occupies.
    pub region: ArenaRegion,
    /// The number of the step that makes the value.
    pub first: usize,
    /// The number of the last step that needs the value.
    pub last: usize,
    /// Type of the value; `None` for the arena that the plan inside a loop or a branch uses.
    pub ty: Option<Type>,
}
