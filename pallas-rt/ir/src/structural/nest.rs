//! Affine nests: loops over elements whose positions are linear functions of the loops' indices.
//!
//! ```text
//! for each position of the axes:  result[at(result)] = monoid(result[at(result)], combine(operands[at(operand)]..))
//! at(operand)[dim]                = (Σ stride · axis + offset) / dilation, an element only if that is whole and inside
//! ```
//!
//! A convolution is the nest of two operands whose elements are multiplied; a windowed reduction is the nest of one.
use crate::ScalarOp;

/// Role of a loop of a nest: its iterations give different elements of the result, or are folded into one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NestAxisRole {
    /// Each index of the axis gives another element of the result.
    Parallel,
    /// Folded; no other axis occurs in the operands' positions together with it.
    Reduced,
    /// Folded; an operand's position is a sum of this axis and a parallel one, as in a window.
    Windowed,
}

/// One loop of a loop nest: its number of iterations, and its relation to the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NestLoop {
    /// Number of iterations.
    pub extent: i64,
    /// Relation to the result.
    pub role: NestAxisRole,
}

/// Position along one dimension of an array, as a function of the loops' indices:
/// `(Σ stride · axis + offset) / dilation`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AffinePosition {
    /// Pairs (axis of the nest, stride); strides are at least 1.
    pub terms: Vec<(usize, i64)>,
    /// Constant term.
    pub offset: i64,
    /// Distance of the array's elements on the grid of positions, at least 1; positions between elements have no
    /// element.
    pub dilation: i64,
}

/// Loops that fold elements of operands, or products of them, into a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoopNest {
    /// The loops, outermost first.
    pub axes: Vec<NestLoop>,
    /// Positions in each operand. Elements of several operands are multiplied.
    pub operands: Vec<Vec<AffinePosition>>,
    /// Position in the result, which has one element for each index of the parallel axes: along each dimension the
    /// terms are the digits of a mixed-radix number, the greatest stride first.
    pub result: Vec<AffinePosition>,
    /// The monoid that folds. Where an operand has no element, nothing is folded.
    pub op: ScalarOp,
}

impl AffinePosition {
    /// The position that equals the index of an axis.
    pub fn from_axis(axis: usize) -> AffinePosition {
        AffinePosition { terms: vec![(axis, 1)], offset: 0, dilation: 1 }
    }
    /// Evaluates the position for these indices of the loops; `None` if it lies between two elements, as `dilation`
    /// spreads them.
    pub fn evaluate(&self, indices: &[i64]) -> Option<i64> {
        let sum = self.offset + self.terms.iter().map(|&(axis, stride)| stride * indices[axis]).sum::<i64>();
        (sum % self.dilation == 0).then(|| sum / self.dilation)
    }
    /// Smallest and greatest sum before the division, for loops whose extents are at least 1.
    fn sum_range(&self, axes: &[NestLoop]) -> (i64, i64) {
        let most = |&(axis, stride): &(usize, i64)| stride * (axes[axis].extent - 1);
        (self.offset, self.offset + self.terms.iter().map(most).sum::<i64>())
    }
    /// Returns true if every position is an element of a dimension of this extent.
    pub fn is_always_inside(&self, axes: &[NestLoop], extent: i64) -> bool {
        let (least, most) = self.sum_range(axes);
        self.dilation == 1 && least >= 0 && most < extent
    }
}

impl LoopNest {
    /// Indices of the parallel axes if `wants_parallel` is true, otherwise of the folded ones.
    fn axes_by_role(&self, wants_parallel: bool) -> Vec<usize> {
        (0..self.axes.len()).filter(|&a| (self.axes[a].role == NestAxisRole::Parallel) == wants_parallel).collect()
    }
    /// Indices of the parallel axes.
    pub fn parallel_axes(&self) -> Vec<usize> {
        self.axes_by_role(true)
    }
    /// Indices of the axes that are folded.
    pub fn folded_axes(&self) -> Vec<usize> {
        self.axes_by_role(false)
    }
    /// Returns true if a loop has no iterations.
    pub fn is_empty(&self) -> bool {
        self.axes.iter().any(|axis| axis.extent == 0)
    }
    /// Number of iterations of the folded loops together, which is the number of elements folded into one of the result
    /// if every operand has an element at every position.
    pub fn folded_count(&self) -> usize {
        self.folded_axes().iter().map(|&a| self.axes[a].extent.max(0) as usize).product()
    }
    /// Row-major index, in an array of this shape, of the element at `positions` for these indices of the loops; `None`
    /// if there is no element.
    pub fn flat_index(positions: &[AffinePosition], indices: &[i64], shape: &[usize]) -> Option<usize> {
        positions.iter().zip(shape).try_fold(0, |flat, (position, &n)| {
            let i = usize::try_from(position.evaluate(indices)?).ok().filter(|&i| i < n)?;
            Some(flat * n + i)
        })
    }
    /// Splits the nest into nests without dilations which together compute the same: each covers evenly spaced indices
    /// of the loops, at which all positions are elements.
    pub fn split_dilation(&self) -> Vec<LoopNest> {
        let dilated = self.operands.iter().flatten().find(|p| p.dilation > 1).cloned();
        let Some(position) = dilated else { return vec![self.clone()] };
        let step = |stride: i64| position.dilation / gcd(stride, position.dilation);
        let steps: Vec<(usize, i64)> = position.terms.iter().map(|&(axis, stride)| (axis, step(stride))).collect();
        let firsts = steps.iter().fold(vec![vec![]], |all: Vec<Vec<i64>>, &(axis, step)| {
            let firsts = 0..step.min(self.axes[axis].extent);
            all.iter().flat_map(|head| firsts.clone().map(|i| [&head[..], &[i]].concat())).collect()
        });
        let of = |first: Vec<i64>| {
            let mut axes = vec![0; self.axes.len()];
            steps.iter().zip(&first).for_each(|(&(axis, _), &i)| axes[axis] = i);
            position.evaluate(&axes)?;
            let mut nest = self.clone();
            for (&(axis, step), &i) in steps.iter().zip(&first) {
                nest.axes[axis].extent = (self.axes[axis].extent - i + step - 1) / step;
                for place in nest.operands.iter_mut().flatten().chain(&mut nest.result) {
                    for (_, stride) in place.terms.iter_mut().filter(|(a, _)| *a == axis) {
                        place.offset += *stride * i;
                        *stride *= step;
                    }
                }
            }
            for place in nest.operands.iter_mut().flatten() {
                let whole = |x: i64| x % place.dilation == 0;
                if whole(place.offset) && place.terms.iter().all(|t| whole(t.1)) {
                    place.terms.iter_mut().for_each(|t| t.1 /= place.dilation);
                    place.offset /= place.dilation;
                    place.dilation = 1;
                }
            }
            Some(nest)
        };
        // An axis has at most one dilated position in the nests of operations, so one that is split stays split.
        firsts.into_iter().filter_map(of).flat_map(|nest| nest.split_dilation()).collect()
    }
}

/// Greatest common divisor.
fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
