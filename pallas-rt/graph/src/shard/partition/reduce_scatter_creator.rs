//! All-reduces of partial sums, and reduce-scatters in place of them where each device keeps a part of the sum.
use super::Partitioner;
use crate::graph::Var;
use crate::mesh::axis::{self, Axis, product_of_sizes};
use crate::mesh::{AllReduce, CollectiveKind, ReduceScatter};
use crate::shard::local;
use crate::shard::reshard::align_axes;
use pallas_ir::{ScalarOp, Type};

impl Partitioner<'_> {
    /// Appends an all-reduce that combines the blocks of the devices along some axes.
    pub(super) fn emit_all_reduce(&mut self, op: ScalarOp, axes: &[Axis], var: Var) -> Var {
        self.emit_collective(AllReduce(op), axes, &[var])
    }

    /// Appends the device's part of a sum, whose shape is `local_shape`, so that no device adds up more than it keeps.
    /// Each device first takes its part along axes of the slice that are no axes of the sum; partial sums are scattered
    /// along axes of both, and added up along the axes that are left.
    pub(super) fn emit_slice_of_sum(
        &mut self,
        block: Var,
        slice_axes: &[Vec<Axis>],
        local_shape: &[usize],
        sum_axes: &[Axis],
        op: ScalarOp,
    ) -> Var {
        let (lists, mut left) = align_slice_and_sum_axes(slice_axes, sum_axes);
        let whole: Vec<usize> = local_shape.iter().zip(&lists).map(|(n, list)| n * product_of_sizes(list)).collect();
        let padding = self.options.padding;
        let var = local::pad_to_shape(self.graph(), block, &whole, padding);
        let var = self.emit_own_part(var, &lists, |axis| !left.contains(&axis));
        let scattered: Vec<Vec<Axis>> =
            lists.iter().map(|list| list.iter().copied().filter(|axis| left.contains(axis)).collect()).collect();
        let all = scattered.concat();
        left.retain(|axis| !all.contains(axis));
        // Compare the bytes that each device sends to add up along all axes at once, and to scatter first.
        let ty = self.graph().ty(var).clone();
        let part = Type::new(ty.dtype, [ty.shape.iter().product::<usize>() / product_of_sizes(&all)]);
        let sent = |kind: CollectiveKind, axes: &[Axis], ty: &Type| {
            self.build_collective(kind, axes).bytes_sent_per_device(ty)
        };
        let at_once = sent(AllReduce(op).into(), sum_axes, &ty);
        let in_two = sent(ReduceScatter(op).into(), &all, &ty) + sent(AllReduce(op).into(), &left, &part);
        if all.is_empty() || !left.is_empty() && at_once < in_two + self.options.collective_cost_bytes {
            // If no device has taken a part, the padding is appended after the sum.
            let is_whole = scattered == lists;
            let mut var = self.emit_collective(AllReduce(op), sum_axes, &[if is_whole { block } else { var }]);
            if is_whole {
                var = local::pad_to_shape(self.graph(), var, &whole, padding);
            }
            return self.emit_own_part(var, &scattered, |_| true);
        }
        let var = self.emit_reduce_scatter(var, &scattered, op);
        axis::sort_and_merge(&mut left);
        match left[..] {
            [] => var,
            _ => self.emit_all_reduce(op, &left, var),
        }
    }

    /// Appends the part that a device keeps of a block whose dimensions are cut into parts by lists of axes: its own
    /// part along axes for which `is_own` is true, all parts along others.
    fn emit_own_part(&mut self, block: Var, dim_axes: &[Vec<Axis>], is_own: impl Fn(Axis) -> bool) -> Var {
        let mut cut = |axis: &Axis| {
            let kept = is_own(*axis).then(|| self.emit_device_coordinate(&[*axis]));
            local::DimSplit { parts: axis.len(), kept }
        };
        let cuts: Vec<Vec<local::DimSplit>> = dim_axes.iter().map(|list| list.iter().map(&mut cut).collect()).collect();
        local::slice_kept_parts(self.graph(), block, &cuts)
    }

    /// Appends a reduce-scatter that cuts each dimension of a block into parts along its list of axes.
    fn emit_reduce_scatter(&mut self, var: Var, dim_axes: &[Vec<Axis>], op: ScalarOp) -> Var {
        let parts: Vec<(usize, usize)> = dim_axes
            .iter()
            .enumerate()
            .filter(|(_, list)| !list.is_empty())
            .map(|(dim, list)| (dim, product_of_sizes(list)))
            .collect();
        let parts = local::split_and_stack(self.graph(), var, &parts);
        self.emit_collective(ReduceScatter(op), &dim_axes.concat(), &[parts])
    }
}

/// Splits the axes of a slice, by dimension, and the axes of a sum into parts, so that each part of one is equal to a
/// part of the other or does not overlap it.
fn align_slice_and_sum_axes(lists: &[Vec<Axis>], summed: &[Axis]) -> (Vec<Vec<Axis>>, Vec<Axis>) {
    let lists: Vec<Vec<Axis>> = lists.iter().map(|list| align_axes(list, summed)).collect();
    let summed = align_axes(summed, &lists.concat());
    (lists, summed)
}
