//! Graphs as text.
use crate::call::{Call, Scan, ShardMap, While};
use crate::graph::{Equation, Graph, Op, Var};
use crate::mesh::{Mesh, Sharding};
use std::fmt;

fn shardings(all: &[Sharding], mesh: &Mesh) -> String {
    all.iter().map(|sharding| sharding.text(mesh)).collect::<Vec<_>>().join("; ")
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Literal(x) => fmt::Display::fmt(x, f),
            Op::StopGradient => f.write_str("stop_gradient"),
            Op::Barrier => f.write_str("optimization_barrier"),
            Op::Scalar(op) => fmt::Display::fmt(op, f),
            Op::Structural(op) => fmt::Display::fmt(op, f),
            Op::Dynamic(op) => fmt::Display::fmt(op, f),
            Op::Annotation(annotation) => fmt::Display::fmt(annotation, f),
            Op::Collective(op) => fmt::Display::fmt(op, f),
            Op::Call(call) => {
                let sizes = match &**call {
                    Call::Scan(Scan { captured, carried, length, reverse, .. }) => {
                        let reverse = if *reverse { " reverse" } else { "" };
                        format!(" captured({captured}) carried({carried}) length({length}){reverse}")
                    }
                    Call::While(While { condition_captured, body_captured, .. }) => {
                        format!(" captured({condition_captured}, {body_captured})")
                    }
                    Call::Kernel(call) => format!(" {} sizes{:?}", call.kernel.name, call.sizes),
                    Call::Custom(custom) => format!(" captured({})", custom.captured),
                    Call::CustomJvp(custom) => format!(" captured({})", custom.captured),
                    Call::Print(print) => format!(" {:?} batches{:?}", print.label, print.batches),
                    Call::Named(named) => return write!(f, "name {:?}", named.name),
                    Call::ShardMap(map @ ShardMap { mesh, takes, gives, .. }) => {
                        let manual = if map.is_partial() { format!(" manual({})", manual(map)) } else { String::new() };
                        let (takes, gives) = (shardings(takes, mesh), shardings(gives, mesh));
                        format!(" mesh{mesh}{manual} takes({takes}) gives({gives})")
                    }
                    Call::Callback(callback) => format!(" vmap({})", callback.method),
                    Call::Case(_) | Call::Closed(_) | Call::Checkpoint(_) => String::new(),
                };
                write!(f, "{}{sizes}", call.name())?;
                // The called graphs stand deeper.
                call.graphs()
                    .into_iter()
                    .try_for_each(|graph| write!(f, "\n      {}", graph.to_string().replace('\n', "\n      ")))
            }
        }
    }
}

impl Call {
    /// Parameters in the style of jaxprs, sorted by name.
    pub(crate) fn jaxpr_params(&self) -> Vec<String> {
        let text = |graph: &Graph| graph.to_jaxpr(0).replace('\n', "\n      ");
        match self {
            Call::Scan(Scan { body, captured, carried, length, reverse }) => vec![
                format!("jaxpr={}", text(body)),
                format!("length={length}"),
                format!("num_carry={carried}"),
                format!("num_consts={captured}"),
                format!("reverse={}", if *reverse { "True" } else { "False" }),
            ],
            Call::While(While { condition, body, condition_captured, body_captured }) => vec![
                format!("body_jaxpr={}", text(body)),
                format!("body_nconsts={body_captured}"),
                format!("cond_jaxpr={}", text(condition)),
                format!("cond_nconsts={condition_captured}"),
            ],
            Call::Kernel(call) => vec![format!("name={}", call.kernel.name)],
            Call::Callback(callback) => {
                vec![format!("callback={:?}", callback.function), format!("vmap_method={}", callback.method)]
            }
            Call::Print(print) => vec![format!("fmt={}", print.label)],
            Call::Named(named) => vec![format!("name={}", named.name)],
            Call::ShardMap(map @ ShardMap { mesh, takes, gives, body, .. }) => vec![
                format!("axis_names={{{}}}", manual(map)),
                format!("in_specs=({})", shardings(takes, mesh)),
                format!("jaxpr={}", text(body)),
                format!("mesh={mesh}"),
                format!("out_specs=({})", shardings(gives, mesh)),
            ],
            Call::Case(_) | Call::Custom(_) | Call::Closed(_) | Call::Checkpoint(_) | Call::CustomJvp(_) => {
                let graphs = self.graphs().into_iter().enumerate();
                graphs.map(|(i, graph)| format!("jaxpr{i}={}", text(graph))).collect()
            }
        }
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let typed = |v: &Var| format!("{v}:{}", self.ty(*v));
        let list = |vars: &[Var], one: &dyn Fn(&Var) -> String| vars.iter().map(one).collect::<Vec<_>>().join(", ");
        writeln!(f, "{{ lambda {} .", list(&self.params, &typed))?;
        for Equation { op, args, results, .. } in &self.equations {
            let args = list(args, &Var::to_string);
            writeln!(f, "    {} = {op}{}{args}", list(results, &typed), if args.is_empty() { "" } else { " " })?;
        }
        write!(f, "  in {} }}", list(&self.results, &Var::to_string))
    }
}

/// The names of the manual axes.
fn manual(map: &ShardMap) -> String {
    let names = (0..map.mesh.rank()).filter(|&axis| map.manual[axis]).map(|axis| map.mesh.name(axis));
    names.collect::<Vec<_>>().join(", ")
}
