//! Sorts the lines of a tile along an axis.
use super::super::launch::LaunchError;
use super::super::row_copies;
use super::super::sort::{self, KeyBits, KeyRule};
use super::super::tile::{StridedTile, TileLoops};
use super::thread_state::{CacheLine, ProgramRunner, ThreadBuffers, grow_buffer_to};
use crate::raw;
use pallas_ir::Value;
use pallas_ir::structural::SortOrder;

impl ProgramRunner<'_> {
    /// Runs a sort of the lines along an axis; the result has the sorted elements or, if `returns_positions`, their
    /// positions before the sort.
    pub(super) fn sort(
        &mut self,
        from: Value,
        axis: usize,
        order: SortOrder,
        returns_positions: bool,
        to: Value,
    ) -> Result<(), LaunchError> {
        let (out, x, dtype) = (self.result_tile(to), self.tile(from), self.ty(from).dtype);
        let (n, shape) = (self.shape(from)[axis], self.shape(to));
        sort::visit_key_rule(
            dtype,
            order,
            SortLines { buffers: self.buffers, x, out, shape, axis, n, positions: returns_positions },
        )
    }
}

/// The lines along an axis of a tile, and of the result of sorting them.
struct SortLines<'a> {
    buffers: &'a mut ThreadBuffers,
    x: StridedTile,
    out: StridedTile,
    /// Extents of the result.
    shape: &'a [usize],
    axis: usize,
    /// Number of elements of a line of the tile.
    n: usize,
    /// True if the result has positions instead of elements.
    positions: bool,
}

/// Returns the first `n` elements of a buffer, which grows if necessary.
pub(super) fn grow_buffer_to_elements<T>(buffer: &mut Vec<CacheLine>, n: usize) -> Result<&mut [T], LaunchError> {
    let start = grow_buffer_to(buffer, n * size_of::<T>())?;
    // SAFETY: the buffer is initialised and has room for the elements, which are made of numbers; it is borrowed as
    // long as they are.
    Ok(unsafe { raw::slice_mut(start.cast::<T>(), n) })
}

impl sort::KeyRuleVisitor for SortLines<'_> {
    type Out = Result<(), LaunchError>;
    fn visit<U: KeyBits, const CLASS: u8>(self, rule: KeyRule<U, CLASS>) -> Result<(), LaunchError> {
        let SortLines { buffers, x, out, shape, axis, n, positions } = self;
        let k = shape[axis];
        let halvings = sort::halvings_for_threads(n);
        let [first, second, lines] = &mut buffers.operands;
        // Lines whose elements are not adjacent are copied.
        let is_straight = n <= 1 || x.strides[axis] == 1;
        let line: &mut [U] = grow_buffer_to_elements(lines, if is_straight { 0 } else { n })?;
        let mut each = |sorted: &mut dyn FnMut(&[U], *mut u8)| {
            let (mut starts, bytes) = (shape.to_vec(), size_of::<U>() as isize);
            starts[axis] = starts[axis].min(1);
            TileLoops::new(&starts, [&x, &out]).for_each_element(|[from, to]| {
                let from = x.start.wrapping_offset(from * bytes);
                let step = x.strides[axis] * bytes;
                // SAFETY: a line of the tile has `n` elements at the axis' stride, and nothing writes them meanwhile.
                let x = unsafe {
                    if is_straight {
                        raw::slice(from.cast::<U>(), n)
                    } else {
                        let element = |i: usize| from.offset(i as isize * step).cast::<U>().read();
                        line.iter_mut().enumerate().for_each(|(i, to)| *to = element(i));
                        &*line
                    }
                };
                sorted(x, out.start.wrapping_offset(to * if positions { 4 } else { bytes }));
            });
        };
        let copy = |from: *mut u8, to: *mut u8, bytes: usize| {
            // SAFETY: the result has `k` elements at its axis' stride, and the source as many adjacent ones.
            unsafe { row_copies::copy_row(from, 1, to, out.strides[axis], k, bytes) }
        };
        let is_adjacent = k <= 1 || out.strides[axis] == 1;
        if positions {
            let [a, b] = sort::sort_buffer_lengths(n, k, halvings);
            let (a, b): (&mut [U::Packed], &mut [U::Packed]) =
                (grow_buffer_to_elements(first, a)?, grow_buffer_to_elements(second, b)?);
            let found: &mut [u32] = grow_buffer_to_elements(&mut buffers.wide[0], if is_adjacent { 0 } else { k })?;
            each(&mut |x, to| {
                if is_adjacent {
                    // SAFETY: the result's line has `k` adjacent elements that overlap no operand.
                    let to = unsafe { raw::slice_mut(to.cast::<u32>(), k) };
                    return sort::sort_positions(rule, x, to, [&mut *a, &mut *b], halvings);
                }
                sort::sort_positions(rule, x, found, [&mut *a, &mut *b], halvings);
                copy(found.as_mut_ptr().cast(), to, 4);
            });
            return Ok(());
        }
        let is_direct = is_adjacent && k == n;
        let buffer: &mut [U] = grow_buffer_to_elements(first, n)?;
        let found: &mut [U] = grow_buffer_to_elements(second, if is_direct { 0 } else { n })?;
        each(&mut |x, to| {
            if is_direct {
                // SAFETY: as above.
                let to = unsafe { raw::slice_mut(to.cast::<U>(), n) };
                return sort::sort_values(rule, x, to, buffer, halvings);
            }
            sort::sort_values(rule, x, found, buffer, halvings);
            copy(found.as_mut_ptr().cast(), to, size_of::<U>());
        });
        Ok(())
    }
}
