//! The rules that every graph keeps.
use crate::build::infer;
use crate::graph::{Equation, Graph, Var};
use pallas_ir::Type;

/// Checks that variables are defined once and before they are used, and that types are those of the operations.
///
/// # Errors
/// The first rule that is broken, with its equation.
pub fn verify(graph: &Graph) -> Result<(), String> {
    let mut defined = vec![false; graph.types.len()];
    let define = |defined: &mut Vec<bool>, v: Var| match defined.get_mut(v.index()) {
        None => Err(format!("{v} has no type")),
        Some(true) => Err(format!("{v} is defined twice")),
        Some(new) => {
            *new = true;
            Ok(())
        }
    };
    graph.params.iter().try_for_each(|&p| define(&mut defined, p))?;
    let used = |defined: &[bool], v: Var| match defined.get(v.index()) {
        Some(true) => Ok(()),
        _ => Err(format!("{v} is used before it is defined")),
    };
    for Equation { op, args, result, loc } in &graph.equations {
        let said = |message: String| format!("{loc}: {result} = {op}: {message}");
        args.iter().try_for_each(|&a| used(&defined, a)).map_err(said)?;
        let types: Vec<&Type> = args.iter().map(|&a| graph.ty(a)).collect();
        let ty = infer(op, &types).map_err(|diag| said(diag.to_string()))?;
        define(&mut defined, *result).map_err(said)?;
        if *graph.ty(*result) != ty {
            return Err(said(format!("is {ty}, declared as {}", graph.ty(*result))));
        }
    }
    graph.results.iter().try_for_each(|&r| used(&defined, r))
}
