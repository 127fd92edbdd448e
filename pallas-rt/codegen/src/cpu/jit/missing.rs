//! Reports chains without machine code, and the reasons, for authors of kernels and for tests.
use super::super::plan::Plan;
use super::super::plan::step::{Block, Chain, Input, Link, Operation, Sink, Source, Step};
use super::compile;
use super::form::Form;
use pallas_ir::Value;

/// Returns the reasons, one text for each chain of the plan without machine code, assuming that rows are whole
/// vectors.
pub(in super::super) fn missing(plan: &Plan) -> Vec<String> {
    let mut found = Missing { plan, repeated: vec![], reasons: vec![] };
    found.block(&plan.body);
    found.reasons
}

/// The search for chains without machine code.
struct Missing<'p> {
    plan: &'p Plan,
    /// Tiles whose rows repeat one element.
    repeated: Vec<Value>,
    reasons: Vec<String>,
}

impl Missing<'_> {
    /// Searches the chains of a block, and of the blocks inside of it.
    fn block(&mut self, block: &Block) {
        for step in &block.steps {
            match step {
                Step::Restride { axes, to, .. } => {
                    let last = self.plan.kernel.ty(*to).shape.len().checked_sub(1);
                    if !axes.iter().any(|a| a.axis == last && a.stride != 0) {
                        self.repeated.push(*to);
                    }
                }
                Step::Chain(chain) => self.chain(chain),
                Step::Sweep(sweep) => sweep.chains.iter().for_each(|chain| self.chain(chain)),
                _ => step.blocks().into_iter().for_each(|block| self.block(block)),
            }
        }
    }

    /// Tries to compile the chain, and each of its links and sinks alone if that fails.
    fn chain(&mut self, chain: &Chain) {
        let columns = chain.shape.last().copied().unwrap_or(1);
        let single = |input: &Input| match input {
            Input::Value(v) if columns != 1 => {
                self.repeated.contains(v) || self.plan.kernel.ty(*v).shape.last().is_none_or(|&n| n == 1)
            }
            _ => false,
        };
        let single = chain.inputs.iter().take(64).enumerate().map(|(i, input)| u64::from(single(input)) << i).sum();
        let form = Form { single, whole: true, ..Form::default() };
        let has_code = |chain: &Chain, form| compile(std::slice::from_ref(chain), &[form]).is_some();
        if chain.shape.contains(&0) || has_code(chain, form) {
            return;
        }
        let alone = |chain: Chain| has_code(&chain, Form { whole: true, ..Form::default() });
        let links = chain.links.iter().filter(|l| !alone(of_link(chain, l))).map(|l| match l.op {
            Operation::Scalar(op) => format!("{op} of {}", l.args.last().map_or(l.dtype, |a| a.1)),
            Operation::Cast => format!("cast of {} to {}", l.args[0].1, l.dtype),
            Operation::Bitcast => format!("bits of {} as {}", l.args[0].1, l.dtype),
        });
        let sinks = chain.sinks.iter().filter(|s| !alone(of_sink(s))).map(|s| format!("fold {} of {}", s.op, s.dtype));
        let mut reasons: Vec<String> = links.chain(sinks).collect();
        reasons.sort();
        reasons.dedup();
        if reasons.is_empty() {
            let rows = chain.inputs.len() - single.count_ones() as usize;
            let results = chain.links.iter().filter(|l| l.output.is_some()).count() + chain.sinks.len();
            reasons.push(format!("more operands than registers: at most {rows} rows read, {results} results"));
        }
        self.reasons.push(format!("{:?}: {}", chain.shape, reasons.join(", ")));
    }
}

/// Returns a chain that consists of this link only.
fn of_link(of: &Chain, link: &Link) -> Chain {
    let input = |(i, (source, _)): (usize, &(Source, _))| match *source {
        Source::Input(x) if matches!(of.inputs[x], Input::Constant(_)) => of.inputs[x],
        _ => Input::Value(Value(i as u32)),
    };
    let args = link.args.iter().enumerate().map(|(i, (_, dtype))| (Source::Input(i), *dtype)).collect();
    let inputs = link.args.iter().enumerate().map(input).collect();
    let links = vec![Link { args, output: Some(Value(0)), ..*link }];
    Chain { shape: vec![8], inputs, links, ..Chain::default() }
}

/// Returns a chain that consists of this fold only.
fn of_sink(sink: &Sink) -> Chain {
    let sinks = vec![Sink { of: Source::Input(0), ..*sink }];
    Chain { shape: vec![8], inputs: vec![Input::Value(Value(0))], sinks, ..Chain::default() }
}
