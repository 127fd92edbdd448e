//! The partitioner's part for kernels: appends the call that each device runs, with its operands cut into whole blocks.
//!
//! ```text
//! x: 250 rows of each of 4 devices --gather, slice--> 256 rows, 32 whole blocks --kernel--> 256 rows --> 250 rows
//! ```
use super::KernelCall;
use super::tiling::{KernelShardability, ShardedAxis, device_kernel_call};
use crate::graph::Var;
use crate::mesh::Sharding;
use crate::mesh::axes_text;
use crate::mesh::axis::{self, Axis, product_of_sizes};
use crate::refusal::TransformError;
use crate::shard::factor_axes::sharding_from_factor_axes;
use crate::shard::local as blocks;
use crate::shard::op_sharding_rule::ShardingRule;
use crate::shard::partition::{Partitioner, ValueBlock};
use crate::shard::propagation_program::{Node, NodeId, Val};
use pallas_ir::structural::{Concat, Reshape};
use pallas_ir::{At, Diag, Dim, Literal, ScalarOp, StructuralOp};

/// A change of how the elements along a sharded dimension are distributed: from even parts to whole blocks of the
/// kernel, or back.
struct Redistribution<'a> {
    /// The dimension.
    dim: usize,
    /// The mesh axes that shard the dimension.
    axes: &'a [Axis],
    /// Number of elements of the whole array along the dimension.
    whole: usize,
    /// Number of elements that each device has afterwards.
    to: usize,
}

impl Partitioner<'_> {
    /// Appends the call of a kernel on the blocks that each device has. `id` is the call's node.
    pub(super) fn push_kernel_call(&mut self, id: NodeId, call: &KernelCall) {
        let node = &self.program.nodes[id];
        let tiling = KernelShardability::from_call(call);
        if let Some(refused) = self.unsupported_sharding_error(node, call, &tiling) {
            self.record_error(refused);
        }
        let found = self.found;
        let rule = found.sharding_rule(id).expect("a kernel has a rule");
        let all: Vec<Val> = node.operands.iter().chain(&node.results).copied().collect();
        let mut shardings: Vec<Sharding> =
            node.operands.iter().map(|&v| self.block(v).sharding_for_readers().clone()).collect();
        shardings.extend(node.results.iter().map(|&v| self.propagated_sharding(v)));
        for (sharding, is_read) in shardings.iter_mut().zip(&tiling.is_read) {
            if !is_read {
                *sharding = Sharding::replicated(sharding.dims.len());
            }
        }
        let axes = self.choose_factor_axes(&all, &shardings, rule, &call.clone().into());
        let own: Vec<Sharding> =
            (0..all.len()).map(|t| sharding_from_factor_axes(rule, t, &shardings[t], &axes)).collect();
        let (shares, of_shares) = sharded_grid_axes(&tiling, rule, &axes);
        let regroups = |t: usize, to: &dyn Fn(&ShardedAxis) -> usize| -> Vec<(usize, usize, usize)> {
            let dims = tiling.dims[t].iter().enumerate();
            dims.filter_map(|(dim, axis)| {
                let i = shares.iter().position(|share| Some(&share.axis) == axis.as_ref().ok())?;
                Some((dim, i, to(&shares[i])))
            })
            .collect()
        };
        let mut args: Vec<Var> = vec![];
        for (t, &v) in node.operands.iter().enumerate() {
            if !tiling.is_read[t] {
                args.push(self.push_unread_placeholder(v, shares.is_empty()));
                continue;
            }
            let mut var = self.reshard_value(v, &own[t]);
            for (dim, i, to) in regroups(t, &ShardedAxis::elements_per_device) {
                let whole = shares[i].tiled.size;
                var = self.push_redistribution(var, &Redistribution { dim, axes: &of_shares[i], whole, to });
            }
            args.push(var);
        }
        let call = if shares.is_empty() {
            call.clone()
        } else {
            args.push(self.push_first_program_ids(&shares, &of_shares));
            device_kernel_call(call, &tiling, &shares)
        };
        let made = self.graph().push_valid_multi_result(call, &args);
        let mut summed: Vec<Axis> = vec![];
        let mut monoid = None;
        for (share, axes) in shares.iter().zip(&of_shares) {
            if let Some(sum) = &share.tiled.sum {
                summed.extend(axes);
                monoid = Some(sum.op);
            }
        }
        axis::sort_and_merge(&mut summed);
        let partial = monoid.map(|op| (summed, op));
        for (i, (&v, mut var)) in node.results.iter().zip(made).enumerate() {
            let t = node.operands.len() + i;
            for (dim, i, to) in regroups(t, &|share| share.tiled.size.div_ceil(share.parts)) {
                let whole = shares[i].tiled.size;
                var = self.push_redistribution(var, &Redistribution { dim, axes: &of_shares[i], whole, to });
            }
            self.define_block_pending_reshard(
                v,
                ValueBlock { var, sharding: own[t].clone(), partial: partial.clone(), said: None },
            );
        }
    }

    /// Returns an array in place of an operand that no program reads, made without a collective: of the operand's whole
    /// type if `is_whole`, otherwise with one element.
    fn push_unread_placeholder(&mut self, v: Val, is_whole: bool) -> Var {
        let ty = self.program.ty(v).clone();
        let block = self.block(v);
        match is_whole {
            true if *self.graph().ty(block.var) == ty => block.var,
            true => self.graph().splat(Literal::new(ty.dtype, 0.0), &ty.shape),
            false => self.graph().splat(Literal::new(ty.dtype, 0.0), &vec![1; ty.shape.len()]),
        }
    }

    /// Appends an i32 array with the global id of the device's first program along each grid axis in `shares`;
    /// `mesh_axes` lists the mesh axes that shard each.
    fn push_first_program_ids(&mut self, shares: &[ShardedAxis], mesh_axes: &[Vec<Axis>]) -> Var {
        let first = |(share, axes): (&ShardedAxis, &Vec<Axis>)| {
            let coordinate = self.emit_device_coordinate(axes);
            let graph = self.graph();
            let programs = graph.i32_literal(share.programs_per_device() as i64);
            let first = graph.push_valid(ScalarOp::Mul, &[coordinate, programs]);
            graph.push_valid(StructuralOp::from(Reshape { to: vec![Dim::from(1usize)] }), &[first])
        };
        let all: Vec<Var> = shares.iter().zip(mesh_axes).map(first).collect();
        match all[..] {
            [only] => only,
            _ => self.graph().push_valid(StructuralOp::from(Concat { axis: 0 }), &all),
        }
    }

    /// Appends the collectives that redistribute a dimension's elements among the devices, as `redistribution` says.
    fn push_redistribution(&mut self, var: Var, redistribution: &Redistribution<'_>) -> Var {
        let &Redistribution { dim, axes, whole, to } = redistribution;
        let group = blocks::DeviceGroup { mesh: self.mesh, axes };
        blocks::resize_blocks(self.graph(), group, var, dim, [whole, to])
    }

    /// Returns the error for a sharding that a user declared along a dimension which the kernel cannot divide.
    /// Shardings that only propagation found are gathered instead, without an error.
    fn unsupported_sharding_error(
        &self,
        node: &Node,
        call: &KernelCall,
        tiling: &KernelShardability,
    ) -> Option<TransformError> {
        for (t, &v) in node.operands.iter().chain(&node.results).enumerate() {
            let declared = self.found.declared_sharding(v, t >= node.operands.len()).filter(|_| tiling.is_read[t]);
            let Some(declared) = declared else { continue };
            for (dim, cut) in tiling.dims[t].iter().enumerate() {
                let (Err(reason), axes) = (cut, &declared.dims[dim].axes) else { continue };
                if product_of_sizes(axes) == 1 || self.program.ty(v).shape[dim] == 1 {
                    continue;
                }
                let kernel = &call.kernel;
                let name = &kernel.operand(tiling.operands[t]).name;
                let message = format!(
                    "kernel `{}` cannot be sharded along dimension {dim} of `{name}`, which is declared to be sharded \
                     by {}: {reason}",
                    kernel.name,
                    axes_text(axes, self.mesh)
                );
                let side = if t < node.operands.len() { "in front of" } else { "behind" };
                let help =
                    format!("put a `with_sharding_constraint` that does not divide dimension {dim} {side} the kernel");
                return Some(TransformError { diag: Diag::new("sharded-kernel", At::Op, message, help), at: node.loc });
            }
        }
        None
    }
}

/// Returns the grid axes whose programs are divided among devices, and for each the mesh axes that shard it;
/// `factor_axes` lists the mesh axes of each factor of `rule`.
fn sharded_grid_axes(
    tiling: &KernelShardability,
    rule: &ShardingRule,
    factor_axes: &[Vec<Axis>],
) -> (Vec<ShardedAxis>, Vec<Vec<Axis>>) {
    let own = |axis: usize| {
        let tiled = tiling.axes[axis].clone()?;
        let place = tiling.dims.iter().zip(&rule.tensors).find_map(|(dims, factors)| {
            let dim = dims.iter().position(|own| own.as_ref().ok() == Some(&axis))?;
            Some(factors[dim][0])
        })?;
        let axes = factor_axes[place].clone();
        let parts = product_of_sizes(&axes);
        (parts > 1).then_some((ShardedAxis { axis, tiled, parts }, axes))
    };
    (0..tiling.axes.len()).filter_map(own).unzip()
}
