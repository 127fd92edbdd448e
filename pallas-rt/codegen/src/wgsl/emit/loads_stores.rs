//! Text for loads and stores: positions in arrays, and elements outside of them.
use super::array_positions::{bounds_test, guarded_buffer_position, row_major_number};
use super::emitter::BodyEmitter;
use super::names;
use super::position::{ArrayAccessCache, TileCoord, TilePosition, VEC4_WIDTH, position_before_broadcast};
use crate::passes::lower;
use crate::wgsl::bank_conflicts;
use crate::wgsl::barriers::{MemoryId, ShaderNode};
use crate::wgsl::place::TileStorage;
use crate::wgsl::place::views::{self, InlineKind};
use crate::wgsl::types::{element_to_word, zero_expression};
use pallas_ir::{Inst, Op, OperandId, Value, View};
use std::cell::RefCell;

/// An access to an array: its operand, the view, and the view's starts that are known at run time.
#[derive(Clone, Copy)]
pub(super) struct ArrayAccess<'a> {
    pub of: OperandId,
    pub view: &'a View,
    pub starts: &'a [Value],
}

impl BodyEmitter<'_> {
    /// Writes the read of an element of a prefetched array; indices are clamped, and an empty array gives 0.
    pub(super) fn emit_prefetch_read(&mut self, of: OperandId, inst: &Inst) {
        let mut at = "0".to_string();
        let mut some = vec![];
        for (a, &v) in inst.args.iter().enumerate() {
            let n = names::extent_text(self.k, of, a);
            at = format!("({at} * {n} + clamp({}, 0, max({n} - 1, 0)))", self.scalar_name(v));
            some.push(format!("{n} > 0"));
        }
        let some = if some.is_empty() { "true".to_string() } else { some.join(" && ") };
        let x = self.packed_element_expression(of, &format!("select(0u, u32({at}), {some})"));
        let zero = zero_expression(self.k.operand(of).dtype);
        self.define_scalar(inst.results[0], &format!("select({zero}, {x}, {some})"));
    }

    /// Writes a load; rows of vectors are copied to workgroup memory as vec4. If `masked`, two more operands of `inst`
    /// are a mask and the value of elements where it is false.
    pub(super) fn emit_load(&mut self, from: OperandId, view: &View, masked: bool, inst: &Inst) {
        let result = inst.results[0];
        let (starts, rest) = inst.args.split_at(view.dynamic_count());
        let access = ArrayAccess { of: from, view, starts };
        let known = RefCell::new(ArrayAccessCache::default());
        let read = |e: &mut Self, at: &TilePosition| {
            let x = e.array_element_expression(access, at, &mut known.borrow_mut());
            if !masked {
                return x;
            }
            let (mask, other) = (e.element_expression(rest[0], at), e.scalar_name(rest[1]));
            format!("select({other}, {x}, {mask})")
        };
        if self.k.ty(result).is_scalar() {
            let at = TilePosition { coords: vec![], flat: None };
            return self.emit_broadcast_scalar(result, |e| read(e, &at));
        }
        if masked || !self.try_load_vec4(access, result) {
            self.emit_elements(result, read);
        }
        // All threads copy their elements of an array that nothing writes.
        let constant =
            !masked && !names::is_operand_written(self.k, from) && self.plan.scratches[from.index()].is_none();
        if let (true, TileStorage::Buffer(_), Some(ShaderNode::MemoryStep(step))) =
            (constant, self.plan.tile_storage[result.index()], self.current_nodes().last_mut())
        {
            step.can_move_later = true;
        }
    }

    /// Writes a store, from registers or from memory; if `masked`, only of elements where the mask, the last operand of
    /// `inst`, is true.
    pub(super) fn emit_store(&mut self, to: OperandId, view: &View, masked: bool, inst: &Inst) {
        let value = inst.args[0];
        let (starts, rest) = inst.args[1..].split_at(view.dynamic_count());
        let access = ArrayAccess { of: to, view, starts };
        let mask = masked.then(|| rest[0]);
        if self.is_in_registers(value) {
            return self.emit_memory_step(|e| {
                let owner = e.owner_test(value);
                e.emit_guarded_block([owner, None], |e| {
                    let mut known = ArrayAccessCache::default();
                    let places = e.register_positions(value);
                    let mut rest = &places[..];
                    while let Some(at) = rest.first() {
                        let four = (rest.len() >= VEC4_WIDTH && mask.is_none())
                            .then(|| e.array_vec4_position(access, at))
                            .flatten();
                        let step = match four {
                            Some((base, 0)) => {
                                e.store_array_vec4(access, value, &base, &rest[..VEC4_WIDTH], &mut known);
                                VEC4_WIDTH
                            }
                            _ => {
                                e.store_array_element(access, value, mask, at, &mut known);
                                1
                            }
                        };
                        rest = &rest[step..];
                    }
                });
            });
        }
        let shape = self.k.ty(value).shape.clone();
        self.emit_strided_loop(shape.iter().product(), |e| {
            let at = e.strided_loop_position(&shape);
            e.store_array_element(access, value, mask, &at, &mut ArrayAccessCache::default());
        });
    }

    /// Returns a test that `coordinate` is inside of the array along the view's axis number `axis`, counted among the
    /// axes that the view keeps; "true" if it always is.
    pub(super) fn axis_bounds_test(
        &mut self,
        of: OperandId,
        view: &View,
        axis: usize,
        inst: &Inst,
        coordinate: &str,
    ) -> String {
        let kept: Vec<usize> = (0..view.axes.len()).filter(|&a| view.axes[a].kept).collect();
        let access = ArrayAccess { of, view, starts: &inst.args };
        let (p, safe) = self.array_position(access, kept[axis], coordinate);
        if safe { "true".into() } else { format!("({p} >= 0 && {p} < {})", names::extent_text(self.k, of, kept[axis])) }
    }

    /// Returns an expression for the element of an array at a position of a view; elements outside are the operand's
    /// fill.
    fn array_element_expression(
        &mut self,
        access: ArrayAccess<'_>,
        at: &TilePosition,
        known: &mut ArrayAccessCache,
    ) -> String {
        let ArrayAccess { of, view, .. } = access;
        let fill = self.literal_expression(lower::fill_value(self.k, of));
        if let Some(buffer) = self.plan.scratches[of.index()] {
            let dtype = self.k.operand(of).dtype;
            if lower::is_whole_scratch_view(self.k, of, view) {
                return self.read_buffer_element(dtype, buffer, at);
            }
            let along = self.emit_access_coordinates(access, at, known);
            let inside = bounds_test(&along);
            let at = guarded_buffer_position(&along, inside.as_deref());
            let x = self.read_buffer_element(dtype, buffer, &at);
            return inside.map_or(x.clone(), |test| format!("select({fill}, {x}, {test})"));
        }
        debug_assert!(view.axes.len() == self.k.operand(of).dims.len(), "a lowered view has all of the array's axes");
        if names::is_operand_written(self.k, of) {
            let owner = self.array_element_owner(access, at).filter(|(_, replicas)| !replicas);
            self.record_step_access(MemoryId::Array(self.k.memory_of(of).0), owner.map(|(owner, _)| owner), false);
        }
        let four = self.array_vec4_position(access, at);
        match &four {
            Some((base, _)) => self.record_array_access(access, base, VEC4_WIDTH, false),
            None => self.record_array_access(access, at, 1, false),
        }
        let along = self.emit_access_coordinates(access, four.as_ref().map_or(at, |(base, _)| base), known);
        let inside = bounds_test(&along);
        let number = row_major_number(&along);
        // A memory location that another program may write is not even read and dropped; one that nobody writes may
        // be.
        let guard = inside.as_deref().filter(|_| names::is_operand_written(self.k, of));
        let held = inside.as_ref().filter(|_| guard.is_none());
        let number = held.map_or(number.clone(), |test| format!("select(0u, {number}, {test})"));
        let x = match four {
            Some((_, part)) => {
                let name = known.fours.iter().find(|(n, _)| *n == number).map(|(_, name)| name.clone());
                let name = name.unwrap_or_else(|| {
                    self.add_work(self.parameters.vec4 * self.uncoalesced_factor(of, at, VEC4_WIDTH));
                    self.counts.global += VEC4_WIDTH as f64 * self.trips;
                    let name = self.emit_vec4_read(of, &number, guard);
                    known.fours.push((number, name.clone()));
                    name
                });
                self.vec4_component(of, &name, part)
            }
            None => {
                self.add_work(self.parameters.global * self.uncoalesced_factor(of, at, 1));
                self.counts.global += self.trips;
                match guard {
                    Some(test) => return self.emit_guarded_element_read(of, &number, test, &fill),
                    None => self.packed_element_expression(of, &number),
                }
            }
        };
        inside.map_or(x.clone(), |test| format!("select({fill}, {x}, {test})"))
    }

    /// Returns the factor by which a read is slower since too few neighbouring threads read along a row to fill a
    /// memory segment. Writes have no such factor, since nothing waits for them.
    fn uncoalesced_factor(&self, of: OperandId, at: &TilePosition, width: usize) -> f64 {
        let class = at.coords.last().and_then(|c| c.own).map(|(c, _)| self.plan.layout.classes[c]);
        let Some(class) = class.filter(|_| self.parameters.stage) else { return 1.0 };
        let row = class.size * self.k.operand(of).dtype.bytes();
        let together = class.threads.min(bank_conflicts::SUBGROUP_THREADS) * width * self.k.operand(of).dtype.bytes();
        row.min(bank_conflicts::MEMORY_SEGMENT_BYTES as usize) as f64
            / together.clamp(1, row.min(bank_conflicts::MEMORY_SEGMENT_BYTES as usize)) as f64
    }

    /// Returns an expression for the element of a fetched value: one without storage, which its readers load from
    /// arrays.
    pub(super) fn fetched_element_expression(&mut self, v: Value, at: &TilePosition) -> String {
        let inst = self.k.inst(self.plan.defined[v.index()].expect("a fetched value has a definition"));
        let Op::Load { from, view, .. } = &inst.op else { return self.computed_element_expression(inst, at) };
        let access = ArrayAccess { of: *from, view, starts: &inst.args[..view.dynamic_count()] };
        let mut known = self.known.remove(&v).unwrap_or_default();
        let x = self.array_element_expression(access, at, &mut known);
        self.known.insert(v, known);
        x
    }
    /// Writes, before the code that uses them, those coordinates of the array elements of `v` that are the same at
    /// both positions.
    pub(super) fn hoist_common_coordinates(&mut self, v: Value, at: &TilePosition, other: &TilePosition) {
        let Some(inline) = self.plan.inline[v.index()] else { return };
        let inst = self.k.inst(self.plan.defined[v.index()].expect("a recomputed value has a definition"));
        match (inline, &inst.op) {
            (InlineKind::Pure(_), _) => {}
            (InlineKind::View, _) => {
                let (of, index) = views::view_operand_and_index(self.k, inst);
                self.hoist_common_coordinates(
                    of,
                    &self.operand_position(&index, at),
                    &self.operand_position(&index, other),
                );
            }
            (InlineKind::Fetch, Op::Load { from, view, .. }) => {
                let access = ArrayAccess { of: *from, view, starts: &inst.args[..view.dynamic_count()] };
                let mut known = self.known.remove(&v).unwrap_or_default();
                let base = |at: &TilePosition| {
                    self.array_vec4_position(access, at).map_or_else(|| at.clone(), |(base, _)| base)
                };
                let (at, other) = (base(at), base(other));
                let (mut coords, mut others) = (at.coords.iter(), other.coords.iter());
                for a in 0..view.axes.len() {
                    let zero = TileCoord::from_text("0u");
                    let kept = view.axes[a].kept;
                    let c = if kept { coords.next().expect("one per kept axis") } else { &zero };
                    let same = !kept || others.next().is_some_and(|o| o.text == c.text);
                    if same {
                        self.emit_access_coordinate(access, a, &c.text, &mut known);
                    }
                }
                self.known.insert(v, known);
            }
            (InlineKind::Fetch, _) => {
                let shape = &self.k.ty(v).shape;
                for &arg in &inst.args {
                    let own = &self.k.ty(arg).shape;
                    if own.len() == shape.len() {
                        self.hoist_common_coordinates(
                            arg,
                            &position_before_broadcast(own, at),
                            &position_before_broadcast(own, other),
                        );
                    }
                }
            }
        }
    }
    /// Runs `body` in a scope of the text: names that it defines are forgotten afterwards.
    pub(super) fn with_name_scope(&mut self, body: impl FnOnce(&mut Self)) {
        let lengths = |known: &ArrayAccessCache| (known.along.len(), known.fours.len());
        let before: Vec<_> = self.known.iter().map(|(v, known)| (*v, lengths(known))).collect();
        let tiles = self.tiles.len();
        body(self);
        self.tiles.truncate(tiles);
        self.known.retain(|v, _| before.iter().any(|(b, _)| b == v));
        for (v, (along, fours)) in before {
            let known = self.known.entry(v).or_default();
            known.along.truncate(along);
            known.fours.truncate(fours);
        }
    }

    /// Writes the store of the element of `value` at a position, where that is inside of the array and `mask`, if any,
    /// is true.
    fn store_array_element(
        &mut self,
        access: ArrayAccess<'_>,
        value: Value,
        mask: Option<Value>,
        at: &TilePosition,
        known: &mut ArrayAccessCache,
    ) {
        let of = access.of;
        let x = self.element_expression(value, at);
        let mask = mask.map(|m| self.element_expression(m, at));
        if let Some(buffer) = self.plan.scratches[of.index()] {
            let (at, inside) = if lower::is_whole_scratch_view(self.k, of, access.view) {
                (at.clone(), None)
            } else {
                let along = self.emit_access_coordinates(access, at, known);
                let inside = bounds_test(&along);
                (guarded_buffer_position(&along, inside.as_deref()), inside)
            };
            return self.emit_guarded_block([inside, mask], |e| {
                e.store_buffer_element(e.k.operand(of).dtype, buffer, &at, &x)
            });
        }
        let along = self.emit_access_coordinates(access, at, known);
        let (inside, number) = (bounds_test(&along), row_major_number(&along));
        let owner = self.array_element_owner(access, at).map(|(owner, _)| owner);
        self.record_step_access(MemoryId::Array(self.k.memory_of(of).0), owner, true);
        self.record_array_access(access, at, 1, true);
        self.add_work(self.parameters.global);
        self.counts.global += self.trips;
        self.emit_guarded_block([inside, mask], |e| e.emit_packed_element_store(of, &number, &x));
    }
    /// Writes the store of the four adjacent elements of `value` at `places` as a vec4, whose position is `base`.
    fn store_array_vec4(
        &mut self,
        access: ArrayAccess<'_>,
        value: Value,
        base: &TilePosition,
        places: &[TilePosition],
        known: &mut ArrayAccessCache,
    ) {
        let of = access.of;
        let elements: Vec<String> = places.iter().map(|at| self.element_expression(value, at)).collect();
        let along = self.emit_access_coordinates(access, base, known);
        let (inside, number) = (bounds_test(&along), row_major_number(&along));
        let owner = self.array_element_owner(access, &places[0]).map(|(owner, _)| owner);
        self.record_step_access(MemoryId::Array(self.k.memory_of(of).0), owner, true);
        self.record_array_access(access, base, VEC4_WIDTH, true);
        self.add_work(self.parameters.vec4);
        self.counts.global += VEC4_WIDTH as f64 * self.trips;
        self.emit_guarded_block([inside, None], |e| e.emit_packed_vec4_store(of, &number, &elements));
    }
    /// Writes `body` inside of an `if` with these tests, if there are any.
    fn emit_guarded_block(&mut self, tests: [Option<String>; 2], body: impl FnOnce(&mut Self)) {
        let tests: Vec<String> = tests.into_iter().flatten().collect();
        if tests.is_empty() {
            return body(self);
        }
        self.emit_braced_block(format!("if ({}) {{", tests.join(" && ")), body);
    }

    /// Copies an array's vec4 to a buffer of vec4. Returns false, having written nothing, if one of the two has none.
    fn try_load_vec4(&mut self, access: ArrayAccess<'_>, result: Value) -> bool {
        let TileStorage::Buffer(buffer) = self.plan.tile_storage[result.index()] else { return false };
        let (dtype, shape) = (self.k.ty(result).dtype, self.k.ty(result).shape.clone());
        let parts: Vec<TilePosition> = (0..VEC4_WIDTH).map(|part| self.strided_vec4_position(&shape, part)).collect();
        let to =
            self.buffer_vec4_index(buffer, &parts[0]).filter(|_| self.array_vec4_position(access, &parts[0]).is_some());
        let Some((to, _)) = to else { return false };
        self.emit_strided_loop(shape.iter().product::<usize>() / VEC4_WIDTH, |e| {
            let known = &mut ArrayAccessCache::default();
            let words: Vec<String> =
                parts.iter().map(|at| element_to_word(dtype, &e.array_element_expression(access, at, known))).collect();
            e.store_buffer_vec4(buffer, &parts[0], &to, &words);
        });
        true
    }

    /// Records an access to `width` adjacent elements of an array, a store if `write`, for the coalescing report.
    fn record_array_access(&mut self, access: ArrayAccess<'_>, at: &TilePosition, width: usize, write: bool) {
        if !self.written {
            return;
        }
        let (k, of, axes) = (self.k, access.of, &access.view.axes);
        let extent =
            |a: usize| names::static_extent(k, of, a).map_or(bank_conflicts::ASSUMED_DYNAMIC_EXTENT, |n| n as usize);
        let stride = |a: usize| (a + 1..axes.len()).map(extent).product::<usize>();
        let kept = (0..axes.len()).filter(|&a| axes[a].kept);
        let step = |a: usize| axes[a].stride.unsigned_abs() as usize * stride(a);
        let at = at.coords.iter().zip(kept).map(|(c, a)| (c.text.clone(), step(a))).collect();
        // The number of elements that are adjacent both in the block and in the array.
        let whole = axes.iter().enumerate().rev().take_while(|(a, v)| v.size == extent(*a)).count();
        let run = axes[axes.len().saturating_sub(whole + 1)..].iter().map(|v| v.size).product();
        self.record_emitted_access(MemoryId::Array(of.0), at, (width, k.operand(of).dtype.bytes(), run), write);
    }
}
