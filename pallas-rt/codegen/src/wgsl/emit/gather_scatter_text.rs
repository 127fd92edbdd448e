//! Text for gathers and scatters of windows, element by element.
use super::emitter::BodyEmitter;
use super::position::{TileCoord, TilePosition, unravel_coordinate};
use crate::wgsl::types::wgsl_type;
use pallas_ir::structural::{IndexedWindows, WindowAxis};
use pallas_ir::{Inst, ScalarOp, Value};

impl BodyEmitter<'_> {
    /// Writes the reads of a window's starts at a position of the indices (without the axis of start vectors), and
    /// returns their names.
    fn emit_window_starts(&mut self, windows: &IndexedWindows, index: Value, position: &[TileCoord]) -> Vec<String> {
        let rank = self.k.ty(index).shape.len();
        let start = |k: usize| {
            let mut own = position.iter().cloned();
            let coord = |axis| match Some(axis) == windows.vector {
                true => TileCoord::from_text(format!("{k}u")),
                false => own.next().expect("one per axis"),
            };
            let at = TilePosition { coords: (0..rank).map(coord).collect(), flat: None };
            let (found, start) = (self.element_expression(index, &at), self.fresh_name("start"));
            self.emit_line(format!("let {start} = {found};"));
            start
        };
        (0..windows.start_vector_length()).map(start).collect()
    }

    /// Writes a gather: positions are clamped, so that windows are inside of the operand.
    pub(super) fn emit_gather(&mut self, windows: &IndexedWindows, inst: &Inst) {
        let (x, result) = (inst.args[0], inst.results[0]);
        let last = windows.max_starts(&self.k.ty(x).dims());
        let read = |e: &mut Self, at: &TilePosition| {
            let mut element = String::new();
            e.with_name_scope(|e| {
                let position: Vec<TileCoord> = windows.index.iter().map(|&axis| at.coords[axis].clone()).collect();
                let starts = e.emit_window_starts(windows, inst.args[1], &position);
                let coord = |w: &WindowAxis| {
                    let start = w.start.map(|k| format!("u32(clamp({}, 0, {}))", starts[k], last[k]));
                    match (start, w.axis) {
                        (Some(start), Some(axis)) => {
                            TileCoord::from_text(format!("({start} + {})", at.coords[axis].text))
                        }
                        (Some(start), None) => TileCoord::from_text(start),
                        (None, Some(axis)) => at.coords[axis].clone(),
                        (None, None) => TileCoord::from_text("0u"),
                    }
                };
                let coords = windows.axes.iter().map(coord).collect();
                let found = e.element_expression(x, &TilePosition { coords, flat: None });
                element = e.fresh_name("x");
                e.emit_line(format!("let {element} = {found};"));
            });
            element
        };
        if self.k.ty(result).is_scalar() {
            return self.emit_broadcast_scalar(result, |e| read(e, &TilePosition { coords: vec![], flat: None }));
        }
        self.emit_elements(result, read);
    }

    /// Writes a scatter: each element of the result goes through all updates in order; those whose window has it are
    /// combined with it by `op` or, if `None`, replace it.
    pub(super) fn emit_scatter(&mut self, windows: &IndexedWindows, op: Option<ScalarOp>, inst: &Inst) {
        let [x, index, updates] = inst.args[..] else { unreachable!("a scatter has three operands") };
        let (result, shape) = (inst.results[0], self.k.ty(updates).shape.clone());
        let (dtype, last) = (self.k.ty(x).dtype, windows.max_starts(&self.k.ty(x).dims()));
        let positions: Vec<usize> = windows.index.iter().map(|&axis| shape[axis]).collect();
        let count: usize = positions.iter().product();
        self.emit_elements(result, |e, at| {
            let (element, value, u) = (e.element_expression(x, at), e.fresh_name("x"), e.fresh_name("update"));
            e.emit_line(format!("var {value}: {} = {element};", wgsl_type(dtype)));
            if shape.contains(&0) {
                return value;
            }
            e.emit_braced_block(format!("for (var {u} = 0u; {u} < {count}u; {u}++) {{"), |e| {
                e.with_name_scope(|e| {
                    e.with_trips(count as f64, |e| {
                        let along = |axis| TileCoord::from_text(unravel_coordinate(&positions, axis, &u));
                        let position: Vec<TileCoord> = (0..positions.len()).map(along).collect();
                        let starts = e.emit_window_starts(windows, index, &position);
                        let mut from = vec![TileCoord::from_text("0u"); shape.len()];
                        let mut tests = vec![];
                        for (window, own) in windows.axes.iter().zip(&at.coords) {
                            let parallel = |axis| windows.index.iter().position(|&i| i == axis);
                            if let Some(position_of) = window.axis.and_then(parallel) {
                                tests.push(format!("{} == {}", own.text, position[position_of].text));
                                continue;
                            }
                            let size = window.axis.map_or(1, |axis| shape[axis]);
                            let offset = match window.start {
                                Some(k) => {
                                    tests.push(format!("{} >= 0 && {0} <= {}", starts[k], last[k]));
                                    format!("(i32({}) - {})", own.text, starts[k])
                                }
                                None => format!("i32({})", own.text),
                            };
                            tests.push(format!("{offset} >= 0 && {offset} < {size}"));
                            if let Some(axis) = window.axis {
                                from[axis] = TileCoord::from_text(format!("u32({offset})"));
                            }
                        }
                        for (&axis, own) in windows.index.iter().zip(position) {
                            from[axis] = own;
                        }
                        let test = if tests.is_empty() { "true".into() } else { tests.join(" && ") };
                        e.emit_braced_block(format!("if ({test}) {{"), |e| {
                            let update = e.element_expression(updates, &TilePosition { coords: from, flat: None });
                            let next = op.map_or(update.clone(), |op| e.fold_expression(op, dtype, &value, &update));
                            e.emit_line(format!("{value} = {next};"));
                        });
                    })
                });
            });
            value
        });
        let elements = self.k.ty(result).elements();
        self.count_inner_iterations(count, elements);
    }
}
