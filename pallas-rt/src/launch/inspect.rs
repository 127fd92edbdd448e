//! Looking at kernels without running them, and running them twice: `explain`, `cost`, `check`.
//!
//! Each runs a closure in its own scope, so it also works for a function that calls several kernels.
use super::bind::Sizes;
use super::scope::{Purpose, purposed};
use super::tune::Tuning;
#[cfg(feature = "wgsl")]
use crate::Error;
use crate::device::{Geometry, SIZES, multiples};
use crate::exec::{Compiled, Cost, estimate};
#[cfg(feature = "graph")]
use crate::jit::{Seen, Watch, watching};
use crate::{Client, Result};
use pallas_codegen::cpu::Executable;
use pallas_codegen::target::{Profile, Target};
#[cfg(feature = "wgsl")]
use pallas_codegen::wgsl;
use pallas_ir::{Kernel, Loc};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// The result of `explain`: one entry for each kernel that the closure called.
#[derive(Clone, Debug, Default)]
pub struct Explanation {
    /// One per call.
    pub kernels: Vec<Explained>,
}

impl Explanation {
    /// The text of one [stage](Explained::stages) of each kernel, `traced`, `lower`, `simplify`, `placed`, `placement` or
    /// `wgsl`; empty for a stage that no kernel has.
    ///
    /// ```
    /// use pallas_rt::prelude::*;
    ///
    /// #[kernel(grid = (cdiv(N, 8)))]
    /// fn doubled(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
    ///     out.store(x.load() * 2.0);
    /// }
    /// let x = Array::zeros(&[10], DType::F32)?;
    /// assert!(explain(|| doubled(&x))?.stage("traced").starts_with("kernel doubled {"));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn stage(&self, name: &str) -> String {
        let of = |k: &Explained| k.stages().into_iter().find(|(stage, _)| stage == name).map(|(_, text)| text);
        self.kernels.iter().filter_map(of).collect()
    }
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
    /// The selection of its block sizes, if they are tuned.
    pub tuning: Option<Arc<Tuning>>,
    /// The tile IR as traced.
    pub traced: Arc<Kernel>,
    /// The tile IR that backends read.
    pub lowered: Arc<Kernel>,
    /// Sequential axes of the grid: the outermost loops of the lowered form.
    pub sequential: usize,
    /// The target of the call's GPU or of [`Client::cpu_as`], else [`Target::webgpu`].
    pub target: Target,
    /// A bit for each dimension of the kernel, in order: 1 if its extent is a multiple of four, so that rows are whole
    /// vectors. 0 on the CPU.
    pub multiples: u64,
}

impl Explained {
    /// Returns names and texts of the stages: the tile IR as traced and after each pass; then, with the feature `wgsl`, for
    /// its [`target`](Explained::target), the tile IR that was placed, the placement and the WGSL.
    pub fn stages(&self) -> Vec<(String, String)> {
        let mut stages = vec![("traced".to_string(), self.traced.to_string())];
        let mut now = Kernel::clone(&self.traced);
        for (name, pass) in pallas_codegen::passes::PIPELINE {
            now = pass(&now);
            stages.push((name.to_string(), now.to_string()));
        }
        #[cfg(feature = "wgsl")]
        match wgsl::emit(&self.lowered, self.sequential, &self.target, self.multiples) {
            Ok(shader) => {
                stages.push(("placed".to_string(), shader.kernel.to_string()));
                stages.push(("placement".to_string(), shader.placement.to_string()));
                stages.push(("wgsl".to_string(), shader.text));
            }
            Err(d) => stages.push(("no wgsl".to_string(), d.to_string())),
        }
        #[cfg(not(feature = "wgsl"))]
        stages.push(("no wgsl".to_string(), "this build is without the feature `wgsl`".to_string()));
        stages
    }
    /// Describes each elementwise chain that has no machine code on this machine's CPU, and therefore runs strip by
    /// strip: its shape and the operations that have no instructions. Chains whose rows are not whole vectors may lack
    /// machine code as well.
    pub fn without_code(&self) -> Vec<String> {
        Executable::compile(self.traced.clone(), self.lowered.clone(), SIZES).without_code()
    }
    /// Returns the kernel's shader for a device that need not be present (feature `wgsl`). `multiples` has the form of
    /// [`Explained::multiples`].
    ///
    /// # Errors
    /// Element types that shaders do not support, scratch larger than workgroup memory, the CPU as target.
    #[cfg(feature = "wgsl")]
    pub fn shader(&self, target: &Target, multiples: u64) -> Result<wgsl::Shader> {
        let shader = wgsl::emit(&self.lowered, self.sequential, target, multiples);
        shader.map_err(|d| Error::kernel(&self.name, Loc::NONE, "", d))
    }
}

/// The result of `check`: the launches that were compared.
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

/// The calls that were recorded instead of run.
#[derive(Default)]
pub(super) struct Notes {
    calls: Vec<Note>,
    /// The selection of the next call's block sizes.
    pub tuning: Option<Arc<Tuning>>,
}

struct Note {
    compiled: Compiled,
    geometry: Geometry,
    client: Client,
    called: Loc,
    tuning: Option<Arc<Tuning>>,
    /// Number of launches.
    times: u64,
}

impl Notes {
    /// Records a call that does not run.
    pub(super) fn add(&mut self, compiled: &Compiled, sizes: &Arc<Sizes>, client: &Client, called: Loc) {
        let (compiled, geometry, client) = (compiled.clone(), sizes.geometry.clone(), client.clone());
        self.calls.push(Note { compiled, geometry, client, called, tuning: self.tuning.take(), times: 1 });
    }
}

/// Returns the calls of `f`, none of which runs.
fn looked<R>(f: impl FnOnce() -> Result<R>) -> Result<Vec<Note>> {
    let notes = Rc::<RefCell<Notes>>::default();
    let purpose = Purpose::Look(notes.clone());
    #[cfg(feature = "graph")]
    {
        let seen = notes.clone();
        let look = Watch::Look(Box::new(move |seen_kernel| {
            let Seen { compiled, geometry, client, called, times } = seen_kernel;
            seen.borrow_mut().calls.push(Note { compiled, geometry, client, called, tuning: None, times });
        }));
        watching(Some(look), || purposed(purpose, f))?;
    }
    #[cfg(not(feature = "graph"))]
    purposed(purpose, f)?;
    Ok(notes.take().calls)
}

/// Describes every kernel that `f` calls at the given shapes, without running them; those that a function of
/// [`jit`](crate::jit()) calls, too, of whose other operations nothing is said.
///
/// # Errors
/// What `f` returns.
pub fn explain<R>(f: impl FnOnce() -> Result<R>) -> Result<Explanation> {
    let describe = |note: Note| {
        let (kernel, geometry) = (note.compiled.traced(), &note.geometry);
        // For a call on the CPU the shader is that of a device with WebGPU's limits.
        let (target, multiples) = match *note.client.target() {
            Target { profile: Profile::Cpu, .. } => (Target::webgpu(), 0),
            target => (target, multiples(kernel, geometry)),
        };
        Explained {
            name: kernel.name.clone(),
            grid: geometry.grid.clone(),
            cost: estimate(kernel, geometry),
            tuning: note.tuning,
            traced: kernel.clone(),
            lowered: note.compiled.lowered().clone(),
            sequential: geometry.sequential.len(),
            target,
            multiples,
        }
    };
    Ok(Explanation { kernels: looked(f)?.into_iter().map(describe).collect() })
}

/// The tile IR of every kernel that `f` calls, as traced, without running them.
pub(super) fn traced(f: impl FnOnce() -> Result<()>) -> Result<String> {
    Ok(looked(f)?.iter().map(|note| note.compiled.traced().to_string()).collect())
}

/// The most memory that a launch of the kernels that `f` calls takes besides its arrays, without running them.
///
/// # Errors
/// What `f` returns, and what makes a kernel not run on the device at all.
pub(super) fn memory_needed(f: impl FnOnce() -> Result<()>) -> Result<u64> {
    looked(f)?.iter().try_fold(0, |most, note| {
        let needed = note.compiled.memory_needed(&note.client, &note.geometry);
        needed.map(|bytes| bytes.max(most)).map_err(|error| error.called_at(note.called))
    })
}

/// Every kernel that `f` calls, as traced and as lowered.
#[cfg(test)]
pub(crate) fn compiled<R>(f: impl FnOnce() -> Result<R>) -> Result<Vec<[Arc<Kernel>; 2]>> {
    Ok(looked(f)?.iter().map(|note| [note.compiled.traced().clone(), note.compiled.lowered().clone()]).collect())
}

/// The estimated work of every kernel that `f` calls, summed; in a function of [`jit`](crate::jit()) kernels of a loop count
/// as often as it runs. [`Lowered::cost_analysis`](crate::transform::Lowered::cost_analysis) has the work of other operations.
///
/// # Errors
/// What `f` returns.
pub fn cost<R>(f: impl FnOnce() -> Result<R>) -> Result<Cost> {
    Ok(looked(f)?.iter().fold(Cost::default(), |sum, note| {
        let own = estimate(note.compiled.traced(), &note.geometry);
        Cost {
            flops: sum.flops + note.times * own.flops,
            bytes_accessed: sum.bytes_accessed + note.times * own.bytes_accessed,
            transcendentals: sum.transcendentals + note.times * own.transcendentals,
        }
    }))
}

/// Runs every kernel that `f` calls on the strict interpreter and on its own device, and compares. A function of
/// [`jit`](crate::jit()) runs one operation at a time.
///
/// # Errors
/// The interpreter's fault; [`Error::Kernel`](crate::Error::Kernel) with the first element that differs, its block, and the line of the store
/// that wrote it; what `f` returns.
pub fn check<R>(f: impl FnOnce() -> Result<R>) -> Result<Checked> {
    let agreed = Rc::<Cell<usize>>::default();
    let purpose = Purpose::Check(agreed.clone());
    #[cfg(feature = "graph")]
    {
        let agrees = agreed.clone();
        let check = Watch::Check(Box::new(move |kernel, reference, outputs| {
            super::compare::compare(kernel, reference, outputs)?;
            agrees.set(agrees.get() + 1);
            Ok(())
        }));
        watching(Some(check), || purposed(purpose, f))?;
    }
    #[cfg(not(feature = "graph"))]
    purposed(purpose, f)?;
    Ok(Checked { kernels: agreed.get() })
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
