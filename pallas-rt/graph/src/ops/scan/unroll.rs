//! Unrolls scans: several steps become one.
use super::Scan;
use crate::build::constant_dims;
use crate::graph::{Graph, Var};
use pallas_ir::structural::{Concat, Reshape, Slice};
use pallas_ir::{Diag, StructuralOp, Type};

impl Graph {
    /// Appends a scan with `unroll` steps merged into each step, followed by the remaining steps as plain equations.
    /// There is no loop if `unroll` is at least the number of steps. Returns the results of the scan.
    ///
    /// ```text
    /// scan(length 7, unroll 3)  ->  scan(length 2) of (body, body, body); body
    /// ```
    ///
    /// # Errors
    /// Those of [`push`](Graph::push).
    pub fn push_scan(&mut self, scan: Scan, args: &[Var], unroll: usize) -> Result<Vec<Var>, Diag> {
        let unroll = unroll.min(scan.length);
        if unroll < 2 {
            return self.push_multi_result(scan, args);
        }
        let fixed = scan.first_array_operand();
        let (blocks, rest) = (scan.length / unroll, scan.length % unroll);
        let long = blocks * unroll;
        // In a reverse scan the remaining steps, which run last, take the first elements.
        let (main, after) = if scan.reverse { (rest, 0) } else { (0, long) };
        let part = |graph: &mut Graph, first: usize, n: usize| {
            args[fixed..].iter().map(|&v| push_row_slice(graph, v, first, n)).collect::<Result<Vec<Var>, Diag>>()
        };
        let (captured, carried) = (&args[..scan.captured], &args[scan.captured..fixed]);
        let arrays = part(self, main, long)?;
        let mut made = if blocks == 1 {
            push_unrolled_steps(self, &scan, captured, carried, &arrays, unroll)?
        } else {
            let mut arrays = arrays;
            for v in &mut arrays {
                let element = self.ty(*v).shape[1..].to_vec();
                *v = push_reshape(self, *v, &[&[blocks, unroll], &element[..]].concat())?;
            }
            let mut body = Graph { at: self.at, ..Graph::default() };
            let takes = scan.body.param_types();
            let mut params: Vec<Var> = takes[..fixed].iter().map(|ty| body.param(ty.clone())).collect();
            let wide = |ty: &Type| Type::new(ty.dtype, [&[unroll], &ty.shape[..]].concat());
            params.extend(takes[fixed..].iter().map(|ty| body.param(wide(ty))));
            let (own, elements) = params.split_at(fixed);
            let (captured, carried) = own.split_at(scan.captured);
            body.results = push_unrolled_steps(&mut body, &scan, captured, carried, elements, unroll)?;
            let outer = Scan { body, length: blocks, ..scan };
            let mut made = self.push_multi_result(outer, &[&args[..fixed], &arrays].concat())?;
            for v in &mut made[scan.carried..] {
                let element = self.ty(*v).shape[2..].to_vec();
                *v = push_reshape(self, *v, &[&[long], &element[..]].concat())?;
            }
            made
        };
        if rest > 0 {
            let arrays = part(self, after, rest)?;
            let stacks = made.split_off(scan.carried);
            made = push_unrolled_steps(self, &scan, &args[..scan.captured], &made, &arrays, rest)?;
            for (v, before) in made[scan.carried..].iter_mut().zip(stacks) {
                let both = if scan.reverse { [*v, before] } else { [before, *v] };
                *v = self.push(StructuralOp::from(Concat { axis: 0 }), &both)?;
            }
        }
        Ok(made)
    }
}

/// Appends the first `step_count` steps of a scan as plain equations; `arrays` have `step_count` elements along their
/// first axis. Returns the carried values and the stacks.
fn push_unrolled_steps(
    graph: &mut Graph,
    scan: &Scan,
    captured: &[Var],
    carried: &[Var],
    arrays: &[Var],
    step_count: usize,
) -> Result<Vec<Var>, Diag> {
    let mut carried = carried.to_vec();
    let mut stacks: Vec<Vec<Var>> = vec![vec![]; scan.body.results.len() - scan.carried];
    for k in 0..step_count {
        let at = if scan.reverse { step_count - 1 - k } else { k };
        let mut args = [captured, &carried].concat();
        for &v in arrays {
            let row = push_row_slice(graph, v, at, 1)?;
            let element = graph.ty(row).shape[1..].to_vec();
            args.push(push_reshape(graph, row, &element)?);
        }
        let mut made = graph.inline(&scan.body, &args);
        for (stack, v) in stacks.iter_mut().zip(made.split_off(scan.carried)) {
            let row = [&[1], &graph.ty(v).shape[..]].concat();
            stack.push(push_reshape(graph, v, &row)?);
        }
        carried = made;
    }
    for mut stack in stacks {
        if scan.reverse {
            stack.reverse();
        }
        carried.push(match stack[..] {
            [only] => only,
            _ => graph.push(StructuralOp::from(Concat { axis: 0 }), &stack)?,
        });
    }
    Ok(carried)
}

/// Appends a slice of `count` elements along the first axis of `v`, beginning with `first`.
fn push_row_slice(graph: &mut Graph, v: Var, first: usize, count: usize) -> Result<Var, Diag> {
    let mut shape = graph.ty(v).shape.clone();
    if (first, count) == (0, shape[0]) {
        return Ok(v);
    }
    shape[0] = count;
    let mut start = vec![0; shape.len()];
    start[0] = first as i64;
    graph.push(StructuralOp::from(Slice { start, stride: vec![1; shape.len()], size: constant_dims(&shape) }), &[v])
}

fn push_reshape(graph: &mut Graph, v: Var, shape: &[usize]) -> Result<Var, Diag> {
    graph.push(StructuralOp::from(Reshape { to: constant_dims(shape) }), &[v])
}
