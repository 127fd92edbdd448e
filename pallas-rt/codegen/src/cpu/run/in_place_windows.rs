//! Gathered windows that are read in the memory of their array, without a copy.
use super::super::gemm::few_rows::{self, NarrowKernel, PagedMatrix};
use super::super::indexed_lines;
use super::super::launch::LaunchError;
use super::super::plan::step::{Dot, ElementwiseChain, GatherScatter, WindowReaders};
use super::super::row_copies::copy_row;
use super::super::tile::StridedTile;
use super::gather_scatter::WindowLoop;
use super::spacing::UncopiedWindows;
use super::thread_state::{ProgramRunner, ThreadBuffers};
use pallas_ir::{DType, Literal, Value};

impl ThreadBuffers {
    /// Forgets all gathered windows that were left in their arrays: those of the last launch.
    pub(super) fn forget_all_windows(&mut self) {
        self.pages.iter_mut().for_each(|kept| kept.of = None);
    }
    /// Forgets the windows of a gather's result, if they were left in their array.
    pub(super) fn forget_windows(&mut self, of: Value) {
        self.uncopied_windows_mut(of).into_iter().for_each(|kept| kept.of = None);
    }
    /// Returns the index in the list `pages` of the addresses that were kept of the windows of the gather with the
    /// result `of`; `None` if the windows were copied.
    pub(super) fn find_uncopied_windows(&self, of: Value) -> Option<usize> {
        self.pages.iter().position(|kept| kept.of == Some(of))
    }
    /// Returns the addresses of the windows of a gather's result, if they were not copied.
    fn uncopied_windows_mut(&mut self, of: Value) -> Option<&mut UncopiedWindows> {
        self.pages.iter_mut().find(|kept| kept.of == Some(of))
    }
}

impl ProgramRunner<'_> {
    /// Keeps the addresses of a gather's windows for `readers`, instead of copying the windows. Returns false if the
    /// windows do not allow it.
    pub(super) fn keep_window_addresses(
        &mut self,
        step: &GatherScatter,
        readers: WindowReaders,
        window_loop: &WindowLoop,
    ) -> bool {
        let (x, bytes, from) =
            (self.tile(step.from), self.element_bytes(step.to), self.plan.roots[step.from.index()].index());
        let row = self.shape(step.to).last().copied().unwrap_or(1).max(1);
        let is_kept = |n: usize| match readers {
            WindowReaders::Products => n >= self.plan.sizes.window_rows * row,
            WindowReaders::Chains => n > 0 && n.is_multiple_of(row),
        };
        // A tile in its own memory instead of the array's may be overwritten before the windows are read.
        let Some(window) = window_loop
            .row
            .filter(|&n| is_kept(n) && self.state.tiles[from].start != self.state.owned_tiles[from].start)
        else {
            return false;
        };
        let at = self.buffers.pages.iter().position(|kept| kept.of.is_none()).unwrap_or_else(|| {
            self.buffers.pages.push(UncopiedWindows::default());
            self.buffers.pages.len() - 1
        });
        let elements = if readers == WindowReaders::Chains { row } else { window };
        let far = self.ty(step.from).bytes() > indexed_lines::MAX_CACHED_OPERAND_BYTES;
        let kept = &mut self.buffers.pages[at];
        kept.starts.clear();
        kept.is_far = far;
        let mut in_order = true;
        let mut add = |from: isize, to: isize| {
            in_order &= to == (kept.starts.len() * elements) as isize;
            let start = x.start.wrapping_offset(from * bytes as isize).cast_const();
            kept.starts.extend((0..window / elements).map(|i| start.wrapping_add(i * elements * bytes)));
        };
        let is_lined = window_loop.for_each_line(|line, from, to| {
            for i in 0..line.n as isize {
                // SAFETY: the line has so many positions.
                let position = unsafe { line.position(i) }.clamp(0, line.last.max(0));
                add(from + line.operand_offset(i, position), to + i * line.moved);
            }
        });
        if !is_lined {
            // SAFETY: the shape rule admits i32 only.
            unsafe { window_loop.for_each_window(false, |_| {}, add) };
        }
        if let Some(Literal { bits, .. }) = step.fill.filter(|_| in_order) {
            kept.filled.resize((elements * bytes).div_ceil(8), 0);
            // SAFETY: the window holds so many elements; the bits begin with one.
            unsafe { copy_row((&raw const bits).cast(), 0, kept.filled.as_mut_ptr().cast(), 1, elements, bytes) };
            window_loop.for_each_outside_window(|to| {
                let first = to as usize / elements;
                kept.starts[first..first + window / elements].fill(kept.filled.as_ptr().cast());
            });
        }
        if in_order {
            (kept.of, kept.elements) = (Some(step.to), elements);
        }
        in_order
    }

    /// Returns the kernel and layout for a product whose right side is gathered windows that were left in their array;
    /// `None` if they were not. If no kernel can read them there, copies them and returns `None`.
    pub(super) fn find_window_kernel_or_copy_windows(
        &mut self,
        dot: &Dot,
    ) -> Option<(NarrowKernel, PagedMatrix<'static>)> {
        let root = self.plan.roots[dot.b.index()];
        let elements = self.buffers.uncopied_windows_mut(root)?.elements;
        let found = self.find_window_kernel(dot, self.tile(root), elements);
        if found.is_none() {
            self.materialize_windows(root);
        }
        found
    }

    /// Returns the kernel for a product with windows of `elements` elements, and their layout; `None` if there is no
    /// kernel for them. `whole` is the tile of all windows.
    fn find_window_kernel(
        &self,
        dot: &Dot,
        whole: StridedTile,
        elements: usize,
    ) -> Option<(NarrowKernel, PagedMatrix<'static>)> {
        let (tile, shape) = (self.tile(dot.b), self.shape(dot.b));
        // Rows are those of the windows, or columns where the product uses the transpose.
        let inner = usize::from(tile.strides[0] != 1);
        let row = shape[inner];
        let is_all = shape.iter().product::<usize>() == self.ty(self.plan.roots[dot.b.index()]).elements();
        let lies = tile.start == whole.start && tile.strides[inner] == 1 && tile.strides[1 - inner] == row as isize;
        let is_float = matches!(self.ty(dot.to).dtype, DType::F32 | DType::F16 | DType::Bf16);
        let is_plain = dot.high.is_none() && shape.iter().all(|&n| n > 1) && elements.is_multiple_of(row);
        (is_all && lies && is_float && is_plain).then_some(())?;
        let pages = PagedMatrix { starts: &[], are_columns: dot.contract[1] == [inner] };
        let kernel = few_rows::fastest_narrow_kernel(self.ty(dot.b).dtype, dot.bits)?;
        few_rows::can_read_pages_in_place(kernel, self.declared_product_extents(dot).m, row, pages.are_columns)
            .then_some((kernel, pages))
    }

    /// Copies those inputs of a chain that are gathered windows left in their arrays to the tiles that the gathers
    /// would have written.
    pub(super) fn materialize_window_inputs(&mut self, chain: &ElementwiseChain) {
        chain.reads().for_each(|v| self.materialize_windows(v));
    }

    /// Copies gathered windows that were left in their array to the tile that the gather would have written, and
    /// forgets their addresses.
    fn materialize_windows(&mut self, of: Value) {
        let (out, element) = (self.tile(of), self.element_bytes(of));
        let Some(kept) = self.buffers.uncopied_windows_mut(of) else { return };
        let bytes = kept.elements * element;
        for (i, &start) in kept.starts.iter().enumerate() {
            // SAFETY: the tile holds all windows one behind the other; they lie in an array, which it does not overlap.
            unsafe { std::ptr::copy_nonoverlapping(start, out.start.wrapping_add(i * bytes), bytes) };
        }
        kept.of = None;
    }

    /// Computes a product whose right side is windows that were not copied.
    pub(super) fn dot_with_uncopied_windows(
        &mut self,
        dot: &Dot,
        (kernel, pages): (NarrowKernel, PagedMatrix<'_>),
    ) -> Result<(), LaunchError> {
        let mut packing = std::mem::take(&mut self.buffers.packing);
        let outcome = self.prepare_product_result(dot, DType::F32)?;
        let kept =
            self.buffers.uncopied_windows_mut(self.plan.roots[dot.b.index()]).expect("the windows were not copied");
        let starts = std::mem::take(&mut kept.starts);
        let pages = PagedMatrix { starts: &starts, ..pages };
        let done = self.multiply_batches(
            dot,
            &outcome,
            DType::F32,
            [DType::F32, self.ty(dot.b).dtype],
            |extents, [a, ..], c| {
                // SAFETY: the caller's; the pages lie in an array that no launch writes meanwhile.
                unsafe { few_rows::dot_paged(kernel, extents, a.cast(), pages, c, &mut packing) }
            },
        );
        let kept = self.buffers.uncopied_windows_mut(self.plan.roots[dot.b.index()]).expect("they are there still");
        kept.starts = starts;
        self.buffers.packing = packing;
        done
    }
}
