//! The operations of random programs that take functions: loops, branches, roots, transposes and second derivatives.
use super::attributes::Attributes;
use crate::jit::{
    Scan, checkpoint, cond, custom_root, fori_loop, hessian, jacrev, jvp, linear_transpose, switch, while_loop,
};
use crate::ops;
use crate::prelude::*;

/// The results of a step, if it is one of these.
pub(super) fn step(name: &str, x: &[Array], a: &Attributes) -> Option<Vec<Array>> {
    known(name, x, a).map(|found| found.expect("the functions fit their operands"))
}

fn known(name: &str, x: &[Array], a: &Attributes) -> Option<Result<Vec<Array>>> {
    Some(match name {
        "lax.scan" => {
            let step = |h: &Array, element: &Array| {
                let h = (h * &x[2] + element).tanh();
                (h.clone(), h * element)
            };
            Scan::new().reverse(a.is(0)).run(&x[0], &x[1], step).map(|(last, all)| vec![last, all])
        }
        "lax.fori_loop" => {
            let step = |i: &Array, h: &Array| h.sin() + i.cast(DType::F32) * 0.25;
            fori_loop(0..a.int(0), &x[0], step).map(|found| vec![found])
        }
        "lax.while_loop" => {
            let start = (ops::zeros(&[], DType::I32), x[0].stop_gradient());
            let step = |(i, h): &(Array, Array)| (i + 1, h * 0.5 + 1.0);
            while_loop(&start, |(i, _): &(Array, Array)| i.lt(&x[1]), step).map(|(i, h)| vec![i, h])
        }
        "lax.cond" => cond(&x[0], &x[1], |x: &Array| x.cos(), |x: &Array| x * x * 0.5).map(|found| vec![found]),
        "lax.switch" => {
            let functions: [fn(&Array) -> Array; 3] = [|x| x.sin(), |x| x * 2.0, |x| -x];
            switch(&x[0], &x[1], functions).map(|found| vec![found])
        }
        "linear_transpose" => {
            let matrix = x[0].sin();
            let map = linear_transpose(move |v: &Array| matrix.matmul(v) + v.sum(..));
            let back = map(&ops::zeros(&[x[0].shape()[1]], DType::F32));
            back.and_then(|back| back(&x[1])).map(|(found,)| vec![found])
        }
        "lax.custom_root" => custom_root(
            |y: &Array| y * y * y + y - &x[0],
            &x[0].ones_like(),
            |f, guess| {
                let newton = |_: &Array, y: &Array| Ok::<_, Error>(y - f(y)? / (y * y * 3.0 + 1.0));
                fori_loop(0..12, guess, newton)
            },
            |g, y| Ok(y / g(&y.ones_like())?),
        )
        .map(|found| vec![found]),
        "hessian" => hessian(|v: &Array| (v.sin() * v.cumsum(0)).sum(..))(&x[0]).map(|found| vec![found]),
        "jacrev" => jacrev(|v: &Array| v.tanh() * v.index(0))(&x[0]).map(|found| vec![found]),
        "jvp" => {
            let along = jvp(|v: &Array| v.sin().exp() * v);
            along(&(x[0].clone(),), &(x[1].clone(),)).map(|(value, tangent)| vec![value, tangent])
        }
        "checkpoint" => checkpoint(|v: &Array| v.sin().sin())(&x[0]).map(|found| vec![found]),
        _ => return None,
    })
}
