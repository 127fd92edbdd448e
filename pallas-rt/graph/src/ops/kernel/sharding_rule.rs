//! The sharding rule of a kernel, which follows from its blocks and its grid.
use super::KernelCall;
use super::tiling::KernelShardability;
use crate::shard::op_sharding_rule::{FactorRole, RuleBuilder, ShardingRule, TensorDim};
use pallas_ir::Dim;

impl ShardingRule {
    /// Returns the sharding rule of a kernel call, which follows from the kernel's blocks and its grid.
    pub fn from_kernel_call(call: &KernelCall) -> ShardingRule {
        let shapes: Vec<&[usize]> = call.takes.iter().chain(&call.gives).map(|ty| &ty.shape[..]).collect();
        let mut build = RuleBuilder::new(&shapes, call.takes.len());
        build.add_kernel_factors(call);
        build.finish()
    }
}

impl RuleBuilder<'_> {
    /// Adds a factor for each grid axis that devices can divide, and one for each named extent shared by dimensions
    /// that they cannot.
    fn add_kernel_factors(&mut self, call: &KernelCall) {
        let tiling = KernelShardability::from_call(call);
        let places: Vec<TensorDim> =
            (tiling.dims.iter().enumerate()).flat_map(|(t, dims)| (0..dims.len()).map(move |dim| (t, dim))).collect();
        let size_of = |(t, dim): TensorDim| -> Option<&Dim> {
            let size = &call.kernel.operand(tiling.operands[t]).dims[dim];
            // Extents that are plain numbers may be equal by chance.
            (tiling.is_read[t] && tiling.dims[t][dim].is_err() && !size.names().is_empty()).then_some(size)
        };
        // An operand that no program reads may be sharded in any way.
        let axis_of = |(t, dim): TensorDim| tiling.dims[t][dim].as_ref().ok().filter(|_| tiling.is_read[t]);
        let mut seen: Vec<TensorDim> = vec![];
        for &place in &places {
            if seen.contains(&place) {
                continue;
            }
            let is_alike = |other: &TensorDim| match (axis_of(place), size_of(place)) {
                (None, None) => *other == place,
                (axis, size) => axis_of(*other) == axis && size_of(*other) == size,
            };
            let alike: Vec<TensorDim> = places.iter().copied().filter(is_alike).collect();
            let tiled = axis_of(place).and_then(|&axis| tiling.axes[axis].as_ref());
            let size = self.shapes[place.0][place.1];
            let before = self.rule.factors.len();
            let role = match tiled {
                Some(tiled) if tiled.sum.is_some() => FactorRole::Reduce,
                None if tiling.is_read[place.0] => FactorRole::Replicate,
                _ => FactorRole::PassThrough,
            };
            self.add_factor(size, role, &alike);
            if let (Some(tiled), Some(factor)) = (tiled, self.rule.factors.get_mut(before)) {
                factor.multiple = tiled.block;
            }
            seen.extend(alike);
        }
    }
}
