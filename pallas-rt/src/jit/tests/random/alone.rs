//! Random graphs one operation at a time.
use super::run;
use crate::prelude::*;
use pallas_graph::call::Call;
use pallas_graph::{Graph, Op, Var};

/// Each equation by a program of its own, loops and branches step by step.
pub(super) fn one_at_a_time(graph: &Graph, client: &Client, args: &[Array]) -> Result<Vec<Array>> {
    let mut made: Vec<Option<Array>> = vec![None; graph.types.len()];
    graph.params.iter().zip(args).for_each(|(p, x)| made[p.index()] = Some(x.clone()));
    for e in &graph.equations {
        let args: Vec<Array> = e.args.iter().map(|a| made[a.index()].clone().expect("defined")).collect();
        let found = match &e.op {
            Op::Call(call) => called(call, client, &args)?,
            op => {
                let mut single = Graph::default();
                let params: Vec<Var> = e.args.iter().map(|a| single.param(graph.ty(*a).clone())).collect();
                let result = single.push(op.clone(), &params).expect("it fits");
                single.results.push(result);
                run(&single, client, &args)?
            }
        };
        e.results.iter().zip(found).for_each(|(r, x)| made[r.index()] = Some(x));
    }
    Ok(graph.results.iter().map(|r| made[r.index()].clone().expect("defined")).collect())
}

fn called(call: &Call, client: &Client, args: &[Array]) -> Result<Vec<Array>> {
    match call {
        Call::Scan(scan) => {
            let (captured, rest) = args.split_at(scan.captured);
            let (carried, arrays) = rest.split_at(scan.carried);
            let gives = scan.body.gives();
            let mut carried = carried.to_vec();
            let mut stacks: Vec<Vec<u8>> = vec![vec![]; gives.len() - scan.carried];
            let steps: Vec<usize> = (0..scan.length).collect();
            let steps = if scan.reverse { steps.into_iter().rev().collect() } else { steps };
            for i in steps {
                let element = |x: &Array| {
                    let bytes = x.to_bytes().expect("it ran");
                    let n = bytes.len() / scan.length;
                    client.array_from_bytes(x.dtype(), &x.shape()[1..], &bytes[i * n..(i + 1) * n]).expect("it fits")
                };
                let elements: Vec<Array> = arrays.iter().map(element).collect();
                let mut made = one_at_a_time(&scan.body, client, &[captured, &carried, &elements].concat())?;
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
        Call::Case(case) => {
            let number = args[0].to_vec::<i32>()?[0].clamp(0, case.branches.len() as i32 - 1);
            one_at_a_time(&case.branches[number as usize], client, &args[1..])
        }
        Call::While(call) => {
            let (of_condition, rest) = args.split_at(call.condition_captured);
            let (of_body, carried) = rest.split_at(call.body_captured);
            let mut carried = carried.to_vec();
            while one_at_a_time(&call.condition, client, &[of_condition, &carried].concat())?[0].to_bytes()?[0] != 0 {
                carried = one_at_a_time(&call.body, client, &[of_body, &carried].concat())?;
            }
            Ok(carried)
        }
        Call::Custom(custom) => one_at_a_time(&custom.primal, client, args),
        Call::CustomJvp(custom) => one_at_a_time(&custom.primal, client, args),
        Call::Closed(graph) => one_at_a_time(graph, client, args),
        Call::Checkpoint(checkpoint) => one_at_a_time(&checkpoint.graph, client, args),
        Call::Named(_) => Ok(args.to_vec()),
        Call::Kernel(_) | Call::Print(_) | Call::ShardMap(_) => unreachable!("none is drawn"),
    }
}
