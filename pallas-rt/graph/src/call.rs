//! Operations that call other graphs or kernels: loops, branches and functions. They alone have several results.
//!
//! The operands of a called graph are its parameters, so it mentions no variable of its caller.
pub use crate::callback::{Callback, HostFunction, VmapMethod};
use crate::graph::{Graph, Op};
use crate::mesh::{Mesh, Sharding};
use pallas_ir::{At, DType, Diag, Kernel, Literal, StructuralOp, Type};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A call of other graphs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// A loop over the first axis of arrays.
    Scan(Scan),
    /// A loop while a condition holds.
    While(While),
    /// One of several graphs.
    Case(Case),
    /// A tile kernel.
    Kernel(KernelCall),
    /// A graph with a derivative of its own.
    Custom(Custom),
    /// A graph, as if its equations stood in place of the call.
    Closed(Graph),
    /// A graph of whose values reverse mode stores some, and computes the others again.
    Checkpoint(Checkpoint),
    /// A graph with a forward-mode derivative of its own.
    CustomJvp(CustomJvp),
    /// A value with a name.
    Named(Named),
    /// Shows a value at each call. Its result, an i32 scalar that nothing reads and no step writes, stands for the effect.
    Print(Print),
    /// A graph that every device of a mesh runs on its blocks of arrays.
    ShardMap(ShardMap),
    /// A function of the host: `jax.pure_callback`.
    Callback(Callback),
}

/// `jax.shard_map`: a graph on the blocks that the devices of a mesh have of the operands. Collectives in the graph are those
/// of the mesh. Along axes that are not manual the body is a graph like any other: the partitioner divides it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ShardMap {
    /// The mesh.
    pub mesh: Arc<Mesh>,
    /// By axis of the mesh, true if it is manual. The shardings name manual axes alone.
    pub manual: Vec<bool>,
    /// By operand, how it is divided: evenly.
    pub takes: Vec<Sharding>,
    /// By result, how it is divided.
    pub gives: Vec<Sharding>,
    /// The graph, which takes and gives blocks.
    pub body: Graph,
}

impl ShardMap {
    /// Returns true if some axes are left to the partitioner.
    pub fn is_partial(&self) -> bool {
        self.manual.contains(&false)
    }

    /// The type of the whole array of which a device has this block.
    pub(crate) fn whole(block: &Type, sharding: &Sharding) -> Type {
        Type::new(block.dtype, block.shape.iter().zip(sharding.parts()).map(|(n, parts)| n * parts).collect::<Vec<_>>())
    }
}

/// `jax.debug.print`: shows its operand.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Print {
    /// The text in front of the elements.
    pub label: String,
    /// Extents of the axes of batches, which the operand has in front: each of their elements is shown on its own.
    pub batches: Vec<usize>,
}

/// Returns true for an operation that does more than computing its results, also if it does so in a graph that it calls.
pub fn has_effect(op: &Op) -> bool {
    let Op::Call(call) = op else { return false };
    matches!(**call, Call::Print(_))
        || call.graphs().iter().any(|graph| graph.equations.iter().any(|e| has_effect(&e.op)))
}

/// The scan that an operation is.
pub(crate) fn scan_of(op: &Op) -> Option<&Scan> {
    match op {
        Op::Call(call) => match &**call {
            Call::Scan(scan) => Some(scan),
            _ => None,
        },
        _ => None,
    }
}

/// `jax.checkpoint`: a graph of whose values reverse mode stores those that a policy names, and computes the others again.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Checkpoint {
    /// The graph.
    pub graph: Graph,
    /// The values that are stored.
    pub policy: Policy,
}

/// A rule for the values inside of a [`Checkpoint`] that are stored for the derivative; `jax.checkpoint_policies`.
/// Operands of the checkpoint are stored in any case.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// `nothing_saveable`.
    #[default]
    Nothing,
    /// `everything_saveable`: what the derivative needs.
    Everything,
    /// `dots_saveable`: results of contractions.
    Dots,
    /// `dots_with_no_batch_dims_saveable`: results of contractions without an axis that both operands and the result share.
    DotsWithoutBatch,
    /// `save_only_these_names`: values with these names.
    OnlyNames(Vec<String>),
    /// `save_any_names_but_these`: values with other names.
    NamesExcept(Vec<String>),
    /// `save_anything_except_these_names`: all values but those with these names.
    AnythingExcept(Vec<String>),
}

impl Policy {
    /// Returns true if the results of an operation are stored.
    pub fn saves(&self, op: &Op) -> bool {
        let name = match op {
            Op::Call(call) => match &**call {
                Call::Named(named) => Some(&named.name),
                _ => None,
            },
            _ => None,
        };
        let dot = match op {
            Op::Structural(StructuralOp::Dot(dot)) => Some(dot),
            _ => None,
        };
        match self {
            Policy::Nothing => false,
            Policy::Everything => true,
            Policy::Dots => dot.is_some(),
            Policy::DotsWithoutBatch => dot.is_some_and(|dot| dot.batch.is_empty()),
            Policy::OnlyNames(names) => name.is_some_and(|name| names.contains(name)),
            Policy::NamesExcept(names) => name.is_some_and(|name| !names.contains(name)),
            Policy::AnythingExcept(names) => name.is_none_or(|name| !names.contains(name)),
        }
    }
}

/// `checkpoint_name`: the identity of one value, which policies of checkpoints know by its name.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Named {
    /// The name.
    pub name: String,
    /// The identity.
    pub graph: Graph,
}

impl Named {
    /// The identity of values of a type.
    pub fn new(name: impl Into<String>, ty: Type) -> Named {
        let mut graph = Graph::default();
        graph.results = vec![graph.param(ty)];
        Named { name: name.into(), graph }
    }
}

/// A graph whose tangents are stated: `jax.custom_jvp`.
///
/// ```text
/// operands     captured.., arguments..
/// primal       (captured.., arguments..) -> (results..)
/// rule         (captured.., arguments.., a tangent of each argument of floats..)
///              -> (results.., a tangent of each result of floats..)
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CustomJvp {
    /// Operands that are no arguments.
    pub captured: usize,
    /// The function itself.
    pub primal: Graph,
    /// The same with tangents, in which the rule is linear.
    pub rule: Graph,
}

/// `lax.scan`: calls `body` once for each step. Values from step to step are *carried*; of arrays it reads and makes
/// an element of the first axis in each step.
///
/// ```text
/// operands     captured.., carried.., arrays..
/// body         (captured.., carried.., an element of each array..) -> (carried.., an element of each stack..)
/// results      carried.., stacks..
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scan {
    /// One step.
    pub body: Graph,
    /// Operands that are the same in each step.
    pub captured: usize,
    /// Operands that a step replaces.
    pub carried: usize,
    /// Steps.
    pub length: usize,
    /// True if the last element comes first.
    pub reverse: bool,
}

/// `lax.while_loop`: calls `body` as long as `condition` is true.
///
/// ```text
/// operands     captured by the condition.., captured by the body.., carried..
/// condition    (captured by it.., carried..) -> bool[]
/// body         (captured by it.., carried..) -> (carried..)
/// results      carried..
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct While {
    /// True for one more step.
    pub condition: Graph,
    /// One step.
    pub body: Graph,
    /// Operands of the condition that are the same in each step.
    pub condition_captured: usize,
    /// Operands of the body that are the same in each step.
    pub body_captured: usize,
}

/// `lax.switch`: calls the branch whose number the first operand is, an i32 scalar; the first or the last one for a
/// number out of range. All branches have the other operands as parameters, and results of equal types.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Case {
    /// The branches, at least one.
    pub branches: Vec<Graph>,
}

/// A tile kernel with its sizes. The operands are its inputs and prefetches in the order of its own operands, the results
/// its outputs.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelCall {
    /// The kernel, in its traced form.
    pub kernel: Arc<Kernel>,
    /// Extents of its dimensions.
    pub sizes: Vec<i64>,
    /// Values of its parameters, in order.
    pub params: Vec<Literal>,
    /// The types of its inputs and prefetches.
    pub takes: Vec<Type>,
    /// The types of its outputs.
    pub gives: Vec<Type>,
}

/// Kernels hold no floats but as bits.
impl Eq for KernelCall {}

impl Hash for KernelCall {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Kernels that differ in more are rare.
        (&self.kernel.name, self.kernel.insts.len(), &self.sizes, &self.params, &self.takes).hash(state);
    }
}

/// A graph whose derivative is stated: `jax.custom_vjp`.
///
/// ```text
/// operands     captured.., arguments..
/// primal       (captured.., arguments..) -> (results..)
/// forward      (captured.., arguments..) -> (results.., residuals..)
/// backward     (captured.., residuals.., a cotangent of each result..) -> (a cotangent of each argument..)
/// ```
///
/// Cotangents of results and arguments that are no floats are zeros, which nothing reads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Custom {
    /// Operands that are no arguments.
    pub captured: usize,
    /// Number of those, the last ones, that follow from the arguments: the stated derivative by these includes the way through
    /// them.
    pub known: usize,
    /// True if forward mode differentiates the function itself; otherwise there is none, because the stated derivative
    /// need not be the function's own.
    pub has_tangents: bool,
    /// The function itself.
    pub primal: Graph,
    /// The same, and what the derivative needs.
    pub forward: Graph,
    /// The derivative.
    pub backward: Graph,
}

impl Call {
    /// The number of steps, for a scan.
    pub(crate) fn steps(&self) -> Option<usize> {
        if let Call::Scan(scan) = self { Some(scan.length) } else { None }
    }

    /// The name in texts.
    pub fn name(&self) -> &'static str {
        match self {
            Call::Scan(_) => "scan",
            Call::While(_) => "while",
            Call::Case(_) => "case",
            Call::Kernel(_) => "kernel",
            Call::Custom(_) => "custom_vjp",
            Call::Closed(_) => "call",
            Call::Checkpoint(_) => "checkpoint",
            Call::CustomJvp(_) => "custom_jvp",
            Call::Named(_) => "name",
            Call::Print(_) => "debug_print",
            Call::ShardMap(_) => "shard_map",
            Call::Callback(_) => "pure_callback",
        }
    }

    /// The graphs that it calls.
    pub fn graphs(&self) -> Vec<&Graph> {
        match self {
            Call::Scan(scan) => vec![&scan.body],
            Call::While(call) => vec![&call.condition, &call.body],
            Call::Case(case) => case.branches.iter().collect(),
            Call::Kernel(_) | Call::Print(_) | Call::Callback(_) => vec![],
            Call::Custom(custom) => vec![&custom.primal, &custom.forward, &custom.backward],
            Call::Closed(graph) => vec![graph],
            Call::Checkpoint(checkpoint) => vec![&checkpoint.graph],
            Call::CustomJvp(custom) => vec![&custom.primal, &custom.rule],
            Call::Named(named) => vec![&named.graph],
            Call::ShardMap(map) => vec![&map.body],
        }
    }

    /// The same call of other graphs, which take and give the same types.
    #[must_use]
    pub fn map(&self, f: impl Fn(&Graph) -> Graph) -> Call {
        match self {
            Call::Scan(scan) => Call::Scan(Scan { body: f(&scan.body), ..scan.clone() }),
            Call::While(call) => {
                Call::While(While { condition: f(&call.condition), body: f(&call.body), ..call.clone() })
            }
            Call::Case(case) => Call::Case(Case { branches: case.branches.iter().map(f).collect() }),
            Call::Kernel(call) => Call::Kernel(call.clone()),
            Call::Custom(custom) => Call::Custom(Custom {
                primal: f(&custom.primal),
                forward: f(&custom.forward),
                backward: f(&custom.backward),
                ..custom.clone()
            }),
            Call::Closed(graph) => Call::Closed(f(graph)),
            Call::Checkpoint(Checkpoint { graph, policy }) => {
                Call::Checkpoint(Checkpoint { graph: f(graph), policy: policy.clone() })
            }
            Call::CustomJvp(custom) => {
                Call::CustomJvp(CustomJvp { primal: f(&custom.primal), rule: f(&custom.rule), ..custom.clone() })
            }
            Call::Named(named) => Call::Named(named.clone()),
            Call::Print(print) => Call::Print(print.clone()),
            Call::Callback(callback) => Call::Callback(callback.clone()),
            Call::ShardMap(map) => Call::ShardMap(ShardMap { body: f(&map.body), ..map.clone() }),
        }
    }

    /// As [`map`](Call::map), where a graph may have none.
    ///
    /// # Errors
    /// The first error of `f`.
    pub(crate) fn try_map<E>(&self, f: impl Fn(&Graph) -> Result<Graph, E>) -> Result<Call, E> {
        let mut made: Vec<Graph> = self.graphs().into_iter().map(f).collect::<Result<_, E>>()?;
        made.reverse();
        let made = std::cell::RefCell::new(made);
        // A value with a name is the identity, and has no graph to change.
        Ok(self.map(|_| made.borrow_mut().pop().expect("one for each graph")))
    }

    /// The types of the results.
    pub(crate) fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        let wrong = |message: String| Diag::new(self.name(), At::Op, message, "see the operation's definition");
        let takes = |graph: &Graph, given: &[Type]| {
            let takes = graph.takes();
            if takes == given { Ok(()) } else { Err(wrong(format!("a body of {takes:?} is called with {given:?}"))) }
        };
        let owned = |args: &[&Type]| args.iter().map(|&ty| ty.clone()).collect::<Vec<Type>>();
        match self {
            Call::Scan(scan) => {
                let fixed = scan.captured + scan.carried;
                if args.len() < fixed {
                    return Err(wrong(format!("{} operands for {fixed} captured and carried values", args.len())));
                }
                let element = |x: &&Type| match x.shape.split_first() {
                    Some((n, rest)) if *n == scan.length => Ok(Type::new(x.dtype, rest)),
                    _ => Err(wrong(format!("an array of {x} has no first axis of {}", scan.length))),
                };
                let elements = args[fixed..].iter().map(element).collect::<Result<Vec<_>, _>>()?;
                takes(&scan.body, &[owned(&args[..fixed]), elements].concat())?;
                let gives = scan.body.gives();
                let carried = owned(&args[scan.captured..fixed]);
                if gives.get(..scan.carried) != Some(&carried[..]) {
                    return Err(wrong(format!("carries {carried:?}, the body gives {gives:?}")));
                }
                let stack = |ty: &Type| Type::new(ty.dtype, [&[scan.length], &ty.shape[..]].concat());
                Ok(carried.into_iter().chain(gives[scan.carried..].iter().map(stack)).collect())
            }
            Call::While(call) => {
                let fixed = call.condition_captured + call.body_captured;
                if args.len() < fixed {
                    return Err(wrong(format!("{} operands for {fixed} captured values", args.len())));
                }
                let carried = owned(&args[fixed..]);
                takes(&call.condition, &[owned(&args[..call.condition_captured]), carried.clone()].concat())?;
                takes(&call.body, &[owned(&args[call.condition_captured..fixed]), carried.clone()].concat())?;
                if call.condition.gives() != [Type::scalar(DType::Bool)] {
                    return Err(wrong(format!("the condition gives {:?}, not bool[]", call.condition.gives())));
                }
                if call.body.gives() != carried {
                    return Err(wrong(format!("carries {carried:?}, the body gives {:?}", call.body.gives())));
                }
                Ok(carried)
            }
            Call::Case(case) => {
                let (Some((index, rest)), Some(first)) = (args.split_first(), case.branches.first()) else {
                    return Err(wrong("it has no index or no branch".into()));
                };
                if **index != Type::scalar(DType::I32) {
                    return Err(wrong(format!("the number of the branch is {index}, not i32[]")));
                }
                let rest = owned(rest);
                case.branches.iter().try_for_each(|branch| takes(branch, &rest))?;
                match case.branches.iter().find(|branch| branch.gives() != first.gives()) {
                    Some(other) => {
                        Err(wrong(format!("one branch gives {:?}, another {:?}", first.gives(), other.gives())))
                    }
                    None => Ok(first.gives()),
                }
            }
            Call::Kernel(call) => {
                if owned(args) != call.takes {
                    return Err(wrong(format!("`{}` takes {:?}, found {args:?}", call.kernel.name, call.takes)));
                }
                Ok(call.gives.clone())
            }
            Call::Custom(custom) => {
                takes(&custom.primal, &owned(args))?;
                takes(&custom.forward, &owned(args))?;
                let (gives, forward) = (custom.primal.gives(), custom.forward.gives());
                if forward.get(..gives.len()) != Some(&gives[..]) {
                    return Err(wrong(format!("gives {gives:?}, and with residuals {forward:?}")));
                }
                let (captured, arguments) = args.split_at(custom.captured);
                takes(&custom.backward, &[owned(captured), forward[gives.len()..].to_vec(), gives.clone()].concat())?;
                if custom.backward.gives() != owned(arguments) {
                    let found = custom.backward.gives();
                    return Err(wrong(format!("arguments {arguments:?} have cotangents {found:?}")));
                }
                Ok(gives)
            }
            Call::Closed(graph) | Call::Checkpoint(Checkpoint { graph, .. }) | Call::Named(Named { graph, .. }) => {
                takes(graph, &owned(args))?;
                Ok(graph.gives())
            }
            Call::Callback(callback) => {
                if owned(args) != callback.takes {
                    return Err(wrong(format!("takes {:?}, found {args:?}", callback.takes)));
                }
                Ok(callback.gives.clone())
            }
            Call::Print(print) => match args {
                [x] if x.shape.starts_with(&print.batches) => Ok(vec![Type::scalar(DType::I32)]),
                _ => Err(wrong(format!("operands {args:?} in batches of {:?}", print.batches))),
            },
            Call::ShardMap(map) => {
                if (map.takes.len(), map.gives.len()) != (args.len(), map.body.results.len()) {
                    return Err(wrong(format!("{} operands for {} shardings", args.len(), map.takes.len())));
                }
                let blocks = map.body.takes();
                let fits = |((block, sharding), x): ((&Type, &Sharding), &&Type)| {
                    sharding.dims.len() == block.shape.len() && ShardMap::whole(block, sharding) == **x
                };
                if blocks.len() != args.len() || !blocks.iter().zip(&map.takes).zip(args).all(fits) {
                    return Err(wrong(format!("a body of {blocks:?} is called with {args:?}")));
                }
                let gives = map.body.gives().into_iter().zip(&map.gives);
                Ok(gives.map(|(block, sharding)| ShardMap::whole(&block, sharding)).collect())
            }
            Call::CustomJvp(custom) => {
                takes(&custom.primal, &owned(args))?;
                let floats = |types: &[Type]| types.iter().filter(|ty| ty.dtype.is_float()).cloned().collect();
                let arguments: Vec<Type> = floats(&owned(&args[custom.captured..]));
                takes(&custom.rule, &[owned(args), arguments].concat())?;
                let gives = custom.primal.gives();
                let (tangents, found): (Vec<Type>, _) = (floats(&gives), custom.rule.gives());
                if found != [&gives[..], &tangents].concat() {
                    return Err(wrong(format!("gives {gives:?}, and with tangents {found:?}")));
                }
                Ok(gives)
            }
        }
    }
}
