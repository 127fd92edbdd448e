//! A launch that repeats: everything but its arrays and parameters is resolved once.
use super::compiled::Compiled;
use super::run::repeat_value_bytes;
use crate::array::Array;
use crate::array::Client;
#[cfg(feature = "graph")]
use pallas_device::devices::sequence::{Action, MemorySlot, SequenceBuilder};
use pallas_device::error::{Error, Result};
use pallas_device::{Buffer, ByOperand, LAUNCHES, Launch, LaunchGeometry};
use pallas_ir::{Kernel, Literal, Loc, Operand, OperandKind};
use smallvec::smallvec;
use std::sync::atomic::Ordering;

/// A kernel with a client and sizes, prepared for repeated launches, which write existing arrays and allocate nothing.
///
/// ```
/// use pallas_rt::exec::Compiled;
/// use pallas_rt::{Client, ir::{DType, Kernel}};
///
/// let kernel: Kernel = "
/// kernel double {
///   dim N
///   grid cdiv(N, 8) parallel
///   in x: f32[N] block [8]
///   out out: f32[N] block [8] empty 0.0
///   map @x (%0: i32[]) { yield %0 }
///   map @out (%1: i32[]) { yield %1 }
///   body {
///     %2: f32[8] = load @x block[0:8]
///     %3: f32[8] = add %2, %2
///     store @out block[0:8] %3
///   }
/// }".parse().expect("tile IR");
/// let client = Client::cpu();
/// let double = Compiled::new(kernel)?.prepare(&client, &[3])?;
/// let x = client.array(&[1.0f32, 2.0, 3.0], &[3])?;
/// let mut y = client.zeros(&[3], DType::F32)?;
/// double.launch(&[&x], &[], &mut [&mut y])?;
/// assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) compiled: Compiled,
    pub(super) client: Client,
    pub(super) geometry: LaunchGeometry,
}

impl Prepared {
    /// Shape of each output, in order.
    pub fn shapes(&self) -> Vec<&[usize]> {
        pallas_device::output_indices(self.compiled.traced()).map(|i| &self.geometry.shapes[i][..]).collect()
    }

    /// Runs the kernel. `inputs` are inputs and prefetches in the order of the operands, `params` the parameters in
    /// that order; results are written to `outputs`. An input that an output aliases is not among `inputs`: that
    /// output's array holds its contents.
    ///
    /// # Errors
    /// [`Error::Kernel`] or [`Error::Output`] for arguments that do not fit; on the interpreter any fault; device
    /// errors; [`Error::Traced`] for a traced array; the error of a poisoned one.
    #[track_caller]
    pub fn launch(&self, inputs: &[&Array], params: &[Literal], outputs: &mut [&mut Array]) -> Result<()> {
        let (kernel, called) = (self.compiled.traced(), Loc::caller());
        for array in inputs.iter().copied().chain(outputs.iter().map(|output| &**output)) {
            array.check_kernel_argument(&kernel.name, called)?;
        }
        for (index, output) in outputs.iter_mut().enumerate() {
            exclusive_output_buffer(index, output)?;
        }
        let count = kernel.operands.len();
        let mut buffers: ByOperand<Option<&Buffer>> = smallvec![None; count];
        let mut values: ByOperand<Option<Literal>> = smallvec![None; count];
        let mut results = outputs.iter();
        for i in pallas_device::output_indices(kernel) {
            let array = self.check_operand(i, results.next().map(|array| &**array))?;
            buffers[i] = Some(array.buffer()?);
            if let OperandKind::Output { alias: Some(from), .. } = &kernel.operands[i].kind {
                buffers[from.index()] = buffers[i];
            }
        }
        let (mut inputs, mut params) = (inputs.iter(), params.iter());
        for (i, operand) in kernel.operands.iter().enumerate() {
            match operand.kind {
                OperandKind::Input | OperandKind::Prefetch if buffers[i].is_none() => {
                    buffers[i] = Some(self.check_operand(i, inputs.next().copied())?.buffer()?);
                }
                OperandKind::Param => values[i] = Some(self.compiled.check_param(i, params.next())?),
                OperandKind::Input | OperandKind::Prefetch | OperandKind::Output { .. } | OperandKind::Scratch => {}
            }
        }
        let rest = inputs.len() + params.len() + results.len();
        if rest > 0 {
            return Err(self.compiled.excess_arguments_error(rest));
        }
        if self.geometry.is_empty() {
            drop(buffers);
            // Outputs that alias an input already hold its contents.
            for ((index, i), output) in pallas_device::output_indices(kernel).enumerate().zip(outputs) {
                if let OperandKind::Output { empty, alias: None } = &kernel.operands[i].kind {
                    let bytes = repeat_value_bytes(*empty, output.len());
                    exclusive_output_buffer(index, output)?.write(&bytes)?;
                }
            }
            return Ok(());
        }
        LAUNCHES.fetch_add(1, Ordering::Relaxed);
        let launch =
            Launch { kernel, at: Loc::NONE, called, geometry: &self.geometry, params: &values, buffers: &buffers };
        // SAFETY: `check_operand` has checked the shapes; outputs are borrowed mutably, and `exclusive_output_buffer`
        // has checked that no other array shares their memory.
        unsafe { self.compiled.executable_for(&self.client).run(&self.client, &launch) }
    }

    /// Runs the kernel on memory: the inputs and prefetches in the order of the operands, the parameters, and the
    /// outputs. An input that an output aliases is not among the inputs: that output holds its contents.
    ///
    /// # Errors
    /// On the interpreter any fault; device errors.
    ///
    /// # Panics
    /// If memory is not that of the operands' shapes, or a parameter is missing.
    pub(crate) fn launch_on_buffers(
        &self,
        inputs: &[&Buffer],
        params: &[Literal],
        outputs: &mut [Buffer],
    ) -> Result<()> {
        let kernel = self.compiled.traced();
        let buffers: ByOperand<Option<&Buffer>> =
            assign_by_operand(kernel, inputs, &outputs.iter().collect::<ByOperand<_>>());
        for ((operand, shape), buffer) in kernel.operands.iter().zip(&self.geometry.shapes).zip(&buffers) {
            if matches!(operand.kind, OperandKind::Scratch | OperandKind::Param) {
                continue;
            }
            let bytes = shape.iter().product::<usize>() * operand.dtype.bytes();
            assert!(
                buffer.is_some_and(|buffer| buffer.len() == bytes),
                "`{}` has no memory of {shape:?}",
                operand.name
            );
        }
        if self.geometry.is_empty() {
            drop(buffers);
            for (i, output) in pallas_device::output_indices(kernel).zip(outputs) {
                if let OperandKind::Output { empty, alias: None } = &kernel.operands[i].kind {
                    output.write(&repeat_value_bytes(*empty, self.geometry.shapes[i].iter().product()))?;
                }
            }
            return Ok(());
        }
        LAUNCHES.fetch_add(1, Ordering::Relaxed);
        let params = param_values(kernel, params);
        let launch = Launch {
            kernel,
            at: Loc::NONE,
            called: Loc::NONE,
            geometry: &self.geometry,
            params: &params,
            buffers: &buffers,
        };
        // SAFETY: the lengths are checked, and outputs are borrowed mutably.
        unsafe { self.compiled.executable_for(&self.client).run(&self.client, &launch) }
    }

    /// The launch as actions of a sequence, which find memory in slots; `inputs` and `outputs` are in the orders of
    /// [`launch_on_buffers`](Prepared::launch_on_buffers). The client is the CPU's.
    #[cfg(feature = "graph")]
    pub(crate) fn build_actions(
        &self,
        builder: &mut SequenceBuilder,
        inputs: &[MemorySlot],
        params: &[Literal],
        outputs: &[MemorySlot],
    ) -> Vec<Action> {
        let kernel = self.compiled.traced();
        if !self.geometry.is_empty() {
            let operands = assign_by_operand(kernel, inputs, outputs);
            let executable = self.compiled.executable_for(&self.client);
            return vec![builder.create_launch(
                kernel,
                executable,
                &self.geometry,
                param_values(kernel, params),
                operands,
            )];
        }
        let fill = |(i, &to): (usize, &MemorySlot)| match &kernel.operands[i].kind {
            OperandKind::Output { empty, alias: None } => Some(Action::Fill {
                to,
                bytes: repeat_value_bytes(*empty, self.geometry.shapes[i].iter().product()).into(),
            }),
            _ => None,
        };
        pallas_device::output_indices(kernel).zip(outputs).filter_map(fill).collect()
    }

    /// Returns the array of an operand, if it has the operand's element type and shape and is on this client.
    fn check_operand<'a>(&self, operand: usize, array: Option<&'a Array>) -> Result<&'a Array> {
        self.compiled.check_array(&self.client, operand, &self.geometry.shapes[operand], array)
    }
}

/// Assigns `inputs` and `outputs` to a kernel's operands in their order. An input that an output aliases gets what the
/// output gets.
fn assign_by_operand<T: Copy>(kernel: &Kernel, inputs: &[T], outputs: &[T]) -> ByOperand<Option<T>> {
    let (mut inputs, mut outputs) = (inputs.iter().copied(), outputs.iter().copied());
    let mut all: ByOperand<Option<T>> = smallvec![None; kernel.operands.len()];
    for i in pallas_device::output_indices(kernel) {
        all[i] = outputs.next();
        if let OperandKind::Output { alias: Some(from), .. } = &kernel.operands[i].kind {
            all[from.index()] = all[i];
        }
    }
    for (operand, own) in kernel.operands.iter().zip(&mut all) {
        if matches!(operand.kind, OperandKind::Input | OperandKind::Prefetch) && own.is_none() {
            *own = inputs.next();
        }
    }
    all
}

/// By operand, its value if it is a parameter, from `params` in order; `None` for any other operand.
fn param_values(kernel: &Kernel, params: &[Literal]) -> ByOperand<Option<Literal>> {
    let mut params = params.iter();
    let value = |operand: &Operand| {
        let is_param = operand.kind == OperandKind::Param;
        is_param.then(|| *params.next().expect("a value for each parameter"))
    };
    kernel.operands.iter().map(value).collect()
}

/// Returns the memory of output `index`; an error if another array shares it.
pub(crate) fn exclusive_output_buffer(index: usize, output: &mut Array) -> Result<&mut Buffer> {
    output.exclusive_buffer_mut()?.ok_or_else(|| {
        let message = "another array shares its memory and would change too".into();
        Error::Output { index, message }
    })
}
