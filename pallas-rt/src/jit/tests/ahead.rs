//! Trees of shapes, compilation ahead of time, and functions as files.
use super::{array, numbers};
use crate::prelude::*;
use crate::transform::Exported;
use crate::tree::{self, Segment, Structure, Visitor, VisitorMut};
use crate::{counters, eval_shape, grad, jit, lower, scan, switch, while_loop};
use std::collections::HashMap;

/// An array, or a list of arrays: the values of a map in Python. Written by hand, without a node of its own.
#[derive(Clone)]
enum Value {
    One(Array),
    Many(Vec<Array>),
}

impl Tree for Value {
    fn visit<'a>(&'a self, to: &mut Visitor<'a>) {
        match self {
            Value::One(x) => x.visit(to),
            Value::Many(all) => {
                to.list(all.len());
                all.iter().enumerate().for_each(|(i, x)| to.child(Segment::Index(i), x));
            }
        }
    }
    fn visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>) {
        match self {
            Value::One(x) => x.visit_mut(to),
            Value::Many(all) => all.iter_mut().for_each(|x| to.child(x)),
        }
    }
}

/// As in `jax.tree.map(lambda x: x.shape, {"a": .., "b": [.., ..]})`.
#[test]
fn shapes_are_mapped_over_a_tree() {
    let zeros = |shape: &[usize]| Client::cpu().zeros(shape, DType::F32).expect("it fits");
    let values = [("b", Value::Many(vec![zeros(&[2, 2]), zeros(&[2])])), ("a", Value::One(zeros(&[3])))];
    let tree: HashMap<String, Value> = values.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
    let text = |x: &Array| format!("({})", x.shape().iter().map(usize::to_string).collect::<Vec<_>>().join(", "));
    let shapes = tree::map_to(&tree, text);
    assert_eq!(shapes.to_string(), r#"{"a": (3), "b": [(2, 2), (2)]}"#);
    assert_eq!(shapes.paths(), [r#"["a"]"#, r#"["b"][0]"#, r#"["b"][1]"#]);
    assert_eq!(shapes.get(r#"["b"][1]"#).map(String::as_str), Some("(2)"));
    assert_eq!(tree::types(&tree).to_string(), r#"{"a": f32[3], "b": [f32[2,2], f32[2]]}"#);
    let ranks = tree::map_to(&tree, Array::rank);
    let both = shapes.map2(&ranks, |shape, rank| Ok(format!("{shape}:{rank}"))).expect("they are alike");
    assert_eq!(both.to_string(), r#"{"a": (3):1, "b": [(2, 2):2, (2):1]}"#);
    let lengths = ranks.map(|rank| rank * 10);
    assert_eq!(lengths.leaves(), [10, 20, 10]);
    // Back to arrays.
    let sums = lengths.map_with(&tree, |x, n| Ok((x + *n as f32).sum(..))).expect("they are alike");
    assert_eq!(tree::leaves(&sums).iter().map(|x| numbers(x)[0]).collect::<Vec<_>>(), [30.0, 80.0, 20.0]);
    let other = (zeros(&[1]),);
    let error = lengths.map_with(&other, |x, _| Ok(x.clone())).expect_err("they differ").to_string();
    let line = line!() - 1;
    assert!(error.starts_with(&format!("{}:{line}:", file!())), "{error}");
    assert!(error.ends_with(r#": the tree is (*,), this one {"a": *, "b": [*, *]}"#), "{error}");
    assert!(ranks.map2(&tree::map_to(&other, |_| ()), |_, ()| Ok(())).is_err());
    let structure: &Structure = shapes.structure();
    assert!(structure.is_of(&tree) && structure.leaves() == 3);
}

#[test]
fn shapes_of_results_are_known_without_a_run() {
    let client = Client::cpu();
    let shape = |dtype, shape: &[usize]| client.shape_dtype(shape, dtype).expect("the CPU has all types");
    let before = (client.memory().in_use, counters().jit_compiles);
    let huge = shape(DType::F32, &[1 << 15, 1 << 15]);
    let f = |x: &(Array, Array), n: &Array| {
        let (last, all) = scan(&x.0.sum(0), &x.0, |c: &Array, x: &Array| (c + x, x.sum(..)))?;
        Ok::<_, Error>((last, vec![all, n.cast(DType::F32)]))
    };
    let out = eval_shape(f)(&(huge.clone(), huge.clone()), &shape(DType::I32, &[])).expect("it is traced");
    assert_eq!(tree::types(&out).to_string(), "(f32[32768], [f32[32768], f32[]])");
    // Results are arguments again.
    assert_eq!(eval_shape(|x: &Array| x.expand_dims(0))(&out.0).expect("it is traced").shape(), [1, 32768]);
    assert_eq!(client.memory().in_use - before.0, 0);
    let error = huge.to_vec::<f32>().expect_err("it has none").to_string();
    assert!(error.ends_with("elements of an array of f32[32768, 32768] that has a shape and an element type alone"));
    let line = line!() + 1;
    let error = (&huge + 1.0).check().map(drop).expect_err("it has none").to_string();
    assert!(error.contains("alone; help: pass it") && error.contains(&format!("{}:{line}", file!())), "{error}");
    assert!(jit(|x: &Array| x + 1.0)(&huge).is_ok_and(|y| y.check().is_err()));
    let error = eval_shape(|x: &Array| x.sum(3))(&huge).map(drop).expect_err("it has no such axis").to_string();
    assert!(error.contains("axis 3"), "{error}");
}

#[test]
fn functions_are_compiled_ahead_of_time() {
    let client = Client::cpu();
    let traces = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let inner = traces.clone();
    let by = array(&[10.0, 20.0], &[2]);
    let f = move |x: &(Array, Vec<Array>)| {
        inner.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        (&x.0 * &by, x.1[0].sum(..))
    };
    let shape = |n: usize| client.shape_dtype(&[n], DType::F32).expect("the CPU has all types");
    let line = line!() + 1;
    let lowered = lower(f)(&(shape(2), vec![shape(3)])).expect("it is traced");
    assert_eq!(tree::types(&lowered.results().expect("it is traced")).to_string(), "(f32[2], f32[])");
    let text = lowered.to_jaxpr();
    assert!(text.starts_with("{ lambda a:f32[2]; b:f32[2] c:f32[3]. let"), "{text}");
    let compiled = lowered.compile().expect("it compiles");
    for _ in 0..3 {
        let (x, y) = compiled(&(array(&[1.0, 2.0], &[2]), vec![array(&[1.0; 3], &[3])])).expect("it runs");
        assert_eq!((numbers(&x), numbers(&y)), (vec![10.0, 40.0], vec![3.0]));
    }
    assert_eq!(traces.load(std::sync::atomic::Ordering::Relaxed), 1);
    let said = |x: (Array, Vec<Array>)| {
        let error = compiled(&x).map(drop).expect_err("it is not compiled for that").to_string();
        assert!(error.contains(&format!("{}:{line}", file!())), "{error}");
        error
    };
    let (x, y) = (array(&[1.0, 2.0], &[2]), array(&[1.0; 3], &[3]));
    assert!(
        said((x.clone(), vec![x.clone()])).contains("argument `0.1[0]` is f32[2], the function is compiled for f32[3]")
    );
    assert!(
        said((x.clone(), vec![])).contains("argument `0.1` is a list of 0, the function is compiled for a list of 1")
    );
    let away = x.to_device(&Client::interpreter()).expect("it has room");
    assert_eq!(compiled(&(away, vec![y])).map(drop).expect_err("another client").code(), "foreign-client");
}

/// Everything that a file can hold: captured arrays, loops, branches, kernels, odd literals.
#[kernel(grid = (cdiv(N, 4)))]
fn shifted(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>, by: f32) {
    out.store(x.load() + by);
}

fn everything(x: &Array, n: &Array) -> Result<(Array, Vec<Array>)> {
    let client = Client::cpu();
    let (w, mask) = (array(&[0.5, -0.25, 1.5], &[3]), client.array(&[true, false, true], &[3])?);
    let (last, all) = scan(x, &(x.expand_dims(1) * 0.5), |c: &Array, x: &Array| ((c * &w).tanh() + x, c.sum(..)))?;
    let grown = while_loop(&last, |x: &Array| x.abs().sum(..).lt(100.0), |x: &Array| x * 2.0 + 1.0)?;
    let functions: [fn(&Array) -> Array; 2] =
        [|x| (x * 3.0).flip(0).cumsum(0), |x| crate::ops::select(&x.gt(0.0), x, f32::NEG_INFINITY)];
    let chosen = switch(n, &grown, functions)?;
    let summed = grad(|x: &Array| (x.softmax(0) * x).sum(..))(&shifted(&last, 0.75)?)?;
    Ok((crate::ops::select(&mask, chosen, f32::NAN), vec![all, summed, n + 1]))
}

#[test]
fn a_saved_function_is_the_function() {
    let client = Client::cpu();
    let (x, n) = (array(&[0.25, -0.5, 1.0], &[3]), client.array(&[1i32], &[]).expect("it fits"));
    // Kernels have no derivative here; the gradient is of what follows.
    let lowered = lower(everything)(&x, &n).expect("it is traced");
    let like = lowered.results().expect("it is traced");
    let exported = lowered.export().expect("captured arrays can be read");
    let folder = std::env::temp_dir().join(format!("pallas-export-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    let file = folder.join("everything.txt");
    exported.save(&file).expect("it is written");
    let loaded = Exported::load(&file).expect("it is read");
    assert_eq!(loaded.to_text(), exported.to_text());
    assert_eq!(loaded.inputs()[1].0, "1");
    assert_eq!(loaded.outputs().iter().map(|(path, _)| &**path).collect::<Vec<_>>(), ["0", "1[0]", "1[1]", "1[2]"]);
    for client in [Client::cpu(), Client::interpreter()] {
        let f = loaded.compile(&client).expect("it compiles");
        for number in [0, 1] {
            let n = Client::cpu().array(&[number], &[]).expect("it fits");
            let want = tree::leaves(&jit(everything)(&x, &n).expect("it runs"));
            let [x, n] = [&x, &n].map(|x| x.to_device(&client).expect("it has room"));
            let found = tree::leaves(&f.call_like(&(x, n), &like).expect("it runs"));
            for (found, want) in found.iter().zip(&want) {
                let [found, want] = [found, want].map(|x| x.to_bytes().expect("it has elements"));
                if client == Client::cpu() {
                    assert_eq!(found, want);
                } else {
                    assert_eq!(found.len(), want.len());
                }
            }
        }
    }
    let f = loaded.compile(&client).expect("it compiles");
    assert!(f.call(&[&x]).map(drop).expect_err("too few").to_string().contains("1 arrays for a function of 2"));
    let error = f.call(&[&n, &n]).map(drop).expect_err("another type").to_string();
    assert_eq!(error, "argument `0` is i32[], the function takes f32[3]");
    let error = f.call_like(&(x.clone(), vec![n.clone()]), &like).map(drop).expect_err("another tree").to_string();
    assert_eq!(error, "the argument has the leaf `1[0]` where the function has `1`");
    std::fs::remove_dir_all(&folder).expect("it is there");
}

/// Bytes that are changed, lines that are missing and other files are errors; so is a text with a right hash that is
/// wrong.
#[test]
fn damaged_files_are_errors() {
    let (x, n) = (array(&[0.25, -0.5, 1.0], &[3]), Client::cpu().array(&[1i32], &[]).expect("it fits"));
    let text = lower(everything)(&x, &n).expect("it is traced").export().expect("it can be read").to_text();
    let code = |text: &str| Exported::from_text(text).map(drop).expect_err("it is damaged").code();
    for at in (0..text.len()).step_by(97) {
        let mut bytes = text.clone().into_bytes();
        bytes[at] ^= 1;
        assert_eq!(code(&String::from_utf8_lossy(&bytes)), "file");
        assert_eq!(code(&text[..at]), "file");
    }
    assert_eq!(code("Dear reader,\nthis is a letter."), "file");
    let other = text.replacen("function 1", "function 2", 1);
    let error = Exported::from_text(&other).map(drop).expect_err("another version").to_string();
    assert!(error.contains("\"pallas function 2 little-endian\"; help: expected \"pallas function 1"), "{error}");
    let error = Exported::load("/nowhere/f.txt").map(drop).expect_err("no file").to_string();
    assert!(error.starts_with("/nowhere/f.txt: "), "{error}");
    // The same changes under a hash that is right: refused, or another function; never a panic.
    let body = text.splitn(3, '\n').nth(2).expect("it has a body");
    let mut refused = 0;
    let words: Vec<&str> = body.split_inclusive([' ', '\n']).collect();
    for at in 0..words.len() {
        for change in [0, 1, 2] {
            let mut words = words.clone();
            match change {
                0 => drop(words.remove(at)),
                1 => words.insert(at, words[at]),
                _ => words[at] = "4294967295 ",
            }
            refused += usize::from(Exported::parse_body(&words.concat()).is_err());
        }
    }
    assert!(refused > words.len(), "{refused} of {} are refused", 3 * words.len());
}
