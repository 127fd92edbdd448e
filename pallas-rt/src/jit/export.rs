//! Functions as files, which run where their Rust code is not known.
use super::compile::{Compilation, CompilationInput};
use super::program::Program;
use super::trace::type_of;
use crate::array::{Array, Client};
use crate::tree::{self, Tree};
use pallas_device::JIT_COMPILES;
use pallas_device::error::{Error, Result};
use pallas_graph::call::{Call, Callback};
use pallas_graph::{Graph, Op, text_format};
use pallas_ir::{Loc, Type};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

/// First line of the text of an exported function: version of the format, and byte order of the captured arrays.
#[cfg(target_endian = "little")]
const FILE_HEADER: &str = "pallas function 1 little-endian";
#[cfg(target_endian = "big")]
const FILE_HEADER: &str = "pallas function 1 big-endian";

/// A function that was traced for arguments of certain types, in a form that can be saved; `jax.export`.
/// [`Lowered::export`](crate::transform::Lowered::export) makes one.
///
/// It contains the operations and the elements of captured arrays, and no machine code: it is compiled for the machine
/// that loads it.
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::transform::Exported;
/// use pallas_rt::{lower};
/// let shape = Client::cpu().shape_dtype(&[2], DType::F32)?;
/// let text = lower(|x: &Array| (x * 2.0, x.sum(..)))(&shape)?.export()?.to_text();
///
/// let f = Exported::from_text(&text)?.compile(&Client::cpu())?;
/// let x = Client::cpu().array(&[1.0f32, 2.0], &[2])?;
/// let (double, sum): (Array, Array) = f.call_like(&(x.clone(),), &(x.clone(), x))?;
/// assert_eq!((double.to_vec::<f32>()?, sum.to_vec::<f32>()?), (vec![2.0, 4.0], vec![3.0]));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Exported {
    graph: Graph,
    inputs: Vec<(String, Type)>,
    outputs: Vec<(String, Type)>,
    captured: Vec<(Type, Vec<u8>)>,
}

fn export_error(message: impl Into<String>) -> Error {
    Error::File { path: "an exported function".into(), message: message.into() }
}

impl Exported {
    /// An exported function of a graph whose last parameters stand for captured arrays; `inputs` and `outputs` are the
    /// paths of the leaves.
    pub(super) fn new(graph: &Graph, inputs: &[String], outputs: Vec<String>, captured: &[Array]) -> Result<Exported> {
        let calls = |is: &dyn Fn(&Call) -> bool| graph.any_op(&|op| matches!(op, Op::Call(call) if is(call)));
        if calls(&|call| call.mesh().is_some()) {
            return Err(export_error("a function with a `shard_map`, which runs on its mesh alone, is not saved"));
        }
        if calls(&|call| Callback::of(call).is_some()) {
            return Err(export_error("a function with a `pure_callback`, which this process alone has, is not saved"));
        }
        // The text form has no constraints on how values are sharded.
        if graph.any_op(&|op| op.sharding_constraint().is_some()) {
            let help = "export the function without `with_sharding_constraint`";
            return Err(export_error(format!(
                "a function with constraints on how values are sharded is not saved; help: {help}"
            )));
        }
        let bytes = |x: &Array| Ok((type_of(x), x.to_bytes()?));
        Ok(Exported {
            inputs: inputs.iter().cloned().zip(graph.param_types()).collect(),
            outputs: outputs.into_iter().zip(graph.result_types()).collect(),
            captured: captured.iter().map(bytes).collect::<Result<_>>()?,
            graph: graph.clone(),
        })
    }

    /// The path and the type of each leaf of the tuple of arguments.
    pub fn inputs(&self) -> &[(String, Type)] {
        &self.inputs
    }

    /// The path and the type of each leaf of the result.
    pub fn outputs(&self) -> &[(String, Type)] {
        &self.outputs
    }

    /// The function as text, with its version and a hash.
    pub fn to_text(&self) -> String {
        let mut body = String::new();
        for (name, leaves) in [("input", &self.inputs), ("output", &self.outputs)] {
            for (path, ty) in leaves {
                body += &format!("{name} {ty} {}\n", serde_json::Value::from(path.as_str()));
            }
        }
        for (ty, bytes) in &self.captured {
            body += &format!("captured {ty} {}\n", hex::encode(bytes));
        }
        body += &text_format::print(&self.graph);
        format!("{FILE_HEADER}\nsha256 {}\n{body}", hash_text(&body))
    }

    /// Reads what [`to_text`](Exported::to_text) wrote.
    ///
    /// # Errors
    /// [`Error::File`] for another text, one of another version, and one that was changed since.
    pub fn from_text(text: &str) -> Result<Exported> {
        let (header, rest) = text.split_once('\n').unwrap_or((text, ""));
        if header != FILE_HEADER {
            let shown: String = header.chars().take(60).collect();
            return Err(export_error(format!(
                "it begins with {shown:?}; help: expected {FILE_HEADER:?}: export it anew"
            )));
        }
        let (line, body) = rest.split_once('\n').unwrap_or((rest, ""));
        if line.strip_prefix("sha256 ") != Some(&hash_text(body)) {
            return Err(export_error(
                "its hash is not that of its contents; help: it is damaged or was edited: export it anew",
            ));
        }
        Exported::parse_body(body).map_err(export_error)
    }

    /// Reads the part of a text after its header and hash.
    pub(super) fn parse_body(mut body: &str) -> Result<Exported, String> {
        let (mut inputs, mut outputs, mut captured) = (vec![], vec![], vec![]);
        while let Some((line, rest)) = body.split_once('\n') {
            let mut words = line.splitn(3, ' ');
            let (name, ty, value) = (words.next(), words.next(), words.next());
            let (Some(name @ ("input" | "output" | "captured")), Some(ty), value) = (name, ty, value) else { break };
            let ty = text_format::parse_type(ty).ok_or_else(|| format!("`{ty}` is no type"))?;
            let value = value.unwrap_or_default();
            let path = || serde_json::from_str::<String>(value).map_err(|e| format!("`{value}` is no path: {e}"));
            match name {
                "input" => inputs.push((path()?, ty)),
                "output" => outputs.push((path()?, ty)),
                _ => captured
                    .push((ty, hex::decode(value).map_err(|_| "the elements of a captured array are no hex digits")?)),
            }
            body = rest;
        }
        let graph = text_format::parse(body)?;
        let takes: Vec<&Type> = inputs.iter().map(|(_, ty)| ty).chain(captured.iter().map(|(ty, _)| ty)).collect();
        if graph.param_types().iter().ne(takes) || graph.result_types().iter().ne(outputs.iter().map(|(_, ty)| ty)) {
            return Err("its graph takes or gives other types than it lists".into());
        }
        Ok(Exported { graph, inputs, outputs, captured })
    }

    /// Writes the text to a file.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let refused = |e: std::io::Error| Error::File { path: path.display().to_string(), message: e.to_string() };
        std::fs::write(path, self.to_text()).map_err(refused)
    }

    /// Reads a file that [`save`](Exported::save) wrote.
    ///
    /// # Errors
    /// [`Error::File`] for one that cannot be read, and as [`from_text`](Exported::from_text).
    pub fn load(path: impl AsRef<Path>) -> Result<Exported> {
        let path = path.as_ref();
        let place = path.display().to_string();
        let text = std::fs::read(path).map_err(|e| Error::File { path: place.clone(), message: e.to_string() })?;
        let text = String::from_utf8(text)
            .map_err(|_| Error::File { path: place.clone(), message: "it is no text: export it anew".into() })?;
        Exported::from_text(&text).map_err(|e| match e {
            Error::File { message, .. } => Error::File { path: place, message },
            other => other,
        })
    }

    /// Compiles the function for a client.
    ///
    /// # Errors
    /// Errors of the device; [`Error::Value`] for captured elements that are none of their type.
    pub fn compile(&self, client: &Client) -> Result<ExportedFunction> {
        let array = |(ty, bytes): &(Type, Vec<u8>)| client.array_from_bytes(ty.dtype, &ty.shape, bytes);
        let captured = self.captured.iter().map(array).collect::<Result<_>>()?;
        JIT_COMPILES.fetch_add(1, Relaxed);
        let program = Compilation::new(CompilationInput::from_graph(self.graph.clone(), client)).into_program()?;
        let (inputs, outputs) = (self.inputs.clone(), self.outputs.clone());
        Ok(ExportedFunction { inputs, outputs, captured, client: client.clone(), program })
    }
}

/// A function that was exported and is compiled for a client; see [`Exported::compile`].
pub struct ExportedFunction {
    inputs: Vec<(String, Type)>,
    outputs: Vec<(String, Type)>,
    captured: Vec<Array>,
    client: Client,
    program: Program,
}

impl ExportedFunction {
    /// Calls the function with the leaves of its arguments; returns those of its result.
    ///
    /// # Errors
    /// Another number of arrays, types or client than the function was traced for; errors of the device.
    pub fn call(&self, args: &[&Array]) -> Result<Vec<Array>> {
        if args.len() != self.inputs.len() {
            let message = format!("{} arrays for a function of {}", args.len(), self.inputs.len());
            return Err(Error::Tree { called: Loc::NONE, message });
        }
        for (x, (path, ty)) in args.iter().zip(&self.inputs) {
            x.check()?;
            if type_of(x) != *ty {
                let message = format!("argument `{path}` is {}, the function takes {ty}", type_of(x));
                return Err(Error::Tree { called: Loc::NONE, message });
            }
            x.check_client(&self.client, &|| format!("argument `{path}`"))?;
        }
        let all: Vec<&Array> = args.iter().copied().chain(&self.captured).collect();
        self.program.run(&all)
    }

    /// Calls the function with the tuple of its arguments; returns its result as a tree like `like`, whose leaves do
    /// not matter.
    ///
    /// # Errors
    /// As [`call`](ExportedFunction::call); leaves with other paths than those of the function.
    pub fn call_like<A: Tree, O: Tree>(&self, args: &A, like: &O) -> Result<O> {
        check_leaf_paths("argument", &tree::paths(args), &self.inputs)?;
        check_leaf_paths("result", &tree::paths(like), &self.outputs)?;
        let leaves = tree::leaves(args);
        tree::rebuild(like, self.call(&leaves.iter().collect::<Vec<&Array>>())?)
    }
}

impl std::fmt::Debug for ExportedFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExportedFunction({:?} -> {:?})", self.inputs, self.outputs)
    }
}

/// Returns an error if the leaves of a tree have other paths than those of the exported function.
fn check_leaf_paths(what: &str, given: &[String], exported: &[(String, Type)]) -> Result<()> {
    let known: Vec<&str> = exported.iter().map(|(path, _)| &**path).collect();
    if given.iter().map(String::as_str).eq(known.iter().copied()) {
        return Ok(());
    }
    let differs = given.iter().zip(&known).find(|(a, b)| a != b);
    let message = match differs {
        Some((a, b)) => format!("the {what} has the leaf `{a}` where the function has `{b}`"),
        None => format!("the {what} has {} leaves, that of the function {}", given.len(), known.len()),
    };
    Err(Error::Tree { called: Loc::NONE, message })
}

fn hash_text(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}
