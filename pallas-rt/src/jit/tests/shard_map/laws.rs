//! Random bodies: derivatives, batches and compiled forms against each other and against differences.
use super::super::numbers;
use super::super::sharded::Dice;
use super::mesh;
use crate::sharding::{Mesh, P};
use crate::spmd::{self, ManualAxisState};
use crate::{cond, custom_jvp, grad, jit, jvp, ops, scan, shard_map, vjp, vmap};
use pallas_rt::prelude::*;
use std::sync::Arc;

const AXES: [&str; 2] = ["x", "y"];

/// One or both axes of those that there are.
fn some_axes(dice: &mut Dice, all: &[&'static str]) -> Vec<&'static str> {
    let drawn = match dice.below(4) {
        0 => vec!["x", "y"],
        1 => vec!["y", "x"],
        n => vec![AXES[n % 2]],
    };
    let kept: Vec<&str> = drawn.into_iter().filter(|axis| all.contains(axis)).collect();
    if kept.is_empty() { all.to_vec() } else { kept }
}

/// The state of a value along axes, if it is the same along all of them.
fn state(x: &Array, axes: &[&str]) -> Option<ManualAxisState> {
    let all = crate::jit::manual_axis_states(x)?;
    let (mesh, _) = crate::jit::axis_names::innermost_mesh_and_manual_axes()?;
    let own: Vec<ManualAxisState> =
        axes.iter().map(|axis| all[usize::from(mesh.find(axis).expect("an axis").id)]).collect();
    own.iter().all(|&state| state == own[0]).then(|| own[0])
}

/// sin(0.7·x + the number of the program), in blocks of rows of which the last one may extend beyond the array.
#[kernel(grid = (cdiv(M, B)))]
fn waves<const B: usize>(
    #[block([M, N] => [B, N], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [B, N], |i| (i, 0))] out: Out<f32>,
) {
    out.store((x.load() * 0.7 + program_id(0).cast::<f32>()).sin());
}

/// [`waves`] with its derivative: a kernel has no reverse mode of its own.
fn of_kernel(x: &Array) -> Result<Array> {
    let f = custom_jvp(
        |x: &Array| waves::<3>(x),
        |(x,): &(Array,), (dx,): &(Array,)| {
            let rows = x.shape()[0];
            let program = (ops::arange(0.0, rows as f64, 1.0, DType::F32) / 3.0).floor().reshape(&[rows, 1]);
            Ok::<_, Error>((waves::<3>(x)?, (x * 0.7 + program).cos() * 0.7 * dx))
        },
    );
    f(x)
}

/// A smooth function of two blocks of shape [n, n] that exchanges along some axes; n is a multiple of the number of
/// devices.
pub(super) fn body(seed: u64, x: &Array, w: &Array, of: &[&'static str]) -> Result<Array> {
    let mut dice = Dice(seed);
    let mut all = vec![x.clone(), w.clone()];
    for _ in 0..4 + dice.below(8) {
        let a = all[all.len() - 1 - dice.below(all.len().min(3))].clone();
        let b = all[dice.below(all.len())].clone();
        let axes = &some_axes(&mut dice, of)[..];
        let n: usize = spmd::axis_size(axes)?;
        let is_uniform = state(&a, axes).is_some();
        let scale = 1.0 / n as f32;
        let made = match dice.below(19) {
            0 => a + b,
            1 => a * b,
            2 => (a * 0.7).sin(),
            3 => a.matmul(&b) * 0.3,
            4 if is_uniform => spmd::psum(&a, axes) * scale,
            5 if is_uniform => spmd::pmean(&a, axes),
            6 => spmd::all_gather(&a, axes, 1).sum(1) * scale,
            7 if is_uniform => {
                let part = spmd::psum_scatter_tiled(&a, axes, 0) * scale;
                spmd::all_gather_invariant(&part, axes, 0)
            }
            8 => spmd::all_to_all_tiled(&a, axes, 0, 1).reshape(a.shape()),
            9 => {
                let from = dice.below(n);
                let pairs: Vec<_> = (0..n).filter(|&i| i != from).map(|i| (i, (i + 1) % n)).collect();
                spmd::ppermute(&a, axes, &pairs) + b
            }
            10 if state(&a, axes) == Some(ManualAxisState::Invariant) => spmd::pvary(&a, axes) * 0.5,
            11 if state(&a, axes) == Some(ManualAxisState::Varying) => {
                let parts = spmd::pcast(&(a * scale), axes, ManualAxisState::Unreduced);
                spmd::psum(&(&parts + &parts), axes)
            }
            12 => {
                let number = spmd::axis_index(axes).cast(DType::F32);
                a * (number * 0.1 + 0.5)
            }
            13 => {
                // Each step exchanges a value that varies.
                let start = spmd::ppermute(&a, axes, &[(0, n - 1)]);
                let step = |c: &Array, row: &Array| {
                    let next = spmd::ppermute(&(c * 0.5 + row), axes, &[(0, n - 1), (n - 1, 0)]);
                    (next, ())
                };
                match crate::jit::manual_axis_states(&start) == crate::jit::manual_axis_states(&(&start + &b)) {
                    true => scan(&start, &b, step)?.0,
                    false => start,
                }
            }
            18 => spmd::pbroadcast(&a, axes, dice.below(n)) + b,
            14 => {
                // Each device takes its own branch.
                let is_first = spmd::axis_index(axes).lt(1);
                cond(&is_first, &a, |a: &Array| a.sin(), |a: &Array| a * 0.5)?
            }
            // A kernel that cannot follow a declaration of its own operand is refused.
            15 => of_kernel(&(a + 0.25))?,
            16 if of.len() == 2 => {
                // Devices of one number along an axis exchange along the other one, those of another number do not.
                let (own, other) = if dice.chance(50) { (of[0], of[1]) } else { (of[1], of[0]) };
                let a = match state(&a, &[other]) {
                    Some(ManualAxisState::Invariant) => spmd::pvary(&a, other),
                    Some(ManualAxisState::Varying) => a,
                    _ => continue,
                };
                let together = move |a: &Array| spmd::pvary(&(spmd::psum(a, other) * 0.3), other);
                cond(&spmd::axis_index(own).lt(1), &a, together, |a: &Array| a.sin())?
            }
            17 if of.len() == 2 => {
                // Each row of devices takes its own number of steps, in which it exchanges.
                let (own, other) = if dice.chance(50) { (of[0], of[1]) } else { (of[1], of[0]) };
                let a = match state(&a, &["x", "y"]) {
                    Some(ManualAxisState::Invariant) => spmd::pvary(&a, ["x", "y"]),
                    Some(ManualAxisState::Varying) => a,
                    _ => continue,
                };
                let number = spmd::axis_index(own) + 1;
                let step = |i: i32| {
                    let last = number.clone();
                    move |a: &Array| {
                        let more = last.gt(i);
                        let together = move |a: &Array| spmd::pvary(&(spmd::psum(a, other) * 0.3), other);
                        cond(&more, a, together, |a: &Array| a.clone())
                    }
                };
                step(1)(&step(0)(&a)?)?
            }
            _ => a.tanh(),
        };
        all.push(made);
    }
    // Whatever varies is combined.
    let mut last = all.swap_remove(all.len() - 1) + x.sum(..) * 0.1;
    for &axis in of {
        if state(&last, &[axis]) == Some(ManualAxisState::Varying) {
            last = spmd::psum(&last, axis);
        }
    }
    Ok(last)
}

fn drawn(seed: u64, mesh: &Arc<Mesh>, specs: usize) -> impl Fn(&Array, &Array) -> Result<Array> + use<> {
    let (x, w) = match specs {
        0 => (P(("x", "y")), P(())),
        1 => (P("x"), P((None, "y"))),
        2 => (P((None, "x")), P("x")),
        _ => (P((["y", "x"],)), P("y")),
    };
    shard_map(move |x: &Array, w: &Array| body(seed, x, w, &AXES), mesh, [x, w], [P(())]).into_fn()
}

/// A random body on the blocks of a mesh, with operands.
pub(crate) fn drawn_with_operands(
    seed: u64,
    mesh: &Arc<Mesh>,
) -> (impl Fn(&Array, &Array) -> Result<Array> + use<>, [Array; 2]) {
    let mut dice = Dice(seed * 77 + 5);
    let specs = dice.below(4);
    let operands = whole(specs).map(|shape| {
        let numbers: Vec<f32> = (0..shape.iter().product()).map(|_| dice.below(2001) as f32 / 1000.0 - 1.0).collect();
        Client::cpu().array(&numbers, &shape).expect("it fits")
    });
    (drawn(seed, mesh, specs), operands)
}

fn dot(a: &Array, b: &Array) -> f64 {
    numbers(a).iter().zip(numbers(b)).map(|(a, b)| f64::from(*a) * f64::from(b)).sum()
}

/// Blocks of 4 x 4, however the arrays are sharded.
fn whole(specs: usize) -> [Vec<usize>; 2] {
    match specs {
        0 => [vec![8, 8], vec![4, 4]],
        1 => [vec![8, 4], vec![4, 8]],
        2 => [vec![4, 8], vec![8, 4]],
        _ => [vec![16, 4], vec![8, 4]],
    }
}

/// Of each random body: the compiled form agrees with the other one, tangents with differences, gradients with
/// tangents, gradients of gradients with tangents of gradients, and batches with single calls.
#[test]
fn random_bodies_keep_the_laws() {
    let mesh = mesh(&[("x", 2), ("y", 2)]);
    let count = std::env::var("PALLAS_BODIES").ok().and_then(|n| n.parse().ok()).unwrap_or(30);
    for seed in 0..count {
        let mut dice = Dice(seed * 77 + 5);
        let specs = dice.below(4);
        let number = |dice: &mut Dice| dice.below(2001) as f32 / 1000.0 - 1.0;
        let mut array = |shape: &[usize]| {
            let n = shape.iter().product();
            Client::cpu().array(&(0..n).map(|_| number(&mut dice)).collect::<Vec<f32>>(), shape).expect("it fits")
        };
        let [x_shape, w_shape] = whole(specs);
        let [x, dx, x2] = [0; 3].map(|_| array(&x_shape));
        let [w, dw] = [0; 2].map(|_| array(&w_shape));
        let f = || drawn(seed, &mesh, specs);
        let value = f()(&x, &w).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let near = |a: f64, b: f64, tolerance: f64, what: &str| {
            assert!((a - b).abs() <= tolerance * a.abs().max(b.abs()).max(1.0), "seed {seed}: {what}: {a} and {b}");
        };
        let compiled = jit(f())(&x, &w).expect("it runs");
        let ct = array(value.shape());
        near(dot(&compiled, &ct), dot(&value, &ct), 1e-5, "jit");

        let (_, tangent) = jvp(f())(&(x.clone(), w.clone()), &(dx.clone(), dw.clone())).expect("it has tangents");
        let h = 1e-2;
        let ahead = f()(&(&x + &dx * h), &(&w + &dw * h)).expect("it runs");
        let behind = f()(&(&x - &dx * h), &(&w - &dw * h)).expect("it runs");
        let slope = (dot(&ahead, &ct) - dot(&behind, &ct)) / (2.0 * h);
        near(dot(&tangent, &ct), slope, 2e-2, "a tangent and a difference");

        let (_, back) = vjp(f())(&x, &w).expect("it has gradients");
        let (gx, gw) = back(&ct).expect("it runs");
        near(dot(&gx, &dx) + dot(&gw, &dw), dot(&tangent, &ct), 1e-4, "a gradient and a tangent");

        let own = ct.clone();
        let gradient = move |f: &dyn Fn(&Array, &Array) -> Result<Array>, x: &Array, w: &Array| {
            f(x, w).map(|y| (y * &own).sum(..))
        };
        let inner = f();
        let along = dx.clone();
        let slope = grad(move |x: &Array, w: &Array| {
            let inner = |x: &Array, w: &Array| inner(x, w);
            gradient(&inner, x, w)
        });
        let slope = Arc::new(slope);
        let again = slope.clone();
        let second = grad(move |x: &Array, w: &Array| again(x, w).map(|g| (g * &along).sum(..)));
        let (reverse, forward) = (second(&x, &w).expect("it has second derivatives"), {
            let slope = slope.clone();
            let (_, tangent) =
                jvp(move |x: &Array, w: &Array| slope(x, w))(&(x.clone(), w.clone()), &(dx.clone(), &dw * 0.0))
                    .expect("it has second derivatives");
            tangent
        });
        // The Hessian is symmetric.
        near(dot(&reverse, &x2), dot(&forward, &x2), 1e-3, "second derivatives");

        let batch = crate::ops::stack(&[&x, &x2], 0);
        let each = vmap(f()).in_axes([Some(0), None])(&batch, &w).expect("it runs");
        near(dot(&each.at(0).get(), &ct), dot(&value, &ct), 1e-5, "a batch");
        near(dot(&each.at(1).get(), &ct), dot(&f()(&x2, &w).expect("it runs"), &ct), 1e-5, "a batch");
    }
}
