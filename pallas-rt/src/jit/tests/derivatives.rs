//! Derivatives by chosen arguments, stated tangents, and what gradients store.
use super::{array, close};
use crate::prelude::*;
use crate::{
    Arg, CheckpointPolicy, checkpoint, checkpoint_name, custom_jvp, grad, hessian, jacfwd, jacrev, jit, jvp,
    make_jaxpr, ops, scan, value_and_grad, vmap,
};

#[test]
fn derivatives_are_by_chosen_arguments() {
    // x² y + sum(z) n, with integers between.
    let f = |n: &Array, x: &(Array, Vec<Array>), y: &Array| {
        &x.0 * &x.0 * y + x.1.iter().fold(y * 0.0, |sum, z| sum + z * z) * n
    };
    let number = |x: f32| array(&[x], &[]);
    let n = Client::cpu().array(&[2i32], &[]).expect("it fits");
    let x = (number(3.0), vec![number(5.0), number(7.0)]);
    let y = number(0.5);
    let (value, (by_y, by_x)) = value_and_grad(f).argnums((Arg::<2>, Arg::<1>))(&n, &x, &y).expect("it runs");
    close(&value, &[4.5 + 148.0]);
    close(&by_y, &[9.0]);
    close(&by_x.0, &[3.0]);
    close(&by_x.1[1], &[28.0]);
    let one = jit(grad(f).argnums(Arg::<2>))(&n, &x, &y).expect("it runs");
    close(&one, &[9.0]);
    let line = line!() + 1;
    let wrong = grad(f).argnums(Arg::<0>);
    let error = wrong(&n, &x, &y).expect_err("it has integers").to_string();
    assert!(
        error.contains("a gradient by an array of i32[]") && error.contains(&format!("{}:{line}", file!())),
        "{error}"
    );
    // Jacobians.
    let g = |n: &Array, x: &Array| x * x * n;
    let x = array(&[1.0, 2.0], &[2]);
    for found in [jacfwd(g).argnums(Arg::<1>)(&n, &x), jacrev(g).argnums(Arg::<1>)(&n, &x)] {
        close(&found.expect("it runs"), &[4.0, 0.0, 0.0, 8.0]);
    }
    let h = |n: &Array, x: &Array| (x * x * x * n).sum(..);
    close(&hessian(h).argnums(Arg::<1>)(&n, &x).expect("it runs"), &[12.0, 0.0, 0.0, 24.0]);
    let error = jacfwd(g).argnums(Arg::<0>)(&n, &x).expect_err("it has integers").to_string();
    assert!(error.contains("`jacfwd` by an array of i32[]"), "{error}");
}

/// As `jax.custom_jvp`: log(1 + exp(x)) with a rule that does not overflow, and one that is wrong on purpose.
#[test]
fn stated_tangents_are_followed_in_both_directions() {
    let log1pexp = || {
        custom_jvp(
            |x: &Array| (x.exp() + 1.0).log(),
            |(x,): &(Array,), (dx,): &(Array,)| ((x.exp() + 1.0).log(), (1.0 - 1.0 / (x.exp() + 1.0)) * dx),
        )
    };
    let f = log1pexp();
    let x = array(&[0.5], &[]);
    let s = 1.0 / (1.0 + (-0.5f64).exp());
    close(&f(&x).expect("it runs"), &[(1.0 + 0.5f64.exp()).ln()]);
    let f = log1pexp();
    let slope = grad(move |x: &Array| f(x));
    close(&slope(&x).expect("it runs"), &[s]);
    close(&slope(&array(&[100.0], &[])).expect("it runs"), &[1.0]);
    let f = log1pexp();
    let second = jit(grad(grad(move |x: &Array| f(x))));
    close(&second(&x).expect("it runs"), &[s * (1.0 - s)]);
    let f = log1pexp();
    let (value, tangent) = jvp(move |x: &Array| f(x))(&(x.clone(),), &(array(&[2.0], &[]),)).expect("it runs");
    close(&value, &[(1.0 + 0.5f64.exp()).ln()]);
    close(&tangent, &[2.0 * s]);
    let f = log1pexp();
    let each = jit(vmap(grad(move |x: &Array| f(x))));
    close(&each(&array(&[0.5, 100.0], &[2])).expect("it runs"), &[s, 1.0]);
    let f = log1pexp();
    let batch = grad(move |x: &Array| {
        vmap({
            let f = log1pexp();
            move |x: &Array| f(x)
        })(x)
        .map(|y| y.sum(..))
        .and_then(|y| Ok(y + f(&x.sum(..))? * 0.0))
    });
    close(&batch(&array(&[0.5, 0.5], &[2])).expect("it runs"), &[s, s]);

    // A rule that differs from the function shows where it is used; integers pass.
    let scaled = || {
        custom_jvp(
            |x: &Array, n: &Array| (x * n, n + 1),
            |(x, n): &(Array, Array), (dx, dn): &(Array, Array)| ((x * n, n + 1), (dx * 10.0, dn.clone())),
        )
    };
    let n = Client::cpu().array(&[3i32], &[]).expect("it fits");
    let f = scaled();
    let g = move |x: &Array, n: &Array| f(x, n).map(|(y, n)| y * n);
    let (value, slope) = crate::value_and_grad(g)(&array(&[2.0], &[]), &n).expect("it runs");
    close(&value, &[24.0]);
    close(&slope, &[40.0]);
    let f = scaled();
    let through = jit(grad(move |x: &Array| {
        let n = Client::cpu().array(&[3i32], &[])?;
        let (last, ()) =
            scan(x, &ops::ones(&[4], DType::F32), |c: &Array, one: &Array| Ok::<_, Error>((f(&(c * one), &n)?.0, ())))?;
        Ok::<_, Error>(last)
    }));
    close(&through(&array(&[1.0], &[])).expect("it runs"), &[1e4]);
}

#[test]
fn mistakes_in_stated_tangents_are_named() {
    let x = array(&[1.0, 2.0], &[2]);
    let line = line!() + 1;
    let f = custom_jvp(|x: &Array| x * 2.0, |(x,): &(Array,), (dx,): &(Array,)| (x * 2.0, dx.sum(..)));
    let error = grad(move |x: &Array| f(x).map(|y| y.sum(..)))(&x).expect_err("another type").to_string();
    assert!(
        error.contains("the tangent of f32[2] is f32[]") && error.contains(&format!("{}:{line}", file!())),
        "{error}"
    );
    let outer = grad(|w: &Array| {
        let inner = w.clone();
        let f = custom_jvp(move |x: &Array| x * &inner, |(x,): &(Array,), (dx,): &(Array,)| (x * 1.0, dx * 1.0));
        f(&(w * 2.0)).map(|y| y.sum(..))
    });
    let error = outer(&x).expect_err("it captures w").to_string();
    assert!(error.contains("captures an array that the derivative is asked for"), "{error}");
}

fn policy(name: &str) -> Option<CheckpointPolicy> {
    let names = |all: &[&str]| all.iter().map(ToString::to_string).collect();
    Some(match name {
        "nothing" => CheckpointPolicy::Nothing,
        "everything" => CheckpointPolicy::Everything,
        "dots" => CheckpointPolicy::Dots,
        "dots without batch" => CheckpointPolicy::DotsWithoutBatch,
        "only hidden" => CheckpointPolicy::OnlyNames(names(&["hidden"])),
        "only outer" => CheckpointPolicy::OnlyNames(names(&["outer"])),
        "names except hidden" => CheckpointPolicy::NamesExcept(names(&["hidden"])),
        "names except outer" => CheckpointPolicy::NamesExcept(names(&["outer"])),
        "anything except hidden" => CheckpointPolicy::AnythingExcept(names(&["hidden"])),
        "anything except both" => CheckpointPolicy::AnythingExcept(names(&["hidden", "outer"])),
        _ => return None,
    })
}

type Loss = fn(&Array, &Array, &Array) -> Array;

fn after(w1: &Array, w2: &Array, x: &Array) -> Array {
    let h = checkpoint_name(&x.matmul(w1).tanh(), "hidden");
    let y = h.matmul(w2).sin();
    (&y * &y).sum(..)
}
fn before(w1: &Array, w2: &Array, x: &Array) -> Array {
    let h = checkpoint_name(&x.matmul(w1), "hidden").tanh();
    let y = checkpoint_name(&h.matmul(w2), "outer").sin();
    (&y * &y).sum(..)
}
fn batched(w1: &Array, w2: &Array, x: &Array) -> Array {
    let h = ops::einsum("bi,bij->bj", &[x, &ops::stack(&[w1, w1], 0)]).tanh();
    let y = h.matmul(w2).sin();
    (&y * &y).sum(..)
}

/// The counts are those of JAX, from `policies.py`.
#[test]
fn a_policy_decides_what_is_computed_twice() {
    let losses: [(&str, Loss); 3] = [("after", after), ("before", before), ("batched", batched)];
    let drawn = |shape: [usize; 2]| {
        let numbers: Vec<f32> = (0..shape[0] * shape[1]).map(|i| ((i * 7 % 11) as f32 - 5.0) / 6.0).collect();
        array(&numbers, &shape)
    };
    let (w1, w2, x) = (drawn([3, 4]), drawn([4, 5]), drawn([2, 3]));
    let mut checked = 0;
    for line in include_str!("policies.txt").lines() {
        let (name, counts) = line.split_once(": ").expect("a name and counts");
        let (of, name) = name.split_once(' ').expect("a function and a policy");
        let wanted: Vec<usize> = counts.split(' ').map(|n| n.parse().expect("a count")).collect();
        let f = losses.iter().find(|(name, _)| *name == of).expect("a function").1;
        let plain = grad(f).argnums((Arg::<0>, Arg::<1>))(&w1, &w2, &x).expect("it runs");
        let by = (Arg::<0>, Arg::<1>);
        let (text, found) = match policy(name) {
            None => (make_jaxpr(grad(f).argnums(by))(&w1, &w2, &x), Ok(plain.clone())),
            Some(policy) => {
                let g = |policy: &CheckpointPolicy| {
                    let f = checkpoint(f).policy(policy.clone());
                    grad(move |w1: &Array, w2: &Array, x: &Array| f(w1, w2, x)).argnums(by)
                };
                (make_jaxpr(g(&policy))(&w1, &w2, &x), jit(g(&policy))(&w1, &w2, &x))
            }
        };
        let text = text.expect("it is traced");
        let count = |op: &str| text.matches(&format!("= {op}")).count();
        let counts = [count("dot_general["), count("tanh "), count("sin "), count("cos ")];
        assert_eq!(counts.to_vec(), wanted, "{line}\n{text}");
        let found = found.expect("it runs");
        for (found, want) in [(&found.0, &plain.0), (&found.1, &plain.1)] {
            close(found, &super::numbers(want).iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        }
        checked += 1;
    }
    assert_eq!(checked, 33);
}

/// Policies inside of scans, batches and second derivatives change no number.
#[test]
fn policies_change_no_number() {
    let xs = array(&[0.1, -0.4, 0.3, 0.8], &[4]);
    let want = {
        let f = |w: &Array, xs: &Array| {
            let (last, ()) = scan(&(w * 0.0), xs, |h: &Array, x: &Array| ((h * w + x).tanh().sin(), ()))?;
            Ok::<_, Error>(last)
        };
        let g = grad(move |w: &Array, xs: &Array| grad(f)(w, xs));
        (grad(f)(&array(&[0.7], &[]), &xs).expect("it runs"), g(&array(&[0.7], &[]), &xs).expect("it runs"))
    };
    let exact = |x: &Array| super::numbers(x).iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    for name in ["nothing", "everything", "only hidden", "names except hidden", "anything except hidden"] {
        let policy = policy(name).expect("a policy");
        let f = move |w: &Array, xs: &Array| {
            let step =
                checkpoint(|h: &Array, x: &Array, w: &Array| checkpoint_name(&(h * w + x), "hidden").tanh().sin())
                    .policy(policy.clone());
            let (last, ()) = scan(&(w * 0.0), xs, |h: &Array, x: &Array| Ok::<_, Error>((step(h, x, w)?, ())))?;
            Ok::<_, Error>(last)
        };
        let second = {
            let f = f.clone();
            grad(move |w: &Array, xs: &Array| grad(f.clone())(w, xs))
        };
        let each = {
            let f = f.clone();
            jit(crate::vmap(grad(f)).in_axes([Some(0), None]))
        };
        close(&jit(grad(f))(&array(&[0.7], &[]), &xs).expect("it runs"), &exact(&want.0));
        close(&jit(second)(&array(&[0.7], &[]), &xs).expect("it runs"), &exact(&want.1));
        close(&each(&array(&[0.7, 0.7], &[2]), &xs).expect("it runs"), &[exact(&want.0), exact(&want.0)].concat());
    }
}
