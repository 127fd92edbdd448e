//! A kernel and what devices made of it.
use super::prepared::Prepared;
use super::run::{self, Call};
use crate::array::Array;
use crate::device::{Client, DeviceKind, Executable, Geometry, Source, outputs};
use crate::error::{Error, Result};
use pallas_ir::{At, Diag, Dim, Kernel, Literal, Loc, OperandId, OperandKind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A kernel that runs on every client. Each kind of device compiles it at its first launch there; clones share the result.
#[derive(Clone)]
pub struct Compiled {
    forms: Arc<Forms>,
}

struct Forms {
    source: Arc<Source>,
    /// By [`DeviceKind`], in its order.
    devices: [OnceLock<Box<dyn Executable>>; 3],
    /// The kernel with outputs that take over the memory of inputs, by these pairs.
    sharing: Mutex<Vec<(Pairs, Compiled)>>,
}

/// Outputs and the inputs whose memory they take over.
type Pairs = Vec<(OperandId, OperandId)>;

/// An argument of a launch: inputs, prefetches and parameters, in the order of the kernel's operands.
#[derive(Clone, Debug)]
pub enum Argument {
    /// An array.
    Array(Array),
    /// An array whose memory may serve an output, if nobody else holds it.
    Donated(Array),
    /// The value of a parameter.
    Param(Literal),
}

impl From<&Array> for Argument {
    fn from(array: &Array) -> Argument {
        Argument::Array(array.clone())
    }
}

impl From<Array> for Argument {
    fn from(array: Array) -> Argument {
        Argument::Donated(array)
    }
}

impl From<Literal> for Argument {
    fn from(x: Literal) -> Argument {
        Argument::Param(x)
    }
}

impl Compiled {
    /// A kernel in its traced form.
    ///
    /// # Errors
    /// [`Error::Kernel`] with the first rule of [`verify`](pallas_ir::verify) that it breaks.
    pub fn new(kernel: Kernel) -> Result<Compiled> {
        if let Err(violation) = pallas_ir::verify(&kernel) {
            let help = "kernels of `#[kernel]` and of `Builder` keep these rules; see `pallas_ir::verify`";
            let diag = Diag::new("invalid", At::Op, violation.to_string(), help);
            return Err(Error::kernel(&kernel.name, Loc::NONE, "", diag));
        }
        Ok(Compiled::of_trace(kernel))
    }

    /// A kernel that tracing made, which is valid.
    pub(crate) fn of_trace(kernel: Kernel) -> Compiled {
        let source = Arc::new(Source::new(kernel));
        Compiled { forms: Arc::new(Forms { source, devices: Default::default(), sharing: Mutex::default() }) }
    }

    /// The kernel as traced.
    pub fn traced(&self) -> &Arc<Kernel> {
        &self.forms.source.traced
    }

    /// The lowered form, which the CPU and GPUs compile.
    pub fn lowered(&self) -> &Arc<Kernel> {
        self.forms.source.lowered()
    }

    /// Runs the kernel: `sizes` of its dimensions in their order, then its inputs, prefetches and parameters in theirs.
    ///
    /// # Errors
    /// [`Error::Kernel`] for arguments that are not the kernel's; on the interpreter any fault; device trouble.
    pub fn launch(&self, client: &Client, sizes: &[i64], arguments: &[Argument]) -> Result<Vec<Array>> {
        let geometry = self.geometry(sizes)?;
        let (arrays, params) = self.bind(client, &geometry, arguments)?;
        let call = Call { geometry: &geometry, at: Loc::NONE, params: &params, arrays, lent: vec![] };
        run::run(self, client, call)
    }

    /// A launch that repeats on the same client with the same sizes.
    ///
    /// # Errors
    /// [`Error::Kernel`] for sizes that do not fit the kernel.
    pub fn prepare(&self, client: &Client, sizes: &[i64]) -> Result<Prepared> {
        Ok(Prepared::new(self.clone(), client.clone(), self.geometry(sizes)?))
    }

    /// The executable for a client's kind of device.
    pub(crate) fn on(&self, client: &Client) -> &dyn Executable {
        let slot = match client.kind() {
            DeviceKind::Cpu => 0,
            DeviceKind::Interpreter => 1,
            DeviceKind::Gpu => 2,
        };
        &**self.forms.devices[slot].get_or_init(|| client.runtime().compile(self.forms.source.clone()))
    }

    /// Bytes that a launch takes besides its arrays; on a GPU with its results.
    ///
    /// # Errors
    /// The device cannot run it.
    pub(crate) fn memory_needed(&self, client: &Client, geometry: &Geometry) -> Result<u64> {
        if geometry.is_empty() { Ok(0) } else { self.on(client).memory_needed(client, geometry) }
    }

    /// Bytes that the compiled forms hold, roughly.
    pub(crate) fn bytes(&self) -> u64 {
        let kernel = self.traced();
        let own = (kernel.insts.len() + kernel.values.len() + kernel.operands.len()) as u64 * 160;
        let devices = self.forms.devices.iter().filter_map(OnceLock::get).map(|form| form.bytes()).sum::<u64>();
        let sharing = self.forms.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        own + devices + sharing.iter().map(|(_, compiled)| compiled.bytes()).sum::<u64>()
    }

    /// The same kernel with outputs that take over the memory of inputs.
    pub(super) fn sharing(&self, pairs: Pairs) -> Compiled {
        let mut sharing = self.forms.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = sharing.iter().find(|(p, _)| *p == pairs) {
            return found.clone();
        }
        let mut kernel = Kernel::clone(self.traced());
        for (output, input) in &pairs {
            if let OperandKind::Output { alias, .. } = &mut kernel.operands[output.index()].kind {
                *alias = Some(*input);
            }
        }
        let compiled = Compiled::of_trace(kernel);
        sharing.push((pairs, compiled.clone()));
        compiled
    }

    fn refused(&self, code: &'static str, message: String, help: &str) -> Error {
        Error::kernel(&self.traced().name, Loc::NONE, "", Diag::new(code, At::Op, message, help))
    }

    /// The numbers of a launch with these sizes.
    fn geometry(&self, sizes: &[i64]) -> Result<Geometry> {
        let kernel = self.traced();
        if sizes.len() != kernel.dims.len() {
            let message = format!("the kernel has {} dimensions, {} sizes were given", kernel.dims.len(), sizes.len());
            return Err(self.refused("dimension", message, "one size for each `dim`, in their order"));
        }
        for (dim, &n) in kernel.dims.iter().zip(sizes) {
            if n < 0 || dim.size.is_some_and(|own| own != n) {
                let expected = dim.size.map_or("at least 0".into(), |own| own.to_string());
                let message = format!("dimension {} is {n}; it is {expected}", dim.name);
                return Err(self.refused("dimension", message, "give the sizes in the order of the kernel's `dim`s"));
            }
        }
        let names: Vec<(&str, i64)> = kernel.dims.iter().map(|d| d.name.as_str()).zip(sizes.iter().copied()).collect();
        let number = |dim: &Dim| {
            let n = dim.bind(&names).as_number().filter(|n| (0..=i64::from(i32::MAX)).contains(n));
            n.ok_or_else(|| self.refused("dimension", format!("{dim} is no extent"), "extents are 0 to 2^31 - 1"))
        };
        let shape = |operand: &pallas_ir::Operand| match operand.kind {
            OperandKind::Scratch => Ok(operand.block_shape()),
            _ => operand.dims.iter().map(|dim| number(dim).map(|n| n as usize)).collect::<Result<Vec<_>>>(),
        };
        let shapes = kernel.operands.iter().map(shape).collect::<Result<Vec<_>>>()?;
        for (operand, shape) in kernel.operands.iter().zip(&shapes) {
            let OperandKind::Output { alias: Some(from), .. } = operand.kind else { continue };
            if shapes[from.index()] != *shape {
                let message =
                    format!("`{}` is {shape:?}, the input that it aliases {:?}", operand.name, shapes[from.index()]);
                return Err(self.refused("alias", message, "an alias has the shape of its input"));
            }
        }
        let grid = kernel.grid.iter().map(|axis| number(&axis.extent)).collect::<Result<Vec<_>>>()?;
        let programs = grid.iter().try_fold(1i64, |product, &n| product.checked_mul(n));
        if programs.is_none_or(|n| n > i64::from(i32::MAX)) {
            let message = format!("a grid of {grid:?} has more than 2^31 - 1 programs");
            return Err(self.refused("grid", message, "use larger blocks, or several launches"));
        }
        Ok(Geometry::new(sizes.to_vec(), grid, kernel.grid.iter().map(|axis| axis.semantics), shapes))
    }

    /// The arguments by operand.
    #[expect(clippy::type_complexity, reason = "the two tables of a call")]
    fn bind(
        &self,
        client: &Client,
        geometry: &Geometry,
        arguments: &[Argument],
    ) -> Result<(Vec<Option<(Array, bool)>>, Vec<Option<Literal>>)> {
        let kernel = self.traced();
        let (mut arrays, mut params) = (vec![None; kernel.operands.len()], vec![None; kernel.operands.len()]);
        let mut rest = arguments.iter();
        for (i, operand) in kernel.operands.iter().enumerate() {
            let array = |argument: Option<&Argument>| {
                let (array, donated) = match argument {
                    Some(Argument::Array(array)) => (Some(array), false),
                    Some(Argument::Donated(array)) => (Some(array), true),
                    Some(Argument::Param(_)) | None => (None, false),
                };
                let array = self.check_array(client, i, &geometry.shapes[i], array)?;
                Ok::<_, Error>((array.clone(), donated))
            };
            match operand.kind {
                OperandKind::Input | OperandKind::Prefetch => arrays[i] = Some(array(rest.next())?),
                OperandKind::Param => {
                    let value = match rest.next() {
                        Some(Argument::Param(x)) => Some(x),
                        Some(Argument::Array(_) | Argument::Donated(_)) | None => None,
                    };
                    params[i] = Some(self.check_param(i, value)?);
                }
                OperandKind::Output { .. } | OperandKind::Scratch => {}
            }
        }
        if rest.len() > 0 { Err(self.too_many(rest.len())) } else { Ok((arrays, params)) }
    }

    /// The array for an operand. Refused: none, one of another element type or shape, and one that lives elsewhere.
    pub(super) fn check_array<'a>(
        &self,
        client: &Client,
        operand: usize,
        shape: &[usize],
        array: Option<&'a Array>,
    ) -> Result<&'a Array> {
        let operand = &self.traced().operands[operand];
        let (name, dtype) = (&operand.name, operand.dtype);
        let found = match array {
            Some(array) if (array.dtype(), array.shape()) == (dtype, shape) => {
                array.check_client(client, || format!("`{name}`"))?;
                return Ok(array);
            }
            Some(array) => format!("an array of {} {:?}", array.dtype(), array.shape()),
            None => "none".into(),
        };
        let message = format!("`{name}` is an array of {dtype} {shape:?}, found {found}");
        Err(self.refused("argument", message, "give arrays in the order of the operands, as large as the sizes say"))
    }

    /// The value for a parameter. Refused: none, and one of another type.
    pub(super) fn check_param(&self, operand: usize, value: Option<&Literal>) -> Result<Literal> {
        let operand = &self.traced().operands[operand];
        if let Some(x) = value.filter(|x| x.dtype == operand.dtype) {
            return Ok(*x);
        }
        let found = value.map_or("none".into(), |x| format!("a value of {}", x.dtype));
        let message = format!("`{}` is a parameter of {}, found {found}", operand.name, operand.dtype);
        Err(self.refused("argument", message, "give values in the order of the operands"))
    }

    pub(super) fn too_many(&self, more: usize) -> Error {
        let message = format!("{more} more arguments than the kernel has operands");
        self.refused("argument", message, "inputs, prefetches and parameters take one each; see the kernel's text")
    }

    /// Operands that are outputs, in order.
    pub(super) fn outputs(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        outputs(self.traced())
    }
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compiled({})", self.traced().name)
    }
}
