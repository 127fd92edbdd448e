//! Text for one element of a value, at a position that its reader determines.
use super::emitter::Emit;
use super::position::{At, Coord, FOUR, PARTS, coordinate, moved, offset, stretch};
use crate::wgsl::place::layout::Along;
use crate::wgsl::place::matrices::Cell;
use crate::wgsl::place::{Buffer, Home, Swizzle, row_major, views};
use crate::wgsl::reach::Access as Reached;
use crate::wgsl::sync::{Memory, Owner};
use crate::wgsl::types::{at_run_time, counted, from_word, name, to_word, wrap, zero};
use pallas_ir::structural::Index;
use pallas_ir::{Access, DType, Inst, Op, ScalarOp, Value};

impl Emit<'_> {
    /// Returns the positions of the elements that a thread has in registers, in the order of registers.
    pub(super) fn positions(&self, v: Value) -> Vec<At> {
        let mut all = vec![vec![]];
        for a in 0..self.k.ty(v).shape.len() {
            let along = self.along(v, a);
            all = all
                .iter()
                .flat_map(|p| along.iter().map(move |c| [&p[..], std::slice::from_ref(c)].concat()))
                .collect();
        }
        all.into_iter().map(|coords| At { coords, flat: None }).collect()
    }
    /// Returns a thread's coordinates along an axis of a tile.
    pub(super) fn along(&self, v: Value, axis: usize) -> Vec<Coord> {
        let Some(c) = self.plan.layout.axes[v.index()][axis] else { return vec![Coord::text("0u")] };
        (0..self.plan.layout.classes[c].repeats()).map(|r| self.own(c, r)).collect()
    }
    /// Returns the coordinate of a thread's element `r` in a class of axes.
    pub(super) fn own(&self, c: usize, r: usize) -> Coord {
        let class = self.plan.layout.classes[c];
        let text = |r: usize| match (class.threads, class.distance(r)) {
            (1, r) => format!("{r}u"),
            (_, 0) => format!("c{c}"),
            (_, n) => format!("(c{c} + {n}u)"),
        };
        let part = (class.vector == FOUR).then(|| (text(r - r % FOUR), r % FOUR));
        Coord { text: text(r), own: Some((c, r)), part }
    }
    /// Returns the coordinate of a thread's element in a class, where the element's number is an expression.
    pub(super) fn nth(&self, c: usize, r: &str) -> Coord {
        let class = self.plan.layout.classes[c];
        Coord::text(match (class.threads, class.vector) {
            (1, _) => r.to_string(),
            (t, 1) => format!("(c{c} + ({r}) * {t}u)"),
            (t, v) => format!("(c{c} + ({r}) / {v}u * {}u + ({r}) % {v}u)", t * v),
        })
    }
    /// Returns the position of the element with row-major number `e` (a variable of the text) in a shape.
    pub(super) fn linear(&self, shape: &[usize]) -> At {
        let coords = (0..shape.len()).map(|a| Coord::text(coordinate(shape, a, "e"))).collect();
        At { coords, flat: Some(("e".into(), shape.to_vec())) }
    }

    /// Returns the position of component `part` of the vec4 with number `e` in a shape whose rows are whole vectors.
    pub(super) fn linear_fours(&self, shape: &[usize], part: usize) -> At {
        let mut vectors = shape.to_vec();
        vectors.last_mut().into_iter().for_each(|n| *n /= FOUR);
        let mut coords: Vec<Coord> = (0..shape.len()).map(|a| Coord::text(coordinate(&vectors, a, "e"))).collect();
        if let Some(last) = coords.last_mut().filter(|_| shape.last().is_some_and(|n| n.is_multiple_of(FOUR))) {
            let base = if last.text == "0u" { "0u".to_string() } else { format!("{FOUR}u * {}", last.text) };
            let text = if part == 0 { base.clone() } else { format!("({base} + {part}u)") };
            *last = Coord { part: Some((base, part)), ..Coord::text(text) };
        }
        At { coords, flat: None }
    }

    /// Returns an expression for the element of `v` at a position in `v`'s shape.
    pub(super) fn element(&mut self, v: Value, at: &At) -> String {
        if self.k.ty(v).is_scalar() {
            return self.scalar(v);
        }
        match self.plan.inline[v.index()] {
            Some(views::Inline::Pure(n)) => {
                self.pay(self.numbers.operation * n as f64);
                let inst = self.k.inst(self.plan.defined[v.index()].expect("a pure value has a definition"));
                self.computed(inst, at)
            }
            Some(views::Inline::View) => {
                let inst = self.k.inst(self.plan.defined[v.index()].expect("a view has a definition"));
                let (of, index) = views::view(self.k, inst);
                let at = self.moved(&index, at);
                self.element(of, &at)
            }
            Some(views::Inline::Fetch) => self.fetched(v, at),
            None => self.kept(v, at),
        }
    }
    /// Returns an expression for an element of a stored tile.
    fn kept(&mut self, v: Value, at: &At) -> String {
        let dtype = self.k.ty(v).dtype;
        match self.plan.homes[v.index()] {
            Home::Buffer(b) => self.get(dtype, b, at),
            Home::Registers | Home::Fragments => {
                if let Some(i) = self.register_at(v, at) {
                    self.out.held.insert(v);
                    return self.register(v, i);
                }
                match self.plan.copies[v.index()] {
                    Some(b) => self.get(dtype, b, at),
                    None => {
                        self.out.wanted.insert(v);
                        zero(dtype)
                    }
                }
            }
            Home::None => unreachable!("{v} is read, so it has a home"),
        }
    }
    /// Returns the index of this thread's register that has the element; `None` if another thread may have it.
    fn register_at(&self, v: Value, at: &At) -> Option<usize> {
        if !self.registers(v) {
            return None;
        }
        let mut i = 0;
        for (a, class) in self.plan.layout.axes[v.index()].iter().enumerate() {
            let Some(c) = *class else { continue };
            let (own, r) = at.coords[a].own?;
            if own != c {
                return None;
            }
            i = i * self.plan.layout.classes[c].repeats() + r;
        }
        Some(i)
    }
    /// Returns an expression for an element of a buffer, read as part of a vec4 where products can do so.
    pub(super) fn get(&mut self, dtype: DType, buffer: usize, at: &At) -> String {
        let (index, owner) = self.index(buffer, at);
        self.touch(Memory::Buffer(buffer), owner, false);
        let outside = self.plan.buffers[buffer].outside;
        if self.product
            && let Some((base, part)) = self.four_of(buffer, at)
        {
            let mut first = At { coords: at.coords.clone(), flat: None };
            if let Some(along) = first.coords.last_mut()
                && let Some((base, _)) = along.part.take()
            {
                *along = Coord::text(base);
            }
            self.reach_buffer(buffer, &first, FOUR, false);
            let name = self.tiles_at(&base);
            return from_word(dtype, &format!("{name}.{}", PARTS[part]));
        }
        self.reach_buffer(buffer, at, 1, false);
        self.pay(if outside { self.numbers.global } else { self.numbers.workgroup });
        if self.product && !outside {
            self.counts.product_words += self.trips;
        }
        let x = self.word(buffer, &index);
        match self.plan.buffers[buffer].cell {
            Cell::Word | Cell::Four => from_word(dtype, &x),
            Cell::Float => x,
            Cell::Half => format!("f32({x})"),
        }
    }
    /// Records an access to a buffer for the coalescing report.
    fn reach_buffer(&mut self, buffer: usize, at: &At, width: usize, write: bool) {
        if !self.written {
            return;
        }
        let strides = self.plan.buffers[buffer].strides.clone();
        let at = at.coords.iter().map(|c| c.text.clone()).zip(strides).collect();
        let bytes = self.plan.buffers[buffer].cell.bytes();
        self.reach(Memory::Buffer(buffer), at, (width, bytes, usize::MAX), write);
    }
    /// Records an access for the coalescing report; `at` has coordinates and strides, `size` has the elements of a
    /// thread, the bytes of each, and the number of adjacent elements.
    pub(super) fn reach(&mut self, of: Memory, at: Vec<(String, usize)>, size: (usize, usize, usize), write: bool) {
        let (threads, trips, product) = (self.strided.unwrap_or(usize::MAX), self.trips, self.product);
        let ((width, bytes, run), line) = (size, self.at_line);
        self.out.accesses.push(Reached { of, line, write, at, width, bytes, run, threads, trips, product });
    }
    /// Returns the index of the vec4 of workgroup memory that has an element, and its component; `None` if there is
    /// none.
    pub(super) fn four_of(&self, buffer: usize, at: &At) -> Option<(String, usize)> {
        let b = &self.plan.buffers[buffer];
        let Some((1, outer)) = b.strides.split_last().map(|(inner, outer)| (*inner, outer)) else { return None };
        if b.outside
            || b.cell != Cell::Four
            || !outer.iter().all(|s| s.is_multiple_of(FOUR))
            || b.groups().is_some_and(|(_, words)| !words.is_multiple_of(FOUR))
            || b.swizzle().is_some_and(|s| !s.unit.is_multiple_of(FOUR))
        {
            return None;
        }
        let (base, part) = at.coords.last()?.part.clone()?;
        let mut coords = at.coords.clone();
        *coords.last_mut()? = Coord::text(base);
        Some((self.index(buffer, &At { coords, flat: None }).0, part))
    }
    /// Returns the name of a variable with the vec4 of workgroup memory at this index, and writes the read if it is
    /// new.
    fn tiles_at(&mut self, index: &str) -> String {
        if let Some((_, name)) = self.tiles.iter().find(|(i, _)| i == index) {
            return name.clone();
        }
        self.pay(self.numbers.workgroup * self.numbers.four / self.numbers.global);
        self.counts.product_words += FOUR as f64 * self.trips;
        let name = self.fresh("w");
        self.line(format!("let {name} = {}[({index}) / {FOUR}u];", Cell::Four.arena()));
        self.tiles.push((index.into(), name.clone()));
        name
    }
    /// Writes a statement that stores an element to a buffer.
    pub(super) fn put(&mut self, v: Value, buffer: usize, at: &At, x: &str) {
        self.put_word(self.k.ty(v).dtype, buffer, at, x);
    }
    /// Writes a statement that stores an element of type `dtype` to a buffer.
    pub(super) fn put_word(&mut self, dtype: DType, buffer: usize, at: &At, x: &str) {
        let (index, owner) = self.index(buffer, at);
        self.touch(Memory::Buffer(buffer), owner, true);
        let outside = self.plan.buffers[buffer].outside;
        self.pay(if outside { self.numbers.global } else { self.numbers.workgroup });
        self.reach_buffer(buffer, at, 1, true);
        let to = self.word(buffer, &index);
        let cell = self.plan.buffers[buffer].cell;
        if cell == Cell::Four {
            self.out.singles.insert(buffer);
        }
        let word = match cell {
            Cell::Word | Cell::Four => to_word(dtype, x),
            Cell::Float => x.to_string(),
            Cell::Half => format!("f16({x})"),
        };
        self.line(format!("{to} = {word};"));
    }
    /// Writes a statement that stores four words as a vec4.
    pub(super) fn put_four(&mut self, buffer: usize, at: &At, index: &str, words: &[String]) {
        self.touch(Memory::Buffer(buffer), None, true);
        self.reach_buffer(buffer, at, FOUR, true);
        self.pay(self.numbers.workgroup * self.numbers.four / self.numbers.global);
        let (arena, ty) = (Cell::Four.arena(), Cell::Four.wgsl());
        self.line(format!("{arena}[({index}) / {FOUR}u] = {ty}({});", words.join(", ")));
    }
    /// Writes statements that store the registers of `from` to a buffer that has `to`'s shape.
    pub(super) fn put_registers(&mut self, to: Value, from: Value, buffer: usize) {
        let owner = self.owner(from);
        if let Some(test) = &owner {
            self.line(format!("if ({test}) {{"));
        }
        let (places, dtype) = (self.positions(from), self.k.ty(to).dtype);
        let mut i = 0;
        while i < places.len() {
            match self.four_of(buffer, &places[i]) {
                Some((index, 0)) => {
                    let words: Vec<String> = (i..i + FOUR).map(|i| to_word(dtype, &self.register(from, i))).collect();
                    self.put_four(buffer, &places[i], &index, &words);
                    i += FOUR;
                }
                _ => {
                    let r = self.register(from, i);
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
            (false, Cell::Four) => format!("{}[({index}) / {FOUR}u][({index}) % {FOUR}u]", b.cell.arena()),
            (false, _) => format!("{}[{index}]", b.cell.arena()),
        }
    }
    /// Returns the index of a buffer's word at a position, and its owner if each thread accesses its own words only.
    fn index(&self, buffer: usize, at: &At) -> (String, Option<Owner>) {
        let b = &self.plan.buffers[buffer];
        let base = format!("at_{}", b.name);
        let (index, owner) = match &at.flat {
            Some((e, shape)) if row_major(shape) == b.strides && b.groups().is_none() && b.swizzle().is_none() => {
                (e.clone(), (e == "e").then(|| Owner::Strides(shape.iter().product())))
            }
            _ => (distance(b, &at.coords), None),
        };
        (if index == "0u" { base } else { format!("{base} + {index}") }, owner)
    }
    /// Returns a test that only one of the threads with the same elements passes; `None` if no two threads have the
    /// same.
    pub(super) fn owner(&self, v: Value) -> Option<String> {
        self.owner_of(&self.plan.layout.axes[v.index()])
    }
    /// Returns a test that only one of the threads with the same elements passes, for axes with these classes; `None`
    /// if no two threads have the same.
    pub(super) fn owner_of(&self, axes: &[Option<usize>]) -> Option<String> {
        let classes = || axes.iter().flatten().map(|&c| self.plan.layout.classes[c]);
        let grid = classes().find(|c| c.along != Along::Each).map_or(self.plan.grid, |c| c.grid);
        let test = |along: Along| {
            let used = classes().find(|c| c.along == along).map_or(1, |c| c.threads);
            let (place, all) = self.direction(along, grid);
            (used < all).then(|| format!("{place} < {used}u"))
        };
        let tests: Vec<String> = [Along::Y, Along::X].into_iter().filter_map(test).collect();
        (!tests.is_empty()).then(|| tests.join(" && "))
    }

    /// Returns an expression for the element that a pure or elementwise instruction computes at a position.
    pub(super) fn computed(&mut self, inst: &Inst, at: &At) -> String {
        let ty = self.k.ty(inst.results[0]).clone();
        match &inst.op {
            Op::Scalar(op) => self.expression(*op, inst, at),
            Op::Valid { of, view, axis } => self.inside(*of, view, *axis, inst, &at.coords[*axis].text),
            Op::Structural(op) => match views::access(self.k, op, inst) {
                Access::Iota { axis } => {
                    let position = at_run_time(&at.coords[axis].text);
                    wrap(ty.dtype, &format!("{}({position})", name(ty.dtype)))
                }
                access @ (Access::Cast | Access::Bitcast | Access::Powi(_)) => {
                    let (from, x) = (self.k.ty(inst.args[0]).dtype, self.element(inst.args[0], at));
                    self.converted(&access, from, ty.dtype, &x)
                }
                Access::Map(_) | Access::Flat => {
                    let (of, index) = views::view(self.k, inst);
                    let at = self.moved(&index, at);
                    self.element(of, &at)
                }
                _ => unreachable!("`{}` is not made element by element", op.name()),
            },
            _ => unreachable!("not made element by element"),
        }
    }
    /// Returns the expression of a scalar operation on the operands' elements.
    pub(super) fn expression(&mut self, op: ScalarOp, inst: &Inst, at: &At) -> String {
        let result = self.k.ty(inst.results[0]).clone();
        self.out.helpers.extend(op.wgsl_helper());
        let open = op.row().operands.iter().position(|(_, t)| *t == pallas_ir::scalar::Ty::T).unwrap_or(0);
        let dtype = self.k.ty(inst.args[open]).dtype;
        let mut args = vec![];
        for (i, &v) in inst.args.iter().enumerate() {
            args.push(counted(op, i, dtype, self.stretched(v, &result.shape, at)));
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        wrap(result.dtype, &op.wgsl(&args, name(dtype)))
    }
    /// Returns an expression for an operand's element, where the operand's axes of extent 1 are broadcast to `shape`.
    pub(super) fn stretched(&mut self, v: Value, shape: &[usize], at: &At) -> String {
        let own = &self.k.ty(v).shape;
        if own.is_empty() || own == shape {
            return self.element(v, at);
        }
        self.element(v, &stretch(own, at))
    }
    /// Translates a position of a view to a position of the tile that it shows.
    pub(super) fn moved(&self, index: &[Index], at: &At) -> At {
        At { coords: index.iter().map(|i| moved(i, &at.coords)).collect(), flat: None }
    }
}

/// Returns an expression for the offset of a position in a buffer.
fn distance(b: &Buffer, coords: &[Coord]) -> String {
    let (mut coords, mut strides) = (coords.to_vec(), b.strides.clone());
    if let (Some((rows, words)), [.., row, _]) = (b.groups(), &coords[..])
        && row.text != "0u"
    {
        coords.push(Coord::text(format!("({} / {rows}u)", row.text)));
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
        *column = Coord::text(format!("({inner} ^ ({group} % {period}u * {unit}u))"));
    }
    offset(&coords, &strides)
}
