//! Convolutions whose second operand is sharded along spatial dimensions, as in the gradient of a convolution's
//! weights.
//!
//! ```text
//! dw[k] = Σ_i x[stride · i + k - low] · dy[i]      i is sharded: each device reads the rows of x for its own
//!                                                  rows of dy, and gets a partial sum of dw
//! ```
use super::{Partitioner, ValueBlock};
use crate::graph::Op;
use crate::mesh::Sharding;
use crate::mesh::axis::{self, Axis, product_of_sizes};
use crate::shard::local;
use crate::shard::propagation_program::Node;
use pallas_ir::structural::{Conv, WindowDim};
use pallas_ir::{Literal, ScalarOp, StructuralOp};

impl Partitioner<'_> {
    /// Appends a convolution both of whose operands are sharded alike along spatial dimensions, which gives partial
    /// sums, and defines the result of its node; returns false, without a change, for other convolutions.
    pub(super) fn try_emit_spatially_sharded_conv(&mut self, node: &Node, op: &Op) -> bool {
        let Op::Structural(StructuralOp::Conv(conv)) = op else { return false };
        if conv.groups != 1 || conv.batch_groups != 1 {
            return false;
        }
        let (x, dy) = (node.operands[0], node.operands[1]);
        let [of_x, of_dy] = [x, dy].map(|v| self.block(v).sharding_for_readers().clone());
        let [x_type, dy_type, result] = [x, dy, node.results[0]].map(|v| self.program.ty(v).clone());
        if [&x_type, &dy_type, &result].iter().any(|ty| ty.shape.contains(&0)) {
            return false;
        }
        let is_summed = |i: &usize| {
            let axes = &of_dy.dims[conv.rhs[2 + i]].axes;
            product_of_sizes(axes) > 1 && of_x.dims[conv.lhs[2 + i]].axes == *axes && conv.windows[*i].dilation == 1
        };
        let places: Vec<usize> = (0..conv.windows.len()).filter(is_summed).collect();
        if places.is_empty() {
            return false;
        }
        let along = |i: usize| of_dy.dims[conv.rhs[2 + i]].axes.clone();
        let mut parts: Vec<Axis> = places.iter().flat_map(|&i| along(i)).collect();
        // Features that both operands have are added up too, and those of one operand stay sharded.
        let [own, other] = [&of_x.dims[conv.lhs[1]].axes, &of_dy.dims[conv.rhs[1]].axes];
        let is_even = x_type.shape[conv.lhs[1]].is_multiple_of(product_of_sizes(own));
        let contracted = if own == other && is_even { own.clone() } else { vec![] };
        parts.extend(contracted.clone());
        let free = |axes: &[Axis], taken: &[Axis]| {
            let is_free = axes.iter().all(|axis| taken.iter().all(|other| other.id != axis.id));
            if is_free { axes.to_vec() } else { vec![] }
        };
        let examples = free(&of_x.dims[conv.lhs[0]].axes, &parts);
        let features = free(&of_dy.dims[conv.rhs[0]].axes, &[&parts[..], &examples].concat());
        let sharding = |dims: &[usize], first: &[Axis], second: &[Axis]| {
            let mut sharding = Sharding::replicated(dims.len());
            sharding.dims[dims[0]].axes = first.to_vec();
            sharding.dims[dims[1]].axes = second.to_vec();
            sharding
        };
        let (mut x_wanted, mut dy_wanted) =
            (sharding(&conv.lhs, &examples, &contracted), sharding(&conv.rhs, &features, &contracted));
        for &i in &places {
            x_wanted.dims[conv.lhs[2 + i]].axes = along(i);
            dy_wanted.dims[conv.rhs[2 + i]].axes = along(i);
        }
        let (mut x, mut dy) = (self.reshard_value(x, &x_wanted), self.reshard_value(dy, &dy_wanted));
        let mut windows = conv.windows.clone();
        for &i in &places {
            let (axes, mesh) = (along(i), self.mesh);
            let (from, to) = (conv.lhs[2 + i], conv.rhs[2 + i]);
            let (extent, rows, taps) = (x_type.shape[from], dy_type.shape[to], result.shape[conv.out[2 + i]]);
            let block = self.graph().ty(dy).shape[to];
            let WindowDim { stride, low, spacing, .. } = windows[i];
            if !rows.is_multiple_of(product_of_sizes(&axes)) {
                let coordinate = self.emit_device_coordinate(&axes);
                let zero = Literal::new(dy_type.dtype, 0.0);
                dy = local::emit_fill_past_end(self.graph(), dy, to, coordinate, rows, zero);
            }
            let seen = stride * (taps as i64 - 1) + spacing * (block as i64 - 1) + 1;
            let read =
                local::RowRange { dim: from, extent, count: seen as usize, offset: -low, step: spacing * block as i64 };
            x = local::read_zero_padded_rows(self.graph(), local::DeviceGroup { mesh, axes: &axes }, x, &read);
            windows[i] = WindowDim { low: 0, high: 0, ..windows[i] };
        }
        let made = self.graph().push_valid(StructuralOp::from(Conv { windows, ..conv.clone() }), &[x, dy]);
        axis::sort_and_merge(&mut parts);
        let sharding = sharding(&conv.out, &examples, &features);
        let partial = Some((parts, ScalarOp::Add));
        self.define_block_pending_reshard(node.results[0], ValueBlock { var: made, sharding, partial, said: None });
        true
    }
}
