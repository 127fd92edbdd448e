//! Texts of programs and their shardings, and checks of the rules that these follow.
use super::propagate::{Propagation, sharding_rules_by_node};
use super::propagation_program::{NodeKind, RegionGraph, Val, ValueDefinition};
use crate::graph::Graph;
use crate::mesh::Mesh;
use crate::stage_watch::StageOutput;
use std::collections::HashSet;
use std::fmt;

/// A program with the shardings that are declared or found for its values, to be shown.
pub(super) struct PropagationStageOutput<'a>(pub &'a Propagation, pub &'a Mesh);

/// Text with a line for each value, with the factors of its operation: `%2: f32[8] = reduce %1 ([i, j])->([i]) {i=8,
/// j=16}`.
impl fmt::Display for RegionGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = sharding_rules_by_node(self);
        let factors = |v| self.defining_node(v).and_then(|node| Some(rules[node].as_ref()?.text(0)));
        write_value_lines(f, self, |v| factors(v).unwrap_or_default())
    }
}

/// Text with a line for each value, with its sharding: `%3: f32[8,16] = dot %1, %2 [{"x"}, {}]`.
impl fmt::Display for PropagationStageOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PropagationStageOutput(found, mesh) = self;
        writeln!(f, "mesh {mesh}")?;
        write_value_lines(f, found.program(), |v| found.sharding(v).map_or("unknown".into(), |s| s.text(mesh)))
    }
}

/// Writes a line for each value of a program; `line_end` returns the end of the line.
fn write_value_lines(
    f: &mut fmt::Formatter<'_>,
    program: &RegionGraph,
    line_end: impl Fn(Val) -> String,
) -> fmt::Result {
    for (i, (ty, definition)) in program.types.iter().zip(&program.definitions).enumerate() {
        let name = match *definition {
            ValueDefinition::Param(i) => format!("parameter {i}"),
            ValueDefinition::Argument(node, region, i) => format!("argument {i} of region {region} of node {node}"),
            ValueDefinition::Result(node, _) => {
                let name = match &program.nodes[node].kind {
                    NodeKind::Op(op) => op.to_string(),
                    NodeKind::Constant => "zeros".into(),
                    NodeKind::Loop(_) => "while".into(),
                    NodeKind::Branches(_) => "case".into(),
                    NodeKind::Constraint(_) => "sharding_constraint".into(),
                    NodeKind::ShardingGroup(_) => "sharding_group".into(),
                    NodeKind::PropagationBarrier(_) => "propagation_barrier".into(),
                    NodeKind::OptimizationBarrier => "optimization_barrier".into(),
                    NodeKind::DataFlowEdge => "data_flow_edge".into(),
                };
                let operands = program.nodes[node].operands.iter().map(|v| format!("%{}", v.0));
                format!("{name} {}", operands.collect::<Vec<_>>().join(", ")).trim_end().into()
            }
        };
        let line = format!("%{i}: {ty} = {name} {}", line_end(Val(i as u32)));
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

impl StageOutput for RegionGraph {
    /// Checks that nodes read values that are made before them, and that regions and the program return values that are
    /// made.
    fn verify(&self) -> Result<(), String> {
        let mut made: HashSet<Val> = self.body.params.iter().copied().collect();
        let order = self.preorder();
        for &id in &order {
            let node = &self.nodes[id];
            if let Some(v) = node.operands.iter().find(|v| !made.contains(v)) {
                return Err(format!("node {id} reads %{} before it is made", v.0));
            }
            made.extend(node.regions.iter().flat_map(|region| &region.params).chain(&node.results));
        }
        let regions = order.iter().flat_map(|&id| &self.nodes[id].regions).chain([&self.body]);
        let missing = regions.flat_map(|region| &region.results).find(|v| !made.contains(v));
        missing.map_or(Ok(()), |v| Err(format!("%{} is returned, but not made", v.0)))
    }
    fn as_graph(&self) -> Option<&Graph> {
        None
    }
}

impl StageOutput for PropagationStageOutput<'_> {
    /// Checks that each value has a sharding that its type and the mesh allow, apart from priorities.
    fn verify(&self) -> Result<(), String> {
        let PropagationStageOutput(found, mesh) = self;
        found.program().verify()?;
        found.program().types.iter().enumerate().try_for_each(|(i, ty)| {
            let Some(mut sharding) = found.sharding(Val(i as u32)).cloned() else { return Ok(()) };
            // A propagated or declared priority may be that of a dimension without axes.
            sharding.dims.iter_mut().for_each(|dim| dim.priority = None);
            sharding.verify(mesh, ty).map_err(|diag| format!("%{i}: {diag}"))
        })
    }
    fn as_graph(&self) -> Option<&Graph> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Sharding;
    use pallas_ir::{DType, ScalarOp, Type};

    #[test]
    fn nodes_and_shardings_are_checked() {
        let mut graph = Graph::default();
        let x = graph.param(Type::new(DType::F32, [8]));
        let y = graph.push(ScalarOp::Exp, &[x]).expect("it fits");
        graph.results = vec![graph.push(ScalarOp::Sin, &[y]).expect("it fits")];
        let mut program = RegionGraph::from_graph(&graph);
        assert_eq!(program.verify(), Ok(()));
        assert!(program.to_string().contains("%1: f32[8] = exp %0 ([i])->([i]) {i=8}\n"), "{program}");
        let mesh = Mesh::new(&[("x", 2)]).expect("a mesh");
        let stated = |rank| [Some(Sharding { replicated: vec![mesh.axis(0)], ..Sharding::open(rank) })];
        let verify =
            |rank| PropagationStageOutput(&Propagation::new(program.clone(), &stated(rank), &[None]), &mesh).verify();
        assert_eq!(verify(1), Ok(()));
        assert!(verify(2).is_err_and(|message| message.contains("%0: ")));
        program.body.nodes.swap(0, 1);
        assert_eq!(program.verify(), Err("node 1 reads %1 before it is made".into()));
    }
}
