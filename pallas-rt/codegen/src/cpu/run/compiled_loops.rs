//! Runs most iterations of a loop as one piece of machine code.
//!
//! The steps of three iterations (the second, the third and the last but one) are executed to find the addresses of
//! all tiles; their chains and products are not computed. An address that moves from the second iteration to the
//! third, and by the corresponding distance to the last but one, moves so in all of them. Then one piece of code
//! computes the chains and products of all these iterations.
use super::super::convert;
use super::super::gemm::Extents;
use super::super::jit::{CodeSpecialization, LoopPart, LoopPartKind, OperandAddress, SmallProduct};
use super::super::plan::loop_compilation::{JitLoop, chains};
use super::super::plan::step::{ChainInput, Dot, ElementwiseChain, Step, StepBlock};
use super::super::tile::{self, StridedTile};
use super::chain::ChainAccess;
use super::spacing::{RowStrides, VECTOR_ELEMENTS, first_evenly_spaced_axis, row_length, row_offset, row_strides};
use super::thread_state::{ProgramRunner, grow_buffer_to};
use pallas_ir::{DType, Value};

/// Minimum number of iterations of a loop that runs as one piece of machine code; a shorter loop runs step by step.
const MIN_JIT_ITERATIONS: i64 = 8;
/// Maximum number of groups of equally spaced rows of a chain in a loop that runs as one piece of machine code; with
/// more groups the loop runs step by step.
const MAX_JIT_ROW_GROUPS: usize = 16;

/// One iteration: its pieces of work, and the addresses of their operands.
#[derive(Default)]
struct IterationWork<'a> {
    chains: Vec<&'a ElementwiseChain>,
    pieces: Vec<LoopPart>,
    places: Vec<OperandAddress>,
    /// Right sides of products that are the same in every iteration, with the index of their place.
    fixed: Vec<(usize, RightMatrix)>,
    /// Differences of the pairs of scalars that branches compare.
    differences: Vec<i64>,
}

/// The right side of a product, as a matrix with `terms` rows.
#[derive(Clone, Copy)]
struct RightMatrix {
    tile: StridedTile,
    dtype: DType,
    terms: usize,
    columns: usize,
}

impl RightMatrix {
    /// Number of columns, rounded up to whole vectors.
    fn padded_width(&self) -> usize {
        self.columns.next_multiple_of(VECTOR_ELEMENTS)
    }
}

impl<'a> ProgramRunner<'a> {
    /// Runs all iterations but the first and the last of a loop whose iterations are chains and products; `index_at`
    /// gives the loop index of each of the `trip_count` iterations. Returns `None`, having changed nothing, if that is
    /// impossible.
    pub(super) fn run_jit_loop(
        &mut self,
        jit_loop: &'a JitLoop,
        body: &'a StepBlock,
        index: Value,
        trip_count: i64,
        index_at: &dyn Fn(i64) -> i64,
    ) -> Option<()> {
        (trip_count >= MIN_JIT_ITERATIONS).then_some(())?;
        let turns = [1, 2, trip_count - 2].map(|k| {
            self.set_scalar_int(index, index_at(k));
            let turn = self.collect_iteration_work(jit_loop, body);
            // What was redirected but not computed is redirected again in the next iteration.
            for step in &body.steps {
                if let Step::RedirectResult { value, .. } = step {
                    self.state.is_redirected[value.index()] = false;
                }
            }
            turn
        });
        let [Some(mut first), Some(second), Some(last)] = turns else { return None };
        let count = trip_count - 2;
        let is_same = first.pieces == second.pieces && first.pieces == last.pieces;
        (is_same && differences_stay_nonzero(&first.differences, &second.differences, count)).then_some(())?;
        for ((place, second), last) in first.places.iter_mut().zip(&second.places).zip(&last.places) {
            let [start, second, last] = [place.start, second.start, last.start].map(|start| start as isize);
            place.iteration_stride = second - start;
            (last == start.wrapping_add(place.iteration_stride.wrapping_mul(count as isize - 1))).then_some(())?;
        }
        self.copy_invariant_right_matrices(&mut first)?;
        let mut places = &first.places[..];
        for piece in &mut first.pieces {
            let (own, rest) = places.split_at(piece.address_count(&first.chains));
            let moving = own.iter().enumerate().filter(|(_, place)| place.iteration_stride != 0);
            piece.moving = moving.fold(0, |bits, (i, _)| bits | 1 << i.min(63));
            places = rest;
        }
        let code = jit_loop.codes.get_loop_code(&first.chains, &first.pieces)?;
        // SAFETY: the places are those of the pieces in each of these turns: positions grow by the same number from
        // turn to turn, and what lies inside of its array in the first, the second and the last one of them lies there
        // in all. (Positions wrap at 2^32: along an axis that wraps, its distance is below the extent, so that the
        // address of the last turn would be off by more than other axes can make up for, and it is compared.)
        unsafe { code.run_iterations(&mut first.places, count as usize) };
        Some(())
    }

    /// Copies right sides that are the same in every iteration to a buffer, as f32 in rows of whole vectors. Returns
    /// `None` if the address of one moves after all, or if there is no memory.
    fn copy_invariant_right_matrices(&mut self, work: &mut IterationWork<'a>) -> Option<()> {
        let bytes = |right: &RightMatrix| right.terms * right.padded_width() * DType::F32.bytes();
        let mut to =
            grow_buffer_to(&mut self.buffers.fixed, work.fixed.iter().map(|(_, right)| bytes(right)).sum()).ok()?;
        for &(place, right) in &work.fixed {
            let RightMatrix { tile, dtype, terms, columns } = right;
            (work.places[place].iteration_stride == 0).then_some(())?;
            let shape = [terms, columns];
            let own = grow_buffer_to(&mut self.buffers.wide[0], terms * columns * dtype.bytes()).ok()?;
            let wide = grow_buffer_to(&mut self.buffers.wide[1], terms * columns * DType::F32.bytes()).ok()?;
            let rows =
                StridedTile { start: to, strides: StridedTile::contiguous(to, &[terms, right.padded_width()]).strides };
            // SAFETY: each buffer holds every element, the last one with those that fill vectors.
            unsafe {
                tile::copy(&tile, &StridedTile::contiguous(own, &shape), &shape, dtype.bytes());
                convert::convert_elements([dtype, DType::F32], own, wide, terms * columns);
                tile::copy(&StridedTile::contiguous(wide, &shape), &rows, &shape, DType::F32.bytes());
            }
            work.places[place].start = to;
            to = to.wrapping_add(bytes(&right));
        }
        Some(())
    }

    /// Executes the steps of an iteration, except for its computations, and returns the addresses of the operands of
    /// its chains and products; `None` if one of these has no machine code.
    fn collect_iteration_work(&mut self, jit_loop: &'a JitLoop, body: &'a StepBlock) -> Option<IterationWork<'a>> {
        let (mut turn, mut reaches) = (IterationWork::default(), ChainAccess::default());
        for (i, step) in body.steps.iter().enumerate() {
            match step {
                Step::If { .. } => {}
                Step::Store { value, to, .. } => {
                    let (from, to) = (self.tile(*value), self.tile_if_inside(to)?);
                    // A redirected result is there.
                    if from.start != to.start || from.strides != to.strides {
                        turn.add_copy(&jit_loop.copies[&i], from, to)?;
                    }
                }
                Step::Load { from, in_place: false, to, .. } => {
                    (self.ty(*to).dtype != DType::Bool).then_some(())?;
                    let (from, to) = (self.tile_if_inside(from)?, self.result_tile(*to));
                    turn.add_copy(&jit_loop.copies[&i], from, to)?;
                }
                Step::Load { from, .. } => {
                    self.tile_if_inside(from)?;
                    self.run_step(step).ok()?;
                }
                Step::Chain(_) | Step::FusedChains(_) => {
                    for chain in chains(step) {
                        let inputs: Vec<StridedTile> =
                            chain.reads().map(|v| self.tile(v).broadcast(self.shape(v))).collect();
                        self.prepare_results(chain, &mut reaches, false);
                        turn.add_chain(chain, &inputs, &reaches.results, &reaches.sinks, |i| match chain.inputs[i] {
                            ChainInput::Value(v) => self.element_bytes(v),
                            ChainInput::Constant(x) => x.dtype.bytes(),
                        })?;
                    }
                }
                Step::Dot(dot) => self.collect_product(jit_loop, dot, &mut turn)?,
                Step::Reshape { from, to } => {
                    self.run_step(step).ok()?;
                    // Elements that lie in another order are copied.
                    (self.tile(*to).start == self.tile(*from).start).then_some(())?;
                }
                _ => self.run_step(step).ok()?,
            }
        }
        turn.differences = jit_loop.equal.iter().map(|[a, b]| self.scalar_int(*a) - self.scalar_int(*b)).collect();
        Some(turn)
    }

    /// Adds a product to the iteration; `None` if there is no machine code for its types or layout.
    fn collect_product(&mut self, jit_loop: &JitLoop, dot: &Dot, work: &mut IterationWork<'a>) -> Option<()> {
        let types = [dot.a, dot.b, dot.to, dot.init.unwrap_or(dot.to)].map(|v| self.ty(v).dtype);
        let is_float = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::Bf16);
        let has_init = dot.init.is_some();
        // The code reads whole tiles.
        [dot.a, dot.b].iter().all(|&v| self.find_overhang(v).is_none()).then_some(())?;
        // A product that is rounded cannot be the one to which something is added before rounding.
        (types.into_iter().all(is_float) && (!has_init || types[2] == DType::F32)).then_some(())?;
        let (shape_a, shape_b) = (self.shape(dot.a), self.shape(dot.b));
        let Extents { m: rows, n: columns, k: terms } = self.declared_product_extents(dot);
        let is_one = dot.batch[0].iter().all(|&axis| shape_a[axis] == 1);
        (is_one && rows * columns * terms != 0).then_some(())?;
        let (a, b) = (self.tile(dot.a), self.tile(dot.b));
        let init = dot.init.map(|init| self.tile(init));
        let to = match init {
            Some(init) if dot.in_place => {
                self.state.tiles[dot.to.index()] = init;
                init
            }
            _ => self.result_tile(dot.to),
        };
        let stride = |tile: &StridedTile, shape: &[usize], axes: &[usize]| {
            Some(tile.merged_stride(shape, axes.iter().copied())?.unwrap_or(1))
        };
        let first = dot.batch[0].len();
        let (own, axes) = (self.shape(dot.to), [first, first + dot.free[0].len()]);
        let axes = [(axes[0]..axes[1]).collect::<Vec<_>>(), (axes[1]..own.len()).collect()];
        // Rows of a result, whose elements are adjacent.
        let row = |tile: &StridedTile, dtype: DType| {
            let is_even = columns == 1 || stride(tile, own, &axes[1])? == 1;
            is_even.then_some(stride(tile, own, &axes[0])? * dtype.bytes() as isize)
        };
        let mut product = SmallProduct {
            rows,
            columns,
            terms,
            types,
            a: [stride(&a, shape_a, &dot.free[0])?, stride(&a, shape_a, &dot.contract[0])?]
                .map(|stride| stride * types[0].bytes() as isize),
            b: 0,
            padded: false,
            c: row(&to, types[2])?,
            d: match init {
                Some(init) => Some(row(&init, types[3])?),
                None => None,
            },
        };
        let strides = [stride(&b, shape_b, &dot.contract[1])?, stride(&b, shape_b, &dot.free[1])?];
        if jit_loop.fixed.contains(&dot.b) {
            let mut tile = StridedTile { strides: [0; tile::MAX_RANK], ..b };
            tile.strides[..2].copy_from_slice(&strides);
            let right = RightMatrix { tile, dtype: types[1], terms, columns };
            work.fixed.push((work.places.len() + 1, right));
            (product.types[1], product.padded) = (DType::F32, true);
            product.b = (right.padded_width() * DType::F32.bytes()) as isize;
        } else {
            (columns == 1 || strides[1] == 1).then_some(())?;
            product.b = strides[0] * types[1].bytes() as isize;
        }
        work.places.extend([a, b, to].into_iter().chain(init).map(|tile| OperandAddress::new(tile.start, 0)));
        work.pieces.push(LoopPart { work: LoopPartKind::Product(product), moving: 0 });
        Some(())
    }
}

impl<'a> IterationWork<'a> {
    /// Adds a chain that copies the tile `from` to the tile `to`; returns `None` if machine code cannot access them.
    fn add_copy(&mut self, chain: &'a ElementwiseChain, from: StridedTile, to: StridedTile) -> Option<()> {
        self.add_chain(chain, &[from], &[to], &[], |_| chain.widest)
    }

    /// Adds a chain with the tiles of its inputs, results and folds; `bytes` gives the size of an element of each
    /// input. Returns `None` if machine code cannot access them.
    fn add_chain(
        &mut self,
        chain: &'a ElementwiseChain,
        inputs: &[StridedTile],
        results: &[StridedTile],
        fold_results: &[*mut u8],
        bytes: impl Fn(usize) -> usize,
    ) -> Option<()> {
        let number = self.chains.len();
        self.chains.push(chain);
        let inputs: Vec<(usize, &StridedTile, usize)> =
            chain.input_values().zip(inputs).map(|((i, _), tile)| (i, tile, bytes(i))).collect();
        let outputs: Vec<(&StridedTile, usize)> =
            chain.outputs().zip(results).map(|((_, link), tile)| (tile, link.dtype.bytes())).collect();
        let tiles = || inputs.iter().map(|input| input.1).chain(outputs.iter().map(|output| output.0));
        let axis = tiles().map(|tile| first_evenly_spaced_axis(tile, &chain.shape)).max().unwrap_or(0);
        let outer = chain.shape.len().saturating_sub(1);
        let (groups, group) = (element_count(&chain.shape[..axis]), element_count(&chain.shape[axis..outer]));
        let width = row_length(chain);
        (groups <= MAX_JIT_ROW_GROUPS && groups * group * width > 0).then_some(())?;
        let row_of = |tile: &StridedTile, is_input: bool| {
            let l = row_strides(tile, &chain.shape, axis);
            // Of one column it does not matter how far the next one would be.
            let is_repeated = is_input && l.row == 0 && group > 1;
            if width == 1 { RowStrides { step: isize::from(!is_repeated), ..l } } else { l }
        };
        let side_by_side = |l: RowStrides| l.row == width as isize && l.step == 1;
        let is_flat = groups == 1
            && chain.sinks.is_empty()
            && inputs.iter().map(|input| row_of(input.1, true)).all(|l| side_by_side(l) || l.row == 0 && l.step == 0)
            && outputs.iter().map(|output| row_of(output.0, false)).all(side_by_side);
        let (rows, columns) = if is_flat { (1, group * width) } else { (group, width) };
        let mut form =
            CodeSpecialization { whole: columns.is_multiple_of(VECTOR_ELEMENTS), ..CodeSpecialization::default() };
        for &(i, tile, _) in &inputs {
            match row_of(tile, true).step {
                0 => form.single |= 1u64.checked_shl(i as u32)?,
                1 => {}
                _ => return None,
            }
        }
        outputs.iter().all(|output| row_of(output.0, false).step == 1).then_some(())?;
        for first in (0..groups).map(|i| i * group) {
            self.places.push(OperandAddress::encode_column_count(columns));
            let mut push = |tile: &StridedTile, l: RowStrides, bytes: usize| {
                let start = tile.start.wrapping_offset(row_offset(tile, &chain.shape, first) * bytes as isize);
                self.places.push(OperandAddress::new(start, l.row * bytes as isize));
            };
            inputs.iter().for_each(|&(_, tile, bytes)| push(tile, row_of(tile, true), bytes));
            outputs.iter().for_each(|&(tile, bytes)| push(tile, row_of(tile, false), bytes));
            for (sink, start) in chain.sinks.iter().zip(fold_results) {
                let bytes = sink.dtype.bytes();
                self.places.push(OperandAddress::new(start.wrapping_add(first * bytes), bytes as isize));
            }
            self.pieces
                .push(LoopPart { work: LoopPartKind::ChainRows { chain: number, form, rows, columns }, moving: 0 });
        }
        Some(())
    }
}

impl LoopPart {
    /// Returns the number of addresses that the part's machine code is called with: those of its operands and, for a
    /// chain, one that stands for the length of a row.
    fn address_count(&self, chains: &[&ElementwiseChain]) -> usize {
        match self.work {
            LoopPartKind::ChainRows { chain, .. } => chains[chain].address_count(),
            LoopPartKind::Product(product) => product.operand_count(),
        }
    }
}

fn element_count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Returns true if no difference becomes 0 in any of `iterations` iterations, given its values in the first and in the
/// second. Since 32-bit numbers wrap, a difference beyond that range gives false.
fn differences_stay_nonzero(first_differences: &[i64], second_differences: &[i64], iterations: i64) -> bool {
    let is_near = |x: i64| i32::try_from(x).is_ok();
    first_differences.iter().zip(second_differences).all(|(&first, &second)| {
        let by = second.wrapping_sub(first);
        let last = by.checked_mul(iterations - 1).and_then(|far| far.checked_add(first));
        if !is_near(first) || !last.is_some_and(is_near) {
            return false;
        }
        // It is 0 in the iteration `-first / by`, if that is a whole number.
        if by == 0 { first != 0 } else { first % by != 0 || !(0..iterations).contains(&(-first / by)) }
    })
}

#[cfg(test)]
mod tests {
    use super::differences_stay_nonzero;

    #[test]
    fn equal_pairs_are_found_in_every_turn() {
        for (first, by, count) in (-9..10).flat_map(|x| (-4..5).flat_map(move |by| (1..8).map(move |n| (x, by, n)))) {
            let differs = (0..count).all(|turn| first + by * turn != 0);
            assert_eq!(
                differences_stay_nonzero(&[first], &[first + by], count),
                differs,
                "{first} + {by} t, {count} turns"
            );
        }
        // A difference of 2^32 is none.
        assert!(!differences_stay_nonzero(&[1 << 30], &[1 << 31], 5));
        assert!(!differences_stay_nonzero(&[i64::from(u32::MAX)], &[i64::from(u32::MAX)], 3));
    }
}
