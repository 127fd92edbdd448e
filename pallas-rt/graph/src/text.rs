//! Graphs as text.
use crate::graph::{Equation, Graph, Op, Var};
use std::fmt;

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Literal(x) => fmt::Display::fmt(x, f),
            Op::StopGradient => f.write_str("stop_gradient"),
            Op::Scalar(op) => fmt::Display::fmt(op, f),
            Op::Structural(op) => fmt::Display::fmt(op, f),
        }
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let typed = |v: &Var| format!("{v}:{}", self.ty(*v));
        let list = |vars: &[Var], one: &dyn Fn(&Var) -> String| vars.iter().map(one).collect::<Vec<_>>().join(", ");
        writeln!(f, "{{ lambda {} .", list(&self.params, &typed))?;
        for Equation { op, args, result, .. } in &self.equations {
            let args = list(args, &Var::to_string);
            writeln!(f, "    {} = {op}{}{args}", typed(result), if args.is_empty() { "" } else { " " })?;
        }
        write!(f, "  in {} }}", list(&self.results, &Var::to_string))
    }
}
