//! Texts of plans.
use super::plan::{ArenaRegion, MemoryLocation, Plan, StepOp};
use super::unfused_reasons::UnfusedReason;
use std::fmt;

impl fmt::Display for MemoryLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLocation::Param(i) => write!(f, "param{i}"),
            MemoryLocation::Fresh(i) => write!(f, "result{i}"),
            MemoryLocation::Temporary(i) => write!(f, "temporary{i}"),
        }
    }
}

/// Text of a plan: its memory, then a line for each step, with the memory of its outputs, what it does, the memory of
/// its inputs, and the outputs that it updates in place; in parentheses the reason why the step does not compute an
/// input itself. After a loop or a branch come the plans of its bodies, and at the end all kernels.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_steps(f, 0)?;
        let mut kernels = vec![];
        self.collect_kernel_texts(&mut kernels);
        kernels.into_iter().try_for_each(|kernel| write!(f, "\n{kernel}"))
    }
}

impl Plan {
    /// Writes the memory and the steps of a plan, indented to this depth.
    fn write_steps(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        let indent = "  ".repeat(depth);
        write!(f, "{indent}results {:?} bytes, arena {} bytes", self.fresh, self.arena)?;
        for (i, ArenaRegion { offset, bytes }) in self.temporary.iter().enumerate() {
            write!(f, ", {} {offset}..{}", MemoryLocation::Temporary(i), offset + bytes)?;
        }
        writeln!(f)?;
        let list =
            |places: &[MemoryLocation]| places.iter().map(MemoryLocation::to_string).collect::<Vec<_>>().join(", ");
        for step in &self.steps {
            for (from, to) in &step.copies {
                writeln!(f, "{indent}{to} = copy {from}")?;
            }
            write!(f, "{indent}{} = ", list(&step.outputs))?;
            let input = |(place, apart): (&MemoryLocation, &Option<UnfusedReason>)| match apart {
                Some(apart) => format!("{place} ({apart})"),
                None => place.to_string(),
            };
            let mut inputs: Vec<String> = step.inputs.iter().zip(&step.apart).map(input).collect();
            let changed =
                step.in_place.iter().map(|(k, apart)| format!("in place {}", input((&step.outputs[*k], apart))));
            inputs.extend(changed);
            writeln!(f, "{} of {}", step.work.name(), inputs.join(", "))?;
            step.work.bodies().into_iter().try_for_each(|body| body.write_steps(f, depth + 1))?;
        }
        let results: Vec<String> = self.results.iter().map(|(place, ty)| format!("{place}: {ty}")).collect();
        writeln!(f, "{indent}in {}", results.join(", "))
    }

    /// Collects the texts of all kernels, each once, in the order of the steps.
    fn collect_kernel_texts(&self, all: &mut Vec<String>) {
        for step in &self.steps {
            if let StepOp::Kernel { kernel, .. } = &step.work {
                let text = kernel.to_string();
                if !all.contains(&text) {
                    all.push(text);
                }
            }
            step.work.bodies().into_iter().for_each(|plan| plan.collect_kernel_texts(all));
        }
    }
}
