//! Random nestings of transformations against JAX's answers; nestings.py draws them and says what a line holds.
use super::values::{Input, difference, input};
use crate::prelude::*;
use crate::{cond, grad, jit, jvp, scan, vmap};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

const NESTINGS: &str = include_str!("nestings.txt");
const SCALES: [f32; 4] = [1.0, 0.5, -0.75, 0.25];

#[derive(Deserialize)]
struct Nesting {
    input: Input,
    tree: Value,
    nodes: usize,
    value: String,
}

/// A function from an array to one of its shape.
type Map = Arc<dyn Fn(&Array) -> Result<Array> + Send + Sync>;

/// The function of a tree; `count` counts its transformations.
fn built(tree: &Value, count: &mut BTreeMap<String, usize>) -> Map {
    let parts = tree.as_array().expect("a tree");
    let kind = parts[0].as_str().expect("a transformation").to_string();
    *count.entry(kind.clone()).or_insert(0) += 1;
    if kind == "body" {
        let steps = parts[1].as_array().expect("a list");
        let names: Vec<String> = steps.iter().map(|name| name.as_str().expect("a step").to_string()).collect();
        return Arc::new(move |x| Ok(names.iter().fold(x.clone(), |x, name| step(name, &x))));
    }
    let f = built(parts.last().expect("a function"), count);
    let g = if kind == "cond" { built(&parts[1], count) } else { f.clone() };
    let names: Vec<String> = match kind.as_str() {
        "guard" => parts[1].as_array().expect("a list").iter().map(|x| x.as_str().expect("a step").into()).collect(),
        _ => vec![],
    };
    let length = parts[1].as_u64().unwrap_or(0) as usize;
    Arc::new(move |x| {
        let f = f.clone();
        let own = move |x: &Array| f(x);
        match kind.as_str() {
            "jit" => jit(own)(x),
            "grad" => grad(move |x: &Array| own(x).map(|y| y.sum(..)))(x),
            "vmap" if x.shape().is_empty() => own(x),
            "vmap" => vmap(own)(x),
            "jvp" => {
                let (value, tangent) = jvp(own)(&(x.clone(),), &(x.cos(),))?;
                Ok(value + tangent * 0.5)
            }
            "scan" => {
                let scales = Array::from_slice(&SCALES[..length], &[length])?;
                let (last, all) = scan(x, &scales, |c: &Array, s: &Array| Ok::<_, Error>((own(c)?.tanh(), c * s)))?;
                Ok(last + all.sum(0))
            }
            "guard" => {
                let names = names.clone();
                let steps = move |x: &Array| {
                    let first = guarded(&names[0], x);
                    Ok(names[1..].iter().fold(first, |x, name| guarded(name, &x.abs())))
                };
                cond(&x.gt(0.05).all(..), x, steps, own)
            }
            "cond" => cond(&x.sum(..).gt(0.1), x, |x: &Array| g(x), own),
            other => panic!("no transformation `{other}`"),
        }
    })
}

/// A step that is not finite everywhere.
fn guarded(name: &str, x: &Array) -> Array {
    match name {
        "sqrt" => x.sqrt(),
        "log" => x.log(),
        "inverse" => 1.0 / x,
        "power" => x.pow(x * 0.5),
        "scaled log" => x.log() * x.sum(..),
        "arccosh" => (x + 1.0).acosh(),
        other => panic!("no guarded step `{other}`"),
    }
}

fn step(name: &str, x: &Array) -> Array {
    match name {
        "sin" => x.sin(),
        "tanh" => x.tanh(),
        "square" => x * x,
        "centered" => x - x.mean(..),
        "scaled" => x / ((x * x).sum(..) + 1.0),
        "exp" => (-x * x).exp(),
        "softmax" => x * x.softmax(..),
        "max" => x + x.max(..),
        "cumsum" if x.shape().is_empty() => x * 2.0,
        "cumsum" => x.cumsum(-1),
        "flip" => x.flip(..) * x,
        "dot" => x.ravel().dot(&x.ravel()) * x,
        other => panic!("no step `{other}`"),
    }
}

#[test]
fn random_nestings_agree_with_jax() {
    let (mut count, mut wrong, mut total) = (BTreeMap::new(), vec![], 0);
    for (number, line) in NESTINGS.lines().enumerate() {
        let nesting: Nesting = serde_json::from_str(line).unwrap_or_else(|e| panic!("line {}: {e}", number + 1));
        let f = built(&nesting.tree, &mut count);
        let found = match f(&input(&nesting.input, None)) {
            Ok(found) => difference(&[found], &[nesting.value], 8 + 4 * nesting.nodes, false),
            Err(e) => Some(e.to_string()),
        };
        total += 1;
        wrong.extend(found.map(|text| format!("line {}, {}: {text}", number + 1, nesting.tree)));
    }
    wrong.iter().for_each(|text| println!("{text}"));
    println!("{count:?}");
    println!("agreement: {} of {total} nestings", total - wrong.len());
    assert!(wrong.is_empty(), "{} nestings differ", wrong.len());
    assert!(total >= 300 && count.values().all(|&n| n >= 50), "{total} nestings, {count:?}");
}
