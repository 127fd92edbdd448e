//! Products in panels, as GPUs compute them and the interpreter in these tests, against those of the CPU.
use super::numbers;
use crate::prelude::*;
use crate::{jit, lower, ops};

type Function = fn(&[Array]) -> Vec<Array>;

/// A function, the shapes of its arguments, how many kernels it takes, and how many of them have panels.
struct Case(&'static str, &'static [&'static [usize]], [usize; 2], Function);

const CASES: &[Case] = &[
    Case("two whole panels", &[&[4, 6], &[6, 5]], [1, 1], |x| vec![x[0].matmul(&x[1])]),
    Case("the last panel is shorter", &[&[19, 10], &[10, 21]], [1, 1], |x| vec![x[0].matmul(&x[1])]),
    Case("all that is summed is one panel", &[&[4, 3], &[3, 5]], [1, 0], |x| vec![x[0].matmul(&x[1])]),
    Case("nothing is summed", &[&[4, 0], &[0, 5]], [1, 0], |x| vec![x[0].matmul(&x[1])]),
    Case("transposed operands", &[&[7, 9], &[5, 7]], [1, 1], |x| vec![x[0].t().matmul(&x[1].t())]),
    Case("batches", &[&[2, 3, 7], &[2, 7, 4]], [1, 1], |x| vec![x[0].matmul(&x[1])]),
    Case("two contracted axes", &[&[3, 5, 2], &[4, 3, 5]], [1, 1], |x| {
        vec![ops::einsum("abi,oab->io", &[&x[0], &x[1]])]
    }),
    Case("a long axis in front of a short one", &[&[7, 2, 5], &[7, 2, 4]], [1, 1], |x| {
        vec![ops::einsum("abi,abo->io", &[&x[0], &x[1]])]
    }),
    Case("one of the contracted axes has one element", &[&[8, 1, 5], &[8, 1, 4]], [1, 1], |x| {
        vec![ops::einsum("abi,abo->io", &[&x[0], &x[1]])]
    }),
    Case("no rows and no columns", &[&[10], &[10]], [1, 1], |x| vec![ops::einsum("i,i->", &[&x[0], &x[1]])]),
    Case("an array and itself", &[&[7, 7]], [1, 1], |x| vec![x[0].matmul(&x[0])]),
    Case("truths", &[&[4, 7], &[7, 5]], [1, 1], |x| vec![x[0].gt(0.8).matmul(&x[1].gt(0.6)).cast(DType::F32)]),
    // Behind the end, the operands would be infinite, or no number.
    Case("computed operands", &[&[4, 7], &[7, 5]], [1, 1], |x| vec![x[0].reciprocal().matmul(&(&x[1] * 0.5))]),
    Case("operands that are made, not read", &[&[4, 7]], [1, 1], |x| vec![x[0].matmul(&ops::tri(7, 5, 0, DType::F32))]),
    Case("what follows", &[&[4, 7], &[7, 5], &[5], &[4, 5]], [1, 1], |x| {
        vec![(x[0].matmul(&x[1]) + &x[2]).tanh() * &x[3]]
    }),
    Case("rows that are folded", &[&[9, 7], &[20, 7]], [1, 1], |x| vec![(x[0].matmul(&x[1].t()) * 0.5).softmax(-1)]),
    Case("an operand that is a result", &[&[4, 7], &[7, 5]], [1, 1], |x| {
        let square = x[0].square();
        vec![square.matmul(&x[1]), square]
    }),
    Case("a scalar in front and behind", &[&[4, 7], &[7, 5], &[]], [1, 1], |x| {
        let scale = &x[2] * 2.0 + 1.0;
        vec![(&x[0] * &scale).matmul(&x[1]) / &scale]
    }),
    Case("an array in front and behind", &[&[7, 7], &[7, 7]], [1, 1], |x| vec![x[0].matmul(&x[1]) + &x[0]]),
    Case("folds of the contracted axis", &[&[4, 7], &[7, 5]], [2, 1], |x| {
        vec![(&x[0] - x[0].max(-1).expand_dims(-1)).matmul(&x[1])]
    }),
    Case("a fold of the contracted axis for one row", &[&[1, 19], &[19, 5]], [2, 1], |x| {
        vec![(&x[0] - x[0].mean(-1).expand_dims(-1)).matmul(&x[1])]
    }),
    Case("a product of a product", &[&[4, 7], &[7, 5], &[5, 6]], [2, 2], |x| {
        vec![x[0].matmul(&x[1]).tanh().matmul(&x[2])]
    }),
    Case("reshaped operands", &[&[4, 7], &[35, 2]], [1, 1], |x| vec![x[0].matmul(&x[1].reshape(&[7, 10]))]),
];

fn arguments(shapes: &[&[usize]], client: &Client) -> Vec<Array> {
    let drawn = |(seed, shape): (usize, &&[usize])| {
        let n: usize = shape.iter().product();
        let x: Vec<f32> = (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1000.0 - 0.9995).collect();
        client.array(&x, shape).expect("it fits")
    };
    shapes.iter().enumerate().map(drawn).collect()
}

#[test]
fn products_are_summed_panel_after_panel() {
    let clients: Vec<Client> = [Client::interpreter()].into_iter().chain(crate::lang::random::gpu()).collect();
    for &Case(name, shapes, [kernels, panels], f) in CASES {
        let f = move |x: &Vec<Array>| Ok(f(x));
        let want: Vec<Array> = jit(f)(&arguments(shapes, &Client::cpu())).expect("it runs");
        for client in &clients {
            let x = arguments(shapes, client);
            let plan = lower(f)(&x).expect("it is traced").to_plan();
            let with = |word: &str| plan.split("\nkernel ").skip(1).filter(|kernel| kernel.contains(word)).count();
            assert_eq!([with(""), with("arbitrary")], [kernels, panels], "{name}\n{plan}");
            for (k, (found, want)) in jit(f)(&x).expect("it runs").iter().zip(&want).enumerate() {
                assert_eq!((found.shape(), found.dtype()), (want.shape(), want.dtype()), "{name}");
                let (found, want) = (numbers(found), numbers(want));
                let close = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-5 * (1.0 + y.abs());
                assert!(found.iter().zip(&want).all(close), "{name}, result {k} on {client:?}\n{found:?}\n{want:?}");
            }
        }
    }
}

#[test]
fn the_cpu_has_all_that_it_sums() {
    for &Case(name, shapes, _, f) in CASES {
        let plan =
            lower(move |x: &Vec<Array>| Ok(f(x)))(&arguments(shapes, &Client::cpu())).expect("it is traced").to_plan();
        assert!(!plan.contains("arbitrary"), "{name}\n{plan}");
    }
}

#[test]
fn sums_are_of_the_products_type() {
    let f = |x: &Array, y: &Array| x.matmul(y);
    let halves = |client: &Client, dtype| {
        let [x, y] = [[5, 40], [40, 9]].map(|shape| arguments(&[&shape], client).remove(0).cast(dtype));
        jit(f)(&x, &y).expect("it runs")
    };
    for dtype in [DType::F16, DType::Bf16, DType::I32] {
        let [found, want] = [Client::interpreter(), Client::cpu()].map(|client| halves(&client, dtype));
        assert_eq!(found.dtype(), want.dtype());
        let [found, want] = [found, want].map(|x| numbers(&x.cast(DType::F32)));
        // A last place of a number of that size.
        let close = |(x, y): (&f32, &f32)| (x - y).abs() <= 0.008 * (0.01 + y.abs());
        assert!(found.iter().zip(&want).all(close), "{dtype}\n{found:?}\n{want:?}");
    }
}
