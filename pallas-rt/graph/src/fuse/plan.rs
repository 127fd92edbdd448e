//! Plans: the steps that compute a graph, and the memory that its values are in.
use super::apart::Apart;
use crate::call::{Callback, Print};
use crate::graph::{Equation, Var};
use crate::mesh::Collective;
use pallas_ir::{DType, Kernel, Literal, Loc, Type};
use std::sync::Arc;

/// Memory that a value is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// That of a parameter.
    Param(usize),
    /// New memory that outlives the call: a result has it.
    Fresh(usize),
    /// A region of the arena, which the next call uses again.
    Temporary(usize),
}

/// Work of one step.
#[derive(Debug)]
pub enum Work {
    /// A launch of a kernel.
    Kernel {
        /// The kernel.
        kernel: Arc<Kernel>,
        /// Extents of its dimensions.
        sizes: Vec<i64>,
        /// Values of its parameters, in order.
        params: Vec<Literal>,
    },
    /// A loop. The parameters of the body are the number of the step, an i32 of rank 0, the inputs, and the outputs; its
    /// results are the next outputs.
    For {
        /// One step.
        body: Box<Plan>,
        /// Steps.
        length: usize,
        /// Number of inputs.
        inputs: usize,
    },
    /// A loop while a condition holds. The parameters of the condition are the first inputs and the outputs, those of the
    /// body the other inputs and the outputs.
    While {
        /// Gives a bool of rank 0.
        condition: Box<Plan>,
        /// Inputs of the condition.
        captured: usize,
        /// One step.
        body: Box<Plan>,
        /// Inputs of the body.
        inputs: usize,
    },
    /// One of several; the first input is its number, an i32 of rank 0. The parameters are the other inputs.
    Case {
        /// The branches.
        branches: Vec<Plan>,
    },
    /// An exchange among devices: its only input, or none, and its only output.
    Collective {
        /// The operation.
        op: Collective,
        /// The type of the output.
        ty: Type,
        /// The user's line.
        at: Loc,
    },
    /// Shows the only input.
    Print {
        /// The label and the batches.
        print: Print,
        /// The type of the input.
        ty: Type,
        /// The user's line.
        at: Loc,
    },
    /// Calls a function of the host with the inputs, whose results are the outputs.
    Callback {
        /// The function, with its types.
        callback: Callback,
        /// The user's line.
        at: Loc,
    },
}

impl Work {
    /// The launch of a kernel of operations on arrays, whose integers wrap around as NumPy's do.
    pub(super) fn launch(mut kernel: Kernel, sizes: Vec<i64>) -> Work {
        let is_narrow = |ty: &Type| ty.dtype.bytes() < 4 && !ty.dtype.is_float() && ty.dtype != DType::Bool;
        kernel.allow.overflow = kernel.values.iter().any(is_narrow);
        Work::Kernel { kernel: Arc::new(kernel), sizes, params: vec![] }
    }

    /// The plans that it runs.
    pub fn bodies(&self) -> Vec<&Plan> {
        match self {
            Work::For { body, .. } => vec![body],
            Work::While { condition, body, .. } => vec![condition, body],
            Work::Case { branches } => branches.iter().collect(),
            Work::Kernel { .. } | Work::Collective { .. } | Work::Print { .. } | Work::Callback { .. } => vec![],
        }
    }

    /// Its name in texts.
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

/// A step with the values that it reads and writes.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub work: Work,
    /// In the order of the operands.
    pub inputs: Vec<Var>,
    pub outputs: Vec<Var>,
    /// By output, the value that its memory holds before the step.
    pub in_place: Vec<Option<Var>>,
}

impl Lowered {
    /// The step of an equation that reads all of its operands, and has results of its own.
    pub(crate) fn of(e: &Equation, work: Work) -> Lowered {
        let outputs = e.results.clone();
        Lowered { work, inputs: e.args.clone(), in_place: vec![None; outputs.len()], outputs }
    }
}

/// One step of a plan.
#[derive(Debug)]
pub struct Step {
    /// Its work.
    pub work: Work,
    /// Copies before that, each from a place to that of an output.
    pub copies: Vec<(Place, Place)>,
    /// The memory of its inputs, in the order of the operands.
    pub inputs: Vec<Place>,
    /// By input, why it does not compute what it reads.
    pub apart: Vec<Option<Apart>>,
    /// The memory of its outputs.
    pub outputs: Vec<Place>,
    /// The numbers of those outputs whose memory holds a value that it reads or changes, and why it does not compute that.
    pub in_place: Vec<(usize, Option<Apart>)>,
    /// The part of the arena that its work uses meanwhile ([`Work::scratch`]).
    pub scratch: Option<Region>,
}

/// The steps and the memory that compute a graph.
#[derive(Debug)]
pub struct Plan {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Bytes of each [`Place::Fresh`].
    pub fresh: Vec<usize>,
    /// The region of each [`Place::Temporary`]. Values that are needed at the same time have regions that lie apart.
    pub temporary: Vec<Region>,
    /// Bytes of the arena, those for the work of steps among them.
    pub arena: usize,
    /// What lies in the arena, and when.
    pub held: Vec<Held>,
    /// The results.
    pub results: Vec<(Place, Type)>,
}

/// A part of the arena.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Region {
    /// Its first byte.
    pub offset: usize,
    /// Its bytes.
    pub bytes: usize,
}

/// A value in the arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its place in the arena.
    pub region: Region,
    /// The step that makes it.
    pub first: usize,
    /// The last step that needs it.
    pub last: usize,
    /// Its type; `None` for what a loop or a branch needs inside.
    pub ty: Option<Type>,
}
