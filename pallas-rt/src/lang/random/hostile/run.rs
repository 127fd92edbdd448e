//! Runs any verified kernel on small arrays that end at an inaccessible page.
#![allow(unsafe_code, reason = "the CPU backend is called as a launch calls it, and its memory is closed")]
use super::Dice;
use pallas_codegen::cpu;
use pallas_codegen::interp::{Argument, Data, Machine, walk};
use pallas_ir::{
    BlockDim, DType, Dim, Inst, InstId, Kernel, Literal, Loc, Op, OperandKind, RegionId, ScalarOp, StructuralOp, Type,
    Value, verify, verify_lowered,
};
use std::path::PathBuf;
use std::sync::Arc;

/// The outcome of a kernel.
pub(crate) enum Ran {
    /// Too large to run: it was only compiled.
    Large,
    /// The strict interpreter found a fault; the CPU ran the kernel.
    Fault,
    /// Ran to the end on both.
    Whole,
}

/// Returns the path of the file that holds the last text that the test `what` ran.
pub(crate) fn last(what: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pallas-{what}-{}.txt", std::process::id()))
}
/// Writes the text that the test `what` runs next to the file [`last`].
pub(crate) fn note(what: &str, text: &str) {
    std::fs::write(last(what), text).expect("the temporary folder can be written");
}

/// Maximum iterations of a loop.
const TURNS: i64 = 3;
/// Maximum number of elements of an array.
const ELEMENTS: usize = 1 << 14;
/// Maximum number of elementary operations of a program.
const WORK: usize = 1 << 16;

/// Returns true if a program of the kernel has at most [`WORK`] elementary operations.
pub(crate) fn is_small(kernel: &Kernel) -> bool {
    work(kernel, kernel.body) <= WORK
}

/// Runs a verified kernel on the interpreter, and its lowered form on the CPU.
pub(crate) fn run(kernel: &Kernel, dice: &mut Dice) -> Ran {
    let lowered = if verify_lowered(kernel).is_ok() {
        kernel.clone()
    } else {
        pallas_codegen::passes::run_lowering_passes(kernel)
    };
    verify_lowered(&lowered).unwrap_or_else(|e| panic!("lowering: {e}"));
    let executable =
        cpu::Executable::compile(Arc::new(kernel.clone()), Arc::new(lowered.clone()), &cpu::Thresholds::FOR_TESTS);
    let _ = executable.describe_uncompiled_chains();
    let _ = pallas_codegen::wgsl::emit(&lowered, 1, &pallas_codegen::target::Target::webgpu(), 0);
    let sizes: Vec<i64> = kernel.dims.iter().map(|d| d.size.unwrap_or(1 + dice.below(7) as i64)).collect();
    let Some(shapes) = shapes(kernel, &sizes) else { return Ran::Large };
    let (Some(grid), Some(parallel)) = (grid(kernel, &sizes), grid(&lowered, &sizes)) else { return Ran::Large };
    let Some(steps) = extents(&lowered, lowered.steps.iter(), &sizes) else { return Ran::Large };
    if !is_small(kernel) || !is_small(&lowered) || executable.bytes_per_program() > 1 << 24 {
        return Ran::Large;
    }
    let contents: Vec<Vec<u8>> =
        kernel.operands.iter().zip(&shapes).map(|(o, shape)| contents(o.dtype, shape, dice)).collect();
    let params: Vec<Option<Literal>> =
        kernel.operands.iter().zip(&contents).map(|(o, bytes)| param(o, bytes)).collect();

    let interpreted = bounded(kernel);
    let argument = |i: usize| match kernel.operands[i].kind {
        OperandKind::Param => Argument::Param(params[i].expect("parameters have values")),
        OperandKind::Input | OperandKind::Prefetch => {
            Argument::Array(shapes[i].clone(), Data::from_bytes(kernel.operands[i].dtype, &contents[i]))
        }
        OperandKind::Output { .. } | OperandKind::Scratch => Argument::Uninitialized(shapes[i].clone()),
    };
    let arguments = (0..kernel.operands.len()).map(argument).collect();
    let mut machine = Machine::new(Arc::new(interpreted), sizes.clone(), grid, arguments);
    let whole = walk::run_all_programs(&mut machine).is_ok() && machine.finish().is_ok();

    let guarded: Vec<Guarded> = contents.iter().map(|bytes| Guarded::new(bytes)).collect();
    let start = |i: usize| guarded[lowered.memory_of(pallas_ir::OperandId(i as u32)).index()].start;
    // SAFETY: every operand has memory of its shape, for this launch alone.
    let memory = shapes.iter().enumerate().map(|(i, shape)| unsafe { cpu::LaunchMemory::new(start(i), shape) });
    let memory: Vec<cpu::LaunchMemory<'_>> = memory.collect();
    let launch = cpu::Launch { sizes: &sizes, grid: &parallel, steps: &steps, memory: &memory, params: &params };
    let executable =
        cpu::Executable::compile(Arc::new(kernel.clone()), Arc::new(bounded(&lowered)), &cpu::Thresholds::FOR_TESTS);
    // SAFETY: every operand has memory of its shape, for this launch alone; bools are 0 or 1.
    let _ = unsafe { executable.run(&launch, &pallas_codegen::cpu::thread_team::RayonPool) };
    if whole { Ran::Whole } else { Ran::Fault }
}

/// Returns the extents of all operands; `None` if a launch would refuse them, or if they are too large for a test.
fn shapes(kernel: &Kernel, sizes: &[i64]) -> Option<Vec<Vec<usize>>> {
    let named: Vec<(&str, i64)> = kernel.dims.iter().map(|d| &d.name[..]).zip(sizes.iter().copied()).collect();
    let extent = |dim: &Dim| usize::try_from(dim.evaluate(&named).ok()?).ok();
    let small = |shape: &Vec<usize>| {
        shape.iter().try_fold(1, |n: usize, &m| n.checked_mul(m.max(1))).is_some_and(|n| n <= ELEMENTS)
    };
    let mut all: Vec<Vec<usize>> = vec![];
    for operand in &kernel.operands {
        let shape: Vec<usize> = operand.dims.iter().map(extent).collect::<Option<_>>()?;
        let empty = |(block, n): (&BlockDim, &usize)| block.size() == 0 && *n != 0;
        if !small(&shape) || operand.block.iter().zip(&shape).any(empty) {
            return None;
        }
        all.push(shape);
    }
    let alias = |(i, o): (usize, &pallas_ir::Operand)| match o.kind {
        OperandKind::Output { alias: Some(from), .. } => all[i] == all[from.index()],
        _ => true,
    };
    kernel.operands.iter().enumerate().all(alias).then_some(all)
}

/// Returns the kernel's grid, cut to two programs along each axis.
fn grid(kernel: &Kernel, sizes: &[i64]) -> Option<Vec<i64>> {
    extents(kernel, kernel.grid.iter().map(|axis| &axis.extent), sizes)
}
/// Evaluates extents of a grid, each cut to 2; `None` if one can't be computed or there are more than six.
fn extents<'d>(kernel: &Kernel, of: impl Iterator<Item = &'d Dim>, sizes: &[i64]) -> Option<Vec<i64>> {
    let named: Vec<(&str, i64)> = kernel.dims.iter().map(|d| &d.name[..]).zip(sizes.iter().copied()).collect();
    let extent = |n: &Dim| n.evaluate(&named).ok().filter(|n| *n >= 0).map(|n| n.min(2));
    of.map(extent).collect::<Option<Vec<_>>>().filter(|grid| grid.len() <= 6)
}

fn contents(dtype: DType, shape: &[usize], dice: &mut Dice) -> Vec<u8> {
    let element = |_| match dtype {
        DType::Bool => Literal::bool(dice.below(2) == 0),
        d if d.is_float() => Literal::new(d, dice.below(400) as f64 / 100.0 - 2.0),
        d => Literal::int(d, dice.below(12) as i64 - 2),
    };
    (0..shape.iter().product()).map(element).flat_map(Literal::to_bytes).collect()
}
fn param(operand: &pallas_ir::Operand, bytes: &[u8]) -> Option<Literal> {
    let bits = bytes.iter().rev().fold(0, |bits, &b| bits << 8 | u64::from(b));
    (operand.kind == OperandKind::Param).then_some(Literal { dtype: operand.dtype, bits })
}

/// Estimates the number of elementary operations of a region, as the interpreter does them.
fn work(kernel: &Kernel, region: RegionId) -> usize {
    let own = |inst: &Inst| {
        let elements = |v: &Value| kernel.ty(*v).elements();
        let touched: usize = inst.args.iter().chain(&inst.results).map(elements).fold(1, usize::saturating_add);
        let folded: usize = match &inst.op {
            Op::Structural(StructuralOp::Dot(dot)) => {
                dot.contract.iter().map(|p| kernel.ty(inst.args[0]).shape[p.0]).fold(1, usize::saturating_mul)
            }
            _ => 1,
        };
        let nested = inst.regions.iter().map(|&r| work(kernel, r)).fold(0, usize::saturating_add);
        touched.saturating_mul(folded).saturating_add(nested.saturating_mul(TURNS as usize))
    };
    kernel.region(region).insts.iter().map(|&i| own(kernel.inst(i))).fold(0, usize::saturating_add)
}

/// Returns the kernel with loops that end after a few iterations, whatever their bounds.
fn bounded(kernel: &Kernel) -> Kernel {
    let mut b = Bounded { k: kernel.clone() };
    for region in 0..b.k.regions.len() {
        for id in b.k.regions[region].insts.clone() {
            match b.k.inst(id).op {
                Op::For { .. } => b.count(region, id),
                Op::While => b.repeat(region, id),
                _ => {}
            }
        }
    }
    verify(&b.k).unwrap_or_else(|e| panic!("a bounded loop: {e}"));
    b.k
}

/// The kernel whose loops [`bounded`] limits.
struct Bounded {
    k: Kernel,
}

impl Bounded {
    fn value(&mut self, dtype: DType) -> Value {
        self.k.values.push(Type::scalar(dtype));
        Value(self.k.values.len() as u32 - 1)
    }
    /// Inserts an instruction before another one, or at the end of a region.
    fn emit(&mut self, region: usize, before: Option<InstId>, op: Op, args: &[Value], dtype: DType) -> Value {
        let result = self.value(dtype);
        let id = InstId(self.k.insts.len() as u32);
        self.k.insts.push(Inst { op, args: args.to_vec(), results: vec![result], regions: vec![] });
        self.k.locs.push(Loc::NONE);
        let insts = &mut self.k.regions[region].insts;
        let at = before.and_then(|b| insts.iter().position(|i| *i == b)).unwrap_or(insts.len());
        insts.insert(at, id);
        result
    }
    fn int(&mut self, region: usize, before: Option<InstId>, n: i64) -> Value {
        self.emit(region, before, Op::Const(Literal::int(DType::I32, n)), &[], DType::I32)
    }
    /// Limits a `for` to [`TURNS`] iterations by its upper bound.
    fn count(&mut self, region: usize, id: InstId) {
        let [lo, hi, step] = self.k.inst(id).args[..3] else { unreachable!("three bounds") };
        let before = Some(id);
        let turns = self.int(region, before, TURNS);
        let span = self.emit(region, before, Op::Scalar(ScalarOp::Mul), &[step, turns], DType::I32);
        let end = self.emit(region, before, Op::Scalar(ScalarOp::Add), &[lo, span], DType::I32);
        let hi = self.emit(region, before, Op::Scalar(ScalarOp::Minimum), &[hi, end], DType::I32);
        self.k.insts[id.index()].args[1] = hi;
    }
    /// Limits a `while` to [`TURNS`] iterations by a counter that it carries.
    fn repeat(&mut self, region: usize, id: InstId) {
        let zero = self.int(region, Some(id), 0);
        let [test, body] = self.k.inst(id).regions[..] else { unreachable!("two regions") };
        let (tested, carried, result) = (self.value(DType::I32), self.value(DType::I32), self.value(DType::I32));
        let inst = &mut self.k.insts[id.index()];
        inst.args.push(zero);
        inst.results.push(result);
        self.k.regions[test.index()].params.push(tested);
        self.k.regions[body.index()].params.push(carried);
        let turns = self.int(test.index(), None, TURNS);
        let fewer = self.emit(test.index(), None, Op::Scalar(ScalarOp::Lt), &[tested, turns], DType::Bool);
        let condition = self.k.region(test).yields[0];
        let go = self.emit(test.index(), None, Op::Scalar(ScalarOp::BitAnd), &[condition, fewer], DType::Bool);
        let yields = &mut self.k.regions[test.index()].yields;
        yields[0] = go;
        yields.push(tested);
        let one = self.int(body.index(), None, 1);
        let next = self.emit(body.index(), None, Op::Scalar(ScalarOp::Add), &[carried, one], DType::I32);
        self.k.regions[body.index()].yields.push(next);
    }
}

/// Bytes that end at an inaccessible page.
struct Guarded {
    start: *mut u8,
    #[cfg(target_os = "linux")]
    map: (*mut libc::c_void, usize),
    #[cfg(not(target_os = "linux"))]
    _bytes: Vec<u64>,
}

#[cfg(target_os = "linux")]
impl Guarded {
    fn new(bytes: &[u8]) -> Guarded {
        const PAGE: usize = 4096;
        let inner = bytes.len().next_multiple_of(PAGE);
        let (flags, all) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, inner + 2 * PAGE);
        // SAFETY: a new mapping, whose first and last pages are made inaccessible. The bytes end where the last page
        // begins, as far as the alignment of the widest element allows.
        unsafe {
            let map = libc::mmap(std::ptr::null_mut(), all, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert!(map != libc::MAP_FAILED, "memory");
            let first = map.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(map, PAGE, libc::PROT_NONE), 0);
            assert_eq!(libc::mprotect(first.add(inner).cast(), PAGE, libc::PROT_NONE), 0);
            let start = first.add(inner - bytes.len().next_multiple_of(8));
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
            Guarded { start, map: (map, all) }
        }
    }
}
#[cfg(target_os = "linux")]
impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.map.0, self.map.1) };
    }
}
#[cfg(not(target_os = "linux"))]
impl Guarded {
    fn new(bytes: &[u8]) -> Guarded {
        let mut own = vec![0u64; bytes.len().div_ceil(8).max(1)];
        let start = own.as_mut_ptr().cast::<u8>();
        // SAFETY: `own` has at least as many bytes as `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
        Guarded { start, _bytes: own }
    }
}
