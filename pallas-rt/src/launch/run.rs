//! Execution of a bound call on each kind of device.
use super::bind::Binding;
use super::cache::{Compiled, LAUNCHES};
use super::spec::Body;
use super::{is_output, trace};
use crate::error::Bytes;
use crate::interp::{self, Data, Fault, Machine};
use crate::lang::context;
use crate::{Array, Client, DeviceKind, Error, Result, cpu};
use pallas_ir::{At, Diag, Kernel, Loc, OperandKind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// What backends keep of a kernel.
#[derive(Debug, Default)]
pub(super) struct Backends {
    cpu: OnceLock<cpu::Executable>,
    /// One text per set of limits and form.
    #[cfg(feature = "gpu")]
    shaders: std::sync::Mutex<Vec<(super::gpu::Form, Arc<super::stored::Program>)>>,
}

#[cfg(feature = "gpu")]
impl Backends {
    /// The shader of this form, emitted at most once.
    pub(super) fn shader(
        &self,
        form: super::gpu::Form,
        emit: impl FnOnce() -> std::result::Result<super::stored::Program, Diag>,
    ) -> std::result::Result<Arc<super::stored::Program>, Diag> {
        let mut shaders = self.shaders.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, found)) = shaders.iter().find(|(f, _)| *f == form) {
            return Ok(found.clone());
        }
        let shader = Arc::new(emit()?);
        shaders.push((form, shader.clone()));
        Ok(shader)
    }
}

/// Sizes in the order of the kernel's dimensions.
pub(super) fn sizes(kernel: &Kernel, binding: &Binding) -> Vec<i64> {
    kernel.dims.iter().map(|d| d.size.unwrap_or_else(|| binding.sizes[&d.name])).collect()
}

/// The extents of the parallel axes: the lowered kernel's grid.
pub(super) fn parallel_grid(kernel: &Kernel, binding: &Binding) -> Vec<i64> {
    let axes = kernel.grid.iter().zip(&binding.grid);
    axes.filter(|(a, _)| a.semantics == pallas_ir::Semantics::Parallel).map(|(_, &n)| n).collect()
}

/// The extents of the sequential axes, outermost first.
pub(super) fn sequential_grid(kernel: &Kernel, binding: &Binding) -> Vec<i64> {
    let axes = kernel.grid.iter().zip(&binding.grid);
    axes.filter(|(a, _)| a.semantics == pallas_ir::Semantics::Arbitrary).map(|(_, &n)| n).collect()
}

/// Outputs nobody has written: what an intercepted call returns.
pub(super) fn unwritten(client: &Client, kernel: &Kernel, binding: &Binding) -> Result<Vec<Array>> {
    outputs(kernel).map(|i| client.zeros(kernel.operands[i].dtype, &binding.shapes[i])).collect()
}

fn outputs(kernel: &Kernel) -> impl Iterator<Item = usize> + '_ {
    (0..kernel.operands.len()).filter(|&i| is_output(&kernel.operands[i].kind))
}

/// A launch without programs: outputs take their `empty` value, or keep the input they alias.
pub(super) fn empty(client: &Client, kernel: &Kernel, binding: &Binding) -> Result<Vec<Array>> {
    let mut out = vec![];
    for i in outputs(kernel) {
        let operand = &kernel.operands[i];
        let OperandKind::Output { empty, alias } = &operand.kind else { continue };
        out.push(match alias.and_then(|a| binding.arrays[a.index()].as_ref()) {
            Some((array, _)) => array.clone(),
            None => {
                let n: usize = binding.shapes[i].iter().product();
                let mut data = Data::zeros(operand.dtype, n);
                (0..n).for_each(|at| data.set(at, *empty));
                client.array_from_bytes(operand.dtype, &binding.shapes[i], &data.to_bytes())?
            }
        });
    }
    Ok(out)
}

/// The interpreter's machine for a kernel and a call.
fn machine(kernel: &Arc<Kernel>, binding: &Binding, grid: Vec<i64>) -> Result<Machine> {
    let mut arguments = vec![];
    for (i, operand) in kernel.operands.iter().enumerate() {
        let shape = binding.shapes[i].clone();
        arguments.push(match (&operand.kind, &binding.arrays[i], binding.params[i]) {
            (OperandKind::Param, _, Some(x)) => interp::Argument::Param(x),
            (_, Some((array, _)), _) => {
                interp::Argument::Array(shape, Data::from_bytes(operand.dtype, &array.to_bytes()?))
            }
            _ => interp::Argument::Fresh(shape),
        });
    }
    Ok(Machine::new(kernel.clone(), sizes(kernel, binding), grid, arguments))
}

fn arrays(client: &Client, kernel: &Kernel, binding: &Binding, data: Vec<Data>) -> Result<Vec<Array>> {
    let one = |(i, data): (usize, Data)| {
        client.array_from_bytes(kernel.operands[i].dtype, &binding.shapes[i], &data.to_bytes())
    };
    outputs(kernel).zip(data).map(one).collect()
}

fn fault(f: Fault) -> Error {
    // What no program did, the whole launch did not.
    let context = if f.program.is_empty() { String::new() } else { format!("program {:?}", f.program) };
    Error::kernel(f.kernel, f.loc, context, Diag::new(f.code, At::Op, f.message, f.help))
}

/// The seed of the interpreter's order of parallel programs.
const SEED: u64 = 0x5eed;

/// Runs the body as Rust, step by step, on the strict interpreter.
pub(super) fn eager(
    client: &Client,
    compiled: &Compiled,
    binding: &Binding,
    at: Loc,
    body: Body<'_>,
) -> Result<Vec<Array>> {
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    let kernel = &compiled.traced;
    check_room(client, &kernel.name, watched(kernel))?;
    let mut machine = machine(kernel, binding, binding.grid.clone())?;
    let frame = trace::frame(binding);
    for steps in machine.schedule(SEED) {
        machine.begin_lane();
        for program in steps {
            machine.begin_step(program);
            machine = context::eager(machine, at, || body(&frame)).map_err(fault)?;
        }
    }
    // What is missing at the end has no line but the kernel's.
    let (data, log) = machine.finish().map_err(|f| fault(Fault { loc: at, ..f }))?;
    print(&log);
    arrays(client, kernel, binding, data)
}

fn executable(compiled: &Compiled) -> &cpu::Executable {
    compiled.backends.cpu.get_or_init(|| cpu::Executable::compile(compiled.lowered().clone()))
}

/// Runs on the CPU.
pub(super) fn cpu(client: &Client, compiled: &Compiled, binding: &mut Binding) -> Result<Vec<Array>> {
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    let kernel = compiled.lowered();
    let executable = executable(compiled);
    let (sizes, grid) = (sizes(kernel, binding), parallel_grid(&compiled.traced, binding));
    check_room(client, &kernel.name, working(executable, &grid))?;
    let mut results = allocate(client, kernel, binding)?;
    let mut memory: Vec<cpu::Memory<'_>> = Vec::with_capacity(binding.shapes.len());
    for (i, shape) in binding.shapes.iter().enumerate() {
        // Inputs are only read; an aliased input shares its output's memory, below.
        let ptr = binding.arrays[i].as_ref().map_or(std::ptr::null_mut(), |(a, _)| a.buffer().as_ptr().cast_mut());
        memory.push(cpu::Memory { ptr, shape });
    }
    for (i, array) in outputs(kernel).zip(&mut results) {
        memory[i].ptr = match array.buffer_mut() {
            Some(buffer) => buffer.as_mut_ptr(),
            // Lent: its other owner is `into`, which holds it by `&mut` meanwhile.
            None => array.buffer().as_ptr().cast_mut(),
        };
        if let OperandKind::Output { alias: Some(from), .. } = &kernel.operands[i].kind {
            memory[from.index()].ptr = memory[i].ptr;
        }
    }
    let launch = cpu::Launch { sizes: &sizes, grid: &grid, memory: &memory, params: &binding.params };
    print(&executable.run(&launch).map_err(fault)?);
    Ok(results)
}

/// The memory that a launch takes at once besides its arrays; on a GPU with its results.
///
/// # Errors
/// No shader on this device.
pub(super) fn room(client: &Client, compiled: &Compiled, binding: &Binding) -> Result<u64> {
    if binding.grid.contains(&0) {
        return Ok(0);
    }
    match client.kind() {
        DeviceKind::Interpreter => Ok(watched(&compiled.traced)),
        DeviceKind::Cpu => Ok(working(executable(compiled), &parallel_grid(&compiled.traced, binding))),
        #[cfg(feature = "gpu")]
        DeviceKind::Gpu => super::gpu::room(client, compiled, binding),
        #[cfg(not(feature = "gpu"))]
        DeviceKind::Gpu => unreachable!("no client is a GPU's without the feature"),
    }
}

/// What the interpreter keeps: per element its value and whether it is defined; of scratch also who read and wrote it.
fn watched(kernel: &Kernel) -> u64 {
    let tiles = kernel.values.iter().filter(|ty| !ty.is_scalar());
    let scratch = kernel.operands.iter().filter(|o| o.kind == OperandKind::Scratch);
    let bytes = |elements: usize, each: usize| elements as u64 * each as u64;
    let tiles: u64 = tiles.map(|ty| bytes(ty.elements(), ty.dtype.bytes() + 1)).sum();
    tiles + scratch.map(|o| bytes(o.block_shape().iter().product(), o.dtype.bytes() + 9)).sum::<u64>()
}

/// Tiles and scratch of the programs that run at the same time.
fn working(executable: &cpu::Executable, grid: &[i64]) -> u64 {
    (executable.threads(grid) as u64).saturating_mul(executable.bytes_a_program() as u64)
}

/// Refuses tiles and scratch that would exceed the client's memory limit.
pub(super) fn check_room(client: &Client, kernel: &str, bytes: u64) -> Result<()> {
    if has_room(client, bytes) {
        return Ok(());
    }
    let message = format!("its tiles and scratch take {}, {} of memory are free", Bytes(bytes), Bytes(free(client)));
    let diag = Diag::new("memory", At::Op, message, "use smaller blocks, or raise `set_memory_limit`");
    Err(Error::kernel(kernel, Loc::NONE, "", diag))
}

/// Whether a launch finds so much memory. On the host, what a thread's cache may hold is not counted.
pub(super) fn has_room(client: &Client, bytes: u64) -> bool {
    const SMALL: u64 = 16 << 20;
    let uncounted = if client.kind() == DeviceKind::Gpu { 0 } else { SMALL };
    bytes <= free(client).max(uncounted)
}

fn free(client: &Client) -> u64 {
    let memory = client.memory();
    memory.limit.saturating_sub(memory.in_use)
}

/// An array per output: the one lent for it, the donated or copied memory of the input it aliases, or fresh memory.
pub(super) fn allocate(client: &Client, kernel: &Kernel, binding: &mut Binding) -> Result<Vec<Array>> {
    if !binding.lent.is_empty() {
        return Ok(std::mem::take(&mut binding.lent));
    }
    let mut results = vec![];
    for i in outputs(kernel).collect::<Vec<_>>() {
        let (dtype, shape) = (kernel.operands[i].dtype, binding.shapes[i].clone());
        let OperandKind::Output { alias, .. } = &kernel.operands[i].kind else { continue };
        let Some(from) = alias else {
            results.push(client.empty(dtype, &shape)?);
            continue;
        };
        let (array, donated) = binding.arrays[from.index()].take().expect("an alias is an input, and no other's");
        let own = if donated { array.donate(dtype, &shape) } else { Err(array) };
        results.push(own.or_else(|shared| shared.copied())?);
    }
    Ok(results)
}

/// The array behind each operand: an output's result; an aliased input's is its output's.
#[cfg(feature = "gpu")]
pub(super) fn buffers<'a>(kernel: &Kernel, binding: &'a Binding, results: &'a [Array]) -> Vec<Option<&'a Array>> {
    let mut all: Vec<Option<&Array>> = binding.arrays.iter().map(|a| a.as_ref().map(|(a, _)| a)).collect();
    for (i, result) in outputs(kernel).zip(results) {
        all[i] = Some(result);
    }
    all
}

/// What `debug_print` wrote.
#[allow(clippy::print_stderr, reason = "the user asked to see it")]
fn print(log: &[String]) {
    log.iter().for_each(|line| eprintln!("{line}"));
}
