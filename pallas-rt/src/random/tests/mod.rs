//! Random numbers against JAX's, which `reference.py` wrote to `jax.txt`, and against their distribution functions;
//! keys in trees, in batches and under transformations.
mod batches;
mod distributions;
mod jax;

use crate::jit::count_steps;
use crate::ops::select;
use crate::prelude::*;
use crate::random::{self, Key};
use crate::{grad, jit};
use pallas_ir::Loc;

fn key(seed: i64) -> Key {
    Client::cpu().key(seed).expect("it fits")
}
fn floats(x: &Array) -> Vec<f32> {
    x.to_vec().unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_second_use_names_both_lines() {
    let key = key(0);
    let at = line!() + 1;
    let first = random::normal(key.clone(), &[2], DType::F32);
    let again = random::uniform(key.clone(), &[2], DType::F32);
    assert!(first.check().is_ok());
    let message = again.to_vec::<f32>().expect_err("the second use").to_string();
    let (here, before) = (format!("{}:{}:", file!(), at + 1), format!("used at {}:{at}:", file!()));
    assert!(message.starts_with(&here) && message.contains(&before), "{message}");
    // Looking at its bits is no use.
    assert_eq!(key.data().to_vec::<u32>().expect("u32"), [0, 0]);
    for wrong in random::split::<2>(key.clone()) {
        assert!(wrong.data().check().is_err());
        assert!(random::bits(wrong, &[], DType::U32).check().is_err());
    }
    // Inside of a traced function the key is another one at each call.
    let twice = jit(|key: &Key| {
        let x = random::normal(key.clone(), &[2], DType::F32);
        x + random::normal(key.clone(), &[2], DType::F32)
    });
    assert!(twice(&key).expect_err("the second use").to_string().contains("used at"));
    let once = jit(|key: &Key| random::normal(key.clone(), &[2], DType::F32));
    assert_eq!(floats(&once(&key).expect("it runs")), floats(&first));
    assert_eq!(floats(&once(&key).expect("it runs")), floats(&first));
}

#[test]
fn keys_are_trees() {
    let state = (key(3), vec![key(4)]);
    assert_eq!(crate::tree::structure(&state).to_string(), "(Key(*), [Key(*)])");
    assert_eq!(crate::tree::paths(&state), ["0.0", "1[0].0"]);
    let next = jit(|(a, b): &(Key, Vec<Key>)| {
        let [first, second] = random::split(a.clone());
        (first, vec![random::fold_in(b[0].clone(), 7), second])
    });
    let (first, rest) = next(&state).expect("it runs");
    let [a, b] = random::split(key(3));
    let bits = |key: &Key| key.data().to_vec::<u32>().expect("u32");
    assert_eq!([bits(&first), bits(&rest[0]), bits(&rest[1])], [bits(&a), bits(&random::fold_in(key(4), 7)), bits(&b)]);
}

/// Numbers of a key that is no argument are equations of the function, not captured arrays.
#[test]
fn functions_without_traced_operands_are_staged() {
    let noise = jit(|x: &Array| x + random::normal(random::key(5), &[3], DType::F32));
    let at_once = random::normal(key(5), &[3], DType::F32);
    let zeros = Client::cpu().full(&[3], 0.0f32).expect("it fits");
    let before = crate::counters().jit_traces;
    assert_eq!(floats(&noise(&zeros).expect("it runs")), floats(&at_once));
    assert!(crate::counters().jit_traces > before);
    let text = crate::make_jaxpr(|x: &Array| x + random::normal(random::key(5), &[3], DType::F32))(&zeros);
    let text = text.expect("it is traced");
    assert!(text.starts_with("{ lambda ; a:f32[3]. let") && text.contains("log1p"), "{text}");
    let folded = jit(|x: &Array| random::bits(random::fold_in(random::key(5), x), &[2], DType::U32));
    let step = Client::cpu().array(&[9i32], &[]).expect("it fits");
    let want = random::bits(random::fold_in(key(5), 9), &[2], DType::U32);
    assert_eq!(folded(&step).expect("it runs").to_vec::<u32>().expect("u32"), want.to_vec::<u32>().expect("u32"));
}

/// Numbers are made by the kernel that reads them.
#[test]
fn random_numbers_are_fused() {
    let x = Client::cpu().full(&[30, 40], 0.5f32).expect("it fits");
    let count = |f: fn(&Array, &Key) -> Array| count_steps(f)(&x, &key(1)).expect("it compiles");
    let counts = [
        count(|x, key| x + random::normal(key.clone(), &[30, 40], DType::F32)),
        count(|x, key| select(&random::bernoulli(key.clone(), 0.9, &[30, 40]), x / 0.9, 0.0)),
        count(|x, key| random::categorical(key.clone(), x, -1)),
        count(|x, key| x * random::uniform_between(random::fold_in(key.clone(), 3), &[30, 40], DType::F32, -1, 1)),
        count(|x, key| random::randint(key.clone(), &[30, 40], 0, 10, DType::I32).cast(DType::F32) * x),
        count(|x, _| x + random::normal(random::key(1), &[30, 40], DType::F32)),
    ];
    // The words of two keys and the remainders of them are more equations than a kernel takes.
    assert_eq!(counts, [1, 1, 1, 1, 2, 1]);
}

#[test]
fn the_interpreter_makes_the_same_numbers() {
    let made = |client: Client| {
        let key = |seed| client.key(seed).expect("it fits");
        let all = [
            random::bits(key(1), &[3, 5], DType::U8),
            random::uniform_between(key(2), &[3, 5], DType::F32, -0.7, 1.3),
            random::uniform_between(key(2), &[15], DType::Bf16, -0.7, 1.3),
            random::randint(key(3), &[4, 1, 2], -5, 1000, DType::I32),
            random::split_into(key(4), 3).remove(2).data().clone(),
        ];
        all.map(|x| x.to_bytes().unwrap_or_else(|e| panic!("{e}")))
    };
    assert_eq!(made(Client::cpu()), made(Client::interpreter()));
}

/// By a factor of random numbers, and by a bound of them.
#[test]
fn gradients_pass_random_numbers() {
    let loss = |w: &Array, key: &Key| {
        let z = random::normal(key.clone(), &[1000], DType::F32);
        (z * w).sum(..)
    };
    let sum: f32 = floats(&random::normal(key(8), &[1000], DType::F32)).iter().sum();
    let w = Client::cpu().array(&[2.0f32], &[]).expect("it fits");
    let found = floats(&grad(loss)(&w, &key(8)).expect("it runs"))[0];
    assert!((found - sum).abs() < 1e-3 * (1.0 + sum.abs()), "{found} {sum}");
    let high = |high: &Array, key: &Key| random::uniform_between(key.clone(), &[50], DType::F32, 0.0, high).sum(..);
    let sum: f32 = floats(&random::uniform(key(9), &[50], DType::F32)).iter().sum();
    let found = floats(&jit(grad(high))(&w, &key(9)).expect("it runs"))[0];
    assert!((found - sum).abs() < 1e-4 * sum, "{found} {sum}");
}

#[test]
fn remainders_by_way_of_floats_are_exact() {
    let edges = [0, 1, 2, 3, 5, 7, 1 << 14, (1 << 24) - 1, 1 << 24, (1 << 24) + 1, 1 << 31, u32::MAX - 1, u32::MAX];
    let near = edges.iter().flat_map(|&x| (0..5).map(move |by| x.wrapping_add(by).wrapping_sub(2)));
    let edges: Vec<u32> = near.collect();
    let pairs = edges.iter().flat_map(|&a| edges.iter().map(move |&b| (a, b)));
    // Random ones, of all sizes, and multiples of a number with what is next to them.
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 32) as u32
    };
    let drawn: Vec<(u32, u32)> = (0..1_000_000)
        .map(|i| {
            let (a, b) = (next() >> (next() % 32), next() >> (next() % 32));
            if i % 2 == 0 { (a, b) } else { ((a / b.max(1)).wrapping_mul(b).wrapping_add(i % 4).wrapping_sub(2), b) }
        })
        .collect();
    let (a, b): (Vec<u32>, Vec<u32>) = pairs.chain(drawn).unzip();
    for client in [Client::cpu(), Client::interpreter()] {
        let n = if client == Client::cpu() { a.len() } else { 20_000 };
        let array = |x: &[u32]| client.array(&x[..n], &[n]).expect("it fits");
        let found = crate::jit::create_array(&[&array(&a), &array(&b)], Loc::caller(), |graph, v| {
            super::integer::remainder(&mut super::lanes::ElementwiseBuilder::new(graph, &[n])?, v[0], v[1])
        });
        let found = found.to_vec::<u32>().unwrap_or_else(|e| panic!("{e}"));
        for (i, found) in found.into_iter().enumerate() {
            assert_eq!(found, a[i].checked_rem(b[i]).unwrap_or(a[i]), "{} mod {}", a[i], b[i]);
        }
    }
}

#[test]
fn mistakes_are_named() {
    let array = Client::cpu().array(&[1.0f32, 2.0], &[2]).expect("it fits");
    let wrong: [(Array, &str); 17] = [
        (random::bits(key(0), &[2], DType::F32), "`bits` of f32"),
        (random::uniform(key(0), &[2], DType::I32), "`uniform` of i32"),
        (random::normal(key(0), &[2; 9], DType::F32), "has 9 axes"),
        (random::normal(key(0), &[1 << 20, 1 << 20], DType::F32), "more than 2^31 - 1 elements"),
        (random::randint(key(0), &[2], 0.5, 3, DType::I32), "the number 0.5 as a bound"),
        (random::randint(key(0), &[2], 0, &array, DType::I32), "a bound of `randint` of f32"),
        (random::randint(key(0), &[2], 0, 1, DType::F32), "`randint` of f32"),
        (random::bernoulli(key(0), &array, &[3]), "does not broadcast"),
        (random::bernoulli(key(0), true, &[3]), "the number true"),
        (random::categorical(key(0), &array, 1), "along axis 1"),
        (random::rademacher(key(0), &[2], DType::Bool), "`rademacher` of bool"),
        (random::choice(key(0), 2, &[3], false), "a choice of 3 of 2"),
        (random::choice(key(0), 0, &[3], true), "nothing to choose from"),
        (random::weighted_choice(key(0), &array, &[3], false), "a choice of 3 of 2"),
        (random::weighted_choice(key(0), &array.expand_dims(0), &[1], false), "weights of f32 [1, 2]"),
        (random::permuted(key(0), &array, 1), "axis 1 of an array of rank 1"),
        (random::fold_in(key(0), -1).data().clone(), "`fold_in` of -1"),
    ];
    for (x, words) in wrong {
        let message = x.check().err().unwrap_or_else(|| panic!("expected: {words}")).to_string();
        assert!(message.contains(words) && message.starts_with(file!()), "expected {words}, found {message}");
    }
    let message = Key::wrap(&array).expect_err("f32").to_string();
    assert!(message.contains("a key of f32[2]"), "{message}");
}
