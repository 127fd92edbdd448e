//! Logistic regression by gradient descent.
use pallas_rt::array_prelude::*;

fn loss(w: &Array, x: &Array, y: &Array) -> Array {
    let margins = (2 * y - 1) * x.matmul(w);
    (-margins).softplus().mean(..) + 0.01 * w.square().sum(..)
}

fn step(w: &Array, x: &Array, y: &Array) -> Result<(Array, Array)> {
    let (value, slope) = value_and_grad(loss)(w, x, y)?;
    Ok((w - 0.5 * slope, value))
}

pub fn run() -> Result<Vec<Array>> {
    let [a, b, c] = random::split(random::key(0));
    let x = random::normal(a, &[200, 5], F32);
    let noise = 0.3 * random::normal(c, &[200], F32);
    let y = (x.matmul(&random::normal(b, &[5], F32)) + noise).gt(0).cast(F32);
    let mut w = ops::zeros(&[5], F32);
    let mut losses = vec![];
    let step = jit(step);
    for _ in 0..50 {
        let (next, value) = step(&w, &x, &y)?;
        w = next;
        losses.push(value);
    }
    let right = x.matmul(&w).gt(0).eq(y.gt(0)).mean(..);
    Ok(vec![w, ops::stack(&losses, 0), right])
}
