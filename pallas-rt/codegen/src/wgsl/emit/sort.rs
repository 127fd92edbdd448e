//! Text for sorts: positions are ranked in short runs, which are merged in pairs until one run is left.
//!
//! In each round every thread finds the new places of its positions by binary search in the neighbouring run, so that
//! all elements of a round are moved independently.
use super::emitter::BodyEmitter;
use super::position::{TileCoord, TilePosition};
use crate::wgsl::place::cooperative_matrices::StorageCell;
use crate::wgsl::place::{TileBuffer, row_major_strides};
use crate::wgsl::types::wgsl_type;
use pallas_ir::structural::SortOrder;
use pallas_ir::{DType, Inst, Value};

/// Number of elements of the runs with which a merge sort begins; an element's place in its run is found by counting.
const INITIAL_RUN_ELEMENTS: usize = 8;

/// WGSL function that maps floats to integers in their order, with both zeros equal, and NaNs equal and last.
const WEAK_ORDER_KEY_FUNCTION: &str = "fn weak_key(x: f32) -> i32 {
    let bits = bitcast<i32>(x);
    let magnitude = bits & 0x7fffffff;
    return select(select(magnitude, -magnitude, bits < 0), 0x7fffffff, magnitude > 0x7f800000);
}";
/// WGSL function that maps floats to integers in their total order.
const TOTAL_ORDER_KEY_FUNCTION: &str = "fn total_key(x: f32) -> i32 {
    let bits = bitcast<i32>(x);
    return select(bits, ~(bits & 0x7fffffff), bits < 0);
}";

/// Operand and options of a sort that is being written: the sorted tile and its shape, the axis, and the order.
struct SortParameters {
    x: Value,
    axis: usize,
    order: SortOrder,
    /// The shape of `x`.
    shape: Vec<usize>,
}

impl SortParameters {
    /// Returns the operator of the comparison that is true if its first key comes before the second.
    fn comparison_operator(&self) -> &'static str {
        if self.order == SortOrder::Ascending { "<" } else { ">" }
    }
    /// Returns the expression of a position that was read from memory, clamped to the sorted axis: where a driver stops
    /// long loops, it may never have been written.
    fn clamp_position(&self, position: &str) -> String {
        format!("min(u32({position}), {}u)", self.shape[self.axis] - 1)
    }
    /// Returns the position `at` with `coordinate` instead of its own coordinate along the sorted axis.
    fn position_along_axis(&self, at: &TilePosition, coordinate: &str) -> TilePosition {
        let mut coords = at.coords.clone();
        coords[self.axis] = TileCoord::from_text(coordinate);
        TilePosition { coords, flat: None }
    }
}

impl BodyEmitter<'_> {
    /// Writes a sort along an axis; the result has the sorted elements or, if `as_positions`, their positions before
    /// sorting.
    pub(super) fn emit_sort(&mut self, axis: usize, order: SortOrder, as_positions: bool, inst: &Inst) {
        let (x, result) = (inst.args[0], inst.results[0]);
        let shape = self.k.ty(x).shape.clone();
        let (n, elements) = (shape[axis], shape.iter().product::<usize>());
        if self.k.ty(result).elements() == 0 {
            return;
        }
        let sorting = SortParameters { x, axis, order, shape };
        let buffers = [0, 1].map(|i| self.add_position_buffer(&format!("order{i}_{}", result.0), &sorting.shape));
        self.emit_rank_runs(&sorting, buffers[0]);
        let (mut run, mut turn) = (INITIAL_RUN_ELEMENTS, 0);
        while run < n {
            self.emit_merge_runs(&sorting, run, buffers[turn], buffers[1 - turn]);
            (run, turn) = (2 * run, 1 - turn);
        }
        self.count_inner_iterations(INITIAL_RUN_ELEMENTS, elements);
        self.emit_elements(result, |e, at| {
            let from = TilePosition { coords: at.coords.clone(), flat: None };
            let position = e.read_buffer_element(DType::I32, buffers[turn], &from);
            if as_positions {
                return position;
            }
            let k = e.fresh_name("k");
            e.emit_line(format!("let {k} = {};", sorting.clamp_position(&position)));
            e.element_expression(x, &sorting.position_along_axis(at, &k))
        });
    }

    /// Adds a buffer of `shape` to the plan for the positions of a sort's elements, and returns its index among the
    /// plan's buffers.
    fn add_position_buffer(&mut self, name: &str, shape: &[usize]) -> usize {
        self.plan.buffers.push(TileBuffer {
            name: name.into(),
            shape: shape.to_vec(),
            strides: row_major_strides(shape),
            cell: StorageCell::Word,
            words: shape.iter().product::<usize>().max(1),
            outside: self.plan.sorts_outside,
            ..TileBuffer::default()
        });
        self.plan.buffers.len() - 1
    }

    /// Returns an expression for the key of an element; keys have the order of the elements.
    fn sort_key_expression(&mut self, sorting: &SortParameters, at: &TilePosition) -> String {
        let x = self.element_expression(sorting.x, at);
        self.add_work(self.parameters.operation);
        match (wgsl_type(self.k.ty(sorting.x).dtype), sorting.order) {
            ("f32", SortOrder::Largest) => {
                self.out.helpers.insert(TOTAL_ORDER_KEY_FUNCTION);
                format!("total_key({x})")
            }
            ("f32", _) => {
                self.out.helpers.insert(WEAK_ORDER_KEY_FUNCTION);
                format!("weak_key({x})")
            }
            ("bool", _) => format!("select(0u, 1u, {x})"),
            _ => x,
        }
    }

    /// Writes the ranking of each run: an element's place is the number of elements of the run that come before it.
    fn emit_rank_runs(&mut self, sorting: &SortParameters, to_buffer: usize) {
        let (shape, axis) = (&sorting.shape, sorting.axis);
        let n = shape[axis];
        self.emit_strided_loop(shape.iter().product(), |e| {
            let at = e.strided_loop_position(shape);
            let [k, own, first, end, place, i, other] =
                ["k", "own", "first", "end", "place", "rival", "other"].map(|stem| e.fresh_name(stem));
            let key = e.sort_key_expression(sorting, &at);
            e.emit_line(format!("let {k} = {};", at.coords[axis].text));
            e.emit_line(format!("let {own} = {key};"));
            e.emit_line(format!("let {first} = {k} / {INITIAL_RUN_ELEMENTS}u * {INITIAL_RUN_ELEMENTS}u;"));
            e.emit_line(format!("let {end} = min({first} + {INITIAL_RUN_ELEMENTS}u, {n}u);"));
            e.emit_line(format!("var {place} = {first};"));
            e.emit_braced_block(format!("for (var {i} = {first}; {i} < {end}; {i}++) {{"), |e| {
                e.with_name_scope(|e| {
                    e.with_trips(INITIAL_RUN_ELEMENTS as f64, |e| {
                        let key = e.sort_key_expression(sorting, &sorting.position_along_axis(&at, &i));
                        let before = sorting.comparison_operator();
                        e.emit_line(format!("let {other} = {key};"));
                        e.emit_line(format!(
                            "let is_before = {other} {before} {own} || ({other} == {own} && {i} < {k});"
                        ));
                        e.emit_line(format!("{place} += select(0u, 1u, is_before);"));
                    })
                });
            });
            e.store_buffer_element(
                DType::I32,
                to_buffer,
                &sorting.position_along_axis(&at, &place),
                &format!("i32({k})"),
            );
        });
    }

    /// Writes the merge of pairs of neighbouring runs: an element's place is its place in its own run plus the number
    /// of elements of the other run that come before it. Of equal elements, those of the first run come first.
    fn emit_merge_runs(&mut self, sorting: &SortParameters, run_length: usize, from_buffer: usize, to_buffer: usize) {
        let (shape, axis) = (&sorting.shape, sorting.axis);
        let (n, elements) = (shape[axis], shape.iter().product());
        let rounds = run_length.ilog2() as usize + 1;
        self.emit_strided_loop(elements, |e| {
            let at = e.strided_loop_position(shape);
            let [k, mine, own, first, second, is_first, low, high, base, middle, at_other, other, i, place] = [
                "k", "mine", "own", "first", "second", "is_first", "low", "high", "base", "middle", "at_other",
                "other", "round", "place",
            ]
            .map(|stem| e.fresh_name(stem));
            let position = e.read_buffer_element(DType::I32, from_buffer, &at);
            e.emit_line(format!("let {k} = {};", at.coords[axis].text));
            e.emit_line(format!("let {mine} = {};", sorting.clamp_position(&position)));
            let key = e.sort_key_expression(sorting, &sorting.position_along_axis(&at, &mine));
            e.emit_line(format!("let {own} = {key};"));
            e.emit_line(format!("let {first} = {k} / {}u * {}u;", 2 * run_length, 2 * run_length));
            e.emit_line(format!("let {second} = min({first} + {run_length}u, {n}u);"));
            e.emit_line(format!("let {is_first} = {k} < {second};"));
            e.emit_line(format!("let {base} = select({first}, {second}, {is_first});"));
            e.emit_line(format!("var {low} = {base};"));
            e.emit_line(format!("var {high} = select({second}, min({second} + {run_length}u, {n}u), {is_first});"));
            e.emit_braced_block(format!("for (var {i} = 0u; {i} < {rounds}u && {low} < {high}; {i}++) {{"), |e| {
                e.with_name_scope(|e| {
                    e.with_trips(rounds as f64, |e| {
                        e.emit_line(format!("let {middle} = ({low} + {high}) / 2u;"));
                        let position =
                            e.read_buffer_element(DType::I32, from_buffer, &sorting.position_along_axis(&at, &middle));
                        e.emit_line(format!("let {at_other} = {};", sorting.clamp_position(&position)));
                        let key = e.sort_key_expression(sorting, &sorting.position_along_axis(&at, &at_other));
                        let before = sorting.comparison_operator();
                        e.emit_line(format!("let {other} = {key};"));
                        e.emit_line(format!("if ({other} {before} {own} || (!{is_first} && {other} == {own})) {{"));
                        e.emit_line(format!("    {low} = {middle} + 1u;"));
                        e.emit_line("} else {");
                        e.emit_line(format!("    {high} = {middle};"));
                        e.emit_line("}");
                    })
                });
            });
            e.emit_line(format!("let {place} = {k} + {low} - {base} - select({run_length}u, 0u, {is_first});"));
            e.store_buffer_element(
                DType::I32,
                to_buffer,
                &sorting.position_along_axis(&at, &place),
                &format!("i32({mine})"),
            );
        });
        self.count_inner_iterations(rounds, elements);
    }
}
