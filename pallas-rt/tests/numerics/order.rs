//! Equal elements, and no elements.
use super::{Line, is};
use pallas_rt::grad;
use pallas_rt::prelude::*;

pub(super) const LINES: &[Line] = &[
    ("tie-position", positions),
    ("tie-sort", sorts),
    ("tie-edges", edges),
    ("tie-max", extremes),
    ("tie-quantile", quantiles),
    ("empty-sum", sums_of_nothing),
    ("empty-max", extremes_of_nothing),
    ("empty-position", positions_in_nothing),
];

#[kernel(grid = ())]
fn positions_in_tiles(
    #[block([N] => [N], || (0,))] x: In<f32>,
    #[block([1] => [1], || (0,))] most: Out<i32>,
    #[block([1] => [1], || (0,))] least: Out<i32>,
) {
    most.store(x.load().argmax(0));
    least.store(x.load().argmin(0));
}

fn positions(client: &Client) -> Result<()> {
    for (x, most, least) in
        [([1.0, 3.0, 3.0, 1.0], 1, 0), ([-0.0, 0.0, -0.0, 0.0], 0, 0), ([0.0, -0.0, 0.0, 0.0], 0, 0)]
    {
        let x = client.array::<f32>(&x, &[4])?;
        assert_eq!((x.argmax(0).to_vec::<i32>()?, x.argmin(0).to_vec::<i32>()?), (vec![most], vec![least]));
        let (a, b) = positions_in_tiles(&x)?;
        assert_eq!((a.to_vec::<i32>()?, b.to_vec::<i32>()?), (vec![most], vec![least]));
    }
    Ok(())
}

fn sorts(client: &Client) -> Result<()> {
    let x = client.array(&[2.0f32, 0.0, -0.0, 2.0, 0.0], &[5])?;
    assert_eq!(x.argsort(0).to_vec::<i32>()?, [1, 2, 4, 0, 3]);
    let signs: Vec<bool> = x.sort(0).to_vec::<f32>()?.iter().map(|x| x.is_sign_negative()).collect();
    assert_eq!(signs, [false, true, false, false, false]);
    Ok(())
}

fn edges(client: &Client) -> Result<()> {
    let edges = client.array(&[0.0f32, 1.0, f32::NAN], &[3])?;
    let x = client.array(&[-1.0f32, 0.0, 0.5, 2.0], &[4])?;
    for (right, want) in [(false, [0, 1, 1, 2]), (true, [0, 0, 1, 2])] {
        assert_eq!(x.digitize(&edges, right).to_vec::<i32>()?, want);
    }
    Ok(())
}

fn extremes(client: &Client) -> Result<()> {
    let x = client.array(&[1.0f32, 3.0, 3.0, 1.0], &[4])?;
    is(&grad(|x: &Array| x.max(0))(&x)?, &[0.0, 0.5, 0.5, 0.0])?;
    is(&grad(|x: &Array| x.min(0))(&x)?, &[0.5, 0.0, 0.0, 0.5])
}

fn quantiles(client: &Client) -> Result<()> {
    let x = client.array(&[1.0f32, 2.0, 1.0, 1.0, 1.0, 2.0], &[6])?;
    is(&grad(|x: &Array| x.median(..))(&x)?, &[0.0, 0.0, 0.0, 0.5, 0.5, 0.0])
}

fn sums_of_nothing(client: &Client) -> Result<()> {
    let x = client.zeros(&[2, 0], DType::F32)?;
    is(&x.sum(1), &[0.0; 2])?;
    is(&x.prod(1), &[1.0; 2])?;
    is(&x.mean(1), &[f64::NAN; 2])?;
    is(&x.logsumexp(1), &[f64::NEG_INFINITY; 2])?;
    let truth = client.zeros(&[2, 0], DType::Bool)?;
    assert_eq!(truth.any(1).to_vec::<bool>()?, [false; 2]);
    assert_eq!(truth.all(1).to_vec::<bool>()?, [true; 2]);
    Ok(())
}

fn extremes_of_nothing(client: &Client) -> Result<()> {
    for dtype in [DType::F32, DType::I32, DType::Bool] {
        let x = client.zeros(&[3, 0], dtype)?;
        for (name, made) in [("max", x.max(1)), ("min", x.min(1)), ("max", x.max(..))] {
            let error = made.block_until_ready().expect_err("nothing has no largest element");
            assert!(error.code() == "empty" && error.to_string().contains(name), "{error}");
        }
        // Nothing along the other axis is folded.
        assert_eq!(x.max(0).shape(), [0]);
    }
    let x = client.zeros(&[0], DType::F32)?;
    for (name, made) in [("argmax", x.argmax(0)), ("argmin", x.argmin(0)), ("nanmax", x.nanmax(0)), ("max", x.ptp(0))] {
        let error = made.block_until_ready().expect_err("nothing has no largest element");
        assert!(error.code() == "empty" && error.to_string().contains(name), "{error}");
    }
    Ok(())
}

fn positions_in_nothing(client: &Client) -> Result<()> {
    let nothing = client.zeros(&[0, 3], DType::Bool)?;
    assert_eq!(nothing.flatnonzero(2, -1).to_vec::<i32>()?, [-1; 2]);
    assert_eq!(nothing.argwhere(2, -1).to_vec::<i32>()?, [-1; 4]);
    for along in nothing.nonzero(2, -1) {
        assert_eq!(along.to_vec::<i32>()?, [-1; 2]);
    }
    Ok(())
}
