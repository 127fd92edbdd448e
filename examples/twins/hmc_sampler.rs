//! Hamiltonian Monte Carlo: several chains that sample the mean and the scale of normally distributed data.
use pallas_rt::array_prelude::*;
use pallas_rt::random::Key;

fn energy(q: &Array, x: &Array) -> Array {
    let d = (x - q.index(0)) * (-q.index(1)).exp();
    (0.5 * d.square() + q.index(1)).sum(..) + 0.5 * q.square().sum(..)
}

fn total(q: &Array, p: &Array, x: &Array) -> Array {
    energy(q, x) + 0.5 * p.square().sum(..)
}

fn sample(q: &Array, key: &Key, x: &Array) -> Result<(Array, Array)> {
    let leap = |_: &Array, (q, p): &(Array, Array)| {
        let p = p - 0.02 * grad(energy)(q, x)?;
        let q = q + 0.04 * &p;
        let p = p - 0.02 * grad(energy)(&q, x)?;
        Ok::<_, Error>((q, p))
    };
    let [a, b] = random::split(key.clone());
    let p = random::normal(a, &[2], F32);
    let (new_q, new_p) = fori_loop(0..8, &(q.clone(), p.clone()), leap)?;
    let log_u = random::uniform(b, &[], F32).log();
    let q = ops::select(&log_u.lt(total(q, &p, x) - total(&new_q, &new_p, x)), new_q, q);
    Ok((q.clone(), q))
}

fn chain(key: &Key, x: &Array) -> Result<Array> {
    let keys = random::split_batch(key.clone(), &[20]);
    Ok(scan(&ops::zeros(&[2], F32), &keys, |q: &Array, key: &Key| sample(q, key, x))?.1)
}

pub fn run() -> Result<Vec<Array>> {
    let [a, b] = random::split(random::key(4));
    let x = 1.5 + 0.5 * random::normal(a, &[30], F32);
    let chains = jit(vmap(chain).in_axes((0, None)));
    let qs = chains(&random::split_batch(b, &[4]), &x)?;
    Ok(vec![qs.clone(), qs.mean([0, 1])])
}
