//! Runs programs of a plan.
//!
//! [`memory`] loads and stores; [`chain`] elementwise loops, [`native`] the same in machine code, [`rolled`] turns of
//! loops too; [`shape`] reductions and moved elements; [`indexed`] windows at positions given by data, [`pages`] those that products read; [`product`] contractions,
//! [`ends`] what arrays that end lack of them;
//! [`nest`] convolutions and windows, in the order in memory that [`layout`] finds; [`sort`] sorted lines. This file holds a thread's state and
//! control flow.
mod chain;
mod ends;
#[cfg(guarded)]
pub(super) mod guard;
mod indexed;
mod layout;
mod matrices;
mod memory;
mod native;
mod nest;
mod pages;
mod product;
mod rolled;
mod room;
mod shape;
mod sort;
mod summed;
mod sweep;
mod weave;

pub(super) use memory::element;
use room::{Aligned, room};

use super::jit::{Form, Place};
use super::plan::{
    Plan,
    step::{Block, Fixed, Step},
};
use super::strips::{slice, slice_mut};
use super::tile::{self, MAX_RANK, Tile};
use super::{Launch, Outcome, Stop, gemm::Packing};
use crate::interp::{Data, Datum, Fault, walk};
use pallas_ir::{DType, Literal, Loc, OperandKind, Type, Value};
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

/// Buffers that a thread keeps between launches.
#[derive(Default)]
struct Buffers {
    arena: Vec<Aligned>,
    strips: Vec<Aligned>,
    /// Memory of the operands and results of chains.
    reaches: Vec<chain::Reaches>,
    places: Vec<Place>,
    forms: Vec<Form>,
    lies: Vec<Option<native::Lie>>,
    spread: Vec<native::Spread>,
    bound: Vec<weave::Bound>,
    /// Places of woven rows.
    woven: Vec<Place>,
    /// Operands of a product in another order, and its result before it is rounded.
    operands: [Vec<Aligned>; 3],
    /// Operands of a product in another type.
    wide: [Vec<Aligned>; 2],
    packing: Packing<f32>,
    /// Parts of the matrices of a convolution.
    parts: matrices::ProductBuffers<f32>,
    int8: Packing<i32>,
    /// Right sides of the products of a loop.
    fixed: Vec<Aligned>,
    pages: Vec<pages::Kept>,
    /// Tiles in place that go on behind the array's end.
    ends: Vec<ends::End>,
}
thread_local! {
    static BUFFERS: Cell<Option<Box<Buffers>>> = const { Cell::new(None) };
}

/// Bytes of an array whose parts are out of the cache before anybody reads them.
const LARGE: usize = 8 << 20;

/// Addresses that differ by a multiple of this are easily confused: a load waits for a store to another array.
const PAGE: usize = 4096;

/// The first place at least half a page away from where large arrays begin, modulo pages.
fn apart(start: *mut u8) -> *mut u8 {
    start.wrapping_add((start as usize).wrapping_neg() % PAGE + PAGE / 2)
}

/// Runs these programs of the launch's grid, row-major. Any may fail: an assertion, a loop whose step is not positive.
pub(super) fn programs(
    plan: &Plan,
    states: &States,
    launch: &Launch<'_>,
    programs: impl Iterator<Item = i64>,
    outcome: &Outcome,
) {
    let mut programs = programs.peekable();
    let Some(&first) = programs.peek() else { return };
    // Also after a panic: pending non-temporal stores would otherwise reach memory that another owner has by then.
    let _settled = tile::Settled;
    // Taken, not borrowed: a program that waits for the pool may find itself running another launch.
    let mut buffers = BUFFERS.take().unwrap_or_default();
    buffers.forget_pages();
    buffers.ends.clear();
    let arena = match room(&mut buffers.arena, plan.arena_bytes + 2 * PAGE) {
        Ok(start) => apart(start),
        Err(stop) => return outcome.failed(first, stop),
    };
    let mut state = states.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
    if state.arena.is_null() {
        state.prepare(plan, launch);
    }
    state.place(plan, launch, arena);
    let mut run = Run { plan, launch, state, buffers: &mut buffers, log: vec![] };
    for p in programs {
        if !outcome.wants(p) {
            continue;
        }
        run.enter(p);
        let result = run.block(&plan.body);
        if !run.log.is_empty() {
            outcome.printed(p, std::mem::take(&mut run.log));
        }
        if let Err(stop) = result {
            // Results that the failed program has redirected refer to memory of this launch.
            run.state.aimed.fill(false);
            run.state.operands.iter_mut().for_each(|operand| operand.is_empty = false);
            outcome.failed(p, stop);
        }
    }
    // A process can have some tens of thousands of mappings only.
    #[cfg(guarded)]
    run.state.guards.clear();
    states.lock().unwrap_or_else(PoisonError::into_inner).push(run.state);
    BUFFERS.set(Some(buffers));
}

/// Converts a `bool` from outside to 0 or 1.
fn truth(x: Literal) -> Literal {
    if x.dtype == DType::Bool { Literal::bool(x.bits != 0) } else { x }
}

/// States that no thread is using, kept for the next launch with equal sizes and grid.
pub(super) type States = Mutex<Vec<State>>;

/// State of a thread that runs programs of a launch; much of it is reused by the next launch.
#[derive(Default)]
pub(super) struct State {
    /// Index of the program along each axis.
    ids: Vec<i64>,
    /// Memory of the operands, by operand.
    operands: Vec<Operand>,
    /// The memory of each value.
    tiles: Vec<Tile>,
    /// Each value's own memory: its slot, or the scalar's cell.
    homes: Vec<Tile>,
    /// True if the next definition of a value keeps the memory assigned to it.
    aimed: Vec<bool>,
    /// Scalars.
    cells: Vec<u64>,
    tables: Vec<Vec<u64>>,
    /// The start of the arena; null before the first launch.
    arena: *mut u8,
    #[cfg(guarded)]
    guards: Vec<guard::Guarded>,
}

// SAFETY: pointers to arenas and operands are resolved anew before each launch; the others point to the state's own
// vectors.
unsafe impl Send for State {}

/// An operand's memory and extents.
#[derive(Default)]
struct Operand {
    start: *mut u8,
    shape: Vec<usize>,
    strides: [isize; MAX_RANK],
    /// Bytes of an element.
    bytes: usize,
    /// True if parts of it are out of the cache before anybody reads them.
    is_large: bool,
    /// The memory of scratch, which may lie elsewhere for a while.
    home: *mut u8,
    /// True for scratch whose elements the next product sets.
    is_empty: bool,
}

impl State {
    /// Computes everything that depends on sizes and grid.
    fn prepare(&mut self, plan: &Plan, launch: &Launch<'_>) {
        let kernel = &plan.kernel;
        self.ids = vec![0; launch.grid.len()];
        self.operands.resize_with(kernel.operands.len(), Operand::default);
        for (own, declared) in self.operands.iter_mut().zip(&kernel.operands) {
            own.bytes = declared.dtype.bytes();
        }
        self.cells = vec![0; kernel.values.len()];
        self.aimed = vec![false; kernel.values.len()];
        for &(v, ref fixed) in &plan.fixed {
            let int = |x: i64| Literal::int(kernel.ty(v).dtype, x).bits;
            self.cells[v.index()] = match *fixed {
                Fixed::Constant(x) => truth(x).bits,
                Fixed::Programs(axis) => int(launch.grid[axis]),
                Fixed::Steps(axis) => int(launch.steps[axis]),
                Fixed::Extent(dim) => int(launch.sizes[dim.index()]),
            };
        }
        let tables = plan.tables.iter().map(|&(dtype, count)| {
            let mut bytes: Vec<u8> = (0..count).flat_map(|i| Literal::int(dtype, i as i64).to_bytes()).collect();
            bytes.resize(bytes.len().next_multiple_of(8).max(8), 0);
            bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect()
        });
        self.tables = tables.collect();
    }

    /// Sets the memory and parameters of a launch. Slots are resolved anew only if the arena has moved.
    fn place(&mut self, plan: &Plan, launch: &Launch<'_>, arena: *mut u8) {
        #[cfg(guarded)]
        self.guards.clear();
        if self.arena != arena || cfg!(guarded) {
            self.arena = arena;
            self.homes = (0..self.cells.len()).map(|v| self.home(plan, v)).collect();
            self.tiles.clone_from(&self.homes);
        }
        for (i, declared) in plan.kernel.operands.iter().enumerate() {
            let own = &mut self.operands[i];
            let shape = (declared.kind != OperandKind::Scratch).then(|| launch.memory[i].shape);
            let is_new = own.shape.is_empty() || shape.is_some_and(|shape| own.shape != shape);
            if is_new {
                own.shape = shape.map_or_else(|| declared.block_shape(), <[usize]>::to_vec);
            }
            // Scratch may have lain elsewhere.
            if is_new || shape.is_none() {
                own.strides = Tile::contiguous(own.start, &own.shape).strides;
            }
            let bytes = own.bytes * own.shape.iter().product::<usize>();
            own.is_large = bytes >= LARGE;
            let start = match shape {
                Some(_) => launch.memory[i].ptr,
                None => self.own(plan.scratch[i], bytes),
            };
            let own = &mut self.operands[i];
            (own.start, own.home, own.is_empty) = (start, start, false);
        }
        for &(v, o) in &plan.params {
            self.cells[v.index()] = launch.params[o.index()].map_or(0, |x| truth(x).bits);
        }
    }

    fn home(&mut self, plan: &Plan, v: usize) -> Tile {
        let ty = &plan.kernel.values[v];
        match plan.slots[v] {
            Some(slot) => Tile::contiguous(self.own(slot, ty.bytes()), &ty.shape),
            // SAFETY: one cell a value.
            None => Tile { start: unsafe { self.cells.as_mut_ptr().add(v) }.cast(), strides: [0; MAX_RANK] },
        }
    }

    /// Returns memory of this many bytes in the arena; a mapping of their own where memory is guarded.
    #[allow(unused_variables, reason = "the arena has room for the bytes, and a mapping needs no place")]
    fn own(&mut self, place: usize, bytes: usize) -> *mut u8 {
        #[cfg(guarded)]
        {
            let own = guard::Guarded::new(bytes);
            let start = own.start;
            self.guards.push(own);
            start
        }
        // SAFETY: slots and scratch are inside of the arena.
        #[cfg(not(guarded))]
        unsafe {
            self.arena.add(place)
        }
    }
}

/// The execution of a program.
struct Run<'a> {
    plan: &'a Plan,
    launch: &'a Launch<'a>,
    state: State,
    buffers: &'a mut Buffers,
    log: Vec<String>,
}

impl<'a> Run<'a> {
    fn enter(&mut self, p: i64) {
        let mut rest = p;
        for (id, n) in self.state.ids.iter_mut().zip(self.launch.grid).rev() {
            (*id, rest) = (rest % n, rest / n);
        }
    }

    // ---- values

    fn ty(&self, v: Value) -> &'a Type {
        self.plan.kernel.ty(v)
    }
    fn shape(&self, v: Value) -> &'a [usize] {
        &self.ty(v).shape
    }
    fn bytes(&self, v: Value) -> usize {
        self.ty(v).dtype.bytes()
    }
    fn tile(&self, v: Value) -> Tile {
        self.state.tiles[v.index()]
    }
    /// The memory of a result: its own, unless it was redirected.
    fn define(&mut self, v: Value) -> Tile {
        if std::mem::take(&mut self.state.aimed[v.index()]) {
            return self.tile(v);
        }
        let own = self.state.homes[v.index()];
        self.state.tiles[v.index()] = own;
        own
    }
    /// A scalar's bits.
    fn bits(&self, v: Value) -> u64 {
        let start = self.tile(v).start;
        // SAFETY: a scalar's tile holds one element of its type.
        unsafe {
            match self.bytes(v) {
                1 => u64::from(start.read()),
                2 => u64::from(start.cast::<u16>().read()),
                4 => u64::from(start.cast::<u32>().read()),
                _ => start.cast::<u64>().read(),
            }
        }
    }
    fn int(&self, v: Value) -> i64 {
        Literal { dtype: self.ty(v).dtype, bits: self.bits(v) }.as_i64()
    }
    fn set(&mut self, v: Value, bits: u64) {
        let own = self.define(v);
        // SAFETY: scalars own a cell of eight bytes; little-endian machines read any width at its start.
        unsafe { own.start.cast::<u64>().write(bits) };
    }
    fn set_int(&mut self, v: Value, x: i64) {
        self.set(v, Literal::int(self.ty(v).dtype, x).bits);
    }
    /// A copy, for printing.
    fn datum(&self, v: Value) -> Datum {
        let ty = self.ty(v);
        let mut bytes = vec![0; ty.bytes()];
        let to = Tile::contiguous(bytes.as_mut_ptr(), &ty.shape);
        // SAFETY: `bytes` holds the tile. (Its rows may be unaligned, so elements are copied as bytes.)
        unsafe { tile::copy_bytes(&self.tile(v), &to, &ty.shape, ty.dtype.bytes()) };
        Datum::new(ty.clone(), Data::from_bytes(ty.dtype, &bytes))
    }
    fn fault(&self, code: &'static str, loc: Loc, message: String) -> Stop {
        let kernel = self.plan.kernel.name.clone();
        Stop::Fault(Fault { code, kernel, program: self.state.ids.clone(), loc, message, help: String::new() })
    }

    // ---- steps

    fn block(&mut self, block: &'a Block) -> Result<(), Stop> {
        block.steps.iter().try_for_each(|s| self.step(s))
    }

    fn step(&mut self, step: &'a Step) -> Result<(), Stop> {
        match step {
            Step::Program { axis, to } => self.set_int(*to, self.state.ids[*axis]),
            Step::Scalar { strip, args, to } => self.scalar(*strip, args, *to),
            Step::Chain(chain) => self.sweep(std::slice::from_ref(chain), &chain.codes)?,
            Step::Sweep(sweep) => self.sweep(&sweep.chains, &sweep.codes)?,
            Step::Restride { from, axes, to } => {
                self.state.tiles[to.index()] = self.restride(*from, axes, self.shape(*to).len());
                if !self.buffers.ends.is_empty() {
                    self.turn_end(*from, axes, *to);
                }
            }
            Step::Reshape { from, to } => self.reshape(*from, *to),
            Step::Count { table, axis, to } => {
                let mut tile = Tile { start: self.state.tables[*table].as_mut_ptr().cast(), strides: [0; MAX_RANK] };
                tile.strides[*axis] = 1;
                self.state.tiles[to.index()] = tile;
            }
            Step::Join { parts, to } => self.join(parts, *to),
            Step::Fold { fold, start, from, axes, to } => self.fold(*fold, *start, *from, axes, *to)?,
            Step::Scan { fold, from, axis, reverse, to } => self.scan(*fold, *from, *axis, *reverse, *to),
            Step::Extreme { max, from, axis, to } => self.extreme(*max, *from, *axis, *to),
            Step::Gather(step) => self.gather(step),
            Step::Scatter { windows, updates, fold } => self.scatter(windows, *updates, *fold),
            Step::SumRows(step) => self.sum_rows(step)?,
            Step::Sort { from, axis, order, positions, to } => self.sort(*from, *axis, *order, *positions, *to)?,
            Step::Dot(dot) => self.dot(dot)?,
            Step::Nest(nested) => self.nest(nested)?,
            Step::Load { from, mask, fill, in_place, open, to } => {
                self.load(from, *mask, *fill, in_place.then_some(*open), *to);
            }
            Step::Store { value, to, mask } => self.store(*value, to, *mask),
            Step::Aim { value, at, open } => self.aim(*value, at, *open),
            Step::Begin { sums, lend } => self.begin(*sums, lend.as_ref()),
            Step::Valid { of, axis, to } => self.valid(of, *axis, *to),
            Step::Prefetch { of, index, to } => self.prefetch(*of, index, *to),
            Step::If { .. } | Step::For { .. } | Step::While { .. } => self.control(step)?,
            Step::Print { label, of, loc } => {
                let shown = walk::show(&self.datum(*of));
                self.log.push(format!("{loc}: program {:?}: {label} = {shown}", self.state.ids));
            }
            Step::Assert { message, of, loc } => {
                let d = self.datum(*of);
                if let Some(i) = (0..d.data.len()).find(|&i| d.data.get(i).as_i64() == 0) {
                    let at = crate::interp::datum::unflatten(i, &d.ty.shape);
                    return Err(self.fault("assert", *loc, format!("assertion failed at {at:?}: {message}")));
                }
            }
        }
        Ok(())
    }

    fn scalar(&mut self, strip: super::strips::Strip, args: &[Value], to: Value) {
        let out = self.define(to);
        // SAFETY: scalars' tiles hold one element each; the result's cell is its own.
        unsafe {
            let arg = |v: Value| slice(self.ty(v).dtype, self.tile(v).start, 1);
            let out = slice_mut(self.ty(to).dtype, out.start, 1);
            match *args {
                [a] => strip(&[arg(a)], out, 1),
                [a, b] => strip(&[arg(a), arg(b)], out, 1),
                _ => strip(&args.iter().map(|&v| arg(v)).collect::<Vec<_>>(), out, 1),
            }
        }
    }

    // ---- control flow

    fn control(&mut self, step: &'a Step) -> Result<(), Stop> {
        match step {
            Step::If { condition, sides, to } => {
                let side = &sides[usize::from(self.int(*condition) == 0)];
                self.block(side)?;
                self.assign(to, &side.yields);
            }
            Step::For { bounds, reverse, index, carried, init, body, to, rolled, loc } => {
                let [lo, hi, by] = bounds.map(|v| self.int(v));
                let trips = walk::trip_count(lo, hi, by).map_err(|m| self.fault("step", *loc, m))?;
                self.assign(carried, init);
                let at = |k: i64| lo + (if *reverse { trips - 1 - k } else { k }) * by;
                let mut k = 0;
                while k < trips {
                    self.set_int(*index, at(k));
                    self.block(body)?;
                    self.assign(carried, &body.yields);
                    k += 1;
                    let rolled = rolled.as_ref().filter(|_| k == 1);
                    if rolled.is_some_and(|rolled| self.rolled(rolled, body, *index, trips, &at).is_some()) {
                        k = trips - 1;
                    }
                }
                to.iter().zip(carried).for_each(|(t, c)| self.state.tiles[t.index()] = self.state.tiles[c.index()]);
            }
            Step::While { init, tested, test, carried, body, to } => {
                self.assign(tested, init);
                loop {
                    self.block(test)?;
                    self.assign(carried, &test.yields[1..]);
                    if self.int(test.yields[0]) == 0 {
                        break;
                    }
                    self.block(body)?;
                    self.assign(tested, &body.yields);
                }
                to.iter().zip(carried).for_each(|(t, c)| self.state.tiles[t.index()] = self.state.tiles[c.index()]);
            }
            _ => unreachable!("called for control flow"),
        }
        Ok(())
    }

    /// Copies values into others, all at once.
    fn assign(&mut self, to: &[Value], from: &[Value]) {
        // Sources in a target's memory (variables that changed places) are copied aside first.
        let crossed = from.iter().enumerate().any(|(i, &f)| {
            let root = self.plan.roots[f.index()];
            f != to[i] && to.iter().enumerate().any(|(k, &t)| t == root && (k != i || !self.same_place(f, t)))
        });
        if crossed {
            let aside: Vec<Datum> = from.iter().map(|&v| self.datum(v)).collect();
            for (&t, d) in to.iter().zip(&aside) {
                let (bytes, own) = (d.data.to_bytes(), self.define(t));
                // SAFETY: a value's own memory holds its bytes, which are contiguous.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), own.start, bytes.len()) };
            }
            return;
        }
        for (&t, &f) in to.iter().zip(from) {
            if f == t {
                continue;
            }
            let (source, own) = (self.tile(f), self.define(t));
            // SAFETY: both hold the shape; a value alive at once with another overlaps it nowhere.
            unsafe { tile::copy(&source, &own, self.shape(t), self.bytes(t)) };
        }
    }
    fn same_place(&self, a: Value, b: Value) -> bool {
        let (x, y) = (self.tile(a), self.tile(b));
        x.start == y.start && x.strides == y.strides
    }
}
