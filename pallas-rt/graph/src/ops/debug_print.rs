//! `debug_print`: prints a value each time it is computed, as `jax.debug.print`.
use super::prelude::*;
use super::samples::{Sample, Sampled};
use crate::mesh::invariant;
use crate::stablehlo::Line;
use pallas_ir::DType;

/// A call that prints its operand (`jax.debug.print`). Its result, an i32 scalar, exists only because every equation
/// needs one: nothing reads it, and no step writes it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Print {
    /// The text to print before the elements.
    pub label: String,
    /// Extents of the batch axes, which the operand has in front. Each element of the batches is printed separately.
    pub batches: Vec<usize>,
}

impl Called for Print {
    fn graphs(&self) -> Vec<(Runs, &Graph)> {
        vec![]
    }
    fn with_graphs(&self, _: Vec<Graph>) -> Call {
        self.clone().into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        match args {
            [x] if x.shape.starts_with(&self.batches) => Ok(vec![Type::scalar(DType::I32)]),
            _ => Err(wrong(self, format!("operands {args:?} in batches of {:?}", self.batches))),
        }
    }
}

impl Stays for Print {
    fn has_effect(&self) -> bool {
        true
    }
    fn without_unread(&self, _: &Equation, _: &[bool]) -> Option<Equation> {
        None
    }
}

impl CallText for Print {
    fn attributes(&self) -> String {
        format!(" {:?} batches{:?}", self.label, self.batches)
    }
    fn jaxpr(&self, _: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("fmt={}", self.label)]
    }
}

impl CallRule for Print {
    fn active(&self, _: &[bool]) -> Vec<bool> {
        vec![false]
    }
    fn jvp(&self, forward: Forward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        forward.kept();
        Ok(vec![None])
    }
    fn vjp(&self, _: Backward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        Ok(vec![None])
    }
    fn batched(&self, batch: Batch<'_>) -> Result<Vec<(Var, bool)>, Refused> {
        let Batch { to, args, axis, .. } = batch;
        let batches = [&[axis.size], &self.batches[..]].concat();
        let made = to.fitting_all(Print { batches, ..self.clone() }, args);
        Ok(vec![(made[0], false)])
    }
    fn differs(&self, _: &[bool], _: BatchAxis<'_>) -> Vec<bool> {
        vec![false]
    }
    fn guards_from(&self, has: &[bool]) -> Option<usize> {
        Some(has.len())
    }
}

impl CallLinear for Print {
    fn linearity(&self, _: &mut Analysis, _: &Equation, _: &[Linearity]) -> Vec<Linearity> {
        vec![Linearity::Constant]
    }
}

impl CallStates for Print {
    fn typed(&self, typing: &Typing, _: &Equation, own: Vec<States>) -> Result<Made, Refused> {
        Ok(Made { call: self.clone().into(), takes: own, gives: vec![invariant(typing.mesh())] })
    }
}

impl CallRegions for Print {
    fn rule(&self) -> Option<Rule> {
        None
    }
    fn view(&self, build: &mut Build<'_>, args: &[Val], gives: &[Type], loc: Loc) -> Vec<Val> {
        build.call_node(self.clone(), args, gives, loc)
    }
    fn localized(&self, to: &mut Partition<'_>, id: NodeId) {
        to.whole(&to.program.nodes[id], self.clone().into());
    }
    /// Prints on the first device only.
    fn united(&self, to: &mut Graph, of: &Devices<'_>) -> Vec<Vec<Var>> {
        match of.is_first() {
            true => vec![to.fitting_all(self.clone(), &of.taken(0..1))],
            false => vec![vec![to.int(0)]],
        }
    }
}

impl CallStep for Print {
    fn lower(&self, from: &Lowering<'_>) -> Lowered {
        let Lowering { graph, e, .. } = from;
        let work = Work::Print { print: self.clone(), ty: graph.ty(e.args[0]).clone(), at: e.loc };
        Lowered { work, inputs: e.args.clone(), outputs: vec![], in_place: vec![] }
    }
}

impl CallSized for Print {
    fn agree(&self, other: &Call, is_same_type: bool) -> Result<(), String> {
        match Print::of(other) == Some(self) && is_same_type {
            true => Ok(()),
            false => Err("`debug_print` of an array whose extents depend on the size".into()),
        }
    }
    fn numbers(&self) -> Vec<usize> {
        vec![]
    }
    fn masked(&self, scope: &mut Scope<'_>, _: Vec<Part>, _: &[Option<usize>], args: &[Var]) -> Vec<Var> {
        scope.to.fitting_all(self.clone(), args)
    }
}

impl Saved for Print {
    fn print(&self, _: &mut file::Printer) -> String {
        let label: String = self.label.bytes().map(|b| format!("{b:02x}")).collect();
        format!(" x{label}{}", file::joined(&self.batches))
    }
    fn parse(_: &mut file::Parser<'_>, words: &mut file::Words<'_>) -> Result<Print, String> {
        let text = words.word("a label")?;
        let digits = text.strip_prefix('x').filter(|digits| digits.is_ascii() && digits.len().is_multiple_of(2));
        let byte = |digits: &str, i: usize| u8::from_str_radix(&digits[i..i + 2], 16).ok();
        let bytes = digits.and_then(|d| (0..d.len()).step_by(2).map(|i| byte(d, i)).collect::<Option<Vec<u8>>>());
        let label = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        let label = label.ok_or_else(|| format!("`{text}` is no label"))?;
        Ok(Print { label, batches: words.rest("an extent")? })
    }
}

impl CallHlo for Print {
    fn stablehlo(&self, p: &mut Printer, args: &[Value], _: &[Type]) -> Vec<Value> {
        p.w.line(Line::Comment(self.label.clone(), args[0].clone()));
        vec![p.w.position(0)]
    }
}

impl Sampled for Print {
    /// Returns no samples, since tests should print nothing.
    fn samples(_: DType) -> Vec<Sample> {
        vec![]
    }
}
