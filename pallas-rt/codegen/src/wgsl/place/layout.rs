//! The distribution of the elements of a tile over threads.
//!
//! Axes of tiles that meet element by element form a *class*: elementwise operands, kept axes of a reduction, carried
//! values, free axes of a product. Two axes of one tile must lie along different directions of the thread grid, so classes
//! are two-coloured; a union that would put two axes of a tile into one class, or break the colouring, is left out, and
//! the reader takes the operand from memory. Axes in front of the last two long ones are held by every thread.
//!
//! Tiles that only pass through registers on their way between arrays and workgroup memory share no class with what is
//! computed. Their threads form a grid of their own: as many along a row as it has elements, so that neighbours read
//! neighbours.
use super::Classes;
use super::views::{Inline, access, view, whole};
use crate::passes::variables::{Variable, variables};
use pallas_ir::{Access, Inst, InstId, Kernel, Op, OperandId, RegionId, Value};
use std::collections::BTreeMap;

/// The direction of the thread grid an axis lies along.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::wgsl) enum Along {
    /// Rows of the thread grid.
    Y,
    /// Columns: neighbours in memory.
    X,
    /// Every thread has all elements.
    Each,
}

/// A class of axes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::wgsl) struct Class {
    /// Extent of its axes.
    pub(in crate::wgsl) size: usize,
    /// Direction.
    pub(in crate::wgsl) along: Along,
    /// Threads that share the axis.
    pub(in crate::wgsl) threads: usize,
    /// Arrays are read or written along it, all of them in whole vectors.
    pub(in crate::wgsl) row: bool,
    /// Classes that meet in tiles are on one grid of threads.
    pub(in crate::wgsl) group: usize,
    /// Rows and columns of that grid.
    pub(in crate::wgsl) grid: (u32, u32),
    /// Neighbours a thread has: thread `t` has elements `vector * t` and on, `vector * (t + threads)` and on, ...
    pub(in crate::wgsl) vector: usize,
}

impl Class {
    /// Elements a thread has.
    pub(in crate::wgsl) fn repeats(self) -> usize {
        self.size / self.threads
    }
    /// Offset of a thread's element `r` from its first element.
    pub(in crate::wgsl) fn distance(self, r: usize) -> usize {
        r / self.vector * self.vector * self.threads + r % self.vector
    }
}

/// Classes of the axes of every tile; an axis of extent 1 (or 0) has none.
#[derive(Clone, Debug)]
pub(in crate::wgsl) struct Layout {
    /// By value and axis.
    pub(in crate::wgsl) axes: Vec<Vec<Option<usize>>>,
    /// By number; `threads` is set by [`Layout::on`].
    pub(in crate::wgsl) classes: Vec<Class>,
    /// By group of classes: products or folds are computed in it.
    computed: Vec<bool>,
    /// By class: rows of arrays lie along it.
    rows: Vec<bool>,
}

impl Layout {
    /// The layout on a grid of threads that have `vector` neighbours along x where that divides, in classes that arrays have
    /// rows of, or in `all`. With `own` grids, groups of classes in which nothing is computed have theirs.
    pub(in crate::wgsl) fn on(&self, grid: (u32, u32), vector: usize, [all, own]: [bool; 2]) -> Layout {
        let wide = |c: &Class| if c.along == Along::X && (c.row || all) { vector } else { 1 };
        let grid_of = |group: usize| {
            let rows = self.classes.iter().filter(|c| c.group == group && c.along == Along::X);
            let longest = rows.map(|c| c.size.div_ceil(if c.size.is_multiple_of(wide(c)) { wide(c) } else { 1 })).max();
            let threads = grid.0 * grid.1;
            match longest {
                Some(longest) if own && !self.computed[group] => {
                    let columns = divisor(threads as usize, longest) as u32;
                    (threads / columns, columns)
                }
                _ => grid,
            }
        };
        let grids: Vec<(u32, u32)> = (0..self.computed.len()).map(grid_of).collect();
        let spread = |c: &Class| {
            let grid = grids[c.group];
            let threads = match c.along {
                Along::Each => 1,
                Along::Y => divisor(c.size, grid.0 as usize),
                Along::X => divisor(c.size, grid.1 as usize),
            };
            let vector = if c.size.is_multiple_of(threads * wide(c)) { wide(c) } else { 1 };
            Class { threads, vector, grid, ..*c }
        };
        let classes = self.classes.iter().map(spread).collect();
        Layout { axes: self.axes.clone(), classes, computed: self.computed.clone(), rows: self.rows.clone() }
    }
    /// Returns true if rows of arrays are spread along both directions of the thread grid, so that for some of them
    /// neighbouring threads access distant elements.
    pub(in crate::wgsl) fn crossed(&self) -> bool {
        let rows = |along: Along| {
            let classes = self.classes.iter().zip(&self.rows);
            classes.filter(move |(c, row)| **row && c.along == along).map(|(c, _)| c.group)
        };
        rows(Along::X).any(|group| rows(Along::Y).any(|other| other == group))
    }
    /// The class of an axis.
    pub(in crate::wgsl) fn class(&self, v: Value, axis: usize) -> Option<Class> {
        self.axes[v.index()][axis].map(|c| self.classes[c])
    }
    /// Registers a thread needs for a tile.
    pub(in crate::wgsl) fn registers(&self, v: Value) -> usize {
        (0..self.axes[v.index()].len()).map(|a| self.class(v, a).map_or(1, Class::repeats)).product()
    }
}

/// The largest divisor of `n` up to `most`.
fn divisor(n: usize, most: usize) -> usize {
    (1..=most.min(n)).rev().find(|d| n.is_multiple_of(*d)).unwrap_or(1)
}

/// Finds the classes and their directions; `whole` tells whether an array's rows are whole vectors, `products` whether
/// those of products go before vectors beside them.
pub(in crate::wgsl) fn layout(
    k: &Kernel,
    inline: &[Option<Inline>],
    defined: &[Option<InstId>],
    whole: impl Fn(OperandId) -> bool,
    products: bool,
) -> Layout {
    let mut first = vec![0; k.values.len()];
    let mut axes = 0;
    for (v, ty) in k.values.iter().enumerate() {
        first[v] = axes;
        axes += ty.shape.len();
    }
    let mut search =
        Search { k, inline, defined, first, joined: Classes::new(axes), pairs: vec![], each: vec![false; axes] };
    search.pairs();
    let mut unions = vec![];
    search.unions(k.body, 0, &mut unions);
    // Where most elements meet most often decides first.
    unions.sort_by_key(|u| std::cmp::Reverse(u.weight));
    for union in unions {
        search.join(&union.pairs);
    }
    search.finish(whole, products)
}

/// Axes that should share a class.
struct Union {
    weight: usize,
    pairs: Vec<(usize, usize)>,
}

struct Search<'k> {
    k: &'k Kernel,
    inline: &'k [Option<Inline>],
    defined: &'k [Option<InstId>],
    /// Number of a value's axis 0.
    first: Vec<usize>,
    joined: Classes,
    /// Axes of one tile that lie along different directions.
    pairs: Vec<(usize, usize)>,
    /// Axes held by every thread.
    each: Vec<bool>,
}

impl Search<'_> {
    fn long(&self, v: Value) -> Vec<usize> {
        let shape = &self.k.ty(v).shape;
        (0..shape.len()).filter(|&a| shape[a] > 1).collect()
    }
    fn axis(&self, v: Value, axis: usize) -> usize {
        self.first[v.index()] + axis
    }
    fn homed(&self, v: Value) -> bool {
        self.inline[v.index()].is_none()
    }
    fn pairs(&mut self) {
        for v in (0..self.k.values.len() as u32).map(Value) {
            if !self.homed(v) {
                continue;
            }
            let long = self.long(v);
            if let [front @ .., a, b] = &long[..] {
                self.pairs.push((self.axis(v, *a), self.axis(v, *b)));
                for &f in front {
                    let axis = self.axis(v, f);
                    self.each[axis] = true;
                }
            }
        }
    }

    /// Axes of tiles that element `at` of `v` is read from: `at` gives the reader's axis number for each axis of `v`.
    fn leaves(&self, v: Value, at: &[Option<usize>], pairs: &mut Vec<(usize, usize)>) {
        match self.inline[v.index()] {
            Some(Inline::Pure(_) | Inline::Fetch) => {}
            Some(Inline::View) => {
                let inst = self.k.inst(self.defined[v.index()].expect("a view has a definition"));
                let (of, index) = view(self.k, inst);
                let whole = |(axis, i)| whole(self.k, [v, of], axis, i).and_then(|a| at[a]);
                let moved: Vec<Option<usize>> = index.iter().enumerate().map(whole).collect();
                self.leaves(of, &moved, pairs);
            }
            None => {
                for a in self.long(v) {
                    if let Some(reader) = at[a] {
                        pairs.push((self.axis(v, a), reader));
                    }
                }
            }
        }
    }
    fn reads(&self, reader: Value, axes: impl Fn(usize) -> Option<usize>, v: Value) -> Vec<(usize, usize)> {
        let (from, to) = (&self.k.ty(v).shape, &self.k.ty(reader).shape);
        let at: Vec<Option<usize>> = (0..from.len())
            .map(|a| axes(a).filter(|&r| r < to.len() && to[r] == from[a]).map(|r| self.axis(reader, r)))
            .collect();
        let mut pairs = vec![];
        self.leaves(v, &at, &mut pairs);
        pairs
    }

    fn unions(&self, region: RegionId, depth: u32, out: &mut Vec<Union>) {
        for &id in &self.k.region(region).insts {
            let inst = self.k.inst(id);
            let deeper = matches!(inst.op, Op::For { .. } | Op::While);
            inst.regions.iter().for_each(|&r| self.unions(r, depth + u32::from(deeper), out));
            self.inst(inst, depth, out);
        }
    }
    fn inst(&self, inst: &Inst, depth: u32, out: &mut Vec<Union>) {
        let trips = 16usize.pow(depth.min(4));
        let mut push = |v: Value, pairs: Vec<(usize, usize)>| {
            if !pairs.is_empty() {
                out.push(Union { weight: self.k.ty(v).elements() * trips, pairs });
            }
        };
        let mut same = |a: Value, b: Value| push(a, self.reads(a, Some, b));
        match &inst.op {
            Op::Scalar(_) => inst.args.iter().for_each(|&v| same(inst.results[0], v)),
            Op::Structural(op) if self.homed(inst.results[0]) => match access(self.k, op, inst) {
                Access::Cast | Access::Bitcast | Access::Powi(_) => same(inst.results[0], inst.args[0]),
                Access::Fold { axes, .. } => {
                    let kept = |a: usize| (!axes.contains(&a)).then_some(a);
                    push(inst.args[0], self.reads(inst.results[0], kept, inst.args[0]));
                }
                _ => {}
            },
            Op::If | Op::For { .. } | Op::While => {
                for Variable { start, values } in variables(self.k, inst) {
                    start.iter().chain(&values[1..]).for_each(|&v| same(values[0], v));
                }
            }
            _ => {}
        }
    }

    /// Joins classes unless that breaks the colouring.
    fn join(&mut self, pairs: &[(usize, usize)]) {
        let before = self.joined.clone();
        for &(a, b) in pairs {
            let (a, b) = (self.joined.root(a), self.joined.root(b));
            self.joined.join(a.max(b), a.min(b));
        }
        if self.joined != before && self.colours(&[]).is_none() {
            self.joined = before;
        }
    }
    /// By root, true for classes along X; `seeds` are axes that prefer X. `None` if there is no colouring.
    fn colours(&self, seeds: &[usize]) -> Option<BTreeMap<usize, bool>> {
        let each: Vec<usize> = (0..self.each.len()).filter(|&a| self.each[a]).map(|a| self.joined.root(a)).collect();
        let mut edges: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &(a, b) in &self.pairs {
            let (a, b) = (self.joined.root(a), self.joined.root(b));
            if each.contains(&a) || each.contains(&b) {
                continue;
            }
            if a == b {
                return None;
            }
            edges.entry(a).or_default().push(b);
            edges.entry(b).or_default().push(a);
        }
        let mut colours: BTreeMap<usize, bool> = BTreeMap::new();
        let rest: Vec<usize> = edges.keys().copied().collect();
        for start in seeds.iter().map(|&a| self.joined.root(a)).chain(rest) {
            if colours.contains_key(&start) {
                continue;
            }
            colours.insert(start, true);
            let mut next = vec![start];
            while let Some(a) = next.pop() {
                let other = !colours[&a];
                for &b in edges.get(&a).into_iter().flatten() {
                    match colours.insert(b, other) {
                        None => next.push(b),
                        Some(c) if c != other => return None,
                        Some(_) => {}
                    }
                }
            }
        }
        Some(colours)
    }
    /// Last axes, in the order they should lie along X: of stored matrices, of loaded ones, of products where asked for, of
    /// what is stored and loaded beside them, of any tile.
    fn seeds(&self, products: bool) -> Vec<usize> {
        let (mut stored, mut loaded, mut multiplied) = (vec![], vec![], vec![]);
        self.k.walk(self.k.body, &mut |_, inst| match &inst.op {
            Op::Store { .. } => stored.push(inst.args[0]),
            Op::Load { .. } => loaded.push(inst.results[0]),
            Op::Structural(op) if products && matches!(access(self.k, op, inst), Access::Contract { .. }) => {
                multiplied.push(inst.results[0]);
            }
            _ => {}
        });
        let any = (0..self.k.values.len() as u32).map(Value);
        let mut all: Vec<Value> = stored.into_iter().chain(loaded).chain(multiplied).collect();
        all.sort_by_key(|&v| self.long(v).len() < 2);
        let last = |v: Value| self.long(v).last().map(|&a| self.axis(v, a));
        all.into_iter().chain(any).filter(|&v| self.homed(v)).filter_map(last).collect()
    }
    fn finish(self, whole: impl Fn(OperandId) -> bool, products: bool) -> Layout {
        let colours = self.colours(&self.seeds(products)).expect("unions kept the colouring");
        let each: Vec<usize> = (0..self.each.len()).filter(|&a| self.each[a]).map(|a| self.joined.root(a)).collect();
        let (mut numbers, mut classes) = (BTreeMap::new(), vec![]);
        let mut axes = vec![];
        for v in (0..self.k.values.len() as u32).map(Value) {
            let shape = &self.k.ty(v).shape;
            let number = |a: usize| {
                (shape[a] > 1 && self.homed(v)).then(|| {
                    let root = self.joined.root(self.axis(v, a));
                    *numbers.entry(root).or_insert_with(|| {
                        let along = match colours.get(&root) {
                            _ if each.contains(&root) => Along::Each,
                            Some(false) => Along::Y,
                            _ => Along::X,
                        };
                        let size = shape[a];
                        classes.push(Class { size, along, threads: 1, row: false, group: 0, grid: (1, 1), vector: 1 });
                        classes.len() - 1
                    })
                })
            };
            axes.push((0..shape.len()).map(number).collect());
        }
        let axes: Vec<Vec<Option<usize>>> = axes;
        let groups = self.group(&axes, &mut classes);
        let alone = |c: usize, classes: &[Class]| classes.iter().filter(|o| o.group == classes[c].group).count() == 1;
        let mut ragged = vec![false; classes.len()];
        self.k.walk(self.k.body, &mut |_, inst| {
            let (v, of) = match &inst.op {
                Op::Store { to, .. } => (inst.args[0], *to),
                Op::Load { from, .. } => (inst.results[0], *from),
                _ => return,
            };
            // A vector beside tiles lies along their axis, whichever it is: it is short, and rows count.
            if let Some(&Some(c)) = axes[v.index()].last()
                && (self.long(v).len() > 1 || alone(c, &classes))
            {
                classes[c].row = true;
                ragged[c] |= !whole(of);
            }
        });
        let rows: Vec<bool> = classes.iter().map(|c| c.row).collect();
        classes.iter_mut().zip(ragged).for_each(|(class, ragged)| class.row &= !ragged);
        let mut computed = vec![false; groups];
        self.k.walk(self.k.body, &mut |_, inst| {
            let Op::Structural(op) = &inst.op else { return };
            let touched = match access(self.k, op, inst) {
                Access::Contract { .. } => vec![inst.results[0]],
                Access::Fold { .. } => vec![inst.results[0], inst.args[0]],
                _ => return,
            };
            for v in touched {
                let classes_of = axes[self.shown(v).index()].iter().flatten();
                classes_of.for_each(|&c| computed[classes[c].group] = true);
            }
        });
        Layout { axes, classes, computed, rows }
    }
    /// The tile that a view shows.
    fn shown(&self, v: Value) -> Value {
        match self.inline[v.index()] {
            Some(Inline::View) => {
                let inst = self.k.inst(self.defined[v.index()].expect("a view has a definition"));
                self.shown(view(self.k, inst).0)
            }
            _ => v,
        }
    }
    /// Numbers the groups of classes that meet in tiles; how many there are.
    fn group(&self, axes: &[Vec<Option<usize>>], classes: &mut [Class]) -> usize {
        for (c, class) in classes.iter_mut().enumerate() {
            class.group = c;
        }
        for tile in axes {
            let met: Vec<usize> = tile.iter().flatten().copied().filter(|&c| classes[c].along != Along::Each).collect();
            for pair in met.windows(2) {
                let (from, to) = (classes[pair[0]].group, classes[pair[1]].group);
                classes.iter_mut().filter(|c| c.group == from).for_each(|c| c.group = to);
            }
        }
        classes.len()
    }
}
