//! Gradients where JAX's differ, or where a function has no slope.
use super::{Line, is, numbers};
use pallas_rt::prelude::*;
use pallas_rt::{DeviceKind, grad};

pub(super) const LINES: &[Line] = &[
    ("gradient-infinite", infinite),
    ("gradient-nan", not_numbers),
    ("gradient-position", positions),
    ("gradient-spread", spreads),
];

const NAN: f64 = f64::NAN;

/// The gradient of the sum of a function.
fn slopes(f: impl Fn(&Array) -> Array + Clone + Send + Sync + 'static, x: &Array) -> Result<Array> {
    grad(move |x: &Array| f(x).sum(..))(x)
}

fn infinite(client: &Client) -> Result<()> {
    if client.kind() == DeviceKind::Gpu {
        return Ok(());
    }
    let x = client.full(&[1], f32::MAX)?;
    is(&slopes(|x| x.sparse_plus(), &x)?, &[1.0])?;
    is(&slopes(|x| x.sqrt(), &client.full(&[1], 0.0f32)?)?, &[f64::INFINITY])?;
    // A number beside an infinity adds nothing to it.
    let (one, infinite) = (client.full(&[1], 1.0f32)?, client.full(&[1], f32::INFINITY)?);
    is(&slopes(move |y| infinite.logaddexp(y), &one)?, &[0.0])
}

fn not_numbers(client: &Client) -> Result<()> {
    if client.kind() == DeviceKind::Gpu {
        return Ok(());
    }
    let (x, two) = (client.array(&[f32::NAN, 2.0], &[2])?, client.array(&[2.0f32, f32::NAN], &[2])?);
    is(&slopes(|x| x.abs(), &x)?, &[-1.0, 1.0])?;
    is(&slopes(|x| x.relu(), &x)?, &[1.0, 1.0])?;
    is(&slopes(|x| x.relu6(), &x)?, &[1.0, 1.0])?;
    let of_two: [fn(&Array, &Array) -> Array; 3] = [|x, y| x.hypot(y), |x, y| x.logaddexp(y), |x, y| x.logaddexp2(y)];
    for f in of_two {
        let other = two.clone();
        is(&slopes(move |x| f(x, &other), &x)?, &[NAN; 2])?;
    }
    Ok(())
}

fn positions(client: &Client) -> Result<()> {
    let (x, at) = (client.array(&[1.0f32, 2.0, 3.0], &[3])?, client.array(&[5i32, 0, -9], &[3])?);
    let taken = at.clone();
    is(&slopes(move |x| x.index(&taken), &x)?, &[2.0, 0.0, 1.0])?;
    // Nothing is read there, so nothing gets a gradient.
    is(&slopes(move |x| x.take_with(&at, 0, pallas_rt::ops::IndexMode::Fill), &x)?, &[1.0, 0.0, 0.0])
}

fn spreads(client: &Client) -> Result<()> {
    let x = client.full(&[4], 2.0f32)?;
    is(&x.std(0), &[0.0])?;
    let found = numbers(&slopes(|x| x.std(0), &x)?)?;
    assert!(client.kind() == DeviceKind::Gpu || found.iter().all(|x| x.is_nan()), "{found:?}");
    Ok(())
}
