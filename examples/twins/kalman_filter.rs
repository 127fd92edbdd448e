//! A Kalman filter, and the gradient of its likelihood by the variances of the noise.
use pallas_rt::array_prelude::*;
use pallas_rt::linalg::{slogdet, solve};

fn filtered(noise: &Array, zs: &Array) -> Result<(Array, Array)> {
    let f = ops::array([[1.0, 1.0], [0.0, 1.0]]);
    let h = ops::array([[1.0, 0.0]]);
    let start = (ops::zeros(&[2], F32), ops::identity(2, F32));
    let (_, (positions, log_p)) = scan(&start, zs, |(m, p): &(Array, Array), z: &Array| {
        let (m, p) = (f.matmul(m), f.matmul(p).matmul(&f.t()) + noise.index(0) * ops::identity(2, F32));
        let (r, s) = (z - h.matmul(&m), h.matmul(&p).matmul(&h.t()) + noise.index(1));
        let gain = solve(&s, &h.matmul(&p)).t();
        let log_p = -0.5 * (r.matmul(&solve(&s, &r)) + slogdet(&s).1);
        ((&m + gain.matmul(&r), &p - gain.matmul(&h).matmul(&p)), (m.index(0), log_p))
    })?;
    Ok((log_p.sum(..), positions))
}

pub fn run() -> Result<Vec<Array>> {
    let t = ops::arange(0, 50, 1, F32);
    let z = 5 * (0.2 * t).sin() + 0.5 * random::normal(random::key(1), &[50], F32);
    let f = jit(value_and_grad(filtered));
    let ((value, positions), slope) = f(&ops::array([0.1, 0.25]), &z.expand_dims(1))?;
    Ok(vec![value, positions, slope])
}
