//! Runs of a graph one operation at a time.
use super::trace::run_single_op;
use crate::array::{Array, Client};
use pallas_device::error::{Error, Result};
use pallas_graph::call::{Call, Scan, While};
use pallas_graph::{Equation, Graph, Op, Var};
use pallas_ir::DType;

/// A function that is called after each equation with its operands and results. In place of an equation that calls
/// graphs, it is called for the equations of these graphs.
pub(super) type EquationObserver<'a> = dyn FnMut(&Equation, &[Array], &[Array]) -> Result<()> + 'a;

/// Runs each equation of a graph by a program of its own, and loops and branches step by step; returns the results.
///
/// # Errors
/// Errors of a program or of `observe`; a graph with collectives.
pub(super) fn run_op_by_op(
    graph: &Graph,
    client: &Client,
    args: &[Array],
    observe: &mut EquationObserver<'_>,
) -> Result<Vec<Array>> {
    let mut made: Vec<Option<Array>> = vec![None; graph.types.len()];
    graph.params.iter().zip(args).for_each(|(p, x)| made[p.index()] = Some(x.clone()));
    for e in &graph.equations {
        let args: Vec<Array> = e.args.iter().map(|a| made[a.index()].clone().expect("defined")).collect();
        let found = match &e.op {
            // The whole graph has the effect, such as a print; a zero stands for the result.
            op if op.has_own_effect() => vec![client.zeros(&[], DType::I32)?],
            Op::Call(call) if !call.graphs().is_empty() || call.expansion_in_plan().is_some() => {
                run_call(call, client, &args, observe)?
            }
            op => {
                let found = run_equation(op, e, graph, client, &args)?;
                observe(e, &args, &found)?;
                found
            }
        };
        e.results.iter().zip(found).for_each(|(r, x)| made[r.index()] = Some(x));
    }
    Ok(graph.results.iter().map(|r| made[r.index()].clone().expect("defined")).collect())
}

/// Runs one equation, by a program of its own.
fn run_equation(op: &Op, e: &Equation, graph: &Graph, client: &Client, args: &[Array]) -> Result<Vec<Array>> {
    let mut single = Graph { at: e.loc, ..Graph::default() };
    let params: Vec<Var> = e.args.iter().map(|a| single.param(graph.ty(*a).clone())).collect();
    let made = match op {
        Op::Call(call) => single.push_multi_result(Call::clone(call), &params),
        op => single.push(op.clone(), &params).map(|result| vec![result]),
    };
    single.results = made.map_err(|diag| Error::operation(e.loc, diag))?;
    run_single_op(single, client, &args.iter().collect::<Vec<_>>()).map_err(|error| error.called_at(e.loc))
}

/// Adds the number of the loop's step to an error of the search for NaN.
fn add_loop_step_to_error(error: Error, step: usize) -> Error {
    match error {
        Error::Operation(mut e) if e.diag.code == "nan" => {
            e.diag.message.push_str(&format!(", in step {step} of a loop"));
            Error::Operation(e)
        }
        other => other,
    }
}

/// Runs a scan step by step.
fn run_scan(scan: &Scan, client: &Client, args: &[Array], observe: &mut EquationObserver<'_>) -> Result<Vec<Array>> {
    let (captured, rest) = args.split_at(scan.captured);
    let (carried, arrays) = rest.split_at(scan.carried);
    let gives = scan.body.result_types();
    let mut carried = carried.to_vec();
    let mut stacks: Vec<Vec<u8>> = vec![vec![]; gives.len() - scan.carried];
    let steps: Vec<usize> = (0..scan.length).collect();
    let steps = if scan.reverse { steps.into_iter().rev().collect() } else { steps };
    for i in steps {
        let element = |x: &Array| -> Result<Array> {
            let bytes = x.to_bytes()?;
            let n = bytes.len() / scan.length;
            client.array_from_bytes(x.dtype(), &x.shape()[1..], &bytes[i * n..(i + 1) * n])
        };
        let elements = arrays.iter().map(element).collect::<Result<Vec<Array>>>()?;
        let mut made = run_op_by_op(&scan.body, client, &[captured, &carried, &elements].concat(), observe)
            .map_err(|error| add_loop_step_to_error(error, i))?;
        for (stack, x) in stacks.iter_mut().zip(made.split_off(scan.carried)) {
            let row = x.to_bytes()?;
            let at = if scan.reverse { 0 } else { stack.len() };
            stack.splice(at..at, row);
        }
        carried = made;
    }
    let stacks = stacks
        .iter()
        .zip(&gives[scan.carried..])
        .map(|(bytes, ty)| client.array_from_bytes(ty.dtype, &[&[scan.length], &ty.shape[..]].concat(), bytes));
    carried.extend(stacks.collect::<Result<Vec<_>>>()?);
    Ok(carried)
}

/// Runs a `while` loop step by step.
fn run_while(call: &While, client: &Client, args: &[Array], observe: &mut EquationObserver<'_>) -> Result<Vec<Array>> {
    let (of_condition, rest) = args.split_at(call.condition_captured);
    let (of_body, carried) = rest.split_at(call.body_captured);
    let mut carried = carried.to_vec();
    for step in 0.. {
        let goes_on = run_op_by_op(&call.condition, client, &[of_condition, &carried].concat(), observe)?;
        if goes_on[0].to_bytes()?[0] == 0 {
            break;
        }
        carried = run_op_by_op(&call.body, client, &[of_body, &carried].concat(), observe)
            .map_err(|error| add_loop_step_to_error(error, step))?;
    }
    Ok(carried)
}

/// Runs an equation that calls graphs (a loop, a branch or a function) by running the equations of these graphs.
fn run_call(call: &Call, client: &Client, args: &[Array], observe: &mut EquationObserver<'_>) -> Result<Vec<Array>> {
    match call {
        Call::Scan(scan) => run_scan(scan, client, args, observe),
        Call::While(call) => run_while(call, client, args, observe),
        Call::Case(case) => {
            let number = args[0].to_vec::<i32>()?[0].clamp(0, case.branches.len() as i32 - 1);
            run_op_by_op(&case.branches[number as usize], client, &args[1..], observe)
        }
        call => match call.expansion_in_plan() {
            Some(function) => run_op_by_op(function, client, args, observe),
            None => Err(Error::Unsupported {
                what: format!("`{}`, one operation at a time", call.name()),
                device: client.device().to_string(),
                help: "check the function of one block, without `shard_map`",
            }),
        },
    }
}
