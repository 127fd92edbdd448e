//! Text for folds along axes: reductions, running folds, positions of extremes.
use super::emitter::BodyEmitter;
use super::position::{TileCoord, TilePosition, offset_expression, unravel_coordinate};
use crate::wgsl::barriers::MemoryId;
use crate::wgsl::place::thread_layout::SpreadDirection;
use crate::wgsl::place::{TileBuffer, TileStorage};
use crate::wgsl::types::{element_to_word, narrow_to_dtype, wgsl_type, word_to_element};
use pallas_ir::{DType, Inst, ScalarOp, Value};

/// Returns the WGSL function that folds the values of all threads of a subgroup, if there is one.
fn subgroup_fold_function(op: ScalarOp, dtype: DType) -> Option<&'static str> {
    if !matches!(dtype, DType::F32 | DType::I32 | DType::U32) {
        return None;
    }
    op.row().fold?.subgroup
}

/// Maximum partial results of a reduction that are combined by one statement each; more are combined in a loop.
const MAX_UNROLLED_PARTIALS: usize = 4;
/// Maximum partial results that every thread with the reduction's result combines on its own; more are first combined
/// to fewer, each by one thread.
const MAX_SINGLE_ROUND_PARTIALS: usize = 16;

/// Number of partial results after the first of two rounds: near the square root of `count`, so that both take as
/// long.
fn first_round_partials(count: usize) -> usize {
    let fits = |n: &usize| count.is_multiple_of(*n) && n * n <= count;
    if count > MAX_SINGLE_ROUND_PARTIALS {
        (1..=count).take_while(|n| n * n <= count).filter(fits).max().unwrap_or(1)
    } else {
        count
    }
}

impl BodyEmitter<'_> {
    /// Returns the expression of `next` folded into `sum`.
    pub(super) fn fold_expression(&mut self, op: ScalarOp, dtype: DType, sum: &str, next: &str) -> String {
        self.out.helpers.extend(op.wgsl_helper());
        self.add_work(self.parameters.operation);
        narrow_to_dtype(dtype, &op.wgsl(&[sum, next], wgsl_type(dtype)))
    }
    /// Writes a reduction over `axes`.
    pub(super) fn emit_fold(&mut self, op: ScalarOp, axes: &[usize], inst: &Inst) {
        let (result, x) = (inst.results[0], inst.args[0]);
        if self.is_in_registers(result) {
            return self.emit_register_fold(op, axes, result, x);
        }
        let shape = self.k.ty(x).shape.clone();
        let inner: Vec<usize> = axes.iter().map(|&a| shape[a]).collect();
        let count: usize = inner.iter().product();
        let dtype = self.k.ty(result).dtype;
        let start = self.literal_expression(op.neutral(dtype).expect("the shape rule admits monoids only"));
        self.emit_elements(result, |e, at| {
            e.emit_line(format!("var sum = {start};"));
            e.emit_line(format!("for (var k = 0u; k < {count}u; k++) {{"));
            let mut coords = at.coords.clone();
            axes.iter()
                .enumerate()
                .for_each(|(i, &a)| coords[a] = TileCoord::from_text(unravel_coordinate(&inner, i, "k")));
            e.with_trips(count as f64, |e| {
                let next = e.element_expression(x, &TilePosition { coords, flat: None });
                let next = e.fold_expression(op, dtype, "sum", &next);
                e.emit_line(format!("    sum = {next};"));
            });
            e.emit_line("}");
            "sum".into()
        });
        let elements = self.k.ty(result).elements();
        self.count_inner_iterations(count, elements);
    }
    /// Writes a reduction of `x` whose result is in registers: each thread folds its own elements, then the partial
    /// results of the threads that share an element of the result are combined.
    fn emit_register_fold(&mut self, op: ScalarOp, axes: &[usize], result: Value, x: Value) {
        let shape = self.k.ty(x).shape.clone();
        let dtype = self.k.ty(result).dtype;
        let layout = &self.plan.layout;
        // The threads of a line: the folded axes must not lie along the direction of a kept axis.
        let along = |c: usize| layout.classes[c].along;
        let kept: Vec<SpreadDirection> = layout.axes[result.index()].iter().flatten().map(|&c| along(c)).collect();
        let class = |&a: &usize| {
            let (v, axis) = self.plan.source_axis(self.k, x, a)?;
            layout.axes[v.index()][axis].filter(|&c| !kept.contains(&along(c)))
        };
        let classes: Vec<Option<usize>> = axes.iter().map(class).collect();
        let share = |(&a, c): (&usize, &Option<usize>)| c.map_or(shape[a], |c| layout.classes[c].elements_per_thread());
        let shares: Vec<usize> = axes.iter().zip(&classes).map(share).collect();
        let count: usize = shares.iter().product();
        let start = self.literal_expression(op.neutral(dtype).expect("the shape rule admits monoids only"));
        let unrolled =
            axes.iter().all(|&a| self.plan.source_axis(self.k, x, a).is_some_and(|(v, _)| self.is_in_registers(v)))
                && count <= 2 * self.parameters.registers;
        let places = self.register_positions(result);
        let threads: Vec<(usize, usize)> = classes
            .iter()
            .flatten()
            .map(|&c| (c, self.plan.layout.classes[c].threads))
            .filter(|(_, t)| *t > 1)
            .collect();
        let partial = self.fresh_name("p");
        let names: Vec<String> = (0..places.len())
            .map(|i| if threads.is_empty() { self.register_name(result, i) } else { format!("{partial}_{i}") })
            .collect();
        self.emit_memory_step(|e| {
            for (at, sum) in places.iter().zip(&names) {
                e.emit_line(format!("var {sum}: {} = {start};", wgsl_type(dtype)));
                let position = |e: &Self, k: &dyn Fn(usize) -> (String, Option<usize>)| {
                    let mut coords = at.coords.clone();
                    for (i, &a) in axes.iter().enumerate() {
                        let (text, number) = k(i);
                        coords[a] = match (classes[i], number) {
                            (Some(c), Some(r)) => e.thread_element_coord(c, r),
                            (Some(c), None) => e.thread_element_coord_at(c, &text),
                            (None, _) => TileCoord::from_text(text),
                        };
                    }
                    TilePosition { coords, flat: None }
                };
                if unrolled {
                    for n in 0..count {
                        let share = |i: usize| {
                            let step: usize = shares[i + 1..].iter().product();
                            let r = n / step % shares[i];
                            (format!("{r}u"), Some(r))
                        };
                        let at = position(e, &share);
                        let next = e.element_expression(x, &at);
                        let next = e.fold_expression(op, dtype, sum, &next);
                        e.emit_line(format!("{sum} = {next};"));
                    }
                } else if count > 0 {
                    e.spent += count as u64 + 1;
                    let at = position(e, &|i| (unravel_coordinate(&shares, i, "k"), None));
                    e.emit_braced_block(format!("for (var k = 0u; k < {count}u; k++) {{"), |e| {
                        e.with_trips(count as f64, |e| {
                            let next = e.element_expression(x, &at);
                            let next = e.fold_expression(op, dtype, sum, &next);
                            e.emit_line(format!("{sum} = {next};"));
                        });
                    });
                }
            }
        });
        if !threads.is_empty() {
            self.emit_cross_thread_fold(op, result, &places, &names, &threads);
        }
    }
    /// Writes the combination of the partial results of threads that share an element of the result. For each of
    /// `places`, a thread's elements of the result, `partial_names` has its partial result; `class_threads` has the
    /// classes of the folded axes, with their numbers of threads.
    fn emit_cross_thread_fold(
        &mut self,
        op: ScalarOp,
        result: Value,
        places: &[TilePosition],
        partial_names: &[String],
        class_threads: &[(usize, usize)],
    ) {
        let ty = self.k.ty(result).clone();
        let count: usize = class_threads.iter().map(|t| t.1).product();
        if let Some(all) =
            subgroup_fold_function(op, ty.dtype).filter(|_| self.out.lockstep && count == self.plan.thread_count())
        {
            for (i, x) in partial_names.iter().enumerate() {
                let sum = self.register_name(result, i);
                self.emit_line(format!("let {sum} = {all}({x});"));
                self.add_work(self.parameters.workgroup);
            }
            return;
        }
        let (line, own, step, words) = self.partial_result_layout(result, class_threads);
        let buffer = self.plan.buffers.len();
        let name_of = format!("partial_{}", result.0);
        let words_of_all = places.len() * words;
        self.plan.buffers.push(TileBuffer { name: name_of.clone(), words: words_of_all, ..TileBuffer::default() });
        // Register `i` of all threads, then the next register: neighbouring threads write adjacent words.
        let coords = |i: usize, t: &str| {
            let own = [(format!("{i}u"), words), (t.to_string(), step)];
            line.iter().cloned().chain(own).collect::<Vec<_>>()
        };
        let word = |e: &Self, i: usize, t: &str| {
            let (coords, strides): (Vec<_>, Vec<_>) =
                coords(i, t).into_iter().map(|(text, stride)| (TileCoord::from_text(text), stride)).unzip();
            e.buffer_word_expression(buffer, &format!("at_{name_of} + {}", offset_expression(&coords, &strides)))
        };
        let mut axes = self.plan.layout.axes[result.index()].clone();
        axes.extend(class_threads.iter().map(|t| Some(t.0)));
        let owner = self.axes_owner_test(&axes);
        self.emit_memory_step(|e| {
            e.record_step_access(MemoryId::Buffer(buffer), None, true);
            if let Some(test) = &owner {
                e.emit_line(format!("if ({test}) {{"));
            }
            for (i, x) in partial_names.iter().enumerate() {
                e.record_emitted_access(MemoryId::Buffer(buffer), coords(i, &own), (1, 4, usize::MAX), true);
                e.emit_line(format!("{} = {};", word(e, i, &own), element_to_word(ty.dtype, x)));
                e.add_work(e.parameters.workgroup);
            }
            if owner.is_some() {
                e.emit_line("}");
            }
        });
        let left = first_round_partials(count);
        if left < count {
            self.emit_memory_step(|e| {
                e.record_step_access(MemoryId::Buffer(buffer), None, false);
                e.record_step_access(MemoryId::Buffer(buffer), None, true);
                let first = owner.iter().cloned().chain([format!("{own} < {left}u")]).collect::<Vec<_>>();
                e.emit_braced_block(format!("if ({}) {{", first.join(" && ")), |e| {
                    for i in 0..places.len() {
                        let sum = e.fresh_name("sum");
                        e.record_emitted_access(MemoryId::Buffer(buffer), coords(i, &own), (1, 4, usize::MAX), false);
                        let (mine, next) = (word(e, i, &own), word_to_element(ty.dtype, &word(e, i, "t")));
                        e.emit_line(format!(
                            "var {sum}: {} = {};",
                            wgsl_type(ty.dtype),
                            word_to_element(ty.dtype, &mine)
                        ));
                        e.spent += (count / left) as u64 + 1;
                        e.with_trips((count / left) as f64, |e| {
                            let next = e.fold_expression(op, ty.dtype, &sum, &next);
                            let head = format!("for (var t = {own} + {left}u; t < {count}u; t += {left}u)");
                            e.emit_line(format!("{head} {{ {sum} = {next}; }}"));
                            e.add_work(e.parameters.workgroup);
                        });
                        e.emit_line(format!("{mine} = {};", element_to_word(ty.dtype, &sum)));
                    }
                });
            });
        }
        self.emit_memory_step(|e| {
            e.record_step_access(MemoryId::Buffer(buffer), None, false);
            for i in 0..places.len() {
                let sum = e.register_name(result, i);
                e.record_emitted_access(MemoryId::Buffer(buffer), coords(i, "0u"), (1, 4, usize::MAX), false);
                e.emit_line(format!(
                    "var {sum}: {} = {};",
                    wgsl_type(ty.dtype),
                    word_to_element(ty.dtype, &word(e, i, "0u"))
                ));
                if left <= MAX_UNROLLED_PARTIALS {
                    for t in 1..left {
                        let next = word_to_element(ty.dtype, &word(e, i, &format!("{t}u")));
                        let next = e.fold_expression(op, ty.dtype, &sum, &next);
                        e.emit_line(format!("{sum} = {next};"));
                        e.add_work(e.parameters.workgroup);
                    }
                    continue;
                }
                e.spent += left as u64 + 1;
                let next = word_to_element(ty.dtype, &word(e, i, "t"));
                e.with_trips((left - 1) as f64, |e| {
                    let next = e.fold_expression(op, ty.dtype, &sum, &next);
                    e.emit_line(format!("for (var t = 1u; t < {left}u; t++) {{ {sum} = {next}; }}"));
                    e.add_work(e.parameters.workgroup);
                });
            }
        });
    }
    /// Returns where the threads of a line keep the partial results of one register: the coordinates of the line with
    /// their strides in words, a thread's number in its line, the words between threads of a line, and the words of
    /// all threads.
    fn partial_result_layout(
        &self,
        result: Value,
        class_threads: &[(usize, usize)],
    ) -> (Vec<(String, usize)>, String, usize, usize) {
        let thread = |c: usize| match self.plan.layout.classes[c].vector {
            1 => format!("c{c}"),
            v => format!("(c{c} / {v}u)"),
        };
        let kept = self.plan.layout.axes[result.index()].iter().flatten().copied();
        let all: Vec<usize> = class_threads.iter().map(|t| t.0).chain(kept).collect();
        // Threads along x write adjacent words.
        let (mut line, mut own, mut step, mut words) = (vec![], String::new(), 0, 1);
        for along in [SpreadDirection::X, SpreadDirection::Y] {
            let Some(&c) = all.iter().find(|c| self.plan.layout.classes[**c].along == along) else { continue };
            match class_threads.iter().any(|t| t.0 == c) {
                false => line.push((thread(c), words)),
                true if own.is_empty() => (own, step) = (thread(c), words),
                // If both directions are folded, the line consists of all threads.
                true => own = format!("({} * {words}u + {own})", thread(c)),
            }
            words *= self.plan.layout.classes[c].threads;
        }
        (line, own, step, words)
    }

    // ---- along a line

    /// Returns a value's shape with extent 1 along `axis`: one element for each line along that axis.
    fn keepdims_shape(&self, v: Value, axis: usize) -> Vec<usize> {
        let mut outer = self.k.ty(v).shape.clone();
        outer[axis] = 1;
        outer
    }
    /// Writes a running fold (prefix sum or the like) along an axis, from the last element to the first if `reverse`.
    pub(super) fn emit_scan(&mut self, op: ScalarOp, axis: usize, reverse: bool, inst: &Inst) {
        let (result, x) = (inst.results[0], inst.args[0]);
        let TileStorage::Buffer(buffer) = self.plan.tile_storage[result.index()] else { return };
        let (n, dtype, outer) = (self.k.ty(x).shape[axis], self.k.ty(result).dtype, self.keepdims_shape(x, axis));
        let lines: usize = outer.iter().product();
        let start = self.literal_expression(op.neutral(dtype).expect("the shape rule admits monoids only"));
        if n == 0 {
            return;
        }
        self.emit_strided_loop(lines, |e| {
            e.emit_line(format!("var sum = {start};"));
            let mut at = TilePosition { flat: None, ..e.strided_loop_position(&outer) };
            at.coords[axis] = TileCoord::from_text(if reverse { format!("({n}u - 1u - k)") } else { "k".into() });
            e.emit_braced_block(format!("for (var k = 0u; k < {n}u; k++) {{"), |e| {
                e.with_trips(n as f64, |e| {
                    let next = e.element_expression(x, &at);
                    let next = e.fold_expression(op, dtype, "sum", &next);
                    e.emit_line(format!("sum = {next};"));
                    e.store_tile_element(result, buffer, &at, "sum");
                });
            });
        });
        self.count_inner_iterations(n, lines);
    }
    /// Writes the search for the position along an axis of the greatest element or, unless `is_max`, of the smallest.
    pub(super) fn emit_arg_reduction(&mut self, is_max: bool, axis: usize, inst: &Inst) {
        let (result, x) = (inst.results[0], inst.args[0]);
        let (n, dtype) = (self.k.ty(x).shape[axis], self.k.ty(x).dtype);
        let sign = if is_max { ">" } else { "<" };
        let wins = if wgsl_type(dtype) == "f32" {
            "!is_nan_bits(top) && (is_nan_bits(y) || y SIGN top)"
        } else {
            "y SIGN top"
        };
        let wins = wins.replace("SIGN", sign);
        self.emit_elements(result, |e, at| {
            let along = |e: &mut Self, k: &str| {
                let mut coords = at.coords.clone();
                coords[axis] = TileCoord::from_text(k);
                e.element_expression(x, &TilePosition { coords, flat: None })
            };
            let (first, next) = (along(e, "0u"), along(e, "k"));
            e.emit_line(format!("var best = 0; var top = {first};"));
            e.emit_braced_block(format!("for (var k = 1u; k < {n}u; k++) {{"), |e| {
                e.emit_line(format!("let y = {next}; if ({wins}) {{ best = i32(k); top = y; }}"));
            });
            "best".into()
        });
        let elements = self.k.ty(result).elements();
        self.count_inner_iterations(n, elements);
    }
}
