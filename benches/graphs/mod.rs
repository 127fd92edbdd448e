//! Functions of arrays, as in `xla.py`: each case makes a program from its inputs, and every call of it runs it once.
mod gpt;

use crate::Arrays;
use pallas_kernels::flash_attention::{Options, flash_attention};
use pallas_rt::ir::DType;
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
use pallas_rt::{
    Arg, Client, Scan, fori_loop, grad, jit, ops, scan, tree, value_and_grad, vmap, with_sharding_constraint,
};
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

/// Runs a program once.
pub type Program = Box<dyn FnMut() -> Result<Vec<Array>>>;
/// Makes a program of its inputs.
pub type Make = fn(Arrays) -> Result<Program>;

/// Every case by the first word of its name.
pub const CASES: [(&str, Make); 39] = [
    ("mlp_step", |x| mlp_step(x, DType::F32)),
    ("mlp_step_bf16", |x| mlp_step(x, DType::Bf16)),
    ("gpt_step", |x| gpt::step(x, DType::F32)),
    ("gpt_step_bf16", |x| gpt::step(x, DType::Bf16)),
    ("fsdp_step", fsdp_step),
    ("chain_donated", chain_donated),
    ("chain_dropped", chain_dropped),
    ("chain_kept", chain_kept),
    ("rnn", |x| {
        Ok(repeated3(jit(|w: &Array, v: &Array, xs: &Array| Ok(rnn_states(w, v, xs)?.1)), [&x["w"], &x["v"], &x["xs"]]))
    }),
    ("rnn_gradient", rnn_gradient),
    ("recurrence", |x| Ok(repeated2(jit(recurrence), [&x["a"], &x["xs"]]))),
    ("recurrence_gradient", |x| {
        let loss = |a: &Array, xs: &Array| Ok(recurrence(a, xs)?.square().mean(..));
        Ok(repeated2(jit(grad(loss)), [&x["a"], &x["xs"]]))
    }),
    ("gru_each", gru_each),
    ("sinkhorn", |x| Ok(repeated(jit(sinkhorn), &x["costs"]))),
    ("selective", |x| Ok(repeated_all(jit(|x: &Arrays| Ok(vec![selective(x)?])), x))),
    ("selective_gradient", |x| {
        let slopes = grad(|x: &Arrays| Ok(selective(x)?.square().mean(..)));
        let order = ["x", "steps", "a", "b", "c"];
        let all = jit(move |x: &Arrays| slopes(x).map(|found| order.map(|name| found[name].clone()).to_vec()));
        Ok(repeated_all(all, x))
    }),
    ("mapped_product", |x| {
        let loss = |w: &Array, xs: &Array| {
            let w = w.clone();
            Ok(vmap(move |x: &Array| w.matmul(x).tanh())(xs)?.square().sum(..))
        };
        Ok(repeated2(jit(grad(loss)), [&x["w"], &x["xs"]]))
    }),
    ("mapped_flow", mapped_flow),
    ("encoder_block", encoder),
    ("encoder", encoder),
    ("jitted", |x| Ok(repeated2(jit(|x: &Array, y: &Array| x + y), [&x["x"], &x["y"]]))),
    ("kernels_50", |x| Ok(repeated2(jit(sums), [&x["x"], &x["y"]]))),
    ("products_50", |x| Ok(repeated2(jit(products), [&x["x"], &x["w"]]))),
    ("first_call", first_calls),
    ("conv", |x| Ok(repeated2(jit(conv), [&x["x"], &x["w"]]))),
    ("conv_gradient", conv_gradient),
    ("sort", |x| Ok(repeated2(jit(|x: &Array, _: &Array| x.sort(0)), [&x["x"], &x["x"]]))),
    ("top_k", |x| Ok(repeated2(jit(|x: &Array, _: &Array| x.top_k(64, 0).0), [&x["x"], &x["x"]]))),
    ("take", |x| Ok(repeated2(jit(|x: &Array, rows: &Array| x.take(rows, 0)), [&x["x"], &x["rows"]]))),
    ("take_gradient", |x| {
        let gradient = grad(|x: &Array, rows: &Array| x.take(rows, 0).square().sum(..));
        Ok(repeated2(jit(gradient), [&x["x"], &x["rows"]]))
    }),
    ("scatter_add", |x| {
        let add = |x: &Array, rows: &Array, by: &Array| x.at(rows).add(by);
        Ok(repeated3(jit(add), [&x["x"], &x["rows"], &x["by"]]))
    }),
    ("sum", |x| Ok(repeated(jit(|x: &Array| x.sum(..)), &x["x"]))),
    ("sum_squares", |x| Ok(repeated(jit(|x: &Array| x.square().sum(..)), &x["x"]))),
    ("sum_axis0", |x| Ok(repeated(jit(|x: &Array| x.sum(0)), &x["x"]))),
    ("sum_axis1", |x| Ok(repeated(jit(|x: &Array| x.sum(1)), &x["x"]))),
    ("sum_columns", |x| Ok(repeated(jit(|x: &Array| x.sum(0)), &x["x"]))),
    ("sum_rows", |x| Ok(repeated(jit(|x: &Array| x.sum(1)), &x["x"]))),
    ("argmax", |x| Ok(repeated(jit(|x: &Array| x.argmax(0).cast(DType::F32)), &x["x"]))),
    ("argmax_axis0", |x| Ok(repeated(jit(|x: &Array| x.argmax(0).cast(DType::F32)), &x["x"]))),
];

type Compiled = Box<dyn Fn(&Array) -> Result<Array> + Send + Sync>;
type CompiledAll = Box<dyn Fn(&Arrays) -> Result<Vec<Array>> + Send + Sync>;
type Compiled2 = Box<dyn Fn(&Array, &Array) -> Result<Array> + Send + Sync>;
type Compiled3 = Box<dyn Fn(&Array, &Array, &Array) -> Result<Array> + Send + Sync>;

fn repeated(compiled: impl Deref<Target = Compiled> + 'static, x: &Array) -> Program {
    let x = x.clone();
    Box::new(move || Ok(vec![compiled(&x)?]))
}

fn repeated2(compiled: impl Deref<Target = Compiled2> + 'static, arrays: [&Array; 2]) -> Program {
    let [x, y] = arrays.map(Array::clone);
    Box::new(move || Ok(vec![compiled(&x, &y)?]))
}

fn repeated3(compiled: impl Deref<Target = Compiled3> + 'static, arrays: [&Array; 3]) -> Program {
    let [x, y, z] = arrays.map(Array::clone);
    Box::new(move || Ok(vec![compiled(&x, &y, &z)?]))
}

fn repeated_all(compiled: impl Deref<Target = CompiledAll> + 'static, arrays: Arrays) -> Program {
    Box::new(move || compiled(&arrays))
}

#[derive(Clone, Tree)]
struct Layer {
    w: Array,
    b: Array,
}

#[derive(Clone, Tree)]
struct State {
    layers: Vec<Layer>,
    means: Vec<Layer>,
    squares: Vec<Layer>,
    t: Array,
}

/// A step of AdamW; products are of elements of this type, weights are kept in f32.
fn mlp_step(mut arrays: Arrays, dtype: DType) -> Result<Program> {
    let mut take = |name: String| arrays.remove(&name).expect("an input");
    let (x, labels) = (take("x".into()), take("labels".into()));
    let layers: Vec<Layer> = (0..3).map(|i| Layer { w: take(format!("w{i}")), b: take(format!("b{i}")) }).collect();
    let zeros = tree::map(&layers, |x| x.client().zeros(x.shape(), DType::F32))?;
    let t = x.client().zeros(&[], DType::F32)?;
    let mut state = Some(State { layers, means: zeros.clone(), squares: zeros, t });

    let loss = move |layers: &Vec<Layer>, x: &Array, labels: &Array| {
        let mut h = x.cast(dtype);
        for (i, layer) in layers.iter().enumerate() {
            h = h.matmul(&layer.w.cast(dtype)) + layer.b.cast(dtype);
            h = if i < 2 { h.relu() } else { h };
        }
        -(h.cast(DType::F32).log_softmax(-1) * labels.one_hot(10, DType::F32)).sum(-1).mean(..)
    };
    let step = jit(move |state: &State, x: &Array, labels: &Array| {
        let (value, gradient) = value_and_grad(loss)(&state.layers, x, labels)?;
        let t = &state.t + 1.0;
        let means = tree::map2(&state.means, &gradient, |m, g| Ok(m * 0.9 + g * 0.1))?;
        let squares = tree::map2(&state.squares, &gradient, |s, g| Ok(s * 0.999 + g * g * 0.001))?;
        let left = [0.9f64, 0.999].map(|beta| 1.0 - (&t * beta.ln()).exp());
        let layers = tree::map3(&state.layers, &means, &squares, |p, m, s| {
            Ok(p - ((m / &left[0]) / ((s / &left[1]).sqrt() + 1e-8) + p * 0.01) * 1e-3)
        })?;
        Ok((State { layers, means, squares, t }, value))
    })
    .donate_argnums(Arg::<0>);
    Ok(Box::new(move || {
        let (next, value) = step(state.take().expect("a call returns the next"), &x, &labels)?;
        state = Some(next);
        Ok(vec![value])
    }))
}

/// A step of gradient descent for a perceptron of four layers on eight devices, which have the weights and the batch in
/// parts (ZeRO-3).
fn fsdp_step(mut arrays: Arrays) -> Result<Program> {
    let mesh = Arc::new(Mesh::new(&[("data", 8)]).expect("a name"));
    let rows = NamedSharding::new(&mesh, P("data"));
    let mut put = |name: String| device_put(&arrays.remove(&name).expect("an input"), &rows);
    let (x, y) = (put("x".into())?, put("y".into())?);
    let layers: Vec<(Array, Array)> =
        (0..4).map(|i| Ok((put(format!("up{i}"))?, put(format!("down{i}"))?))).collect::<Result<_>>()?;
    let mut state = Some(layers);
    let loss = move |layers: &Vec<(Array, Array)>, x: &Array, y: &Array| {
        let sharded = |x: Array| with_sharding_constraint(&x, &rows);
        let of = |x: Array, (up, down): &(Array, Array)| sharded(sharded(x.matmul(up)).tanh().matmul(down));
        (layers.iter().fold(x.clone(), of) - y).square().mean(..)
    };
    let step = jit(move |layers: &Vec<(Array, Array)>, x: &Array, y: &Array| {
        let (value, gradient) = value_and_grad(loss.clone())(layers, x, y)?;
        Ok((tree::map2(layers, &gradient, |w, g| Ok(w - g * 0.1))?, value))
    })
    .donate_argnums(Arg::<0>);
    Ok(Box::new(move || {
        let (next, value) = step(state.take().expect("a call returns the next"), &x, &y)?;
        state = Some(next);
        Ok(vec![value])
    }))
}

fn chain(x: &Array, y: &Array) -> Array {
    (x * y + x).tanh()
}

fn chain_donated(arrays: Arrays) -> Result<Program> {
    let (mut x, y) = (Some(arrays["x"].clone()), arrays["y"].clone());
    drop(arrays);
    let compiled = jit(chain).donate_argnums(Arg::<0>);
    Ok(Box::new(move || {
        // The caller drops what it got before the next call.
        let made = compiled(x.take().expect("a call returns the next"), &y)?;
        x = Some(made.clone());
        Ok(vec![made])
    }))
}

fn chain_dropped(arrays: Arrays) -> Result<Program> {
    Ok(repeated2(jit(chain), [&arrays["x"], &arrays["y"]]))
}

fn chain_kept(arrays: Arrays) -> Result<Program> {
    let mut kept = VecDeque::new();
    let mut call = repeated2(jit(chain), [&arrays["x"], &arrays["y"]]);
    Ok(Box::new(move || {
        let made = call()?;
        kept.extend(made.iter().cloned());
        kept.drain(..kept.len().saturating_sub(4));
        Ok(made)
    }))
}

fn conv(x: &Array, w: &Array) -> Array {
    let options = ops::Convolution {
        padding: ops::Padding::Same,
        dimension_numbers: ["NHWC", "HWIO", "NHWC"],
        ..ops::Convolution::default()
    };
    ops::conv_general_dilated(x, w, &options)
}

fn conv_gradient(arrays: Arrays) -> Result<Program> {
    let both = (arrays["x"].clone(), arrays["w"].clone());
    let gradient = jit(grad(|(x, w): &(Array, Array)| conv(x, w).square().sum(..) * 1e-3));
    Ok(Box::new(move || {
        let (x, w) = gradient(&both)?;
        Ok(vec![x, w])
    }))
}

fn rnn_states(w: &Array, v: &Array, xs: &Array) -> Result<(Array, Array)> {
    let start = ops::zeros(&xs.shape()[1..], DType::F32);
    scan(&start, xs, |h: &Array, x: &Array| {
        let h = (x.matmul(v) + h.matmul(w)).tanh();
        (h.clone(), h)
    })
}

fn rnn_gradient(arrays: Arrays) -> Result<Program> {
    let weights = (arrays["w"].clone(), arrays["v"].clone());
    let xs = arrays["xs"].clone();
    let loss = |(w, v): &(Array, Array), xs: &Array| Ok(rnn_states(w, v, xs)?.0.square().mean(..));
    let both = jit(value_and_grad(loss));
    Ok(Box::new(move || {
        let (value, (w, v)) = both(&weights, &xs)?;
        Ok(vec![value, w, v])
    }))
}

fn recurrence(a: &Array, xs: &Array) -> Result<Array> {
    let start = ops::zeros(&xs.shape()[1..], DType::F32);
    let step = |h: &Array, x: &Array| {
        let h = a * h + x;
        (h.clone(), h)
    };
    scan(&start, xs, step).map(|(_, all)| all)
}

/// Gradients of a recurrent net for each example.
fn gru_each(arrays: Arrays) -> Result<Program> {
    let loss = |w: &Vec<Array>, xs: &Array| {
        let step = |h: &Array, x: &Array| {
            let z = (x.matmul(&w[0]) + h.matmul(&w[1])).sigmoid();
            let r = (x.matmul(&w[2]) + h.matmul(&w[3])).sigmoid();
            let h: Array = (1.0 - &z) * (x.matmul(&w[4]) + r * h.matmul(&w[5])).tanh() + z * h;
            (h.clone(), h.square().sum(..))
        };
        Ok(scan(&ops::zeros(&[w[1].shape()[0]], DType::F32), xs, step)?.1.sum(..))
    };
    let weights: Vec<Array> = (0..6).map(|i| arrays[&format!("w{i}")].clone()).collect();
    let xs = arrays["xs"].clone();
    let each = jit(vmap(grad(loss)).in_axes([None, Some(0)]));
    Ok(Box::new(move || each(&weights, &xs)))
}

/// Sums of a plan of transport that is found by scaling rows and columns in turn.
fn sinkhorn(costs: &Array) -> Result<Array> {
    let [n, m] = [0, 1].map(|axis| costs.shape()[axis]);
    let scores = costs * 10.0;
    let step = |(_, g): &(Array, Array), _: &()| {
        let f: Array = -(g - &scores).logsumexp(1) - (n as f64).ln();
        let g: Array = -(f.expand_dims(1) - &scores).logsumexp(0) - (m as f64).ln();
        ((f, g), ())
    };
    let start = (ops::zeros(&[n], DType::F32), ops::zeros(&[m], DType::F32));
    let ((f, g), ()) = Scan::new().length(50).run(&start, &(), step)?;
    Ok(((f.expand_dims(1) + g - scores).exp() * costs).sum(..))
}

/// A selective state space: rows of a state decay and grow by what the step says.
fn selective(x: &Arrays) -> Result<Array> {
    let a = x["a"].clone();
    let step = |h: &Array, (x, d, b, c): &(Array, Array, Array, Array)| {
        let d = d.softplus();
        let h: Array = (d.expand_dims(1) * &a).exp() * h + (&d * x).expand_dims(1) * b;
        (h.clone(), (h * c).sum(-1))
    };
    let steps = (x["x"].clone(), x["steps"].clone(), x["b"].clone(), x["c"].clone());
    Ok(scan(&ops::zeros(x["a"].shape(), DType::F32), &steps, step)?.1)
}

/// A neural differential equation for each example.
fn mapped_flow(arrays: Arrays) -> Result<Program> {
    let (weights, xs) = ((arrays["w"].clone(), arrays["v"].clone()), arrays["xs"].clone());
    let loss = |(w, v): &(Array, Array), xs: &Array| {
        let (w, v) = (w.clone(), v.clone());
        let flow = move |x: &Array| {
            let field = |x: &Array| x.matmul(&w).tanh().matmul(&v);
            fori_loop(0..16, x, |_: &Array, x: &Array| x + field(&(x + field(x) / 32.0)) / 16.0)
        };
        Ok(vmap(flow)(xs)?.square().mean(..))
    };
    let slopes = jit(grad(loss));
    Ok(Box::new(move || {
        let (w, v) = slopes(&weights, &xs)?;
        Ok(vec![w, v])
    }))
}

const HEADS: usize = 12;

/// The layers of a transformer that normalises after each of its two parts, as all-MiniLM-L6-v2 does.
fn encoder(mut arrays: Arrays) -> Result<Program> {
    let x = arrays.remove("x").expect("an input");
    let compiled = jit(|x: &Array, arrays: &Arrays| -> Result<Array> {
        let mut x = x.clone();
        for i in 0..arrays.len() / 16 {
            x = block(&x, |name| &arrays[&format!("{i}.{name}")])?;
        }
        Ok(x)
    });
    Ok(Box::new(move || Ok(vec![compiled(&x, &arrays)?])))
}

fn block<'a>(x: &Array, p: impl Fn(&str) -> &'a Array) -> Result<Array> {
    let (batch, length, hidden) = (x.shape()[0], x.shape()[1], x.shape()[2]);
    let dense = |x: &Array, name: &str| x.matmul(p(&format!("{name}.w"))) + p(&format!("{name}.b"));
    let heads = |name: &str| {
        let split = dense(x, name).reshape(&[batch, length, HEADS, hidden / HEADS]);
        Ok::<Array, Error>(split.transpose(&[0, 2, 1, 3]))
    };
    let norm = |x: Array, name: &str| x.standardize(-1, 1e-12) * p(&format!("{name}.w")) + p(&format!("{name}.b"));
    let out = flash_attention(&heads("query")?, &heads("key")?, &heads("value")?, &Options::default())?;
    let out = out.transpose(&[0, 2, 1, 3]).reshape(x.shape());
    let x = norm(x + dense(&out, "out"), "norm0");
    let inner = dense(&x, "up").gelu();
    Ok(norm(&x + dense(&inner, "down"), "norm1"))
}

/// Twenty-five sums, each followed by an elementwise kernel.
fn sums(x: &Array, y: &Array) -> Result<Array> {
    Ok((0..25).fold(x.clone(), |x, _| x.sum(..) * 1e-3 + &x * y))
}

fn products(x: &Array, w: &Array) -> Result<Array> {
    Ok((0..50).fold(x.clone(), |x, _| (x.matmul(w) + 1.0).tanh()))
}

/// Numbers from -0.5 to 0.5 that both sides can make.
fn matrix(client: &Client, rows: usize, columns: usize, seed: usize) -> Result<Array> {
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 1009.0 - 0.5;
    client.array(&(0..rows * columns).map(number).collect::<Vec<_>>(), &[rows, columns])
}

/// A line of a script.
enum Line {
    Dot,
    Add,
    Mul(f64),
    Unary(fn(&Array) -> Array),
}

/// The constants of a script, and its lines.
fn parsed(client: &Client, text: &str) -> Result<(Vec<Array>, Vec<Line>)> {
    let (mut width, mut arrays, mut lines) = (32, vec![], vec![]);
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| words[i].parse().expect("a number");
        lines.push(match words[0] {
            "dot" => {
                arrays.push(matrix(client, width, number(1), number(2))?);
                width = number(1);
                Line::Dot
            }
            "add" => {
                arrays.push(matrix(client, 1, width, number(1))?);
                Line::Add
            }
            "mul" => Line::Mul(words[1].parse().expect("a number")),
            "tanh" => Line::Unary(Array::tanh),
            "sin" => Line::Unary(Array::sin),
            "cos" => Line::Unary(Array::cos),
            "abs" => Line::Unary(Array::abs),
            "logistic" => Line::Unary(Array::sigmoid),
            other => panic!("no operation `{other}`"),
        });
    }
    Ok((arrays, lines))
}

/// Each call traces, compiles and runs the next script.
fn first_calls(scripts: Arrays) -> Result<Program> {
    let client = scripts.values().next().expect("a script").client().clone();
    let text = |bytes: &Array| Ok(String::from_utf8(bytes.to_vec::<u8>()?).expect("text"));
    let texts: Vec<String> = scripts.values().map(text).collect::<Result<_>>()?;
    let programs: Vec<_> = texts.iter().map(|text| parsed(&client, text)).collect::<Result<_>>()?;
    let mut programs: VecDeque<_> = programs.into();
    let x = matrix(&client, 32, 32, 0)?;
    Ok(Box::new(move || {
        let (arrays, lines) = programs.pop_front().expect("a script for each call");
        let function = jit(move |x: &Array, arrays: &Vec<Array>| {
            let mut arrays = arrays.iter();
            let mut next = || arrays.next().expect("an array for each line that has one");
            lines.iter().fold(x.clone(), |x, line| match line {
                Line::Dot => x.matmul(next()),
                Line::Add => x + next(),
                Line::Mul(number) => x * *number,
                Line::Unary(function) => function(&x),
            })
        });
        Ok(vec![function(&x, &arrays)?])
    }))
}
