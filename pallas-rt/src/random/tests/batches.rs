//! Batches of keys.
use super::{floats, key};
use crate::prelude::*;
use crate::random::{self, Key};
use crate::{Arg, grad, jit, scan, vmap};

/// The array that a function draws of each key of a batch.
type Draws = fn(Key) -> Array;

/// Functions that draw by equations, by loops, by sorting, and of parameters.
const ALL: &[(&str, Draws)] = &[
    ("bits", |key| random::bits(key, &[3], DType::U32)),
    ("normal", |key| random::normal(key, &[2, 3], DType::F32)),
    ("uniform of bf16", |key| random::uniform(key, &[5], DType::Bf16)),
    ("randint", |key| random::randint(key, &[4], -3, 9, DType::I32)),
    ("truncated normal", |key| random::truncated_normal(key, -1.0, 2.0, &[4], DType::F32)),
    ("split", |key| {
        let [a, b] = random::split(key);
        random::normal(a, &[2], DType::F32) + random::uniform(b, &[2], DType::F32)
    }),
    ("fold in", |key| random::normal(random::fold_in(key, 7), &[], DType::F32)),
    ("permutation", |key| random::permutation(key, 9)),
    ("choice", |key| random::choice(key, 20, &[4], false)),
    ("bernoulli", |key| random::bernoulli(key, 0.3, &[6])),
    ("gamma", |key| random::gamma(key, 0.7, &[3], DType::F32)),
    ("beta", |key| random::beta(key, 2.0, 0.5, &[2], DType::F32)),
    ("poisson", |key| random::poisson(key, 12.5, &[3], DType::I32)),
    ("binomial", |key| random::binomial(key, 40.0, 0.4, &[3], DType::F32)),
    ("orthogonal", |key| random::orthogonal(key, 3, 2, &[], DType::F32)),
];

#[test]
fn a_batch_of_keys_draws_what_each_key_draws() {
    let n = 4;
    for &(name, f) in ALL {
        let batch = random::split_batch(key(3), &[n]);
        assert_eq!(batch.shape(), [n]);
        let all = vmap(move |key: &Key| f(key.clone()))(&batch).unwrap_or_else(|e| panic!("{name}: {e}"));
        let together = jit(vmap(move |key: &Key| f(key.clone())))(&batch).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(all.to_bytes().expect("here"), together.to_bytes().expect("here"), "{name}");
        for (i, own) in random::split_into(key(3), n).into_iter().enumerate() {
            let (row, want) = (all.index(i), f(own));
            assert_eq!(row.to_bytes().expect("here"), want.to_bytes().expect("here"), "{name}, key {i}");
            let picked = f(batch.index(i));
            assert_eq!(picked.to_bytes().expect("here"), want.to_bytes().expect("here"), "{name}, key {i}");
        }
    }
}

#[test]
fn batches_of_keys_are_split_scanned_and_nested() {
    let batch = random::split_batch(key(0), &[2, 3]);
    assert_eq!((batch.shape(), batch.data().shape()), (&[2, 3][..], &[2, 3, 2][..]));
    let flat = random::split_batch(key(0), &[6]);
    assert_eq!(batch.data().to_vec::<u32>().expect("u32"), flat.data().to_vec::<u32>().expect("u32"));
    let normal = |key: &Key| random::normal(key.clone(), &[2], DType::F32);
    let nested = vmap(move |keys: &Key| vmap(normal)(keys))(&batch).expect("a batch of batches");
    let want = vmap(normal)(&flat).expect("a batch");
    assert_eq!((nested.shape(), floats(&nested)), (&[2, 3, 2][..], floats(&want)));
    // Keys that a batched function makes are a batch.
    let both = vmap(|key: &Key| random::split_batch(key.clone(), &[3]))(&random::split_batch(key(5), &[2]));
    let both = both.expect("a batch of keys");
    assert_eq!(both.shape(), [2, 3]);
    let [first, second] = random::split(key(5));
    let own = random::split_batch(second, &[3]);
    assert_eq!(both.index(1).data().to_vec::<u32>().expect("u32"), own.data().to_vec::<u32>().expect("u32"));
    drop(first);
    // A key for each step of a loop.
    let zero = Client::cpu().full(&[], 0.0f32).expect("it fits");
    let steps = scan(&zero, &flat, |sum: &Array, key: &Key| {
        let x = random::normal(key.clone(), &[2], DType::F32);
        (sum + x.sum(..), x)
    });
    assert_eq!(floats(&steps.expect("it runs").1), floats(&want));
    // Beside parameters of which each key has its own, with their derivative.
    let a = Client::cpu().array(&[0.5f32, 1.0, 2.0, 4.0, 8.0, 16.0], &[6]).expect("it fits");
    let draw = |key: &Key, a: &Array| random::gamma(key.clone(), a, &[], DType::F32);
    let slopes = vmap(grad(draw).argnums(Arg::<1>))(&flat, &a).expect("a batch of gradients");
    let one = grad(draw).argnums(Arg::<1>);
    for i in 0..6 {
        let own = one(&flat.index(i), &a.index(i)).expect("a gradient");
        let (own, found) = (floats(&own)[0], floats(&slopes)[i]);
        assert!((own - found).abs() <= 1e-5 * own.abs(), "{own} {found}");
    }
    // The same key for all examples.
    let same = vmap(draw).in_axes((None, Some(0)))(&key(9), &a).expect("a batch");
    let own = draw(&key(9), &a.index(2));
    assert_eq!(floats(&same)[2], floats(&own)[0]);
}

#[test]
fn a_batch_is_no_key() {
    let batch = random::split_batch(key(0), &[3]);
    let at = line!() + 1;
    let message = random::normal(batch.clone(), &[2], DType::F32).check().expect_err("a batch").to_string();
    assert!(message.starts_with(&format!("{}:{at}:", file!())), "{message}");
    assert!(message.contains("a batch of keys [3] as one key") && message.contains("vmap"), "{message}");
    assert!(random::gamma(batch.clone(), 1.0, &[2], DType::F32).check().is_err());
    assert!(random::split::<2>(batch.clone())[0].data().check().is_err());
    assert!(batch.index(3).data().check().is_err());
    assert!(batch.index((0, 0)).data().check().is_err());
    let wrapped = Key::wrap(batch.data()).expect("a batch");
    assert_eq!(wrapped.shape(), [3]);
    assert!(Key::wrap(&batch.data().index(0)).expect("a key").shape().is_empty());
}
