//! Reports chains without machine code, and the reasons, for authors of kernels and for tests.
use super::super::plan::Plan;
use super::super::plan::step::{
    ChainFold, ChainInput, ChainLink, ElementwiseChain, ElementwiseOp, LinkOperand, Step, StepBlock,
};
use super::compile_chains;
use super::operand_layouts::CodeSpecialization;
use pallas_ir::Value;

/// Returns a text for each chain of the plan that has no machine code, with the reasons, assuming that rows are whole
/// vectors.
pub(in super::super) fn report_missing_code(plan: &Plan) -> Vec<String> {
    let mut found = MissingCodeSearch { plan, repeated: vec![], reasons: vec![] };
    found.search_block(&plan.body);
    found.reasons
}

/// Visitor of a plan's steps that collects the chains of operations which cannot be compiled, with the reasons.
struct MissingCodeSearch<'p> {
    plan: &'p Plan,
    /// Tiles whose rows repeat one element.
    repeated: Vec<Value>,
    reasons: Vec<String>,
}

impl MissingCodeSearch<'_> {
    /// Searches the steps of a block, and of the blocks inside of it, for chains without machine code, and records the
    /// reasons.
    fn search_block(&mut self, block: &StepBlock) {
        for step in &block.steps {
            match step {
                Step::Restride { axes, to, .. } => {
                    let last = self.plan.kernel.ty(*to).shape.len().checked_sub(1);
                    if !axes.iter().any(|a| a.axis == last && a.stride != 0) {
                        self.repeated.push(*to);
                    }
                }
                Step::Chain(chain) => self.check_chain(chain),
                Step::FusedChains(sweep) => sweep.chains.iter().for_each(|chain| self.check_chain(chain)),
                _ => step.nested_blocks().into_iter().for_each(|block| self.search_block(block)),
            }
        }
    }

    /// Tries to compile a chain; if that fails, records the reasons: the links (operations) and folds that have no code
    /// by themselves, or else a lack of registers.
    fn check_chain(&mut self, chain: &ElementwiseChain) {
        let columns = chain.shape.last().copied().unwrap_or(1);
        let single = |input: &ChainInput| match input {
            ChainInput::Value(v) if columns != 1 => {
                self.repeated.contains(v) || self.plan.kernel.ty(*v).shape.last().is_none_or(|&n| n == 1)
            }
            _ => false,
        };
        let single = chain.inputs.iter().take(64).enumerate().map(|(i, input)| u64::from(single(input)) << i).sum();
        let form = CodeSpecialization { single, whole: true, ..CodeSpecialization::default() };
        let has_code = |chain: &ElementwiseChain, form| compile_chains(std::slice::from_ref(chain), &[form]).is_some();
        if chain.shape.contains(&0) || has_code(chain, form) {
            return;
        }
        let alone = |chain: ElementwiseChain| {
            has_code(&chain, CodeSpecialization { whole: true, ..CodeSpecialization::default() })
        };
        let links = chain.links.iter().filter(|l| !alone(chain_of_link(chain, l))).map(|l| match l.op {
            ElementwiseOp::Scalar(op) => format!("{op} of {}", l.args.last().map_or(l.dtype, |a| a.1)),
            ElementwiseOp::Cast => format!("cast of {} to {}", l.args[0].1, l.dtype),
            ElementwiseOp::Bitcast => format!("bits of {} as {}", l.args[0].1, l.dtype),
        });
        let sinks =
            chain.sinks.iter().filter(|s| !alone(chain_of_fold(s))).map(|s| format!("fold {} of {}", s.op, s.dtype));
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

/// Returns a chain that consists of only one link (operation) of another, to test if that alone can be compiled.
fn chain_of_link(chain: &ElementwiseChain, link: &ChainLink) -> ElementwiseChain {
    let input = |(i, (source, _)): (usize, &(LinkOperand, _))| match *source {
        LinkOperand::Input(x) if matches!(chain.inputs[x], ChainInput::Constant(_)) => chain.inputs[x],
        _ => ChainInput::Value(Value(i as u32)),
    };
    let args = link.args.iter().enumerate().map(|(i, (_, dtype))| (LinkOperand::Input(i), *dtype)).collect();
    let inputs = link.args.iter().enumerate().map(input).collect();
    let links = vec![ChainLink { args, output: Some(Value(0)), ..*link }];
    ElementwiseChain { shape: vec![8], inputs, links, ..ElementwiseChain::default() }
}

/// Returns a chain that consists of this fold only, to test if it alone can be compiled.
fn chain_of_fold(fold: &ChainFold) -> ElementwiseChain {
    let sinks = vec![ChainFold { of: LinkOperand::Input(0), ..*fold }];
    ElementwiseChain { shape: vec![8], inputs: vec![ChainInput::Value(Value(0))], sinks, ..ElementwiseChain::default() }
}
