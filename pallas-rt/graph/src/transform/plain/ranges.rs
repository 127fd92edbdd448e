//! Bounds of the integers in a kernel, by which most blocks are known to lie inside of their arrays.
use pallas_ir::{BlockDim, Frame, InstId, Kernel, Literal, Op as TileOp, OperandId, RegionId, ScalarOp, Value, View};
use std::collections::HashMap;

/// The least and the greatest value of an integer.
pub(super) type Range = (i64, i64);

/// The sizes of a call.
pub(super) struct Sizes {
    /// Extents of the grid.
    pub(super) grid: Vec<i64>,
    /// By operand, the extents of its array; of scratch those of its block.
    pub(super) shapes: Vec<Vec<usize>>,
    /// Values that are the same in all programs.
    pub(super) known: HashMap<Value, Literal>,
}

/// What is known of the integers of a kernel.
pub(super) struct Ranges {
    /// By value of an i32 scalar.
    values: HashMap<Value, Range>,
    /// By operand with an index map, the position of its block's first element along each axis.
    pub(super) origins: Vec<Option<Vec<Range>>>,
    /// By operand, and by axis of its array, the elements in front of it and after it that accesses may touch.
    pub(super) margins: Vec<Vec<(usize, usize)>>,
}

impl Ranges {
    pub(super) fn of(kernel: &Kernel, sizes: &Sizes) -> Ranges {
        let margins = sizes.shapes.iter().map(|shape| vec![(0, 0); shape.len()]).collect();
        let mut own = Ranges { values: HashMap::new(), origins: vec![None; kernel.operands.len()], margins };
        let int = |(&v, x): (&Value, &Literal)| (!x.dtype.is_float()).then(|| (v, (x.as_i64(), x.as_i64())));
        own.values.extend(sizes.known.iter().filter_map(int));
        for (i, operand) in kernel.operands.iter().enumerate() {
            let Some(map) = operand.map else { continue };
            let ids = kernel.region(map).params.iter().zip(&sizes.grid);
            ids.for_each(|(&p, &n)| own.set(p, Some((0, n - 1))));
            own.region(kernel, sizes, map);
            let origin = |(axis, &v): (usize, &Value)| {
                let index = held(operand.block[axis], sizes.shapes[i][axis]);
                let (low, high) = own.values.get(&v).copied().map_or(index, |(a, b)| {
                    if is_within((a, b), index) {
                        (a, b)
                    } else {
                        (a.clamp(index.0, index.1), b.clamp(index.0, index.1))
                    }
                });
                (position(operand.block[axis], low), position(operand.block[axis], high))
            };
            own.origins[i] = Some(kernel.region(map).yields.iter().enumerate().map(origin).collect());
        }
        own.region(kernel, sizes, kernel.body);
        own
    }

    /// The range of an index, if it is known.
    pub(super) fn of_value(&self, v: Value) -> Option<Range> {
        self.values.get(&v).copied()
    }

    /// The one value that an integer has.
    pub(super) fn point(&self, v: Value) -> Option<i64> {
        self.of_value(v).filter(|(a, b)| a == b).map(|(a, _)| a)
    }

    /// Bounds beyond i32 are no bounds, since integers wrap around.
    fn set(&mut self, v: Value, range: Option<Range>) {
        if let Some(range) = range.filter(|range| is_within(*range, (i32::MIN.into(), i32::MAX.into()))) {
            self.values.insert(v, range);
        }
    }

    fn region(&mut self, kernel: &Kernel, sizes: &Sizes, region: RegionId) {
        for &id in &kernel.region(region).insts {
            self.inst(kernel, sizes, id);
        }
    }

    fn inst(&mut self, kernel: &Kernel, sizes: &Sizes, id: InstId) {
        let inst = kernel.inst(id);
        match &inst.op {
            TileOp::ProgramId(axis) => self.set(inst.results[0], Some((0, sizes.grid[*axis] - 1))),
            TileOp::Scalar(op) if kernel.ty(inst.results[0]).is_scalar() => {
                let args: Option<Vec<Range>> = inst.args.iter().map(|v| self.of_value(*v)).collect();
                self.set(inst.results[0], args.and_then(|args| combined(*op, &args)));
            }
            TileOp::For { .. } => {
                let bounds = self.of_value(inst.args[0]).zip(self.of_value(inst.args[1]));
                let index = bounds.map(|((low, _), (_, high))| (low, high - 1)).filter(|(low, high)| low <= high);
                self.set(kernel.region(inst.regions[0]).params[0], index);
            }
            TileOp::Load { from, view, .. } => self.access(kernel, sizes, *from, view, &inst.args, false),
            TileOp::Store { to, view, .. } => self.access(kernel, sizes, *to, view, &inst.args[1..], true),
            _ => {}
        }
        inst.regions.iter().for_each(|&r| self.region(kernel, sizes, r));
    }

    /// Widens the margins of an array by an access.
    fn access(&mut self, kernel: &Kernel, sizes: &Sizes, of: OperandId, view: &View, args: &[Value], is_store: bool) {
        let reaches = reaches(kernel, of, view, is_store);
        for (axis, start) in starts(kernel, of, view, args).into_iter().enumerate() {
            let (n, reach) = (sizes.shapes[of.index()][axis] as i64, reaches[axis] as i64);
            let own = start.value.map_or(Some((0, 0)), |v| self.of_value(v));
            let origin = match (&self.origins[of.index()], view.frame) {
                (Some(origin), Frame::Block) => origin[axis],
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

fn is_within((a, b): Range, (low, high): Range) -> bool {
    low <= a && b <= high
}

/// The indices of blocks that have elements of an array of this extent, and the next one on each side. A block at an index
/// beyond has no element either, so indices are held in this range.
pub(super) fn held(block: BlockDim, n: usize) -> Range {
    let n = n as i64;
    match block {
        BlockDim::Squeezed => (-1, n),
        BlockDim::Blocked(size) => (-1, (n + size as i64 - 1) / (size as i64).max(1)),
        BlockDim::Element { size, low, .. } => (low as i64 - size as i64, low as i64 + n),
    }
}

/// The position of a block's first element, from what an index map gives.
fn position(block: BlockDim, index: i64) -> i64 {
    match block {
        BlockDim::Squeezed => index,
        BlockDim::Blocked(size) => index * size as i64,
        BlockDim::Element { low, .. } => index - low as i64,
    }
}

/// The bounds of an operation's result.
fn combined(op: ScalarOp, args: &[Range]) -> Option<Range> {
    let (a, b) = (args[0], *args.get(1)?);
    let products = [a.0 * b.0, a.0 * b.1, a.1 * b.0, a.1 * b.1];
    Some(match op {
        ScalarOp::Add => (a.0 + b.0, a.1 + b.1),
        ScalarOp::Sub => (a.0 - b.1, a.1 - b.0),
        ScalarOp::Mul => (*products.iter().min()?, *products.iter().max()?),
        ScalarOp::Minimum => (a.0.min(b.0), a.1.min(b.1)),
        ScalarOp::Maximum => (a.0.max(b.0), a.1.max(b.1)),
        // By a positive number of a number that is not negative, so that rounding has one direction.
        ScalarOp::Div if a.0 >= 0 && b.0 > 0 => (a.0 / b.1, a.1 / b.0),
        ScalarOp::Rem if a.0 >= 0 && b.0 > 0 => (0, a.1.min(b.1 - 1)),
        _ => return None,
    })
}

/// The start of a view along an axis of the array, relative to the block or to the array.
pub(super) struct Start {
    pub(super) offset: i64,
    pub(super) value: Option<Value>,
}

/// By axis of the array, the start of a view whose dynamic starts are the first of `args`.
pub(super) fn starts(kernel: &Kernel, of: OperandId, view: &View, args: &[Value]) -> Vec<Start> {
    let (mut axes, mut args) = (view.axes.iter(), args.iter());
    let block = &kernel.operand(of).block;
    let start = |block: &BlockDim| {
        if view.frame == Frame::Block && !block.kept() {
            return Start { offset: 0, value: None };
        }
        let axis = axes.next().expect("a view has an entry for each axis of its frame");
        Start { offset: axis.offset, value: if axis.dynamic { args.next().copied() } else { None } }
    };
    block.iter().map(start).collect()
}

/// By axis of the array, its position in the view, if the view has it.
pub(super) fn view_axes(kernel: &Kernel, of: OperandId, view: &View) -> Vec<Option<usize>> {
    let mut next = 0..;
    let block = &kernel.operand(of).block;
    block.iter().map(|b| if view.frame == Frame::Block && !b.kept() { None } else { next.next() }).collect()
}

/// By axis of the array, the number of adjacent elements that contain those of a view. A store with a stride has the
/// elements after its last one too, so that it has as many for each element.
pub(super) fn reaches(kernel: &Kernel, of: OperandId, view: &View, is_store: bool) -> Vec<usize> {
    let reach = |axis: Option<usize>| {
        let Some(axis) = axis.map(|axis| view.axes[axis]) else { return 1 };
        let stride = axis.stride as usize;
        match axis.size {
            0 => 0,
            n if is_store => n * stride,
            n => (n - 1) * stride + 1,
        }
    };
    view_axes(kernel, of, view).into_iter().map(reach).collect()
}
