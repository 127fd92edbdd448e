//! Programs between the stages of the compiler, for those who print, time or verify them.
//!
//! `divide`, `simplify` and `plan` are loops over stages of their own: they hand what each stage made to a [`Watch`].
use crate::fuse::Plan;
use crate::graph::Graph;
use crate::mesh::Mesh;
use crate::shard::Propagation;
use crate::shard::view::{Definition, Kind};
use std::fmt;

/// Sees the program that each stage makes.
pub trait Watch {
    /// A stage made this.
    fn made(&mut self, stage: &'static str, program: Made<'_>);
}

/// Sees nothing.
impl Watch for () {
    fn made(&mut self, _: &'static str, _: Made<'_>) {}
}

/// A program that a stage made. Its `Display` is its text.
#[derive(Clone, Copy)]
pub enum Made<'a> {
    /// A graph.
    Graph(&'a Graph),
    /// The values of a program, with the shardings that were found on a mesh.
    Sharded(&'a Propagation, &'a Mesh),
    /// A plan.
    Plan(&'a Plan),
}

impl Made<'_> {
    /// Checks what can be checked.
    ///
    /// # Errors
    /// The first rule that a graph breaks.
    pub fn verify(&self) -> Result<(), String> {
        match self {
            Made::Graph(graph) => crate::verify(graph),
            Made::Sharded(..) | Made::Plan(_) => Ok(()),
        }
    }
}

impl fmt::Display for Made<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Made::Graph(graph) => graph.fmt(f),
            Made::Plan(plan) => plan.fmt(f),
            Made::Sharded(found, mesh) => shardings(f, found, mesh),
        }
    }
}

/// A line for each value: `%3: f32[8,16] = dot [{"x"}, {}]`.
fn shardings(f: &mut fmt::Formatter<'_>, found: &Propagation, mesh: &Mesh) -> fmt::Result {
    let program = found.program();
    writeln!(f, "mesh {mesh}")?;
    for (i, (ty, definition)) in program.types.iter().zip(&program.definitions).enumerate() {
        let name = match *definition {
            Definition::Param(i) => format!("parameter {i}"),
            Definition::Argument(node, region, i) => format!("argument {i} of region {region} of node {node}"),
            Definition::Result(node, _) => match &program.nodes[node].kind {
                Kind::Op(op) => op.to_string(),
                Kind::Constant => "zeros".into(),
                Kind::Loop(_) => "while".into(),
                Kind::Branches(_) => "case".into(),
                Kind::Constraint(_) => "sharding_constraint".into(),
                Kind::Group(_) => "sharding_group".into(),
                Kind::Barrier(_) => "propagation_barrier".into(),
                Kind::Edge => "data_flow_edge".into(),
            },
        };
        let sharding = found.sharding(crate::shard::view::Val(i as u32)).map_or("unknown".into(), |s| s.text(mesh));
        writeln!(f, "%{i}: {ty} = {name} {sharding}")?;
    }
    Ok(())
}
