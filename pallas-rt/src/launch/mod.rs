//! Calls of `#[kernel]` functions. Every call goes through [`launch`].
//!
//! [`spec`] describes a kernel as the expansion passes it; [`key`] compares `#[fixed]` values; [`bind`] determines sizes
//! from arrays, with every check that needs numbers; [`scope`] stores the purpose of calls; [`trace`] records tile IR;
//! [`early`] finds reads of memory that nothing wrote; [`cache`] keeps compiled kernels by call; [`warm`] and [`recent`]
//! recognise a thread's most recent calls, for which none of this is repeated; [`eager`] runs the body on the interpreter;
//! [`into`](mod@into) writes outputs to the user's arrays; [`tune`](mod@tune) selects block sizes by measurement
//! ([`timing`]); [`inspect`] has explain, check and cost, and [`mod@explain`] the texts and pages of a kernel; [`compare`] compares two executions; [`nans`](mod@nans)
//! searches for NaN; [`differentiable`] is for functions of kernels that state their gradient.
//!
//! # The way of one call
//!
//! ```text
//! #[kernel(grid = (cdiv(N, B)))]
//! fn scaled<const B: usize>(
//!     #[block([N] => [B], |i| (i,))] x: In<f32>,
//!     #[block([N] => [B], |i| (i,))] out: Out<f32>,
//!     scale: f32,
//! ) {
//!     out.store(x.load() * scale);
//! }
//! let y = scaled::<8>(&x, 2.0)?;
//! ```
//!
//! 1. **While compiling** (`pallas-macros`): `ast` and `attr` read the signature, `names` the sizes, `check` holds specs, maps
//!    and grid against each other and walks the body with symbolic sizes by pallas-ir's own shape rules, `rewrite` stages the
//!    body's control flow, `expand` writes a function `scaled::<B>(x: impl Input, scale: f32) -> Result<Array>`. It contains a
//!    `Site` (the values besides arrays that distinguish calls: `#[fixed]` values, outer constants), a `Declared` (the specs as
//!    constant data: names, dimensions, blocks, grid), a closure per index map, and the body as a closure over refs.
//!    `launch::spec` builds the `Spec` from `Declared` and the values of the site.
//!    A call like an earlier one of its thread goes to 6 at once, without its spec (`launch::warm`): a launch takes little over
//!    a microsecond. What the call is for (its results, `check`, `explain` ..) is the scope of its thread (`launch::scope`),
//!    read once here.
//! 2. **`launch::bind`**: `x` is `[1000]`, so `N` = 1000. Element types, ranks, names bound twice, block sizes, grid and
//!    aliases are checked here, before any device work.
//! 3. **`launch::cache`**: the key is name, place, the type of the body (it has every generic argument around the kernel),
//!    element types, `#[fixed]` values (`launch::key`) and the dimensions that size a block: here `B` alone. A hit goes to 6.
//!    The cache drops its least recently used kernels (`device::lru`). What follows from a trace alone is on disk too (`disk`,
//!    `device::source`): the lowered form and shaders by the hash of the traced text with its lines, the device's limits and
//!    these sources; the driver's binaries by adapter and driver as well. Entries are whole or not there; a torn one is deleted
//!    and made again. What is believed of an entry stands under "Trust" below.
//! 4. **`launch::trace`** runs maps and body once. `x.load()` comes to `lang::context`, which asks the `Builder` for an
//!    instruction; shapes and types are inferred as it is appended, and a mistake is blamed on the user's line.
//!
//!    ```text
//!    kernel scaled {
//!      dim N
//!      grid cdiv(N, 8) parallel
//!      in x: f32[N] block [8]
//!      out out: f32[N] block [8] empty 0.0
//!      param scale: f32[]
//!      map @x (%0: i32[]) { yield %0 }
//!      map @out (%1: i32[]) { yield %1 }
//!      body {
//!        %2: f32[] = param @scale
//!        %3: f32[8] = load @x block[0:8]
//!        %4: f32[8] = mul %3, %2
//!        store @out block[0:8] %4
//!      }
//!    }
//!    ```
//! 5. **`passes`**: maps become offsets into arrays, sequential grid axes become loops: `load @x array[dyn + 0:8] %8` with `%8
//!    = program_id · 8`. How many turns such a loop has is no arithmetic of the kernel: sizes that fit an i32 may have terms
//!    that do not (`cdiv(N * M, 1048576)`), so the launch computes them once, in checked arithmetic, and every backend reads
//!    its numbers (`steps`, `num_steps`).
//! 6. **`exec`** gives the outputs memory and hands the launch to the `Runtime` of its client (`device::runtime`). A kernel
//!    that `Builder` made, without a macro, comes in here (`exec::Compiled`). `Client::cpu()`: `cpu::plan` makes steps over
//!    tiles with a place in a program's arena each, chains of elementwise operations being one step, and casts of what a few
//!    rows are multiplied with being left to the product; `cpu::run` executes them on the calling thread and rayon's, which
//!    share programs by ranges (`cpu::shares`), chains as machine code, and sort a long line together (`cpu::sort`). A GPU:
//!    `wgsl` writes a compute shader, `device::gpu` compiles and dispatches it without waiting. `Client::interpreter()`: the
//!    body itself runs again, once per program, every operation computed at once on values that know whether they are defined.
//! 7. **The result** is an `Array` on the same client, in fresh memory, in the donated input's (`exec::donate`), or in the
//!    user's array (`launch::into`).
mod bind;
mod cache;
mod compare;
mod differentiable;
mod eager;
mod early;
mod explain;
mod inspect;
mod into;
pub(crate) mod key;
mod meshes;
mod nans;
mod recent;
mod scope;
pub mod spec;
mod timing;
mod trace;
pub(crate) mod tune;
mod warm;

pub use differentiable::{Backward, Differentiable, Ended};
pub use explain::{Explained, Explanation};
#[cfg(test)]
pub(crate) use inspect::compiled;
pub use inspect::{Checked, check, cost, explain};
pub use into::{Results, into};
pub use meshes::{launch_parts, may_gather};
pub use scope::{calls_run, on};

use crate::exec::{self, Call, Compiled};
use crate::lang::context;
use crate::{Array, Client, DeviceKind, Error, Result};
use pallas_device::outputs;
use pallas_ir::{At, Diag, Loc};
use scope::{Purpose, Scope};
use spec::{Argument, Body, Declared, Frame, Kind, Maps, Site};
use std::any::TypeId;
use std::sync::Arc;

/// Runs a kernel on the client of its arrays, and returns its outputs in order.
///
/// # Errors
/// Shapes, element types or sizes that do not fit the spec; a mistake of the body; on the interpreter any fault; device
/// trouble.
pub fn launch<F: Fn(&Frame), const N: usize, const OUTPUTS: usize>(
    site: Site<'_>,
    arguments: [Argument; N],
    spec: &Declared,
    maps: Maps<'_>,
    body: &F,
) -> Result<[Array; OUTPUTS]> {
    // The body's type has every generic argument around it, those of the kernel's `impl` block too.
    all(instance(&site, arguments.into(), spec, maps, body, typeid::of::<F>()))
}

/// The outputs of a call. Apart from [`launch`], so that it is compiled once for each count.
fn all<const OUTPUTS: usize>(outputs: Result<Vec<Array>>) -> Result<[Array; OUTPUTS]> {
    outputs.map(|outputs| outputs.try_into().expect("the macro counts the outputs"))
}

/// Returns the result of a kernel that was called at this line.
pub fn called_at<T>(loc: Loc, result: Result<T>) -> Result<T> {
    result.map_err(|error| error.called_at(loc))
}

/// Runs the call, or makes it an operation of the function that is being traced, if an argument is a value of that one. The
/// error of a poisoned array is returned as it is: this call is not its cause.
fn instance(
    site: &Site<'_>,
    arguments: Vec<Argument>,
    spec: &Declared,
    maps: Maps<'_>,
    body: &dyn Body,
    instance: TypeId,
) -> Result<Vec<Array>> {
    for argument in &arguments {
        if let Argument::Array(array, _) = argument
            && !(cfg!(feature = "graph") && array.is_traced())
        {
            array.check_argument(site.name, site.called)?;
        }
    }
    called_at(site.called, of_arrays(site, arguments, spec, maps, body, instance))
}

fn of_arrays(
    site: &Site<'_>,
    arguments: Vec<Argument>,
    spec: &Declared,
    maps: Maps<'_>,
    body: &dyn Body,
    instance: TypeId,
) -> Result<Vec<Array>> {
    if let Some(outer) = context::inside() {
        let message = format!("kernel `{}` is called inside of the kernel made at {outer}", site.name);
        let help = "call a helper function over tiles instead; kernels are called with arrays";
        return Err(Error::kernel(site.name, site.at, "", Diag::new("nested-kernel", At::Op, message, help)));
    }
    let scope = scope::current();
    let arrays = arguments.iter().filter_map(|argument| match argument {
        Argument::Array(array, _) => Some(array),
        Argument::Param(_) => None,
    });
    let what = |at: usize| {
        let operand = spec.operands.iter().filter(|o| matches!(o.kind, Kind::Input | Kind::Prefetch)).nth(at);
        format!("`{}` of kernel `{}`", operand.map_or("", |o| o.name), site.name)
    };
    let client = client_of(arrays, what, &scope)?;
    let (sizes, compiled) = match warm::recall(site, &arguments, instance) {
        Some(known) => known,
        None => {
            let spec = spec.spec(site.outer);
            let sizes = Arc::new(bind::bind(site, &spec, &arguments)?);
            let call = cache::Call::new(site, &spec, &sizes, instance);
            let compiled = cache::compiled(site, &call, || trace::trace(site, &spec, &sizes, maps, body))?;
            let positions = compiled.check_positions(&sizes.geometry);
            positions.map_err(|diag| Error::kernel(site.name, site.at, "", diag))?;
            warm::remember(site, instance, &sizes, &compiled);
            (sizes, compiled)
        }
    };
    let (kernel, geometry) = (compiled.traced(), &sizes.geometry);
    // A call in a function that is being traced is looked at when that function runs.
    let is_traced = |argument: &Argument| matches!(argument, Argument::Array(array, _) if array.is_traced());
    if let (Purpose::Look(notes), false) = (&scope.purpose, arguments.iter().any(is_traced)) {
        notes.borrow_mut().add(&compiled, &sizes, &client, site.called);
        let unwritten = |i: usize| client.zeros(&geometry.shapes[i], kernel.operands[i].dtype);
        return outputs(kernel).map(unwritten).collect();
    }
    let (params, arrays) = bind::by_operand(kernel, arguments);
    #[cfg(feature = "graph")]
    if arrays.iter().flatten().any(|(array, _)| array.is_traced()) {
        let arrays: Vec<Array> = arrays.into_iter().flatten().map(|(array, _)| array).collect();
        let params = params.into_iter().flatten().collect();
        return crate::jit::kernel_call(&compiled, geometry, params, &arrays, &client, site.called);
    }
    let mut call = Call { geometry, at: site.at, called: site.called, params: &params, arrays, lent: vec![] };
    let Purpose::Check(agreed) = &scope.purpose else {
        call.lent = into::take(&scope.lent, &compiled, &client, geometry)?;
        let run = if crate::nans::is_on() { nans::execute } else { execute };
        return run(&client, &compiled, call, &sizes, body);
    };
    let interpreter = Client::interpreter();
    let copied = |(array, _): &(Array, bool)| Ok((array.to_device(&interpreter)?, false));
    let copies = call.arrays.iter().map(|array| array.as_ref().map(copied).transpose()).collect::<Result<Vec<_>>>()?;
    let reference = Call { geometry, at: site.at, called: site.called, params: &params, arrays: copies, lent: vec![] };
    let reference = eager::run(&interpreter, kernel, reference, &sizes, body, false)?;
    call.lent = into::take(&scope.lent, &compiled, &client, geometry)?;
    let outputs = execute(&client, &compiled, call, &sizes, body)?;
    compare::compare(kernel, &reference, &outputs)?;
    agreed.set(agreed.get() + 1);
    Ok(outputs)
}

/// Runs a call: its body as Rust on the interpreter, its compiled kernel elsewhere.
fn execute(
    client: &Client,
    compiled: &Compiled,
    call: Call<'_>,
    sizes: &bind::Sizes,
    body: &dyn Body,
) -> Result<Vec<Array>> {
    if client.kind() == DeviceKind::Interpreter {
        return eager::run(client, compiled.traced(), call, sizes, body, false);
    }
    exec::run(compiled, client, call)
}

/// Returns the client of a call's arrays, which must be one, and equal to the chosen one if there is one; without
/// arrays the chosen one, else the process's default. `what` names the array at a position in an error.
fn client_of<'a>(
    arrays: impl Iterator<Item = &'a Array>,
    what: impl Fn(usize) -> String,
    scope: &Scope,
) -> Result<Client> {
    let mut client = scope.client.clone();
    for (at, array) in arrays.enumerate() {
        match &client {
            Some(client) => array.check_client(client, &|| what(at))?,
            None => client = Some(array.client().clone()),
        }
    }
    client.map_or_else(Client::from_env, Ok)
}
