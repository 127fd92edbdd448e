//! The text of a shader, instruction by instruction.
use super::types::{HELPERS, cast, from_word, name, pack, to_word, unpack, wrap};
use super::{HEADER_WORDS, Home, arrays};
use pallas_ir::structural::{Index, Piece};
use pallas_ir::{
    Access, DType, Dim, Inst, InstId, Kernel, Literal, Op, OperandId, OperandKind, RegionId, ScalarOp, StructuralOp,
    Value, View,
};
use std::collections::BTreeSet;
use std::fmt::Write;

pub(super) struct Emitted {
    pub(super) text: String,
    pub(super) constants: Vec<u32>,
    pub(super) error_flag: bool,
}

struct Emit<'k> {
    k: &'k Kernel,
    homes: &'k [Option<Home>],
    scratches: &'k [Home],
    threads: u32,
    limit: Option<u32>,
    out: String,
    depth: usize,
    constants: Vec<u32>,
    helpers: BTreeSet<&'static str>,
    error_flag: bool,
    fresh: usize,
    /// Loop iterations of an invocation since the counter was last moved.
    spent: u64,
}

#[allow(clippy::too_many_arguments, reason = "the parts of one placement")]
pub(super) fn text(
    k: &Kernel,
    homes: &[Option<Home>],
    scratches: &[Home],
    threads: u32,
    workgroup_words: usize,
    scratch_words: usize,
    limit: Option<u32>,
) -> Emitted {
    let mut e = Emit {
        k,
        homes,
        scratches,
        threads,
        limit,
        out: String::new(),
        depth: 2,
        constants: vec![],
        helpers: BTreeSet::new(),
        error_flag: limit.is_some(),
        fresh: 0,
        spent: 0,
    };
    e.region(k.body);
    e.charge();
    let body = std::mem::take(&mut e.out);
    let text = e.module(&body, workgroup_words, scratch_words);
    Emitted { text, constants: e.constants, error_flag: e.error_flag }
}

impl Emit<'_> {
    // ---- the module around the body

    fn module(&self, body: &str, workgroup_words: usize, scratch_words: usize) -> String {
        let mut m = String::new();
        let mut put = |s: String| m.push_str(&(s + "\n"));
        put(format!("// kernel {}: one workgroup of {} threads a program", self.k.name, self.threads));
        let words = self.uniform_words().div_ceil(4).max(1);
        put(format!("struct Launch {{ words: array<vec4<u32>, {words}> }}"));
        put("@group(0) @binding(0) var<uniform> launch: Launch;".into());
        let bound = arrays(self.k);
        for (i, (id, written)) in bound.iter().enumerate() {
            let access = if *written { "read_write" } else { "read" };
            let word = if self.atomic(*id) { "atomic<u32>" } else { "u32" };
            let operand = self.k.operand(*id);
            put(format!(
                "@group(0) @binding({}) var<storage, {access}> {}: array<{word}>; // {} {}",
                i + 1,
                self.array(*id),
                operand.name,
                operand.dtype
            ));
        }
        let mut next = bound.len() + 1;
        if scratch_words > 0 {
            put(format!("@group(0) @binding({next}) var<storage, read_write> scratch: array<u32>;"));
            next += 1;
        }
        if self.error_flag {
            put(format!("@group(0) @binding({next}) var<storage, read_write> error_flag: array<atomic<u32>>;"));
            put("var<private> spent: u32;".into());
        }
        put(format!("var<workgroup> tiles: array<u32, {}>;", workgroup_words.max(1)));
        put("var<workgroup> agreed: u32;".into());
        put("fn word(i: u32) -> u32 { return launch.words[i / 4u][i % 4u]; }".into());
        put(HELPERS.into());
        self.helpers.iter().for_each(|h| put((*h).to_string()));
        put(format!("@compute @workgroup_size({})", self.threads));
        put("fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) thread: u32) {".into());
        if self.error_flag {
            // Private memory starts undefined where the driver's zeroing is off.
            put("    spent = 0u;".into());
        }
        put("    let local = group.x + groups.x * (group.y + groups.y * group.z);".into());
        put("    let program = word(0u) + local;".into());
        put("    if (local < word(2u) && program < word(1u)) {".into());
        put(format!("        let own = local * {scratch_words}u;"));
        let mut rest = "program".to_string();
        for axis in (0..self.k.grid.len()).rev() {
            put(format!("        let id{axis} = i32({rest} % max({}, 1u));", self.word(self.grid_word(axis))));
            rest = format!("({rest} / max({}, 1u))", self.word(self.grid_word(axis)));
        }
        put(body.trim_end().to_string());
        put("    }".into());
        put("}".into());
        m
    }
    fn grid_word(&self, axis: usize) -> usize {
        HEADER_WORDS + axis
    }
    fn dim_word(&self, dim: usize) -> usize {
        HEADER_WORDS + self.k.grid.len() + dim
    }
    fn param_word(&self, operand: OperandId) -> usize {
        HEADER_WORDS + self.k.grid.len() + self.k.dims.len() + operand.index()
    }
    fn constant_word(&self, i: usize) -> usize {
        HEADER_WORDS + self.k.grid.len() + self.k.dims.len() + self.k.operands.len() + i
    }
    fn uniform_words(&self) -> usize {
        self.constant_word(self.constants.len())
    }
    fn word(&self, i: usize) -> String {
        format!("word({i}u)")
    }
    fn array(&self, id: OperandId) -> String {
        // An aliased input is its output.
        let alias = self
            .k
            .operands
            .iter()
            .position(|o| matches!(o.kind, OperandKind::Output { alias: Some(a), .. } if a == id));
        let id = alias.map_or(id, |i| OperandId(i as u32));
        format!("array{}", id.0)
    }
    /// Narrow outputs share words among programs.
    fn atomic(&self, id: OperandId) -> bool {
        let o = self.k.operand(id);
        let output = matches!(o.kind, OperandKind::Output { .. })
            || self.k.operands.iter().any(|q| matches!(q.kind, OperandKind::Output { alias: Some(a), .. } if a == id));
        output && o.dtype.bytes() < 4
    }

    // ---- lines

    fn line(&mut self, text: impl AsRef<str>) {
        let pad = "    ".repeat(self.depth);
        for l in text.as_ref().lines() {
            writeln!(self.out, "{pad}{l}").expect("a String takes any text");
        }
    }
    fn fresh(&mut self, stem: &str) -> String {
        self.fresh += 1;
        format!("{stem}{}", self.fresh)
    }
    /// All threads stride over `n` elements, then meet.
    fn each(&mut self, n: usize, body: impl FnOnce(&mut Self)) {
        if n > 0 {
            self.line(format!("for (var e = thread; e < {n}u; e += {}u) {{", self.threads));
            self.depth += 1;
            body(self);
            self.depth -= 1;
            self.line("}");
            self.spent += n.div_ceil(self.threads as usize) as u64;
        }
        self.line("workgroupBarrier(); storageBarrier();");
    }
    /// Iterations per element of the surrounding `each`.
    fn inner(&mut self, per_element: usize, elements: usize) {
        self.spent += (per_element * elements.div_ceil(self.threads as usize)) as u64;
    }
    /// Moves the counter of loop iterations on drivers that stop silently.
    fn charge(&mut self) {
        if self.limit.is_some() && self.spent > 0 {
            let spent = self.spent;
            self.line(format!("spent += {spent}u;"));
        }
        if let Some(limit) = self.limit {
            self.line(format!("if (spent > {limit}u) {{ atomicMax(&error_flag[0], 1u); }}"));
        }
        self.spent = 0;
    }

    // ---- values

    fn slot(&self, home: Home, i: &str) -> String {
        match home {
            Home::Workgroup(at) => format!("tiles[{at}u + {i}]"),
            Home::Scratch(at) => format!("scratch[own + {at}u + {i}]"),
        }
    }
    fn home(&self, v: Value) -> Home {
        self.homes[v.index()].expect("a tile has a home")
    }
    fn scalar(&self, v: Value) -> String {
        format!("s{}", v.0)
    }
    /// The element of a value at a position of a tile.
    fn at(&self, v: Value, i: &str) -> String {
        let ty = self.k.ty(v);
        if ty.is_scalar() { self.scalar(v) } else { from_word(ty.dtype, &self.slot(self.home(v), i)) }
    }
    fn put(&mut self, v: Value, i: &str, x: &str) {
        let word = to_word(self.k.ty(v).dtype, x);
        let slot = self.slot(self.home(v), i);
        self.line(format!("{slot} = {word};"));
    }
    fn define(&mut self, v: Value, x: &str) {
        let ty = name(self.k.ty(v).dtype);
        let s = self.scalar(v);
        self.line(format!("let {s}: {ty} = {x};"));
    }
    /// A scalar that thread 0 reads from memory and all threads learn.
    fn agree(&mut self, v: Value, x: &str) {
        let dtype = self.k.ty(v).dtype;
        let word = to_word(dtype, x);
        self.line(format!("if (thread == 0u) {{ agreed = {word}; }}"));
        let learned = from_word(dtype, "workgroupUniformLoad(&agreed)");
        self.define(v, &learned);
    }
    fn literal(&mut self, x: Literal) -> String {
        match x.dtype {
            DType::Bool => (x.bits != 0).to_string(),
            d if name(d) == "f32" => {
                let value = x.as_f64() as f32;
                if value.is_finite()
                    && (value == 0.0 || value.is_normal())
                    && !(value == 0.0 && value.is_sign_negative())
                {
                    return format!("f32({value:?})");
                }
                let bits = value.to_bits();
                let i = self.constants.iter().position(|&b| b == bits).unwrap_or_else(|| {
                    self.constants.push(bits);
                    self.constants.len() - 1
                });
                format!("bitcast<f32>({})", self.word(self.constant_word(i)))
            }
            d if name(d) == "u32" => format!("{}u", x.as_i64() as u32),
            _ => match x.as_i64() as i32 {
                i32::MIN => "(-2147483647i - 1i)".into(),
                n => format!("i32({n})"),
            },
        }
    }

    /// The position in an operand of the element that stretches to position `e` of `shape`.
    fn stretched(&self, own: &[usize], shape: &[usize], e: &str) -> String {
        if own == shape {
            return e.to_string();
        }
        let mut terms = vec![];
        for a in 0..shape.len() {
            let step: usize = own[a + 1..].iter().product();
            if own[a] != 1 {
                terms.push(format!("{} * {step}u", coordinate(shape, a, e)));
            }
        }
        if terms.is_empty() { "0u".into() } else { format!("({})", terms.join(" + ")) }
    }

    // ---- instructions

    fn region(&mut self, region: RegionId) {
        for &i in &self.k.region(region).insts {
            self.inst(i);
        }
    }
    fn inst(&mut self, id: InstId) {
        let (inst, loc) = (self.k.inst(id), self.k.loc(id));
        if loc.line > 0 && !inst.results.iter().all(|&v| self.k.ty(v).is_scalar()) {
            self.line(format!("// line {}: {}", loc.line, describe(&inst.op)));
        }
        match &inst.op {
            Op::Const(x) => {
                let x = self.literal(*x);
                self.define(inst.results[0], &x);
            }
            Op::Scalar(op) => self.elementwise(*op, inst),
            Op::Structural(op) => self.structural(op, inst),
            Op::ProgramId(axis) => self.define(inst.results[0], &format!("id{axis}")),
            Op::NumPrograms(axis) => {
                let n = self.word(self.grid_word(*axis));
                self.define(inst.results[0], &format!("i32({n})"));
            }
            Op::Extent(dim) => {
                let n = self.word(self.dim_word(dim.index()));
                self.define(inst.results[0], &format!("i32({n})"));
            }
            Op::Param(o) => {
                let bits = self.word(self.param_word(*o));
                let x = unpack(self.k.operand(*o).dtype, &bits);
                self.define(inst.results[0], &x);
            }
            Op::Prefetch(o) => self.prefetch(*o, inst),
            Op::Load { from, view, masked } => self.load(*from, view, *masked, inst),
            Op::Store { to, view, masked } => self.store(*to, view, *masked, inst),
            Op::Valid { of, view, axis } => self.valid(*of, view, *axis, inst),
            Op::If => self.branch(inst),
            Op::For { reverse } => self.count(inst, *reverse),
            Op::While => self.repeat(inst),
            // The interpreter and the CPU print and check.
            Op::DebugPrint(_) | Op::DebugAssert(_) => {}
        }
    }

    fn elementwise(&mut self, op: ScalarOp, inst: &Inst) {
        let result = inst.results[0];
        let ty = self.k.ty(result).clone();
        let open = op.row().operands.iter().position(|(_, t)| *t == pallas_ir::scalar::Ty::T).unwrap_or(0);
        let dtype = self.k.ty(inst.args[open]).dtype;
        self.helpers.extend(op.wgsl_helper());
        let expression = |e: &mut Self, at: &str| {
            let args: Vec<String> = inst
                .args
                .iter()
                .map(|&v| {
                    let own = &e.k.ty(v).shape;
                    if own.is_empty() { e.scalar(v) } else { e.at(v, &e.stretched(own, &ty.shape, at)) }
                })
                .collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            wrap(ty.dtype, &op.wgsl(&args, name(dtype)))
        };
        if ty.is_scalar() {
            let x = expression(self, "");
            return self.define(result, &x);
        }
        self.each(ty.elements(), |e| {
            let x = expression(e, "e");
            e.put(result, "e", &x);
        });
    }

    fn structural(&mut self, op: &StructuralOp, inst: &Inst) {
        let result = inst.results[0];
        let ty = self.k.ty(result).clone();
        let n = ty.elements();
        let dims: Vec<Vec<Dim>> = inst.args.iter().map(|&v| self.k.ty(v).dims()).collect();
        let dims: Vec<&[Dim]> = dims.iter().map(|d| &d[..]).collect();
        let access = op.access(&dims);
        let own = |e: &Self, i: usize| e.k.ty(inst.args[i]).clone();
        // Scalars stay scalars.
        if ty.is_scalar() && inst.args.iter().all(|&v| self.k.ty(v).is_scalar()) {
            let (from, x) = (own(self, 0).dtype, self.scalar(inst.args[0]));
            let x = self.converted(&access, from, ty.dtype, &x);
            return self.define(result, &x);
        }
        if ty.is_scalar() {
            let x = self.at(inst.args[0], "0u");
            return self.agree(result, &x);
        }
        match access {
            Access::Map(pieces) => self.each(n, |e| {
                let (x, prefix) = e.mapped(&pieces, inst, &ty.shape);
                e.line(prefix);
                e.put(result, "e", &x);
            }),
            Access::Flat => self.each(n, |e| {
                let x = e.at(inst.args[0], "e");
                e.put(result, "e", &x);
            }),
            Access::Iota { axis } => self.each(n, |e| {
                let x = format!("{}({})", name(ty.dtype), coordinate(&ty.shape, axis, "e"));
                e.put(result, "e", &x);
            }),
            Access::Cast | Access::Bitcast | Access::Powi(_) => self.each(n, |e| {
                let (from, x) = (own(e, 0).dtype, e.at(inst.args[0], "e"));
                let x = e.converted(&access, from, ty.dtype, &x);
                e.put(result, "e", &x);
            }),
            Access::Take { axis } => self.each(n, |e| {
                let x = own(e, 0);
                let (step, extent) = (x.shape[axis + 1..].iter().product::<usize>(), x.shape[axis]);
                let index = e.at(inst.args[1], "e");
                let others: Vec<String> = (0..x.shape.len())
                    .filter(|&a| a != axis)
                    .map(|a| {
                        format!("{} * {}u", coordinate(&ty.shape, a, "e"), x.shape[a + 1..].iter().product::<usize>())
                    })
                    .collect();
                let base = if others.is_empty() { "0u".to_string() } else { others.join(" + ") };
                let at = format!("({base} + u32(clamp({index}, 0, {})) * {step}u)", extent.saturating_sub(1));
                let x = if extent == 0 { format!("{}(0)", name(ty.dtype)) } else { e.at(inst.args[0], &at) };
                e.put(result, "e", &x);
            }),
            Access::Contract { batch, contract } => self.contract(inst, &batch, &contract),
            Access::Fold { op, axes } => self.fold(op, &axes, inst),
            Access::Scan { op, axis, reverse } => self.scan(op, axis, reverse, inst),
            Access::Arg { max, axis } => self.arg(max, axis, inst),
        }
    }

    fn converted(&mut self, access: &Access, from: DType, to: DType, x: &str) -> String {
        match access {
            Access::Cast => cast(from, to, x),
            Access::Bitcast => unpack(to, &pack(from, x)),
            Access::Powi(exponent) => {
                let one = format!("{}(1)", name(to));
                let power = (0..exponent.unsigned_abs()).fold(String::new(), |p, _| {
                    if p.is_empty() { x.to_string() } else { wrap(to, &format!("({p} * {x})")) }
                });
                let power = if power.is_empty() { one.clone() } else { power };
                if *exponent < 0 { wrap(to, &format!("({one} / {power})")) } else { power }
            }
            _ => x.to_string(),
        }
    }

    /// The element of a [`Access::Map`] at `e`, and lines that must stand before it.
    fn mapped(&mut self, pieces: &[Piece], inst: &Inst, shape: &[usize]) -> (String, String) {
        let number = |d: &Dim| d.as_number().expect("sizes are numbers");
        let position = |e: &Self, p: &Piece| {
            let v = inst.args[p.operand];
            let own = e.k.ty(v).shape.clone();
            let term = |a: usize, i: &Index| {
                let step: usize = own[a + 1..].iter().product();
                let x = i
                    .axis
                    .map_or("0".into(), |r| format!("{} * i32({})", number(&i.stride), coordinate_signed(shape, r)));
                format!("u32({} + {x}) * {step}u", number(&i.offset))
            };
            let terms: Vec<String> = p.index.iter().enumerate().map(|(a, i)| term(a, i)).collect();
            let at = if terms.is_empty() { "0u".into() } else { format!("({})", terms.join(" + ")) };
            e.at(v, &at)
        };
        if let [only] = pieces {
            return (position(self, only), String::new());
        }
        let x = self.fresh("x");
        let mut lines = format!("var {x}: {};\n", name(self.k.ty(inst.results[0]).dtype));
        for (i, p) in pieces.iter().enumerate() {
            let bounds: Vec<String> = p
                .bounds
                .iter()
                .map(|(a, lo, hi)| {
                    let c = coordinate_signed(shape, *a);
                    format!("{c} >= {} && {c} < {}", number(lo), number(hi))
                })
                .collect();
            let test = if bounds.is_empty() { "true".to_string() } else { bounds.join(" && ") };
            let or = if i > 0 { "else " } else { "" };
            writeln!(lines, "{or}if ({test}) {{ {x} = {}; }}", position(self, p)).expect("text");
        }
        (x, lines)
    }

    fn contract(&mut self, inst: &Inst, batch: &[(usize, usize)], contract: &[(usize, usize)]) {
        let result = inst.results[0];
        let ty = self.k.ty(result).clone();
        let (a, b) = (self.k.ty(inst.args[0]).clone(), self.k.ty(inst.args[1]).clone());
        let free = |rank: usize, side: usize| -> Vec<usize> {
            let own = |p: &(usize, usize)| if side == 0 { p.0 } else { p.1 };
            (0..rank).filter(|i| !batch.iter().chain(contract).any(|p| own(p) == *i)).collect()
        };
        let (free_a, free_b) = (free(a.shape.len(), 0), free(b.shape.len(), 1));
        let inner: Vec<usize> = contract.iter().map(|p| a.shape[p.0]).collect();
        let k: usize = inner.iter().product();
        let step = |shape: &[usize], axis: usize| shape[axis + 1..].iter().product::<usize>();
        let base = |shape: &[usize], own: Vec<usize>, first: usize, free: &[usize]| {
            let batch_terms = own.iter().enumerate().map(|(r, &x)| (r, x));
            let terms: Vec<String> = batch_terms
                .chain(free.iter().enumerate().map(|(i, &x)| (first + i, x)))
                .map(|(r, x)| format!("{} * {}u", coordinate(&ty.shape, r, "e"), step(shape, x)))
                .collect();
            if terms.is_empty() { "0u".to_string() } else { terms.join(" + ") }
        };
        let base_a = base(&a.shape, batch.iter().map(|p| p.0).collect(), batch.len(), &free_a);
        let base_b = base(&b.shape, batch.iter().map(|p| p.1).collect(), batch.len() + free_a.len(), &free_b);
        let along = |shape: &[usize], axes: Vec<usize>| {
            let terms: Vec<String> = axes
                .iter()
                .enumerate()
                .map(|(i, &x)| format!("{} * {}u", coordinate(&inner, i, "k"), step(shape, x)))
                .collect();
            if terms.is_empty() { "0u".to_string() } else { terms.join(" + ") }
        };
        let along_a = along(&a.shape, contract.iter().map(|p| p.0).collect());
        let along_b = along(&b.shape, contract.iter().map(|p| p.1).collect());
        self.each(ty.elements(), |e| {
            let acc = name(ty.dtype);
            e.line(format!("let base_a = {base_a}; let base_b = {base_b}; var sum = {acc}(0);"));
            e.line(format!("for (var k = 0u; k < {k}u; k++) {{"));
            let x = cast(a.dtype, ty.dtype, &e.at(inst.args[0], &format!("(base_a + {along_a})")));
            let y = cast(b.dtype, ty.dtype, &e.at(inst.args[1], &format!("(base_b + {along_b})")));
            let next = match acc {
                "f32" if ty.dtype == DType::F32 => format!("fma({x}, {y}, sum)"),
                "bool" => format!("sum || ({x} && {y})"),
                _ => wrap(ty.dtype, &format!("(sum + {x} * {y})")),
            };
            e.line(format!("    sum = {next};"));
            e.line("}");
            e.put(result, "e", "sum");
        });
        self.inner(k, ty.elements());
    }

    /// `next` folded with `sum`.
    fn combine(&mut self, op: ScalarOp, dtype: DType, sum: &str, next: &str) -> String {
        self.helpers.extend(op.wgsl_helper());
        wrap(dtype, &op.wgsl(&[sum, next], name(dtype)))
    }
    fn fold(&mut self, op: ScalarOp, axes: &[usize], inst: &Inst) {
        let (result, x) = (inst.results[0], self.k.ty(inst.args[0]).clone());
        let ty = self.k.ty(result).clone();
        let inner: Vec<usize> = axes.iter().map(|&a| x.shape[a]).collect();
        let k: usize = inner.iter().product();
        let step = |a: usize| x.shape[a + 1..].iter().product::<usize>();
        let terms: Vec<String> = (0..x.shape.len())
            .filter(|a| !axes.contains(a))
            .map(|a| format!("{} * {}u", coordinate(&ty.shape, a, "e"), step(a)))
            .collect();
        let base = if terms.is_empty() { "0u".to_string() } else { terms.join(" + ") };
        let along: Vec<String> =
            axes.iter().enumerate().map(|(i, &a)| format!("{} * {}u", coordinate(&inner, i, "k"), step(a))).collect();
        let along = if along.is_empty() { "0u".to_string() } else { along.join(" + ") };
        let start = self.literal(crate::interp::eval::neutral(op, ty.dtype));
        self.each(ty.elements(), |e| {
            e.line(format!("let base = {base}; var sum = {start};"));
            let next = e.at(inst.args[0], &format!("(base + {along})"));
            let next = e.combine(op, ty.dtype, "sum", &next);
            e.line(format!("for (var k = 0u; k < {k}u; k++) {{ sum = {next}; }}"));
            e.put(result, "e", "sum");
        });
        self.inner(k, ty.elements());
    }
    /// The start of each line along an axis, for element `e` of the shape without that axis.
    fn lines(shape: &[usize], axis: usize) -> (usize, String) {
        let mut outer = shape.to_vec();
        outer[axis] = 1;
        let terms: Vec<String> = (0..shape.len())
            .filter(|&a| a != axis)
            .map(|a| format!("{} * {}u", coordinate(&outer, a, "e"), shape[a + 1..].iter().product::<usize>()))
            .collect();
        (outer.iter().product(), if terms.is_empty() { "0u".into() } else { terms.join(" + ") })
    }
    fn scan(&mut self, op: ScalarOp, axis: usize, reverse: bool, inst: &Inst) {
        let (result, x) = (inst.results[0], self.k.ty(inst.args[0]).clone());
        let (count, base) = Self::lines(&x.shape, axis);
        let (n, step) = (x.shape[axis], x.shape[axis + 1..].iter().product::<usize>());
        let start = self.literal(crate::interp::eval::neutral(op, x.dtype));
        self.each(if n == 0 { 0 } else { count }, |e| {
            let k = if reverse { format!("({n}u - 1u - k)") } else { "k".into() };
            e.line(format!("let base = {base}; var sum = {start};"));
            e.line(format!("for (var k = 0u; k < {n}u; k++) {{ let at = base + {k} * {step}u;"));
            let next = e.at(inst.args[0], "at");
            let next = e.combine(op, x.dtype, "sum", &next);
            e.line(format!("    sum = {next};"));
            e.put(result, "at", "sum");
            e.line("}");
        });
        self.inner(n, count);
    }
    fn arg(&mut self, max: bool, axis: usize, inst: &Inst) {
        let (result, x) = (inst.results[0], self.k.ty(inst.args[0]).clone());
        let (count, base) = Self::lines(&x.shape, axis);
        let (n, step) = (x.shape[axis], x.shape[axis + 1..].iter().product::<usize>());
        let sign = if max { ">" } else { "<" };
        let float = name(x.dtype) == "f32";
        self.each(count, |e| {
            e.line(format!("let base = {base}; var best = 0; var top = {};", e.at(inst.args[0], "base")));
            e.line(format!("for (var k = 1u; k < {n}u; k++) {{"));
            let next = e.at(inst.args[0], &format!("(base + k * {step}u)"));
            let wins = if float { "!is_nan_bits(top) && (is_nan_bits(y) || y SIGN top)" } else { "y SIGN top" }
                .replace("SIGN", sign);
            e.line(format!("    let y = {next}; if ({wins}) {{ best = i32(k); top = y; }}"));
            e.line("}");
            e.put(result, "e", "best");
        });
        self.inner(n, count);
    }

    // ---- memory

    /// Size of an array's dimension.
    fn extent(&self, id: OperandId, axis: usize) -> String {
        struct Text<'a, 'k>(&'a Emit<'k>);
        impl pallas_ir::dim::Fold for Text<'_, '_> {
            type Out = String;
            fn number(&mut self, n: i64) -> String {
                format!("i32({n})")
            }
            fn name(&mut self, name: &str) -> String {
                let dim = self.0.k.dims.iter().position(|d| d.name == name).expect("dimensions are declared");
                format!("i32({})", self.0.word(self.0.dim_word(dim)))
            }
            fn add(&mut self, a: String, b: String) -> String {
                format!("({a} + {b})")
            }
            fn mul(&mut self, a: String, b: String) -> String {
                format!("({a} * {b})")
            }
            fn cdiv(&mut self, a: String, b: String) -> String {
                format!("(({a} + {b} - 1) / {b})")
            }
            fn min(&mut self, a: String, b: String) -> String {
                format!("min({a}, {b})")
            }
            fn max(&mut self, a: String, b: String) -> String {
                format!("max({a}, {b})")
            }
        }
        self.k.operand(id).dims[axis].fold(&mut Text(self))
    }
    /// Lines that compute `inside` and `at` (element of the array) for element `e` of a view.
    fn locate(&self, id: OperandId, view: &View, starts: &[Value]) -> String {
        let sizes: Vec<usize> = view.axes.iter().map(|a| a.size).collect();
        let mut starts = starts.iter();
        let (mut lines, mut inside, mut at) = (String::new(), vec![], "0".to_string());
        for (a, axis) in view.axes.iter().enumerate() {
            let start = if axis.dynamic { starts.next().map_or("0".into(), |&v| self.scalar(v)) } else { "0".into() };
            let extent = self.extent(id, a);
            writeln!(
                lines,
                "let p{a} = {start} + {} + i32({}) * {};",
                axis.offset,
                coordinate(&sizes, a, "e"),
                axis.stride
            )
            .expect("text");
            inside.push(format!("p{a} >= 0 && p{a} < {extent}"));
            at = format!("({at} * {extent} + p{a})");
        }
        let inside = if inside.is_empty() { "true".to_string() } else { inside.join(" && ") };
        write!(lines, "let inside = {inside};\nlet at = u32({at});").expect("text");
        lines
    }
    /// The bits of element `at` of an array (or the word of a scratch buffer).
    fn fetch(&self, id: OperandId, at: &str) -> String {
        let o = self.k.operand(id);
        if o.kind == OperandKind::Scratch {
            return from_word(o.dtype, &self.slot(self.scratches[id.index()], at));
        }
        let array = self.array(id);
        let read =
            |i: String| if self.atomic(id) { format!("atomicLoad(&{array}[{i}])") } else { format!("{array}[{i}]") };
        match o.dtype.bytes() {
            4 => unpack(o.dtype, &read(at.to_string())),
            2 => unpack(o.dtype, &format!("(({} >> (16u * ({at} % 2u))) & 0xffffu)", read(format!("{at} / 2u")))),
            _ => unpack(o.dtype, &format!("(({} >> (8u * ({at} % 4u))) & 0xffu)", read(format!("{at} / 4u")))),
        }
    }
    fn prefetch(&mut self, of: OperandId, inst: &Inst) {
        let mut at = "0".to_string();
        let mut some = vec![];
        for (a, &v) in inst.args.iter().enumerate() {
            let n = self.extent(of, a);
            at = format!("({at} * {n} + clamp({}, 0, max({n} - 1, 0)))", self.scalar(v));
            some.push(format!("{n} > 0"));
        }
        let dtype = self.k.operand(of).dtype;
        let x = self.fetch(of, &format!("u32({at})"));
        let some = if some.is_empty() { "true".to_string() } else { some.join(" && ") };
        self.define(inst.results[0], &format!("select({}, {x}, {some})", zero(dtype)));
    }
    fn load(&mut self, from: OperandId, view: &View, masked: bool, inst: &Inst) {
        let result = inst.results[0];
        let ty = self.k.ty(result).clone();
        let (starts, rest) = inst.args.split_at(view.dynamic());
        let fill = self.literal(crate::passes::lower::fill(self.k, from));
        let located = self.locate(from, view, starts);
        let read = |e: &mut Self| {
            e.line(&located);
            let x = e.fetch(from, "at");
            e.line(format!("var x = {fill}; if (inside) {{ x = {x}; }}"));
            if masked {
                let (mask, other) = (e.at(rest[0], "e"), e.scalar(rest[1]));
                e.line(format!("if (!{mask}) {{ x = {other}; }}"));
            }
        };
        if ty.is_scalar() {
            self.line("if (thread == 0u) { let e = 0u;");
            read(self);
            self.line(format!("agreed = {}; }}", to_word(ty.dtype, "x")));
            return self.define(result, &from_word(ty.dtype, "workgroupUniformLoad(&agreed)"));
        }
        self.each(ty.elements(), |e| {
            read(e);
            e.put(result, "e", "x");
        });
    }
    fn store(&mut self, to: OperandId, view: &View, masked: bool, inst: &Inst) {
        let o = self.k.operand(to).clone();
        let (starts, rest) = inst.args[1..].split_at(view.dynamic());
        let located = self.locate(to, view, starts);
        let n = self.k.ty(inst.args[0]).elements();
        self.each(n, |e| {
            e.line(&located);
            let mask = if masked { format!(" && {}", e.at(rest[0], "e")) } else { String::new() };
            let x = e.at(inst.args[0], "e");
            let write = if o.kind == OperandKind::Scratch {
                format!("{} = {};", e.slot(e.scratches[to.index()], "at"), to_word(o.dtype, &x))
            } else {
                let array = e.array(to);
                let bits = pack(o.dtype, &x);
                match o.dtype.bytes() {
                    4 => format!("{array}[at] = {bits};"),
                    b => {
                        let (per, width) = (4 / b, 8 * b);
                        let mask = (1u64 << width) - 1;
                        format!(
                            "let shift = {width}u * (at % {per}u);\nlet bits = {bits};\n\
                             atomicAnd(&{array}[at / {per}u], ~({mask}u << shift));\n\
                             atomicOr(&{array}[at / {per}u], bits << shift);"
                        )
                    }
                }
            };
            e.line(format!("if (inside{mask}) {{\n{write}\n}}"));
        });
    }
    fn valid(&mut self, of: OperandId, view: &View, axis: usize, inst: &Inst) {
        let kept: Vec<usize> = (0..view.axes.len()).filter(|&a| view.axes[a].kept).collect();
        let a = kept[axis];
        let before = view.axes[..a].iter().filter(|x| x.dynamic).count();
        let start = if view.axes[a].dynamic { self.scalar(inst.args[before]) } else { "0".into() };
        let (extent, v) = (self.extent(of, a), view.axes[a]);
        self.each(v.size, |e| {
            e.line(format!("let p = {start} + {} + i32(e) * {};", v.offset, v.stride));
            e.put(inst.results[0], "e", &format!("(p >= 0 && p < {extent})"));
        });
    }

    // ---- control flow

    fn branch(&mut self, inst: &Inst) {
        self.charge();
        self.declare(&inst.results);
        self.line(format!("if ({}) {{", self.scalar(inst.args[0])));
        for (i, &r) in inst.regions.iter().enumerate() {
            if i == 1 {
                self.line("} else {");
            }
            self.depth += 1;
            self.region(r);
            self.assign(&inst.results, &self.k.region(r).yields);
            self.charge();
            self.depth -= 1;
        }
        self.line("}");
    }
    fn count(&mut self, inst: &Inst, reverse: bool) {
        self.charge();
        let body = self.k.region(inst.regions[0]);
        let (index, carried) = (body.params[0], &body.params[1..]);
        let [lo, hi, step] = [0, 1, 2].map(|i| self.scalar(inst.args[i]));
        self.declare(carried);
        self.assign(carried, &inst.args[3..]);
        let k = self.fresh("k");
        self.line(format!("let trips{k} = (max({hi} - {lo}, 0) + {step} - 1) / max({step}, 1);"));
        let stop = if self.error_flag && self.limit.is_some() {
            self.limit.map(|l| format!(" && spent <= {l}u"))
        } else {
            None
        };
        self.line(format!("for (var {k} = 0; {k} < trips{k}{}; {k}++) {{", stop.unwrap_or_default()));
        self.depth += 1;
        self.spent += 1;
        let at = if reverse { format!("(trips{k} - 1 - {k})") } else { k.clone() };
        self.define(index, &format!("{lo} + {at} * {step}"));
        self.region(inst.regions[0]);
        self.assign(carried, &body.yields);
        self.charge();
        self.depth -= 1;
        self.line("}");
        self.declare(&inst.results);
        self.assign(&inst.results, carried);
    }
    fn repeat(&mut self, inst: &Inst) {
        self.charge();
        let (test, body) = (self.k.region(inst.regions[0]), self.k.region(inst.regions[1]));
        self.declare(&test.params);
        self.declare(&inst.results);
        self.assign(&test.params, &inst.args);
        self.line("loop {");
        self.depth += 1;
        self.spent += 1;
        self.region(inst.regions[0]);
        let stop = self.limit.map_or(String::new(), |l| format!(" || spent > {l}u"));
        self.line(format!("if (!{}{stop}) {{", self.scalar(test.yields[0])));
        self.depth += 1;
        self.assign(&inst.results, &test.yields[1..]);
        self.line("break;");
        self.depth -= 1;
        self.line("}");
        self.declare(&body.params);
        self.assign(&body.params, &test.yields[1..]);
        self.region(inst.regions[1]);
        self.assign(&test.params, &body.yields);
        self.charge();
        self.depth -= 1;
        self.line("}");
    }
    fn declare(&mut self, values: &[Value]) {
        for &v in values.iter().filter(|&&v| self.k.ty(v).is_scalar()) {
            let (s, ty) = (self.scalar(v), name(self.k.ty(v).dtype));
            self.line(format!("var {s}: {ty};"));
        }
    }
    /// Copies values into others, all at once: sources that are targets too are read before anything is written.
    fn assign(&mut self, to: &[Value], from: &[Value]) {
        let scalars: Vec<(Value, Value)> =
            to.iter().copied().zip(from.iter().copied()).filter(|(t, f)| t != f && self.k.ty(*t).is_scalar()).collect();
        let aside: Vec<String> = scalars
            .iter()
            .map(|(_, f)| {
                let (t, x) = (self.fresh("t"), self.scalar(*f));
                self.line(format!("let {t} = {x};"));
                t
            })
            .collect();
        for ((t, _), x) in scalars.iter().zip(aside) {
            let t = self.scalar(*t);
            self.line(format!("{t} = {x};"));
        }
        let tiles: Vec<(Value, Value)> = to
            .iter()
            .copied()
            .zip(from.iter().copied())
            .filter(|(t, f)| t != f && !self.k.ty(*t).is_scalar() && self.homes[t.index()] != self.homes[f.index()])
            .collect();
        // Element by element each thread reads all sources, then writes all targets: tiles of one shape that changed
        // places are exchanged safely, since a thread owns its positions.
        let mut left = tiles;
        while let Some(&(first, _)) = left.first() {
            let shape = self.k.ty(first).shape.clone();
            let (same, rest): (Vec<_>, Vec<_>) = left.iter().partition(|(t, _)| self.k.ty(*t).shape == shape);
            left = rest;
            let words: Vec<(Home, Home)> = same.iter().map(|(t, f)| (self.home(*t), self.home(*f))).collect();
            self.each(shape.iter().product(), |e| {
                for (i, (_, f)) in words.iter().enumerate() {
                    let x = e.slot(*f, "e");
                    e.line(format!("let w{i} = {x};"));
                }
                for (i, (t, _)) in words.iter().enumerate() {
                    let x = e.slot(*t, "e");
                    e.line(format!("{x} = w{i};"));
                }
            });
        }
    }
}

/// Coordinate along an axis of row-major position `e`.
fn coordinate(shape: &[usize], axis: usize, e: &str) -> String {
    let step: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    let scaled = if step == 1 { e.to_string() } else { format!("({e} / {}u)", step.max(1)) };
    if outer == 1 { scaled } else { format!("({scaled} % {}u)", shape[axis].max(1)) }
}
fn coordinate_signed(shape: &[usize], axis: usize) -> String {
    format!("i32({})", coordinate(shape, axis, "e"))
}
fn zero(dtype: DType) -> String {
    if dtype == DType::Bool { "false".into() } else { format!("{}(0)", name(dtype)) }
}
fn describe(op: &Op) -> String {
    match op {
        Op::Scalar(op) => op.to_string(),
        Op::Structural(op) => op.name().to_string(),
        Op::Load { .. } => "load".into(),
        Op::Store { .. } => "store".into(),
        Op::Valid { .. } => "valid".into(),
        Op::If => "if".into(),
        Op::For { .. } => "for".into(),
        Op::While => "while".into(),
        _ => String::new(),
    }
}
