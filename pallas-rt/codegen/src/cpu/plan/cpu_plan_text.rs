//! A plan as text: a line for each step, `results = step arguments`, and blocks of steps indented.
use super::Plan;
use super::step::{ElementwiseChain, ElementwiseOp, OperandView, Step, StepBlock};
use pallas_ir::Value;
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan {}: {} bytes of tiles and scratch a program", self.kernel.name, self.arena_bytes)?;
        self.write_block(f, &self.body, 1)
    }
}

impl Plan {
    /// Writes the lines of a block's steps.
    fn write_block(&self, f: &mut fmt::Formatter<'_>, block: &StepBlock, depth: usize) -> fmt::Result {
        let indent = "  ".repeat(depth);
        for step in &block.steps {
            // Scalars follow from program numbers and sizes, and take no time.
            if matches!(step, Step::ProgramId { .. } | Step::Scalar { .. }) {
                continue;
            }
            let result = |v: &Value| format!("{}: {}", self.value_text(*v), self.kernel.ty(*v));
            let results: Vec<String> = step.defines().iter().map(result).collect();
            let equals = if results.is_empty() { "" } else { " = " };
            writeln!(f, "{indent}{}{equals}{}", results.join(", "), self.step_text(step))?;
            for (i, inner) in step.nested_blocks().into_iter().enumerate().filter(|(_, inner)| !inner.steps.is_empty())
            {
                if i > 0 {
                    writeln!(f, "{indent}{}", if matches!(step, Step::If { .. }) { "else" } else { "do" })?;
                }
                self.write_block(f, inner, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Returns the text of a step: its operation and the values that it reads.
    fn step_text(&self, step: &Step) -> String {
        let name = match step {
            Step::ProgramId { .. } => "program".into(),
            Step::Scalar { .. } => "scalar".into(),
            Step::Chain(chain) => format!("chain {}", chain_text(chain)),
            Step::FusedChains(sweep) => {
                format!("sweep {}", sweep.chains.iter().map(chain_text).collect::<Vec<_>>().join("; "))
            }
            Step::Restride { .. } => "restride".into(),
            Step::Reshape { .. } => "reshape".into(),
            Step::Iota { axis, .. } => format!("count along {axis}"),
            Step::CopyBoxes { .. } => "join".into(),
            Step::Fold { axes, .. } => format!("fold axes {axes:?}"),
            Step::Scan { axis, .. } => format!("scan along {axis}"),
            Step::ArgMinMax { axis, .. } => format!("extreme along {axis}"),
            Step::Gather(_) => "gather".into(),
            Step::Scatter { .. } => "scatter".into(),
            Step::SumRows(_) => "sum rows".into(),
            Step::Sort { axis, .. } => format!("sort along {axis}"),
            Step::Dot(dot) if dot.in_place => "product added in place".into(),
            Step::Dot(_) => "product".into(),
            Step::LoopNests(_) => "nest".into(),
            Step::Load { from, in_place, .. } => {
                format!("{} {}", if *in_place { "refer to" } else { "copy" }, self.view_text(from))
            }
            Step::Store { to, .. } => format!("store {}", self.view_text(to)),
            Step::RedirectResult { value, at, .. } => {
                format!("compute {} in {}", self.value_text(*value), self.view_text(at))
            }
            Step::BeginAccumulation { sums, .. } => format!("leave @{} empty", self.kernel.operand(*sums).name),
            Step::Valid { of, axis, .. } => format!("valid {} along {axis}", self.view_text(of)),
            Step::Prefetch { of, .. } => format!("prefetch @{}", self.kernel.operand(*of).name),
            Step::If { .. } => "if".into(),
            Step::For { rolled, .. } => if rolled.is_some() { "for, as one function" } else { "for" }.into(),
            Step::While { .. } => "while".into(),
            Step::Print { label, .. } => format!("print {label:?}"),
            Step::Assert { message, .. } => format!("assert {message:?}"),
        };
        let reads: Vec<String> = step.reads().into_iter().map(|v| self.value_text(v)).collect();
        format!("{name} {}", reads.join(", ")).trim_end().into()
    }

    /// Returns the text of a value: its name or number.
    fn value_text(&self, v: Value) -> String {
        format!("%{}", self.kernel.label(v))
    }

    /// Returns the text of a view of an operand.
    fn view_text(&self, place: &OperandView) -> String {
        format!("@{}{:?}", self.kernel.operand(place.operand).name, place.view.shape())
    }
}

/// Returns the text of a chain: its shape, its operations in order, and its folds.
fn chain_text(chain: &ElementwiseChain) -> String {
    let link = |op: &ElementwiseOp| match op {
        ElementwiseOp::Scalar(op) => op.to_string(),
        ElementwiseOp::Cast => "cast".into(),
        ElementwiseOp::Bitcast => "bitcast".into(),
    };
    let folds = chain.sinks.iter().map(|sink| format!("fold by {}", sink.op));
    let all: Vec<String> = chain.links.iter().map(|l| link(&l.op)).chain(folds).collect();
    format!("{:?} ({})", chain.shape, all.join(" "))
}
