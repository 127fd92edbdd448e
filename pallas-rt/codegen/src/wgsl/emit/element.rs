//! Text for one element of a value, at a position that its reader determines.
use super::emitter::BodyEmitter;
use super::position::{
    TileCoord, TilePosition, VEC4_COMPONENTS, VEC4_WIDTH, offset_expression, operand_coord, position_before_broadcast,
    unravel_coordinate,
};
use crate::wgsl::bank_conflicts::EmittedAccess as Reached;
use crate::wgsl::barriers::{MemoryId, WordOwnership};
use crate::wgsl::place::cooperative_matrices::StorageCell;
use crate::wgsl::place::thread_layout::SpreadDirection;
use crate::wgsl::place::{Swizzle, TileBuffer, TileStorage, row_major_strides, views};
use crate::wgsl::types::{
    element_to_word, hide_constant, mask_counted_bits, narrow_to_dtype, wgsl_type, word_to_element, zero_expression,
};
use pallas_ir::structural::AffineIndex;
use pallas_ir::{AccessForm, DType, Inst, Op, ScalarOp, Value};

impl BodyEmitter<'_> {
    /// Returns the positions of the elements that a thread has in registers, in the order of registers.
    pub(super) fn register_positions(&self, v: Value) -> Vec<TilePosition> {
        let mut all = vec![vec![]];
        for a in 0..self.k.ty(v).shape.len() {
            let along = self.thread_element_coords(v, a);
            all = all
                .iter()
                .flat_map(|p| along.iter().map(move |c| [&p[..], std::slice::from_ref(c)].concat()))
                .collect();
        }
        all.into_iter().map(|coords| TilePosition { coords, flat: None }).collect()
    }
    /// Returns the coordinates along an axis of a tile at which a thread has elements.
    pub(super) fn thread_element_coords(&self, v: Value, axis: usize) -> Vec<TileCoord> {
        let Some(c) = self.plan.layout.axes[v.index()][axis] else { return vec![TileCoord::from_text("0u")] };
        (0..self.plan.layout.classes[c].elements_per_thread()).map(|r| self.thread_element_coord(c, r)).collect()
    }
    /// Returns the coordinate of element number `element` of a thread along an axis of class `class_index`, a class of
    /// axes that are spread over threads alike.
    pub(super) fn thread_element_coord(&self, class_index: usize, element: usize) -> TileCoord {
        let class = self.plan.layout.classes[class_index];
        let text = |r: usize| match (class.threads, class.element_offset(r)) {
            (1, r) => format!("{r}u"),
            (_, 0) => format!("c{class_index}"),
            (_, n) => format!("(c{class_index} + {n}u)"),
        };
        let part = (class.vector == VEC4_WIDTH).then(|| (text(element - element % VEC4_WIDTH), element % VEC4_WIDTH));
        TileCoord { text: text(element), own: Some((class_index, element)), part }
    }
    /// Returns the coordinate of a thread's element along an axis of class `class_index` (a class of axes that are
    /// spread over threads alike); the number `element` is an expression.
    pub(super) fn thread_element_coord_at(&self, class_index: usize, element: &str) -> TileCoord {
        let class = self.plan.layout.classes[class_index];
        TileCoord::from_text(match (class.threads, class.vector) {
            (1, _) => element.to_string(),
            (t, 1) => format!("(c{class_index} + ({element}) * {t}u)"),
            (t, v) => format!("(c{class_index} + ({element}) / {v}u * {}u + ({element}) % {v}u)", t * v),
        })
    }
    /// Returns the position in `shape` of the element that the present iteration of a strided loop handles: the loop's
    /// variable `e` is its row-major number.
    pub(super) fn strided_loop_position(&self, shape: &[usize]) -> TilePosition {
        let coords = (0..shape.len()).map(|a| TileCoord::from_text(unravel_coordinate(shape, a, "e"))).collect();
        TilePosition { coords, flat: Some(("e".into(), shape.to_vec())) }
    }

    /// Returns the position of component `component` of the vec4 with number `e` (a variable of the text) in a shape
    /// whose rows are whole vectors.
    pub(super) fn strided_vec4_position(&self, shape: &[usize], component: usize) -> TilePosition {
        let mut vectors = shape.to_vec();
        vectors.last_mut().into_iter().for_each(|n| *n /= VEC4_WIDTH);
        let mut coords: Vec<TileCoord> =
            (0..shape.len()).map(|a| TileCoord::from_text(unravel_coordinate(&vectors, a, "e"))).collect();
        if let Some(last) = coords.last_mut().filter(|_| shape.last().is_some_and(|n| n.is_multiple_of(VEC4_WIDTH))) {
            let base = if last.text == "0u" { "0u".to_string() } else { format!("{VEC4_WIDTH}u * {}", last.text) };
            let text = if component == 0 { base.clone() } else { format!("({base} + {component}u)") };
            *last = TileCoord { part: Some((base, component)), ..TileCoord::from_text(text) };
        }
        TilePosition { coords, flat: None }
    }

    /// Returns an expression for the element of `v` at a position in `v`'s shape.
    pub(super) fn element_expression(&mut self, v: Value, at: &TilePosition) -> String {
        if self.k.ty(v).is_scalar() {
            return self.scalar_name(v);
        }
        match self.plan.inline[v.index()] {
            Some(views::InlineKind::Pure(n)) => {
                self.add_work(self.parameters.operation * n as f64);
                let inst = self.k.inst(self.plan.defined[v.index()].expect("a pure value has a definition"));
                self.computed_element_expression(inst, at)
            }
            Some(views::InlineKind::View) => {
                let inst = self.k.inst(self.plan.defined[v.index()].expect("a view has a definition"));
                let (of, index) = views::view_operand_and_index(self.k, inst);
                let at = self.operand_position(&index, at);
                self.element_expression(of, &at)
            }
            Some(views::InlineKind::Fetch) => self.fetched_element_expression(v, at),
            None => self.stored_element_expression(v, at),
        }
    }
    /// Returns an expression for an element of a stored tile.
    fn stored_element_expression(&mut self, v: Value, at: &TilePosition) -> String {
        let dtype = self.k.ty(v).dtype;
        match self.plan.tile_storage[v.index()] {
            TileStorage::Buffer(b) => self.read_buffer_element(dtype, b, at),
            TileStorage::Registers | TileStorage::Accumulators => {
                if let Some(i) = self.register_index_at(v, at) {
                    self.out.read_in_registers.insert(v);
                    return self.register_name(v, i);
                }
                match self.plan.copies[v.index()] {
                    Some(b) => self.read_buffer_element(dtype, b, at),
                    None => {
                        self.out.wanted.insert(v);
                        zero_expression(dtype)
                    }
                }
            }
            TileStorage::None => unreachable!("{v} is read, so it has a home"),
        }
    }
    /// Returns the index of this thread's register that has the element; `None` if another thread may have it.
    fn register_index_at(&self, v: Value, at: &TilePosition) -> Option<usize> {
        if !self.is_in_registers(v) {
            return None;
        }
        let mut i = 0;
        for (a, class) in self.plan.layout.axes[v.index()].iter().enumerate() {
            let Some(c) = *class else { continue };
            let (own, r) = at.coords[a].own?;
            if own != c {
                return None;
            }
            i = i * self.plan.layout.classes[c].elements_per_thread() + r;
        }
        Some(i)
    }
    /// Returns an expression for an element of a buffer; where products can read whole vectors, it is a component of a
    /// vec4.
    pub(super) fn read_buffer_element(&mut self, dtype: DType, buffer: usize, at: &TilePosition) -> String {
        let (index, owner) = self.buffer_index_and_owner(buffer, at);
        self.record_step_access(MemoryId::Buffer(buffer), owner, false);
        let outside = self.plan.buffers[buffer].outside;
        if self.product
            && let Some((base, part)) = self.buffer_vec4_index(buffer, at)
        {
            let mut first = TilePosition { coords: at.coords.clone(), flat: None };
            if let Some(along) = first.coords.last_mut()
                && let Some((base, _)) = along.part.take()
            {
                *along = TileCoord::from_text(base);
            }
            self.record_buffer_access(buffer, &first, VEC4_WIDTH, false);
            let name = self.read_buffer_vec4(&base);
            return word_to_element(dtype, &format!("{name}.{}", VEC4_COMPONENTS[part]));
        }
        self.record_buffer_access(buffer, at, 1, false);
        self.add_work(if outside { self.parameters.global } else { self.parameters.workgroup });
        if self.product && !outside {
            self.counts.product_words += self.trips;
        }
        let x = self.buffer_word_expression(buffer, &index);
        match self.plan.buffers[buffer].cell {
            StorageCell::Word | StorageCell::Vec4 => word_to_element(dtype, &x),
            StorageCell::F32 => x,
            StorageCell::F16 => format!("f32({x})"),
        }
    }
    /// Records an access to `width` adjacent elements of a buffer, a store if `write`, for the coalescing report.
    fn record_buffer_access(&mut self, buffer: usize, at: &TilePosition, width: usize, write: bool) {
        if !self.written {
            return;
        }
        let strides = self.plan.buffers[buffer].strides.clone();
        let at = at.coords.iter().map(|c| c.text.clone()).zip(strides).collect();
        let bytes = self.plan.buffers[buffer].cell.bytes_per_element();
        self.record_emitted_access(MemoryId::Buffer(buffer), at, (width, bytes, usize::MAX), write);
    }
    /// Records an access for the coalescing report; `at` has coordinates and strides, `size` has the elements of a
    /// thread, the bytes of each, and the number of adjacent elements.
    pub(super) fn record_emitted_access(
        &mut self,
        of: MemoryId,
        at: Vec<(String, usize)>,
        size: (usize, usize, usize),
        write: bool,
    ) {
        let (threads, trips, product) = (self.strided.unwrap_or(usize::MAX), self.trips, self.product);
        let ((width, bytes, run), line) = (size, self.at_line);
        self.out.accesses.push(Reached { memory: of, line, write, at, width, bytes, run, threads, trips, product });
    }
    /// Returns the index of the vec4 of workgroup memory that has an element, and its component; `None` if there is
    /// none.
    pub(super) fn buffer_vec4_index(&self, buffer: usize, at: &TilePosition) -> Option<(String, usize)> {
        let b = &self.plan.buffers[buffer];
        let Some((1, outer)) = b.strides.split_last().map(|(inner, outer)| (*inner, outer)) else { return None };
        if b.outside
            || b.cell != StorageCell::Vec4
            || !outer.iter().all(|s| s.is_multiple_of(VEC4_WIDTH))
            || b.row_group_padding().is_some_and(|(_, words)| !words.is_multiple_of(VEC4_WIDTH))
            || b.swizzle().is_some_and(|s| !s.unit.is_multiple_of(VEC4_WIDTH))
        {
            return None;
        }
        let (base, part) = at.coords.last()?.part.clone()?;
        let mut coords = at.coords.clone();
        *coords.last_mut()? = TileCoord::from_text(base);
        Some((self.buffer_index_and_owner(buffer, &TilePosition { coords, flat: None }).0, part))
    }
    /// Returns the name of a variable with the vec4 of workgroup memory at this index, and writes the read if it is
    /// new.
    fn read_buffer_vec4(&mut self, index: &str) -> String {
        if let Some((_, name)) = self.tiles.iter().find(|(i, _)| i == index) {
            return name.clone();
        }
        self.add_work(self.parameters.workgroup * self.parameters.vec4 / self.parameters.global);
        self.counts.product_words += VEC4_WIDTH as f64 * self.trips;
        let name = self.fresh_name("w");
        self.emit_line(format!(
            "let {name} = {}[({index}) / {VEC4_WIDTH}u];",
            StorageCell::Vec4.workgroup_array_name()
        ));
        self.tiles.push((index.into(), name.clone()));
        name
    }
    /// Writes a statement that stores `x`, an element of tile `v`, at a position of a buffer.
    pub(super) fn store_tile_element(&mut self, v: Value, buffer: usize, at: &TilePosition, x: &str) {
        self.store_buffer_element(self.k.ty(v).dtype, buffer, at, x);
    }
    /// Writes a statement that stores an element of type `dtype` to a buffer.
    pub(super) fn store_buffer_element(&mut self, dtype: DType, buffer: usize, at: &TilePosition, x: &str) {
        let (index, owner) = self.buffer_index_and_owner(buffer, at);
        self.record_step_access(MemoryId::Buffer(buffer), owner, true);
        let outside = self.plan.buffers[buffer].outside;
        self.add_work(if outside { self.parameters.global } else { self.parameters.workgroup });
        self.record_buffer_access(buffer, at, 1, true);
        let to = self.buffer_word_expression(buffer, &index);
        let cell = self.plan.buffers[buffer].cell;
        if cell == StorageCell::Vec4 {
            self.out.singles.insert(buffer);
        }
        let word = match cell {
            StorageCell::Word | StorageCell::Vec4 => element_to_word(dtype, x),
            StorageCell::F32 => x.to_string(),
            StorageCell::F16 => format!("f16({x})"),
        };
        self.emit_line(format!("{to} = {word};"));
    }
    /// Writes a statement that stores four words as a vec4, from element `index` of a buffer's memory on; `at` is the
    /// same position as coordinates, for the report of accesses.
    pub(super) fn store_buffer_vec4(&mut self, buffer: usize, at: &TilePosition, index: &str, words: &[String]) {
        self.record_step_access(MemoryId::Buffer(buffer), None, true);
        self.record_buffer_access(buffer, at, VEC4_WIDTH, true);
        self.add_work(self.parameters.workgroup * self.parameters.vec4 / self.parameters.global);
        let (arena, ty) = (StorageCell::Vec4.workgroup_array_name(), StorageCell::Vec4.wgsl_type());
        self.emit_line(format!("{arena}[({index}) / {VEC4_WIDTH}u] = {ty}({});", words.join(", ")));
    }
    /// Writes statements that store the registers of `from` to a buffer that has `to`'s shape.
    pub(super) fn store_registers(&mut self, to: Value, from: Value, buffer: usize) {
        let owner = self.owner_test(from);
        if let Some(test) = &owner {
            self.emit_line(format!("if ({test}) {{"));
        }
        let (places, dtype) = (self.register_positions(from), self.k.ty(to).dtype);
        let mut i = 0;
        while i < places.len() {
            match self.buffer_vec4_index(buffer, &places[i]) {
                Some((index, 0)) => {
                    let words: Vec<String> =
                        (i..i + VEC4_WIDTH).map(|i| element_to_word(dtype, &self.register_name(from, i))).collect();
                    self.store_buffer_vec4(buffer, &places[i], &index, &words);
                    i += VEC4_WIDTH;
                }
                _ => {
                    let r = self.register_name(from, i);
                    self.store_tile_element(to, buffer, &places[i], &r);
                    i += 1;
                }
            }
        }
        if owner.is_some() {
            self.emit_line("}");
        }
    }
    /// Returns an expression for the word of a buffer's memory at an index.
    pub(super) fn buffer_word_expression(&self, buffer: usize, index: &str) -> String {
        let b = &self.plan.buffers[buffer];
        match (b.outside, b.cell) {
            (true, _) => format!("scratch[own + {index}]"),
            (false, StorageCell::Vec4) => {
                format!("{}[({index}) / {VEC4_WIDTH}u][({index}) % {VEC4_WIDTH}u]", b.cell.workgroup_array_name())
            }
            (false, _) => format!("{}[{index}]", b.cell.workgroup_array_name()),
        }
    }
    /// Returns the index of a buffer's word at a position, and its owner if each thread accesses its own words only.
    fn buffer_index_and_owner(&self, buffer: usize, at: &TilePosition) -> (String, Option<WordOwnership>) {
        let b = &self.plan.buffers[buffer];
        let base = format!("at_{}", b.name);
        let (index, owner) = match &at.flat {
            Some((e, shape))
                if row_major_strides(shape) == b.strides
                    && b.row_group_padding().is_none()
                    && b.swizzle().is_none() =>
            {
                (e.clone(), (e == "e").then(|| WordOwnership::Strides(shape.iter().product())))
            }
            _ => (buffer_offset(b, &at.coords), None),
        };
        (if index == "0u" { base } else { format!("{base} + {index}") }, owner)
    }
    /// Returns a test that only one of the threads with the same elements passes; `None` if no two threads have the
    /// same.
    pub(super) fn owner_test(&self, v: Value) -> Option<String> {
        self.axes_owner_test(&self.plan.layout.axes[v.index()])
    }
    /// Returns a test that only one of the threads with the same elements passes, for axes with these classes; `None`
    /// if no two threads have the same.
    pub(super) fn axes_owner_test(&self, axis_classes: &[Option<usize>]) -> Option<String> {
        let classes = || axis_classes.iter().flatten().map(|&c| self.plan.layout.classes[c]);
        let grid = classes().find(|c| c.along != SpreadDirection::NotSpread).map_or(self.plan.grid, |c| c.grid);
        let test = |along: SpreadDirection| {
            let used = classes().find(|c| c.along == along).map_or(1, |c| c.threads);
            let (place, all) = self.thread_coordinate(along, grid);
            (used < all).then(|| format!("{place} < {used}u"))
        };
        let tests: Vec<String> = [SpreadDirection::Y, SpreadDirection::X].into_iter().filter_map(test).collect();
        (!tests.is_empty()).then(|| tests.join(" && "))
    }

    /// Returns an expression for the element that a pure or elementwise instruction computes at a position.
    pub(super) fn computed_element_expression(&mut self, inst: &Inst, at: &TilePosition) -> String {
        let ty = self.k.ty(inst.results[0]).clone();
        match &inst.op {
            Op::Scalar(op) => self.scalar_op_expression(*op, inst, at),
            Op::Valid { of, view, axis } => self.axis_bounds_test(*of, view, *axis, inst, &at.coords[*axis].text),
            Op::Structural(op) => match views::access_form(self.k, op, inst) {
                AccessForm::Iota { axis } => {
                    let position = hide_constant(&at.coords[axis].text);
                    narrow_to_dtype(ty.dtype, &format!("{}({position})", wgsl_type(ty.dtype)))
                }
                access @ (AccessForm::Cast | AccessForm::Bitcast | AccessForm::Powi(_)) => {
                    let (from, x) = (self.k.ty(inst.args[0]).dtype, self.element_expression(inst.args[0], at));
                    self.convert_element(&access, from, ty.dtype, &x)
                }
                AccessForm::Map(_) | AccessForm::Flat => {
                    let (of, index) = views::view_operand_and_index(self.k, inst);
                    let at = self.operand_position(&index, at);
                    self.element_expression(of, &at)
                }
                _ => unreachable!("`{}` is not made element by element", op.name()),
            },
            _ => unreachable!("not made element by element"),
        }
    }
    /// Returns the expression of a scalar operation on the operands' elements.
    pub(super) fn scalar_op_expression(&mut self, op: ScalarOp, inst: &Inst, at: &TilePosition) -> String {
        let result = self.k.ty(inst.results[0]).clone();
        self.out.helpers.extend(op.wgsl_helper());
        let open = op.row().operands.iter().position(|(_, t)| *t == pallas_ir::scalar::SignatureType::T).unwrap_or(0);
        let dtype = self.k.ty(inst.args[open]).dtype;
        let mut args = vec![];
        for (i, &v) in inst.args.iter().enumerate() {
            args.push(mask_counted_bits(op, i, dtype, self.broadcast_element_expression(v, &result.shape, at)));
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        narrow_to_dtype(result.dtype, &op.wgsl(&args, wgsl_type(dtype)))
    }
    /// Returns an expression for an operand's element, where the operand's axes of extent 1 are broadcast to `shape`.
    pub(super) fn broadcast_element_expression(&mut self, v: Value, shape: &[usize], at: &TilePosition) -> String {
        let own = &self.k.ty(v).shape;
        if own.is_empty() || own == shape {
            return self.element_expression(v, at);
        }
        self.element_expression(v, &position_before_broadcast(own, at))
    }
    /// Translates a position of a view to a position of the tile that it shows.
    pub(super) fn operand_position(&self, index: &[AffineIndex], at: &TilePosition) -> TilePosition {
        TilePosition { coords: index.iter().map(|i| operand_coord(i, &at.coords)).collect(), flat: None }
    }
}

/// Returns an expression for the offset of a position in a buffer.
fn buffer_offset(b: &TileBuffer, coords: &[TileCoord]) -> String {
    let (mut coords, mut strides) = (coords.to_vec(), b.strides.clone());
    if let (Some((rows, words)), [.., row, _]) = (b.row_group_padding(), &coords[..])
        && row.text != "0u"
    {
        coords.push(TileCoord::from_text(format!("({} / {rows}u)", row.text)));
        strides.push(words);
    }
    if let (Some(Swizzle { unit, period, rows }), [.., row, column]) = (b.swizzle(), &mut coords[..])
        && row.text != "0u"
    {
        // WGSL defines no precedence between `^` and arithmetic, so parentheses are needed.
        let inner = match column.text.contains(' ') && !column.text.starts_with('(') {
            true => format!("({})", column.text),
            false => column.text.clone(),
        };
        let group = if rows == 1 { row.text.clone() } else { format!("{} / {rows}u", row.text) };
        *column = TileCoord::from_text(format!("({inner} ^ ({group} % {period}u * {unit}u))"));
    }
    offset_expression(&coords, &strides)
}
