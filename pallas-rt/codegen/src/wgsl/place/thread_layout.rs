//! Distribution of the elements of tiles over threads.
//!
//! Axes of tiles that are combined element by element form a *class*: those of elementwise operands, kept axes of a
//! reduction, carried values, free axes of a product. The two axes of a tile must lie along different directions of
//! the thread grid, so classes are coloured with two colours. A union that would put two axes of a tile into one
//! class, or break the colouring, is left out; then the reader takes the operand from memory. If a tile has more than
//! two axes longer than 1, every thread holds all elements along the first ones.
//!
//! Tiles that only pass through registers between arrays and workgroup memory share no class with what is computed.
//! Their threads form a grid of their own: as many along a row as it has elements, so that neighbouring threads read
//! neighbouring elements.
use super::UnionFind;
use super::views::{InlineKind, access_form, fully_shown_axis, view_operand_and_index};
use crate::passes::variables::{CarriedVariable, carried_variables};
use pallas_ir::{AccessForm, Inst, InstId, Kernel, Op, OperandId, RegionId, Value};
use std::collections::BTreeMap;

/// The direction of the thread grid along which an axis is spread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::wgsl) enum SpreadDirection {
    /// Along the rows of the thread grid.
    Y,
    /// Along the columns: neighbouring threads have elements that are adjacent in memory.
    X,
    /// Not spread: every thread has all elements.
    NotSpread,
}

/// A class of axes that are spread over threads in the same way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::wgsl) struct AxisClass {
    /// Extent of the axes.
    pub(in crate::wgsl) size: usize,
    /// Direction along which the axes are spread.
    pub(in crate::wgsl) along: SpreadDirection,
    /// Number of threads over which the axes are spread.
    pub(in crate::wgsl) threads: usize,
    /// True if arrays are read or written along these axes, all of them in whole vectors.
    pub(in crate::wgsl) row: bool,
    /// Number of the group: classes that occur in one tile are in one group, and have one grid of threads.
    pub(in crate::wgsl) group: usize,
    /// Rows and columns of the group's grid of threads.
    pub(in crate::wgsl) grid: (u32, u32),
    /// Number of adjacent elements of a thread: thread `t` has the elements from `vector * t` on, from `vector * (t +
    /// threads)` on, ..
    pub(in crate::wgsl) vector: usize,
}

impl AxisClass {
    /// Number of elements of each thread.
    pub(in crate::wgsl) fn elements_per_thread(self) -> usize {
        self.size / self.threads
    }
    /// Returns the offset of a thread's element number `element` from its first element.
    pub(in crate::wgsl) fn element_offset(self, element: usize) -> usize {
        element / self.vector * self.vector * self.threads + element % self.vector
    }
}

/// Distribution of the elements of tiles over threads: the class of each axis of every tile, where axes of a class are
/// spread over threads alike. Axes of extent 1 or 0 have no class.
#[derive(Clone, Debug)]
pub(in crate::wgsl) struct ThreadLayout {
    /// For each value and axis, the index of the class.
    pub(in crate::wgsl) axes: Vec<Vec<Option<usize>>>,
    /// The classes; their `threads` are set by [`ThreadLayout::spread_over_grid`].
    pub(in crate::wgsl) classes: Vec<AxisClass>,
    /// For each group of classes, true if products or folds are computed in it.
    computed: Vec<bool>,
    /// For each class, true if rows of arrays lie along it.
    rows: Vec<bool>,
}

impl ThreadLayout {
    /// Returns the layout on a grid of threads. Threads have `vector_width` adjacent elements along X where that
    /// divides the extent: in classes that rows of arrays lie along or, if `vectorize_all`, in all. If `own_grids`,
    /// groups of classes in which nothing is computed get grids of their own.
    pub(in crate::wgsl) fn spread_over_grid(
        &self,
        grid: (u32, u32),
        vector_width: usize,
        [vectorize_all, own_grids]: [bool; 2],
    ) -> ThreadLayout {
        let wide =
            |c: &AxisClass| if c.along == SpreadDirection::X && (c.row || vectorize_all) { vector_width } else { 1 };
        let grid_of = |group: usize| {
            let rows = self.classes.iter().filter(|c| c.group == group && c.along == SpreadDirection::X);
            let longest = rows.map(|c| c.size.div_ceil(if c.size.is_multiple_of(wide(c)) { wide(c) } else { 1 })).max();
            let threads = grid.0 * grid.1;
            match longest {
                Some(longest) if own_grids && !self.computed[group] => {
                    let columns = largest_divisor(threads as usize, longest) as u32;
                    (threads / columns, columns)
                }
                _ => grid,
            }
        };
        let grids: Vec<(u32, u32)> = (0..self.computed.len()).map(grid_of).collect();
        let spread = |c: &AxisClass| {
            let grid = grids[c.group];
            let threads = match c.along {
                SpreadDirection::NotSpread => 1,
                SpreadDirection::Y => largest_divisor(c.size, grid.0 as usize),
                SpreadDirection::X => largest_divisor(c.size, grid.1 as usize),
            };
            let vector = if c.size.is_multiple_of(threads * wide(c)) { wide(c) } else { 1 };
            AxisClass { threads, vector, grid, ..*c }
        };
        let classes = self.classes.iter().map(spread).collect();
        ThreadLayout { axes: self.axes.clone(), classes, computed: self.computed.clone(), rows: self.rows.clone() }
    }
    /// Returns true if rows of arrays are spread along both directions of a thread grid, so that neighbouring threads
    /// access distant elements of some of them.
    pub(in crate::wgsl) fn has_rows_in_both_directions(&self) -> bool {
        let rows = |along: SpreadDirection| {
            let classes = self.classes.iter().zip(&self.rows);
            classes.filter(move |(c, row)| **row && c.along == along).map(|(c, _)| c.group)
        };
        rows(SpreadDirection::X).any(|group| rows(SpreadDirection::Y).any(|other| other == group))
    }
    /// Returns the class of an axis of a value, if it has one.
    pub(in crate::wgsl) fn axis_class(&self, v: Value, axis: usize) -> Option<AxisClass> {
        self.axes[v.index()][axis].map(|c| self.classes[c])
    }
    /// Returns the number of registers that a thread needs for a tile.
    pub(in crate::wgsl) fn registers_per_thread(&self, v: Value) -> usize {
        (0..self.axes[v.index()].len())
            .map(|a| self.axis_class(v, a).map_or(1, AxisClass::elements_per_thread))
            .product()
    }
}

/// Returns the largest divisor of `n` that is at most `max`.
fn largest_divisor(n: usize, max: usize) -> usize {
    (1..=max.min(n)).rev().find(|d| n.is_multiple_of(*d)).unwrap_or(1)
}

/// Finds the classes of axes and their directions. `has_whole_vectors` returns true for arrays whose rows consist of
/// whole vectors; if `prefer_products`, the axes of products take precedence over those of vectors without other axes.
pub(in crate::wgsl) fn find_layout(
    k: &Kernel,
    inline: &[Option<InlineKind>],
    defined: &[Option<InstId>],
    has_whole_vectors: impl Fn(OperandId) -> bool,
    prefer_products: bool,
) -> ThreadLayout {
    let mut first = vec![0; k.values.len()];
    let mut axes = 0;
    for (v, ty) in k.values.iter().enumerate() {
        first[v] = axes;
        axes += ty.shape.len();
    }
    let mut search = LayoutSearch {
        k,
        inline,
        defined,
        first,
        joined: UnionFind::new(axes),
        pairs: vec![],
        each: vec![false; axes],
    };
    search.find_perpendicular_axis_pairs();
    let mut unions = vec![];
    search.collect_region_unions(k.body, 0, &mut unions);
    // Unions of the largest tiles in the innermost loops are made first.
    unions.sort_by_key(|u| std::cmp::Reverse(u.weight));
    for union in unions {
        search.try_join_classes(&union.pairs);
    }
    search.build_layout(has_whole_vectors, prefer_products)
}

/// Axes that should be in one class, with the number of elements that would otherwise change threads.
struct AxisUnion {
    weight: usize,
    pairs: Vec<(usize, usize)>,
}

/// The search for classes of axes to spread over threads alike, so that few elements change threads between tiles. Axes
/// of all values are numbered in one sequence.
struct LayoutSearch<'k> {
    k: &'k Kernel,
    inline: &'k [Option<InlineKind>],
    defined: &'k [Option<InstId>],
    /// For each value the number of its axis 0.
    first: Vec<usize>,
    joined: UnionFind,
    /// Pairs of axes of one tile, which have to lie along different directions.
    pairs: Vec<(usize, usize)>,
    /// For each axis, true if every thread holds all elements along it.
    each: Vec<bool>,
}

impl LayoutSearch<'_> {
    /// Returns the axes of a value that are longer than 1.
    fn axes_longer_than_one(&self, v: Value) -> Vec<usize> {
        let shape = &self.k.ty(v).shape;
        (0..shape.len()).filter(|&a| shape[a] > 1).collect()
    }
    fn axis_number(&self, v: Value, axis: usize) -> usize {
        self.first[v.index()] + axis
    }
    /// Returns true if the value is stored, not recomputed.
    fn is_stored(&self, v: Value) -> bool {
        self.inline[v.index()].is_none()
    }
    /// Finds the pairs of axes that have to lie along different directions, and the axes that are not spread.
    fn find_perpendicular_axis_pairs(&mut self) {
        for v in (0..self.k.values.len() as u32).map(Value) {
            if !self.is_stored(v) {
                continue;
            }
            let long = self.axes_longer_than_one(v);
            if let [front @ .., a, b] = &long[..] {
                self.pairs.push((self.axis_number(v, *a), self.axis_number(v, *b)));
                for &f in front {
                    let axis = self.axis_number(v, f);
                    self.each[axis] = true;
                }
            }
        }
    }

    /// Appends the pairs of an axis of a stored tile and an axis of the reader that correspond where elements of `v`
    /// are read. `reader_axes` has the number of the reader's axis for each axis of `v`; views are followed to the
    /// tiles that they show.
    fn append_corresponding_axes(&self, v: Value, reader_axes: &[Option<usize>], pairs: &mut Vec<(usize, usize)>) {
        match self.inline[v.index()] {
            Some(InlineKind::Pure(_) | InlineKind::Fetch) => {}
            Some(InlineKind::View) => {
                let inst = self.k.inst(self.defined[v.index()].expect("a view has a definition"));
                let (of, index) = view_operand_and_index(self.k, inst);
                let whole = |(axis, i)| fully_shown_axis(self.k, [v, of], axis, i).and_then(|a| reader_axes[a]);
                let moved: Vec<Option<usize>> = index.iter().enumerate().map(whole).collect();
                self.append_corresponding_axes(of, &moved, pairs);
            }
            None => {
                for a in self.axes_longer_than_one(v) {
                    if let Some(reader) = reader_axes[a] {
                        pairs.push((self.axis_number(v, a), reader));
                    }
                }
            }
        }
    }
    /// Returns the pairs of axes, of the stored tiles that `v` shows and of `reader`, that correspond if `reader`
    /// reads `v` elementwise; `to_reader_axis` maps axes of `v` to axes of `reader`.
    fn corresponding_axes(
        &self,
        reader: Value,
        to_reader_axis: impl Fn(usize) -> Option<usize>,
        v: Value,
    ) -> Vec<(usize, usize)> {
        let (from, to) = (&self.k.ty(v).shape, &self.k.ty(reader).shape);
        let at: Vec<Option<usize>> = (0..from.len())
            .map(|a| {
                to_reader_axis(a).filter(|&r| r < to.len() && to[r] == from[a]).map(|r| self.axis_number(reader, r))
            })
            .collect();
        let mut pairs = vec![];
        self.append_corresponding_axes(v, &at, &mut pairs);
        pairs
    }

    /// Appends to `out` the unions (sets of axes that should be spread over threads alike) that the instructions of a
    /// region suggest; `loop_depth` counts the loops around it.
    fn collect_region_unions(&self, region: RegionId, loop_depth: u32, out: &mut Vec<AxisUnion>) {
        for &id in &self.k.region(region).insts {
            let inst = self.k.inst(id);
            let deeper = matches!(inst.op, Op::For { .. } | Op::While);
            inst.regions.iter().for_each(|&r| self.collect_region_unions(r, loop_depth + u32::from(deeper), out));
            self.collect_inst_unions(inst, loop_depth, out);
        }
    }
    /// Appends to `out` the unions (sets of axes that should be spread over threads alike) of corresponding axes of an
    /// instruction's operands and results; `loop_depth` counts the loops around it, which raise their weight.
    fn collect_inst_unions(&self, inst: &Inst, loop_depth: u32, out: &mut Vec<AxisUnion>) {
        let trips = 16usize.pow(loop_depth.min(4));
        let mut push = |v: Value, pairs: Vec<(usize, usize)>| {
            if !pairs.is_empty() {
                out.push(AxisUnion { weight: self.k.ty(v).elements() * trips, pairs });
            }
        };
        let mut same = |a: Value, b: Value| push(a, self.corresponding_axes(a, Some, b));
        match &inst.op {
            Op::Scalar(_) => inst.args.iter().for_each(|&v| same(inst.results[0], v)),
            Op::Structural(op) if self.is_stored(inst.results[0]) => match access_form(self.k, op, inst) {
                AccessForm::Cast | AccessForm::Bitcast | AccessForm::Powi(_) => same(inst.results[0], inst.args[0]),
                AccessForm::Fold { axes, .. } => {
                    let kept = |a: usize| (!axes.contains(&a)).then_some(a);
                    push(inst.args[0], self.corresponding_axes(inst.results[0], kept, inst.args[0]));
                }
                _ => {}
            },
            Op::If | Op::For { .. } | Op::While => {
                for CarriedVariable { start, values } in carried_variables(self.k, inst) {
                    start.iter().chain(&values[1..]).for_each(|&v| same(values[0], v));
                }
            }
            _ => {}
        }
    }

    /// Joins the classes of pairs of axes, unless the two directions could no longer be given to all classes.
    fn try_join_classes(&mut self, pairs: &[(usize, usize)]) {
        let before = self.joined.clone();
        for &(a, b) in pairs {
            let (a, b) = (self.joined.root(a), self.joined.root(b));
            self.joined.join(a.max(b), a.min(b));
        }
        if self.joined != before && self.colour_classes(&[]).is_none() {
            self.joined = before;
        }
    }
    /// Colours the classes with two colours: returns, for the root of each class, true if it lies along X. `x_axes`
    /// are axes that should lie along X, most important first. Returns `None` if there is no colouring.
    fn colour_classes(&self, x_axes: &[usize]) -> Option<BTreeMap<usize, bool>> {
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
        for start in x_axes.iter().map(|&a| self.joined.root(a)).chain(rest) {
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
    /// Returns the last axes of tiles, in the order of precedence for X: of stored matrices, of loaded ones, of
    /// products if `prefer_products`, of stored and loaded vectors, and of any other tile.
    fn preferred_x_axes(&self, prefer_products: bool) -> Vec<usize> {
        let (mut stored, mut loaded, mut multiplied) = (vec![], vec![], vec![]);
        self.k.walk(self.k.body, &mut |_, inst| match &inst.op {
            Op::Store { .. } => stored.push(inst.args[0]),
            Op::Load { .. } => loaded.push(inst.results[0]),
            Op::Structural(op)
                if prefer_products && matches!(access_form(self.k, op, inst), AccessForm::Contract { .. }) =>
            {
                multiplied.push(inst.results[0]);
            }
            _ => {}
        });
        let any = (0..self.k.values.len() as u32).map(Value);
        let mut all: Vec<Value> = stored.into_iter().chain(loaded).chain(multiplied).collect();
        all.sort_by_key(|&v| self.axes_longer_than_one(v).len() < 2);
        let last = |v: Value| self.axes_longer_than_one(v).last().map(|&a| self.axis_number(v, a));
        all.into_iter().chain(any).filter(|&v| self.is_stored(v)).filter_map(last).collect()
    }
    /// Numbers the classes, gives them their directions and groups, and finds where rows of arrays lie.
    fn build_layout(self, has_whole_vectors: impl Fn(OperandId) -> bool, prefer_products: bool) -> ThreadLayout {
        let colours = self.colour_classes(&self.preferred_x_axes(prefer_products)).expect("unions kept the colouring");
        let each: Vec<usize> = (0..self.each.len()).filter(|&a| self.each[a]).map(|a| self.joined.root(a)).collect();
        let (mut numbers, mut classes) = (BTreeMap::new(), vec![]);
        let mut axes = vec![];
        for v in (0..self.k.values.len() as u32).map(Value) {
            let shape = &self.k.ty(v).shape;
            let number = |a: usize| {
                (shape[a] > 1 && self.is_stored(v)).then(|| {
                    let root = self.joined.root(self.axis_number(v, a));
                    *numbers.entry(root).or_insert_with(|| {
                        let along = match colours.get(&root) {
                            _ if each.contains(&root) => SpreadDirection::NotSpread,
                            Some(false) => SpreadDirection::Y,
                            _ => SpreadDirection::X,
                        };
                        let size = shape[a];
                        classes.push(AxisClass {
                            size,
                            along,
                            threads: 1,
                            row: false,
                            group: 0,
                            grid: (1, 1),
                            vector: 1,
                        });
                        classes.len() - 1
                    })
                })
            };
            axes.push((0..shape.len()).map(number).collect());
        }
        let axes: Vec<Vec<Option<usize>>> = axes;
        let groups = self.assign_class_groups(&axes, &mut classes);
        let alone =
            |c: usize, classes: &[AxisClass]| classes.iter().filter(|o| o.group == classes[c].group).count() == 1;
        let mut ragged = vec![false; classes.len()];
        self.k.walk(self.k.body, &mut |_, inst| {
            let (v, of) = match &inst.op {
                Op::Store { to, .. } => (inst.args[0], *to),
                Op::Load { from, .. } => (inst.results[0], *from),
                _ => return,
            };
            // A vector without other axes lies along the axis that tiles beside it have, whichever that is: it is
            // short, and rows matter more.
            if let Some(&Some(c)) = axes[v.index()].last()
                && (self.axes_longer_than_one(v).len() > 1 || alone(c, &classes))
            {
                classes[c].row = true;
                ragged[c] |= !has_whole_vectors(of);
            }
        });
        let rows: Vec<bool> = classes.iter().map(|c| c.row).collect();
        classes.iter_mut().zip(ragged).for_each(|(class, ragged)| class.row &= !ragged);
        let mut computed = vec![false; groups];
        self.k.walk(self.k.body, &mut |_, inst| {
            let Op::Structural(op) = &inst.op else { return };
            let touched = match access_form(self.k, op, inst) {
                AccessForm::Contract { .. } => vec![inst.results[0]],
                AccessForm::Fold { .. } => vec![inst.results[0], inst.args[0]],
                _ => return,
            };
            for v in touched {
                let classes_of = axes[self.underlying_tile(v).index()].iter().flatten();
                classes_of.for_each(|&c| computed[classes[c].group] = true);
            }
        });
        ThreadLayout { axes, classes, computed, rows }
    }
    /// Returns the tile that a view shows, or the value itself.
    fn underlying_tile(&self, v: Value) -> Value {
        match self.inline[v.index()] {
            Some(InlineKind::View) => {
                let inst = self.k.inst(self.defined[v.index()].expect("a view has a definition"));
                self.underlying_tile(view_operand_and_index(self.k, inst).0)
            }
            _ => v,
        }
    }
    /// Assigns group numbers to axis classes, the same number to all classes that are spread in one tile, and returns a
    /// number that exceeds all of them.
    fn assign_class_groups(&self, axes: &[Vec<Option<usize>>], classes: &mut [AxisClass]) -> usize {
        for (c, class) in classes.iter_mut().enumerate() {
            class.group = c;
        }
        for tile in axes {
            let met: Vec<usize> =
                tile.iter().flatten().copied().filter(|&c| classes[c].along != SpreadDirection::NotSpread).collect();
            for pair in met.windows(2) {
                let (from, to) = (classes[pair[0]].group, classes[pair[1]].group);
                classes.iter_mut().filter(|c| c.group == from).for_each(|c| c.group = to);
            }
        }
        classes.len()
    }
}
