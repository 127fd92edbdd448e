//! Values under another sharding: the steps of a reshard on blocks.
use super::{Block, Partition, Reshard};
use crate::graph::Var;
use crate::mesh::axis::{Axis, size};
use crate::mesh::{Exchange, Sharding};
use crate::shard::local;
use crate::shard::reshard::{self, Step};
use crate::shard::view::Val;
use pallas_ir::ScalarOp;

impl Partition<'_> {
    /// The block of a value under a sharding.
    pub(super) fn divided(&mut self, v: Val, wanted: &Sharding) -> Var {
        // Other readers need it in this form as well.
        if self.found.count_readers(v) > 1 {
            self.settled(v);
        }
        self.divided_once(v, wanted)
    }

    /// The same for a value that nothing else reads as it is.
    pub(super) fn divided_once(&mut self, v: Val, wanted: &Sharding) -> Var {
        let mut block = self.block(v);
        let mut shape = self.program.ty(v).shape.clone();
        let mut steps = reshard::reshard(&shape, &block.sharding, wanted);
        let is_own = |step: &Step| matches!(step, Step::AllSlice(_) | Step::Reshape(_) | Step::Resize(_));
        if steps.iter().any(|(step, _)| !is_own(step)) {
            let (from, to, at) = (block.sharding.clone(), wanted.clone(), self.graph().at);
            self.reshards.push(Reshard { value: v, from, to, at });
        }
        if let Some((axes, op)) = block.partial.clone() {
            let (slice, extents) = match steps.first() {
                Some((Step::Resize(extents), _)) => (steps.get(1), extents.clone()),
                first => (first, shape.clone()),
            };
            let scattered = match slice {
                Some((Step::AllSlice(lists), _)) => reshard::scattered(&extents, &block.sharding, lists, &axes),
                _ => None,
            };
            if let Some(([first, rest], sharding)) = scattered {
                if let Some((Step::Resize(_), _)) = steps.first() {
                    let (step, after) = steps.remove(0);
                    block.var = self.step(&step, &block, &after, &extents);
                    shape = extents;
                }
                let counts = sharding.local(&shape).into_iter().zip(&first).map(|(n, axes)| n * size(axes));
                let (whole, padding): (Vec<usize>, _) = (counts.collect(), self.padding);
                let var = local::extended(self.graph(), block.var, &whole, padding);
                let var = self.reduce_scatter(var, &first, op);
                block = Block { var, sharding, partial: None, said: None };
                match rest.iter().all(Vec::is_empty) {
                    true => drop(steps.remove(0)),
                    false => steps[0].0 = Step::AllSlice(rest),
                }
            } else {
                block = self.combined(v, block);
            }
        }
        for (step, after) in steps {
            if let Step::Reshape(next) | Step::Resize(next) = &step {
                shape.clone_from(next);
            }
            block = Block { var: self.step(&step, &block, &after, &shape), sharding: after, partial: None, said: None };
        }
        block.var
    }

    fn step(&mut self, step: &Step, block: &Block, after: &Sharding, shape: &[usize]) -> Var {
        let local = after.local(shape);
        match step {
            Step::AllGather(lists) => {
                let axes: Vec<Axis> = lists.concat();
                let parts = self.exchange(Exchange::AllGather, &axes, &[block.var]);
                let counts: Vec<usize> = lists.iter().map(|list| size(list)).collect();
                local::joined(self.graph(), parts, &counts, &local)
            }
            Step::AllSlice(lists) => {
                let coordinates: Vec<Option<Var>> =
                    lists.iter().map(|list| (!list.is_empty()).then(|| self.coordinate(list))).collect();
                let padding = self.padding;
                local::sliced(self.graph(), block.var, &coordinates, &local, lists, padding)
            }
            Step::AllToAll { axes, from, to } => {
                let mut whole = block.sharding.local(shape);
                whole[*to] = local[*to] * size(axes);
                let padding = self.padding;
                let block = local::extended(self.graph(), block.var, &whole, padding);
                let parts = local::parted(self.graph(), block, &[(*to, size(axes))]);
                let parts = self.exchange(Exchange::AllToAll, axes, &[parts]);
                let mut counts = vec![1; local.len()];
                counts[*from] = size(axes);
                local::joined(self.graph(), parts, &counts, &local)
            }
            Step::Permute => {
                let sources = reshard::sources(self.mesh, &block.sharding, after).into_iter().map(Some).collect();
                self.exchange(Exchange::Permute(sources), &self.mesh.axes(), &[block.var])
            }
            Step::Reshape(_) => local::reshaped(self.graph(), block.var, &local),
            Step::Resize(_) => {
                let padding = self.padding;
                let var = local::extended(self.graph(), block.var, &local, padding);
                local::cropped(self.graph(), var, &local)
            }
        }
    }

    fn reduce_scatter(&mut self, var: Var, lists: &[Vec<Axis>], op: ScalarOp) -> Var {
        let parts: Vec<(usize, usize)> = lists
            .iter()
            .enumerate()
            .filter(|(_, list)| !list.is_empty())
            .map(|(dim, list)| (dim, size(list)))
            .collect();
        let parts = local::parted(self.graph(), var, &parts);
        self.exchange(Exchange::ReduceScatter(op), &lists.concat(), &[parts])
    }
}
