//! Gathered windows that are read in the memory of their array, without a copy.
use super::super::gemm::narrow::{self, Kernel, Pages};
use super::super::launch::Stop;
use super::super::line;
use super::super::plan::step::{Chain, Dot, Indexed, Readers};
use super::super::rows::copy_row;
use super::super::tile::Tile;
use super::indexed::Walk;
use super::spacing::Kept;
use super::state::{Buffers, Run};
use pallas_ir::{DType, Literal, Value};

impl Buffers {
    /// Forgets all kept windows: those of the last launch.
    pub(super) fn forget_pages(&mut self) {
        self.pages.iter_mut().for_each(|kept| kept.of = None);
    }
    /// Forgets the kept windows of a gather's result.
    pub(super) fn forget(&mut self, of: Value) {
        self.kept(of).into_iter().for_each(|kept| kept.of = None);
    }
    /// Returns the index in `pages` of the windows of a gather's result, if they were not copied.
    pub(super) fn number_kept(&self, of: Value) -> Option<usize> {
        self.pages.iter().position(|kept| kept.of == Some(of))
    }
    /// Returns the kept windows of a gather's result, if they were not copied.
    fn kept(&mut self, of: Value) -> Option<&mut Kept> {
        self.pages.iter_mut().find(|kept| kept.of == Some(of))
    }
}

impl Run<'_> {
    /// Keeps the addresses of a gather's windows for `readers`, instead of copying the windows. Returns false if the
    /// windows do not allow it.
    pub(super) fn keep(&mut self, step: &Indexed, readers: Readers, walk: &Walk) -> bool {
        let (x, bytes, from) = (self.tile(step.from), self.bytes(step.to), self.plan.roots[step.from.index()].index());
        let row = self.shape(step.to).last().copied().unwrap_or(1).max(1);
        let is_kept = |n: usize| match readers {
            Readers::Products => n >= self.plan.sizes.window_rows * row,
            Readers::Chains => n > 0 && n.is_multiple_of(row),
        };
        // A tile in its own memory instead of the array's may be overwritten before the windows are read.
        let Some(window) =
            walk.row.filter(|&n| is_kept(n) && self.state.tiles[from].start != self.state.homes[from].start)
        else {
            return false;
        };
        let at = self.buffers.pages.iter().position(|kept| kept.of.is_none()).unwrap_or_else(|| {
            self.buffers.pages.push(Kept::default());
            self.buffers.pages.len() - 1
        });
        let elements = if readers == Readers::Chains { row } else { window };
        let far = self.ty(step.from).bytes() > line::NEAR;
        let kept = &mut self.buffers.pages[at];
        kept.starts.clear();
        kept.is_far = far;
        let mut in_order = true;
        let mut add = |from: isize, to: isize| {
            in_order &= to == (kept.starts.len() * elements) as isize;
            let start = x.start.wrapping_offset(from * bytes as isize).cast_const();
            kept.starts.extend((0..window / elements).map(|i| start.wrapping_add(i * elements * bytes)));
        };
        let is_lined = walk.lines(|line, from, to| {
            for i in 0..line.n as isize {
                // SAFETY: the line has so many positions.
                let position = unsafe { line.position(i) }.clamp(0, line.last.max(0));
                add(from + line.place(i, position), to + i * line.moved);
            }
        });
        if !is_lined {
            // SAFETY: the shape rule admits i32 only.
            unsafe { walk.each(false, |_| {}, add) };
        }
        if let Some(Literal { bits, .. }) = step.fill.filter(|_| in_order) {
            kept.filled.resize((elements * bytes).div_ceil(8), 0);
            // SAFETY: the window holds so many elements; the bits begin with one.
            unsafe { copy_row((&raw const bits).cast(), 0, kept.filled.as_mut_ptr().cast(), 1, elements, bytes) };
            walk.outside(|to| {
                let first = to as usize / elements;
                kept.starts[first..first + window / elements].fill(kept.filled.as_ptr().cast());
            });
        }
        if in_order {
            (kept.of, kept.elements) = (Some(step.to), elements);
        }
        in_order
    }

    /// Returns the kernel and layout for a product whose right side is kept windows. If there is none, copies the
    /// windows.
    pub(super) fn paged(&mut self, dot: &Dot) -> Option<(Kernel, Pages<'static>)> {
        let root = self.plan.roots[dot.b.index()];
        let elements = self.buffers.kept(root)?.elements;
        let found = self.pages(dot, self.tile(root), elements);
        if found.is_none() {
            self.copy_kept(root);
        }
        found
    }

    /// Returns the kernel for a product with windows of `elements` elements, and their layout; `whole` is the tile of
    /// all windows.
    fn pages(&self, dot: &Dot, whole: Tile, elements: usize) -> Option<(Kernel, Pages<'static>)> {
        let (tile, shape) = (self.tile(dot.b), self.shape(dot.b));
        // Rows are those of the windows, or columns where the product uses the transpose.
        let inner = usize::from(tile.strides[0] != 1);
        let row = shape[inner];
        let is_all = shape.iter().product::<usize>() == self.ty(self.plan.roots[dot.b.index()]).elements();
        let lies = tile.start == whole.start && tile.strides[inner] == 1 && tile.strides[1 - inner] == row as isize;
        let is_float = matches!(self.ty(dot.to).dtype, DType::F32 | DType::F16 | DType::Bf16);
        let is_plain = dot.high.is_none() && shape.iter().all(|&n| n > 1) && elements.is_multiple_of(row);
        (is_all && lies && is_float && is_plain).then_some(())?;
        let pages = Pages { starts: &[], are_columns: dot.contract[1] == [inner] };
        let kernel = narrow::kernel(self.ty(dot.b).dtype, dot.bits)?;
        narrow::reads_pages(kernel, self.extents_of(dot).m, row, pages.are_columns).then_some((kernel, pages))
    }

    /// Copies the inputs of a chain that are kept windows to their tiles.
    pub(super) fn copy_kept_of(&mut self, chain: &Chain) {
        chain.reads().for_each(|v| self.copy_kept(v));
    }

    /// Copies kept windows to the tile that a gather would have written, and forgets them.
    fn copy_kept(&mut self, of: Value) {
        let (out, element) = (self.tile(of), self.bytes(of));
        let Some(kept) = self.buffers.kept(of) else { return };
        let bytes = kept.elements * element;
        for (i, &start) in kept.starts.iter().enumerate() {
            // SAFETY: the tile holds all windows one behind the other; they lie in an array, which it does not overlap.
            unsafe { std::ptr::copy_nonoverlapping(start, out.start.wrapping_add(i * bytes), bytes) };
        }
        kept.of = None;
    }

    /// Computes a product whose right side is windows that were not copied.
    pub(super) fn dot_paged(&mut self, dot: &Dot, (kernel, pages): (Kernel, Pages<'_>)) -> Result<(), Stop> {
        let mut packing = std::mem::take(&mut self.buffers.packing);
        let outcome = self.outcome(dot, DType::F32)?;
        let kept = self.buffers.kept(self.plan.roots[dot.b.index()]).expect("the windows were not copied");
        let starts = std::mem::take(&mut kept.starts);
        let pages = Pages { starts: &starts, ..pages };
        let done =
            self.product(dot, &outcome, DType::F32, [DType::F32, self.ty(dot.b).dtype], |extents, [a, ..], c| {
                // SAFETY: the caller's; the pages lie in an array that no launch writes meanwhile.
                unsafe { narrow::paged(kernel, extents, a.cast(), pages, c, &mut packing) }
            });
        let kept = self.buffers.kept(self.plan.roots[dot.b.index()]).expect("they are there still");
        kept.starts = starts;
        self.buffers.packing = packing;
        done
    }
}
