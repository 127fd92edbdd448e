//! Looking at kernels without running them, and running them twice: `explain`, `cost`, `check`.
//!
//! Each runs a closure in a scope of its own, so it serves a function that calls several kernels as well.
use super::scope::{Purpose, purposed};
use super::tune::Tuning;
use crate::device::{Geometry, multiples};
use crate::exec::Compiled;
use crate::target::{Profile, Target};
use crate::{Client, Error, Result, wgsl};
use pallas_ir::{Access, Kernel, Loc, Op, ScalarOp};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

/// What `explain` found, per kernel the closure called.
#[derive(Clone, Debug, Default)]
pub struct Explanation {
    /// One per call.
    pub kernels: Vec<Explained>,
}

/// One call's kernel.
#[derive(Clone, Debug)]
pub struct Explained {
    /// The kernel's name.
    pub name: String,
    /// Extents of the grid.
    pub grid: Vec<i64>,
    /// Estimate.
    pub cost: Cost,
    /// How its block sizes were chosen, if they are tuned.
    pub tuning: Option<Arc<Tuning>>,
    /// The tile IR as traced.
    pub traced: Arc<Kernel>,
    /// The tile IR that backends read.
    pub lowered: Arc<Kernel>,
    /// Sequential axes of the grid: the outermost loops of the lowered form.
    pub sequential: usize,
    /// The target of the call's GPU or of [`Client::cpu_as`], else [`Target::webgpu`].
    pub target: Target,
    /// A bit for each dimension of the kernel, in order: 1 where its extent is a multiple of four, so that rows are whole
    /// vectors. 0 on the CPU.
    pub multiples: u64,
}

impl Explained {
    /// Name and text: the tile IR as traced and after each pass; then, for its [`target`](Explained::target), the
    /// tile IR that was placed, the placement and the WGSL.
    pub fn stages(&self) -> Vec<(String, String)> {
        let mut stages = vec![("traced".to_string(), self.traced.to_string())];
        let mut now = Kernel::clone(&self.traced);
        for (name, pass) in crate::passes::PIPELINE {
            now = pass(&now);
            stages.push((name.to_string(), now.to_string()));
        }
        match wgsl::emit(&self.lowered, self.sequential, &self.target, self.multiples) {
            Ok(shader) => {
                stages.push(("placed".to_string(), shader.kernel.to_string()));
                stages.push(("placement".to_string(), shader.placement.to_string()));
                stages.push(("wgsl".to_string(), shader.text));
            }
            Err(d) => stages.push(("no wgsl".to_string(), d.to_string())),
        }
        stages
    }
    /// For each elementwise chain that has no machine code on this machine's CPU, and so runs strip by strip: its shape and
    /// the operations that are to blame. Rows that are not whole vectors may keep others from their code.
    pub fn without_code(&self) -> Vec<String> {
        crate::cpu::Executable::compile(self.traced.clone(), self.lowered.clone()).without_code()
    }
    /// The kernel's shader for a device that need not be there, and [`multiples`](Explained::multiples) of any call.
    ///
    /// # Errors
    /// Types that shaders lack, scratch beyond the workgroup memory, the CPU as target.
    pub fn shader(&self, target: &Target, multiples: u64) -> Result<wgsl::Shader> {
        let shader = wgsl::emit(&self.lowered, self.sequential, target, multiples);
        shader.map_err(|d| Error::kernel(&self.name, Loc::NONE, "", d))
    }
}

/// An estimate of the work of a launch.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Floating or integer operations; a multiply and an add of a dot are two.
    pub flops: u64,
    /// Bytes loaded and stored.
    pub bytes_accessed: u64,
    /// Elements of exp, log, sin and the like.
    pub transcendentals: u64,
}

impl Cost {
    /// Counts a row of the scalar table, applied to so many elements.
    fn add(&mut self, op: ScalarOp, elements: u64) {
        let row = op.row().cost;
        self.flops += row.arithmetic * elements;
        self.transcendentals += row.transcendental * elements;
    }
    /// The least time for this work on a device with these peaks, in FLOP/s and bytes/s: whichever takes longer, all
    /// operations or all traffic (Williams, Waterman, Patterson 2009).
    pub fn roofline(&self, flops_per_second: f64, bytes_per_second: f64) -> std::time::Duration {
        let seconds = (self.flops as f64 / flops_per_second).max(self.bytes_accessed as f64 / bytes_per_second);
        std::time::Duration::try_from_secs_f64(seconds).unwrap_or(std::time::Duration::MAX)
    }
}

/// What `check` found: the launches that were compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    /// Kernels whose outputs agreed.
    pub kernels: usize,
}
impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kernels {
            1 => f.write_str("1 kernel agrees with the interpreter"),
            n => write!(f, "{n} kernels agree with the interpreter"),
        }
    }
}

/// Describes every kernel that `f` calls at the given shapes, without running them.
///
/// # Errors
/// What `f` returns.
pub fn explain<R>(f: impl FnOnce() -> Result<R>) -> Result<Explanation> {
    let explaining = Purpose::Explain { kernels: RefCell::default(), tuning: RefCell::default() };
    let (result, purpose) = purposed(explaining, f);
    result?;
    let Purpose::Explain { kernels, .. } = purpose else { unreachable!("a purpose stays what it is") };
    Ok(Explanation { kernels: kernels.into_inner() })
}

/// The tile IR of every kernel that `f` calls, as traced, without running them.
pub(super) fn traced(f: impl FnOnce() -> Result<()>) -> Result<String> {
    let (result, purpose) = purposed(Purpose::Trace(RefCell::default()), f);
    result?;
    let Purpose::Trace(text) = purpose else { unreachable!("a purpose stays what it is") };
    Ok(text.into_inner())
}

/// The most memory that a launch of the kernels that `f` calls takes besides its arrays, without running them.
///
/// # Errors
/// What `f` returns, and what makes a kernel not run on the device at all.
pub(super) fn memory_needed(f: impl FnOnce() -> Result<()>) -> Result<u64> {
    let (result, purpose) = purposed(Purpose::Memory(Cell::new(0)), f);
    result?;
    let Purpose::Memory(most) = purpose else { unreachable!("a purpose stays what it is") };
    Ok(most.get())
}

/// Every kernel that `f` calls, as traced and as lowered.
#[cfg(test)]
pub(crate) fn compiled<R>(f: impl FnOnce() -> Result<R>) -> Result<Vec<[Arc<Kernel>; 2]>> {
    let (result, purpose) = purposed(Purpose::Compile(RefCell::default()), f);
    result?;
    let Purpose::Compile(kernels) = purpose else { unreachable!("a purpose stays what it is") };
    Ok(kernels.into_inner())
}

/// The estimated work of every kernel that `f` calls, summed.
///
/// # Errors
/// What `f` returns.
pub fn cost<R>(f: impl FnOnce() -> Result<R>) -> Result<Cost> {
    let explanation = explain(f)?;
    Ok(explanation.kernels.iter().fold(Cost::default(), |sum, k| Cost {
        flops: sum.flops + k.cost.flops,
        bytes_accessed: sum.bytes_accessed + k.cost.bytes_accessed,
        transcendentals: sum.transcendentals + k.cost.transcendentals,
    }))
}

/// Runs every kernel that `f` calls on the strict interpreter and on its own device, and compares.
///
/// # Errors
/// The interpreter's fault; [`Error::Kernel`] with the first element that differs, its block, and the line of the store
/// that wrote it; what `f` returns.
pub fn check<R>(f: impl FnOnce() -> Result<R>) -> Result<Checked> {
    let (result, purpose) = purposed(Purpose::Check(Cell::new(0)), f);
    result?;
    let Purpose::Check(kernels) = purpose else { unreachable!("a purpose stays what it is") };
    Ok(Checked { kernels: kernels.get() })
}

/// Looks at a call that does not run.
pub(super) fn note(purpose: &Purpose, compiled: &Compiled, geometry: &Geometry, client: &Client) -> Result<()> {
    let kernel = compiled.traced();
    match purpose {
        Purpose::Run | Purpose::Check(_) => {}
        #[cfg(test)]
        Purpose::Compile(kernels) => kernels.borrow_mut().push([kernel.clone(), compiled.lowered().clone()]),
        Purpose::Trace(text) => text.borrow_mut().push_str(&kernel.to_string()),
        Purpose::Memory(most) => most.set(compiled.memory_needed(client, geometry)?.max(most.get())),
        Purpose::Explain { kernels, tuning } => {
            let (target, multiples) = target(client, kernel, geometry);
            let explained = Explained {
                name: kernel.name.clone(),
                grid: geometry.grid.clone(),
                cost: estimate(kernel, geometry),
                tuning: tuning.take(),
                traced: kernel.clone(),
                lowered: compiled.lowered().clone(),
                sequential: geometry.sequential.len(),
                target,
                multiples,
            };
            kernels.borrow_mut().push(explained);
        }
    }
    Ok(())
}

/// The target and the multiples of four that a call's shader is generated for; WebGPU's, and none, for a call on the CPU.
#[warn(clippy::wildcard_enum_match_arm)]
fn target(client: &Client, kernel: &Kernel, geometry: &Geometry) -> (Target, u64) {
    match client.target().profile {
        Profile::Cpu => (Target::webgpu(), 0),
        Profile::Gpu | Profile::SimtCpu | Profile::Baseline => (*client.target(), multiples(kernel, geometry)),
    }
}

/// Counts a program's operations and multiplies by the programs; both sides of an `if` count, loops of unknown length
/// count once.
fn estimate(kernel: &Kernel, geometry: &Geometry) -> Cost {
    let programs: u64 = geometry.grid.iter().map(|&n| n as u64).product();
    let mut cost = Cost::default();
    kernel.walk(kernel.body, &mut |_, inst| {
        let ty = inst.results.first().map(|&v| kernel.ty(v));
        let elements = ty.map_or(0, |t| t.elements() as u64);
        match &inst.op {
            Op::Scalar(op) => cost.add(*op, elements),
            Op::Structural(op) => {
                let dims: Vec<_> = inst.args.iter().map(|&v| kernel.ty(v).dims()).collect();
                let dims: Vec<_> = dims.iter().map(|d| &d[..]).collect();
                match op.access(&dims) {
                    Access::Contract { contract, .. } => {
                        let inner = contract.iter().map(|p| kernel.ty(inst.args[0]).shape[p.0] as u64).product::<u64>();
                        cost.flops += 2 * elements * inner;
                    }
                    Access::Fold { op, .. } | Access::Scan { op, .. } => {
                        cost.add(op, kernel.ty(inst.args[0]).elements() as u64);
                    }
                    Access::Arg { .. } => cost.flops += kernel.ty(inst.args[0]).elements() as u64,
                    _ => {}
                }
            }
            Op::Load { .. } => cost.bytes_accessed += ty.map_or(0, |t| t.bytes() as u64),
            Op::Store { .. } => cost.bytes_accessed += kernel.ty(inst.args[0]).bytes() as u64,
            _ => {}
        }
    });
    Cost {
        flops: cost.flops * programs,
        bytes_accessed: cost.bytes_accessed * programs,
        transcendentals: cost.transcendentals * programs,
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for k in &self.kernels {
            writeln!(f, "kernel `{}` on a grid of {:?}", k.name, k.grid)?;
            writeln!(
                f,
                "  {} flops, {} bytes, {} transcendentals, {:.2} flops per byte",
                k.cost.flops,
                k.cost.bytes_accessed,
                k.cost.transcendentals,
                k.cost.flops as f64 / k.cost.bytes_accessed.max(1) as f64
            )?;
            writeln!(
                f,
                "  roofline: at least max({:.3e} / FLOP/s, {:.3e} / byte/s) seconds; see Cost::roofline",
                k.cost.flops as f64, k.cost.bytes_accessed as f64
            )?;
            if let Some(tuning) = &k.tuning {
                write!(f, "{tuning}")?;
            }
            for (stage, text) in k.stages() {
                writeln!(f, "--- {stage}\n{text}")?;
            }
        }
        Ok(())
    }
}
