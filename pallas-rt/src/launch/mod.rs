//! Calls of `#[kernel]` functions: every one comes through [`launch`].
//!
//! [`spec`] what the expansion says; [`key`] how its values are compared; [`bind`] sizes from arrays, with every check that
//! needs numbers; [`scope`] what the call is for; [`trace`] to tile IR; [`cache`] compiled kernels by call, and [`warm`]
//! the last calls, [`recent`] ones of the thread, which need none of that again; [`eager`] the body on the interpreter;
//! [`into`](mod@into) outputs in the user's arrays; [`tune`](mod@tune) block sizes by measurement, [`timing`]; [`inspect`]
//! explain, check and cost; [`compare`] two executions.
mod bind;
mod cache;
mod compare;
#[allow(unsafe_code, reason = "launches trust their caller with memory")]
mod eager;
mod inspect;
mod into;
pub mod key;
mod recent;
mod scope;
pub mod spec;
mod timing;
mod trace;
pub mod tune;
mod warm;

#[cfg(test)]
pub(crate) use inspect::compiled;
pub use inspect::{Checked, Cost, Explained, Explanation, check, cost, explain};
pub use into::{Results, into};
pub use scope::on;

use crate::device::{Geometry, outputs};
use crate::exec::{self, Call, Compiled};
use crate::lang::context;
use crate::{Array, Client, DeviceKind, Error, Result};
use pallas_ir::{At, Diag, Kernel, Loc};
use scope::Purpose;
use spec::{Argument, Body, Declared, Frame, Maps, Site};
use std::any::TypeId;

/// What a kernel returns: its outputs, in order.
#[derive(Debug)]
pub struct Outputs(Vec<Array>);

impl Outputs {
    /// The only output.
    pub fn into_one(self) -> Array {
        let [one] = self.into_array();
        one
    }
    /// All outputs.
    pub fn into_array<const N: usize>(self) -> [Array; N] {
        self.0.try_into().expect("the macro counts the outputs")
    }
}

/// Runs a kernel where its arrays live.
///
/// # Errors
/// Shapes, element types or sizes that do not fit the spec; a mistake of the body; on the interpreter any fault; device
/// trouble.
pub fn launch<F: Fn(&Frame), const N: usize>(
    site: Site<'_>,
    arguments: [Argument; N],
    spec: &Declared,
    maps: Maps<'_>,
    body: &F,
) -> Result<Outputs> {
    // The body's type has every generic argument around it, those of the kernel's `impl` block too.
    called_at(site.called, instance(&site, arguments.into(), spec, maps, body, typeid::of::<F>()))
}

/// The result of a kernel that was called at this line.
pub fn called_at<T>(loc: Loc, result: Result<T>) -> Result<T> {
    result.map_err(|error| error.called_at(loc))
}

fn instance(
    site: &Site<'_>,
    arguments: Vec<Argument>,
    spec: &Declared,
    maps: Maps<'_>,
    body: &dyn Body,
    instance: TypeId,
) -> Result<Outputs> {
    if let Some(outer) = context::inside() {
        let message = format!("kernel `{}` is called inside of the kernel made at {outer}", site.name);
        let help = "call a helper function over tiles instead; kernels are called with arrays";
        return Err(Error::kernel(site.name, site.at, "", Diag::new("nested-kernel", At::Op, message, help)));
    }
    let scope = scope::current();
    let client = client_of(site, &arguments, scope.client())?;
    let (binding, compiled) = match warm::recall(site, &arguments, instance) {
        Some((sizes, compiled)) => (bind::Binding::again(sizes, arguments), compiled),
        None => {
            let spec = spec.spec(site.outer);
            let binding = bind::bind(site, &spec, arguments)?;
            let call = cache::Call::new(site, &spec, &binding, instance);
            let compiled = cache::compiled(site, &call, || trace::trace(site, &spec, &binding, maps, body))?;
            warm::remember(site, instance, &binding.all, &compiled);
            (binding, compiled)
        }
    };
    let bind::Binding { all, params, arrays } = binding;
    let geometry = &all.geometry;
    if scope.purpose.intercepts() {
        inspect::note(&scope.purpose, &compiled, geometry, &client)?;
        return unwritten(&client, compiled.traced(), geometry).map(Outputs);
    }
    let mut call = Call { geometry, at: site.at, params: &params, arrays, lent: vec![] };
    let Purpose::Check(agreed) = &*scope.purpose else {
        call.lent = into::take(&scope.lent, &compiled, &client, geometry);
        return execute(&client, &compiled, call, &all, body).map(Outputs);
    };
    let interpreter = Client::interpreter();
    let copied = |(array, _): &(Array, bool)| Ok((array.to_device(&interpreter)?, false));
    let copies = call.arrays.iter().map(|array| array.as_ref().map(copied).transpose()).collect::<Result<Vec<_>>>()?;
    let reference = Call { geometry, at: site.at, params: &params, arrays: copies, lent: vec![] };
    let reference = eager::run(&interpreter, compiled.traced(), reference, &all, body)?;
    call.lent = into::take(&scope.lent, &compiled, &client, geometry);
    let outputs = execute(&client, &compiled, call, &all, body)?;
    compare::compare(compiled.traced(), &reference, &outputs)?;
    agreed.set(agreed.get() + 1);
    Ok(Outputs(outputs))
}

/// Runs a call: its body as Rust on the interpreter, its compiled kernel elsewhere.
fn execute(
    client: &Client,
    compiled: &Compiled,
    call: Call<'_>,
    sizes: &bind::Sizes,
    body: &dyn Body,
) -> Result<Vec<Array>> {
    match client.kind() {
        DeviceKind::Interpreter => eager::run(client, compiled.traced(), call, sizes, body),
        DeviceKind::Cpu | DeviceKind::Gpu => exec::run(compiled, client, call),
    }
}

/// Outputs that nobody has written: the results of a call that does not run.
fn unwritten(client: &Client, kernel: &Kernel, geometry: &Geometry) -> Result<Vec<Array>> {
    outputs(kernel).map(|i| client.zeros(kernel.operands[i].dtype, &geometry.shapes[i])).collect()
}

/// All arrays of a call live on one client, and on the chosen one if there is one; without either it is the process's.
fn client_of(site: &Site<'_>, arguments: &[Argument], chosen: Option<Client>) -> Result<Client> {
    let mut client = chosen;
    for argument in arguments {
        let Argument::Array(array, _) = argument else { continue };
        match &client {
            Some(client) => array.check_client(client, || format!("an operand of kernel `{}`", site.name))?,
            None => client = Some(array.client().clone()),
        }
    }
    client.map_or_else(Client::from_env, Ok)
}
