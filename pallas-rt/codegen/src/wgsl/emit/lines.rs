//! Lines of text, the steps and nodes that they belong to, and their cost.
use super::emitter::BodyEmitter;
use crate::wgsl::barriers::{ControlFlow, MemoryId, MemoryStep, ShaderNode, StepAccess, WordOwnership};

impl BodyEmitter<'_> {
    /// Appends a line to the current step, or to the text between steps.
    pub(super) fn emit_line(&mut self, text: impl AsRef<str>) {
        let text = text.as_ref();
        self.out.lines += text.lines().count();
        if !self.written {
            return;
        }
        let depth = self.depth;
        let to = match &mut self.step {
            Some(step) => &mut step.text,
            None => {
                let nodes = self.open.last_mut().expect("a region is open");
                if !matches!(nodes.last(), Some(ShaderNode::Text(_))) {
                    nodes.push(ShaderNode::Text(String::new()));
                }
                match nodes.last_mut() {
                    Some(ShaderNode::Text(text)) => text,
                    _ => unreachable!("pushed above"),
                }
            }
        };
        for l in text.lines() {
            (0..depth).for_each(|_| to.push_str("    "));
            to.push_str(l);
            to.push('\n');
        }
    }
    /// Writes lines in braces; `head` has the opening brace.
    pub(super) fn emit_braced_block(&mut self, head: impl AsRef<str>, body: impl FnOnce(&mut Self)) {
        self.emit_line(head);
        self.depth += 1;
        body(self);
        self.depth -= 1;
        self.emit_line("}");
    }
    pub(super) fn current_nodes(&mut self) -> &mut Vec<ShaderNode> {
        self.open.last_mut().expect("a region is open")
    }
    /// Writes lines that access memory, as one step.
    pub(super) fn emit_memory_step(&mut self, body: impl FnOnce(&mut Self)) {
        self.step = Some(MemoryStep { line: self.at_line, ..MemoryStep::default() });
        body(self);
        if let Some(step) = self.step.take() {
            // Lines that access nothing need no barrier, and join the text around them.
            let node = if step.reads.is_empty() && step.writes.is_empty() && !step.synchronizes {
                ShaderNode::Text(step.text)
            } else {
                ShaderNode::MemoryStep(step)
            };
            self.current_nodes().push(node);
        }
    }
    /// Writes lines and nodes into a list of their own, which it returns.
    pub(super) fn collect_nested_nodes(&mut self, body: impl FnOnce(&mut Self)) -> Vec<ShaderNode> {
        self.open.push(vec![]);
        self.depth += 1;
        body(self);
        self.depth -= 1;
        self.open.pop().expect("opened above")
    }
    /// Appends a loop if `repeats`, else a branch, with these parts, each with its opening line.
    pub(super) fn push_control_flow(&mut self, repeats: bool, parts: Vec<(String, Vec<ShaderNode>)>) {
        let pad = "    ".repeat(self.depth);
        let parts = parts.into_iter().map(|(head, nodes)| (format!("{pad}{head}\n"), nodes)).collect();
        self.current_nodes().push(ShaderNode::ControlFlow(ControlFlow { repeats, parts, close: format!("{pad}}}\n") }));
    }
    /// Records that the current step reads `memory` or, if `write`, writes it; `owner` assigns the words to threads, if
    /// each thread accesses only its own.
    pub(super) fn record_step_access(&mut self, memory: MemoryId, owner: Option<WordOwnership>, write: bool) {
        let touch = StepAccess { memory, owner };
        let step = self.step.as_mut().expect("memory is touched inside of a step");
        let list = if write { &mut step.writes } else { &mut step.reads };
        if !list.contains(&touch) {
            list.push(touch);
        }
    }
    /// Adds the price of an operation, as often as the present line is executed, to the thread's work.
    pub(super) fn add_work(&mut self, price: f64) {
        self.out.work += price * self.trips;
    }
    /// Runs `body`, whose lines are executed `trips` times.
    pub(super) fn with_trips(&mut self, trips: f64, body: impl FnOnce(&mut Self)) {
        let before = self.trips;
        self.trips *= trips;
        body(self);
        self.trips = before;
    }
    /// Writes a step in which the threads loop over `n` elements in strides.
    pub(super) fn emit_strided_loop(&mut self, n: usize, body: impl FnOnce(&mut Self)) {
        if n == 0 {
            return;
        }
        let threads = self.plan.thread_count();
        self.spent += n.div_ceil(threads) as u64 + 1;
        self.emit_memory_step(|e| {
            e.emit_braced_block(format!("for (var e = thread; e < {n}u; e += {threads}u) {{"), |e| {
                e.strided = Some(n);
                e.with_trips(n.div_ceil(threads) as f64, body);
                e.strided = None;
            });
        });
    }
    /// Counts iterations inside of the surrounding `emit_strided_loop`: `per_element` for each of `elements` elements.
    pub(super) fn count_inner_iterations(&mut self, per_element: usize, elements: usize) {
        self.spent += ((per_element + 1) * elements.div_ceil(self.plan.thread_count())) as u64;
    }
    /// Writes the update of the counter of loop iterations, for drivers that silently stop long loops.
    pub(super) fn flush_iteration_count(&mut self) {
        let spent = std::mem::take(&mut self.spent);
        *self.counted.last_mut().expect("the body is open") += spent;
        let Some(limit) = self.limit else { return };
        if spent > 0 {
            self.emit_line(format!("spent += {spent}u;"));
        }
        self.emit_line(format!("if (spent >= {limit}u) {{ atomicMax(&error_flag[0], 1u); }}"));
    }
}
