//! Sums whose steps pass over windows of the accumulator in a loop.
use super::super::sharded::{Dice, mesh, operand};
use super::{compared, constrained, reciprocal};
use crate::sharding::{NamedSharding, P, Sharding, device_put};
use crate::{jit, partitioned};
use pallas_ir::Type;
use pallas_rt::prelude::*;

/// `xᵀ y`, blocks of rows one after the other, four columns of y at a time.
#[kernel(grid = (cdiv(N, B)), semantics = (arbitrary))]
fn products<const B: usize>(
    #[block([N, 3] => [B, 3], |i| (i, 0), fill = 0.0)] x: In<f32>,
    #[block([N, 8] => [B, 8], |i| (i, 0), fill = 0.0)] y: In<f32>,
    #[block([3, 8] => [3, 8], |_| (0, 0))] out: Out<f32>,
) {
    if program_id(0) == 0 {
        out.fill(0.0);
    }
    for c in 0..scalar(2) {
        let columns = (.., ds(c * 4, 4));
        let window = out.at(columns);
        window.store(window.load() + dot(x.load().t(), y.at(columns).load()));
    }
}

/// As [`products`], but each window is added to another one's sum.
#[kernel(grid = (cdiv(N, B)), semantics = (arbitrary))]
fn turned_products<const B: usize>(
    #[block([N, 3] => [B, 3], |i| (i, 0), fill = 0.0)] x: In<f32>,
    #[block([N, 8] => [B, 8], |i| (i, 0), fill = 0.0)] y: In<f32>,
    #[block([3, 8] => [3, 8], |_| (0, 0))] out: Out<f32>,
) {
    if program_id(0) == 0 {
        out.fill(0.0);
    }
    for c in 0..scalar(2) {
        let other = out.at((.., ds(-(c * 4) + 4, 4)));
        out.at((.., ds(c * 4, 4))).store(other.load() + dot(x.load().t(), y.at((.., ds(c * 4, 4))).load()));
    }
}

#[test]
fn sums_in_loops_over_windows_are_parts_that_are_combined() {
    for devices in [2, 3] {
        let mesh = mesh(&[("x", devices)]);
        for n in [1, 4, 7, 12, 30] {
            let takes = [Type::new(DType::F32, [n, 3]), Type::new(DType::F32, [n, 8])];
            let f = |x: &[Array]| {
                let [x, y] = [reciprocal(&x[0]), reciprocal(&x[1])];
                Ok(vec![products::<2>(&x, &y)?, turned_products::<2>(&x, &y)?])
            };
            let rows = Some(Sharding::closed([vec![mesh.axis(0)], vec![]]));
            let graph = constrained(&takes, &mesh, &[rows.clone(), rows], f);
            let args = [0, 1].map(|i| operand(&mut Dice(i as u64 + 5), &takes[i]));
            assert!(compared(&graph, &mesh, &args) < 1e-5, "{n} rows on {devices} devices");
        }
    }
    let mesh = mesh(&[("x", 2)]);
    let [x, y] = [3, 8].map(|n| {
        let whole = Client::cpu().full(&[16, n], 0.5f32).expect("it fits");
        device_put(&whole, &NamedSharding::new(&mesh, P("x"))).expect("it is placed")
    });
    let found = partitioned(|x: &Array, y: &Array| products::<4>(x, y))(&x, &y).expect("it is traced").collectives();
    assert_eq!(found.iter().map(|exchange| exchange.name).collect::<Vec<_>>(), ["all_reduce"]);
    let error = jit(|x: &Array, y: &Array| turned_products::<4>(x, y))(&x, &y).expect_err("it is no sum").to_string();
    assert!(error.contains("not proven to compute a plain sum"), "{error}");
}
