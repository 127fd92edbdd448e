//! Affine nests: convolutions as products of matrices, windowed reductions as folds of rows.
//!
//! ```text
//! for each position of the outer parallel axes                   one image, one row of it
//!     for each position of the outer folded axes                 one row of the window
//!         for each range of rows that see the same elements      C[rows, columns] += A[rows, elements] · B[elements, columns]
//! ```
//!
//! Elements of a window that lie side by side in both operands, as the columns of an image whose features are its last
//! axis, are one axis of the product. Nothing is copied: matrices are strided views of the operands.
#![warn(clippy::wildcard_enum_match_arm)]
use super::super::convert;
use super::super::gemm::{self, Extents, Kernel, Matrix, Number, Packing, Target};
use super::super::plan::step::Nested;
use super::super::strips::{compiled, slice, slice_mut};
use super::super::tile::{self, Tile};
use super::{Run, Stop, layout, room};
use crate::raw;
use pallas_ir::DType;
use pallas_ir::structural::{Nest, Position, Role};
use std::cmp::Reverse;
use std::ops::Range;

/// Elements of an axis of rows or columns of a product that are as good as more, and of its inner axis: sums are kept in
/// registers for so many elements, and elements that lie far apart take longer to read than that is worth.
const LONG: usize = 32;
const DEEP: usize = 16;

/// Bounds of a position: `0 <= Σ stride · axis + offset < extent`.
#[derive(Debug)]
struct Check {
    strides: Vec<isize>,
    offset: isize,
    extent: isize,
}

/// A nest whose positions are distances in memory: two operands (the second is missing in a reduction), and the result.
struct Linear {
    extents: Vec<usize>,
    is_parallel: Vec<bool>,
    /// Which of the arrays an axis moves in.
    moves: [Vec<bool>; 3],
    strides: [Vec<isize>; 3],
    offsets: [isize; 3],
    checks: Vec<Check>,
}

impl Linear {
    /// A nest without dilations and empty loops, of arrays with these strides and shapes.
    fn new(nest: &Nest, arrays: [(&Tile, &[usize]); 3]) -> Linear {
        let rank = nest.axes.len();
        let mut linear = Linear {
            extents: nest.axes.iter().map(|axis| axis.extent as usize).collect(),
            is_parallel: nest.axes.iter().map(|axis| axis.role == Role::Parallel).collect(),
            moves: [0; 3].map(|_| vec![false; rank]),
            strides: [0; 3].map(|_| vec![0; rank]),
            offsets: [0; 3],
            checks: vec![],
        };
        let none: &[Position] = &[];
        let second = nest.operands.get(1).map_or(none, |place| place);
        for (i, place) in [&nest.operands[0][..], second, &nest.result].into_iter().enumerate() {
            let (tile, shape) = arrays[i];
            for ((position, &stride), &n) in place.iter().zip(&tile.strides).zip(shape) {
                linear.offsets[i] += position.offset as isize * stride;
                let mut check = Check { strides: vec![0; rank], offset: position.offset as isize, extent: n as isize };
                for &(axis, by) in position.terms.iter().filter(|t| nest.axes[t.0].extent > 1) {
                    linear.strides[i][axis] += by as isize * stride;
                    linear.moves[i][axis] = true;
                    check.strides[axis] += by as isize;
                }
                if !position.is_inside(&nest.axes, n as i64) {
                    linear.checks.push(check);
                }
            }
        }
        linear
    }
    fn axes(&self) -> Range<usize> {
        0..self.extents.len()
    }
    /// The axis among these that loops run over best: long, up to `enough`, and with near elements in an array.
    fn best(&self, array: usize, enough: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let long = self.axes().filter(|&axis| self.extents[axis] > 1 && fits(axis));
        long.max_by_key(|&axis| (self.extents[axis].min(enough), Reverse(self.strides[array][axis].abs())))
    }
    /// The axis along which the result's elements are adjacent.
    fn row(&self, fits: impl Fn(usize) -> bool) -> Option<usize> {
        self.best(2, LONG, |axis| self.is_parallel[axis] && self.strides[2][axis] == 1 && fits(axis))
    }
    fn is_checked(&self, axis: usize) -> bool {
        self.checks.iter().any(|check| check.strides[axis] != 0)
    }
    /// Calls `f` with positions of these axes, the last one moving first.
    fn each(&self, axes: &[usize], at: &mut [usize], f: &mut dyn FnMut(&mut [usize])) {
        let Some((&first, rest)) = axes.split_first() else { return f(at) };
        for i in 0..self.extents[first] {
            at[first] = i;
            self.each(rest, at, f);
        }
        at[first] = 0;
    }
    /// The distance of an array's element from its first one.
    fn distance(&self, array: usize, at: &[usize]) -> isize {
        let moved: isize = self.strides[array].iter().zip(at).map(|(stride, &i)| stride * i as isize).sum();
        self.offsets[array] + moved
    }
    /// For each check, what the axes at these positions give.
    fn bases(&self, at: &[usize], to: &mut Vec<isize>) {
        to.clear();
        let moved = |check: &Check| check.strides.iter().zip(at).map(|(s, &i)| s * i as isize).sum::<isize>();
        to.extend(self.checks.iter().map(|check| check.offset + moved(check)));
    }
    /// The positions of an axis at which all checks hold.
    fn within(&self, bases: &[isize], axis: Option<usize>) -> Range<usize> {
        let mut range = 0..axis.map_or(1, |axis| self.extents[axis]) as isize;
        for (check, &base) in self.checks.iter().zip(bases) {
            match axis.map_or(0, |axis| check.strides[axis]) {
                0 if (0..check.extent).contains(&base) => {}
                0 => return 0..0,
                stride => {
                    range.start = range.start.max(up(-base, stride));
                    range.end = range.end.min(up(check.extent - base, stride));
                }
            }
        }
        range.start as usize..range.end.max(range.start) as usize
    }
    /// Ranges of `rows`, each with the range of `elements` that all of its rows see; both are axes.
    fn groups(
        &self,
        bases: &[isize],
        rows: Option<usize>,
        elements: Option<usize>,
    ) -> Vec<(Range<usize>, Range<usize>)> {
        let mut groups: Vec<(Range<usize>, Range<usize>)> = vec![];
        let mut moved = bases.to_vec();
        for row in 0..rows.map_or(1, |axis| self.extents[axis]) {
            let seen = self.within(&moved, elements);
            match groups.last_mut() {
                _ if seen.is_empty() => {}
                Some((all, same)) if all.end == row && *same == seen => all.end += 1,
                _ => groups.push((row..row + 1, seen)),
            }
            if let Some(axis) = rows {
                moved.iter_mut().zip(&self.checks).for_each(|(base, check)| *base += check.strides[axis]);
            }
        }
        groups
    }
}

/// A quotient rounded up; the divisor is positive.
fn up(a: isize, b: isize) -> isize {
    -(-a).div_euclid(b)
}

type Steps<T> = unsafe fn(*mut T, isize, *const T, isize, *const T, isize, usize);

/// `c[i] += a[i] · b[i]` at strides.
///
/// # Safety
/// All have `n` elements at their strides; `c` overlaps neither other.
#[inline(always)]
unsafe fn steps<T: Number>(c: *mut T, cs: isize, a: *const T, from: isize, b: *const T, by: isize, n: usize) {
    // SAFETY: the caller's.
    unsafe {
        if [cs, from, by] == [1; 3] {
            let (a, b) = (raw::slice(a, n), raw::slice(b, n));
            let c = raw::slice_mut(c, n);
            return c.iter_mut().zip(a.iter().zip(b)).for_each(|(c, (&a, &b))| *c = T::step(*c, a, b));
        }
        if [cs, from, by] == [1, 1, 0] {
            let (a, b, c) = (raw::slice(a, n), *b, raw::slice_mut(c, n));
            return c.iter_mut().zip(a).for_each(|(c, &a)| *c = T::step(*c, a, b));
        }
        for i in 0..n as isize {
            let c = c.offset(i * cs);
            *c = T::step(*c, *a.offset(i * from), *b.offset(i * by));
        }
    }
}
compiled! {
    fastest_steps<T: Number>() -> Steps<T>
        = steps(c: *mut T, cs: isize, a: *const T, from: isize, b: *const T, by: isize, n: usize)
}

/// The axes of a nest that are those of a product of matrices: C = A · B, where A may be the second operand.
struct Matrices {
    /// The operands that A and B are.
    sides: [usize; 2],
    rows: Option<usize>,
    columns: Option<usize>,
    inner: Option<usize>,
    /// An axis whose elements continue those of the inner one.
    next: Option<usize>,
    /// Whichever of rows and columns is checked.
    checked: Option<usize>,
}

impl Matrices {
    /// `None` if the result's rows move in both operands, as if every feature is a group.
    fn of(nest: &Linear) -> Option<Matrices> {
        let only = |own: usize, other: usize, axis: usize| nest.moves[own][axis] && !nest.moves[other][axis];
        let columns = nest.row(|axis| only(0, 1, axis) || only(1, 0, axis));
        if columns.is_none() && nest.row(|_| true).is_some() {
            return None;
        }
        let sides = if columns.is_some_and(|axis| only(0, 1, axis)) { [1, 0] } else { [0, 1] };
        let [a, b] = sides;
        let rows = nest.best(a, LONG, |axis| nest.is_parallel[axis] && only(a, b, axis));
        let is_inner = |axis: usize| !nest.is_parallel[axis] && nest.moves[0][axis] && nest.moves[1][axis];
        let inner = nest.best(a, DEEP, is_inner);
        let next = inner.filter(|&axis| !nest.is_checked(axis)).and_then(|first| {
            let n = nest.extents[first] as isize;
            let continues = |axis: usize| [0, 1].iter().all(|&i| nest.strides[i][axis] == nest.strides[i][first] * n);
            nest.best(a, DEEP, |axis| axis != first && is_inner(axis) && continues(axis))
        });
        let is_checked = |axis: &usize| nest.is_checked(*axis);
        let checked = [rows, columns].map(|axis| axis.filter(is_checked));
        let both = checked.iter().all(Option::is_some);
        (!both).then(|| Matrices { sides, rows, columns, inner, next, checked: checked[0].or(checked[1]) })
    }

    /// Sets the result, or adds to it.
    ///
    /// # Safety
    /// The nest's positions are elements of the arrays wherever its checks hold, and the result overlaps no operand; the
    /// machine runs the kernel.
    unsafe fn run<T: Number>(
        &self,
        nest: &Linear,
        kernel: Kernel<T>,
        operands: [*const T; 2],
        to: *mut T,
        add: bool,
        packing: &mut Packing<T>,
    ) {
        let [a, b] = self.sides;
        let extent = |axis: Option<usize>| axis.map_or(1, |axis| nest.extents[axis]);
        let stride = |array: usize, axis: Option<usize>| axis.map_or(1, |axis| nest.strides[array][axis]);
        let elements = self.next.or(self.inner);
        let each = if self.next.is_some() { extent(self.inner) } else { 1 };
        let own = [self.rows, self.columns, self.inner, self.next];
        let outer = |is_parallel: bool| -> Vec<usize> {
            let fits = |&axis: &usize| nest.is_parallel[axis] == is_parallel && !own.contains(&Some(axis));
            nest.axes().filter(|&axis| nest.extents[axis] != 1).filter(fits).collect()
        };
        let (around, folded) = (outer(true), outer(false));
        let (m, n) = (extent(self.rows), extent(self.columns));
        let (mut bases, mut last, mut groups) = (vec![], None, vec![]);
        nest.each(&around, &mut vec![0; nest.extents.len()], &mut |at| {
            // SAFETY: the result has every position of the parallel axes.
            let c = unsafe { to.offset(nest.distance(2, at)) };
            let c = Target { start: c, row: stride(2, self.rows), add: true };
            let mut is_begun = add;
            nest.each(&folded, at, &mut |at| {
                nest.bases(at, &mut bases);
                if last.as_ref() != Some(&bases) {
                    groups = nest.groups(&bases, self.checked, elements);
                    last = Some(bases.clone());
                }
                let covers = groups.iter().map(|(rows, _)| rows.len()).sum::<usize>() == extent(self.checked);
                if !is_begun && !covers {
                    // SAFETY: the result has these rows and columns.
                    unsafe { Target { add: false, ..c }.begin(m, n) };
                    is_begun = true;
                }
                for (rows, seen) in &groups {
                    let first = |array: usize| {
                        let along = if self.checked.is_some() { stride(array, self.checked) } else { 0 };
                        let apart = if elements.is_some() { stride(array, elements) } else { 0 };
                        nest.distance(array, at) + rows.start as isize * along + seen.start as isize * apart
                    };
                    let part = |axis: Option<usize>| {
                        if axis.is_some() && axis == self.checked { rows.len() } else { extent(axis) }
                    };
                    let extents = Extents { m: part(self.rows), n: part(self.columns), k: seen.len() * each };
                    let moved = if self.checked.is_some() { rows.start as isize * stride(2, self.checked) } else { 0 };
                    // SAFETY: the checks hold for these rows and elements.
                    unsafe {
                        let a_start = operands[a].offset(first(a));
                        let b_start = operands[b].offset(first(b));
                        let left = Matrix { start: a_start, row: stride(a, self.rows), col: stride(a, self.inner) };
                        let right = Matrix { start: b_start, row: stride(b, self.inner), col: stride(b, self.columns) };
                        let target = Target { start: c.start.offset(moved), add: is_begun, ..c };
                        gemm::dot(kernel, extents, left, right, target, packing);
                    }
                }
                is_begun = true;
            });
            if !is_begun {
                // SAFETY: the result has these rows and columns.
                unsafe { Target { add: false, ..c }.begin(m, n) };
            }
        });
    }
}

impl Run<'_> {
    pub(super) fn nest(&mut self, nested: &Nested) -> Result<(), Stop> {
        if nested.args.len() == 1 {
            return self.fold_windows(nested);
        }
        let dtype = self.ty(nested.to).dtype;
        match dtype {
            // Sums of 16-bit floats are kept in f32 and rounded once.
            DType::F32 | DType::F16 | DType::Bf16 => {
                let mut packing = std::mem::take(&mut self.buffers.packing);
                let done = self.products(nested, DType::F32, gemm::kernel(), &mut packing);
                self.buffers.packing = packing;
                done
            }
            DType::F64 => self.of_type::<f64>(nested, dtype),
            DType::I8 => self.of_type::<i8>(nested, dtype),
            DType::U8 => self.of_type::<u8>(nested, dtype),
            DType::I16 => self.of_type::<i16>(nested, dtype),
            DType::U16 => self.of_type::<u16>(nested, dtype),
            DType::I32 => self.of_type::<i32>(nested, dtype),
            DType::U32 => self.of_type::<u32>(nested, dtype),
            DType::I64 => self.of_type::<i64>(nested, dtype),
            DType::U64 => self.of_type::<u64>(nested, dtype),
            DType::Bool => self.of_type::<bool>(nested, dtype),
        }
    }

    fn of_type<T: Number>(&mut self, nested: &Nested, compute: DType) -> Result<(), Stop> {
        self.products::<T>(nested, compute, gemm::fastest(), &mut Packing::default())
    }

    /// Sums of products, of the type `compute`, which is `T`.
    fn products<T: Number>(
        &mut self,
        nested: &Nested,
        compute: DType,
        kernel: Kernel<T>,
        packing: &mut Packing<T>,
    ) -> Result<(), Stop> {
        let (to, bytes) = (nested.to, compute.bytes());
        let mut tiles = [self.tile(nested.args[0]), self.tile(nested.args[1])];
        for (i, &v) in nested.args.iter().enumerate() {
            if self.ty(v).dtype != compute {
                tiles[i] = self.widened(v, compute, i)?;
            }
        }
        let out = self.define(to);
        let total: usize = self.shape(to).iter().product();
        let is_rounded = self.ty(to).dtype != compute;
        let tile = match is_rounded {
            true => Tile::contiguous(room(&mut self.buffers.operands[2], total * bytes)?, self.shape(to)),
            false => out,
        };
        let (zero, shape) = (0u64, self.shape(to));
        let shapes = [self.shape(nested.args[0]), self.shape(nested.args[1])];
        let copied = layout::copied(nested, [&tiles[0], &tiles[1], &tile], [shapes[0], shapes[1], shape]);
        for (i, order) in copied[..2].iter().enumerate() {
            if let Some(order) = order {
                tiles[i] = self.ordered(i, &tiles[i], shapes[i], order, bytes)?.placed(order);
            }
        }
        let tile = match &copied[2] {
            Some(order) => {
                let sizes: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
                let own = Tile::contiguous(room(&mut self.buffers.operands[2], total * bytes)?, &sizes);
                own.placed(order)
            }
            None => tile,
        };
        let nests: Vec<Linear> = nested
            .nests
            .iter()
            .map(|nest| Linear::new(nest, [(&tiles[0], shapes[0]), (&tiles[1], shapes[1]), (&tile, shape)]))
            .collect();
        let matrices: Vec<Option<Matrices>> = nests.iter().map(Matrices::of).collect();
        // A single product that reaches every element sets its result: between elements of a dilated operand there may
        // be none.
        let add = match (&nests[..], &matrices[..]) {
            ([nest], [Some(_)]) => {
                let reached = nest.axes().filter(|&axis| nest.is_parallel[axis]).map(|axis| nest.extents[axis]);
                reached.product::<usize>() != total
            }
            _ => true,
        };
        if add {
            // SAFETY: the memory holds the result.
            unsafe { tile::fill((&raw const zero).cast(), &tile, shape, bytes) };
        }
        let operands = tiles.map(|tile| tile.start.cast::<T>().cast_const());
        let target = tile.start.cast::<T>();
        for (nest, matrices) in nests.iter().zip(&matrices) {
            if let Some(matrices) = matrices {
                // SAFETY: the tiles have the shapes that the nest was checked for.
                unsafe { matrices.run(nest, kernel, operands, target, add, packing) };
                continue;
            }
            let row = nest.row(|_| true);
            let outer: Vec<usize> = nest.axes().filter(|&axis| nest.extents[axis] != 1 && Some(axis) != row).collect();
            let stride = |array: usize| row.map_or(1, |axis| nest.strides[array][axis]);
            let (run, mut bases) = (fastest_steps::<T>(), vec![]);
            nest.each(&outer, &mut vec![0; nest.extents.len()], &mut |at| {
                nest.bases(at, &mut bases);
                let seen = nest.within(&bases, row);
                let first = |array: usize| nest.distance(array, at) + seen.start as isize * stride(array);
                if seen.is_empty() {
                    return;
                }
                // SAFETY: the checks hold for these elements; the result has every position of the parallel axes.
                unsafe {
                    let (a, b) = (operands[0].offset(first(0)), operands[1].offset(first(1)));
                    run(target.offset(first(2)), stride(2), a, stride(0), b, stride(1), seen.len());
                }
            });
        }
        let mut done = tile;
        if is_rounded {
            let dtype = self.ty(to).dtype;
            // A result that is still to be copied is rounded in place of an operand.
            done.start = match copied[2] {
                Some(_) => room(&mut self.buffers.operands[0], total * dtype.bytes())?,
                None => out.start,
            };
            // SAFETY: both hold the result, which is no array's memory; the buffer is no slot.
            unsafe {
                convert::cast(compute, dtype)(
                    &[slice(compute, tile.start, total)],
                    slice_mut(dtype, done.start, total),
                    total,
                )
            };
        }
        if copied[2].is_some() {
            // SAFETY: both hold the result; the buffer is no slot.
            unsafe { tile::copy(&done, &out, shape, self.bytes(to)) };
        }
        Ok(())
    }

    /// A windowed reduction: rows of the result, one element of the window after another.
    fn fold_windows(&mut self, nested: &Nested) -> Result<(), Stop> {
        let (from, bytes) = (nested.args[0], self.bytes(nested.to));
        let (tile, out) = (self.tile(from), self.define(nested.to));
        let start = nested.start.bits;
        // SAFETY: the result's own memory holds its shape.
        unsafe { tile::fill((&raw const start).cast(), &out, self.shape(nested.to), bytes) };
        for nest in &nested.nests {
            let nest = Linear::new(nest, [(&tile, self.shape(from)), (&out, &[]), (&out, self.shape(nested.to))]);
            let row = nest.row(|_| true);
            let outer: Vec<usize> = nest.axes().filter(|&axis| nest.extents[axis] != 1 && Some(axis) != row).collect();
            let stride = |array: usize| row.map_or(1, |axis| nest.strides[array][axis]);
            let most = row.map_or(1, |axis| nest.extents[axis]);
            let apart = room(&mut self.buffers.operands[0], most * bytes)?;
            let mut bases = vec![];
            nest.each(&outer, &mut vec![0; nest.extents.len()], &mut |at| {
                nest.bases(at, &mut bases);
                let seen = nest.within(&bases, row);
                if seen.is_empty() {
                    return;
                }
                let first =
                    |array: usize| (nest.distance(array, at) + seen.start as isize * stride(array)) * bytes as isize;
                // SAFETY: the checks hold for these elements; the result has every position of the parallel axes, and
                // its row is adjacent. The buffer holds a row.
                unsafe {
                    let mut x: *const u8 = tile.start.offset(first(0));
                    if stride(0) != 1 {
                        tile::copy_row(x, stride(0), apart, 1, seen.len(), bytes);
                        x = apart;
                    }
                    (nested.fold.into)(x, seen.len(), out.start.offset(first(2)));
                }
            });
        }
        Ok(())
    }
}
