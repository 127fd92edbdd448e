//! Loads and stores, clipped to the elements that exist in the array.
use super::super::convert::{normalize_bool, normalize_bools};
use super::super::launch::LaunchMemory;
use super::super::plan::step::OperandView;
use super::super::row_copies;
use super::super::tile::{self, MAX_RANK, StridedTile};
use super::thread_state::{OverhangingTile, ProgramRunner};
use crate::raw;
use pallas_ir::{DType, Literal, OperandId, Value};

/// A view with the address and strides of its operand's memory. Positions are compared with the array's extents here,
/// once per access.
struct ResolvedView {
    /// The tile of the whole view; only elements in `inside` may be accessed.
    tile: StridedTile,
    /// Extents of the view's axes that the tile keeps.
    shape: [usize; MAX_RANK],
    /// For each kept axis, the range of indices inside of the array.
    inside: [(usize, usize); MAX_RANK],
    /// Number of kept axes.
    rank: usize,
    /// True if all elements are inside of the array.
    whole: bool,
}

impl ProgramRunner<'_> {
    /// Computes the tile of a view at run time, and which part of it is inside of the array.
    fn resolve_view(&self, place: &OperandView) -> ResolvedView {
        let operand = &self.state.operands[place.operand.index()];
        let mut placed = ResolvedView {
            tile: StridedTile { start: operand.start, strides: [0; MAX_RANK] },
            shape: [0; MAX_RANK],
            inside: [(0, 0); MAX_RANK],
            rank: 0,
            whole: true,
        };
        let mut starts = place.starts.iter();
        let (mut offset, mut none) = (0i64, false);
        for (axis, a) in place.view.axes.iter().enumerate() {
            let dynamic = if a.dynamic { starts.next().map_or(0, |&v| self.scalar_int(v)) } else { 0 };
            let start = a.offset.saturating_add(dynamic);
            let (lo, hi) = clip_index_range(start, a.stride, a.size, operand.shape[axis] as i64);
            placed.whole &= lo == 0 && hi == a.size;
            let step = operand.strides[axis] as i64;
            offset = offset.wrapping_add(start.wrapping_mul(step));
            if a.kept {
                placed.tile.strides[placed.rank] = a.stride.wrapping_mul(step) as isize;
                (placed.shape[placed.rank], placed.inside[placed.rank]) = (a.size, (lo, hi));
                placed.rank += 1;
            } else {
                none |= lo == hi;
            }
        }
        if none {
            placed.inside = [(0, 0); MAX_RANK];
        }
        // A rank-0 view outside of the array has no axis that says so: it gets an empty one.
        if none && placed.rank == 0 {
            placed.rank = 1;
        }
        placed.tile = placed.tile.offset(offset as isize, operand.bytes);
        placed
    }

    /// Runs a load: elements outside of the array are `fill`, those where the first value of `mask` is false are its
    /// second value. `overhang_axes` is `None` if the tile must be copied; else the tile may refer to the operand's
    /// memory, and extend past the array's end along the axes in this bit mask.
    pub(super) fn load(
        &mut self,
        from: &OperandView,
        mask: Option<(Value, Value)>,
        fill: Literal,
        overhang_axes: Option<u8>,
        to: Value,
    ) {
        let placed = self.resolve_view(from);
        let open = overhang_axes.unwrap_or(0);
        if open != 0 {
            self.buffers.ends.retain(|end| end.of != to);
        }
        if overhang_axes.is_some() && (placed.whole || placed.overhangs_only_along(open)) {
            if !placed.whole {
                self.buffers.ends.push(placed.overhanging_tile(to, Some(fill)));
            }
            self.state.tiles[to.index()] = placed.tile;
            return;
        }
        let (out, bytes, shape) = (self.result_tile(to), self.element_bytes(to), self.shape(to));
        let fill = fill.bits;
        // SAFETY: the slot holds the shape; of the operand only the clipped box is read.
        unsafe {
            if !placed.whole {
                tile::fill((&raw const fill).cast(), &out, shape, bytes);
            }
            let (source, target, size) = placed.clip_tiles(out, bytes);
            tile::copy(&source, &target, &size[..placed.rank], bytes);
            if self.ty(to).dtype == DType::Bool {
                normalize_bools(raw::slice_mut(out.start, self.ty(to).elements()));
            }
        }
        if let Some((mask, other)) = mask {
            let (mask, other) = (self.tile(mask), self.tile(other));
            tile::TileLoops::new(shape, [&out, &mask]).for_each_element(|[o, m]| {
                // SAFETY: mask and tile hold the shape, `other` one element.
                unsafe {
                    if !*mask.start.offset(m).cast::<bool>() {
                        row_copies::copy_row(other.start, 0, out.start.offset(o * bytes as isize), 1, 1, bytes);
                    }
                }
            });
        }
    }

    /// Runs a store of the elements inside of the array, where the mask is true if there is one.
    pub(super) fn store(&mut self, value: Value, to: &OperandView, mask: Option<Value>) {
        let (placed, bytes, source) = (self.resolve_view(to), self.element_bytes(value), self.tile(value));
        let (target, source, size) = placed.clip_tiles(source, bytes);
        let size = &size[..placed.rank];
        let Some(mask) = mask else {
            // SAFETY: the clipped box lies inside of the array, and the value holds it. A value that refers to the same
            // memory elsewhere was copied when it was loaded.
            return unsafe { tile::copy(&source, &target, size, bytes) };
        };
        let (_, mask, _) = placed.clip_tiles(self.tile(mask), 1);
        tile::TileLoops::new(size, [&source, &target, &mask]).for_each_element(|[s, t, m]| {
            // SAFETY: as above, and the mask holds the value's shape.
            unsafe {
                if *mask.start.offset(m).cast::<bool>() {
                    let from = source.start.offset(s * bytes as isize);
                    row_copies::copy_row(from, 1, target.start.offset(t * bytes as isize), 1, 1, bytes);
                }
            }
        });
    }

    /// Lets the next step that defines `value` compute it in the operand's memory, if the view lies inside of the array
    /// in whole rows. Along the axes in the bit mask `overhang_axes` it may extend past the array's end.
    pub(super) fn redirect_result(&mut self, value: Value, at: &OperandView, overhang_axes: u8) {
        let placed = self.resolve_view(at);
        let rank = placed.rank;
        if overhang_axes != 0 {
            self.buffers.ends.retain(|end| end.of != value);
        }
        let fits = placed.whole || placed.overhangs_only_along(overhang_axes);
        if fits && rank > 0 && placed.tile.strides[rank - 1] == 1 {
            if !placed.whole {
                self.buffers.ends.push(placed.overhanging_tile(value, None));
            }
            self.state.tiles[value.index()] = placed.tile;
            self.state.is_redirected[value.index()] = true;
        }
    }

    /// Marks a scratch operand as empty, so that the next product sets it, and moves it to `destination`, the view
    /// where it will be stored, if that is given and inside of the array.
    pub(super) fn begin_accumulation(&mut self, sums: OperandId, destination: Option<&OperandView>) {
        let placed = destination
            .map(|at| self.resolve_view(at))
            .filter(|placed| placed.whole && placed.rank > 0 && placed.tile.strides[placed.rank - 1] == 1);
        let operand = &mut self.state.operands[sums.index()];
        let tile = match placed {
            Some(placed) => placed.tile,
            None => StridedTile::contiguous(operand.home, &operand.shape),
        };
        (operand.start, operand.strides, operand.is_empty) = (tile.start, tile.strides, true);
    }

    /// Returns the tile of a view, if all its elements exist.
    pub(super) fn tile_if_inside(&self, place: &OperandView) -> Option<StridedTile> {
        let placed = self.resolve_view(place);
        placed.whole.then_some(placed.tile)
    }

    /// Writes a bool for each index along a view's axis: true if it is inside of the array.
    pub(super) fn write_valid_mask(&mut self, of: &OperandView, axis: usize, to: Value) {
        let placed = self.resolve_view(of);
        let ((lo, hi), n, out) = (placed.inside[axis], placed.shape[axis], self.result_tile(to));
        for i in 0..n {
            // SAFETY: the result has one element per position of the axis, side by side.
            unsafe { out.start.add(i).cast::<bool>().write((lo..hi).contains(&i)) };
        }
    }

    /// Reads an element of a prefetched array. An index out of range reads the nearest element, an empty array gives
    /// 0: no data makes it read other memory.
    pub(super) fn read_prefetched(&mut self, of: OperandId, index: &[Value], to: Value) {
        // SAFETY: the launch's memory holds its shape.
        let read = unsafe {
            read_clamped_element(
                &self.launch.memory[of.index()],
                self.ty(to).dtype,
                index.iter().map(|&v| self.scalar_int(v)),
            )
        };
        self.set_scalar_bits(to, read.bits);
    }
}

/// Reads an element of an operand: the nearest one to an index out of range, 0 of an empty operand.
///
/// # Safety
/// The memory holds elements of this type in its shape.
pub(in super::super) unsafe fn read_clamped_element(
    memory: &LaunchMemory<'_>,
    dtype: DType,
    index: impl Iterator<Item = i64>,
) -> Literal {
    let mut bits = [0u8; 8];
    if !memory.shape.contains(&0) {
        let nearest = index.zip(memory.shape).fold(0, |at, (i, &n)| at * n + i.clamp(0, n as i64 - 1) as usize);
        // SAFETY: every index is clamped to its extent.
        unsafe {
            let from = memory.ptr.add(nearest * dtype.bytes());
            std::ptr::copy_nonoverlapping(from, bits.as_mut_ptr(), dtype.bytes());
        }
    }
    normalize_bool(Literal { dtype, bits: u64::from_le_bytes(bits) })
}

impl ResolvedView {
    /// Returns true if all elements are inside of the array, except those past its end along the axes in a bit mask.
    fn overhangs_only_along(&self, axes: u8) -> bool {
        let sides = self.inside.iter().zip(&self.shape).take(self.rank).enumerate();
        let mut fit = sides.map(|(k, (&(lo, hi), &n))| lo == 0 && (hi == n || hi > 0 && axes >> k & 1 == 1));
        fit.all(|fits| fits)
    }

    /// Returns the record of a tile `of` that extends past the array's end: its extents inside of the array, and the
    /// value `fill` of the elements past the end.
    fn overhanging_tile(&self, of: Value, fill: Option<Literal>) -> OverhangingTile {
        OverhangingTile { of, extents: self.inside.map(|(_, end)| end), fill }
    }

    /// Returns the operand's tile and `other`, a tile of the view's shape, both restricted to the elements inside of
    /// the array, and their extents.
    fn clip_tiles(
        &self,
        mut other: StridedTile,
        element_bytes: usize,
    ) -> (StridedTile, StridedTile, [usize; MAX_RANK]) {
        let mut own = self.tile;
        let mut size = self.shape;
        for (axis, &(lo, hi)) in self.inside[..self.rank].iter().enumerate() {
            size[axis] = hi - lo;
            own = own.offset(lo as isize * own.strides[axis], element_bytes);
            other = other.offset(lo as isize * other.strides[axis], element_bytes);
        }
        (own, other, size)
    }
}

/// Returns the first index and the end of the range of indices `i < n` with `0 <= start + stride * i < extent`; it is
/// one range since positions are monotonic.
fn clip_index_range(start: i64, stride: i64, n: usize, extent: i64) -> (usize, usize) {
    let inside = |i: i64| (0..extent).contains(&start.saturating_add(stride.saturating_mul(i)));
    let count = n as i64;
    if n > 0 && inside(0) && inside(count - 1) {
        return (0, n);
    }
    let (lo, hi) = match stride.signum() {
        0 => return if inside(0) { (0, n) } else { (0, 0) },
        // The first position not below 0, the first one not below the extent.
        1 => (ceil_div(-start, stride), ceil_div(extent - start, stride)),
        _ => (ceil_div(start - extent + 1, -stride), ceil_div(start + 1, -stride)),
    };
    let (lo, hi) = (lo.clamp(0, count), hi.clamp(0, count));
    if lo < hi { (lo as usize, hi as usize) } else { (0, 0) }
}

fn ceil_div(a: i64, b: i64) -> i64 {
    a.div_euclid(b) + i64::from(a.rem_euclid(b) != 0)
}

#[cfg(test)]
mod tests {
    use super::clip_index_range;

    #[test]
    fn clipping_agrees_with_counting() {
        for (start, stride, n, extent) in
            (-7..8).flat_map(|s| (-3..4).flat_map(move |t| (0..6).flat_map(move |n| (0..5).map(move |e| (s, t, n, e)))))
        {
            let inside = |i: usize| (0..extent).contains(&(start + stride * i as i64));
            let (lo, hi) = clip_index_range(start, stride, n, extent);
            assert!((0..n).all(|i| inside(i) == (lo..hi).contains(&i)), "{start} {stride} {n} {extent}: {lo}..{hi}");
        }
    }
}
