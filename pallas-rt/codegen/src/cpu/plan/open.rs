//! Tiles in an array's memory that go on behind its end.
//!
//! ```text
//! %1 = load x[..]; gather %1, ..    ->  %1 refers to x's memory, also where x ends in it    if no window begins there
//! %1 = load x[..]; dot %0 %1        ->  the same                                            if zeros lie behind the end
//! ```
//! Those who read such a tile read nothing behind the end: `run/memory` keeps where that is.
use super::step::{Affine, Block, Dot, Step};
use pallas_ir::structural::Windows;
use pallas_ir::{Kernel, Value};
use std::collections::{HashMap, HashSet};

/// Finds the axes along which loaded tiles may go on behind the array's end: those along which all that read them are
/// gathers that move no window there, or products.
pub(super) fn open_ends(kernel: &Kernel, roots: &[Value], body: &mut Block) {
    let mut open = Open { kernel, roots, axes: HashMap::new(), turned: HashMap::new(), zeros: HashSet::new() };
    open.find(body);
    open.axes.retain(|_, axes| *axes != 0);
    if !open.axes.is_empty() {
        mark(&open.axes, body);
    }
}

struct Open<'a> {
    kernel: &'a Kernel,
    roots: &'a [Value],
    /// By loaded tile: the axes, a bit each.
    axes: HashMap<Value, u8>,
    /// Tiles with their axes in another order: for each the axis of the tile whose memory it has.
    turned: HashMap<Value, Vec<usize>>,
    /// Loaded tiles with zeros behind the array's end.
    zeros: HashSet<Value>,
}

impl Open<'_> {
    fn find(&mut self, block: &Block) {
        for step in &block.steps {
            match step {
                Step::Load { fill, to, .. } if fill.bits == 0 => _ = self.zeros.insert(*to),
                Step::Restride { from, axes, to } => {
                    let has_axes = self.kernel.ty(*to).shape.len() == axes.len();
                    if let Some(order) = turn(axes).filter(|_| has_axes) {
                        let order = order.into_iter().map(|axis| self.axis(*from, axis)).collect();
                        self.turned.insert(*to, order);
                    }
                }
                _ => {}
            }
            for v in step.reads() {
                let root = self.roots[v.index()];
                let axes = match step {
                    Step::Gather(gather) if gather.from == root && self.roots[gather.index.index()] != root => {
                        parallel(&gather.windows)
                    }
                    Step::Restride { to, .. } if self.turned.contains_key(to) => u8::MAX,
                    Step::Dot(dot) if self.zeros.contains(&root) => self.of_product(dot, v),
                    _ => 0,
                };
                *self.axes.entry(root).or_insert(u8::MAX) &= axes;
            }
            step.blocks().into_iter().for_each(|inner| self.find(inner));
        }
        self.axes.extend(block.yields.iter().map(|v| (self.roots[v.index()], 0)));
    }

    /// The axis of the tile whose memory `v` has.
    fn axis(&self, v: Value, axis: usize) -> usize {
        self.turned.get(&v).map_or(axis, |order| order[axis])
    }

    /// The axes along which an operand of a product may end: the contracted and the free one, if there is one of each.
    fn of_product(&self, dot: &Dot, v: Value) -> u8 {
        let is_in_order = v == self.roots[v.index()] || self.turned.contains_key(&v);
        if !is_in_order || dot.high.is_some() || dot.is_paged || dot.init == Some(v) {
            return 0;
        }
        let sides = [(0, dot.a), (1, dot.b)].into_iter().filter(|(_, operand)| *operand == v);
        let own = sides.map(|(side, _)| {
            let single = [&dot.contract[side], &dot.free[side]].into_iter().filter(|axes| axes.len() == 1);
            single.flatten().map(|&axis| 1 << self.axis(v, axis)).sum::<u8>()
        });
        own.fold(u8::MAX, |all, axes| all & axes)
    }
}

/// The order of axes, if a tile has all of another one's.
fn turn(axes: &[Affine]) -> Option<Vec<usize>> {
    let mut order = vec![usize::MAX; axes.len()];
    for (from, affine) in axes.iter().enumerate() {
        let to = affine.axis.filter(|_| (affine.stride, affine.offset) == (1, 0))?;
        *order.get_mut(to)? = from;
    }
    (!order.contains(&usize::MAX)).then_some(order)
}

fn mark(axes: &HashMap<Value, u8>, block: &mut Block) {
    for step in &mut block.steps {
        if let Step::Load { in_place: true, open, to, .. } = step {
            *open = axes.get(to).copied().unwrap_or(0);
        }
        step.blocks_mut().into_iter().for_each(|inner| mark(axes, inner));
    }
}

/// The axes of an operand that are parallel to an axis of the windows' array, a bit each.
fn parallel(windows: &Windows) -> u8 {
    let bits = windows.axes.iter().enumerate().map(|(k, axis)| u8::from(axis.start.is_none()) << k);
    bits.sum()
}
