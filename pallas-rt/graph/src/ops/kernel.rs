//! A call of a tile kernel from a graph.
mod batch;
mod blocks;
mod jvp;
mod rule;
mod tiling;

use super::prelude::*;
use super::samples::{Sample, Sampled};
use crate::stablehlo::Detail;
use crate::transform::widened;
use pallas_ir::{At, DType, Kernel, Literal, Operand, OperandId, OperandKind};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A call of a tile kernel with known sizes. The operands are the kernel's inputs and prefetches, the results its
/// outputs, both in the order in which the kernel lists them.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelCall {
    /// The kernel as it was traced, before any pass.
    pub kernel: Arc<Kernel>,
    /// For each named dimension of the kernel, its extent.
    pub sizes: Vec<i64>,
    /// Values of the kernel's scalar parameters, in order.
    pub params: Vec<Literal>,
    /// The types of the inputs and prefetches.
    pub takes: Vec<Type>,
    /// The types of the outputs.
    pub gives: Vec<Type>,
}

/// Kernels store floats only as bits, so equality is reflexive.
impl Eq for KernelCall {}

impl Hash for KernelCall {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Hashing more is not worth it: kernels that agree in all of this rarely differ.
        (&self.kernel.name, self.kernel.insts.len(), &self.sizes, &self.params, &self.takes).hash(state);
    }
}

/// Returns the input whose memory an output takes over; `None` if there is none.
fn alias_of(operand: &Operand) -> Option<OperandId> {
    if let OperandKind::Output { alias, .. } = operand.kind { alias } else { None }
}

/// Returns true for an operand that a call passes an array for: an input or a prefetch.
fn is_read(operand: &Operand) -> bool {
    matches!(operand.kind, OperandKind::Input | OperandKind::Prefetch)
}

impl Called for KernelCall {
    fn graphs(&self) -> Vec<(Runs, &Graph)> {
        vec![]
    }
    fn with_graphs(&self, _: Vec<Graph>) -> Call {
        self.clone().into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        if !self.takes.iter().eq(args.iter().copied()) {
            return Err(wrong(self, format!("`{}` takes {:?}, found {args:?}", self.kernel.name, self.takes)));
        }
        Ok(self.gives.clone())
    }
}

impl Stays for KernelCall {
    fn has_effect(&self) -> bool {
        false
    }
    fn without_unread(&self, _: &Equation, _: &[bool]) -> Option<Equation> {
        None
    }
}

impl CallText for KernelCall {
    fn attributes(&self) -> String {
        format!(" {} sizes{:?}", self.kernel.name, self.sizes)
    }
    fn jaxpr(&self, _: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("name={}", self.kernel.name)]
    }
}

impl CallRule for KernelCall {
    fn active(&self, on: &[bool]) -> Vec<bool> {
        vec![on.contains(&true); self.gives.len()]
    }
    fn jvp(&self, mut forward: Forward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        let refused = |diag| Refused { at: forward.e.loc, diag };
        let Some(found) = jvp::kernel(self, &forward.on()).map_err(refused)? else {
            forward.kept();
            return Ok(vec![None; self.gives.len()]);
        };
        let args = forward.grouped_operands(&found.takes, &[found.takes.len()]);
        let of = forward.outputs(&found.gives);
        Ok(forward.replaced(found.call.into(), args, &[found.gives.len()], of))
    }
    fn vjp(&self, back: Backward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        let message = format!("the gradient of kernel `{}`, which states none", self.kernel.name);
        let help = "state it by `custom_vjp`, with a kernel for the way back, or pass the kernel a `stop_gradient` of \
                    its arguments";
        Err(Refused { at: back.e.loc, diag: Diag::new("kernel-gradient", At::Op, message, help) })
    }
    fn batched(&self, batch: Batch<'_>) -> Result<Vec<(Var, bool)>, Refused> {
        let Batch { to, args, has, axis, .. } = batch;
        // An input that an output aliases needs the axis, since the output has it.
        let mut wanted = has.to_vec();
        let operands = &self.kernel.operands;
        for alias in operands.iter().filter_map(alias_of) {
            let position = operands[..alias.index()].iter().filter(|operand| is_read(operand)).count();
            wanted[position] = true;
        }
        let args = widened(to, args, has, &wanted, axis.size);
        let made = to.fitting_all(batch::kernel(self, &wanted, axis.size), &args);
        Ok(made.into_iter().map(|v| (v, true)).collect())
    }
    fn differs(&self, _: &[bool], _: BatchAxis<'_>) -> Vec<bool> {
        vec![true; self.gives.len()]
    }
    /// Leaves operands as they are, since reverse mode is refused.
    fn guards_from(&self, has: &[bool]) -> Option<usize> {
        Some(has.len())
    }
}

impl CallLinear for KernelCall {
    fn linearity(&self, of: &mut Analysis, e: &Equation, _: &[Linearity]) -> Vec<Linearity> {
        vec![of.wrong(e); e.results.len()]
    }
}

impl CallStates for KernelCall {
    fn typed(&self, typing: &Typing, e: &Equation, _: Vec<States>) -> Result<Made, Refused> {
        typing.joined_call(self.clone(), e)
    }
}

impl CallRegions for KernelCall {
    fn rule(&self) -> Option<Rule> {
        Some(Rule::of_kernel(self))
    }
    fn view(&self, build: &mut Build<'_>, args: &[Val], gives: &[Type], loc: Loc) -> Vec<Val> {
        build.call_node(self.clone(), args, gives, loc)
    }
    fn localized(&self, to: &mut Partition<'_>, id: NodeId) {
        to.kernel(id, self);
    }
    fn united(&self, to: &mut Graph, of: &Devices<'_>) -> Vec<Vec<Var>> {
        of.alone(to, self.clone())
    }
}

impl CallStep for KernelCall {
    fn lower(&self, from: &Lowering<'_>) -> Lowered {
        let operands = &self.kernel.operands;
        let outputs = operands.iter().filter(|operand| matches!(operand.kind, OperandKind::Output { .. }));
        let aliases: Vec<Option<OperandId>> = outputs.map(alias_of).collect();
        let mut in_place = vec![None; aliases.len()];
        let mut inputs = vec![];
        let read = operands.iter().enumerate().filter(|(_, operand)| is_read(operand));
        for ((i, _), &arg) in read.zip(&from.e.args) {
            match aliases.iter().position(|alias| *alias == Some(OperandId(i as u32))) {
                Some(output) => in_place[output] = Some(arg),
                None => inputs.push(arg),
            }
        }
        let KernelCall { kernel, sizes, params, .. } = self.clone();
        Lowered { work: Work::Kernel { kernel, sizes, params }, inputs, outputs: from.e.results.clone(), in_place }
    }
}

impl CallSized for KernelCall {
    fn agree(&self, other: &Call, _: bool) -> Result<(), String> {
        match KernelCall::of(other) == Some(self) {
            true => Ok(()),
            false => Err(format!("kernel `{}` has other sizes", self.kernel.name)),
        }
    }
    fn numbers(&self) -> Vec<usize> {
        vec![]
    }
    fn masked(&self, scope: &mut Scope<'_>, _: Vec<Part>, _: &[Option<usize>], args: &[Var]) -> Vec<Var> {
        scope.to.fitting_all(self.clone(), args)
    }
}

impl Saved for KernelCall {
    fn print(&self, p: &mut file::Printer) -> String {
        let number = p.kernel(&self.kernel);
        let params = file::joined(self.params.iter().map(file::number));
        format!(" {number} sizes{} params{params}", file::joined(&self.sizes))
    }
    fn parse(p: &mut file::Parser<'_>, words: &mut file::Words<'_>) -> Result<KernelCall, String> {
        let number: usize = words.value("a kernel")?;
        let kernel = p.kernel_of(number)?;
        words.expect("sizes")?;
        let mut sizes: Vec<i64> = vec![];
        for _ in &kernel.dims {
            sizes.push(words.value("an extent")?);
        }
        if sizes.iter().any(|&n| n < 0) {
            return Err("an extent is negative".into());
        }
        words.expect("params")?;
        let mut params = vec![];
        for operand in kernel.operands.iter().filter(|operand| operand.kind == OperandKind::Param) {
            let x = words.literal()?;
            if x.dtype != operand.dtype {
                return Err(format!("`{}` of {} is given as {}", operand.name, operand.dtype, x.dtype));
            }
            params.push(x);
        }
        let names: Vec<(&str, i64)> = kernel.dims.iter().map(|d| &*d.name).zip(sizes.iter().copied()).collect();
        let of = |operand: &Operand| -> Result<Type, String> {
            let extent = |dim: &pallas_ir::Dim| {
                let n = dim.evaluate(&names).map_err(|e| format!("`{}` has no shape: {e}", operand.name))?;
                usize::try_from(n).map_err(|_| format!("`{}` has no shape", operand.name))
            };
            Ok(Type::new(operand.dtype, operand.dims.iter().map(extent).collect::<Result<Vec<_>, _>>()?))
        };
        let takes = kernel.operands.iter().filter(|operand| is_read(operand)).map(of).collect::<Result<_, _>>()?;
        let is_output = |operand: &&Operand| matches!(operand.kind, OperandKind::Output { .. });
        let gives = kernel.operands.iter().filter(is_output).map(of).collect::<Result<_, _>>()?;
        Ok(KernelCall { kernel, sizes, params, takes, gives })
    }
}

impl CallHlo for KernelCall {
    /// Writes a custom call, whose configuration is the kernel's text, sizes and parameters, with the kernel's sharding
    /// rule for Shardy.
    fn stablehlo(&self, p: &mut Printer, args: &[Value], gives: &[Type]) -> Vec<Value> {
        let config = format!("sizes{:?} params{:?}\n{}", self.sizes, self.params, self.kernel);
        let rule = p.w.with_shardings.then(|| Rule::of_kernel(self).text(0));
        let detail = Detail::Kernel { name: self.kernel.name.clone(), config, rule };
        p.w.operation("custom_call", &args.iter().collect::<Vec<_>>(), vec![], detail, gives)
    }
}

impl Sampled for KernelCall {
    fn samples(dtype: DType) -> Vec<Sample> {
        let text = format!(
            "kernel doubled {{
  dim N
  grid cdiv(N, 4) parallel
  in x: {dtype}[N] block [4]
  out y: {dtype}[N] block [4] empty 0.0
  map @x (%0: i32[]) {{ yield %0 }}
  map @y (%1: i32[]) {{ yield %1 }}
  body {{
    %2: {dtype}[4] = load @x block[0:4]
    %3: {dtype}[4] = add %2, %2
    store @y block[0:4] %3
  }}
}}"
        );
        let kernel = Arc::new(text.parse().expect("a kernel"));
        let types = vec![Type::new(dtype, [6])];
        let call = KernelCall { kernel, sizes: vec![6], params: vec![], takes: types.clone(), gives: types.clone() };
        vec![Sample::of(call, &types).without_gradient()]
    }
}
