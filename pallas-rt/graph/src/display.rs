//! Writes graphs as text, for messages and dumps.
use crate::graph::{Equation, Graph, Op, Var};
use std::fmt;

/// The text of a call in graphs and in jaxprs. No method has a default.
pub(crate) trait CallText {
    /// Returns the attributes that follow the name, with a space in front of each; called graphs are written after
    /// them.
    fn attributes(&self) -> String;
    /// Returns the parameters in the style of jaxprs, sorted by name; `text` writes a called graph.
    fn jaxpr_params(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String>;
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Literal(x) => fmt::Display::fmt(x, f),
            Op::Scalar(op) => fmt::Display::fmt(op, f),
            Op::Structural(op) => fmt::Display::fmt(op, f),
            Op::Dynamic(op) => fmt::Display::fmt(op, f),
            Op::Identity(op) => fmt::Display::fmt(op, f),
            Op::Collective(op) => fmt::Display::fmt(op, f),
            Op::Call(call) => {
                write!(f, "{}{}", call.name(), call.text().attributes())?;
                // Called graphs are indented.
                call.graphs()
                    .into_iter()
                    .try_for_each(|graph| write!(f, "\n      {}", graph.to_string().replace('\n', "\n      ")))
            }
        }
    }
}

impl Op {
    /// Returns the name of the operation in messages, without attributes.
    pub fn name(&self) -> String {
        match self {
            Op::Call(call) => call.name().into(),
            op => op.to_string().split([' ', '(']).next().unwrap_or_default().into(),
        }
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{{ lambda {} .", join_vars(&self.params, |v| self.typed_var_text(v)))?;
        self.equations.iter().try_for_each(|e| writeln!(f, "    {}", self.equation_text(e)))?;
        write!(f, "  in {} }}", join_vars(&self.results, Var::to_string))
    }
}

impl Graph {
    /// Returns the text of an equation as graphs print it: the results with their types, the operation and the
    /// operands, as in `%2:f32[4] = add %0, %1`.
    pub(crate) fn equation_text(&self, Equation { op, args, results, .. }: &Equation) -> String {
        let args = join_vars(args, Var::to_string);
        let space = if args.is_empty() { "" } else { " " };
        format!("{} = {op}{space}{args}", join_vars(results, |v| self.typed_var_text(v)))
    }

    /// Returns a variable with its type: `%0:f32[2]`.
    fn typed_var_text(&self, v: &Var) -> String {
        format!("{v}:{}", self.ty(*v))
    }
}

/// Returns the variables with commas between them, each as `to_text` writes it.
pub(crate) fn join_vars<'a>(vars: impl IntoIterator<Item = &'a Var>, to_text: impl FnMut(&'a Var) -> String) -> String {
    vars.into_iter().map(to_text).collect::<Vec<_>>().join(", ")
}
