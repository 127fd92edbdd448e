//! Conversion of values to other shardings: the steps of a reshard on blocks.
use super::{Partitioner, Reshard, ValueBlock};
use crate::graph::Var;
use crate::mesh::axis::{Axis, product_of_sizes};
use crate::mesh::{AllGather, AllToAll, Permute, Sharding};
use crate::shard::local;
use crate::shard::propagation_program::Val;
use crate::shard::reshard::{self, ReshardStep};

impl Partitioner<'_> {
    /// Appends an all-gather that stacks the blocks of the devices along some axes, along a new first axis.
    pub(super) fn emit_all_gather(&mut self, axes: &[Axis], var: Var) -> Var {
        self.emit_collective(AllGather, axes, &[var])
    }

    /// Returns the block of a value with this sharding, to which it is converted if needed.
    pub(crate) fn reshard_value(&mut self, v: Val, wanted: &Sharding) -> Var {
        // If other readers need the value too, it is first converted to the sharding that propagation found.
        if self.found.count_partitioned_uses(v) > 1 {
            self.finalize_block(v);
        }
        self.reshard_single_use(v, wanted)
    }

    /// Returns the block of a value with this sharding, for a value that nothing else reads in its present sharding.
    pub(super) fn reshard_single_use(&mut self, v: Val, wanted: &Sharding) -> Var {
        let mut block = self.block(v);
        let mut shape = self.program.ty(v).shape.clone();
        let mut steps = reshard::plan_executable_steps(&shape, &block.sharding, wanted);
        let is_own = |step: &ReshardStep| {
            matches!(step, ReshardStep::AllSlice(_) | ReshardStep::Reshape(_) | ReshardStep::Resize(_))
        };
        if steps.iter().any(|(step, _)| !is_own(step)) {
            let (from, to, at) = (block.sharding.clone(), wanted.clone(), self.graph().at);
            self.reshards.push(Reshard { value: v, from, to, at });
        }
        if let Some((axes, op)) = block.partial.clone() {
            let at = steps.iter().position(|(step, _)| !matches!(step, ReshardStep::Resize(_)));
            match at.map(|at| &steps[at]) {
                Some((ReshardStep::AllSlice(lists), sharding)) => {
                    let (lists, sharding) = (lists.clone(), sharding.clone());
                    for (step, after) in steps.drain(..=at.expect("it is there")) {
                        if let ReshardStep::Resize(next) = &step {
                            shape.clone_from(next);
                            block.var = self.emit_reshard_step(&step, &block, &after, &shape);
                        }
                    }
                    let local = sharding.local_shape(&shape);
                    let var = self.emit_slice_of_sum(block.var, &lists, &local, &axes, op);
                    block = ValueBlock { var, sharding, partial: None, said: None };
                }
                _ => block = self.combine_partials(v, block),
            }
        }
        for (step, after) in steps {
            if let ReshardStep::Reshape(next) | ReshardStep::Resize(next) = &step {
                shape.clone_from(next);
            }
            block = ValueBlock {
                var: self.emit_reshard_step(&step, &block, &after, &shape),
                sharding: after,
                partial: None,
                said: None,
            };
        }
        block.var
    }

    /// Appends one step of a reshard; returns the block after it. `after` is the sharding and `shape` the whole array's
    /// shape afterwards.
    fn emit_reshard_step(&mut self, step: &ReshardStep, block: &ValueBlock, after: &Sharding, shape: &[usize]) -> Var {
        let local = after.local_shape(shape);
        match step {
            ReshardStep::AllGather(lists) => {
                let axes: Vec<Axis> = lists.concat();
                let parts = self.emit_all_gather(&axes, block.var);
                let counts: Vec<usize> = lists.iter().map(|list| product_of_sizes(list)).collect();
                local::join_blocks(self.graph(), parts, &counts, &local)
            }
            ReshardStep::AllSlice(lists) => {
                let coordinates: Vec<Option<Var>> =
                    lists.iter().map(|list| (!list.is_empty()).then(|| self.emit_device_coordinate(list))).collect();
                let padding = self.options.padding;
                local::slice_device_part(self.graph(), block.var, &coordinates, &local, lists, padding)
            }
            ReshardStep::AllToAll { axes, from, to } => {
                let mut whole = block.sharding.local_shape(shape);
                whole[*to] = local[*to] * product_of_sizes(axes);
                let padding = self.options.padding;
                let block = local::pad_to_shape(self.graph(), block.var, &whole, padding);
                let parts = local::split_and_stack(self.graph(), block, &[(*to, product_of_sizes(axes))]);
                let parts = self.emit_collective(AllToAll, axes, &[parts]);
                let mut counts = vec![1; local.len()];
                counts[*from] = product_of_sizes(axes);
                local::join_blocks(self.graph(), parts, &counts, &local)
            }
            ReshardStep::Permute => {
                let sources =
                    reshard::permute_sources(self.mesh, &block.sharding, after).into_iter().map(Some).collect();
                self.emit_collective(Permute(sources), &self.mesh.axes(), &[block.var])
            }
            ReshardStep::Reshape(_) => self.graph().reshape(block.var, &local),
            ReshardStep::Resize(_) => {
                let padding = self.options.padding;
                let var = local::pad_to_shape(self.graph(), block.var, &local, padding);
                local::crop_block(self.graph(), var, &local)
            }
        }
    }
}
