//! Texts of clusters, scheduled steps and memory, and checks of the rules that these follow.
use super::cluster::ClusteredGraph;
use super::plan::{ArenaRegion, ArenaValue, LoweredStep, MemoryLocation, Plan};
use crate::display::join_vars;
use crate::graph::{Graph, Var};
use crate::stage_watch::StageOutput;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Text of each cluster: its grid, the values that others read, its equations, and the reasons why it does not compute
/// what it reads.
impl fmt::Display for ClusteredGraph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.all.iter().enumerate().filter(|(_, cluster)| !cluster.members.is_empty());
        for (i, cluster) in live {
            writeln!(f, "cluster {i} over {:?} gives {}", cluster.extents, join_vars(&cluster.outs, Var::to_string))?;
            for &member in &cluster.members {
                writeln!(f, "    {}", self.graph.equation_text(&self.graph.equations[member]))?;
            }
            for (v, apart) in &cluster.apart {
                writeln!(f, "    reads {v}: {apart}")?;
            }
        }
        Ok(())
    }
}

impl StageOutput for ClusteredGraph<'_> {
    /// Checks that no equation is in two clusters, and that clusters store all values that others read.
    fn verify(&self) -> Result<(), String> {
        for (i, cluster) in self.all.iter().enumerate() {
            if let Some(member) = cluster.members.iter().find(|&&member| self.owner[member] != Some(i)) {
                return Err(format!("equation {member} is in cluster {i} and in {:?}", self.owner[*member]));
            }
            for &v in cluster.members.iter().flat_map(|&member| &self.graph.equations[member].args) {
                let (stored, source) = (self.storage_value(v), self.cluster_of(v).filter(|source| *source != i));
                if let Some(source) = source.filter(|source| !self.all[*source].outs.contains(&stored)) {
                    return Err(format!("cluster {i} reads {stored}, which cluster {source} does not give"));
                }
            }
        }
        Ok(())
    }
    fn as_graph(&self) -> Option<&Graph> {
        None
    }
}

/// Scheduled steps: the clusters, the cluster of each step, and the steps, in the order of the schedule.
pub(super) struct ScheduleStageOutput<'a>(pub &'a ClusteredGraph<'a>, pub &'a [usize], pub &'a [LoweredStep]);

/// Text with a line for each step: `%4 = add_exp [8] of %2; %4 takes over param0; cluster 1`.
impl fmt::Display for ScheduleStageOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &ScheduleStageOutput(found, order, steps) = self;
        for (cluster, LoweredStep { work, inputs, outputs, in_place }) in order.iter().zip(steps) {
            write!(
                f,
                "{} = {} of {}",
                join_vars(outputs, Var::to_string),
                work.name(),
                join_vars(inputs, Var::to_string)
            )?;
            for (v, before) in outputs.iter().zip(in_place).filter_map(|(v, before)| Some((v, (*before)?))) {
                let before = found.storage_value(before);
                let param = found.graph.params.iter().position(|&p| p == before);
                write!(
                    f,
                    "; {v} takes over {}",
                    param.map_or(before.to_string(), |i| MemoryLocation::Param(i).to_string())
                )?;
            }
            writeln!(f, "; cluster {cluster}")?;
        }
        writeln!(f, "in {}", join_vars(&found.graph.results, Var::to_string))
    }
}

impl StageOutput for ScheduleStageOutput<'_> {
    /// Checks that steps and the caller read only values that were made before.
    fn verify(&self) -> Result<(), String> {
        let &ScheduleStageOutput(found, _, steps) = self;
        let mut made: BTreeSet<Var> = found.graph.params.iter().copied().collect();
        let is_missing = |made: &BTreeSet<Var>, v: Var| !made.contains(&found.storage_value(v));
        for (at, step) in steps.iter().enumerate() {
            let mut read = step.inputs.iter().chain(step.in_place.iter().flatten());
            if let Some(v) = read.find(|v| is_missing(&made, **v)) {
                return Err(format!("step {at} reads {v} before it is made"));
            }
            made.extend(&step.outputs);
        }
        let missing = found.graph.results.iter().find(|v| is_missing(&made, **v));
        missing.map_or(Ok(()), |v| Err(format!("no step makes the result {v}")))
    }
    fn as_graph(&self) -> Option<&Graph> {
        None
    }
}

/// The output of a plan's last stage for a stage observer: the arena, the values in it with the steps that need them,
/// and the memory of the results.
pub(super) struct MemoryStageOutput<'a>(pub &'a Plan);

/// Text with a line for each value in the arena, with its bytes and the steps that need it, then the memory of each
/// result.
impl fmt::Display for MemoryStageOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "arena {} bytes", self.0.arena)?;
        for ArenaValue { region: ArenaRegion { offset, bytes }, first, last, ty } in &self.0.held {
            let ty = ty.as_ref().map_or("inside of the step".into(), ToString::to_string);
            writeln!(f, "{offset}..{} in steps {first}..={last}: {ty}", offset + bytes)?;
        }
        self.0.results.iter().enumerate().try_for_each(|(i, (place, ty))| writeln!(f, "result {i} in {place}: {ty}"))
    }
}

impl StageOutput for MemoryStageOutput<'_> {
    fn verify(&self) -> Result<(), String> {
        self.0.verify()
    }
    fn as_graph(&self) -> Option<&Graph> {
        None
    }
}

impl StageOutput for Plan {
    /// Checks that values which a step needs do not overlap in the arena, and that steps use only regions that hold a
    /// value then.
    fn verify(&self) -> Result<(), String> {
        let mut held: Vec<&ArenaValue> = self.held.iter().collect();
        held.sort_by_key(|one| one.first);
        let end = |one: &ArenaValue| one.region.offset + one.region.bytes;
        let mut lives: BTreeMap<ArenaRegion, Vec<(usize, usize)>> = BTreeMap::new();
        for (i, a) in held.iter().enumerate() {
            let at_once = held[i + 1..].iter().take_while(|b| b.first <= a.last);
            if let Some(b) = at_once.into_iter().find(|b| a.region.offset < end(b) && b.region.offset < end(a)) {
                return Err(format!("step {} needs {a:?} and {b:?}, which overlap", b.first));
            }
            if end(a) > self.arena {
                return Err(format!("{a:?} does not fit into {} bytes", self.arena));
            }
            lives.entry(a.region).or_default().push((a.first, a.last));
        }
        for (at, step) in self.steps.iter().enumerate() {
            for place in step.inputs.iter().chain(&step.outputs) {
                let MemoryLocation::Temporary(i) = *place else { continue };
                let region = self.temporary[i];
                let mut lives = lives.get(&region).into_iter().flatten();
                if region.bytes > 0 && !lives.any(|(first, last)| (first..=last).contains(&&at)) {
                    return Err(format!("step {at} uses {place}, which nothing holds then"));
                }
            }
            step.work.bodies().into_iter().try_for_each(StageOutput::verify)?;
        }
        Ok(())
    }
    fn as_graph(&self) -> Option<&Graph> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::grow::grow_clusters;
    use super::super::plan::StepOp;
    use super::super::split_reductions::StageKernelResults;
    use super::super::{DeviceLimits, plan};
    use super::*;
    use crate::graph::Graph;
    use pallas_ir::structural::Dot;
    use pallas_ir::{DType, StructuralOp, Type};

    /// Returns a graph of four products in a row, which have a kernel each.
    fn products() -> Graph {
        let mut graph = Graph::default();
        let x = graph.param(Type::new(DType::F32, [8, 8]));
        let dot = || StructuralOp::Dot(Dot::matmul(DType::F32));
        let y = (0..4).fold(x, |y, _| graph.push(dot(), &[y, x]).expect("it fits"));
        graph.results.push(y);
        graph
    }

    fn says(found: Result<(), String>, part: &str) {
        assert!(found.as_ref().is_err_and(|message| message.contains(part)), "{found:?}");
    }

    #[test]
    fn values_in_the_arena_are_checked() {
        let good = || plan(&products(), &[], &DeviceLimits::TEST);
        assert_eq!((good().verify(), good().held.len()), (Ok(()), 3));
        let mut overlapping = good();
        overlapping.held[1].region.offset = overlapping.held[0].region.offset + 8;
        says(overlapping.verify(), "overlap");
        let mut short = good();
        short.held[0].last -= 1;
        says(short.verify(), "step 1 uses temporary0, which nothing holds then");
        says(Plan { arena: 8, ..good() }.verify(), "does not fit into 8 bytes");
    }

    #[test]
    fn clusters_and_the_order_of_steps_are_checked() {
        let graph = products();
        let mut found = grow_clusters(&graph, &StageKernelResults::default(), &DeviceLimits::TEST);
        assert_eq!(found.verify(), Ok(()));
        let order: Vec<usize> = found.owner.iter().flatten().copied().collect();
        let step = |i: usize| {
            let (inputs, outputs) = (graph.equations[i].args.clone(), graph.equations[i].results.clone());
            LoweredStep { work: StepOp::Case { branches: vec![] }, inputs, outputs, in_place: vec![None] }
        };
        let of = |steps: &[usize]| {
            let steps: Vec<LoweredStep> = steps.iter().map(|&i| step(i)).collect();
            ScheduleStageOutput(&found, &order, &steps).verify()
        };
        assert_eq!(of(&[0, 1, 2, 3]), Ok(()));
        says(of(&[0, 2, 1, 3]), "step 1 reads %2 before it is made");
        says(of(&[0, 1, 2]), "no step makes the result %4");
        let first = order[0];
        let outs = std::mem::take(&mut found.all[first].outs);
        says(found.verify(), "does not give");
        found.all[first].outs = outs;
        found.owner[3] = Some(first);
        says(found.verify(), "equation 3 is in cluster");
    }
}
