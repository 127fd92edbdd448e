//! Computes contractions: operands are read as matrices where their strides allow it, else copied once.
#![warn(clippy::wildcard_enum_match_arm)]
use super::super::convert;
use super::super::gemm::{self, Extents, Matrix, Number, OutputMatrix, PackingBuffers};
use super::super::launch::LaunchError;
use super::super::plan::step::Dot;
use super::super::tile::{self, MAX_RANK, StridedTile};
use super::past_end_products::{self, ProductExtents};
use super::thread_state::{ProgramRunner, grow_buffer_to};
use half::bf16;
use pallas_ir::{DType, OperandId, Value};

/// Minimum rows of the left side with which an f32 product may use the blocked kernel for a right side of any size;
/// with fewer rows it does so only for one of at most [`MAX_CACHED_RIGHT_ELEMENTS`].
const MIN_BLOCKED_GEMM_ROWS: usize = 8;
/// Maximum elements of a right side that fits the caches, which the blocked kernel then reads again fast even for few
/// rows; a larger one is read where it lies by the kernel for few rows.
const MAX_CACHED_RIGHT_ELEMENTS: usize = 1 << 19;

/// An operand of a product as one matrix for each batch index.
#[derive(Clone, Copy)]
struct BatchedMatrix {
    start: *const u8,
    /// Strides of the batch axes.
    batch: [isize; MAX_RANK],
    /// Distance in elements along the free axes, and along the contracted axes.
    free: isize,
    contract: isize,
}

/// The memory of a product's result, and its extents.
pub(super) struct ProductResult {
    /// Extents of the matrices that are multiplied: of the elements that exist.
    extents: Extents,
    /// Extents of the whole product, if some elements of its operands do not exist.
    part: Option<ProductExtents>,
    batch: Vec<usize>,
    /// The tile in which the result is computed.
    tile: StridedTile,
    /// Distance in elements between rows of the result.
    ldc: isize,
    /// True if a result of one column is computed as one row, with its operands swapped and transposed.
    turned: bool,
    /// The tile to which the result is rounded, if it is computed in another type in a buffer.
    rounded: Option<StridedTile>,
    /// True if the product is added to what the tile holds.
    add: bool,
}

impl ProgramRunner<'_> {
    /// Computes a contraction in the way that is fastest for its types and extents.
    pub(super) fn dot(&mut self, dot: &Dot) -> Result<(), LaunchError> {
        if dot.is_paged
            && let Some(found) = self.find_window_kernel_or_copy_windows(dot)
        {
            return self.dot_with_uncopied_windows(dot, found);
        }
        let dtype = self.ty(dot.to).dtype;
        let bytes = [dot.a, dot.b].iter().all(|&v| self.ty(v).dtype == DType::I8);
        match (dtype, gemm::pairwise_dot::fastest_i8_kernel()) {
            // Sums of 16-bit floats are kept in f32 and rounded once.
            (DType::F32 | DType::F16 | DType::Bf16, _) => {
                let mut packing = std::mem::take(&mut self.buffers.packing);
                let done = self.dot_in_f32(dot, &mut packing);
                self.buffers.packing = packing;
                done
            }
            (DType::I32, Some(kernel)) if bytes => {
                let mut packing = std::mem::take(&mut self.buffers.int8);
                let outcome = self.prepare_product_result(dot, DType::I32)?;
                let done = self.multiply_batches(dot, &outcome, DType::I32, [DType::I8; 2], |extents, [a, b, _], c| {
                    // SAFETY: the caller's; the machine has the kernel, or it had not been chosen.
                    unsafe { gemm::pairwise_dot::dot::<i8>(kernel, extents, a.cast(), b.cast(), c, &mut packing) }
                });
                self.buffers.int8 = packing;
                done
            }
            (DType::F64, _) => self.dot_in_type::<f64>(dot, dtype),
            (DType::I8, _) => self.dot_in_type::<i8>(dot, dtype),
            (DType::U8, _) => self.dot_in_type::<u8>(dot, dtype),
            (DType::I16, _) => self.dot_in_type::<i16>(dot, dtype),
            (DType::U16, _) => self.dot_in_type::<u16>(dot, dtype),
            (DType::I32, _) => self.dot_in_type::<i32>(dot, dtype),
            (DType::U32, _) => self.dot_in_type::<u32>(dot, dtype),
            (DType::I64, _) => self.dot_in_type::<i64>(dot, dtype),
            (DType::U64, _) => self.dot_in_type::<u64>(dot, dtype),
            (DType::Bool, _) => self.dot_in_type::<bool>(dot, dtype),
        }
    }

    /// Computes a product whose operands and sums have the type `T`, which is `compute`.
    fn dot_in_type<T: Number>(&mut self, dot: &Dot, compute: DType) -> Result<(), LaunchError> {
        let mut packing = PackingBuffers::<T>::default();
        let outcome = self.prepare_product_result(dot, compute)?;
        self.multiply_batches(dot, &outcome, compute, [compute; 2], |extents, [a, b, _], c| {
            // SAFETY: the caller's.
            unsafe { gemm::dot(gemm::vectorized_kernel(), extents, a.cast(), b.cast(), c, &mut packing) }
        })
    }

    /// Computes a product with sums in f32. If the left side has few rows, the right side is read in its own type,
    /// without a copy.
    fn dot_in_f32(&mut self, dot: &Dot, packing: &mut PackingBuffers<f32>) -> Result<(), LaunchError> {
        let outcome = self.prepare_product_result(dot, DType::F32)?;
        let (few, other, bits) = if outcome.turned {
            (1, dot.a, gemm::few_rows::WHOLE_ELEMENT_MASK)
        } else {
            (outcome.extents.m, dot.b, dot.bits)
        };
        let dtype = self.ty(other).dtype;
        let Extents { m, n, k } = outcome.extents;
        // Bits of the elements that count are selected by the kernels of few rows alone.
        let all_bits = dot.bits == gemm::few_rows::WHOLE_ELEMENT_MASK;
        // Sums are computed one after the other: a single product qualifies only if they are short.
        let is_tiny = m * n * k <= gemm::tiny::MAX_TINY_MULTIPLY_ADDS
            && (outcome.batch.iter().product::<usize>() > 1
                || m > 1 && n > 1 && k <= gemm::tiny::MAX_SINGLE_PRODUCT_TERMS);
        if all_bits && is_tiny {
            return self.multiply_tiny_batches(dot, outcome);
        }
        if dot.high.is_some() {
            let both = gemm::few_rows::fastest_nibble_kernel()
                .expect("the plan has halves where the machine has a kernel for both");
            let operands = [DType::F32, DType::U8];
            return self.multiply_batches(dot, &outcome, DType::F32, operands, |extents, [a, b, high], c| {
                // SAFETY: the caller's.
                unsafe { gemm::few_rows::dot_nibbles(both, extents, [a.cast(), high.cast()], b, c, packing) }
            });
        }
        let left = self.ty(dot.a).dtype;
        let has_few_columns =
            all_bits && !outcome.turned && n <= gemm::few_rows::MAX_FEW_COLUMNS && m > gemm::few_rows::MAX_NARROW_ROWS;
        if let Some(kernel) =
            gemm::few_rows::fastest_narrow_kernel(left, gemm::few_rows::WHOLE_ELEMENT_MASK).filter(|_| has_few_columns)
        {
            return self.multiply_batches(dot, &outcome, DType::F32, [left, DType::F32], |extents, [a, b, _], c| {
                // SAFETY: the caller's.
                unsafe { gemm::few_rows::dot_few_columns(kernel, extents, a, b.cast(), c, packing) }
            });
        }
        let is_bf16 = [dot.a, dot.b].iter().all(|&v| self.ty(v).dtype == DType::Bf16);
        let in_pairs = is_bf16
            && all_bits
            && gemm::pairwise_dot::is_pairwise_dot_faster(few, n, k, self.has_adjacent_right_columns(dot));
        if let Some(kernel) = gemm::pairwise_dot::fastest_bf16_kernel().filter(|_| in_pairs) {
            return self.multiply_batches(dot, &outcome, DType::F32, [DType::Bf16; 2], |extents, [a, b, _], c| {
                // SAFETY: the caller's; the machine has the kernel, or it had not been chosen.
                unsafe { gemm::pairwise_dot::dot::<bf16>(kernel, extents, a.cast(), b.cast(), c, packing) }
            });
        }
        match gemm::few_rows::fastest_narrow_kernel(dtype, bits).filter(|_| few <= gemm::few_rows::MAX_NARROW_ROWS) {
            Some(kernel) => {
                let operands = if outcome.turned { [dtype, DType::F32] } else { [DType::F32, dtype] };
                self.multiply_batches(dot, &outcome, DType::F32, operands, |extents, [a, b, _], c| {
                    let Extents { m, n, k } = extents;
                    let is_near = operands == [DType::F32; 2]
                        && b.col == 1
                        && !gemm::few_rows::should_pack_columns(n, k)
                        && gemm::fastest_f32_kernel().can_read_panels_fast(b.row)
                        && (m >= MIN_BLOCKED_GEMM_ROWS || n * k <= MAX_CACHED_RIGHT_ELEMENTS);
                    // SAFETY: the caller's.
                    unsafe {
                        if is_near {
                            gemm::dot(gemm::fastest_f32_kernel(), extents, a.cast(), b.cast(), c, packing)
                        } else {
                            gemm::few_rows::dot(kernel, extents, a.cast(), b, c, packing)
                        }
                    }
                })
            }
            None => self.multiply_batches(dot, &outcome, DType::F32, [DType::F32; 2], |extents, [a, b, _], c| {
                // SAFETY: the caller's.
                unsafe { gemm::dot(gemm::fastest_f32_kernel(), extents, a.cast(), b.cast(), c, packing) }
            }),
        }
    }

    /// Computes a batch of very small products: those along the last batch axes, if equally spaced, in one call.
    fn multiply_tiny_batches(&mut self, dot: &Dot, mut outcome: ProductResult) -> Result<(), LaunchError> {
        if outcome.extents.m * outcome.extents.n == 0 {
            return Ok(());
        }
        let (a, b) = (self.batched_operand(dot, 0, DType::F32)?, self.batched_operand(dot, 1, DType::F32)?);
        let (run, mut count, mut apart) = (gemm::tiny::fastest_tiny_products::<f32>(), 1, [0; 3]);
        while let Some(&n) = outcome.batch.last().filter(|_| outcome.part.is_none()) {
            let axis = outcome.batch.len() - 1;
            let own = [a.batch[axis], b.batch[axis], outcome.tile.strides[axis]];
            if count == 1 {
                apart = own;
            } else if n != 1 && own != apart.map(|apart| apart * count as isize) {
                break;
            }
            count *= n;
            outcome.batch.pop();
        }
        if outcome.turned {
            apart.swap(0, 1);
        }
        let together = gemm::tiny::ProductBatch { count, apart };
        self.multiply_matrices(dot, &outcome, [a, b, a], DType::F32, [DType::F32; 2], |extents, [a, b, _], c| {
            // SAFETY: the caller's, of all products of the batch.
            unsafe { run(together, extents, a.cast(), b.cast(), c) }
        });
        Ok(())
    }

    /// Returns true if the elements of the right side that are multiplied with one row of the left side are adjacent
    /// in memory.
    fn has_adjacent_right_columns(&self, dot: &Dot) -> bool {
        let strides = &self.tile(dot.b).strides;
        dot.contract[1].last().is_some_and(|&axis| strides[axis] == 1)
    }

    /// Determines the memory of a product's result, computed in the type `compute`, and fills it with the tile that
    /// the product is added to, if any.
    pub(super) fn prepare_product_result(&mut self, dot: &Dot, compute: DType) -> Result<ProductResult, LaunchError> {
        let (to, bytes) = (dot.to, compute.bytes());
        let inside = self.existing_product_extents(dot);
        let [m, n] = inside.whole;
        let batch: Vec<usize> = dot.batch[0].iter().map(|&axis| self.shape(dot.a)[axis]).collect();
        let is_empty = |operand: OperandId| std::mem::take(&mut self.state.operands[operand.index()].is_empty);
        let add = dot.init.is_some() && !dot.begins.is_some_and(is_empty);
        let out = match dot.init {
            Some(init) if dot.in_place => {
                self.state.tiles[to.index()] = self.tile(init);
                self.tile(init)
            }
            Some(init) => {
                let (from, out) = (self.tile(init), self.result_tile(to));
                // Otherwise the result was redirected to the memory of `init`, which holds it already.
                if add && from.start != out.start {
                    // SAFETY: both hold the shape, and lie apart.
                    unsafe { tile::copy(&from, &out, self.shape(to), bytes) };
                }
                out
            }
            None => self.result_tile(to),
        };
        let rounded = (self.ty(to).dtype != compute).then_some(out);
        let tile = match rounded {
            Some(_) => {
                let total: usize = self.shape(to).iter().product();
                StridedTile::contiguous(grow_buffer_to(&mut self.buffers.operands[2], total * bytes)?, self.shape(to))
            }
            None => out,
        };
        // A redirected result has rows at a distance of their own; every other is contiguous.
        let ldc = if tile.is_contiguous(self.shape(to)) { n as isize } else { tile.strides[batch.len()] };
        let turned = n == 1 && ldc == 1 && m > 1;
        let (extents, part) = (inside.extents, Some(inside).filter(ProductExtents::has_missing_elements));
        Ok(ProductResult { extents, part, batch, tile, ldc, turned, rounded, add })
    }

    /// Calls `multiply` for each batch index, with operands converted to the types `operands` and a result of type
    /// `compute`, which is `T`. The third matrix is the one that the high halves of bytes are multiplied with; without
    /// one, it is the first again.
    ///
    /// The matrices that `multiply` is called with have these extents and strides, counted in elements of their types;
    /// its result overlaps neither operand.
    pub(super) fn multiply_batches<T>(
        &mut self,
        dot: &Dot,
        outcome: &ProductResult,
        compute: DType,
        operands: [DType; 2],
        multiply: impl FnMut(Extents, [Matrix<u8>; 3], OutputMatrix<T>),
    ) -> Result<(), LaunchError> {
        if outcome.extents.m * outcome.extents.n == 0 {
            // A tile without elements may begin anywhere, also where none of its type could lie.
            return Ok(());
        }
        let (a, b) = (self.batched_operand(dot, 0, operands[0])?, self.batched_operand(dot, 1, operands[1])?);
        let high = if dot.high.is_some() { self.batched_operand(dot, 2, operands[0])? } else { a };
        self.multiply_matrices(dot, outcome, [a, b, high], compute, operands, multiply);
        Ok(())
    }

    /// Calls `multiply` as [`ProgramRunner::multiply_batches`] does, for operands that are given as matrices.
    fn multiply_matrices<T>(
        &mut self,
        dot: &Dot,
        outcome: &ProductResult,
        [a, b, high]: [BatchedMatrix; 3],
        compute: DType,
        operands: [DType; 2],
        mut multiply: impl FnMut(Extents, [Matrix<u8>; 3], OutputMatrix<T>),
    ) {
        let ProductResult { extents: Extents { m, n, k }, ref part, ref batch, tile, ldc, turned, rounded, add } =
            *outcome;
        let size: usize = batch.iter().product();
        for index in 0..size {
            let (mut rest, mut offsets) = (index, [0; 4]);
            for axis in (0..batch.len()).rev() {
                let i = (rest % batch[axis]) as isize;
                rest /= batch[axis];
                let strides = [a.batch[axis], b.batch[axis], tile.strides[axis], high.batch[axis]];
                offsets.iter_mut().zip(strides).for_each(|(offset, stride)| *offset += i * stride);
            }
            let start =
                |s: &BatchedMatrix, at: usize| s.start.wrapping_offset(offsets[at] * operands[at].bytes() as isize);
            let left = Matrix { start: start(&a, 0), row: a.free, col: a.contract };
            let right = Matrix { start: start(&b, 1), row: b.contract, col: b.free };
            let upper = high.start.wrapping_offset(offsets[3] * operands[0].bytes() as isize);
            let upper = Matrix { start: upper, row: high.free, col: high.contract };
            let first = tile.start.wrapping_offset(offsets[2] * compute.bytes() as isize).cast::<T>();
            let target = OutputMatrix { start: first, row: if turned { m as isize } else { ldc }, add };
            if turned {
                multiply(Extents { m: 1, n: m, k }, [right.transposed(), left.transposed(), upper], target);
            } else {
                multiply(Extents { m, n, k }, [left, right, upper], target);
            }
            if let Some(part) = part {
                let sides = [(left, operands[0]), (right, operands[1])];
                // SAFETY: the operands are matrices of what is inside; the result's tile has all of it.
                unsafe { past_end_products::complete_product(part, sides, (first.cast(), ldc, compute), add) };
            }
        }
        if let Some(out) = rounded {
            let (dtype, total) = (self.ty(dot.to).dtype, self.ty(dot.to).elements());
            // SAFETY: both hold the result; the buffer is no slot.
            unsafe { convert::convert_elements([compute, dtype], tile.start, out.start, total) };
        }
    }

    /// Returns the operand on a side (0 or 1; 2 for the one multiplied with the high halves of bytes) as matrices of
    /// type `compute`, copied to that side's buffers if necessary.
    fn batched_operand(&mut self, dot: &Dot, side: usize, compute: DType) -> Result<BatchedMatrix, LaunchError> {
        let v = [dot.a, dot.b, dot.high.unwrap_or(dot.a)][side];
        let axes = side % 2;
        let (batch, free, contract) = (&dot.batch[axes], &dot.free[axes], &dot.contract[axes]);
        let inside = self.find_overhang(v).map(|_| self.existing_extents(v));
        let shape = inside.as_ref().map_or(self.shape(v), |extents| &extents[..self.shape(v).len()]);
        let tile =
            if self.ty(v).dtype == compute { self.tile(v) } else { self.convert_operand(v, shape, compute, side)? };
        let mut batch_strides = [0; MAX_RANK];
        let distance = |axes: &[usize]| Some(tile.merged_stride(shape, axes.iter().copied())?.unwrap_or(1));
        if let (Some(free), Some(contract)) = (distance(free), distance(contract)) {
            batch_strides.iter_mut().zip(batch).for_each(|(stride, &axis)| *stride = tile.strides[axis]);
            return Ok(BatchedMatrix { start: tile.start, batch: batch_strides, free, contract });
        }
        // Copies keep adjacent rows or columns adjacent.
        let is_free =
            free.last().is_some_and(|&axis| tile.strides[axis] == 1 && shape[axis] >= self.plan.sizes.adjacent);
        let [outer, inner] = if is_free { [contract, free] } else { [free, contract] };
        let order = [&batch[..], outer, inner].concat();
        let copy = self.copy_with_axis_order(side, &tile, shape, &order, compute.bytes())?;
        batch_strides[..batch.len()].copy_from_slice(&copy.strides[..batch.len()]);
        let apart = inner.iter().map(|&a| shape[a]).product::<usize>() as isize;
        let [free, contract] = if is_free { [1, apart] } else { [apart, 1] };
        Ok(BatchedMatrix { start: copy.start, batch: batch_strides, free, contract })
    }

    /// Converts an operand with these extents to another type, in a buffer; its axes keep their order in memory.
    pub(super) fn convert_operand(
        &mut self,
        v: Value,
        shape: &[usize],
        to: DType,
        buffer: usize,
    ) -> Result<StridedTile, LaunchError> {
        let (tile, dtype) = (self.tile(v), self.ty(v).dtype);
        let total: usize = shape.iter().product();
        let order = tile.memory_order(shape.len());
        let sizes: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        let copy = match tile.select_axes(&order).is_contiguous(&sizes) {
            true => StridedTile::contiguous(tile.start, &sizes),
            false => self.copy_with_axis_order(buffer, &tile, shape, &order, dtype.bytes())?,
        };
        let start = grow_buffer_to(&mut self.buffers.wide[buffer], total * to.bytes())?;
        // SAFETY: both buffers hold every element.
        unsafe { convert::convert_elements([dtype, to], copy.start, start, total) };
        Ok(StridedTile { start, ..copy.with_inverse_axis_order(&order) })
    }
}
