//! Specs, their mistakes, and blocks of arrays.
use super::{Case, Dice, ask, drawn, mesh, python};
use crate::jit;
use crate::prelude::*;
use crate::sharding::{Mesh, NamedSharding, P, PartitionSpec, device_put, make_array_from_callback, sub_axis};
use std::sync::Arc;

fn error<T>(found: Result<T>) -> String {
    found.err().map(|error| error.to_string()).expect("a mistake")
}

/// The kind of a message, by the name that `sharding.py` has for it.
fn kind(text: &str) -> &'static str {
    let parts = [
        ("is no axis of the mesh", "unknown"),
        ("twice", "twice"),
        ("entries for an array of", "rank"),
        ("parts", "divides"),
        ("a block of i32", "block type"),
        ("a block of", "block shape"),
        ("being traced", "traced"),
    ];
    parts.iter().find(|(part, _)| text.contains(part)).unwrap_or_else(|| panic!("{text}")).1
}

/// Mistakes of specs are those of JAX, and so are the blocks of arrays where there is none.
#[test]
fn specs_are_those_of_jax() {
    let Some(python) = python() else { return };
    let mut dice = Dice(17);
    let faults = ["", "", "unknown", "twice", "rank", "divides"];
    let cases: Vec<Case> = (0..600).filter_map(|i| drawn(&mut dice, faults[i % faults.len()])).collect();
    let answers = ask(&python, cases.iter().map(|case| case.json("place")));
    let mut seen = std::collections::BTreeMap::<&str, usize>::new();
    for (case, answer) in cases.iter().zip(&answers) {
        *seen.entry(case.fault).or_default() += 1;
        let named = case.sharding();
        let x = Client::cpu().zeros(&case.shape, DType::F32).expect("it fits");
        match device_put(&x, &named) {
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("specs.rs"), "{text}");
                assert_eq!((kind(&text), answer["error"].as_str()), (case.fault, Some(case.fault)), "{case:?}");
            }
            Ok(x) => {
                assert_eq!((case.fault, &answer["error"]), ("", &serde_json::Value::Null), "{case:?}");
                let shards = x.addressable_shards().expect("it has blocks");
                let bounds = |index: &[std::ops::Range<usize>]| -> Vec<[usize; 2]> {
                    index.iter().map(|along| [along.start, along.end]).collect()
                };
                let ours: Vec<_> = shards.iter().map(|s| (bounds(&s.index), s.replica_id)).collect();
                assert_eq!(serde_json::json!(ours), answer["shards"], "{case:?}");
                assert!(shards.iter().map(|s| s.device).eq(case.devices.iter().copied()));
                assert_eq!(serde_json::json!(named.shard_shape(&case.shape).expect("it is even")), answer["local"]);
                let map = named.devices_indices_map(&case.shape).expect("it is even");
                assert!(map.iter().eq(shards.iter().map(|s| (s.device, s.index.clone())).collect::<Vec<_>>().iter()));
            }
        }
    }
    assert!(seen.len() == 5 && seen.values().all(|&n| n > 40), "{seen:?}");
}

/// A callback may return what JAX's may.
#[test]
fn callbacks_make_blocks() {
    let order = vec![3, 1, 2, 0, 7, 5, 6, 4];
    let mesh = Arc::new(Mesh::with_devices(&[("x", 2), ("y", 4)], order).expect("a mesh"));
    let numbers: Vec<f32> = (0..48).map(|i| i as f32).collect();
    let whole = Client::cpu().array(&numbers, &[4, 12]).expect("it fits");
    let named = NamedSharding::new(&mesh, P((None, "y")));
    let mut calls = vec![];
    let x = make_array_from_callback(&[4, 12], &named, |index| {
        calls.push(index.to_vec());
        let rows = index[0].clone().flat_map(|row| index[1].clone().map(move |column| (row * 12 + column) as f32));
        Client::cpu().array(&rows.collect::<Vec<_>>(), &[index[0].len(), index[1].len()])
    });
    let x = x.expect("it is made");
    // Each different block once.
    assert_eq!(calls.len(), 4, "{calls:?}");
    let other = device_put(&whole, &named).expect("it is placed");
    assert_eq!(x.to_vec::<f32>().expect("numbers"), numbers);
    for (a, b) in x.addressable_shards().expect("blocks").iter().zip(other.addressable_shards().expect("blocks")) {
        assert_eq!((a.device, &a.index, a.replica_id), (b.device, &b.index, b.replica_id));
        assert_eq!(a.to_vec::<f32>().expect("numbers"), b.to_vec::<f32>().expect("numbers"));
    }
    // What it made is a declaration.
    let y = jit(|x: &Array| x * 2.0)(&x).expect("it runs");
    assert_eq!(y.sharding().expect("it is sharded").blocks_per_dim(), [1, 4]);
    // A scalar, and no elements at all.
    let made = |shape: &[usize]| {
        make_array_from_callback(shape, &NamedSharding::new(&mesh, P(())), |index| {
            Client::cpu().full(&index.iter().map(std::iter::ExactSizeIterator::len).collect::<Vec<_>>(), 3.0f32)
        })
    };
    assert_eq!(made(&[]).expect("a scalar").to_vec::<f32>().expect("a number"), [3.0]);
    assert!(made(&[0, 5]).expect("no elements").to_vec::<f32>().expect("none").is_empty());
    // Faults.
    let faulty = |fault: &'static str, shape: &[usize]| {
        let mut calls = 0;
        let named = NamedSharding::new(&mesh, P("x"));
        error(make_array_from_callback(shape, &named, |index| {
            calls += 1;
            let rows = index[0].len() + usize::from(fault == "block shape" && calls > 1);
            match fault == "block type" && calls > 1 {
                true => Client::cpu().full(&[rows], 1i32),
                false => Client::cpu().full(&[rows], 1.0f32),
            }
        }))
    };
    let traced = jit({
        let named = NamedSharding::new(&mesh, P("x"));
        move |x: &Array| make_array_from_callback(&[8], &named, |_| Ok(x.clone()))
    });
    let found = [
        ("block shape", faulty("block shape", &[4])),
        ("block type", faulty("block type", &[4])),
        ("divides", faulty("", &[3])),
        ("rank", faulty("", &[])),
        ("traced", error(traced(&Client::cpu().full(&[4], 0.0f32).expect("it fits")))),
    ];
    for (fault, text) in &found {
        assert_eq!(kind(text), *fault, "{text}");
    }
    let own =
        make_array_from_callback(&[4], &NamedSharding::new(&mesh, P("x")), |_| Client::cpu().array(&[1.0f32], &[2]));
    assert!(error(own).contains("elements"), "the callback's own error");
    let Some(python) = python() else { return };
    let case = |fault: &'static str| {
        let shape = match fault {
            "divides" => vec![3],
            _ => vec![4],
        };
        let spec = vec![Some(vec!["x".to_string()])];
        Case { mesh: vec![("x".into(), 2), ("y".into(), 4)], devices: (0..8).collect(), shape, spec, fault }
    };
    // JAX fails on the axis of a scalar with an `IndexError`.
    let faults: Vec<&'static str> = found.iter().map(|(fault, _)| *fault).filter(|fault| *fault != "rank").collect();
    let answers = ask(&python, faults.iter().map(|fault| case(fault).json("callback")));
    for (fault, answer) in faults.iter().zip(&answers) {
        assert_eq!(answer["error"], *fault);
    }
}

/// PyTorch/XLA's numbers of axes, tuples, arrays and names are the same specs.
#[test]
fn spellings_of_a_spec_are_equal() {
    let mesh = mesh(&[("data", 2), ("model", 4), ("one", 1)]);
    let named = |spec: PartitionSpec| NamedSharding::new(&mesh, spec);
    let equal = [
        (P((0, None, 1)), P(("data", None, "model"))),
        (P(((0, 1), None)), P((("data", "model"), None))),
        (P((["data", "model"], None)), P((("data", "model"), None))),
        (P(((0, "model"),)), P(((["data", "model"]),))),
        (P(1), P("model")),
        (P((sub_axis(1, 1, 2),)), P(sub_axis("model", 1, 2))),
        (P(((sub_axis("model", 1, 2), 0), 2)), P(((sub_axis(1, 1, 2), "data"), "one"))),
    ];
    for (a, b) in equal {
        assert_eq!(named(a.clone()), named(b.clone()), "{a:?} {b:?}");
    }
    let alike = [
        (P((0, None, 2)), P("data")),
        (P(()), P((None, None, None))),
        (P(("one", None)), P(())),
        (P(((2, 0, 1), None)), P((["data", "model"],))),
        (P(((sub_axis(1, 1, 2), sub_axis(1, 2, 2)),)), P("model")),
    ];
    for (a, b) in alike {
        assert!(named(a.clone()).is_equivalent_to(&named(b.clone()), 3).expect("they fit"), "{a:?} {b:?}");
    }
    assert!(!named(P(0)).is_equivalent_to(&named(P(1)), 2).expect("they fit"));
    assert!(!named(P((0, 1))).is_equivalent_to(&named(P((("data", "model"),))), 2).expect("they fit"));
    // An axis twice is a mistake also if its size is 1.
    assert!(error(named(P((2, "one"))).is_equivalent_to(&named(P(())), 3)).contains("twice"));
    let x = Client::cpu().full(&[8, 8], 1.0f32).expect("it fits");
    let texts = [
        (P(3), "3 is no axis of the mesh <[\"data\"=2, \"model\"=4, \"one\"=1]>"),
        (P((0, "data")), "axis `data` divides an array of f32[8,8] twice"),
        (P((sub_axis("model", 2, 4), None)), "a part of size 4 behind 2 of axis `model` of size 4"),
        (P((sub_axis("model", 1, 2), sub_axis("model", 1, 2))), "axis `model` divides an array of f32[8,8] twice"),
    ];
    for (spec, part) in texts {
        let text = error(device_put(&x, &named(spec)));
        assert!(text.contains(part) && text.contains("specs.rs"), "{text}");
    }
    // The halves of an axis divide two dimensions.
    let halves = device_put(&x, &named(P((sub_axis("model", 1, 2), sub_axis("model", 2, 2))))).expect("it is placed");
    assert_eq!(halves.addressable_shards().expect("blocks")[2].index, [4..8, 0..4]);
    assert_eq!(halves.to_vec::<f32>().expect("numbers"), [1.0; 64]);
}

/// Devices in an order of their own, in a mesh with three axes: each block is with its device, and a function of all of
/// them computes what one device does.
#[test]
fn devices_in_any_order() {
    let order = vec![11, 3, 7, 0, 1, 2, 10, 9, 8, 4, 5, 6];
    let axes = [("data", 2), ("fsdp", 3), ("model", 2)];
    let mesh = Arc::new(Mesh::with_devices(&axes, order.clone()).expect("a mesh"));
    let numbers: Vec<f32> = (0..12 * 6).map(|i| i as f32).collect();
    let x = Client::cpu().array(&numbers, &[12, 6]).expect("it fits");
    let put = |spec| device_put(&x, &NamedSharding::new(&mesh, spec)).expect("it is placed");
    let placed = put(P((("fsdp", "data"), "model")));
    for shard in placed.addressable_shards().expect("blocks") {
        let position = order.iter().position(|&device| device == shard.device).expect("a device of the mesh");
        let (data, fsdp, model) = (position / 6, position / 2 % 3, position % 2);
        let rows = fsdp * 2 + data;
        assert_eq!(shard.index, [rows * 2..rows * 2 + 2, model * 3..model * 3 + 3]);
        assert_eq!(shard.to_vec::<f32>().expect("numbers")[0], numbers[rows * 2 * 6 + model * 3]);
    }
    let w = put(P(("model", ("data", "fsdp"))));
    let f = |x: &Array, w: &Array| x.matmul(&w.t()).sum(0);
    let (found, one) = (jit(f)(&placed, &w).expect("it runs"), jit(f)(&x, &x).expect("it runs"));
    assert_eq!(found.to_vec::<f32>().expect("numbers"), one.to_vec::<f32>().expect("numbers"));
    // This order is no view of the other one: no axis has the same devices.
    let other = Arc::new(Mesh::new(&axes).expect("a mesh"));
    let other = device_put(&x, &NamedSharding::new(&other, P("data"))).expect("it is placed");
    assert!(error(jit(f)(&placed, &other)).contains("values on two meshes: argument `0`"));
}

/// A mistake in a mesh goes through `?` as an error of the crate, at that line, and as any other.
#[test]
fn mistakes_in_meshes_are_errors() {
    fn own() -> crate::Result<Mesh> {
        Ok(Mesh::new(&[("data", 0)])?)
    }
    fn boxed() -> Result<Mesh, Box<dyn std::error::Error>> {
        Ok(Mesh::new(&[("data", 2), ("data", 4)])?)
    }
    let found = own().expect_err("no devices").to_string();
    assert!(found.starts_with(&format!("{}:", file!())), "{found}");
    assert!(boxed().expect_err("a name twice").to_string().contains("data"));
}
