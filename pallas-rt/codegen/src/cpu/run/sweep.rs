//! Runs the chains of a sweep, a few rows at a time: finds the addresses of their operands, and runs each in machine
//! code or in strips.
use super::super::jit::{CodeCache, CodeSpecialization, OperandAddress};
use super::super::launch::LaunchError;
use super::super::plan::step::{ChainInput, ElementwiseChain, FoldDirection};
use super::super::row_copies::copy_row;
use super::super::strips::STRIP_ELEMENTS;
use super::super::tile::StridedTile;
use super::chain::{ChainAccess, MIN_LONG_ROW_ELEMENTS, StripAccess, StripBuffers, StripRunner};
use super::merged_rows::{BufferedOperand, MergedRowMemory, RowMerging};
use super::native::{self, ChainOperandLayout, UnevenlySpacedOperand};
use super::spacing::{
    RowStrides, VECTOR_ELEMENTS, WIDE_VECTOR_ELEMENTS, first_evenly_spaced_axis, row_length, row_strides,
};
use super::thread_state::{BoundOperand, FusedChainLayouts, ProgramRunner, grow_buffer_to};
use pallas_ir::{DType, Literal};

/// Minimum elements of a group of equally spaced rows for which machine code is called; smaller groups run in strips
/// without it.
const MIN_JIT_ROW_GROUP_ELEMENTS: usize = 64;

impl<'a> ProgramRunner<'a> {
    /// Runs chains over the same rows, in machine code or in strips: each row, or each few rows, through all chains.
    pub(super) fn run_chains(&mut self, chains: &'a [ElementwiseChain], codes: &CodeCache) -> Result<(), LaunchError> {
        let rows = |c: &ElementwiseChain| c.shape.split_last().map_or(1, |(_, rows)| rows.iter().product::<usize>());
        let Some(rows) = chains.first().map(rows).filter(|_| !chains.iter().any(|c| c.shape.contains(&0))) else {
            return Ok(());
        };
        // Buffers are a line more than a strip apart, so that they do not fall on the same cache sets. Chains share
        // them, but for what stays from window to window.
        let pitch = STRIP_ELEMENTS * chains.iter().map(|c| c.widest).max().unwrap_or(8) + 64;
        let shared = chains.iter().map(|c| c.buffers + c.inputs.len()).max().unwrap_or(0);
        let held: usize = chains.iter().map(|c| c.inputs.len()).sum();
        let bound: usize = chains.iter().map(|c| c.inputs.len() + c.sinks.len()).sum();
        let start = grow_buffer_to(&mut self.buffers.strips, pitch * (shared + held + bound))?;
        let mut buffers = StripBuffers { start, pitch, held: shared };
        let mut layouts = std::mem::take(&mut self.buffers.layouts);
        let FusedChainLayouts { reaches, places, forms, lies, spread, bound, woven } = &mut layouts;
        reaches.resize_with(chains.len().max(reaches.len()), ChainAccess::default);
        let widest = chains.iter().filter_map(|c| c.shape.last().copied()).max().unwrap_or(1);
        let mut height = (STRIP_ELEMENTS / widest).max(1);
        bound.clear();
        places.clear();
        lies.clear();
        spread.clear();
        let mut first = shared + held;
        for (chain, reaches) in chains.iter().zip(reaches.iter_mut()) {
            self.prepare_results(chain, reaches, height == 1);
            let mut lie = self.find_operand_layout(chain, reaches, rows, (places, spread, bound));
            if let Some(lie) = &mut lie {
                let weave = lie.weave.and_then(|weave| weave.with_buffers(chain, &mut first));
                lie.weave = weave.filter(|weave| weave.full_and_tail_codes(chain).is_some());
            }
            lies.push(lie);
        }
        // Long rows of several chains whose results use the memory of one row must all be computed row by row.
        let singly = height == 1 && chains.len() > 1;
        if !singly || !native::run_row_by_row(chains, codes, lies, forms, places, rows) {
            // Code needs no buffers for strips: tiles of as many rows again stay in the first level cache.
            let together = match chains {
                [_] => rows,
                _ if singly => 1,
                _ => 4 * height,
            };
            for ((chain, reaches), lie) in chains.iter().zip(reaches.iter_mut()).zip(lies.iter_mut()) {
                *lie = lie.filter(|lie| {
                    !singly
                        && (lie.weave.is_some() || native::get_or_compile_code(chain, *lie, rows, together).is_some())
                });
                if lie.is_none() {
                    self.materialize_window_inputs(chain);
                    self.prepare_strips(chain, reaches, &mut buffers);
                }
            }
            let mut end = rows;
            if let ([chain], [None], [one, ..]) = (chains, &lies[..], &mut reaches[..])
                && one.can_cross_rows()
            {
                (end, height, one.inner) = (1, 1, chain.shape.iter().product());
            }
            let weaver = MergedRowMemory { start, pitch, bound };
            let weave = |lie: &Option<native::ChainOperandLayout>| lie.and_then(|lie| lie.weave);
            for (chain, lie) in chains.iter().zip(&*lies) {
                weave(lie).into_iter().for_each(|weave| weaver.fill_fold_buffers(chain, weave));
            }
            for from in (0..end).step_by(together) {
                let to = end.min(from + together);
                for ((chain, reaches), lie) in chains.iter().zip(&*reaches).zip(&*lies) {
                    if let (Some(lie), Some(weave)) = (*lie, weave(lie)) {
                        let memory = (&mut places[..], &spread[..]);
                        native::run_merged_rows(&weaver, (chain, lie, weave), memory, from..to, rows, woven);
                        continue;
                    }
                    let code =
                        lie.and_then(|lie| Some((native::get_or_compile_code(chain, lie, rows, together)?, lie)));
                    if let Some((code, lie)) = code {
                        let memory = (&mut places[..], &spread[..], &self.buffers.pages[..]);
                        native::run_chain_code(code, chain, lie, memory, from..to, rows);
                        continue;
                    }
                    for row in (from..to).step_by(height) {
                        // SAFETY: the rows lie inside of the shape, which every tile holds.
                        unsafe { StripRunner { chain, reaches }.run_rows(row, to.min(row + height)) };
                    }
                }
            }
            for ((chain, reaches), lie) in chains.iter().zip(&*reaches).zip(&*lies) {
                weave(lie).into_iter().for_each(|weave| weaver.reduce_fold_buffers(chain, weave, &reaches.sinks));
            }
        }
        self.buffers.layouts = layouts;
        Ok(())
    }

    /// Determines the memory of the results and folds of a chain. `row_by_row`: its rows are computed one by one, so
    /// that results which only the chains fused with it read may all use the memory of one row.
    pub(super) fn prepare_results(&mut self, chain: &ElementwiseChain, access: &mut ChainAccess, row_by_row: bool) {
        access.inner = chain.shape.last().copied().unwrap_or(1);
        access.sinks.clear();
        for sink in &chain.sinks {
            let to = self.result_tile(sink.to).start;
            if sink.along == FoldDirection::Columns {
                // SAFETY: the folded value has an element a column; rows are added to it.
                unsafe { copy_row((&raw const sink.start.bits).cast(), 0, to, 1, access.inner, sink.dtype.bytes()) };
            }
            access.sinks.push(to);
        }
        access.results.clear();
        for link in &chain.links {
            let Some(v) = link.output else { continue };
            let mut tile = self.result_tile(v);
            if link.passing && row_by_row && access.inner >= MIN_LONG_ROW_ELEMENTS {
                tile.strides[..chain.shape.len() - 1].fill(0);
                self.state.tiles[v.index()] = tile;
            }
            access.results.push(tile);
        }
    }

    /// Determines the way in which the chain's strips access each input and result.
    pub(super) fn prepare_strips(
        &self,
        chain: &ElementwiseChain,
        access: &mut ChainAccess,
        buffers: &mut StripBuffers,
    ) {
        let long = access.inner >= MIN_LONG_ROW_ELEMENTS;
        let inputs = chain.inputs.iter().enumerate();
        access.inputs.clear();
        access.inputs.extend(
            inputs.map(|(i, x)| self.input_access(chain, *x, buffers.buffer_address(chain.buffers + i), long, buffers)),
        );
        let mut results = access.results.iter();
        let outputs = chain.links.iter().map(|link| {
            let own = buffers.buffer_address(link.buffer);
            let Some(&tile) = link.output.and_then(|_| results.next()) else {
                return StripAccess::BroadcastScalar(own);
            };
            match (tile.is_contiguous(&chain.shape), link.aside) {
                (true, aside) if aside || self.is_in_large_array(tile.start) => {
                    StripAccess::BufferedResult { start: tile.start, buffer: own, streams: !aside }
                }
                (true, _) => StripAccess::Contiguous(tile.start),
                // Tiles that are redirected have adjacent elements in a row.
                (false, false) if long => StripAccess::RowInPlace(tile),
                (false, _) => StripAccess::CopiedRows(tile, own),
            }
        });
        access.outputs.clear();
        access.outputs.extend(outputs);
    }

    /// Returns true if an address is inside of an array that is too large for the caches.
    pub(super) fn is_in_large_array(&self, start: *mut u8) -> bool {
        let holds = |o: &BoundOperand| {
            let bytes = o.bytes * o.shape.iter().product::<usize>();
            (o.start as usize..o.start as usize + bytes).contains(&(start as usize))
        };
        self.state.operands.iter().any(|o| o.is_large && holds(o))
    }

    /// Returns the way in which an input's strips are read, and its element type. Strips that must be copied go to
    /// `strip_buffer`, broadcast values to one of `buffers`.
    fn input_access(
        &self,
        chain: &ElementwiseChain,
        input: ChainInput,
        strip_buffer: *mut u8,
        has_long_rows: bool,
        buffers: &mut StripBuffers,
    ) -> (StripAccess, DType) {
        let n = STRIP_ELEMENTS.min(chain.shape.iter().product());
        let mut everywhere = |x: *const u8, dtype: DType| {
            let buffer = buffers.allocate_broadcast_buffer();
            // SAFETY: the buffer holds a strip; an element lies there.
            unsafe { copy_row(x, 0, buffer, 1, n, dtype.bytes()) };
            (StripAccess::BroadcastScalar(buffer), dtype)
        };
        let v = match input {
            ChainInput::Constant(Literal { dtype, bits }) => return everywhere((&raw const bits).cast(), dtype),
            ChainInput::Value(v) => v,
        };
        let (tile, dtype) = (self.tile(v).broadcast(self.shape(v)), self.ty(v).dtype);
        let last = chain.shape.len().wrapping_sub(1);
        let reach = if tile.is_contiguous(&chain.shape) {
            StripAccess::Contiguous(tile.start)
        } else if tile.is_splat(&chain.shape) {
            return everywhere(tile.start, dtype);
        } else if has_long_rows && tile.strides[last] == 1 {
            StripAccess::RowInPlace(tile)
        } else if has_long_rows && tile.strides[last] == 0 {
            StripAccess::BroadcastRowElement(tile, strip_buffer)
        } else if !has_long_rows && (0..last).all(|a| chain.shape[a] == 1 || tile.strides[a] == 0) {
            let buffer = buffers.allocate_broadcast_buffer();
            for r in 0..STRIP_ELEMENTS / chain.shape[last] {
                // SAFETY: the buffer holds a strip, the tile a row.
                unsafe {
                    let to = buffer.add(r * chain.shape[last] * dtype.bytes());
                    copy_row(tile.start, tile.strides[last], to, 1, chain.shape[last], dtype.bytes());
                }
            }
            StripAccess::RepeatedRow(buffer)
        } else {
            StripAccess::CopiedRows(tile, strip_buffer)
        };
        (reach, dtype)
    }

    /// Returns the layout of a chain for machine code, given its results and folds; `None` if machine code does not
    /// support it. Appends the operands' addresses to `addresses`, the operands whose groups of rows are not equally
    /// spaced to `uneven`, and those that are copied to strip buffers to `buffered`.
    pub(super) fn find_operand_layout(
        &self,
        chain: &ElementwiseChain,
        access: &ChainAccess,
        rows: usize,
        (addresses, uneven, buffered): (
            &mut Vec<OperandAddress>,
            &mut Vec<UnevenlySpacedOperand>,
            &mut Vec<BufferedOperand>,
        ),
    ) -> Option<ChainOperandLayout> {
        let columns = row_length(chain);
        let inputs = chain.input_values().map(|(i, v)| {
            (i, self.tile(v).broadcast(self.shape(v)), self.element_bytes(v), self.buffers.find_uncopied_windows(v))
        });
        let outputs = chain.outputs().zip(&access.results).map(|((i, link), tile)| (i, *tile, link.dtype.bytes()));

        let first = addresses.len();
        let (form, flat) = (CodeSpecialization::default(), chain.sinks.is_empty());
        let mut lie = ChainOperandLayout { form, flat, first, group: rows, spread: [uneven.len(); 2], weave: None };
        addresses.push(OperandAddress::encode_column_count(columns));
        // Rows along one axis are equally spaced.
        let axis = if chain.shape.len() <= 2 {
            0
        } else {
            let tiles = inputs.clone().map(|(_, tile, ..)| tile).chain(outputs.clone().map(|(_, tile, _)| tile));
            tiles.map(|tile| first_evenly_spaced_axis(&tile, &chain.shape)).max().unwrap_or(0)
        };
        if axis > 0 {
            lie.group = chain.shape[axis..chain.shape.len() - 1].iter().product();
            (lie.group * columns >= MIN_JIT_ROW_GROUP_ELEMENTS).then_some(())?;
        }
        lie.weave = RowMerging::from_chain(chain, lie.group, rows, buffered);
        let mut place = |tile: StridedTile, row: isize, bytes: usize, windows: Option<usize>| {
            if axis > 0 || windows.is_some() {
                uneven.push(UnevenlySpacedOperand { place: addresses.len(), tile, bytes, windows });
            }
            addresses.push(OperandAddress::new(tile.start, row));
        };
        let side_by_side = |l: RowStrides| l.row == columns as isize && l.step == 1;
        for (k, (i, tile, bytes, windows)) in inputs.enumerate() {
            let l = row_strides(&tile, &chain.shape, axis);
            // With a single column or row the stride does not matter.
            let l = if columns == 1 { RowStrides { step: if l.row == 0 && rows > 1 { 0 } else { 1 }, ..l } } else { l };
            lie.flat &= side_by_side(l) || (l.row == 0 && l.step == 0);
            lie.weave = lie.weave.and_then(|weave| weave.with_input((i, 1 + k), l, columns, bytes, buffered));
            match l.step {
                0 => lie.form.single |= 1u64.checked_shl(i as u32)?,
                1 if self.is_in_large_array(tile.start) => lie.form.ahead |= 1u64.checked_shl(i as u32).unwrap_or(0),
                1 => {}
                _ => return None,
            }
            if windows.is_some() {
                (lie.group, lie.flat, lie.weave) = (1, false, None);
            }
            place(tile, l.row * bytes as isize, bytes, windows);
        }
        for (at, (i, tile, bytes)) in outputs.enumerate() {
            let l = row_strides(&tile, &chain.shape, axis);
            let l = if columns == 1 { RowStrides { step: 1, ..l } } else { l };
            lie.flat &= side_by_side(l);
            lie.weave = lie.weave.filter(|_| side_by_side(l));
            if l.step != 1 {
                return None;
            }
            let (vector, row) = (8 * bytes, l.row * bytes as isize);
            let outer = chain.shape.iter().zip(tile.strides).rev().skip(1).filter(|(n, _)| **n != 1);
            let even = (tile.start as usize).is_multiple_of(vector) && outer.into_iter().all(|(_, s)| s % 8 == 0);
            let aligned = even && row % vector as isize == 0 && matches!(bytes, 2 | 4);
            if aligned && !chain.links[i].aside && self.is_in_large_array(tile.start) {
                lie.form.streamed |= 1u64.checked_shl(at as u32).unwrap_or(0);
            }
            place(tile, row, bytes, None);
        }
        addresses.extend(chain.sinks.iter().zip(&access.sinks).map(|(s, &start)| {
            let row = if s.along == FoldDirection::Rows { s.dtype.bytes() as isize } else { 0 };
            OperandAddress::new(start, row)
        }));
        // Streaming stores of whole vectors are bound by memory: weaving such rows made them a fifth slower.
        lie.weave = lie.weave.filter(|_| lie.form.streamed == 0 || columns < WIDE_VECTOR_ELEMENTS);
        lie.spread[1] = uneven.len();
        // Rows shorter than a vector are faster in strips.
        (axis == 0 || lie.flat || lie.weave.is_some() || columns >= VECTOR_ELEMENTS).then_some(lie)
    }
}
