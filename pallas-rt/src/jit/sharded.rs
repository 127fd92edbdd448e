//! Functions on a mesh: the declared shardings of their values, and the results of partitioning.
//!
//! - `shard_alike`: values that have one sharding, and barriers;
//! - `views`: several meshes of the same devices;
//! - `mark_sharding`: declarations for trees, by patterns of paths;
//! - `provenance`: why a value is sharded, and why not;
//! - `declared_results`: results that count as declared like the arguments they replace;
//! - `budget`: collectives counted by kind and axis.
mod budget;
mod declared_results;
mod mark_sharding;
mod provenance;
mod shard_alike;
mod views;

pub use budget::{CollectiveBudget, CollectiveCount};
pub(super) use declared_results::{keep_argument_declarations, matches_declaration};
pub use mark_sharding::{clear_sharding, in_out_shardings, mark_sharding};
pub use provenance::{Obstacle, Provenance, ProvenanceStep, WhyNot};
pub use shard_alike::{propagation_barrier, shard_alike, shard_as};

use super::compile::{Compilation, ShardedGraph};
use super::function::{CallArguments, Function};
use super::lower::Lowered;
use super::trace::{apply, record_mesh_use, type_of};
use crate::array::Array;
use crate::sharding::{Mesh, NamedSharding, Sharding, ShardingDeclaration, shard_with_declaration};
use crate::tree::Tree;
use pallas_device::error::{Error, Result};
use pallas_graph::call::RunCount;
use pallas_graph::mesh::{CollectiveForm, MeshSharding, ShardingConstraint};
use pallas_graph::shard::propagation_program::{NodeKind, RegionGraph as View, Val};
use pallas_graph::shard::{PartitionedGraph, Propagation};
use pallas_graph::{Graph, Op};
use pallas_ir::{At, Diag, Loc, Type};
use std::collections::HashSet;
use std::sync::Arc;

/// Constrains the sharding of an array: of a traced one, a graph records the constraint; any other array is sharded at
/// once. `jax.lax.with_sharding_constraint`.
///
/// # Errors
/// The result holds the error: an axis that the mesh does not have, an axis twice, more entries than dimensions, a
/// dimension that its axes do not divide.
///
/// ```
/// use pallas_rt::sharding::{Mesh, NamedSharding, P};
/// use pallas_rt::{Array, jit, with_sharding_constraint};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
/// let rows = NamedSharding::new(&mesh, P("data"));
/// let f = jit(move |x: &Array| with_sharding_constraint(x, &rows) * 2.0);
/// let y = f(&Array::from_slice(&[1.0f32, 2.0], &[2])?)?;
/// assert_eq!(y.addressable_shards()?[1].to_vec::<f32>()?, [4.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn with_sharding_constraint(x: &Array, sharding: &NamedSharding) -> Array {
    let at = Loc::caller();
    let made = match x.is_traced() {
        true => push_sharding_constraint(x, sharding, at),
        false => shard_with_declaration(x, sharding, ShardingDeclaration { at, pattern: None }),
    };
    made.unwrap_or_else(|error| Array::new_poisoned(error, x.client().clone(), x.dtype(), x.shape()))
}

/// Adds a sharding constraint, which line `at` states, to a traced array.
fn push_sharding_constraint(x: &Array, sharding: &NamedSharding, at: Loc) -> Result<Array> {
    let placed = MeshSharding { mesh: sharding.mesh().clone(), sharding: sharding.sharding_of_type(&type_of(x), at)? };
    record_mesh_use(&placed.mesh);
    Ok(apply(&[x], at, |graph, vars| graph.push(ShardingConstraint(placed), vars)))
}

/// Declared shardings of the parameters of a graph.
#[derive(Clone, Debug)]
pub(super) struct DeclaredShardings {
    /// The mesh that parameters and annotations name; `None` if nothing is sharded.
    pub mesh: Option<Arc<Mesh>>,
    /// By parameter, its sharding; `None` if none is declared.
    pub shardings: Vec<Option<Sharding>>,
    /// By parameter, the line and pattern that declare its sharding.
    pub statements: Vec<Option<ShardingDeclaration>>,
}

/// Mesh of the operands of an operation that runs at once, and by operand its sharding; `None` for one that is not
/// sharded.
pub(super) type OperandShardings = (Arc<Mesh>, Vec<Option<Sharding>>);

/// Returns the shardings of the operands of an operation that runs outside of traced functions, on the mesh of the
/// first operand that has one. `None` if none has, or if the sharding of one cannot be expressed on that mesh.
pub(super) fn operand_shardings(args: &[&Array]) -> Option<OperandShardings> {
    let mesh = &args.iter().find_map(|x| x.placement())?.mesh;
    let seen = |x: &&Array| x.placement().map(|placement| placement.sharding_on_mesh(mesh).ok_or(())).transpose();
    let shardings = args.iter().map(seen).collect::<Result<Vec<_>, ()>>().ok()?;
    Some((mesh.clone(), shardings))
}

impl DeclaredShardings {
    /// Declarations of a graph of which nothing is sharded.
    pub(super) fn none() -> DeclaredShardings {
        DeclaredShardings { mesh: None, shardings: vec![], statements: vec![] }
    }

    /// Declares operands' present shardings, also those that no user declared: the result of an operation that runs at
    /// once is sharded as they are.
    pub(super) fn from_operands((mesh, shardings): &OperandShardings) -> DeclaredShardings {
        let statements = vec![None; shardings.len()];
        DeclaredShardings { mesh: Some(mesh.clone()), shardings: shardings.clone(), statements }
    }

    /// Returns the declarations of a graph whose constraints alone name its mesh: no parameter has a declared sharding.
    ///
    /// # Errors
    /// As [`collect_declarations`](DeclaredShardings::collect_declarations).
    pub(super) fn from_constraints(graph: &Graph) -> Result<DeclaredShardings> {
        let (_, declared) = DeclaredShardings::collect_declarations(graph, std::iter::empty(), &|_| {
            unreachable!("there are no arrays")
        })?;
        Ok(DeclaredShardings { shardings: vec![None; graph.params.len()], ..declared })
    }
}

/// The declared sharding of an argument in normal form; `None` without one, as for a result that a function placed.
pub(super) fn declared_sharding(x: &Array) -> Option<MeshSharding> {
    let placement = x.placement().filter(|placement| placement.declared.is_some())?;
    Some(MeshSharding { mesh: placement.mesh.clone(), sharding: placement.sharding.normal(&placement.mesh) })
}

/// The sharding of an array, declared or not; `None` if the array is not on a mesh.
pub(crate) fn mesh_sharding(x: &Array) -> Option<MeshSharding> {
    let placement = x.placement()?;
    Some(MeshSharding { mesh: placement.mesh.clone(), sharding: placement.sharding.clone() })
}

/// The shardings of a function's values on a mesh, and the program of each device; see [`partitioned`].
pub struct Shardings {
    mesh: Arc<Mesh>,
    declared: DeclaredShardings,
    sharded: Arc<ShardedGraph>,
    /// Paths of the leaves of the arguments. Among the parameters, captured arrays follow these leaves.
    paths: Vec<String>,
    values: Vec<ListedValue>,
}

/// A value of a program that users see in a list: an argument or the result of an operation, with its name, the path if
/// it is an argument, and its line.
struct ListedValue {
    value: Val,
    name: String,
    path: Option<String>,
    at: Loc,
}

/// An argument of a partitioned function or the result of one of its operations, with type, sharding and line.
#[derive(Clone, Debug)]
pub struct ShardedValue {
    /// The operation that makes it, or `argument`.
    pub name: String,
    /// The path of an argument: `0.layers[1].weight`, or `captured 0` for an array that the function captures.
    pub path: Option<String>,
    /// The type of the whole array.
    pub ty: Type,
    /// Its sharding.
    pub sharding: Sharding,
    /// Line of the user's code that makes it.
    pub at: Loc,
}

/// A collective in the program of each device of a partitioned function, with its mesh axes, bytes, number of runs and
/// cause.
#[derive(Clone, Debug)]
pub struct CollectiveUse {
    /// Its name: `all_reduce`, `all_gather` and so on.
    pub name: &'static str,
    /// Names of the mesh axes along which devices communicate.
    pub axes: Vec<String>,
    /// Bytes that each device sends each time it runs.
    pub bytes: usize,
    /// Number of runs per call: one in a scan runs in each step. `None` in a `while`.
    pub times: Option<usize>,
    /// Reason for the collective: `the function says so` in a [`shard_map`](super::shard_map), `parts of a sum`, `rows
    /// of neighbours` that an operation moves over the edge of a block, or `another division`.
    pub cause: &'static str,
    /// The user's line of the operation that needs it.
    pub at: Loc,
}

/// Traces a function and partitions it for the mesh that its arguments and annotations name, without running it.
///
/// # Errors
/// The call returns the function's own error, the first error of an operation that its result depends on; a function
/// without a mesh.
pub fn partitioned<Args: Tree + 'static, F: Function<Args>>(f: F) -> F::Boxed<Result<Shardings>> {
    F::boxed(move |given: CallArguments<'_, Args>| {
        let lowered: Lowered<Args, F> = Lowered::from_function(&f, &given, Loc::NONE)?;
        Shardings::from_compilation(&lowered.compilation, &lowered.arguments.paths)?.ok_or_else(|| {
            let help = "`device_put` an argument, or use `with_sharding_constraint`";
            let diag = Diag::new("mesh", At::Op, "a function of which nothing is sharded".into(), help);
            Error::operation(Loc::NONE, diag)
        })
    })
}

impl Shardings {
    /// Partitions the graph of a compilation, whose arguments' leaves have these paths; `None` if nothing names a mesh.
    ///
    /// # Errors
    /// A kernel that cannot be sharded as declared.
    pub(super) fn from_compilation(compilation: &Compilation, paths: &[String]) -> Result<Option<Shardings>> {
        let declared = compilation.input.declared.clone();
        let (Some(mesh), Some(sharded)) = (declared.mesh.clone(), compilation.sharded_graph()?) else {
            return Ok(None);
        };
        let (paths, values) = (paths.to_vec(), list_values(sharded.propagation.program(), paths));
        Ok(Some(Shardings { mesh, declared, sharded, paths, values }))
    }

    /// Result of propagation: the shardings of all values.
    pub(super) fn propagation(&self) -> &Propagation {
        &self.sharded.propagation
    }

    /// Result of partitioning: the graph of each device, and the shardings of its results.
    pub(super) fn partitioned_graph(&self) -> &PartitionedGraph {
        &self.sharded.partitioned
    }

    /// The mesh for which the function is partitioned.
    pub fn mesh(&self) -> &Arc<Mesh> {
        &self.mesh
    }

    /// The sharding of every array, in the order of the function's text: arguments, then the results of operations.
    pub fn values(&self) -> Vec<ShardedValue> {
        self.values.iter().map(|listed| self.to_sharded_value(listed)).collect()
    }

    fn to_sharded_value(&self, ListedValue { value, name, path, at }: &ListedValue) -> ShardedValue {
        let ty = self.propagation().program().ty(*value).clone();
        let sharding = self.propagation().sharding(*value).cloned().unwrap_or(Sharding::replicated(ty.shape.len()));
        ShardedValue { name: name.clone(), path: path.clone(), ty, sharding, at: *at }
    }

    /// The shardings of the results.
    pub fn results(&self) -> &[Sharding] {
        &self.partitioned_graph().results
    }

    /// The collectives of one call; those of loops and branches are listed once.
    pub fn collectives(&self) -> Vec<CollectiveUse> {
        let mut all = vec![];
        collect_collectives(&pallas_graph::simplify::simplify(&self.partitioned_graph().graph), Some(1), &mut all);
        let mut written = vec![];
        collect_collectives(&self.sharded.flat, Some(1), &mut written);
        let written: HashSet<(&str, Loc)> = written.iter().map(|exchange| (exchange.name, exchange.at)).collect();
        for exchange in all.iter_mut().filter(|exchange| written.contains(&(exchange.name, exchange.at))) {
            exchange.cause = "the function says so";
        }
        all
    }

    /// The graph that every device runs on its blocks.
    pub(super) fn device_graph(&self) -> &Graph {
        &self.partitioned_graph().graph
    }

    /// The function on whole arrays, as a module of StableHLO and Shardy with what was declared: the shardings of
    /// arguments and of constraints, with the priority of each dimension. XLA's own partitioner reads it.
    ///
    /// ```
    /// use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put, dim};
    /// use pallas_rt::{Array, partitioned};
    /// use std::sync::Arc;
    /// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
    /// let x = Array::from_slice(&[1.0f32, 2.0], &[2])?;
    /// let x = device_put(&x, &NamedSharding::new(&mesh, P(dim("data").priority(1))))?;
    /// let text = partitioned(|x: &Array| x.exp())(&x)?.to_shardy_text();
    /// assert!(text.contains("tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"data\"}p1]>}"), "{text}");
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    pub fn to_shardy_text(&self) -> String {
        let results = vec![None; self.sharded.flat.results.len()];
        self.sharded.flat.to_shardy("main", &self.mesh, &self.declared.shardings, &results)
    }

    /// The program that every device runs on its blocks, as a module of StableHLO for XLA, which takes devices for
    /// partitions.
    ///
    /// ```
    /// use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
    /// use pallas_rt::{Array, partitioned};
    /// use std::sync::Arc;
    /// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
    /// let x = device_put(&Array::full(&[4], 1.0f32)?, &NamedSharding::new(&mesh, P("data")))?;
    /// let text = partitioned(|x: &Array| x.sum(..))(&x)?.to_local_stablehlo();
    /// assert!(text.contains("\"stablehlo.all_reduce\""), "{text}");
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    pub fn to_local_stablehlo(&self) -> String {
        self.partitioned_graph().graph.to_stablehlo("main")
    }

    /// The graph that every device runs on its blocks, as text.
    pub fn to_local_text(&self) -> String {
        self.partitioned_graph().graph.to_string()
    }
}

/// Appends the collectives of a graph that runs `times` times per call (`None` if unknown) to `all`.
fn collect_collectives(graph: &Graph, times: Option<usize>, all: &mut Vec<CollectiveUse>) {
    for e in &graph.equations {
        match &e.op {
            Op::Collective(op) if op.communicates() => all.push(CollectiveUse {
                name: op.name(),
                axes: op.axes.iter().map(|axis| op.mesh.name(usize::from(axis.id)).to_string()).collect(),
                bytes: op.bytes_sent_per_device(graph.ty(e.args[0])),
                times,
                cause: match op.first_member_form() {
                    CollectiveForm::Fold(..) => "parts of a sum",
                    // In a reshard every device receives a block; at the edge of an array there is no neighbour to send
                    // one.
                    CollectiveForm::FromMember(_) if op.source_members().contains(&None) => "rows of neighbours",
                    _ => "another division",
                },
                at: e.loc,
            }),
            Op::Call(call) => {
                for (runs, graph) in call.graphs_with_run_counts() {
                    let times = match runs {
                        RunCount::Times(steps) => times.map(|n| n * steps),
                        RunCount::Unknown => None,
                        RunCount::Once | RunCount::Never => times,
                    };
                    collect_collectives(graph, times, all);
                }
            }
            _ => {}
        }
    }
}

/// The values of a program that users see: arguments, and results of operations with at least one dimension.
fn list_values(program: &View, paths: &[String]) -> Vec<ListedValue> {
    let params = program.body.params.iter().enumerate().map(|(i, &value)| {
        let path = paths.get(i).cloned().unwrap_or_else(|| format!("captured {}", i - paths.len()));
        ListedValue { value, name: "argument".into(), path: Some(path), at: Loc::NONE }
    });
    let nodes = program.preorder().into_iter().flat_map(|id| {
        let node = &program.nodes[id];
        let name = operation_name(&node.kind);
        let arrays = node.results.iter().filter(|&&v| name.is_some() && !program.ty(v).shape.is_empty());
        let of = |&value: &Val| ListedValue { value, name: name.clone().unwrap_or_default(), path: None, at: node.loc };
        arrays.map(of).collect::<Vec<_>>()
    });
    params.chain(nodes).collect()
}

/// Name of an operation in the list of values; `None` for nodes that the user did not write.
fn operation_name(kind: &NodeKind) -> Option<String> {
    Some(match kind {
        NodeKind::Op(op) => op.name(),
        NodeKind::Constraint(_) => "sharding_constraint".into(),
        NodeKind::Loop(_) => "while".into(),
        NodeKind::Branches(_) => "case".into(),
        NodeKind::OptimizationBarrier => "optimization_barrier".into(),
        NodeKind::Constant | NodeKind::ShardingGroup(_) | NodeKind::PropagationBarrier(_) | NodeKind::DataFlowEdge => {
            return None;
        }
    })
}
