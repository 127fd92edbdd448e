//! Adds up rows of 16-bit floats at positions given by data, starting from zeros (a scatter-add). Each row of the
//! result is written once: zeros if nothing is added to it, a copy of a single row, or a sum made in f32 and rounded.
use super::super::indexed_lines::{MAX_PREFETCHED_ROW_BYTES, PREFETCH_DISTANCE_ROWS, prefetch_cache_lines};
use super::super::launch::LaunchError;
use super::super::plan::step::GatherScatter;
use super::super::row_copies::copy_row;
use super::super::strips::compiled;
use super::super::tile::{MAX_RANK, StridedTile, TileLoops};
use super::gather_scatter::WindowLoop;
use super::sort::grow_buffer_to_elements;
use super::thread_state::ProgramRunner;
use half::{bf16, f16};
use pallas_ir::DType;
use pallas_ir::dtype::Half;

/// Bytes of a 16-bit float, the element type of the added rows.
const HALF_ELEMENT_BYTES: usize = 2;

/// A row that is added to a row of the result.
#[derive(Clone, Copy)]
struct RowUpdate {
    /// Offset of the row in the tile of updates, in elements.
    place: isize,
    /// First the index of the result's row; then 1 + the index of the next update of the same row, or 0.
    link: usize,
}

impl ProgramRunner<'_> {
    /// Runs a scatter-add of rows of 16-bit floats.
    pub(super) fn scatter_add_rows(&mut self, step: &GatherScatter) -> Result<(), LaunchError> {
        match self.ty(step.to).dtype {
            DType::F16 => self.scatter_add_rows_in_type::<f16>(step),
            _ => self.scatter_add_rows_in_type::<bf16>(step),
        }
    }

    /// Runs a scatter-add of rows of the type `T`.
    fn scatter_add_rows_in_type<T: Half>(&mut self, step: &GatherScatter) -> Result<(), LaunchError> {
        let (out, own) = (self.result_tile(step.to), self.tile(step.from));
        let shape = self.shape(step.to);
        let (&n, outer) = shape.split_last().expect("an operand of rows has axes");
        let count: usize = outer.iter().product();
        // The result's rows, with the number of each row in place of its address.
        let mut numbers = StridedTile { start: out.start, strides: [0; MAX_RANK] };
        numbers.strides[..outer.len()]
            .copy_from_slice(&StridedTile::contiguous(out.start, outer).strides[..outer.len()]);
        let index = (self.tile(step.index), self.shape(step.index));
        let walk = WindowLoop::new(&step.windows, (numbers, shape), index, (own, self.shape(step.from)));
        let stride = step.windows.axes.last().and_then(|axis| axis.axis).map_or(1, |axis| own.strides[axis]);
        let is_straight = [stride, out.strides[outer.len()]].map(|stride| n <= 1 || stride == 1);
        let buffers = &mut *self.buffers;
        let [heads, updates, lines] = &mut buffers.operands;
        let (heads, updates): (&mut [u32], &mut [RowUpdate]) =
            (grow_buffer_to_elements(heads, count)?, grow_buffer_to_elements(updates, walk.window_count())?);
        let sum: &mut [f32] = grow_buffer_to_elements(&mut buffers.wide[0], n)?;
        let (line, made) = grow_buffer_to_elements::<T>(lines, 2 * n)?.split_at_mut(n);
        // A linked list of updates for each row, in their order; 0 ends it.
        let mut found = 0;
        let add = |row: isize, place: isize| {
            updates[found] = RowUpdate { place, link: row as usize };
            found += 1;
        };
        // SAFETY: the shape rule admits i32 only.
        unsafe { walk.for_each_window(true, |_| {}, add) };
        heads.fill(0);
        for (i, update) in updates[..found].iter_mut().enumerate().rev() {
            update.link = std::mem::replace(&mut heads[update.link], i as u32 + 1) as usize;
        }
        let row_of =
            |update: RowUpdate| own.start.wrapping_offset(update.place * HALF_ELEMENT_BYTES as isize).cast_const();
        let mut read = |update: RowUpdate| {
            let from = row_of(update);
            if is_straight[0] {
                return from.cast::<T>();
            }
            // SAFETY: the row has `n` elements at its stride, and the line room for them.
            unsafe { copy_row(from, stride, line.as_mut_ptr().cast(), 1, n, HALF_ELEMENT_BYTES) };
            line.as_ptr()
        };
        let (copy, first, more, round) =
            (fastest_copy_row::<T>(), fastest_start_sums::<T>(), fastest_add_row::<T>(), fastest_round_sums::<T>());
        let mut rows = |row: usize, to: isize| {
            if let Some(&next) = heads.get(row + PREFETCH_DISTANCE_ROWS as usize).filter(|next| **next != 0) {
                prefetch_cache_lines(
                    row_of(updates[next as usize - 1]),
                    (n * HALF_ELEMENT_BYTES).min(MAX_PREFETCHED_ROW_BYTES),
                );
            }
            let start = out.start.wrapping_offset(to * HALF_ELEMENT_BYTES as isize);
            let to = if is_straight[1] { start.cast::<T>() } else { made.as_mut_ptr() };
            // SAFETY: a row of the result has `n` elements, and the updates have rows of as many, which it overlaps
            // nowhere.
            unsafe {
                match heads[row] as usize {
                    0 => to.write_bytes(0, n),
                    number => {
                        let mut update = updates[number - 1];
                        if update.link == 0 {
                            copy(read(update), to, n);
                        } else {
                            first(read(update), sum.as_mut_ptr(), n);
                            while update.link != 0 {
                                update = updates[update.link - 1];
                                more(read(update), sum.as_mut_ptr(), n);
                            }
                            round(sum.as_ptr(), to, n);
                        }
                    }
                }
                if !is_straight[1] {
                    copy_row(to.cast(), 1, start, out.strides[outer.len()], n, HALF_ELEMENT_BYTES);
                }
            }
        };
        if !out.is_contiguous(shape) {
            TileLoops::new(outer, [&numbers, &out]).for_each_element(|[row, to]| rows(row as usize, to));
            return Ok(());
        }
        let mut row = 0;
        while row < count {
            if heads[row] != 0 {
                rows(row, (row * n) as isize);
                row += 1;
                continue;
            }
            let empty = first_nonzero_index(&heads[row..]);
            // SAFETY: these rows of the result lie one behind the other.
            unsafe { out.start.add(row * n * HALF_ELEMENT_BYTES).write_bytes(0, empty * n * HALF_ELEMENT_BYTES) };
            row += empty;
        }
        Ok(())
    }
}

/// Returns the index of the first number that is not 0, or the number of all if there is none.
fn first_nonzero_index(numbers: &[u32]) -> usize {
    let is_empty = |chunk: &&[u32; 16]| chunk.iter().fold(0, |all, n| all | n) == 0;
    let whole = 16 * numbers.as_chunks::<16>().0.iter().take_while(is_empty).count();
    whole + numbers[whole..].iter().take_while(|n| **n == 0).count()
}

/// Copies elements as 0 + x, which makes -0 a 0.
#[inline(always)]
unsafe fn copy_row_without_negative_zeros<T: Half>(from: *const T, to: *mut T, n: usize) {
    let (from, to) = (from.cast::<u16>(), to.cast::<u16>());
    // SAFETY: the caller's: both have `n` elements of 16 bits.
    (0..n).for_each(|i| unsafe { to.add(i).write(if *from.add(i) == 1 << 15 { 0 } else { *from.add(i) }) });
}

/// Sets f32 sums to 0 + x for each element x of the first row.
#[inline(always)]
unsafe fn initialize_row_sums<T: Half>(from: *const T, to: *mut f32, n: usize) {
    // SAFETY: the caller's: both have `n` elements.
    (0..n).for_each(|i| unsafe { to.add(i).write(0.0 + (*from.add(i)).wide()) });
}

/// Adds a row to f32 sums.
#[inline(always)]
unsafe fn add_row_to_sums<T: Half>(from: *const T, to: *mut f32, n: usize) {
    // SAFETY: as above.
    (0..n).for_each(|i| unsafe { *to.add(i) += (*from.add(i)).wide() });
}

/// Rounds f32 sums to 16 bits.
#[inline(always)]
unsafe fn round_sums<T: Half>(from: *const f32, to: *mut T, n: usize) {
    // SAFETY: as above.
    (0..n).for_each(|i| unsafe { to.add(i).write(T::round(*from.add(i))) });
}

compiled! { fastest_copy_row<T: Half>() = copy_row_without_negative_zeros(from: *const T, to: *mut T, n: usize) }
compiled! { fastest_start_sums<T: Half>() = initialize_row_sums(from: *const T, to: *mut f32, n: usize) }
compiled! { fastest_add_row<T: Half>() = add_row_to_sums(from: *const T, to: *mut f32, n: usize) }
compiled! { fastest_round_sums<T: Half>() = round_sums(from: *const f32, to: *mut T, n: usize) }
