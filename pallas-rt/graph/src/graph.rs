//! The graph: a list of equations in an order in which they can be computed, as in a jaxpr.
//!
//! ```text
//! Graph    = "{ lambda" Var:Type,* "." Equation* "in" Var,* "}"
//! Equation = Var:Type,* "=" Op Var,*
//! Op       = Literal | elementwise operation | structural operation          the last two of pallas-ir
//!          | Dynamic | Identity | Collective | Call
//! Dynamic  = "dynamic_slice" sizes | "dynamic_update_slice"                                    positions are operands
//! Identity = "stop_gradient" | "optimization_barrier"
//!          | "sharding_constraint" Mesh Sharding | "sharding_group" number                     see `mesh`
//!          | "propagation_barrier" direction
//! Collective = "all_gather" | "all_to_all" | "all_reduce" op | "reduce_scatter" op | "collective_permute" sources
//!          | "collective_broadcast" number | "device_table" numbers | "pcast" states
//! Call     = "scan" Graph | "while" Graph Graph | "case" Graph,* | "kernel" Kernel             see `call`
//!          | "custom_vjp" Graph Graph Graph | "custom_jvp" Graph Graph | "call" Graph | "checkpoint" Graph
//!          | "custom_vmap" Graph | "name" string | "debug_print" string batches | "pure_callback" function
//!          | "shard_map" Graph
//! Type     = dtype "[" extent,* "]"
//! ```
//!
//! Operations have the forms of StableHLO. Operands of an elementwise operation have equal shapes, so every broadcast
//! is an equation of its own. A literal has rank 0. Every variable is defined once, by an equation or as a parameter,
//! before it is used. Tracing is deterministic: the same function gives the same equations and results in the same
//! order.
//!
//! For example, a reduction drops its axes, and a broadcast names the axis of the result for each axis of its operand.
//! `pallas_rt::ops` translates NumPy's rules into these forms.
use crate::call::Call;
use crate::dynamic::Dynamic;
use crate::identity::Identity;
use crate::mesh::Collective;
use pallas_ir::{Literal, Loc, ScalarOp, StructuralOp, Type};
use std::fmt;
use std::sync::Arc;

/// A variable: the array that an equation or a parameter defines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Var(pub u32);

impl Var {
    /// Returns the variable's index in tables that have an entry for each variable of a graph.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An operation on arrays.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A constant of rank 0, without operands.
    Literal(Literal),
    /// An elementwise operation.
    Scalar(ScalarOp),
    /// A structural operation, which moves, reduces or contracts elements.
    Structural(StructuralOp),
    /// An operation on a window of an array, whose position is given by operands.
    Dynamic(Dynamic),
    /// An operation that returns its operand, and states something about it: that it has no derivative, how it is
    /// sharded.
    Identity(Identity),
    /// A collective among the devices that run this graph.
    Collective(Collective),
    /// A call of other graphs. Only calls may have several results.
    Call(Arc<Call>),
}

/// Gives operations their names in texts; implemented by the list in `ops`.
pub(crate) trait OpName {
    /// Returns the name of the operation in texts.
    fn name(&self) -> &'static str;
}

/// One operation applied to variables, with the variables that it defines.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Equation {
    /// The operation.
    pub op: Op,
    /// The operands.
    pub args: Vec<Var>,
    /// The variables that the equation defines: one, unless the operation is a call.
    pub results: Vec<Var>,
    /// The line of the user's program that the equation comes from.
    pub loc: Loc,
}

impl Equation {
    /// Returns the variable that an equation with one result defines.
    pub fn result(&self) -> Var {
        self.results[0]
    }
}

/// A function of arrays, as equations over variables.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Graph {
    /// The type of each variable.
    pub types: Vec<Type>,
    /// The parameters, in order.
    pub params: Vec<Var>,
    /// The equations, in an order in which they can be computed.
    pub equations: Vec<Equation>,
    /// The results, in order; a variable may be several of them.
    pub results: Vec<Var>,
    /// The line of the user's program that newly appended equations get.
    pub at: Loc,
}

impl Default for Graph {
    /// Returns a graph without parameters, equations and results.
    fn default() -> Graph {
        Graph { types: vec![], params: vec![], equations: vec![], results: vec![], at: Loc::NONE }
    }
}

impl Graph {
    /// Returns a graph with the same variables, parameters and results, and with `equations` in place of its own.
    pub(crate) fn with_equations(&self, equations: Vec<Equation>) -> Graph {
        let Graph { types, params, equations: _, results, at } = self;
        Graph { types: types.clone(), params: params.clone(), equations, results: results.clone(), at: *at }
    }
}

impl Op {
    /// Returns true for an operation that costs only a few instructions for each element.
    pub(crate) fn is_cheap_per_element(&self) -> bool {
        match self {
            Op::Scalar(ScalarOp::Rem) => false,
            Op::Scalar(op) => op.row().cost.transcendental == 0,
            Op::Structural(StructuralOp::Cast(_) | StructuralOp::Reshape(_)) => true,
            _ => false,
        }
    }
}

impl Graph {
    /// Returns the type of a variable.
    pub fn ty(&self, v: Var) -> &Type {
        &self.types[v.index()]
    }

    /// Returns the types of the parameters.
    pub fn param_types(&self) -> Vec<Type> {
        self.params.iter().map(|&v| self.ty(v).clone()).collect()
    }

    /// Returns the types of the results.
    pub fn result_types(&self) -> Vec<Type> {
        self.results.iter().map(|&v| self.ty(v).clone()).collect()
    }

    /// Returns for each variable the index of the equation that defines it; `None` for a parameter.
    pub fn definitions(&self) -> Vec<Option<usize>> {
        let mut all = vec![None; self.types.len()];
        self.equations.iter().enumerate().for_each(|(i, e)| e.results.iter().for_each(|r| all[r.index()] = Some(i)));
        all
    }

    /// Returns for each variable how often equations and the list of results read it.
    pub(crate) fn read_counts(&self) -> Vec<usize> {
        let mut all = vec![0; self.types.len()];
        self.equations.iter().flat_map(|e| &e.args).chain(&self.results).for_each(|v| all[v.index()] += 1);
        all
    }

    /// Returns for each variable the indices of the equations that read it, in order, each once.
    pub fn uses(&self) -> Vec<Vec<usize>> {
        let mut all: Vec<Vec<usize>> = vec![vec![]; self.types.len()];
        for (i, e) in self.equations.iter().enumerate() {
            for arg in &e.args {
                let uses = &mut all[arg.index()];
                if uses.last() != Some(&i) {
                    uses.push(i);
                }
            }
        }
        all
    }
}
