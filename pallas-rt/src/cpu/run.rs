//! Runs one program of a plan.
use super::Launch;
use super::gemm::{Matrix, Target, gemm};
use super::plan::{Plan, Step, is_product};
use super::strips::{Strip, fold_f32, slice, slice_mut, strip};
use super::transfer::{Placed, Tile};
use crate::interp::{Data, Datum, Fault, eval, walk};
use pallas_ir::{
    Access, DType, Dim, Inst, InstId, Literal, Loc, Op, OperandId, OperandKind, RegionId, ScalarOp, Slice,
    StructuralOp, Type, Value, View,
};
use std::cell::RefCell;

/// Memory that a thread keeps between programs.
#[derive(Default)]
struct Arena {
    /// In units of 64 bytes, for alignment.
    tiles: Vec<[u64; 8]>,
    pack: Vec<f32>,
    wide: [Vec<f32>; 2],
    splat: Vec<[u64; 8]>,
}
thread_local! {
    static ARENA: RefCell<Arena> = RefCell::default();
}

/// Elements of a strip when an operand is one value: it is spread over this many.
const STRIP: usize = 512;

/// Runs program `p` of the launch's grid, row-major.
pub(super) fn program(plan: &Plan, launch: &Launch<'_>, p: i64) -> Result<Vec<String>, Fault> {
    ARENA.with_borrow_mut(|arena| {
        let blocks = plan.arena_bytes.div_ceil(64).max(1);
        if arena.tiles.len() < blocks {
            arena.tiles.resize(blocks, [0; 8]);
        }
        let mut rest = p;
        let mut ids = vec![0; launch.grid.len()];
        for (id, n) in ids.iter_mut().zip(launch.grid).rev() {
            (*id, rest) = (rest % n, rest / n);
        }
        let base = arena.tiles.as_mut_ptr().cast::<u8>();
        let none = Tile { ptr: base, ld: 0 };
        let values = plan.kernel.values.len();
        let mut run =
            Run { plan, launch, ids, base, regs: vec![0; values], tiles: vec![none; values], arena, log: vec![] };
        run.region(plan.kernel.body)?;
        Ok(run.log)
    })
}

struct Run<'a> {
    plan: &'a Plan,
    launch: &'a Launch<'a>,
    ids: Vec<i64>,
    /// The arena's slots.
    base: *mut u8,
    /// Scalars, by value: their bits in the low end.
    regs: Vec<u64>,
    tiles: Vec<Tile>,
    arena: &'a mut Arena,
    log: Vec<String>,
}

impl<'a> Run<'a> {
    fn ty(&self, v: Value) -> &'a Type {
        self.plan.kernel.ty(v)
    }
    /// Rows and columns of a tile; a scalar is one by one.
    fn extents(&self, v: Value) -> (usize, usize) {
        match self.ty(v).shape.split_last() {
            None => (1, 1),
            Some((&cols, rows)) => (rows.iter().product(), cols),
        }
    }
    /// The slot of a tile.
    fn slot(&self, v: Value) -> Tile {
        // SAFETY: the plan's slots lie inside of the arena.
        Tile { ptr: unsafe { self.base.add(self.plan.slots[v.index()]) }, ld: self.extents(v).1 }
    }
    /// Where a value's elements are: its tile, or its register.
    fn at(&self, v: Value) -> Tile {
        if self.ty(v).is_scalar() {
            let reg: *const u64 = &self.regs[v.index()];
            return Tile { ptr: reg.cast_mut().cast(), ld: 1 };
        }
        self.tiles[v.index()]
    }
    /// Makes room for a result.
    fn define(&mut self, v: Value) -> Tile {
        if self.ty(v).is_scalar() {
            self.regs[v.index()] = 0;
            let reg: *mut u64 = &mut self.regs[v.index()];
            return Tile { ptr: reg.cast(), ld: 1 };
        }
        let slot = self.slot(v);
        self.tiles[v.index()] = slot;
        slot
    }
    fn int(&self, v: Value) -> i64 {
        Literal { dtype: self.ty(v).dtype, bits: self.regs[v.index()] }.as_i64()
    }
    fn set_int(&mut self, v: Value, x: i64) {
        self.regs[v.index()] = Literal::int(self.ty(v).dtype, x).bits;
    }

    fn region(&mut self, region: RegionId) -> Result<(), Fault> {
        let plan = self.plan;
        plan.kernel.region(region).insts.iter().try_for_each(|&i| self.inst(i))
    }
    fn inst(&mut self, id: InstId) -> Result<(), Fault> {
        let plan = self.plan;
        let (inst, step) = (plan.kernel.inst(id), &plan.steps[id.index()]);
        match (&inst.op, step) {
            (_, Step::Absorbed) => {}
            (_, Step::Strip(strip)) => self.elementwise(*strip, inst),
            (Op::Const(x), _) => self.regs[inst.results[0].index()] = x.bits,
            (Op::ProgramId(axis), _) => self.set_int(inst.results[0], self.ids[*axis]),
            (Op::NumPrograms(axis), _) => self.set_int(inst.results[0], self.launch.grid[*axis]),
            (Op::Extent(dim), _) => self.set_int(inst.results[0], self.launch.sizes[dim.index()]),
            (Op::Param(o), _) => {
                self.regs[inst.results[0].index()] = self.launch.params[o.index()].map_or(0, |x| x.bits)
            }
            (Op::Prefetch(o), _) => self.prefetch(*o, inst),
            (Op::Load { from, view, masked }, step) => {
                self.load(*from, view, *masked, matches!(step, Step::InPlace), inst)
            }
            (Op::Store { to, view, masked }, _) => self.store(*to, view, *masked, inst),
            (Op::Valid { of, view, axis }, _) => self.valid(*of, view, *axis, inst),
            (Op::Structural(_), Step::Gather(from)) => self.gather(from, inst),
            (Op::Structural(op), _) => self.structural(op, id, inst),
            (Op::If, _) => self.branch(inst)?,
            (Op::For { reverse }, _) => self.count(inst, *reverse, plan.kernel.loc(id))?,
            (Op::While, _) => self.repeat(inst)?,
            (Op::DebugPrint(label), _) => {
                let shown = walk::show(&self.datum(inst.args[0]));
                self.log.push(format!("{}: program {:?}: {label} = {shown}", plan.kernel.loc(id), self.ids));
            }
            (Op::DebugAssert(message), _) => self.assert(message, inst, plan.kernel.loc(id))?,
            (Op::Scalar(_), _) => unreachable!("planned as strips"),
        }
        Ok(())
    }

    fn fault(&self, code: &'static str, loc: Loc, message: String) -> Fault {
        let kernel = self.plan.kernel.name.clone();
        Fault { code, kernel, program: self.ids.clone(), loc, message, help: String::new() }
    }

    // ---- control flow

    fn branch(&mut self, inst: &Inst) -> Result<(), Fault> {
        let region = inst.regions[if self.int(inst.args[0]) != 0 { 0 } else { 1 }];
        self.region(region)?;
        self.assign(&inst.results, &self.plan.kernel.region(region).yields);
        Ok(())
    }
    fn count(&mut self, inst: &Inst, reverse: bool, loc: Loc) -> Result<(), Fault> {
        let (lo, hi, step) = (self.int(inst.args[0]), self.int(inst.args[1]), self.int(inst.args[2]));
        let trips = walk::trip_count(lo, hi, step).map_err(|m| self.fault("step", loc, m))?;
        let body = self.plan.kernel.region(inst.regions[0]);
        let (index, carried) = (body.params[0], &body.params[1..]);
        self.assign(carried, &inst.args[3..]);
        for k in 0..trips {
            let k = if reverse { trips - 1 - k } else { k };
            self.set_int(index, lo + k * step);
            self.region(inst.regions[0])?;
            self.assign(carried, &body.yields);
        }
        self.assign(&inst.results, carried);
        Ok(())
    }
    fn repeat(&mut self, inst: &Inst) -> Result<(), Fault> {
        let (test, body) = (self.plan.kernel.region(inst.regions[0]), self.plan.kernel.region(inst.regions[1]));
        self.assign(&test.params, &inst.args);
        loop {
            self.region(inst.regions[0])?;
            if self.int(test.yields[0]) == 0 {
                self.assign(&inst.results, &test.yields[1..]);
                return Ok(());
            }
            self.assign(&body.params, &test.yields[1..]);
            self.region(inst.regions[1])?;
            self.assign(&test.params, &body.yields);
        }
    }
    /// Copies values into others, all at once.
    fn assign(&mut self, to: &[Value], from: &[Value]) {
        // A source that is a target too (variables that changed places) is copied aside first.
        let crossed = from.iter().enumerate().any(|(i, f)| to.iter().enumerate().any(|(j, t)| i != j && f == t));
        if crossed {
            let aside: Vec<Datum> = from.iter().map(|&v| self.datum(v)).collect();
            to.iter().zip(&aside).for_each(|(&v, d)| self.put(v, &d.data));
            return;
        }
        for (&t, &f) in to.iter().zip(from) {
            if self.ty(f).is_scalar() {
                self.regs[t.index()] = self.regs[f.index()];
                continue;
            }
            let (source, target) = (self.at(f), self.slot(t));
            self.tiles[t.index()] = target;
            let ((rows, cols), e) = (self.extents(f), self.ty(f).dtype.bytes());
            if source.ptr != target.ptr {
                // SAFETY: both hold the tile; different tiles alive at once do not overlap.
                unsafe { copy_rows(source, target, rows, cols, e) };
            }
        }
    }

    // ---- memory

    /// The memory and the view's positions for an access.
    fn placed<'m>(&self, memory: &'m super::Memory, id: OperandId, view: &View, starts: &[Value]) -> Placed<'m> {
        let mut values = starts.iter().map(|&v| self.int(v));
        Placed::new(memory, view, &mut values, self.plan.kernel.operand(id).dtype.bytes())
    }
    fn memory(&self, id: OperandId) -> super::Memory {
        let operand = self.plan.kernel.operand(id);
        if operand.kind != OperandKind::Scratch {
            return self.launch.memory[id.index()].clone();
        }
        // SAFETY: the plan's scratch lies inside of the arena.
        super::Memory { ptr: unsafe { self.base.add(self.plan.scratch[id.index()]) }, shape: operand.block_shape() }
    }
    fn load(&mut self, from: OperandId, view: &View, masked: bool, refer: bool, inst: &Inst) {
        let (memory, result) = (self.memory(from), inst.results[0]);
        let (starts, rest) = inst.args.split_at(view.dynamic());
        let placed = self.placed(&memory, from, view, starts);
        if refer
            && !self.ty(result).is_scalar()
            && let Some(tile) = placed.refer()
        {
            self.tiles[result.index()] = tile;
            return;
        }
        let fill = crate::passes::lower::fill(&self.plan.kernel, from);
        let out = self.define(result);
        // SAFETY: the slot (or register) holds the view's elements.
        unsafe { placed.load(out.ptr, fill) };
        if masked {
            let (mask, other) = (self.at(rest[0]), self.at(rest[1]));
            let ((rows, cols), e) = (self.extents(result), self.ty(result).dtype.bytes());
            for i in 0..rows * cols {
                // SAFETY: the mask and the tile have `rows * cols` elements.
                unsafe {
                    if !*mask.ptr.cast::<bool>().add(i / cols * mask.ld + i % cols) {
                        std::ptr::copy_nonoverlapping(other.ptr, out.ptr.add(i * e), e);
                    }
                }
            }
        }
    }
    fn store(&mut self, to: OperandId, view: &View, masked: bool, inst: &Inst) {
        let memory = self.memory(to);
        let (starts, rest) = inst.args[1..].split_at(view.dynamic());
        let placed = self.placed(&memory, to, view, starts);
        let mask = masked.then(|| self.contiguous(rest[0]));
        let (tile, (_, cols)) = (self.at(inst.args[0]), self.extents(inst.args[0]));
        // SAFETY: tile and mask have the view's elements.
        unsafe { placed.store(tile, cols, mask.as_ref().map(|m| m.as_ptr())) };
    }
    /// A mask's elements in one piece.
    fn contiguous(&self, v: Value) -> Vec<bool> {
        match self.datum(v).data {
            Data::Bool(mask) => mask,
            _ => unreachable!("inference makes masks bool"),
        }
    }
    fn valid(&mut self, of: OperandId, view: &View, axis: usize, inst: &Inst) {
        let memory = self.memory(of);
        let inside = self.placed(&memory, of, view, &inst.args).valid(axis);
        self.put(inst.results[0], &Data::Bool(inside));
    }
    /// An index out of range reads the nearest element, an empty operand 0: no data reaches other memory.
    fn prefetch(&mut self, of: OperandId, inst: &Inst) {
        let (memory, e) = (&self.launch.memory[of.index()], self.plan.kernel.operand(of).dtype.bytes());
        let mut at = 0usize;
        let mut bits = [0u8; 8];
        if memory.shape.iter().all(|&n| n > 0) {
            for (&v, &n) in inst.args.iter().zip(&memory.shape) {
                at = at * n + self.int(v).clamp(0, n as i64 - 1) as usize;
            }
            // SAFETY: every index was clamped into its extent.
            unsafe { std::ptr::copy_nonoverlapping(memory.ptr.add(at * e), bits.as_mut_ptr(), e) };
        }
        self.regs[inst.results[0].index()] = u64::from_le_bytes(bits);
    }

    // ---- computation

    fn elementwise(&mut self, strip: Strip, inst: &Inst) {
        let result = inst.results[0];
        let out = self.define(result);
        let (rows, cols) = self.extents(result);
        let operands: Vec<Spread> = inst.args.iter().map(|&v| self.spread(v, result)).collect();
        let dtype = self.ty(result).dtype;
        let whole = operands.iter().all(|o| o.one || (o.rows == Rows::Own && o.tile.ld == cols && o.wide));
        // One long strip, or one per row.
        let (pieces, length) = if whole { (1, rows * cols) } else { (rows, cols) };
        let chunk = if operands.iter().any(|o| !o.wide || o.one) { length.min(STRIP) } else { length };
        let splat_blocks = (chunk * 8).div_ceil(64) * operands.len();
        if self.arena.splat.len() < splat_blocks {
            self.arena.splat.resize(splat_blocks, [0; 8]);
        }
        let splat = self.arena.splat.as_mut_ptr().cast::<u8>();
        // SAFETY: operands are readable in their extents, `out` is this result's slot, which overlaps no live tile, and
        // each splat has room for `chunk` elements.
        unsafe {
            let spread_of = |k: usize| splat.add(k * (chunk * 8).next_multiple_of(64));
            for (k, o) in operands.iter().enumerate().filter(|(_, o)| o.one) {
                fill(spread_of(k), o.tile.ptr, chunk, o.dtype.bytes());
            }
            for piece in 0..pieces {
                for (k, o) in operands.iter().enumerate().filter(|(_, o)| !o.one && !o.wide) {
                    let from = o.tile.ptr.add(o.rows.of(piece) * o.tile.ld * o.dtype.bytes());
                    fill(spread_of(k), from, chunk, o.dtype.bytes());
                }
                let mut at = 0;
                while at < length {
                    let n = (length - at).min(chunk);
                    let mut strips = [Slice::Bool(&[]); 3];
                    for (k, o) in operands.iter().enumerate() {
                        let from = if o.one || !o.wide {
                            spread_of(k)
                        } else {
                            o.tile.ptr.add((o.rows.of(piece) * o.tile.ld + at) * o.dtype.bytes())
                        };
                        strips[k] = slice(o.dtype, from, n);
                    }
                    let to = out.ptr.add((piece * length + at) * dtype.bytes());
                    strip(&strips[..operands.len()], slice_mut(dtype, to, n), n);
                    at += n;
                }
            }
        }
    }
    /// How an operand stretches over the result's rows and columns.
    fn spread(&self, v: Value, result: Value) -> Spread {
        let (ty, shape) = (self.ty(v), &self.ty(result).shape);
        let tile = self.at(v);
        let (_, cols) = self.extents(result);
        if ty.elements() == 1 {
            return Spread { tile, dtype: ty.dtype, rows: Rows::First, wide: false, one: true };
        }
        let own = &ty.shape;
        let wide = own[own.len() - 1] == cols;
        let (outer, leading) = (&shape[..shape.len() - 1], &own[..own.len() - 1]);
        let rows = if outer == leading {
            Rows::Own
        } else if leading.iter().all(|&n| n == 1) {
            Rows::First
        } else {
            let step = |i: usize| if leading[i] == 1 { 0 } else { leading[i + 1..].iter().product::<usize>() };
            let steps: Vec<usize> = (0..leading.len()).map(step).collect();
            let row = |p: Vec<usize>| p.iter().zip(&steps).map(|(i, s)| i * s).sum();
            Rows::Listed(crate::interp::datum::positions(outer).map(row).collect())
        };
        Spread { tile, dtype: ty.dtype, rows, wide, one: false }
    }

    fn gather(&mut self, from: &[(u8, u32)], inst: &Inst) {
        let out = self.define(inst.results[0]);
        let e = self.ty(inst.results[0]).dtype.bytes();
        let sources: Vec<(Tile, usize)> = inst.args.iter().map(|&v| (self.at(v), self.extents(v).1.max(1))).collect();
        for (i, &(k, at)) in from.iter().enumerate() {
            let ((tile, cols), at) = (sources[k as usize], at as usize);
            // SAFETY: positions come from the access form, which stays inside of the operands.
            unsafe {
                let from = tile.ptr.add((at / cols * tile.ld + at % cols) * e);
                std::ptr::copy_nonoverlapping(from, out.ptr.add(i * e), e);
            }
        }
    }

    fn structural(&mut self, op: &StructuralOp, id: InstId, inst: &Inst) {
        if is_product(&self.plan.kernel, id) {
            return self.product(op, inst);
        }
        let dims: Vec<Vec<Dim>> = inst.args.iter().map(|&v| self.ty(v).dims()).collect();
        let dims: Vec<&[Dim]> = dims.iter().map(|d| &d[..]).collect();
        match op.access(&dims) {
            // Only a single element spread everywhere is planned without a list.
            Access::Map(_) => {
                let (source, out, result) =
                    (self.at(inst.args[0]), self.define(inst.results[0]), self.ty(inst.results[0]));
                // SAFETY: the slot holds the result's elements.
                unsafe { fill(out.ptr, source.ptr, result.elements(), result.dtype.bytes()) };
            }
            Access::Flat => {
                let (source, out) = (self.at(inst.args[0]), self.define(inst.results[0]));
                let ((rows, cols), e) = (self.extents(inst.args[0]), self.ty(inst.args[0]).dtype.bytes());
                // SAFETY: both have as many elements; row-major positions agree.
                unsafe { copy_rows(source, Tile { ptr: out.ptr, ld: cols }, rows, cols, e) };
            }
            Access::Fold { op, axes } => self.fold(op, &axes, inst),
            _ => self.fallback(op, inst),
        }
    }

    /// Folds columns into a row strip by strip, rows by vector lanes; other forms as the interpreter does.
    fn fold(&mut self, op: ScalarOp, axes: &[usize], inst: &Inst) {
        let ty = self.ty(inst.args[0]);
        let (rows, cols) = self.extents(inst.args[0]);
        let last = ty.shape.len().wrapping_sub(1);
        let quick = ty.dtype == DType::F32 && fold_f32(op, &[]).is_some();
        if axes == [last] && quick {
            let (source, out) = (self.at(inst.args[0]), self.define(inst.results[0]));
            for r in 0..rows {
                // SAFETY: a row has `cols` elements, the result one element a row.
                unsafe {
                    let row = std::slice::from_raw_parts(source.ptr.cast::<f32>().add(r * source.ld), cols);
                    *out.ptr.cast::<f32>().add(r) = fold_f32(op, row).unwrap_or(f32::NAN);
                }
            }
            return;
        }
        if axes == [0] && ty.shape.len() == 2 {
            let (source, out) = (self.at(inst.args[0]), self.define(inst.results[0]));
            let (e, combine) = (ty.dtype.bytes(), strip(op, ty.dtype));
            let start = eval::neutral(op, ty.dtype).to_bytes();
            let blocks = (cols * e).div_ceil(64);
            if self.arena.splat.len() < blocks {
                self.arena.splat.resize(blocks, [0; 8]);
            }
            let aside = self.arena.splat.as_mut_ptr().cast::<u8>();
            // SAFETY: `aside` and the result hold a row; strips read `aside` and a source row and write the result.
            unsafe {
                fill(out.ptr, start.as_ptr(), cols, e);
                for r in 0..rows {
                    std::ptr::copy_nonoverlapping(out.ptr, aside, cols * e);
                    let row = source.ptr.add(r * source.ld * e);
                    combine(
                        &[slice(ty.dtype, aside, cols), slice(ty.dtype, row, cols)],
                        slice_mut(ty.dtype, out.ptr, cols),
                        cols,
                    );
                }
            }
            return;
        }
        let reduce = pallas_ir::structural::Reduce { op, axes: axes.to_vec() };
        self.fallback(&reduce.into(), inst);
    }

    /// Any structural operation by the interpreter's own code. Indices of data are clamped first.
    fn fallback(&mut self, op: &StructuralOp, inst: &Inst) {
        let mut args: Vec<Datum> = inst.args.iter().map(|&v| self.datum(v)).collect();
        let result = self.ty(inst.results[0]).clone();
        if let StructuralOp::TakeAlong(take) = op {
            let n = args[0].ty.shape[take.axis];
            if n == 0 {
                return self.put(inst.results[0], &Data::zeros(result.dtype, result.elements()));
            }
            if let Data::I32(index) = &mut args[1].data {
                index.iter_mut().for_each(|i| *i = (*i).clamp(0, n as i32 - 1));
            }
        }
        let refs: Vec<&Datum> = args.iter().collect();
        let value = eval::structural(op, &refs, result).expect("indices are clamped");
        self.put(inst.results[0], &value.data);
    }

    fn product(&mut self, op: &StructuralOp, inst: &Inst) {
        let StructuralOp::Dot(dot) = op else { unreachable!("a product is a dot") };
        let (i, j) = dot.contract[0];
        let out = self.define(inst.results[0]);
        let (m, n) = self.extents(inst.results[0]);
        let mut wide = std::mem::take(&mut self.arena.wide);
        let k = self.ty(inst.args[0]).shape[i];
        let a = self.matrix(inst.args[0], &mut wide[0]);
        let b = self.matrix(inst.args[1], &mut wide[1]);
        // A's columns and B's rows are contracted.
        let a = if i == 1 { a } else { Matrix { row: a.col, col: a.row, ..a } };
        let b = if j == 0 { b } else { Matrix { row: b.col, col: b.row, ..b } };
        let target = Target { ptr: out.ptr.cast(), ld: out.ld };
        // SAFETY: shapes were inferred; the result's slot overlaps no operand.
        unsafe { gemm([m, n, k], a, b, target, false, &mut self.arena.pack) };
        self.arena.wide = wide;
    }
    /// A tile as a matrix of f32; 16-bit floats are widened first, absorbed transposes looked through.
    fn matrix(&self, v: Value, wide: &mut Vec<f32>) -> Matrix {
        if let Some(source) = self.plan.absorbed(v) {
            let m = self.matrix(source, wide);
            return Matrix { row: m.col, col: m.row, ..m };
        }
        let tile = self.at(v);
        let ty = self.ty(v);
        if ty.dtype == DType::F32 {
            return Matrix { ptr: tile.ptr.cast(), row: tile.ld, col: 1 };
        }
        let (rows, cols) = self.extents(v);
        wide.clear();
        for r in 0..rows {
            // SAFETY: a row has `cols` elements.
            unsafe {
                let row = tile.ptr.add(r * tile.ld * 2);
                match slice(ty.dtype, row, cols) {
                    Slice::F16(x) => wide.extend(x.iter().map(|&x| pallas_ir::dtype::Half::wide(x))),
                    Slice::Bf16(x) => wide.extend(x.iter().map(|&x| pallas_ir::dtype::Half::wide(x))),
                    _ => unreachable!("planned for 16-bit floats"),
                }
            }
        }
        Matrix { ptr: wide.as_ptr(), row: cols, col: 1 }
    }

    fn assert(&mut self, message: &str, inst: &Inst, loc: Loc) -> Result<(), Fault> {
        let d = self.datum(inst.args[0]);
        match (0..d.data.len()).find(|&i| d.data.get(i).as_i64() == 0) {
            None => Ok(()),
            Some(i) => {
                let at = crate::interp::datum::unflatten(i, &d.ty.shape);
                Err(self.fault("assert", loc, format!("assertion failed at {at:?}: {message}")))
            }
        }
    }

    // ---- the interpreter's values

    fn datum(&self, v: Value) -> Datum {
        let (ty, tile, (rows, cols)) = (self.ty(v), self.at(v), self.extents(v));
        let e = ty.dtype.bytes();
        let mut bytes = vec![0; rows * cols * e];
        // SAFETY: `bytes` holds the tile.
        unsafe { copy_rows(tile, Tile { ptr: bytes.as_mut_ptr(), ld: cols }, rows, cols, e) };
        Datum::new(ty.clone(), Data::from_bytes(ty.dtype, &bytes))
    }
    fn put(&mut self, v: Value, data: &Data) {
        let bytes = data.to_bytes();
        let out = self.define(v);
        // SAFETY: the slot (or register) holds the value's bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.ptr, bytes.len()) };
    }
}

/// An operand of an elementwise loop.
struct Spread {
    tile: Tile,
    dtype: DType,
    rows: Rows,
    /// It has the result's columns; else one, which is repeated.
    wide: bool,
    /// It has one element.
    one: bool,
}
/// Which row of an operand belongs to a row of the result.
#[derive(PartialEq)]
enum Rows {
    Own,
    First,
    Listed(Vec<usize>),
}
impl Rows {
    fn of(&self, row: usize) -> usize {
        match self {
            Rows::Own => row,
            Rows::First => 0,
            Rows::Listed(rows) => rows[row],
        }
    }
}

/// Copies rows of `cols` elements of `e` bytes.
///
/// # Safety
/// Both tiles hold `rows` such rows.
unsafe fn copy_rows(from: Tile, to: Tile, rows: usize, cols: usize, e: usize) {
    // SAFETY: the caller's.
    unsafe {
        if from.ld == cols && to.ld == cols {
            return std::ptr::copy(from.ptr, to.ptr, rows * cols * e);
        }
        for r in 0..rows {
            std::ptr::copy(from.ptr.add(r * from.ld * e), to.ptr.add(r * to.ld * e), cols * e);
        }
    }
}

/// Writes one element `n` times.
///
/// # Safety
/// `to` has room for `n` elements of `e` bytes, aligned; `from` holds one.
unsafe fn fill(to: *mut u8, from: *const u8, n: usize, e: usize) {
    // SAFETY: the caller's; each width is the element's own.
    unsafe {
        match e {
            1 => std::slice::from_raw_parts_mut(to, n).fill(*from),
            2 => std::slice::from_raw_parts_mut(to.cast::<u16>(), n).fill(from.cast::<u16>().read_unaligned()),
            4 => std::slice::from_raw_parts_mut(to.cast::<u32>(), n).fill(from.cast::<u32>().read_unaligned()),
            _ => std::slice::from_raw_parts_mut(to.cast::<u64>(), n).fill(from.cast::<u64>().read_unaligned()),
        }
    }
}
