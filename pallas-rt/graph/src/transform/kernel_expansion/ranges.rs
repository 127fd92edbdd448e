//! Bounds of the integers in a kernel, which show that most blocks lie inside of their arrays and need no padding.
use pallas_ir::{
    BlockDim, InstId, Kernel, Literal, Op as TileOp, OperandId, RegionId, ScalarOp, Value, View, ViewFrame,
};
use std::collections::HashMap;

/// The least and the greatest value that an integer may have, both inclusive.
pub(super) type InclusiveRange = (i64, i64);

/// The grid and shapes of a kernel call, with the values that are constant for them.
pub(super) struct CallSizes {
    /// Number of programs along each grid axis.
    pub(super) grid: Vec<i64>,
    /// For each operand, the shape of its array; of scratch, that of its block.
    pub(super) shapes: Vec<Vec<usize>>,
    /// Scalar values of the kernel that are the same constant in all programs.
    pub(super) known: HashMap<Value, Literal>,
}

/// Bounds of the i32 scalars of a kernel, and of the positions that its accesses may touch.
pub(super) struct IntegerBounds {
    /// Bounds of the i32 scalars that are known.
    values: HashMap<Value, InclusiveRange>,
    /// For each operand with an index map, the bounds of its block's first position along each axis.
    pub(super) origins: Vec<Option<Vec<InclusiveRange>>>,
    /// For each operand and each axis of its array, how many elements before its start and after its end accesses may
    /// touch.
    pub(super) margins: Vec<Vec<(usize, usize)>>,
}

impl IntegerBounds {
    /// Computes the bounds of a kernel's integers, and how far its accesses reach outside of their arrays, for a call
    /// with these sizes.
    pub(super) fn from_kernel(kernel: &Kernel, sizes: &CallSizes) -> IntegerBounds {
        let margins = sizes.shapes.iter().map(|shape| vec![(0, 0); shape.len()]).collect();
        let mut own = IntegerBounds { values: HashMap::new(), origins: vec![None; kernel.operands.len()], margins };
        let int = |(&v, x): (&Value, &Literal)| (!x.dtype.is_float()).then(|| (v, (x.as_i64(), x.as_i64())));
        own.values.extend(sizes.known.iter().filter_map(int));
        for (i, operand) in kernel.operands.iter().enumerate() {
            let Some(map) = operand.map else { continue };
            let ids = kernel.region(map).params.iter().zip(&sizes.grid);
            ids.for_each(|(&p, &n)| own.set_bounds(p, Some((0, n - 1))));
            own.derive_region_bounds(kernel, sizes, map);
            let origin = |(axis, &v): (usize, &Value)| {
                let index = clamped_block_range(operand.block[axis], sizes.shapes[i][axis]);
                let (low, high) = own.values.get(&v).copied().map_or(index, |(a, b)| {
                    if is_within((a, b), index) {
                        (a, b)
                    } else {
                        (a.clamp(index.0, index.1), b.clamp(index.0, index.1))
                    }
                });
                (block_start_position(operand.block[axis], low), block_start_position(operand.block[axis], high))
            };
            own.origins[i] = Some(kernel.region(map).yields.iter().enumerate().map(origin).collect());
        }
        own.derive_region_bounds(kernel, sizes, kernel.body);
        own
    }

    /// Returns the bounds of an i32 scalar, if they are known.
    pub(super) fn bounds_of(&self, v: Value) -> Option<InclusiveRange> {
        self.values.get(&v).copied()
    }

    /// Returns the value of an integer whose two bounds are equal; `None` if they differ or are unknown.
    pub(super) fn constant_value(&self, v: Value) -> Option<i64> {
        self.bounds_of(v).filter(|(a, b)| a == b).map(|(a, _)| a)
    }

    /// Records the bounds of a value. Bounds that exceed i32 are dropped, since integers wrap around.
    fn set_bounds(&mut self, v: Value, range: Option<InclusiveRange>) {
        if let Some(range) = range.filter(|range| is_within(*range, (i32::MIN.into(), i32::MAX.into()))) {
            self.values.insert(v, range);
        }
    }

    fn derive_region_bounds(&mut self, kernel: &Kernel, sizes: &CallSizes, region: RegionId) {
        for &id in &kernel.region(region).insts {
            self.derive_inst_bounds(kernel, sizes, id);
        }
    }

    /// Derives the bounds of an instruction's results, and the margins that its access needs.
    fn derive_inst_bounds(&mut self, kernel: &Kernel, sizes: &CallSizes, id: InstId) {
        let inst = kernel.inst(id);
        match &inst.op {
            TileOp::ProgramId(axis) => self.set_bounds(inst.results[0], Some((0, sizes.grid[*axis] - 1))),
            TileOp::Scalar(op) if kernel.ty(inst.results[0]).is_scalar() => {
                let args: Option<Vec<InclusiveRange>> = inst.args.iter().map(|v| self.bounds_of(*v)).collect();
                self.set_bounds(inst.results[0], args.and_then(|args| result_bounds(*op, &args)));
            }
            TileOp::For { .. } => {
                let bounds = self.bounds_of(inst.args[0]).zip(self.bounds_of(inst.args[1]));
                let index = bounds.map(|((low, _), (_, high))| (low, high - 1)).filter(|(low, high)| low <= high);
                self.set_bounds(kernel.region(inst.regions[0]).params[0], index);
            }
            TileOp::Load { from, view, .. } => self.widen_margins(kernel, sizes, *from, view, &inst.args, false),
            TileOp::Store { to, view, .. } => self.widen_margins(kernel, sizes, *to, view, &inst.args[1..], true),
            _ => {}
        }
        inst.regions.iter().for_each(|&r| self.derive_region_bounds(kernel, sizes, r));
    }

    /// Widens an operand's margins, the numbers of elements before and after its array that accesses may touch, so that
    /// they contain the positions of one access: a store if `is_store` is true, otherwise a load.
    fn widen_margins(
        &mut self,
        kernel: &Kernel,
        sizes: &CallSizes,
        of: OperandId,
        view: &View,
        args: &[Value],
        is_store: bool,
    ) {
        let reaches = view_spans(kernel, of, view, is_store);
        for (axis, start) in view_starts(kernel, of, view, args).into_iter().enumerate() {
            let (n, reach) = (sizes.shapes[of.index()][axis] as i64, reaches[axis] as i64);
            let own = start.value.map_or(Some((0, 0)), |v| self.bounds_of(v));
            let origin = match (&self.origins[of.index()], view.frame) {
                (Some(origin), ViewFrame::Block) => origin[axis],
                _ => (0, 0),
            };
            let (low, high) = match own {
                Some((a, b)) => {
                    let (a, b) = (origin.0 + start.offset + a, origin.1 + start.offset + b);
                    ((-a).clamp(0, reach), (b + reach - n).clamp(0, reach))
                }
                None => (reach, reach),
            };
            let margin = &mut self.margins[of.index()][axis];
            *margin = (margin.0.max(low as usize), margin.1.max(high as usize));
        }
    }
}

fn is_within((a, b): InclusiveRange, (low, high): InclusiveRange) -> bool {
    low <= a && b <= high
}

/// Returns the range to which block indices can be clamped along an axis of `axis_extent` elements: the blocks with
/// elements of the array, and one more on each side. Blocks further outside have no elements of the array either.
pub(super) fn clamped_block_range(block: BlockDim, axis_extent: usize) -> InclusiveRange {
    let n = axis_extent as i64;
    match block {
        BlockDim::Squeezed => (-1, n),
        BlockDim::Blocked(size) => (-1, (n + size as i64 - 1) / (size as i64).max(1)),
        BlockDim::Element { size, low, .. } => (low as i64 - size as i64, low as i64 + n),
    }
}

/// Returns the position of a block's first element for the index that an index map yields.
fn block_start_position(block: BlockDim, index: i64) -> i64 {
    match block {
        BlockDim::Squeezed => index,
        BlockDim::Blocked(size) => index * size as i64,
        BlockDim::Element { low, .. } => index - low as i64,
    }
}

/// Returns the bounds of an operation's result from those of its operands; `None` if they are unknown.
fn result_bounds(op: ScalarOp, args: &[InclusiveRange]) -> Option<InclusiveRange> {
    let (a, b) = (args[0], *args.get(1)?);
    let products = [a.0 * b.0, a.0 * b.1, a.1 * b.0, a.1 * b.1];
    Some(match op {
        ScalarOp::Add => (a.0 + b.0, a.1 + b.1),
        ScalarOp::Sub => (a.0 - b.1, a.1 - b.0),
        ScalarOp::Mul => (*products.iter().min()?, *products.iter().max()?),
        ScalarOp::Minimum => (a.0.min(b.0), a.1.min(b.1)),
        ScalarOp::Maximum => (a.0.max(b.0), a.1.max(b.1)),
        // Only for a dividend that is not negative and a positive divisor, so that division always rounds down.
        ScalarOp::Div if a.0 >= 0 && b.0 > 0 => (a.0 / b.1, a.1 / b.0),
        ScalarOp::Rem if a.0 >= 0 && b.0 > 0 => (0, a.1.min(b.1 - 1)),
        _ => return None,
    })
}

/// The start of a view along an axis of the array: a constant plus a computed value, relative to the block or to the
/// array.
pub(super) struct ViewStart {
    pub(super) offset: i64,
    pub(super) value: Option<Value>,
}

/// Returns for each axis of the array the start of a view. The first elements of `args` are the view's computed starts.
pub(super) fn view_starts(kernel: &Kernel, of: OperandId, view: &View, args: &[Value]) -> Vec<ViewStart> {
    let (mut axes, mut args) = (view.axes.iter(), args.iter());
    let block = &kernel.operand(of).block;
    let start = |block: &BlockDim| {
        if view.frame == ViewFrame::Block && !block.is_kept() {
            return ViewStart { offset: 0, value: None };
        }
        let axis = axes.next().expect("a view has an entry for each axis of its frame");
        ViewStart { offset: axis.offset, value: if axis.dynamic { args.next().copied() } else { None } }
    };
    block.iter().map(start).collect()
}

/// Returns for each axis of the array the index of its entry in the view; `None` for an axis that the block squeezes.
pub(super) fn view_axis_by_array_axis(kernel: &Kernel, of: OperandId, view: &View) -> Vec<Option<usize>> {
    let mut next = 0..;
    let block = &kernel.operand(of).block;
    block.iter().map(|b| if view.frame == ViewFrame::Block && !b.is_kept() { None } else { next.next() }).collect()
}

/// Returns for each axis of the array the number of adjacent elements that contain those of a view. For a store with a
/// stride, the gap after the last element counts too, so that each element has a full stride.
pub(super) fn view_spans(kernel: &Kernel, of: OperandId, view: &View, is_store: bool) -> Vec<usize> {
    let reach = |axis: Option<usize>| {
        let Some(axis) = axis.map(|axis| view.axes[axis]) else { return 1 };
        let stride = axis.stride as usize;
        match axis.size {
            0 => 0,
            n if is_store => n * stride,
            n => (n - 1) * stride + 1,
        }
    };
    view_axis_by_array_axis(kernel, of, view).into_iter().map(reach).collect()
}
