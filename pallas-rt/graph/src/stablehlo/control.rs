//! Calls.
use super::Printer;
use super::operation::{Detail, HloRegion, Value};
use crate::call::Call;
use crate::graph::Graph;
use pallas_ir::Type;

/// The operations of StableHLO for a call that stays one. No method has a default.
pub(crate) trait CallHlo {
    /// Writes them; returns the results.
    fn stablehlo(&self, p: &mut Printer, args: &[Value], gives: &[Type]) -> Vec<Value>;
}

impl Printer {
    pub(super) fn call(&mut self, call: &Call, args: &[Value], gives: &[Type]) -> Vec<Value> {
        match call.function() {
            // The identity.
            Some(graph) if graph.equations.is_empty() && graph.params == graph.results => args.to_vec(),
            Some(graph) => self.called(graph, args, gives),
            None => call.hlo().expect("it stays").stablehlo(self, args, gives),
        }
    }

    /// A call of a function of its own; equal graphs are one function.
    fn called(&mut self, graph: &Graph, args: &[Value], gives: &[Type]) -> Vec<Value> {
        let number = match self.known.get(graph) {
            Some(&number) => number,
            None => {
                let number = self.known.len();
                self.known.insert(graph.clone(), number);
                let function = self.function(false, format!("call{number}"), graph);
                self.functions.push(function);
                number
            }
        };
        let all: Vec<&Value> = args.iter().collect();
        self.w.operation("func.call", &all, vec![], Detail::Call(format!("call{number}")), gives)
    }

    /// A region that takes values of these types; see [`Writer::region`](super::writer::Writer::region).
    pub(crate) fn region(
        &mut self,
        takes: &[Type],
        write: impl FnOnce(&mut Self, &[Value]) -> Vec<Value>,
    ) -> HloRegion {
        let params = self.w.params(takes);
        let outer = self.w.turn(vec![]);
        let made = write(self, &params);
        self.w.end("return", &made);
        HloRegion { params, lines: self.w.turn(outer) }
    }
}
