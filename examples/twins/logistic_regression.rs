//! Logistic regression by gradient descent.
use pallas_rt::array_prelude::*;

fn loss(w: &Array, x: &Array, y: &Array) -> Array {
    let margins = (2 * y - 1) * x.matmul(w);
    (-margins).softplus().mean(..) + 0.01 * w.square().sum(..)
}

pub fn run() -> Result<Vec<Array>> {
    let [a, b, c] = random::split(random::key(0));
    let x = random::normal(a, &[200, 5], F32);
    let noise = 0.3 * random::normal(c, &[200], F32);
    let y = (x.matmul(&random::normal(b, &[5], F32)) + noise).gt(0).cast(F32);
    let (mut w, mut losses) = (ops::zeros(&[5], F32), vec![]);
    let f = jit(value_and_grad(loss));
    for _ in 0..50 {
        let (value, slope) = f(&w, &x, &y)?;
        w = w - 0.5 * slope;
        losses.push(value);
    }
    let right = x.matmul(&w).gt(0).eq(y.gt(0)).mean(..);
    Ok(vec![w, ops::stack(&losses, 0), right])
}
