//! The factors of affine nests: convolutions and folds of windows.
use super::{FactorRole, RuleBuilder, TensorDim};
use pallas_ir::structural::{AffinePosition, LoopNest, NestAxisRole as LoopRole};

impl RuleBuilder<'_> {
    /// Adds the factors of a convolution or of a fold of windows.
    pub(super) fn add_nest_factors(&mut self, nest: &LoopNest) {
        if nest.operands.len() == 1 {
            return self.add_window_fold_factors(nest);
        }
        let windowed = |position: &AffinePosition| {
            let axis = |role| position.terms.iter().map(|term| term.0).find(|&a| nest.axes[a].role == role);
            axis(LoopRole::Windowed).map(|window| (axis(LoopRole::Parallel), window))
        };
        // The factors are in the order of the loops, whatever the layout: batch, spatial dimensions, features.
        let own = |position: &AffinePosition| match windowed(position) {
            Some((place, window)) => place.unwrap_or(window),
            None => position.terms.last().map_or(0, |term| term.0),
        };
        let mut dims: Vec<usize> = (0..nest.operands[0].len()).collect();
        dims.sort_by_key(|&dim| own(&nest.operands[0][dim]));
        let mut is_left: Vec<bool> = nest.axes.iter().map(|axis| axis.role == LoopRole::Parallel).collect();
        for dim in dims {
            let position = &nest.operands[0][dim];
            match windowed(position) {
                Some((Some(place), window)) => {
                    is_left[place] = false;
                    self.add_windowed_dim_factors(nest, dim, place, window);
                }
                _ => {
                    for &(axis, _) in &position.terms {
                        is_left[axis] = false;
                        self.add_loop_factor(nest, axis);
                    }
                }
            }
        }
        for axis in (0..nest.axes.len()).filter(|&axis| is_left[axis] && nest.axes[axis].extent > 1) {
            self.add_loop_factor(nest, axis);
        }
    }

    /// Returns the dimensions of operands and result along which the loop `axis` of a convolution or windowed fold
    /// steps, alone or together with other loops.
    fn dims_of_loop(&self, nest: &LoopNest, axis: usize) -> Vec<TensorDim> {
        let all = nest.operands.iter().enumerate().chain([(self.first_result(), &nest.result)]);
        let has = |position: &AffinePosition| position.terms.iter().any(|term| term.0 == axis);
        all.flat_map(|(tensor, positions)| {
            (0..positions.len()).filter(|&dim| has(&positions[dim])).map(move |dim| (tensor, dim)).collect::<Vec<_>>()
        })
        .collect()
    }

    /// Adds the factor of a loop of a convolution or windowed fold that steps along a whole dimension or a part of one:
    /// batch, features or groups.
    fn add_loop_factor(&mut self, nest: &LoopNest, axis: usize) {
        let places = self.dims_of_loop(nest, axis);
        let is_part = |position: &AffinePosition| position.terms.len() > 1 && position.terms[0].0 == axis;
        // One group is as good as none and needs no factor.
        let is_group = nest.operands.iter().flatten().any(is_part);
        let role =
            if nest.axes[axis].role == LoopRole::Parallel { FactorRole::PassThrough } else { FactorRole::Reduce };
        if !is_group || nest.axes[axis].extent > 1 {
            self.add_factor(nest.axes[axis].extent as usize, role, &places);
        }
    }

    /// Adds the factors of a spatial dimension over which a window moves. If the window moves by several elements at a
    /// time, the operand's dimension is split into positions of the window and the elements of one step, which are
    /// summed as far as the window reaches.
    fn add_windowed_dim_factors(&mut self, nest: &LoopNest, dim: usize, position_loop: usize, window_loop: usize) {
        let (from, to) = (self.shapes[0][dim], nest.axes[position_loop].extent as usize);
        let size = nest.axes[window_loop].extent as usize;
        let out = self.dims_of_loop(nest, position_loop).into_iter().find(|at| at.0 == self.first_result());
        let of_window = self.dims_of_loop(nest, window_loop).into_iter().find(|at| at.0 == 1);
        let moved = [Some((0, dim)), out].into_iter().flatten().collect::<Vec<TensorDim>>();
        let steps = from.checked_div(to).unwrap_or(0);
        if steps <= 1 {
            self.add_nontrivial_factor(from.min(to), FactorRole::Permute, &moved);
            let alone: Vec<TensorDim> = of_window.into_iter().collect();
            self.add_nontrivial_factor(size, FactorRole::Permute, &alone);
            return;
        }
        let reach = steps.min(size);
        let summed: Vec<TensorDim> = [Some((0, dim)), of_window].into_iter().flatten().collect();
        let mut factors = [(to, FactorRole::Permute, moved), (reach, FactorRole::Reduce, summed)];
        if to < reach {
            factors.reverse();
        }
        factors.iter().for_each(|(size, role, places)| self.add_nontrivial_factor(*size, *role, places));
    }

    /// Adds a factor that these dimensions share, unless its size is 1.
    fn add_nontrivial_factor(&mut self, size: usize, role: FactorRole, places: &[TensorDim]) {
        if size > 1 {
            self.add_factor(size, role, places);
        }
    }

    /// Adds the factors of a fold of windows, such as a pooling.
    fn add_window_fold_factors(&mut self, nest: &LoopNest) {
        let result = self.first_result();
        for (dim, &n) in self.shapes[result].iter().enumerate() {
            let terms = &nest.operands[0][dim].terms;
            let is_alone = terms
                .iter()
                .all(|&(axis, _)| nest.axes[axis].role != LoopRole::Windowed || nest.axes[axis].extent == 1);
            let role = if is_alone && self.shapes[0][dim] == n { FactorRole::PassThrough } else { FactorRole::Permute };
            self.add_factor(n, role, &[(0, dim), (result, dim)]);
        }
    }
}
