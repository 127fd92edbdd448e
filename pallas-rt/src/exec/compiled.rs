//! A kernel and its compiled form for each kind of device.
use super::prepared::Prepared;
use super::run::{self, LaunchArguments};
use crate::array::Array;
use crate::array::Client;
use pallas_codegen::cpu::Thresholds;
use pallas_codegen::passes::block_position_ranges;
use pallas_device::error::{Error, Result};
use pallas_device::{Executable, KernelSource, LaunchGeometry, argument_indices};
use pallas_ir::{At, Diag, Dim, Kernel, Literal, Loc, Operand, OperandId, OperandKind};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// A kernel that runs on every client. Each kind of device compiles it at its first launch there; clones share the
/// compiled forms. The [module](crate::exec) has an example.
#[derive(Clone)]
pub struct Compiled(pub(crate) Arc<CompiledForms>);

/// A kernel with its compiled forms and its variants.
pub(crate) struct CompiledForms {
    source: Arc<KernelSource>,
    /// Indexed by [`DeviceKind`](pallas_device::DeviceKind).
    devices: [OnceLock<Box<dyn Executable>>; 3],
    /// Variants of the kernel whose outputs alias inputs, by these pairs.
    sharing: Mutex<Vec<(AliasPairs, Compiled)>>,
}

/// Thresholds, such as numbers of rows, at which code for the CPU changes to another method of computing. Those of unit
/// tests are so low that arrays of a few elements reach them.
#[cfg(not(test))]
pub(crate) const CPU_METHOD_THRESHOLDS: &Thresholds = &Thresholds::MEASURED;
#[cfg(test)]
pub(crate) const CPU_METHOD_THRESHOLDS: &Thresholds = &Thresholds::FOR_TESTS;

/// Pairs of an output and the input that it aliases.
type AliasPairs = Vec<(OperandId, OperandId)>;

/// An argument of a launch. Arguments are inputs, prefetches and parameters, in the order of the kernel's operands.
#[derive(Clone, Debug)]
pub enum Argument {
    /// An array.
    Array(Array),
    /// An array whose memory an output may take over, if it has no other owner.
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
    /// Checks a kernel in its traced form; it is compiled at its first launch.
    ///
    /// # Errors
    /// [`Error::Kernel`] with the first rule of [`verify`](pallas_ir::verify) that it breaks.
    pub fn new(kernel: Kernel) -> Result<Compiled> {
        if let Err(violation) = pallas_ir::verify(&kernel) {
            let help = "kernels of `#[kernel]` and of `Builder` keep these rules; see `pallas_ir::verify`";
            let diag = Diag::new("invalid", At::Op, format!("{}: {}", violation.entity, violation.message), help);
            return Err(Error::kernel(&kernel.name, violation.loc, "", diag));
        }
        Ok(Compiled::from_trace(kernel))
    }

    /// Wraps a kernel that tracing made, and that is therefore valid.
    pub(crate) fn from_trace(kernel: Kernel) -> Compiled {
        Compiled::from_source(KernelSource::new(kernel, CPU_METHOD_THRESHOLDS))
    }

    /// Wraps a kernel that tracing made, and whose text is known.
    #[cfg(feature = "graph")]
    pub(crate) fn from_trace_with_text(kernel: Kernel, text: Arc<str>) -> Compiled {
        Compiled::from_source(KernelSource::with_text(kernel, text, CPU_METHOD_THRESHOLDS))
    }

    fn from_source(source: KernelSource) -> Compiled {
        Compiled(Arc::new(CompiledForms {
            source: Arc::new(source),
            devices: Default::default(),
            sharing: Mutex::default(),
        }))
    }

    /// The kernel as it was traced.
    pub fn traced(&self) -> &Arc<Kernel> {
        &self.0.source.traced
    }

    /// The lowered form, which the CPU and GPU backends compile.
    pub fn lowered(&self) -> &Arc<Kernel> {
        self.0.source.lowered()
    }

    /// Runs the kernel and returns its outputs in order. `sizes` are the extents of its dimensions, in the order of the
    /// kernel's; `arguments` its inputs, prefetches and parameters, in the order of its operands. Donated arrays are
    /// dropped unless an output takes over their memory.
    ///
    /// # Errors
    /// [`Error::Kernel`] for sizes and arguments that do not fit the kernel; on the interpreter any fault; device
    /// errors; [`Error::Traced`] for a traced array; the error of a poisoned one.
    #[track_caller]
    pub fn launch(
        &self,
        client: &Client,
        sizes: &[i64],
        arguments: impl IntoIterator<Item = Argument>,
    ) -> Result<Vec<Array>> {
        let (kernel, called) = (self.traced(), Loc::caller());
        let arguments: Vec<Argument> = arguments.into_iter().collect();
        for argument in &arguments {
            if let Argument::Array(x) | Argument::Donated(x) = argument {
                x.check_kernel_argument(&kernel.name, called)?;
            }
        }
        let geometry = self.launch_geometry(sizes)?;
        let (mut arrays, mut params) = (vec![None; kernel.operands.len()], vec![None; kernel.operands.len()]);
        let mut rest = arguments.into_iter();
        for i in argument_indices(kernel) {
            let (shape, is_param) = (&geometry.shapes[i], kernel.operands[i].kind == OperandKind::Param);
            let given = rest.next();
            let is_donated = matches!(given, Some(Argument::Donated(_)));
            match (given, is_param) {
                (Some(Argument::Param(x)), true) => params[i] = Some(self.check_param(i, Some(&x))?),
                (Some(Argument::Array(x) | Argument::Donated(x)), false) => {
                    self.check_array(client, i, shape, Some(&x))?;
                    arrays[i] = Some((x, is_donated));
                }
                (found, _) => return Err(self.unfit_argument_error(i, shape, found)),
            }
        }
        let more = rest.count();
        if more > 0 {
            return Err(self.excess_arguments_error(more));
        }
        let call =
            LaunchArguments { geometry: &geometry, at: Loc::NONE, called, params: &params, arrays, lent: vec![] };
        run::run_kernel(self, client, call)
    }

    /// Prepares launches that repeat on the same client with the same sizes, the extents of the kernel's dimensions in
    /// order.
    ///
    /// # Errors
    /// [`Error::Kernel`] for sizes that do not fit the kernel.
    pub fn prepare(&self, client: &Client, sizes: &[i64]) -> Result<Prepared> {
        Ok(Prepared { compiled: self.clone(), client: client.clone(), geometry: self.launch_geometry(sizes)? })
    }

    /// The executable for a client's kind of device, compiled at the first use.
    pub(crate) fn executable_for(&self, client: &Client) -> &dyn Executable {
        &**self.0.devices[client.kind() as usize].get_or_init(|| client.runtime().compile(self.0.source.clone()))
    }

    /// Bytes that a launch takes besides its arrays; on a GPU including its results.
    ///
    /// # Errors
    /// The device cannot run the kernel.
    pub(crate) fn memory_needed(&self, client: &Client, geometry: &LaunchGeometry) -> Result<u64> {
        if geometry.is_empty() { Ok(0) } else { self.executable_for(client).memory_needed(client, geometry) }
    }

    /// Estimate of the memory, in bytes, of the kernel, of its compiled forms for all kinds of devices and of its
    /// aliasing variants.
    pub(crate) fn estimated_memory_bytes(&self) -> u64 {
        let kernel = self.traced();
        let own = (kernel.insts.len() + kernel.values.len() + kernel.operands.len()) as u64 * 160;
        let devices =
            self.0.devices.iter().filter_map(OnceLock::get).map(|form| form.estimated_compiled_bytes()).sum::<u64>();
        let sharing = self.0.sharing.lock();
        own + devices + sharing.iter().map(|(_, compiled)| compiled.estimated_memory_bytes()).sum::<u64>()
    }

    /// Returns the variant of the kernel in which the outputs of `pairs` alias their inputs; it is made once and kept
    /// with the kernel.
    pub(super) fn find_or_make_aliasing_variant(&self, pairs: AliasPairs) -> Compiled {
        let mut sharing = self.0.sharing.lock();
        if let Some((_, found)) = sharing.iter().find(|(p, _)| *p == pairs) {
            return found.clone();
        }
        let mut kernel = Kernel::clone(self.traced());
        for (output, input) in &pairs {
            if let OperandKind::Output { alias, .. } = &mut kernel.operands[output.index()].kind {
                *alias = Some(*input);
            }
        }
        let compiled = Compiled::from_trace(kernel);
        sharing.push((pairs, compiled.clone()));
        compiled
    }

    fn launch_error(&self, code: &'static str, message: String, help: &str) -> Error {
        Error::kernel(&self.traced().name, Loc::NONE, "", Diag::new(code, At::Op, message, help))
    }

    /// Returns the grid and the shapes of a launch with these sizes.
    pub(crate) fn launch_geometry(&self, sizes: &[i64]) -> Result<LaunchGeometry> {
        let kernel = self.traced();
        if sizes.len() != kernel.dims.len() {
            let message = format!("the kernel has {} dimensions, {} sizes were given", kernel.dims.len(), sizes.len());
            return Err(self.launch_error("dimension", message, "one size for each `dim`, in their order"));
        }
        for (dim, &n) in kernel.dims.iter().zip(sizes) {
            if n < 0 || dim.size.is_some_and(|own| own != n) {
                let expected = dim.size.map_or("at least 0".into(), |own| own.to_string());
                let message = format!("dimension {} is {n}; it is {expected}", dim.name);
                return Err(self.launch_error(
                    "dimension",
                    message,
                    "give the sizes in the order of the kernel's `dim`s",
                ));
            }
        }
        let names: Vec<(&str, i64)> = kernel.dims.iter().map(|d| d.name.as_str()).zip(sizes.iter().copied()).collect();
        let number = |dim: &Dim| {
            let n = dim.evaluate(&names);
            n.as_ref().ok().copied().filter(|n| (0..=i64::from(i32::MAX)).contains(n)).ok_or_else(|| {
                let found = n.map_or_else(|e| format!("no number: {e}"), |n| n.to_string());
                self.launch_error("dimension", format!("the extent {dim} is {found}"), "extents are 0 to 2^31 - 1")
            })
        };
        let shape = |operand: &Operand| match operand.kind {
            OperandKind::Scratch => Ok(operand.block_shape()),
            _ => operand.dims.iter().map(|dim| number(dim).map(|n| n as usize)).collect::<Result<Vec<_>>>(),
        };
        let shapes = kernel.operands.iter().map(shape).collect::<Result<Vec<_>>>()?;
        for (operand, shape) in kernel.operands.iter().zip(&shapes) {
            let OperandKind::Output { alias: Some(from), .. } = operand.kind else { continue };
            if shapes[from.index()] != *shape {
                let message =
                    format!("`{}` is {shape:?}, the input that it aliases {:?}", operand.name, shapes[from.index()]);
                return Err(self.launch_error("alias", message, "an alias has the shape of its input"));
            }
        }
        let grid = kernel.grid.iter().map(|axis| number(&axis.extent)).collect::<Result<Vec<_>>>()?;
        let semantics = kernel.grid.iter().map(|axis| axis.semantics);
        let steps = kernel.steps.iter().map(number).collect::<Result<Vec<_>>>()?;
        let geometry = LaunchGeometry::new(sizes.to_vec(), grid, semantics, shapes);
        // A kernel that is given in lowered form has loops for its sequential axes already.
        let geometry = geometry.map(|mut geometry| {
            geometry.sequential.extend(steps);
            geometry
        });
        let geometry = geometry.and_then(|geometry| self.check_block_positions(&geometry).map(|()| geometry));
        geometry.map_err(|diag| Error::kernel(&kernel.name, Loc::NONE, "", diag))
    }

    /// Checks that blocks begin at positions that fit in 32 bits: once for each new geometry, since backends rely on
    /// it.
    ///
    /// # Errors
    /// The index map of an operand gives a position out of range.
    pub(crate) fn check_block_positions(&self, geometry: &LaunchGeometry) -> Result<(), Diag> {
        block_position_ranges::check_block_positions(self.traced(), &geometry.sizes, &geometry.grid)
    }

    /// Returns the array for an operand of this shape if it fits. Refuses a missing one, one of another element type or
    /// shape, and one on another client.
    pub(super) fn check_array<'a>(
        &self,
        client: &Client,
        operand: usize,
        shape: &[usize],
        array: Option<&'a Array>,
    ) -> Result<&'a Array> {
        let own = &self.traced().operands[operand];
        let fits = array.filter(|array| (array.dtype(), array.shape()) == (own.dtype, shape));
        let array = fits.ok_or_else(|| self.unfit_argument_error(operand, shape, array.map(Argument::from)))?;
        array.check_client(client, &|| format!("`{}`", own.name))?;
        Ok(array)
    }

    /// Returns the value of a parameter if it fits. Refuses a missing one, and one of another type.
    pub(super) fn check_param(&self, operand: usize, value: Option<&Literal>) -> Result<Literal> {
        let fits = value.filter(|x| x.dtype == self.traced().operands[operand].dtype);
        fits.copied().ok_or_else(|| self.unfit_argument_error(operand, &[], value.copied().map(Argument::from)))
    }

    /// The error for an operand of this shape whose argument is missing or does not fit.
    fn unfit_argument_error(&self, operand: usize, shape: &[usize], found: Option<Argument>) -> Error {
        let Operand { name, kind, dtype, .. } = &self.traced().operands[operand];
        let found = match found {
            Some(Argument::Array(array) | Argument::Donated(array)) => {
                format!("an array of {} {:?}", array.dtype(), array.shape())
            }
            Some(Argument::Param(x)) => format!("a value of {}", x.dtype),
            None => "none".into(),
        };
        if *kind == OperandKind::Param {
            let message = format!("`{name}` is a parameter of {dtype}, found {found}");
            return self.launch_error("argument", message, "give values in the order of the operands");
        }
        let message = format!("`{name}` is an array of {dtype} {shape:?}, found {found}");
        self.launch_error("argument", message, "give arrays in the order of the operands, as large as the sizes say")
    }

    /// The error for `excess` arguments beyond those that the kernel takes.
    pub(super) fn excess_arguments_error(&self, excess: usize) -> Error {
        let message = format!("{excess} more arguments than the kernel has operands");
        self.launch_error("argument", message, "inputs, prefetches and parameters take one each; see the kernel's text")
    }
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compiled({})", self.traced().name)
    }
}
