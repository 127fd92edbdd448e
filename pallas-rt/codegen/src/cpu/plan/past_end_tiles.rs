//! Loaded tiles that refer to an array's memory although their block extends past the array's end.
//!
//! ```text
//! %1 = load x[..]; gather %1, ..    ->  %1 refers to x's memory, also where x ends in it    if no window begins there
//! %1 = load x[..]; dot %0 %1        ->  %1 refers to x's memory, also where x ends in it    if zeros follow the end
//! ```
//! Steps that read such a tile read nothing past the end, whose position `run/past_end_products` keeps.
use super::step::{AffineIndex, Dot, Step, StepBlock};
use pallas_ir::structural::IndexedWindows;
use pallas_ir::{Kernel, Value};
use std::collections::{HashMap, HashSet};

/// Marks, for each loaded tile in an array's memory, the axes along which it may extend past the array's end: those
/// along which its only readers are gathers that take whole lines, or products.
pub(super) fn mark_overhang_axes(kernel: &Kernel, roots: &[Value], body: &mut StepBlock) {
    let mut open =
        OverhangSearch { kernel, roots, axes: HashMap::new(), turned: HashMap::new(), zeros: HashSet::new() };
    open.restrict_overhang_axes(body);
    open.axes.retain(|_, axes| *axes != 0);
    if !open.axes.is_empty() {
        mark_loads_with_overhang(&open.axes, body);
    }
}

/// The search for axes along which tiles may extend past their array's end.
struct OverhangSearch<'a> {
    kernel: &'a Kernel,
    roots: &'a [Value],
    /// For each loaded tile its axes that are still allowed, as a bit mask.
    axes: HashMap<Value, u8>,
    /// For each transposed view of a tile: the axis of the tile that each of its axes is.
    turned: HashMap<Value, Vec<usize>>,
    /// Loaded tiles whose elements past the array's end are zeros.
    zeros: HashSet<Value>,
}

impl OverhangSearch<'_> {
    /// Removes, for each tile that the block's steps (or steps inside of them) read or that it yields, the axes along
    /// which a reader does not allow the tile to extend past its array's end.
    fn restrict_overhang_axes(&mut self, block: &StepBlock) {
        for step in &block.steps {
            match step {
                Step::Load { fill, to, .. } if fill.bits == 0 => _ = self.zeros.insert(*to),
                Step::Restride { from, axes, to } => {
                    let has_axes = self.kernel.ty(*to).shape.len() == axes.len();
                    if let Some(order) = axis_permutation(axes).filter(|_| has_axes) {
                        let order = order.into_iter().map(|axis| self.axis_in_memory_root(*from, axis)).collect();
                        self.turned.insert(*to, order);
                    }
                }
                _ => {}
            }
            for v in step.reads() {
                let root = self.roots[v.index()];
                let axes = match step {
                    Step::Gather(gather) if gather.from == root && self.roots[gather.index.index()] != root => {
                        unindexed_operand_axes_mask(&gather.windows)
                    }
                    Step::Restride { to, .. } if self.turned.contains_key(to) => u8::MAX,
                    Step::Dot(dot) if self.zeros.contains(&root) => self.product_overhang_axes_mask(dot, v),
                    _ => 0,
                };
                *self.axes.entry(root).or_insert(u8::MAX) &= axes;
            }
            step.nested_blocks().into_iter().for_each(|inner| self.restrict_overhang_axes(inner));
        }
        self.axes.extend(block.yields.iter().map(|v| (self.roots[v.index()], 0)));
    }

    /// Returns the axis along which axis `axis` of `v` runs in the tile whose memory `v` has.
    fn axis_in_memory_root(&self, v: Value, axis: usize) -> usize {
        self.turned.get(&v).map_or(axis, |order| order[axis])
    }

    /// Returns the axes along which an operand of a product may extend past the end, as a bit mask: the contracted and
    /// the free one, if there is one of each.
    fn product_overhang_axes_mask(&self, dot: &Dot, v: Value) -> u8 {
        let is_in_order = v == self.roots[v.index()] || self.turned.contains_key(&v);
        if !is_in_order || dot.high.is_some() || dot.is_paged || dot.init == Some(v) {
            return 0;
        }
        let sides = [(0, dot.a), (1, dot.b)].into_iter().filter(|(_, operand)| *operand == v);
        let own = sides.map(|(side, _)| {
            let single = [&dot.contract[side], &dot.free[side]].into_iter().filter(|axes| axes.len() == 1);
            single.flatten().map(|&axis| 1 << self.axis_in_memory_root(v, axis)).sum::<u8>()
        });
        own.fold(u8::MAX, |all, axes| all & axes)
    }
}

/// Returns the order of axes of a view that has all axes of its tile, without strides or offsets; `None` for other
/// views.
fn axis_permutation(axes: &[AffineIndex]) -> Option<Vec<usize>> {
    let mut order = vec![usize::MAX; axes.len()];
    for (from, affine) in axes.iter().enumerate() {
        let to = affine.axis.filter(|_| (affine.stride, affine.offset) == (1, 0))?;
        *order.get_mut(to)? = from;
    }
    (!order.contains(&usize::MAX)).then_some(order)
}

/// Sets, for each load whose tile refers to the array's memory, in a block and the blocks inside of it, the axes along
/// which the tile may extend past the array's end: the bit mask that `overhang_axes` has for it, or none.
fn mark_loads_with_overhang(overhang_axes: &HashMap<Value, u8>, block: &mut StepBlock) {
    for step in &mut block.steps {
        if let Step::Load { in_place: true, open, to, .. } = step {
            *open = overhang_axes.get(to).copied().unwrap_or(0);
        }
        step.nested_blocks_mut().into_iter().for_each(|inner| mark_loads_with_overhang(overhang_axes, inner));
    }
}

/// Returns, as a bit mask, the axes of a gather's operand along which its windows have no start: they take that axis
/// as it is.
fn unindexed_operand_axes_mask(windows: &IndexedWindows) -> u8 {
    let bits = windows.axes.iter().enumerate().map(|(k, axis)| u8::from(axis.start.is_none()) << k);
    bits.sum()
}
