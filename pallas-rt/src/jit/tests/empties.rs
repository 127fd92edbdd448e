//! Arrays without elements, and loops without steps, on every kind of device.
use super::close;
use crate::prelude::*;
use crate::sharding::{Mesh, NamedSharding, P, device_put};
use crate::{cond, fori_loop, grad, jit, value_and_grad};
use std::sync::Arc;

fn clients() -> Vec<Client> {
    let clients = [Client::cpu(), Client::interpreter()].into_iter();
    #[cfg(feature = "gpu")]
    let clients = clients.chain(crate::lang::random::gpu());
    clients.collect()
}

#[test]
fn temporaries_without_elements() {
    for client in clients() {
        let x = client.full(&[0, 4], 1.0f32).expect("it fits");
        let printed = jit(|x: &Array| {
            let y = x * 2.0;
            y.debug_print("no rows");
            y.sum(..)
        });
        close(&printed(&x).expect("it runs"), &[0.0]);
        let turned = jit(|x: &Array| {
            let turn = |_: &Array, (a, b): &(Array, Array)| (b + 1.0, a * 2.0);
            fori_loop(0..3, &(x * 2.0, x + 1.0), turn).map(|(a, b)| a.sum(..) + b.sum(0).sum(..))
        });
        close(&turned(&x).expect("it runs"), &[0.0]);
        let chosen = jit(|x: &Array| {
            let y = x * 3.0;
            cond(&x.sum(..).lt(1.0), &y, |x: &Array| x * 2.0, |x: &Array| x + 1.0).map(|y| y.sum(0))
        });
        close(&chosen(&x).expect("it runs"), &[0.0; 4]);
        let ordered = jit(|x: &Array| (x.sort(0).sum(..), x.t().matmul(x)));
        let (sum, product) = ordered(&x).expect("it runs");
        close(&sum, &[0.0]);
        close(&product, &[0.0; 16]);
    }
}

#[test]
fn gradients_through_loops_without_steps() {
    for client in clients() {
        let w = client.array(&[1.0f32, 2.0, 3.0], &[3]).expect("it fits");
        let loss = |w: &Array, x: &Array| {
            let w = w * 2.0;
            fori_loop(0..0, x, |_: &Array, c: &Array| (c * &w).sin()).map(|c| c.sum(..))
        };
        let x = client.full(&[3], 0.5f32).expect("it fits");
        let (value, slope) = jit(value_and_grad(loss))(&w, &x).expect("it runs");
        close(&value, &[1.5]);
        close(&slope, &[0.0; 3]);
        let of_x = jit(grad(move |x: &Array| loss(&w, x)));
        close(&of_x(&x).expect("it runs"), &[1.0; 3]);
    }
}

#[test]
fn blocks_without_elements() {
    let mesh = Arc::new(Mesh::new(&[("a", 2)]).expect("a mesh"));
    let put = |shape: &[usize]| {
        let x = Client::cpu().full(shape, 1.0f32).expect("it fits");
        device_put(&x, &NamedSharding::new(&mesh, P("a"))).expect("it is sharded")
    };
    close(&jit(|x: &Array| x.sum(..))(&put(&[0, 4])).expect("it runs"), &[0.0]);
    close(&jit(|x: &Array| x.sum(0))(&put(&[0, 4])).expect("it runs"), &[0.0; 4]);
    close(&jit(|x: &Array| x.t().matmul(x))(&put(&[0, 4])).expect("it runs"), &[0.0; 16]);
    for f in [|x: &Array| x.sort(0), |x: &Array| x.sum(1), |x: &Array| x.flip(0), |x: &Array| x.roll(1, 0)] {
        assert!(jit(f)(&put(&[0, 4])).expect("it runs").is_empty());
    }
}
