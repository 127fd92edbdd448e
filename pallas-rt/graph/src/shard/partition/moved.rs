//! Conversion of values to other shardings: the steps of a reshard on blocks.
use super::{Block, Partition, Reshard};
use crate::graph::Var;
use crate::mesh::axis::{self, Axis, size};
use crate::mesh::{AllGather, AllReduce, AllToAll, CollectiveKind, Permute, ReduceScatter, Sharding};
use crate::shard::local;
use crate::shard::reshard::{self, Step};
use crate::shard::view::Val;
use pallas_ir::{ScalarOp, Type};

impl Partition<'_> {
    /// Appends an all-reduce that combines the blocks of the devices along some axes.
    pub(super) fn reduced(&mut self, op: ScalarOp, axes: &[Axis], var: Var) -> Var {
        self.exchange(AllReduce(op), axes, &[var])
    }

    /// Appends an all-gather that stacks the blocks of the devices along some axes, along a new first axis.
    pub(super) fn gathered(&mut self, axes: &[Axis], var: Var) -> Var {
        self.exchange(AllGather, axes, &[var])
    }

    /// Returns the block of a value with this sharding, to which it is converted if needed.
    pub(crate) fn sharded(&mut self, v: Val, wanted: &Sharding) -> Var {
        // If other readers need the value too, it is first converted to the sharding that propagation found.
        if self.found.count_readers(v) > 1 {
            self.settled(v);
        }
        self.sharded_once(v, wanted)
    }

    /// Returns the block of a value with this sharding, for a value that nothing else reads in its present sharding.
    pub(super) fn sharded_once(&mut self, v: Val, wanted: &Sharding) -> Var {
        let mut block = self.block(v);
        let mut shape = self.program.ty(v).shape.clone();
        let mut steps = reshard::reshard(&shape, &block.sharding, wanted);
        let is_own = |step: &Step| matches!(step, Step::AllSlice(_) | Step::Reshape(_) | Step::Resize(_));
        if steps.iter().any(|(step, _)| !is_own(step)) {
            let (from, to, at) = (block.sharding.clone(), wanted.clone(), self.graph().at);
            self.reshards.push(Reshard { value: v, from, to, at });
        }
        if let Some((axes, op)) = block.partial.clone() {
            let at = steps.iter().position(|(step, _)| !matches!(step, Step::Resize(_)));
            match at.map(|at| &steps[at]) {
                Some((Step::AllSlice(lists), sharding)) => {
                    let (lists, sharding) = (lists.clone(), sharding.clone());
                    for (step, after) in steps.drain(..=at.expect("it is there")) {
                        if let Step::Resize(next) = &step {
                            shape.clone_from(next);
                            block.var = self.step(&step, &block, &after, &shape);
                        }
                    }
                    let local = sharding.local(&shape);
                    let var = self.slice_of_sum(block.var, &lists, &local, &axes, op);
                    block = Block { var, sharding, partial: None, said: None };
                }
                _ => block = self.combined(v, block),
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

    /// Appends one step of a reshard; returns the block after it. `after` is the sharding and `shape` the whole array's
    /// shape afterwards.
    fn step(&mut self, step: &Step, block: &Block, after: &Sharding, shape: &[usize]) -> Var {
        let local = after.local(shape);
        match step {
            Step::AllGather(lists) => {
                let axes: Vec<Axis> = lists.concat();
                let parts = self.gathered(&axes, block.var);
                let counts: Vec<usize> = lists.iter().map(|list| size(list)).collect();
                local::joined(self.graph(), parts, &counts, &local)
            }
            Step::AllSlice(lists) => {
                let coordinates: Vec<Option<Var>> =
                    lists.iter().map(|list| (!list.is_empty()).then(|| self.coordinate(list))).collect();
                let padding = self.options.padding;
                local::sliced(self.graph(), block.var, &coordinates, &local, lists, padding)
            }
            Step::AllToAll { axes, from, to } => {
                let mut whole = block.sharding.local(shape);
                whole[*to] = local[*to] * size(axes);
                let padding = self.options.padding;
                let block = local::extended(self.graph(), block.var, &whole, padding);
                let parts = local::parted(self.graph(), block, &[(*to, size(axes))]);
                let parts = self.exchange(AllToAll, axes, &[parts]);
                let mut counts = vec![1; local.len()];
                counts[*from] = size(axes);
                local::joined(self.graph(), parts, &counts, &local)
            }
            Step::Permute => {
                let sources = reshard::sources(self.mesh, &block.sharding, after).into_iter().map(Some).collect();
                self.exchange(Permute(sources), &self.mesh.axes(), &[block.var])
            }
            Step::Reshape(_) => self.graph().reshape(block.var, &local),
            Step::Resize(_) => {
                let padding = self.options.padding;
                let var = local::extended(self.graph(), block.var, &local, padding);
                local::cropped(self.graph(), var, &local)
            }
        }
    }

    /// Appends the device's part of a sum, whose shape is `local`, so that no device adds up more than it keeps. Each
    /// device first takes its part along axes of the slice that are no axes of the sum; partial sums are scattered
    /// along axes of both, and added up along the axes that are left.
    fn slice_of_sum(&mut self, block: Var, lists: &[Vec<Axis>], local: &[usize], summed: &[Axis], op: ScalarOp) -> Var {
        let (lists, mut left) = reshard::slice_of_sum(lists, summed);
        let whole: Vec<usize> = local.iter().zip(&lists).map(|(n, list)| n * size(list)).collect();
        let padding = self.options.padding;
        let var = local::extended(self.graph(), block, &whole, padding);
        let var = self.own_part(var, &lists, |axis| !left.contains(&axis));
        let scattered: Vec<Vec<Axis>> =
            lists.iter().map(|list| list.iter().copied().filter(|axis| left.contains(axis)).collect()).collect();
        let all = scattered.concat();
        left.retain(|axis| !all.contains(axis));
        // Compare the bytes that each device sends to add up along all axes at once, and to scatter first.
        let ty = self.graph().ty(var).clone();
        let part = Type::new(ty.dtype, [ty.shape.iter().product::<usize>() / size(&all)]);
        let sent = |kind: CollectiveKind, axes: &[Axis], ty: &Type| self.collective(kind, axes).bytes_sent(ty);
        let at_once = sent(AllReduce(op).into(), summed, &ty);
        let in_two = sent(ReduceScatter(op).into(), &all, &ty) + sent(AllReduce(op).into(), &left, &part);
        if all.is_empty() || !left.is_empty() && at_once < in_two + self.options.worth_a_collective {
            // If no device has taken a part, the padding is appended after the sum.
            let is_whole = scattered == lists;
            let mut var = self.exchange(AllReduce(op), summed, &[if is_whole { block } else { var }]);
            if is_whole {
                var = local::extended(self.graph(), var, &whole, padding);
            }
            return self.own_part(var, &scattered, |_| true);
        }
        let var = self.reduce_scatter(var, &scattered, op);
        axis::merge(&mut left);
        match left[..] {
            [] => var,
            _ => self.reduced(op, &left, var),
        }
    }

    /// Appends the part that a device keeps of a block whose dimensions are cut into parts by lists of axes: its own
    /// part along axes for which `is_own` is true, all parts along others.
    fn own_part(&mut self, block: Var, lists: &[Vec<Axis>], is_own: impl Fn(Axis) -> bool) -> Var {
        let mut cut = |axis: &Axis| {
            let kept = is_own(*axis).then(|| self.coordinate(&[*axis]));
            local::Cut { parts: axis.len(), kept }
        };
        let cuts: Vec<Vec<local::Cut>> = lists.iter().map(|list| list.iter().map(&mut cut).collect()).collect();
        local::cut(self.graph(), block, &cuts)
    }

    /// Appends a reduce-scatter that cuts each dimension of a block into parts along its list of axes.
    fn reduce_scatter(&mut self, var: Var, lists: &[Vec<Axis>], op: ScalarOp) -> Var {
        let parts: Vec<(usize, usize)> = lists
            .iter()
            .enumerate()
            .filter(|(_, list)| !list.is_empty())
            .map(|(dim, list)| (dim, size(list)))
            .collect();
        let parts = local::parted(self.graph(), var, &parts);
        self.exchange(ReduceScatter(op), &lists.concat(), &[parts])
    }
}
