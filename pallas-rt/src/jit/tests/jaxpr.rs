//! Texts of functions against JAX's, which `jaxpr.py` wrote to `jaxpr.txt`.
use super::array;
use crate::ops::{IndexMode, select};
use crate::prelude::*;
use crate::{keep, make_jaxpr, random};
use std::collections::BTreeMap;

/// The functions of `jaxpr.py`, by name.
fn texts() -> BTreeMap<&'static str, Result<String>> {
    let (x, w) = (array(&[1.0; 6], &[2, 3]), array(&[1.0; 12], &[3, 4]));
    let (q, k) = (array(&[1.0; 280], &[5, 7, 8]), array(&[1.0; 240], &[5, 6, 8]));
    let words = Client::cpu().array(&[1u32, 2], &[2]).expect("it fits");
    let (three, weights) = (array(&[1.0; 3], &[3]), array(&[1.0; 3], &[3]));
    let at = Client::cpu().array(&[0i32; 5], &[5]).expect("it fits");
    let rows = array(&[1.0; 15], &[5, 3]);
    BTreeMap::from([
        ("where", make_jaxpr(|x: &Array| select(&x.gt(0.0), x, 0.5 * x))(&x)),
        ("layer", make_jaxpr(|x: &Array, w: &Array| (x.matmul(w) + 1.0).tanh())(&x, &w)),
        (
            "scores",
            make_jaxpr(|q: &Array, k: &Array| {
                let s = q.matmul(&k.t()) * 0.125;
                (s.exp().sum(-1), s.max([0, 1]), s.argmax(-1))
            })(&q, &k),
        ),
        (
            "moves",
            make_jaxpr(|x: &Array| {
                let turned = x.t().reshape(&[6]).cast(DType::I32) + 3;
                Ok::<_, Error>((turned, x.broadcast_to(&[5, 2, 3]), x.sum(keep(1))))
            })(&x),
        ),
        (
            "numbers",
            make_jaxpr(|x: &Array| {
                let first = (x * 1e-5, x + 1e10, x - 123456789.0, x / 0.1);
                (first, x * f32::INFINITY, x.pow(2.5), x * 1e16)
            })(&x),
        ),
        (
            "bits",
            make_jaxpr(|x: &Array| {
                let left = x << 3;
                let mixed = left ^ ((x >> 2) & 255);
                (mixed, !x | 1, x.minimum(5))
            })(&words),
        ),
        (
            "unused",
            make_jaxpr(|x: &Array| {
                let _ = x.exp();
                x.sum(..)
            })(&x),
        ),
        (
            "many",
            make_jaxpr(|all: &Vec<Array>| {
                let doubled = all.iter().map(|x| x + x);
                all.iter().cloned().chain(doubled).collect::<Vec<Array>>()
            })(&vec![x.clone(); 8]),
        ),
        ("captured", make_jaxpr(move |x: &Array| &weights * x)(&three)),
        ("nothing", make_jaxpr(|x: &Array| x.clone())(&x)),
        ("gather", make_jaxpr(|x: &Array, i: &Array| x.take_with(i, 0, IndexMode::Clip))(&x, &at)),
        ("scatter", make_jaxpr(|x: &Array, i: &Array, y: &Array| x.at(i).max(y).exp())(&x, &at, &rows)),
        (
            "windows",
            make_jaxpr(|x: &Array, i: &Array, y: &Array| x.at((i, i)).add(y).exp())(&x, &at, &rows.index((.., 0))),
        ),
    ])
}

#[test]
fn texts_are_those_of_jax() {
    let mut found = texts();
    for case in include_str!("jaxpr.txt").trim_end().split("\n\n") {
        let (name, want) = case.split_once('\n').expect("a name and a text");
        let text = found.remove(name).unwrap_or_else(|| panic!("no function {name}")).expect("it is traced");
        assert_eq!(text, want, "{name}:\n{text}");
    }
    assert!(found.is_empty(), "not in the file: {found:?}");
    let launches = crate::jit::count_steps(|x: &Array| select(&x.gt(0.0), x, 0.5 * x))(&array(&[1.0; 6], &[2, 3]));
    assert_eq!(launches.expect("it compiles"), 1);
}

/// Differences by design, and operations for which JAX has no primitive.
#[test]
fn texts_of_other_operations() {
    let text = |f: fn(&Array) -> Array| make_jaxpr(f)(&array(&[1.0; 6], &[2, 3])).expect("it is traced");
    let softmax = text(|x| x.softmax(-1));
    let names = |text: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.split_once(" = "));
        lines.map(|(_, right)| right.split([' ', '[']).next().expect("a name").to_string()).collect()
    };
    let broadcast = "broadcast_in_dim";
    let want = ["reduce_max", broadcast, "stop_gradient", broadcast, "sub", "exp", "reduce_sum", broadcast, broadcast];
    assert_eq!(names(&softmax), [&want[..], &["div"]].concat(), "{softmax}");
    assert_eq!(text(|x| x.gelu()), "{ lambda ; a:f32[2,3]. let b:f32[2,3] = gelu a in (b,) }");
    assert_eq!(
        text(|x| select(&x.gt(0.0), 1.0, x)),
        "{ lambda ; a:f32[2,3]. let\n    b:bool[2,3] = gt a 0.0:f32[]\n    c:f32[2,3] = broadcast_in_dim 1.0:f32[]\n    \
         d:f32[2,3] = select_n b a c\n  in (d,) }"
    );
    let drawn = text(|x| x * random::uniform(random::key(0), &[2, 3], DType::F32));
    assert_eq!(names(&drawn).iter().filter(|name| *name == "xor").count(), 23, "{drawn}");
    let wrong = make_jaxpr(|x: &Array| x.sum(3))(&array(&[1.0], &[1]));
    assert!(wrong.expect_err("there is no axis 3").to_string().contains("axis 3"));
}
