//! Checks the rules that every graph has to keep.
use crate::build::infer;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::Type;

/// Checks a graph and the graphs that it calls: variables are defined once and before they are used, results have the
/// types that the operations give, and a fold that rounds at each step accumulates in a wide enough type.
///
/// # Errors
/// The first rule that is broken, with its equation.
pub fn verify(graph: &Graph) -> Result<(), String> {
    verify_equations(graph)?;
    for Equation { op, results, loc, .. } in &graph.equations {
        if let Op::Call(call) = op {
            let said = |message: String| format!("{loc}: {results:?} = {op}: {message}");
            call.graphs().into_iter().try_for_each(verify).map_err(said)?;
        }
    }
    Ok(())
}

/// Checks the rules of [`verify()`] for the equations of this graph alone, without the graphs that it calls.
pub(crate) fn verify_equations(graph: &Graph) -> Result<(), String> {
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
    for Equation { op, args, results, loc } in &graph.equations {
        let said = |message: String| format!("{loc}: {results:?} = {op}: {message}");
        args.iter().try_for_each(|&a| used(&defined, a)).map_err(said)?;
        let types: Vec<&Type> = args.iter().map(|&a| graph.ty(a)).collect();
        let gives = infer(op, &types).map_err(|diag| said(diag.to_string()))?;
        results.iter().try_for_each(|&r| define(&mut defined, r)).map_err(said)?;
        let declared: Vec<Type> = results.iter().map(|&r| graph.ty(r).clone()).collect();
        if declared != gives {
            return Err(said(format!("gives {gives:?}, declared as {declared:?}")));
        }
        if let Op::Structural(fold) = op {
            let dtypes: Vec<_> = types.iter().map(|ty| ty.dtype).collect();
            if let Some(wide) = fold.accumulator(&dtypes) {
                return Err(said(format!("accumulates in {}, not in {wide}", dtypes[0])));
            }
        }
    }
    graph.results.iter().try_for_each(|&r| used(&defined, r))
}
