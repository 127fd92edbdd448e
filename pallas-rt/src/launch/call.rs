//! A call of a kernel: from its arguments to its outputs.
use super::scope::{self, CallPurpose, CallScope};
use super::spec::{Argument, Declared, Frame, IndexMaps, KernelBody, Kind, Site};
use super::{bind, cache, compare, into, nans, run, trace, warm_call};
use crate::exec::LaunchArguments;
use crate::lang::context;
use crate::{Array, Client, Error, Result};
use pallas_device::output_indices;
use pallas_ir::{At, Diag, Loc};
use std::any::TypeId;
use std::cell::LazyCell;
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
    maps: IndexMaps<'_>,
    body: &F,
) -> Result<[Array; OUTPUTS]> {
    // The body's type has every generic argument around it, those of the kernel's `impl` block too.
    into_fixed_array(run_or_trace_call(&site, arguments.into(), spec, maps, body, typeid::of::<F>()))
}

/// Converts the outputs to an array of known length. Not a part of [`launch`], so that it is compiled once for each
/// length instead of each kernel.
fn into_fixed_array<const OUTPUTS: usize>(outputs: Result<Vec<Array>>) -> Result<[Array; OUTPUTS]> {
    outputs.map(|outputs| outputs.try_into().expect("the macro counts the outputs"))
}

/// Adds the line of a kernel's call to the error of its result.
pub fn called_at<T>(loc: Loc, result: Result<T>) -> Result<T> {
    result.map_err(|error| error.called_at(loc))
}

/// Runs the call, or appends it to the function that is being traced, if an argument is a value of that function. The
/// error of a poisoned array is returned unchanged: this call is not its cause.
fn run_or_trace_call(
    site: &Site<'_>,
    arguments: Vec<Argument>,
    spec: &Declared,
    maps: IndexMaps<'_>,
    body: &dyn KernelBody,
    body_type: TypeId,
) -> Result<Vec<Array>> {
    for argument in &arguments {
        if let Argument::Array(array, _) = argument
            && !(cfg!(feature = "graph") && array.is_traced())
        {
            array.check_kernel_argument(site.name, site.called)?;
        }
    }
    called_at(site.called, dispatch_unpoisoned_call(site, arguments, spec, maps, body, body_type))
}

/// Runs, traces or records a call, none of whose arrays carries an error.
fn dispatch_unpoisoned_call(
    site: &Site<'_>,
    arguments: Vec<Argument>,
    spec: &Declared,
    maps: IndexMaps<'_>,
    body: &dyn KernelBody,
    body_type: TypeId,
) -> Result<Vec<Array>> {
    if let Some(outer) = context::running_call_loc() {
        let message = format!("kernel `{}` is called inside of the kernel made at {outer}", site.name);
        let help = "call a helper function over tiles instead; kernels are called with arrays";
        return Err(Error::kernel(site.name, site.at, "", Diag::new("nested-kernel", At::Op, message, help)));
    }
    let scope = scope::current_call_scope();
    let arrays = arguments.iter().filter_map(|argument| match argument {
        Argument::Array(array, _) => Some(array),
        Argument::Param(_) => None,
    });
    let what = |at: usize| {
        let operand = spec.operands.iter().filter(|o| matches!(o.kind, Kind::Input | Kind::Prefetch)).nth(at);
        format!("`{}` of kernel `{}`", operand.map_or("", |o| o.name), site.name)
    };
    let client = common_client(arrays, what, &scope)?;
    let (sizes, compiled) = match warm_call::find_remembered_call(site, &arguments, body_type) {
        Some(known) => known,
        None => {
            let spec = spec.build_spec(site.outer);
            let sizes = Arc::new(bind::bind_sizes(site, &spec, &arguments)?);
            let call = cache::CallKey::new(site, &spec, &sizes, body_type);
            let compiled =
                cache::find_or_compile(site, &call, || trace::trace_kernel(site, &spec, &sizes, maps, body))?;
            let positions = compiled.check_block_positions(&sizes.geometry);
            positions.map_err(|diag| Error::kernel(site.name, site.at, "", diag))?;
            warm_call::remember_call(site, body_type, &sizes, &compiled);
            (sizes, compiled)
        }
    };
    let (kernel, geometry) = (compiled.traced(), &sizes.geometry);
    // A call in a function that is being traced is looked at when that function runs.
    let is_traced = |argument: &Argument| matches!(argument, Argument::Array(array, _) if array.is_traced());
    if let (CallPurpose::Record(notes), false) = (&scope.purpose, arguments.iter().any(is_traced)) {
        notes.borrow_mut().record(&compiled, &sizes, &client, site.called);
        let unwritten = |i: usize| client.zeros(&geometry.shapes[i], kernel.operands[i].dtype);
        return output_indices(kernel).map(unwritten).collect();
    }
    let (params, arrays) = bind::arguments_by_operand(kernel, arguments);
    #[cfg(feature = "graph")]
    if arrays.iter().flatten().any(|(array, _)| array.is_traced()) {
        let arrays: Vec<Array> = arrays.into_iter().flatten().map(|(array, _)| array).collect();
        let params = params.into_iter().flatten().collect();
        return crate::jit::append_kernel_call(&compiled, geometry, params, &arrays, site.called);
    }
    // The interpreter alone runs the body.
    let frame = LazyCell::new(|| trace::create_trace_frame(&sizes));
    let run_body = || body.run(&frame);
    let mut call =
        LaunchArguments { geometry, at: site.at, called: site.called, params: &params, arrays, lent: vec![] };
    let CallPurpose::Check(agreed) = &scope.purpose else {
        call.lent = into::take_lent_outputs(&scope.lent, &compiled, &client, geometry)?;
        let run = if crate::nans::is_nan_check_on() { nans::execute_finding_nans } else { run::execute };
        return run(&client, &compiled, call, &run_body);
    };
    let reference = run::interpret(&Client::interpreter(), kernel, run::copy_to_interpreter(&call)?, &run_body, false)?;
    call.lent = into::take_lent_outputs(&scope.lent, &compiled, &client, geometry)?;
    let outputs = run::execute(&client, &compiled, call, &run_body)?;
    compare::compare_outputs(kernel, &reference, &outputs)?;
    agreed.set(agreed.get() + 1);
    Ok(outputs)
}

/// Returns the client of a call's arrays, which must be one, and equal to the chosen one if there is one; without
/// arrays the chosen one, else the process's default. `describe_array` names the array at a position in an error.
pub(super) fn common_client<'a>(
    arrays: impl Iterator<Item = &'a Array>,
    describe_array: impl Fn(usize) -> String,
    scope: &CallScope,
) -> Result<Client> {
    let mut client = scope.client.clone();
    for (at, array) in arrays.enumerate() {
        match &client {
            Some(client) => array.check_client(client, &|| describe_array(at))?,
            None => client = Some(array.client().clone()),
        }
    }
    client.map_or_else(Client::from_env, Ok)
}
