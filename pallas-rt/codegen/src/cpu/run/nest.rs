//! Runs affine nests: convolutions as products of matrices, windowed reductions as loops over boxes.
//!
//! Convolutions and windowed reductions have one access form, the affine nest (`ir/src/structural/nest.rs`): loops, the
//! positions of each operand and of the result as sums of multiples of the loop indices, and a monoid. The interpreter
//! and WGSL loop over it. This module finds the axes of a product of matrices among its loops
//! (`cpu/run/convolution_gemm`): a matrix is read in place where its rows and columns are in memory, else parts of it
//! are copied, with zeros for elements beyond edges. Where each element is used often, arrays whose features are not
//! adjacent (images NCHW) are copied first (`cpu/run/convolution_layout`), so that every order of dimensions takes
//! about as long. A zero times an infinity would be NaN. If the other operand has infinities, if there would be mostly
//! zeros, or if an image would be copied for its edges alone, each box of positions at which all elements exist
//! (`cpu/interior_boxes`) is a product of its own. Windowed reductions are loops over such boxes. Programs divide
//! batches and output features; axes along which a window moves are whole in each (`fuse/convolution_blocks`). Other
//! operations that move elements along an axis share kernels with what follows, and programs divide the other axes
//! (`fuse/moves`).
#![warn(clippy::wildcard_enum_match_arm)]
use super::super::Thresholds;
use super::super::convert;
use super::super::gemm::{self, Extents, Matrix, Number, OutputMatrix, PackingBuffers};
use super::super::interior_boxes::{self, AffineLoopNest, AxisRanges, RESULT_INDEX};
use super::super::launch::LaunchError;
use super::super::nonfinite_search::is_tile_finite;
use super::super::plan::step::LoopNests;
use super::super::tile::{self, StridedTile};
use super::convolution_gemm::{MatrixProduct, ProductBuffers};
use super::convolution_layout;
use super::thread_state::{ProgramRunner, grow_buffer_to};
use pallas_ir::DType;
use std::ops::Range;

/// Minimum fraction of a convolution's loop positions that read no padding for which one product computes all
/// positions, with zeros as padding; below it, each box of positions without padding is a product of its own.
const MIN_UNPADDED_POSITION_FRACTION: f64 = 0.25;
/// Maximum rows of the left matrix for which a product reads a column-major right matrix where it lies; with more rows
/// it packs that matrix, which then takes less time.
const MAX_UNPACKED_LEFT_ROWS: usize = 4;

/// Maximum number of boxes, inside of which all elements exist, into which an image is divided to be read in place; if
/// there are more, it is copied with zeros around it.
const MAX_IN_PLACE_BOXES: usize = 100;

/// Returns the boxes of positions that are computed as one product each, with zeros for elements that do not exist:
/// one box, or several that share no element of the result. Returns `None` if the nest is no product of matrices.
fn product_boxes(nest: &AffineLoopNest, sizes: &Thresholds) -> Option<Vec<Vec<Range<usize>>>> {
    let all = nest.full_ranges();
    let boxes = if MatrixProduct::from_nest(nest, &all, sizes)?.fits_in_boxes { unpadded_boxes(nest) } else { None };
    Some(boxes.unwrap_or_else(|| vec![all]))
}

/// Divides a loop nest over an image with padding into boxes of positions that read no padding, which are computed as
/// separate products. Returns `None` if two boxes compute the same element of the result, if none computes at least
/// half of the result, or if there are more than [`MAX_IN_PLACE_BOXES`].
fn unpadded_boxes(nest: &AffineLoopNest) -> Option<Vec<Vec<Range<usize>>>> {
    let mut order = nest.box_division_order();
    order.sort_by_key(|&axis| !nest.is_parallel[axis]);
    let (mut boxes, mut count) = (vec![], 0);
    nest.for_each_inside_box(None, &order, &mut nest.full_ranges(), &mut |part| {
        count += 1;
        if count <= MAX_IN_PLACE_BOXES {
            boxes.push(part.to_vec());
        }
    });
    let parallel = || nest.non_unit_axes().filter(|&axis| nest.is_parallel[axis]);
    let overlap = |a: &AxisRanges, b: &AxisRanges| {
        parallel().all(|axis| a[axis].start < b[axis].end && b[axis].start < a[axis].end)
    };
    let is_apart = |(i, part): (usize, &Vec<_>)| !boxes[..i].iter().any(|other| overlap(part, other));
    let most = boxes.iter().map(|part| count_result_elements(nest, part)).max()?;
    let holds = count <= MAX_IN_PLACE_BOXES
        && 2 * most >= count_result_elements(nest, &nest.full_ranges())
        && boxes.iter().enumerate().all(is_apart);
    holds.then_some(boxes)
}

/// Number of elements of the result that the positions in the ranges `part` of a loop nest compute.
fn count_result_elements(nest: &AffineLoopNest, part: &AxisRanges) -> usize {
    nest.non_unit_axes().filter(|&axis| nest.is_parallel[axis]).map(|axis| part[axis].len()).product()
}

impl ProgramRunner<'_> {
    /// Runs a convolution or a windowed reduction.
    pub(super) fn run_loop_nests(&mut self, nested: &LoopNests) -> Result<(), LaunchError> {
        if nested.args.len() == 1 {
            return self.fold_windows(nested);
        }
        let dtype = self.ty(nested.to).dtype;
        match dtype {
            // Sums of 16-bit floats are kept in f32 and rounded once.
            DType::F32 | DType::F16 | DType::Bf16 => {
                let mut packing = std::mem::take(&mut self.buffers.packing);
                let mut buffers = std::mem::take(&mut self.buffers.parts);
                let narrow = gemm::few_rows::fastest_narrow_kernel(DType::F32, gemm::few_rows::WHOLE_ELEMENT_MASK);
                let done = self.run_products(nested, DType::F32, &mut buffers, &mut |extents, a, b, c| {
                    let has_few_rows = extents.m <= MAX_UNPACKED_LEFT_ROWS && b.row == 1 && b.col != 1;
                    let has_few_columns = extents.n <= gemm::few_rows::MAX_FEW_COLUMNS
                        && extents.m > gemm::few_rows::MAX_NARROW_ROWS
                        && a.col == 1;
                    // SAFETY: the caller's; the machine runs all kernels.
                    unsafe {
                        match narrow {
                            Some(kernel) if has_few_rows => {
                                gemm::few_rows::dot(kernel, extents, a, b.cast(), c, &mut packing)
                            }
                            Some(kernel) if has_few_columns => {
                                gemm::few_rows::dot_few_columns(kernel, extents, a.cast(), b, c, &mut packing)
                            }
                            _ => gemm::dot(gemm::fastest_f32_kernel(), extents, a, b, c, &mut packing),
                        }
                    }
                });
                self.buffers.packing = packing;
                self.buffers.parts = buffers;
                done
            }
            DType::F64 => self.run_products_in_type::<f64>(nested, dtype),
            DType::I8 => self.run_products_in_type::<i8>(nested, dtype),
            DType::U8 => self.run_products_in_type::<u8>(nested, dtype),
            DType::I16 => self.run_products_in_type::<i16>(nested, dtype),
            DType::U16 => self.run_products_in_type::<u16>(nested, dtype),
            DType::I32 => self.run_products_in_type::<i32>(nested, dtype),
            DType::U32 => self.run_products_in_type::<u32>(nested, dtype),
            DType::I64 => self.run_products_in_type::<i64>(nested, dtype),
            DType::U64 => self.run_products_in_type::<u64>(nested, dtype),
            DType::Bool => self.run_products_in_type::<bool>(nested, dtype),
        }
    }

    /// Computes sums of products in the type `T`, which is `compute`.
    fn run_products_in_type<T: Number>(&mut self, nested: &LoopNests, compute: DType) -> Result<(), LaunchError> {
        let mut packing = PackingBuffers::default();
        self.run_products::<T>(nested, compute, &mut ProductBuffers::default(), &mut |extents, a, b, c| {
            // SAFETY: the caller's.
            unsafe { gemm::dot(gemm::vectorized_kernel(), extents, a, b, c, &mut packing) }
        })
    }

    /// Computes sums of products in the type `T`, which is `compute`; `multiply` multiplies matrices of the given
    /// extents, whose result overlaps neither.
    fn run_products<T: Number>(
        &mut self,
        nested: &LoopNests,
        compute: DType,
        buffers: &mut ProductBuffers<T>,
        multiply: &mut dyn FnMut(Extents, Matrix<T>, Matrix<T>, OutputMatrix<T>),
    ) -> Result<(), LaunchError> {
        let (to, bytes) = (nested.to, compute.bytes());
        let mut tiles = [self.tile(nested.args[0]), self.tile(nested.args[1])];
        for (i, &v) in nested.args.iter().enumerate() {
            if self.ty(v).dtype != compute {
                tiles[i] = self.convert_operand(v, self.shape(v), compute, i)?;
            }
        }
        let out = self.result_tile(to);
        let total: usize = self.shape(to).iter().product();
        let is_rounded = self.ty(to).dtype != compute;
        let mut tile = match is_rounded {
            true => {
                StridedTile::contiguous(grow_buffer_to(&mut self.buffers.operands[2], total * bytes)?, self.shape(to))
            }
            false => out,
        };
        let (zero, shape) = (0u64, self.shape(to));
        let shapes = [self.shape(nested.args[0]), self.shape(nested.args[1])];
        let linear = |tiles: [&StridedTile; 3]| {
            let arrays = [(tiles[0], shapes[0]), (tiles[1], shapes[1]), (tiles[2], shape)];
            nested.nests.iter().map(|nest| AffineLoopNest::new(nest, arrays)).collect::<Vec<AffineLoopNest>>()
        };
        let sizes = self.plan.sizes;
        let mut nests = linear([&tiles[0], &tiles[1], &tile]);
        let mut is_copied = false;
        let all = [&tiles[0], &tiles[1], &tile];
        // The rounding at the end of a fused function is an operation of its own, so its sums are f32 here.
        if !is_rounded
            && let Some(orders) =
                convolution_layout::choose_axis_orders(nested, &nests, all, [shapes[0], shapes[1], shape], sizes)
        {
            for (i, order) in orders[..2].iter().enumerate() {
                if let Some(order) = order {
                    tiles[i] = self
                        .copy_with_axis_order(i, &tiles[i], shapes[i], order, bytes)?
                        .with_inverse_axis_order(order);
                }
            }
            if let Some(order) = &orders[2] {
                let sizes: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
                tile = StridedTile::contiguous(grow_buffer_to(&mut self.buffers.operands[2], total * bytes)?, &sizes)
                    .with_inverse_axis_order(order);
                is_copied = true;
            }
            nests = linear([&tiles[0], &tiles[1], &tile]);
        }
        // Zeros may stand for missing elements of one operand only if the other has no infinity or NaN.
        let pads = |array: usize| nests.iter().any(|nest| nest.has_bounds_checks(array));
        // SAFETY: the operands' tiles have their shapes.
        let is_finite = |array: usize| unsafe { is_tile_finite(compute, &tiles[array], shapes[array]) };
        let can_pad = [0, 1].iter().all(|&array| !pads(array) || is_finite(1 - array));
        let is_padded = |nest: &AffineLoopNest| {
            nest.checks.is_empty() || can_pad && nest.fraction_inside() >= MIN_UNPADDED_POSITION_FRACTION
        };
        let padded: Vec<_> =
            nests.iter().map(|nest| if is_padded(nest) { product_boxes(nest, sizes) } else { None }).collect();
        // Products that compute every element set the result; otherwise (elements between those of a dilated operand)
        // it is cleared first.
        let add = match (&nests[..], &padded[..]) {
            ([nest], [Some(parts)]) => {
                let are_products = parts.iter().all(|part| MatrixProduct::from_nest(nest, part, sizes).is_some());
                !are_products || parts.iter().map(|part| count_result_elements(nest, part)).sum::<usize>() != total
            }
            _ => true,
        };
        if add {
            // SAFETY: the memory holds the result.
            unsafe { tile::fill((&raw const zero).cast(), &tile, shape, bytes) };
        }
        let operands = tiles.map(|tile| tile.start.cast::<T>().cast_const());
        let target = tile.start.cast::<T>();
        for (nest, padded) in nests.iter().zip(&padded) {
            let order = nest.fold_loop_order();
            let mut compute = |part: &AxisRanges| {
                if let Some(matrices) = MatrixProduct::from_nest(nest, part, sizes) {
                    // SAFETY: the tiles have the shapes that the nest was checked for.
                    return unsafe { matrices.run(operands, target, add, buffers, multiply) };
                }
                let loops = nest
                    .loops_over_box(part, &order, |axis| [0, 1, RESULT_INDEX].map(|array| nest.strides[array][axis]));
                let first = [0, 1, RESULT_INDEX].map(|array| nest.first_element_offset(array, part));
                // SAFETY: the checks hold for these elements; the result has every position of the parallel axes.
                unsafe { interior_boxes::add_products_in_loops(&loops, operands, target, first) };
            };
            match padded {
                Some(parts) => parts.iter().for_each(|part| compute(part)),
                None => {
                    nest.for_each_inside_box(None, &nest.box_division_order(), &mut nest.full_ranges(), &mut compute)
                }
            }
        }
        if is_rounded {
            // SAFETY: both hold the result, which is no array's memory.
            unsafe { convert::convert_elements([compute, self.ty(to).dtype], tile.start, out.start, total) };
        }
        if is_copied {
            // SAFETY: both hold the result; the buffer is not its memory.
            unsafe { tile::copy(&tile, &out, shape, bytes) };
        }
        Ok(())
    }

    /// Computes a windowed reduction, as loops over boxes of positions whose elements exist.
    fn fold_windows(&mut self, nested: &LoopNests) -> Result<(), LaunchError> {
        let (from, bytes) = (nested.args[0], self.element_bytes(nested.to));
        let (tile, out) = (self.tile(from), self.result_tile(nested.to));
        let start = nested.start.bits;
        // SAFETY: the result's own memory holds its shape.
        unsafe { tile::fill((&raw const start).cast(), &out, self.shape(nested.to), bytes) };
        for nest in &nested.nests {
            let nest =
                AffineLoopNest::new(nest, [(&tile, self.shape(from)), (&out, &[]), (&out, self.shape(nested.to))]);
            let order = nest.fold_loop_order();
            nest.for_each_inside_box(None, &nest.box_division_order(), &mut nest.full_ranges(), &mut |part| {
                let loops =
                    nest.loops_over_box(part, &order, |axis| [0, RESULT_INDEX].map(|array| nest.strides[array][axis]));
                let first = [0, RESULT_INDEX].map(|array| nest.first_element_offset(array, part));
                loops.for_each_outer_iteration(first, &mut |[x, y], inner| {
                    // SAFETY: the checks hold for these elements; the result has every position of the parallel axes.
                    unsafe {
                        (nested.fold.loops)(tile.element_address(x, bytes), out.element_address(y, bytes), inner)
                    };
                });
            });
        }
        Ok(())
    }
}
