//! Text for branches, loops, and values that are passed from one region to another.
use super::emitter::{ASSUMED_TRIP_COUNT, BodyEmitter};
use crate::wgsl::place::TileStorage;
use crate::wgsl::types::wgsl_type;
use pallas_ir::{Inst, Value};

/// WGSL function for the number of iterations of a `for`, up to 2^32 - 1: the difference of its bounds may exceed an
/// i32.
const TRIP_COUNT_FUNCTION: &str = "fn turns(lo: i32, hi: i32, step: i32) -> u32 {
    return select(0u, (u32(hi) - u32(lo) - 1u) / u32(max(step, 1)) + 1u, lo < hi && step > 0);
}";

impl BodyEmitter<'_> {
    /// Writes a branch.
    pub(super) fn emit_if(&mut self, inst: &Inst) {
        self.flush_iteration_count();
        self.declare_variables(&inst.results);
        let test = format!("if ({}) {{", self.scalar_name(inst.args[0]));
        let parts = inst
            .regions
            .iter()
            .zip([test, "} else {".into()])
            .map(|(&r, head)| {
                let nodes = self.collect_nested_nodes(|e| {
                    e.emit_region(r);
                    let yields = e.k.region(r).yields.clone();
                    e.assign_values(&inst.results, &yields);
                    e.flush_iteration_count();
                });
                (head, nodes)
            })
            .collect();
        self.push_control_flow(false, parts);
    }
    /// Writes a counted loop, from the last iteration to the first if `reverse`.
    pub(super) fn emit_for(&mut self, inst: &Inst, reverse: bool) {
        self.flush_iteration_count();
        let body = self.k.region(inst.regions[0]);
        let (index, carried) = (body.params[0], &body.params[1..]);
        let [lo, hi, step] = [0, 1, 2].map(|i| self.scalar_name(inst.args[i]));
        self.declare_variables(carried);
        self.assign_values(carried, &inst.args[3..]);
        let k = self.fresh_name("k");
        self.out.helpers.insert(TRIP_COUNT_FUNCTION);
        self.emit_line(format!("let trips{k} = turns({lo}, {hi}, {step});"));
        if self.plan.constant_value(self.k, inst.args[2]).is_none_or(|step| step < 1) {
            self.out.checks = true;
            let line = self.at_line.max(1);
            self.emit_line(format!("if ({step} < 1) {{"));
            self.emit_line(format!("    atomicStore(&error_flag[1], {line}u);"));
            self.emit_line(format!("    atomicStore(&error_flag[2], bitcast<u32>({step}));"));
            self.emit_line("}");
        }
        let stop = self.limit.map_or(String::new(), |l| format!(" && spent < {l}u"));
        let head = format!("for (var {k} = 0u; {k} < trips{k}{stop}; {k}++) {{");
        let axis = self.open_iteration_count();
        let before = self.counts;
        let nodes = self.collect_nested_nodes(|e| {
            e.with_trips(ASSUMED_TRIP_COUNT, |e| {
                e.spent += 1;
                let at = if reverse { format!("i32(trips{k} - 1u - {k})") } else { format!("i32({k})") };
                e.define_scalar(index, &format!("{lo} + {at} * {step}"));
                e.emit_region(inst.regions[0]);
                e.assign_values(carried, &body.yields);
                e.flush_iteration_count();
            });
        });
        self.close_iteration_count(axis, self.constant_trip_count(inst));
        if axis.is_some() {
            let times = self.trips * ASSUMED_TRIP_COUNT;
            self.per_step.get_or_insert_with(|| self.counts.average_since(before, times));
        }
        self.push_control_flow(true, vec![(head, nodes)]);
        self.spent += 1;
        self.declare_variables(&inst.results);
        self.assign_values(&inst.results, carried);
    }
    /// Writes a loop with a condition.
    pub(super) fn emit_while(&mut self, inst: &Inst) {
        self.flush_iteration_count();
        let (test, body) = (self.k.region(inst.regions[0]), self.k.region(inst.regions[1]));
        self.declare_variables(&test.params);
        self.declare_variables(&inst.results);
        self.assign_values(&test.params, &inst.args);
        self.counted.push(0);
        let nodes = self.collect_nested_nodes(|e| {
            e.with_trips(ASSUMED_TRIP_COUNT, |e| {
                e.spent += 1;
                e.emit_region(inst.regions[0]);
                let stop = e.limit.map_or(String::new(), |l| format!(" || spent >= {l}u"));
                let head = format!("if (!{}{stop}) {{", e.scalar_name(test.yields[0]));
                let leave = e.collect_nested_nodes(|e| {
                    e.assign_values(&inst.results, &test.yields[1..]);
                    e.emit_line("break;");
                });
                e.push_control_flow(false, vec![(head, leave), ("} else {".into(), vec![])]);
                e.declare_variables(&body.params);
                e.assign_values(&body.params, &test.yields[1..]);
                e.emit_region(inst.regions[1]);
                e.assign_values(&test.params, &body.yields);
                e.flush_iteration_count();
            });
        });
        self.close_iteration_count(None, None);
        self.push_control_flow(true, vec![("loop {".into(), nodes)]);
        self.spent += 1;
    }
    /// Begins a separate count of the iterations within a loop; returns the sequential axis that the loop runs over, as
    /// the outermost loops do, or `None` for any other loop.
    fn open_iteration_count(&mut self) -> Option<usize> {
        self.counted.push(0);
        let axis = (self.axes_left > 0).then(|| self.out.iterations.axes.len() - self.axes_left);
        self.axes_left -= usize::from(axis.is_some());
        axis
    }
    /// Closes the count of a loop's iterations, and adds them to the surrounding loop's. `sequential_axis` is the axis
    /// that the loop runs over, if any; `trips` is `None` if the number of iterations is not known.
    fn close_iteration_count(&mut self, sequential_axis: Option<usize>, trips: Option<u64>) {
        let own = self.counted.pop().expect("opened");
        match (sequential_axis, trips) {
            (Some(axis), _) => self.out.iterations.axes[axis] = own,
            (None, Some(n)) => *self.counted.last_mut().expect("the body is open") += own.saturating_mul(n),
            (None, None) => self.out.iterations.more = true,
        }
    }
    /// Returns the number of iterations of a counted loop; `None` unless its bounds and step are constants.
    fn constant_trip_count(&self, inst: &Inst) -> Option<u64> {
        let constant = |v: Value| self.plan.constant_value(self.k, v);
        let (lo, hi, step) = (constant(inst.args[0])?, constant(inst.args[1])?, constant(inst.args[2])?);
        Some(((hi - lo).max(0) as u64).div_ceil(step.max(1) as u64))
    }

    /// Writes the declarations of the variables for values.
    fn declare_variables(&mut self, values: &[Value]) {
        for &v in values {
            let ty = wgsl_type(self.k.ty(v).dtype);
            if !self.plan.used[v.index()] {
                continue;
            }
            if self.k.ty(v).is_scalar() {
                let s = self.scalar_name(v);
                self.emit_line(format!("var {s}: {ty};"));
            } else if self.accumulator_fragments(v).is_some() {
                let ty = self.accumulator_type(v);
                self.accumulator_names(v).into_iter().for_each(|f| self.emit_line(format!("var {f}: {ty};")));
            } else if self.is_in_registers(v) {
                for i in 0..self.plan.layout.registers_per_thread(v) {
                    let r = self.register_name(v, i);
                    self.emit_line(format!("var {r}: {ty};"));
                }
            }
        }
    }
    /// Writes copies of values to other values, as if all happened at the same time. Targets that nothing reads are
    /// left out.
    fn assign_values(&mut self, to: &[Value], from: &[Value]) {
        let read = |(t, f): &(Value, Value)| t != f && self.plan.used[t.index()];
        let pairs: Vec<(Value, Value)> = to.iter().copied().zip(from.iter().copied()).filter(read).collect();
        let aside = pairs.iter().any(|(_, f)| self.depends_on_any(*f, to));
        let mut writes = vec![];
        self.emit_memory_step(|e| {
            for &(t, f) in &pairs {
                if !e.k.ty(t).is_scalar() && !e.is_in_registers(t) && e.accumulator_fragments(t).is_none() {
                    continue;
                }
                for (name, mut x) in e.variable_copies(t, f) {
                    if aside {
                        let kept = e.fresh_name("t");
                        e.emit_line(format!("let {kept} = {x};"));
                        x = kept;
                    }
                    writes.push(format!("{name} = {x};"));
                }
            }
            if !aside {
                writes.drain(..).for_each(|w| e.emit_line(w));
            }
        });
        self.assign_tiles_in_memory(&pairs);
        writes.iter().for_each(|w| self.emit_line(w));
    }
    /// Returns true if a value is one of `others`, or is recomputed from one.
    fn depends_on_any(&self, v: Value, others: &[Value]) -> bool {
        let inst = self.plan.defined[v.index()].filter(|_| self.plan.inline[v.index()].is_some());
        others.contains(&v) || inst.is_some_and(|i| self.k.inst(i).args.iter().any(|&v| self.depends_on_any(v, others)))
    }
    /// Returns the assignments that copy `from` to `to`, a scalar or a tile in registers or accumulators: each variable
    /// of `to`, with the expression of its new value.
    fn variable_copies(&mut self, to: Value, from: Value) -> Vec<(String, String)> {
        if self.k.ty(to).is_scalar() {
            return vec![(self.scalar_name(to), self.scalar_name(from))];
        }
        if self.accumulator_fragments(to).is_some() {
            return self.accumulator_names(to).into_iter().zip(self.initial_accumulators(to, Some(from))).collect();
        }
        let places = self.register_positions(to).into_iter().enumerate();
        places.map(|(i, at)| (self.register_name(to, i), self.element_expression(from, &at))).collect()
    }
    /// Writes the copies whose target is a tile in memory; each of `pairs` is a target and its source, in registers or
    /// memory.
    fn assign_tiles_in_memory(&mut self, pairs: &[(Value, Value)]) {
        let mut copied: Vec<(Value, usize, Value)> = vec![];
        let mut spread = vec![];
        for &(t, f) in pairs {
            if let TileStorage::Buffer(b) = self.plan.tile_storage[t.index()] {
                if self.is_in_registers(f) { spread.push((t, b, f)) } else { copied.push((t, b, f)) }
            }
        }
        // Each thread reads all sources of an element, then writes all targets: tiles of one shape can be swapped
        // safely, since a thread owns its positions.
        while let Some(&(first, ..)) = copied.first() {
            let shape = self.k.ty(first).shape.clone();
            let (same, rest): (Vec<_>, Vec<_>) = copied.iter().partition(|(t, ..)| self.k.ty(*t).shape == shape);
            copied = rest;
            self.emit_strided_loop(shape.iter().product(), |e| {
                let at = e.strided_loop_position(&shape);
                for (i, (_, _, f)) in same.iter().enumerate() {
                    let x = e.element_expression(*f, &at);
                    e.emit_line(format!("let w{i} = {x};"));
                }
                for (i, (t, b, _)) in same.iter().enumerate() {
                    e.store_tile_element(*t, *b, &at, &format!("w{i}"));
                }
            });
        }
        for (t, b, f) in spread {
            self.emit_memory_step(|e| e.store_registers(t, f, b));
        }
    }
}
