//! Translation of calls to StableHLO.
use super::StableHloTranslator;
use super::operation::{HloAttributes, HloRegion, HloValue};
use crate::call::Call;
use crate::graph::Graph;
use pallas_ir::Type;

/// The operations of StableHLO for a call that is no function, such as a loop. No method has a default.
pub(crate) trait CallHlo {
    /// Appends the operations, with results of the types `gives`; returns the results.
    fn emit_stablehlo(&self, p: &mut StableHloTranslator, args: &[HloValue], gives: &[Type]) -> Vec<HloValue>;
}

impl StableHloTranslator {
    /// Appends a call: of a function, or with the operations of a loop, a branch or a kernel.
    pub(super) fn emit_call(&mut self, call: &Call, args: &[HloValue], gives: &[Type]) -> Vec<HloValue> {
        match call.expansion_in_plan() {
            // A call of the identity is its operands.
            Some(graph) if graph.equations.is_empty() && graph.params == graph.results => args.to_vec(),
            Some(graph) => self.emit_function_call(graph, args, gives),
            None => call.hlo().expect("it stays").emit_stablehlo(self, args, gives),
        }
    }

    /// Appends a call of a function, which is added to the module unless it has an equal one.
    fn emit_function_call(&mut self, graph: &Graph, args: &[HloValue], gives: &[Type]) -> Vec<HloValue> {
        let number = match self.known.get(graph) {
            Some(&number) => number,
            None => {
                let number = self.known.len();
                self.known.insert(graph.clone(), number);
                let function = self.translate_function(false, format!("call{number}"), graph);
                self.functions.push(function);
                number
            }
        };
        let all: Vec<&HloValue> = args.iter().collect();
        self.w.emit_op_with_regions("func.call", &all, vec![], HloAttributes::Call(format!("call{number}")), gives)
    }

    /// Returns a region with parameters of the types `param_types`; `write` appends its operations and returns its
    /// results.
    pub(crate) fn build_region(
        &mut self,
        param_types: &[Type],
        write: impl FnOnce(&mut Self, &[HloValue]) -> Vec<HloValue>,
    ) -> HloRegion {
        let params = self.w.new_params(param_types);
        let outer = self.w.replace_lines(vec![]);
        let made = write(self, &params);
        self.w.emit_return("return", &made);
        HloRegion { params, lines: self.w.replace_lines(outer) }
    }
}
