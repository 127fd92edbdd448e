//! The factors of kernels, read off their blocks and their grid.
use super::{Build, Place, Role};
use crate::call::KernelCall;
use crate::shard::kernel::Tiling;
use pallas_ir::Dim;

impl Build<'_> {
    /// A factor for each grid axis that devices can divide, and for each size that dimensions which they cannot divide have.
    pub(super) fn kernel(&mut self, call: &KernelCall) {
        let tiling = Tiling::of(call);
        let places: Vec<Place> =
            (tiling.dims.iter().enumerate()).flat_map(|(t, dims)| (0..dims.len()).map(move |dim| (t, dim))).collect();
        let size_of = |(t, dim): Place| -> Option<&Dim> {
            let size = &call.kernel.operand(tiling.operands[t]).dims[dim];
            // Numbers may be equal by chance.
            (tiling.dims[t][dim].is_err() && !size.names().is_empty()).then_some(size)
        };
        let axis_of = |(t, dim): Place| tiling.dims[t][dim].as_ref().ok();
        let mut seen: Vec<Place> = vec![];
        for &place in &places {
            if seen.contains(&place) {
                continue;
            }
            let is_alike = |other: &Place| match (axis_of(place), size_of(place)) {
                (None, None) => *other == place,
                (axis, size) => axis_of(*other) == axis && size_of(*other) == size,
            };
            let alike: Vec<Place> = places.iter().copied().filter(is_alike).collect();
            let tiled = axis_of(place).and_then(|&axis| tiling.axes[axis]);
            let size = self.shapes[place.0][place.1];
            let before = self.rule.factors.len();
            self.add(size, if tiled.is_some() || size == 1 { Role::Pass } else { Role::Replicate }, &alike);
            if let (Some(tiled), Some(factor)) = (tiled, self.rule.factors.get_mut(before)) {
                factor.multiple = tiled.block;
            }
            seen.extend(alike);
        }
    }
}
