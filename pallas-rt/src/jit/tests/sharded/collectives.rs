//! Messages of devices for operations along sharded dimensions: parts of results, and no operands.
use super::{difference, mesh};
use crate::initializers::{self, Initializer};
use crate::jit::tests::numbers;
use crate::ops::{Convolution, Padding, conv_general_dilated};
use crate::prelude::*;
use crate::random::Key;
use crate::sharding::{Mesh, NamedSharding, P, PartitionSpec, device_put};
use crate::{Arg, grad, in_out_shardings, jit, partitioned, random, with_sharding_constraint};
use std::sync::Arc;

fn put(x: &Array, mesh: &Arc<Mesh>, spec: PartitionSpec) -> Array {
    device_put(x, &NamedSharding::new(mesh, spec)).expect("it is sharded")
}

fn normal(seed: i64, shape: &[usize]) -> Array {
    random::normal(random::key(seed), shape, DType::F32)
}

/// A row's largest elements are among those of each device, whose positions come with them.
#[test]
fn selections_send_candidates() {
    let mesh = mesh(&[("data", 2), ("model", 4)]);
    let logits = normal(3, &[6, 4000]);
    let sharded = put(&logits, &mesh, P(("data", "model")));
    type F = fn(&Array) -> Array;
    let functions: [(&str, F, usize); 5] = [
        ("argmax", |x| x.argmax(-1), 1),
        ("argmin", |x| x.argmin(1), 1),
        ("top_k", |x| x.top_k(3, -1).0, 3),
        ("positions of top_k", |x| x.top_k(3, -1).1, 3),
        ("categorical", |x| random::categorical(random::key(5), x, -1), 1),
    ];
    for (name, f, count) in functions {
        let sent = partitioned(f)(&sharded).expect("it is traced").collectives();
        let bytes: usize = sent.iter().map(|one| one.bytes).sum();
        // Three rows of a device, of each the elements and positions of four devices, and their sum for the elements.
        assert!(bytes <= 3 * count * 4 * 4 * 4, "{name} sends {bytes} bytes: {sent:?}");
        let (one, all) = (jit(f)(&logits).expect("it runs"), jit(f)(&sharded).expect("it runs"));
        assert_eq!(numbers(&one.cast(DType::F32)), numbers(&all.cast(DType::F32)), "{name}");
    }
    // The first of ties, a NaN, and elements of which all are the least.
    let ties = [vec![1.0, 5.0, 5.0, 2.0], vec![0.0, f32::NAN, 9.0, f32::NAN], vec![f32::NEG_INFINITY; 4]];
    for row in ties {
        let row: Vec<f32> = row.iter().flat_map(|&x| [x; 8]).collect();
        let x = Client::cpu().array(&row, &[32]).expect("it fits");
        let all = jit(|x: &Array| x.argmax(0))(&put(&x, &mesh, P("model"))).expect("it runs");
        assert_eq!(all.to_vec::<i32>().expect("it ran"), x.argmax(0).to_vec::<i32>().expect("it ran"), "{row:?}");
    }
}

/// Of a convolution whose places are sharded, the gradient by the weights is added up over devices, and their edges are
/// sent.
#[test]
fn gradients_of_convolutions_by_weights_send_parts() {
    let mesh = mesh(&[("data", 2), ("space", 4)]);
    let (x, w) = (normal(1, &[4, 32, 32, 8]), normal(2, &[3, 3, 8, 16]));
    let loss = |x: &Array, w: &Array| {
        let dimension_numbers = ["NHWC", "HWIO", "NHWC"];
        let options = Convolution { padding: Padding::Same, dimension_numbers, ..Convolution::default() };
        conv_general_dilated(x, w, &options).square().sum(..)
    };
    let f = grad(loss).argnums(Arg::<1>);
    for spec in [P((None, "space")), P(("data", "space")), P((None, "space", "data"))] {
        let sharded = put(&x, &mesh, spec.clone());
        let sent = partitioned(grad(loss).argnums(Arg::<1>))(&sharded, &w).expect("it is traced").collectives();
        let whole = x.len() * 4;
        let bytes: usize = sent.iter().map(|one| one.bytes).sum();
        // Two all-reduces of weights at most, and rows at the edges of blocks.
        assert!(bytes <= 4 * w.len() * 4 + whole / 4, "{spec:?}: {bytes} bytes: {sent:?}");
        assert!(sent.iter().all(|one| one.name != "all_gather"), "{spec:?}: {sent:?}");
        let (one, all) =
            (f(&x, &w).expect("it runs"), jit(grad(loss).argnums(Arg::<1>))(&sharded, &w).expect("it runs"));
        assert!(difference(&numbers(&one), &all, &mesh) < 1e-5, "{spec:?}");
    }
}

/// The last block extends beyond the array: what is computed there is no part of the gradient.
#[test]
fn gradients_by_weights_of_uneven_places() {
    let mesh = mesh(&[("space", 4)]);
    let rows = NamedSharding::new(&mesh, P((None, "space")));
    let loss = |x: &Array, w: &Array| {
        let dimension_numbers = ["NHWC", "HWIO", "NHWC"];
        let options = Convolution { padding: Padding::Same, dimension_numbers, ..Convolution::default() };
        conv_general_dilated(x, w, &options).square().sum(..)
    };
    let (x, w) = (normal(4, &[2, 30, 6, 3]), normal(5, &[3, 3, 3, 4]));
    let uneven = move |x: &Array, w: &Array| loss(&with_sharding_constraint(x, &rows), w);
    let one = grad(loss).argnums(Arg::<1>)(&x, &w).expect("it runs");
    let all = jit(grad(uneven).argnums(Arg::<1>))(&x, &w).expect("it runs");
    assert!(difference(&numbers(&one), &all, &mesh) < 1e-5);
}

/// Groups of features need no other groups, and examples no other examples.
#[test]
fn grouped_convolutions_send_nothing() {
    let mesh = mesh(&[("x", 4)]);
    for (spec, groups) in
        [(P("x"), 1), (P("x"), 2), (P("x"), 4), (P((None, None, None, "x")), 4), (P((None, None, None, "x")), 8)]
    {
        let (x, k) = (normal(1, &[8, 5, 5, 8]), normal(2, &[3, 3, 8 / groups, 16]));
        let f = move |x: &Array, k: &Array| {
            let dimension_numbers = ["NHWC", "HWIO", "NHWC"];
            let padding = Padding::Same;
            let options =
                Convolution { feature_group_count: groups, padding, dimension_numbers, ..Convolution::default() };
            conv_general_dilated(x, k, &options)
        };
        let sharded = put(&x, &mesh, spec.clone());
        let sent = partitioned(f)(&sharded, &k).expect("it is traced").collectives();
        assert!(sent.is_empty(), "{groups} groups by {spec:?}: {sent:?}");
        let (one, all) = (jit(f)(&x, &k).expect("it runs"), jit(f)(&sharded, &k).expect("it runs"));
        assert!(difference(&numbers(&one), &all, &mesh) < 1e-5, "{groups} groups by {spec:?}");
    }
}

/// A function that makes weights from a key, and declares how its results are sharded, makes each block where it lies.
#[test]
fn initial_weights_are_made_sharded() {
    let mesh = mesh(&[("data", 2), ("model", 4)]);
    let all: [fn() -> Initializer; 6] = [
        initializers::ones,
        || initializers::uniform(0.5),
        || initializers::normal(0.1),
        initializers::glorot_uniform,
        initializers::he_normal,
        || initializers::delta_orthogonal(1.0, -1),
    ];
    for (i, initializer) in all.into_iter().enumerate() {
        // An orthogonal matrix is made from all of its columns, by each device.
        let shape: &[usize] = if i == 5 { &[8, 4, 8] } else { &[10, 24] };
        let spec = || if i == 5 { P("model") } else { P(("data", "model")) };
        let make = move |key: &Key| initializer().init(key.clone(), shape, DType::F32);
        let declared = in_out_shardings(make, &mesh, P(()), spec());
        let sent = partitioned(declared)(&random::key(3)).expect("it is traced").collectives();
        assert!(sent.is_empty(), "{i}: {sent:?}");
        let declared = in_out_shardings(make, &mesh, P(()), spec());
        let found = jit(declared)(&random::key(3)).expect("it runs");
        let parts: &[usize] = if i == 5 { &[4, 1, 1] } else { &[2, 4] };
        assert_eq!(found.sharding().expect("it is sharded").blocks_per_dim(), parts);
        assert_eq!(numbers(&found), numbers(&make(&random::key(3))), "{i}");
    }
}
