//! Text for one element of a value, at a position that its reader determines.
use super::emitter::BodyEmitter;
use super::position::{
    TileCoord, TilePosition, VEC4_COMPONENTS, VEC4_WIDTH, offset, operand_coord, position_before_broadcast,
    unravel_coordinate,
};
use crate::wgsl::bank_conflicts::EmittedAccess as Reached;
use crate::wgsl::barriers::{Memory, WordOwnership};
use crate::wgsl::place::cooperative_matrices::StorageCell;
use crate::wgsl::place::thread_layout::SpreadDirection;
use crate::wgsl::place::{Buffer, Swizzle, TileStorage, row_major, views};
use crate::wgsl::types::{from_word, hide_constant, mask_counted_bits, narrow_to_dtype, to_word, wgsl_type, zero};
use pallas_ir::structural::Index;
use pallas_ir::{Access, DType, Inst, Op, ScalarOp, Value};

impl BodyEmitter<'_> {
    /// Returns the positions of the elements that a thread has in registers, in the order of registers.
    pub(super) fn register_positions(&self, v: Value) -> Vec<TilePosition> {
        let mut all = vec![vec![]];
        for a in 0..self.k.ty(v).shape.len() {
            let along = self.own_coords(v, a);
            all = all
                .iter()
                .flat_map(|p| along.iter().map(move |c| [&p[..], std::slice::from_ref(c)].concat()))
                .collect();
        }
        all.into_iter().map(|coords| TilePosition { coords, flat: None }).collect()
    }
    /// Returns a thread's coordinates along an axis of a tile.
    pub(super) fn own_coords(&self, v: Value, axis: usize) -> Vec<TileCoord> {
        let Some(c) = self.plan.layout.axes[v.index()][axis] else { return vec![TileCoord::text("0u")] };
        (0..self.plan.layout.classes[c].elements_per_thread()).map(|r| self.own_coord(c, r)).collect()
    }
    /// Returns the coordinate of a thread's element `r` in a class of axes.
    pub(super) fn own_coord(&self, c: usize, r: usize) -> TileCoord {
        let class = self.plan.layout.classes[c];
        let text = |r: usize| match (class.threads, class.element_offset(r)) {
            (1, r) => format!("{r}u"),
            (_, 0) => format!("c{c}"),
            (_, n) => format!("(c{c} + {n}u)"),
        };
        let part = (class.vector == VEC4_WIDTH).then(|| (text(r - r % VEC4_WIDTH), r % VEC4_WIDTH));
        TileCoord { text: text(r), own: Some((c, r)), part }
    }
    /// Returns the coordinate of a thread's element in a class, where the element's number is an expression.
    pub(super) fn own_coord_at(&self, c: usize, r: &str) -> TileCoord {
        let class = self.plan.layout.classes[c];
        TileCoord::text(match (class.threads, class.vector) {
            (1, _) => r.to_string(),
            (t, 1) => format!("(c{c} + ({r}) * {t}u)"),
            (t, v) => format!("(c{c} + ({r}) / {v}u * {}u + ({r}) % {v}u)", t * v),
        })
    }
    /// Returns the position of the element with row-major number `e` (a variable of the text) in a shape.
    pub(super) fn loop_position(&self, shape: &[usize]) -> TilePosition {
        let coords = (0..shape.len()).map(|a| TileCoord::text(unravel_coordinate(shape, a, "e"))).collect();
        TilePosition { coords, flat: Some(("e".into(), shape.to_vec())) }
    }

    /// Returns the position of component `part` of the vec4 with number `e` in a shape whose rows are whole vectors.
    pub(super) fn vec4_loop_position(&self, shape: &[usize], part: usize) -> TilePosition {
        let mut vectors = shape.to_vec();
        vectors.last_mut().into_iter().for_each(|n| *n /= VEC4_WIDTH);
        let mut coords: Vec<TileCoord> =
            (0..shape.len()).map(|a| TileCoord::text(unravel_coordinate(&vectors, a, "e"))).collect();
        if let Some(last) = coords.last_mut().filter(|_| shape.last().is_some_and(|n| n.is_multiple_of(VEC4_WIDTH))) {
            let base = if last.text == "0u" { "0u".to_string() } else { format!("{VEC4_WIDTH}u * {}", last.text) };
            let text = if part == 0 { base.clone() } else { format!("({base} + {part}u)") };
            *last = TileCoord { part: Some((base, part)), ..TileCoord::text(text) };
        }
        TilePosition { coords, flat: None }
    }

    /// Returns an expression for the element of `v` at a position in `v`'s shape.
    pub(super) fn element(&mut self, v: Value, at: &TilePosition) -> String {
        if self.k.ty(v).is_scalar() {
            return self.scalar_name(v);
        }
        match self.plan.inline[v.index()] {
            Some(views::InlineKind::Pure(n)) => {
                self.add_work(self.parameters.operation * n as f64);
                let inst = self.k.inst(self.plan.defined[v.index()].expect("a pure value has a definition"));
                self.computed_element(inst, at)
            }
            Some(views::InlineKind::View) => {
                let inst = self.k.inst(self.plan.defined[v.index()].expect("a view has a definition"));
                let (of, index) = views::view_operand(self.k, inst);
                let at = self.operand_position(&index, at);
                self.element(of, &at)
            }
            Some(views::InlineKind::Fetch) => self.fetched_element(v, at),
            None => self.stored_element(v, at),
        }
    }
    /// Returns an expression for an element of a stored tile.
    fn stored_element(&mut self, v: Value, at: &TilePosition) -> String {
        let dtype = self.k.ty(v).dtype;
        match self.plan.tile_storage[v.index()] {
            TileStorage::Buffer(b) => self.get(dtype, b, at),
            TileStorage::Registers | TileStorage::Accumulators => {
                if let Some(i) = self.register_at(v, at) {
                    self.out.read_in_registers.insert(v);
                    return self.register_name(v, i);
                }
                match self.plan.copies[v.index()] {
                    Some(b) => self.get(dtype, b, at),
                    None => {
                        self.out.wanted.insert(v);
                        zero(dtype)
                    }
                }
            }
            TileStorage::None => unreachable!("{v} is read, so it has a home"),
        }
    }
    /// Returns the index of this thread's register that has the element; `None` if another thread may have it.
    fn register_at(&self, v: Value, at: &TilePosition) -> Option<usize> {
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
    /// Returns an expression for an element of a buffer, read as part of a vec4 where products can do so.
    pub(super) fn get(&mut self, dtype: DType, buffer: usize, at: &TilePosition) -> String {
        let (index, owner) = self.index(buffer, at);
        self.record_step_access(Memory::Buffer(buffer), owner, false);
        let outside = self.plan.buffers[buffer].outside;
        if self.product
            && let Some((base, part)) = self.buffer_vec4_index(buffer, at)
        {
            let mut first = TilePosition { coords: at.coords.clone(), flat: None };
            if let Some(along) = first.coords.last_mut()
                && let Some((base, _)) = along.part.take()
            {
                *along = TileCoord::text(base);
            }
            self.record_buffer_access(buffer, &first, VEC4_WIDTH, false);
            let name = self.read_buffer_vec4(&base);
            return from_word(dtype, &format!("{name}.{}", VEC4_COMPONENTS[part]));
        }
        self.record_buffer_access(buffer, at, 1, false);
        self.add_work(if outside { self.parameters.global } else { self.parameters.workgroup });
        if self.product && !outside {
            self.counts.product_words += self.trips;
        }
        let x = self.word(buffer, &index);
        match self.plan.buffers[buffer].cell {
            StorageCell::Word | StorageCell::Vec4 => from_word(dtype, &x),
            StorageCell::F32 => x,
            StorageCell::F16 => format!("f32({x})"),
        }
    }
    /// Records an access to a buffer for the coalescing report.
    fn record_buffer_access(&mut self, buffer: usize, at: &TilePosition, width: usize, write: bool) {
        if !self.written {
            return;
        }
        let strides = self.plan.buffers[buffer].strides.clone();
        let at = at.coords.iter().map(|c| c.text.clone()).zip(strides).collect();
        let bytes = self.plan.buffers[buffer].cell.bytes();
        self.record_access(Memory::Buffer(buffer), at, (width, bytes, usize::MAX), write);
    }
    /// Records an access for the coalescing report; `at` has coordinates and strides, `size` has the elements of a
    /// thread, the bytes of each, and the number of adjacent elements.
    pub(super) fn record_access(
        &mut self,
        of: Memory,
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
            || b.row_groups().is_some_and(|(_, words)| !words.is_multiple_of(VEC4_WIDTH))
            || b.swizzle().is_some_and(|s| !s.unit.is_multiple_of(VEC4_WIDTH))
        {
            return None;
        }
        let (base, part) = at.coords.last()?.part.clone()?;
        let mut coords = at.coords.clone();
        *coords.last_mut()? = TileCoord::text(base);
        Some((self.index(buffer, &TilePosition { coords, flat: None }).0, part))
    }
    /// Returns the name of a variable with the vec4 of workgroup memory at this index, and writes the read if it is
    /// new.
    fn read_buffer_vec4(&mut self, index: &str) -> String {
        if let Some((_, name)) = self.tiles.iter().find(|(i, _)| i == index) {
            return name.clone();
        }
        self.add_work(self.parameters.workgroup * self.parameters.vec4 / self.parameters.global);
        self.counts.product_words += VEC4_WIDTH as f64 * self.trips;
        let name = self.fresh("w");
        self.line(format!("let {name} = {}[({index}) / {VEC4_WIDTH}u];", StorageCell::Vec4.arena_name()));
        self.tiles.push((index.into(), name.clone()));
        name
    }
    /// Writes a statement that stores an element to a buffer.
    pub(super) fn put(&mut self, v: Value, buffer: usize, at: &TilePosition, x: &str) {
        self.put_word(self.k.ty(v).dtype, buffer, at, x);
    }
    /// Writes a statement that stores an element of type `dtype` to a buffer.
    pub(super) fn put_word(&mut self, dtype: DType, buffer: usize, at: &TilePosition, x: &str) {
        let (index, owner) = self.index(buffer, at);
        self.record_step_access(Memory::Buffer(buffer), owner, true);
        let outside = self.plan.buffers[buffer].outside;
        self.add_work(if outside { self.parameters.global } else { self.parameters.workgroup });
        self.record_buffer_access(buffer, at, 1, true);
        let to = self.word(buffer, &index);
        let cell = self.plan.buffers[buffer].cell;
        if cell == StorageCell::Vec4 {
            self.out.singles.insert(buffer);
        }
        let word = match cell {
            StorageCell::Word | StorageCell::Vec4 => to_word(dtype, x),
            StorageCell::F32 => x.to_string(),
            StorageCell::F16 => format!("f16({x})"),
        };
        self.line(format!("{to} = {word};"));
    }
    /// Writes a statement that stores four words as a vec4.
    pub(super) fn put_vec4(&mut self, buffer: usize, at: &TilePosition, index: &str, words: &[String]) {
        self.record_step_access(Memory::Buffer(buffer), None, true);
        self.record_buffer_access(buffer, at, VEC4_WIDTH, true);
        self.add_work(self.parameters.workgroup * self.parameters.vec4 / self.parameters.global);
        let (arena, ty) = (StorageCell::Vec4.arena_name(), StorageCell::Vec4.wgsl());
        self.line(format!("{arena}[({index}) / {VEC4_WIDTH}u] = {ty}({});", words.join(", ")));
    }
    /// Writes statements that store the registers of `from` to a buffer that has `to`'s shape.
    pub(super) fn put_registers(&mut self, to: Value, from: Value, buffer: usize) {
        let owner = self.owner_test(from);
        if let Some(test) = &owner {
            self.line(format!("if ({test}) {{"));
        }
        let (places, dtype) = (self.register_positions(from), self.k.ty(to).dtype);
        let mut i = 0;
        while i < places.len() {
            match self.buffer_vec4_index(buffer, &places[i]) {
                Some((index, 0)) => {
                    let words: Vec<String> =
                        (i..i + VEC4_WIDTH).map(|i| to_word(dtype, &self.register_name(from, i))).collect();
                    self.put_vec4(buffer, &places[i], &index, &words);
                    i += VEC4_WIDTH;
                }
                _ => {
                    let r = self.register_name(from, i);
                    self.put(to, buffer, &places[i], &r);
                    i += 1;
                }
            }
        }
        if owner.is_some() {
            self.line("}");
        }
    }
    /// Returns an expression for the word of a buffer's memory at an index.
    pub(super) fn word(&self, buffer: usize, index: &str) -> String {
        let b = &self.plan.buffers[buffer];
        match (b.outside, b.cell) {
            (true, _) => format!("scratch[own + {index}]"),
            (false, StorageCell::Vec4) => {
                format!("{}[({index}) / {VEC4_WIDTH}u][({index}) % {VEC4_WIDTH}u]", b.cell.arena_name())
            }
            (false, _) => format!("{}[{index}]", b.cell.arena_name()),
        }
    }
    /// Returns the index of a buffer's word at a position, and its owner if each thread accesses its own words only.
    fn index(&self, buffer: usize, at: &TilePosition) -> (String, Option<WordOwnership>) {
        let b = &self.plan.buffers[buffer];
        let base = format!("at_{}", b.name);
        let (index, owner) = match &at.flat {
            Some((e, shape)) if row_major(shape) == b.strides && b.row_groups().is_none() && b.swizzle().is_none() => {
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
    pub(super) fn axes_owner_test(&self, axes: &[Option<usize>]) -> Option<String> {
        let classes = || axes.iter().flatten().map(|&c| self.plan.layout.classes[c]);
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
    pub(super) fn computed_element(&mut self, inst: &Inst, at: &TilePosition) -> String {
        let ty = self.k.ty(inst.results[0]).clone();
        match &inst.op {
            Op::Scalar(op) => self.expression(*op, inst, at),
            Op::Valid { of, view, axis } => self.inside_test(*of, view, *axis, inst, &at.coords[*axis].text),
            Op::Structural(op) => match views::access(self.k, op, inst) {
                Access::Iota { axis } => {
                    let position = hide_constant(&at.coords[axis].text);
                    narrow_to_dtype(ty.dtype, &format!("{}({position})", wgsl_type(ty.dtype)))
                }
                access @ (Access::Cast | Access::Bitcast | Access::Powi(_)) => {
                    let (from, x) = (self.k.ty(inst.args[0]).dtype, self.element(inst.args[0], at));
                    self.convert_element(&access, from, ty.dtype, &x)
                }
                Access::Map(_) | Access::Flat => {
                    let (of, index) = views::view_operand(self.k, inst);
                    let at = self.operand_position(&index, at);
                    self.element(of, &at)
                }
                _ => unreachable!("`{}` is not made element by element", op.name()),
            },
            _ => unreachable!("not made element by element"),
        }
    }
    /// Returns the expression of a scalar operation on the operands' elements.
    pub(super) fn expression(&mut self, op: ScalarOp, inst: &Inst, at: &TilePosition) -> String {
        let result = self.k.ty(inst.results[0]).clone();
        self.out.helpers.extend(op.wgsl_helper());
        let open = op.row().operands.iter().position(|(_, t)| *t == pallas_ir::scalar::Ty::T).unwrap_or(0);
        let dtype = self.k.ty(inst.args[open]).dtype;
        let mut args = vec![];
        for (i, &v) in inst.args.iter().enumerate() {
            args.push(mask_counted_bits(op, i, dtype, self.broadcast_element(v, &result.shape, at)));
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        narrow_to_dtype(result.dtype, &op.wgsl(&args, wgsl_type(dtype)))
    }
    /// Returns an expression for an operand's element, where the operand's axes of extent 1 are broadcast to `shape`.
    pub(super) fn broadcast_element(&mut self, v: Value, shape: &[usize], at: &TilePosition) -> String {
        let own = &self.k.ty(v).shape;
        if own.is_empty() || own == shape {
            return self.element(v, at);
        }
        self.element(v, &position_before_broadcast(own, at))
    }
    /// Translates a position of a view to a position of the tile that it shows.
    pub(super) fn operand_position(&self, index: &[Index], at: &TilePosition) -> TilePosition {
        TilePosition { coords: index.iter().map(|i| operand_coord(i, &at.coords)).collect(), flat: None }
    }
}

/// Returns an expression for the offset of a position in a buffer.
fn buffer_offset(b: &Buffer, coords: &[TileCoord]) -> String {
    let (mut coords, mut strides) = (coords.to_vec(), b.strides.clone());
    if let (Some((rows, words)), [.., row, _]) = (b.row_groups(), &coords[..])
        && row.text != "0u"
    {
        coords.push(TileCoord::text(format!("({} / {rows}u)", row.text)));
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
        *column = TileCoord::text(format!("({inner} ^ ({group} % {period}u * {unit}u))"));
    }
    offset(&coords, &strides)
}
