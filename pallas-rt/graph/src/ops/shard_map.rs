//! `shard_map`: a graph that every device of a mesh runs on its blocks of arrays, as `jax.shard_map`.
mod blocks;
mod transform;

use super::prelude::*;
use super::samples::{Sample, Sampled};
use crate::mesh::{Mesh, Sharding, names};
use crate::shard::view;
use crate::stablehlo::{Detail, HloRegion};
use pallas_ir::{At, DType};
use std::sync::Arc;

/// A call of a graph that every device of a mesh runs on its blocks of the operands (`jax.shard_map`), with explicit
/// collectives over the mesh. Along axes that are not manual, the partitioner shards the body like any other graph.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ShardMap {
    /// The mesh.
    pub mesh: Arc<Mesh>,
    /// For each axis of the mesh, true if it is manual. The shardings `takes` and `gives` use only manual axes.
    pub manual: Vec<bool>,
    /// For each operand, its sharding, which divides its dimensions evenly.
    pub takes: Vec<Sharding>,
    /// For each result, its sharding.
    pub gives: Vec<Sharding>,
    /// The graph that devices run; it takes and gives blocks.
    pub body: Graph,
}

impl ShardMap {
    /// Returns true if some axes of the mesh are automatic: the partitioner shards the body along them.
    pub fn is_partial(&self) -> bool {
        self.manual.contains(&false)
    }

    /// Returns the type of the whole array, from that of a device's block.
    fn whole(block: &Type, sharding: &Sharding) -> Type {
        Type::new(block.dtype, block.shape.iter().zip(sharding.parts()).map(|(n, parts)| n * parts).collect::<Vec<_>>())
    }

    /// Returns the names of the manual axes, with commas between them.
    fn manual_names(&self) -> String {
        let names = (0..self.mesh.rank()).filter(|&axis| self.manual[axis]).map(|axis| self.mesh.name(axis));
        names.collect::<Vec<_>>().join(", ")
    }

    fn texts(&self, all: &[Sharding]) -> String {
        all.iter().map(|sharding| sharding.text(&self.mesh)).collect::<Vec<_>>().join("; ")
    }
}

impl Called for ShardMap {
    fn graphs(&self) -> Vec<(Runs, &Graph)> {
        vec![(Runs::Once, &self.body)]
    }
    fn with_graphs(&self, mut graphs: Vec<Graph>) -> Call {
        ShardMap { body: graphs.remove(0), ..self.clone() }.into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        if (self.takes.len(), self.gives.len()) != (args.len(), self.body.results.len()) {
            return Err(wrong(self, format!("{} operands for {} shardings", args.len(), self.takes.len())));
        }
        let blocks = self.body.takes();
        let fits = |((block, sharding), x): ((&Type, &Sharding), &&Type)| {
            sharding.dims.len() == block.shape.len() && ShardMap::whole(block, sharding) == **x
        };
        if blocks.len() != args.len() || !blocks.iter().zip(&self.takes).zip(args).all(fits) {
            return Err(wrong(self, format!("a body of {blocks:?} is called with {args:?}")));
        }
        let gives = self.body.gives().into_iter().zip(&self.gives);
        Ok(gives.map(|(block, sharding)| ShardMap::whole(&block, sharding)).collect())
    }
}

impl Stays for ShardMap {
    fn has_effect(&self) -> bool {
        false
    }
    fn without_unread(&self, _: &Equation, _: &[bool]) -> Option<Equation> {
        None
    }
}

impl CallText for ShardMap {
    fn attributes(&self) -> String {
        let manual = if self.is_partial() { format!(" manual({})", self.manual_names()) } else { String::new() };
        let (takes, gives) = (self.texts(&self.takes), self.texts(&self.gives));
        format!(" mesh{}{manual} takes({takes}) gives({gives})", self.mesh)
    }
    fn jaxpr(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![
            format!("axis_names={{{}}}", self.manual_names()),
            format!("in_specs=({})", self.texts(&self.takes)),
            format!("jaxpr={}", text(&self.body)),
            format!("mesh={}", self.mesh),
            format!("out_specs=({})", self.texts(&self.gives)),
        ]
    }
}

impl CallRule for ShardMap {
    fn active(&self, on: &[bool]) -> Vec<bool> {
        active(&self.body, on)
    }
    fn jvp(&self, mut forward: Forward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        let on = forward.on();
        let (body, found) = forward.body(&self.body)?;
        let of = forward.outputs(&found);
        let call = transform::with_tangents(self, &body, &on, &found)?;
        let (args, gives) = (forward.operands(), self.gives.len());
        Ok(forward.replaced(call.into(), args, &[gives], of))
    }
    fn vjp(&self, back: Backward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        transform::vjp(self, back)
    }
    fn batched(&self, batch: Batch<'_>) -> Result<Vec<(Var, bool)>, Refused> {
        let Batch { to, args, has, axis, .. } = batch;
        let (map, flags) = transform::batched(self, has, axis)?;
        Ok(to.fitting_all(map, args).into_iter().zip(flags).collect())
    }
    fn differs(&self, has: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        differing(&self.body, has, axis)
    }
    fn guards_from(&self, _: &[bool]) -> Option<usize> {
        Some(0)
    }
}

impl CallLinear for ShardMap {
    fn linearity(&self, of: &mut Analysis, _: &Equation, args: &[Linearity]) -> Vec<Linearity> {
        of.graph(&self.body, args)
    }
}

impl CallStates for ShardMap {
    /// Types the body along the axes of the outer `shard_map`; along its own manual axes it is typed already.
    fn typed(&self, typing: &Typing, e: &Equation, takes: Vec<States>) -> Result<Made, Refused> {
        if self.mesh != *typing.mesh() {
            let message = "a `shard_map` inside of one on another mesh".to_string();
            let help = "a body is manual along axes of one mesh";
            return Err(Refused { at: e.loc, diag: Diag::new("shard_map", At::Op, message, help) });
        }
        let (body, gives) = typing.typed(&self.body, &takes)?;
        Ok(Made { call: ShardMap { body, ..self.clone() }.into(), takes, gives })
    }
}

impl CallRegions for ShardMap {
    fn rule(&self) -> Option<Rule> {
        None
    }
    fn view(&self, build: &mut Build<'_>, args: &[Val], gives: &[Type], loc: Loc) -> Vec<Val> {
        let constrained = |b: &mut Build<'_>, x: Val, sharding: &Sharding| {
            let mut sharding = sharding.normal(&self.mesh);
            // Propagation may shard the blocks further along automatic axes.
            sharding.dims.iter_mut().for_each(|dim| dim.open |= self.is_partial());
            let ty = b.program.ty(x).clone();
            let node = b.push(view::Kind::Constraint(sharding), vec![x], vec![ty], loc);
            b.program.nodes[node].results[0]
        };
        let args: Vec<Val> = args.iter().zip(&self.takes).map(|(&x, s)| constrained(build, x, s)).collect();
        let results = build.call_node(self.clone(), &args, gives, loc);
        let gives = build.known_results().unwrap_or(&self.gives).to_vec();
        results.iter().zip(&gives).map(|(&x, s)| constrained(build, x, s)).collect()
    }
    fn localized(&self, to: &mut Partition<'_>, id: NodeId) {
        blocks::localized(self, to, &to.program.nodes[id]);
    }
    fn united(&self, _: &mut Graph, _: &Devices<'_>) -> Vec<Vec<Var>> {
        unreachable!("devices run graphs without a `shard_map`")
    }
}

impl CallStep for ShardMap {
    fn lower(&self, _: &Lowering<'_>) -> Lowered {
        unreachable!("partitioning expands a `shard_map`")
    }
}

impl CallSized for ShardMap {
    fn agree(&self, _: &Call, _: bool) -> Result<(), String> {
        Err("`shard_map` differs".into())
    }
    fn numbers(&self) -> Vec<usize> {
        vec![]
    }
    fn masked(&self, scope: &mut Scope<'_>, _: Vec<Part>, _: &[Option<usize>], args: &[Var]) -> Vec<Var> {
        scope.to.fitting_all(self.clone(), args)
    }
}

impl Saved for ShardMap {
    fn print(&self, _: &mut file::Printer) -> String {
        unreachable!("a function with a `shard_map` is not saved")
    }
    fn parse(_: &mut file::Parser<'_>, _: &mut file::Words<'_>) -> Result<ShardMap, String> {
        Err("a `shard_map` is not in a file".into())
    }
}

impl CallHlo for ShardMap {
    /// Writes a `sdy.manual_computation`; in a text without shardings, which has no mesh, a custom call.
    fn stablehlo(&self, p: &mut Printer, args: &[Value], gives: &[Type]) -> Vec<Value> {
        let all: Vec<&Value> = args.iter().collect();
        if !p.w.with_shardings {
            let detail = Detail::Kernel { name: self.name().into(), config: self.body.to_string(), rule: None };
            return p.w.operation("custom_call", &all, vec![], detail, gives);
        }
        let params = p.w.params(&self.body.takes());
        let outer = p.w.turn(vec![]);
        let made = p.graph(&self.body, &params);
        p.w.end("sdy.return", &made);
        let body = HloRegion { params, lines: p.w.turn(outer) };
        let texts = |all: &[Sharding]| all.iter().map(|sharding| sharding.text(&self.mesh)).collect();
        let manual: Vec<_> = self.mesh.axes().into_iter().zip(&self.manual).filter(|(_, is)| **is).collect();
        let axes = names(&manual.into_iter().map(|(axis, _)| axis).collect::<Vec<_>>(), &self.mesh);
        let detail = Detail::Manual { takes: texts(&self.takes), gives: texts(&self.gives), axes };
        p.w.operation("sdy.manual_computation", &all, vec![body], detail, gives)
    }
}

impl Sampled for ShardMap {
    /// Returns no samples, since a `shard_map` runs only on a mesh.
    fn samples(_: DType) -> Vec<Sample> {
        vec![]
    }
}
