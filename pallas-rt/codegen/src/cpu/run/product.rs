//! Computes contractions: operands are read as matrices where their strides allow it, else copied once.
#![warn(clippy::wildcard_enum_match_arm)]
use super::super::convert;
use super::super::gemm::{self, Extents, Matrix, Number, Packing, Target};
use super::super::launch::Stop;
use super::super::plan::step::Dot;
use super::super::tile::{self, MAX_RANK, Tile};
use super::ends::{self, Inside};
use super::state::{Run, room};
use half::bf16;
use pallas_ir::{DType, OperandId, Value};

/// Minimum rows for which a product of f32 takes longer than reading the right side.
const BLOCKED_ROWS: usize = 8;
/// Maximum elements of a right side that fits the caches: packed panels of it are then read again faster than the
/// unpacked matrix is read for few rows.
const CACHED: usize = 1 << 19;

/// An operand of a product as one matrix for each batch index.
#[derive(Clone, Copy)]
struct Side {
    start: *const u8,
    /// Strides of the batch axes.
    batch: [isize; MAX_RANK],
    /// Distance in elements along the free axes, and along the contracted axes.
    free: isize,
    contract: isize,
}

/// The memory of a product's result, and its extents.
pub(super) struct Outcome {
    /// Extents of the matrices that are multiplied: of the elements that exist.
    extents: Extents,
    /// Extents of the whole product, if some elements of its operands do not exist.
    part: Option<Inside>,
    batch: Vec<usize>,
    /// The tile in which the result is computed.
    tile: Tile,
    /// Distance in elements between rows of the result.
    ldc: isize,
    /// True if a result of one column is computed as one row, with its operands swapped and transposed.
    turned: bool,
    /// The tile to which the result is rounded, if it is computed in another type in a buffer.
    rounded: Option<Tile>,
    /// True if the product is added to what the tile holds.
    add: bool,
}

impl Run<'_> {
    /// Computes a contraction in the way that is fastest for its types and extents.
    pub(super) fn dot(&mut self, dot: &Dot) -> Result<(), Stop> {
        if dot.is_paged
            && let Some(found) = self.paged(dot)
        {
            return self.dot_paged(dot, found);
        }
        let dtype = self.ty(dot.to).dtype;
        let bytes = [dot.a, dot.b].iter().all(|&v| self.ty(v).dtype == DType::I8);
        match (dtype, gemm::pairs::kernel_i8()) {
            // Sums of 16-bit floats are kept in f32 and rounded once.
            (DType::F32 | DType::F16 | DType::Bf16, _) => {
                let mut packing = std::mem::take(&mut self.buffers.packing);
                let done = self.floats(dot, &mut packing);
                self.buffers.packing = packing;
                done
            }
            (DType::I32, Some(kernel)) if bytes => {
                let mut packing = std::mem::take(&mut self.buffers.int8);
                let outcome = self.outcome(dot, DType::I32)?;
                let done = self.product(dot, &outcome, DType::I32, [DType::I8; 2], |extents, [a, b, _], c| {
                    // SAFETY: the caller's; the machine has the kernel, or it had not been chosen.
                    unsafe { gemm::pairs::dot::<i8>(kernel, extents, a.cast(), b.cast(), c, &mut packing) }
                });
                self.buffers.int8 = packing;
                done
            }
            (DType::F64, _) => self.of_one_type::<f64>(dot, dtype),
            (DType::I8, _) => self.of_one_type::<i8>(dot, dtype),
            (DType::U8, _) => self.of_one_type::<u8>(dot, dtype),
            (DType::I16, _) => self.of_one_type::<i16>(dot, dtype),
            (DType::U16, _) => self.of_one_type::<u16>(dot, dtype),
            (DType::I32, _) => self.of_one_type::<i32>(dot, dtype),
            (DType::U32, _) => self.of_one_type::<u32>(dot, dtype),
            (DType::I64, _) => self.of_one_type::<i64>(dot, dtype),
            (DType::U64, _) => self.of_one_type::<u64>(dot, dtype),
            (DType::Bool, _) => self.of_one_type::<bool>(dot, dtype),
        }
    }

    /// Computes a product whose operands and sums have the type `T`, which is `compute`.
    fn of_one_type<T: Number>(&mut self, dot: &Dot, compute: DType) -> Result<(), Stop> {
        let mut packing = Packing::<T>::default();
        let outcome = self.outcome(dot, compute)?;
        self.product(dot, &outcome, compute, [compute; 2], |extents, [a, b, _], c| {
            // SAFETY: the caller's.
            unsafe { gemm::dot(gemm::fastest(), extents, a.cast(), b.cast(), c, &mut packing) }
        })
    }

    /// Computes a product with sums in f32. If the left side has few rows, the right side is read in its own type,
    /// without a copy.
    fn floats(&mut self, dot: &Dot, packing: &mut Packing<f32>) -> Result<(), Stop> {
        let outcome = self.outcome(dot, DType::F32)?;
        let (few, other, bits) =
            if outcome.turned { (1, dot.a, gemm::narrow::ALL) } else { (outcome.extents.m, dot.b, dot.bits) };
        let dtype = self.ty(other).dtype;
        let Extents { m, n, k } = outcome.extents;
        // Bits of the elements that count are selected by the kernels of few rows alone.
        let all_bits = dot.bits == gemm::narrow::ALL;
        // Sums are computed one after the other: a single product qualifies only if they are short.
        let is_tiny = m * n * k <= gemm::tiny::MOST
            && (outcome.batch.iter().product::<usize>() > 1 || m > 1 && n > 1 && k <= gemm::tiny::SHORT);
        if all_bits && is_tiny {
            return self.tiny(dot, outcome);
        }
        if dot.high.is_some() {
            let both =
                gemm::narrow::halves_kernel().expect("the plan has halves where the machine has a kernel for both");
            let operands = [DType::F32, DType::U8];
            return self.product(dot, &outcome, DType::F32, operands, |extents, [a, b, high], c| {
                // SAFETY: the caller's.
                unsafe { gemm::narrow::halves(both, extents, [a.cast(), high.cast()], b, c, packing) }
            });
        }
        let left = self.ty(dot.a).dtype;
        let has_few_columns = all_bits && !outcome.turned && n <= gemm::narrow::FEW_COLUMNS && m > gemm::narrow::ROWS;
        if let Some(kernel) = gemm::narrow::kernel(left, gemm::narrow::ALL).filter(|_| has_few_columns) {
            return self.product(dot, &outcome, DType::F32, [left, DType::F32], |extents, [a, b, _], c| {
                // SAFETY: the caller's.
                unsafe { gemm::narrow::few_columns(kernel, extents, a, b.cast(), c, packing) }
            });
        }
        let is_bf16 = [dot.a, dot.b].iter().all(|&v| self.ty(v).dtype == DType::Bf16);
        let in_pairs = is_bf16 && all_bits && gemm::pairs::pay(few, n, k, self.has_columns_side_by_side(dot));
        if let Some(kernel) = gemm::pairs::kernel_bf16().filter(|_| in_pairs) {
            return self.product(dot, &outcome, DType::F32, [DType::Bf16; 2], |extents, [a, b, _], c| {
                // SAFETY: the caller's; the machine has the kernel, or it had not been chosen.
                unsafe { gemm::pairs::dot::<bf16>(kernel, extents, a.cast(), b.cast(), c, packing) }
            });
        }
        match gemm::narrow::kernel(dtype, bits).filter(|_| few <= gemm::narrow::ROWS) {
            Some(kernel) => {
                let operands = if outcome.turned { [dtype, DType::F32] } else { [DType::F32, dtype] };
                self.product(dot, &outcome, DType::F32, operands, |extents, [a, b, _], c| {
                    let Extents { m, n, k } = extents;
                    let is_near = operands == [DType::F32; 2]
                        && b.col == 1
                        && !gemm::narrow::are_columns_lines(n, k)
                        && gemm::kernel().reaches(b.row)
                        && (m >= BLOCKED_ROWS || n * k <= CACHED);
                    // SAFETY: the caller's.
                    unsafe {
                        if is_near {
                            gemm::dot(gemm::kernel(), extents, a.cast(), b.cast(), c, packing)
                        } else {
                            gemm::narrow::dot(kernel, extents, a.cast(), b, c, packing)
                        }
                    }
                })
            }
            None => self.product(dot, &outcome, DType::F32, [DType::F32; 2], |extents, [a, b, _], c| {
                // SAFETY: the caller's.
                unsafe { gemm::dot(gemm::kernel(), extents, a.cast(), b.cast(), c, packing) }
            }),
        }
    }

    /// Computes a batch of very small products: those along the last batch axes, if equally spaced, in one call.
    fn tiny(&mut self, dot: &Dot, mut outcome: Outcome) -> Result<(), Stop> {
        if outcome.extents.m * outcome.extents.n == 0 {
            return Ok(());
        }
        let (a, b) = (self.side(dot, 0, DType::F32)?, self.side(dot, 1, DType::F32)?);
        let (run, mut count, mut apart) = (gemm::tiny::fastest::<f32>(), 1, [0; 3]);
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
        let together = gemm::tiny::Batch { count, apart };
        self.each(dot, &outcome, [a, b, a], DType::F32, [DType::F32; 2], |extents, [a, b, _], c| {
            // SAFETY: the caller's, of all products of the batch.
            unsafe { run(together, extents, a.cast(), b.cast(), c) }
        });
        Ok(())
    }

    /// Returns true if the elements of the right side that are multiplied with one row of the left side are adjacent
    /// in memory.
    fn has_columns_side_by_side(&self, dot: &Dot) -> bool {
        let strides = &self.tile(dot.b).strides;
        dot.contract[1].last().is_some_and(|&axis| strides[axis] == 1)
    }

    /// Determines the memory of a product's result, computed in the type `compute`, and fills it with the tile that
    /// the product is added to, if any.
    pub(super) fn outcome(&mut self, dot: &Dot, compute: DType) -> Result<Outcome, Stop> {
        let (to, bytes) = (dot.to, compute.bytes());
        let inside = self.inside(dot);
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
                let (from, out) = (self.tile(init), self.define(to));
                // Otherwise the result was aimed at the memory of `init`, which holds it already.
                if add && from.start != out.start {
                    // SAFETY: both hold the shape, and lie apart.
                    unsafe { tile::copy(&from, &out, self.shape(to), bytes) };
                }
                out
            }
            None => self.define(to),
        };
        let rounded = (self.ty(to).dtype != compute).then_some(out);
        let tile = match rounded {
            Some(_) => {
                let total: usize = self.shape(to).iter().product();
                Tile::contiguous(room(&mut self.buffers.operands[2], total * bytes)?, self.shape(to))
            }
            None => out,
        };
        // A result in aimed memory has rows at a distance of their own; every other is contiguous.
        let ldc = if tile.is_contiguous(self.shape(to)) { n as isize } else { tile.strides[batch.len()] };
        let turned = n == 1 && ldc == 1 && m > 1;
        let (extents, part) = (inside.extents, Some(inside).filter(Inside::is_part));
        Ok(Outcome { extents, part, batch, tile, ldc, turned, rounded, add })
    }

    /// Calls `multiply` for each batch index, with operands converted to the types `operands` and a result of type
    /// `compute`, which is `T`. The third matrix is the one that the high halves of bytes are multiplied with; without
    /// one, it is the first again.
    ///
    /// The matrices that `multiply` is called with have these extents and strides, counted in elements of their types;
    /// its result overlaps neither operand.
    pub(super) fn product<T>(
        &mut self,
        dot: &Dot,
        outcome: &Outcome,
        compute: DType,
        operands: [DType; 2],
        multiply: impl FnMut(Extents, [Matrix<u8>; 3], Target<T>),
    ) -> Result<(), Stop> {
        if outcome.extents.m * outcome.extents.n == 0 {
            // A tile without elements may begin anywhere, also where none of its type could lie.
            return Ok(());
        }
        let (a, b) = (self.side(dot, 0, operands[0])?, self.side(dot, 1, operands[1])?);
        let high = if dot.high.is_some() { self.side(dot, 2, operands[0])? } else { a };
        self.each(dot, outcome, [a, b, high], compute, operands, multiply);
        Ok(())
    }

    /// Calls `multiply` as [`Run::product`] does, for operands that are given as matrices.
    fn each<T>(
        &mut self,
        dot: &Dot,
        outcome: &Outcome,
        [a, b, high]: [Side; 3],
        compute: DType,
        operands: [DType; 2],
        mut multiply: impl FnMut(Extents, [Matrix<u8>; 3], Target<T>),
    ) {
        let Outcome { extents: Extents { m, n, k }, ref part, ref batch, tile, ldc, turned, rounded, add } = *outcome;
        let size: usize = batch.iter().product();
        for index in 0..size {
            let (mut rest, mut offsets) = (index, [0; 4]);
            for axis in (0..batch.len()).rev() {
                let i = (rest % batch[axis]) as isize;
                rest /= batch[axis];
                let strides = [a.batch[axis], b.batch[axis], tile.strides[axis], high.batch[axis]];
                offsets.iter_mut().zip(strides).for_each(|(offset, stride)| *offset += i * stride);
            }
            let start = |s: &Side, at: usize| s.start.wrapping_offset(offsets[at] * operands[at].bytes() as isize);
            let left = Matrix { start: start(&a, 0), row: a.free, col: a.contract };
            let right = Matrix { start: start(&b, 1), row: b.contract, col: b.free };
            let upper = high.start.wrapping_offset(offsets[3] * operands[0].bytes() as isize);
            let upper = Matrix { start: upper, row: high.free, col: high.contract };
            let first = tile.start.wrapping_offset(offsets[2] * compute.bytes() as isize).cast::<T>();
            let target = Target { start: first, row: if turned { m as isize } else { ldc }, add };
            if turned {
                multiply(Extents { m: 1, n: m, k }, [right.transposed(), left.transposed(), upper], target);
            } else {
                multiply(Extents { m, n, k }, [left, right, upper], target);
            }
            if let Some(part) = part {
                let sides = [(left, operands[0]), (right, operands[1])];
                // SAFETY: the operands are matrices of what is inside; the result's tile has all of it.
                unsafe { ends::complete(part, sides, (first.cast(), ldc, compute), add) };
            }
        }
        if let Some(out) = rounded {
            let (dtype, total) = (self.ty(dot.to).dtype, self.ty(dot.to).elements());
            // SAFETY: both hold the result; the buffer is no slot.
            unsafe { convert::elements([compute, dtype], tile.start, out.start, total) };
        }
    }

    /// Returns the operand on a side (0 or 1; 2 for the one multiplied with the high halves of bytes) as matrices of
    /// type `compute`, copied to that side's buffers if necessary.
    fn side(&mut self, dot: &Dot, side: usize, compute: DType) -> Result<Side, Stop> {
        let v = [dot.a, dot.b, dot.high.unwrap_or(dot.a)][side];
        let axes = side % 2;
        let (batch, free, contract) = (&dot.batch[axes], &dot.free[axes], &dot.contract[axes]);
        let inside = self.end(v).map(|_| self.extents_inside(v));
        let shape = inside.as_ref().map_or(self.shape(v), |extents| &extents[..self.shape(v).len()]);
        let tile = if self.ty(v).dtype == compute { self.tile(v) } else { self.widened(v, shape, compute, side)? };
        let mut batch_strides = [0; MAX_RANK];
        let distance = |axes: &[usize]| Some(tile.distance(shape, axes.iter().copied())?.unwrap_or(1));
        if let (Some(free), Some(contract)) = (distance(free), distance(contract)) {
            batch_strides.iter_mut().zip(batch).for_each(|(stride, &axis)| *stride = tile.strides[axis]);
            return Ok(Side { start: tile.start, batch: batch_strides, free, contract });
        }
        // Copies keep adjacent rows or columns adjacent.
        let is_free =
            free.last().is_some_and(|&axis| tile.strides[axis] == 1 && shape[axis] >= self.plan.sizes.adjacent);
        let [outer, inner] = if is_free { [contract, free] } else { [free, contract] };
        let order = [&batch[..], outer, inner].concat();
        let copy = self.ordered(side, &tile, shape, &order, compute.bytes())?;
        batch_strides[..batch.len()].copy_from_slice(&copy.strides[..batch.len()]);
        let apart = inner.iter().map(|&a| shape[a]).product::<usize>() as isize;
        let [free, contract] = if is_free { [1, apart] } else { [apart, 1] };
        Ok(Side { start: copy.start, batch: batch_strides, free, contract })
    }

    /// Converts an operand with these extents to another type, in a buffer; its axes keep their order in memory.
    pub(super) fn widened(&mut self, v: Value, shape: &[usize], to: DType, buffer: usize) -> Result<Tile, Stop> {
        let (tile, dtype) = (self.tile(v), self.ty(v).dtype);
        let total: usize = shape.iter().product();
        let order = tile.memory_order(shape.len());
        let sizes: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        let copy = match tile.axes(&order).is_contiguous(&sizes) {
            true => Tile::contiguous(tile.start, &sizes),
            false => self.ordered(buffer, &tile, shape, &order, dtype.bytes())?,
        };
        let start = room(&mut self.buffers.wide[buffer], total * to.bytes())?;
        // SAFETY: both buffers hold every element.
        unsafe { convert::elements([dtype, to], copy.start, start, total) };
        Ok(Tile { start, ..copy.placed(&order) })
    }
}
