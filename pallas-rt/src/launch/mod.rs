//! The door: every call of a kernel comes through [`launch`].
//!
//! [`spec`] what the expansion says; [`key`] how its values are compared; [`bind`] sizes from arrays, with every check that
//! needs numbers; [`limits`] of a call's shader; [`trace`] to tile IR; [`cache`] compiled kernels, [`stored`]
//! on disk, and [`warm`] the last calls, [`recent`] ones of the thread, which need none of that again; [`donate`] outputs in donated memory;
//! [`into`](mod@into) outputs in the user's; [`run`] execution on a device; [`tune`](mod@tune) block sizes by
//! measurement, [`timing`]; [`inspect`] explain, check and cost; [`compare`]
//! two executions.
mod bind;
mod cache;
mod compare;
mod donate;
#[cfg(feature = "gpu")]
mod gpu;
mod inspect;
mod into;
pub mod key;
mod limits;
mod recent;
mod run;
pub mod spec;
mod stored;
mod timing;
mod trace;
pub mod tune;
mod warm;

pub use cache::{Counters, counters};
#[cfg(test)]
pub(crate) use inspect::compiled;
pub use inspect::{Checked, Cost, Explained, Explanation, check, cost, explain};
pub use into::{Results, into};

use crate::lang::context;
use crate::{Array, Client, DeviceKind, Error, Result};
use pallas_ir::{At, Diag, OperandKind};
use spec::{Argument, Body, Frame, Map, Site, Spec};
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
    spec: &dyn Fn() -> Spec,
    maps: &[(usize, Map<'_>)],
    body: &F,
) -> Result<Outputs> {
    // The body's type has every generic argument around it, those of the kernel's `impl` block too.
    instance(&site, arguments.into(), spec, maps, body, typeid::of::<F>())
}

fn instance(
    site: &Site<'_>,
    arguments: Vec<Argument>,
    spec: &dyn Fn() -> Spec,
    maps: &[(usize, Map<'_>)],
    body: Body<'_>,
    instance: TypeId,
) -> Result<Outputs> {
    if let Some(outer) = context::inside() {
        let message = format!("kernel `{}` is called inside of the kernel made at {outer}", site.name);
        let help = "call a helper function over tiles instead; kernels are called with arrays";
        return Err(Error::kernel(site.name, site.at, "", Diag::new("nested-kernel", At::Op, message, help)));
    }
    let client = client_of(site, &arguments)?;
    let (mut binding, mut compiled) = match warm::recall(site, &arguments, instance) {
        Some((sizes, compiled)) => (bind::Binding::again(sizes, arguments), compiled),
        None => {
            let spec = spec();
            let binding = bind::bind(site, &spec, arguments)?;
            let call = cache::Call::new(site, &spec, &binding, instance);
            let compiled = cache::compiled(&call, || trace::trace(site, &spec, &binding, maps, body))?;
            warm::remember(site, instance, &binding.all, &compiled);
            (binding, compiled)
        }
    };
    if inspect::intercepts() {
        inspect::note(&compiled, &binding, &client)?;
        return run::unwritten(&client, &compiled.traced, &binding).map(Outputs);
    }
    if client.kind() != DeviceKind::Interpreter && !binding.grid.contains(&0) {
        binding.lent = into::take(&compiled.traced, &binding, &client);
        let pairs = if binding.lent.is_empty() { donate::pairs(&compiled.traced, &mut binding) } else { vec![] };
        if !pairs.is_empty() {
            compiled = compiled.sharing(pairs);
        }
    }
    if inspect::checks() {
        let reference = interpreted(&compiled, &binding, site.at, body)?;
        let outputs = execute(&client, &compiled, &mut binding, site.at, body)?;
        compare::compare(&compiled.traced, &reference, &outputs)?;
        inspect::agreed();
        return Ok(Outputs(outputs));
    }
    execute(&client, &compiled, &mut binding, site.at, body).map(Outputs)
}

fn execute(
    client: &Client,
    compiled: &cache::Compiled,
    binding: &mut bind::Binding,
    at: pallas_ir::Loc,
    body: Body<'_>,
) -> Result<Vec<Array>> {
    if binding.grid.contains(&0) {
        return run::empty(client, &compiled.traced, binding);
    }
    match client.kind() {
        DeviceKind::Interpreter => run::eager(client, compiled, binding, at, body),
        DeviceKind::Cpu => run::cpu(client, compiled, binding),
        #[cfg(feature = "gpu")]
        DeviceKind::Gpu => gpu::run(client, compiled, binding, at),
        #[cfg(not(feature = "gpu"))]
        DeviceKind::Gpu => unreachable!("no client is a GPU's without the feature"),
    }
}

/// The same call on the strict interpreter, from host copies.
fn interpreted(
    compiled: &cache::Compiled,
    binding: &bind::Binding,
    at: pallas_ir::Loc,
    body: Body<'_>,
) -> Result<Vec<Array>> {
    let client = Client::interpreter();
    let mut copies = vec![];
    for array in &binding.arrays {
        copies.push(match array {
            Some((array, _)) => Some((array.to_device(&client)?, false)),
            None => None,
        });
    }
    let mut binding =
        bind::Binding { all: binding.all.clone(), params: binding.params.clone(), arrays: copies, lent: vec![] };
    execute(&client, compiled, &mut binding, at, body)
}

/// All arrays of a call live on one client; without arrays it is the process's.
fn client_of(site: &Site<'_>, arguments: &[Argument]) -> Result<Client> {
    let mut client: Option<Client> = None;
    for argument in arguments {
        let Argument::Array(array, _) = argument else { continue };
        match &client {
            Some(client) => array.check_client(client, &format!("an operand of kernel `{}`", site.name))?,
            None => client = Some(array.client().clone()),
        }
    }
    client.map_or_else(Client::from_env, Ok)
}

/// Whether an operand is an output.
fn is_output(kind: &OperandKind) -> bool {
    matches!(kind, OperandKind::Output { .. })
}
