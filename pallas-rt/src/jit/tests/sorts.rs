//! Sorts of arrays on devices whose programs have little workgroup memory, or whose loops end early.
use super::programs::planned;
use super::*;
use crate::lower;
use pallas_codegen::target::{Profile, Target};
use pallas_codegen::wgsl;
use pallas_graph::fuse::{Plan, StepOp};

type Function = fn(&Array) -> Array;

/// A GPU with so many KiB, and lavapipe's limits.
fn targets() -> Vec<Target> {
    let gpu = |kib: u64| Target { workgroup_bytes: kib << 10, ..Target::webgpu() };
    let bounded = Target { profile: Profile::SimtCpu, max_loop_iterations: Some(65_535), lanes: Some(8), ..gpu(32) };
    vec![gpu(16), gpu(32), gpu(48), bounded]
}

/// The shaders of a plan: none is refused, none races, and those of drivers that bound loops stay below the bound.
fn shaders(plan: &Plan, target: &Target, what: &str) -> Vec<wgsl::Shader> {
    let mut all = vec![];
    for step in &plan.steps {
        let StepOp::Kernel { kernel, .. } = &step.work else { panic!("{what}: a loop") };
        let lowered = pallas_codegen::passes::run_lowering_passes(kernel);
        let (shader, audit) =
            wgsl::audit_barriers(&lowered, 0, target, 0).unwrap_or_else(|e| panic!("{what} {target:?}: {e}"));
        assert_eq!(audit.races, [""; 0], "{what}");
        assert!(shader.workgroup_bytes as u64 <= target.workgroup_bytes, "{what}");
        all.push(shader);
    }
    all
}

#[test]
fn arrays_of_any_size_are_sorted_with_little_memory() {
    let functions: [(&str, Function); 4] = [
        ("sort", |x| x.sort(-1)),
        ("argsort", |x| x.argsort(-1)),
        ("top_k", |x| x.top_k(5, -1).0),
        ("columns", |x| x.sort(0)),
    ];
    for target in targets() {
        let client = Client::cpu_as(target);
        for shape in [[16, 100], [16, 200], [64, 64], [512, 100], [1, 2000], [1, 4000], [3, 8000]] {
            for (name, f) in functions {
                // A driver that bounds loops has no longer line in one program.
                if target.max_loop_iterations.is_some() && shape.iter().max() > Some(&4000) {
                    continue;
                }
                let x = client.shape_dtype(&shape, DType::F32).expect("a shape");
                let lowered = lower(f)(&x).expect("it is traced");
                let plan = planned(lowered.graph(), &client).1;
                shaders(&plan, &target, &format!("{name} of {shape:?}"));
            }
        }
    }
}

/// Sorts one after the other: a program's loops are no longer than those of one sort of many elements.
#[test]
fn many_sorts_are_sharded() {
    for target in targets() {
        let client = Client::cpu_as(target);
        for (rows, columns, times) in [(64, 64, 4), (64, 64, 12), (2, 1000, 12)] {
            let f = move |x: &Array, c: &Array| (0..times).fold(x.clone(), |x, _| x.sort(1) * c);
            let shape = |shape: &[usize]| client.shape_dtype(shape, DType::F32).expect("a shape");
            let lowered = lower(f)(&shape(&[rows, columns]), &shape(&[])).expect("it is traced");
            let plan = planned(lowered.graph(), &client).1;
            for shader in shaders(&plan, &target, &format!("{times} sorts of [{rows}, {columns}]")) {
                let turns = shader.iterations.total(&[]);
                let bound = u64::from(target.max_loop_iterations.unwrap_or(u32::MAX));
                assert!(turns < bound, "{times} sorts of [{rows}, {columns}]: {turns} turns");
            }
        }
    }
}

/// Along an axis of one element nothing moves, whatever the elements are, and gradients pass.
#[test]
fn one_element_is_in_order() {
    let x = array(&[3.0, f32::NAN, -0.0, f32::INFINITY, 1.0], &[1, 5]);
    let sorted = jit(|x: &Array| (x.sort(0), x.argsort(0), x.argsort_descending(0), x.sort(1)))(&x).expect("it runs");
    let bits = |x: &Array| numbers(x).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&sorted.0), bits(&x));
    assert_eq!(sorted.1.to_vec::<i32>().expect("it runs"), [0; 5]);
    assert_eq!(sorted.2.to_vec::<i32>().expect("it runs"), [0; 5]);
    assert_eq!(numbers(&sorted.3)[..4], [0.0, 1.0, 3.0, f32::INFINITY]);
    let weights = array(&[1.0, 2.0, 3.0, 4.0, 5.0], &[1, 5]);
    let slope = jit(grad(move |x: &Array| (x.sort(0) * &weights).sum(..)))(&x).expect("it has one");
    assert_eq!(numbers(&slope), [1.0, 2.0, 3.0, 4.0, 5.0]);
    let folded = jit(|x: &Array| (x.cumsum(0), x.cummax(0), x.flip(0), x.cumprod(0)))(&x).expect("it runs");
    for folded in [&folded.0, &folded.1, &folded.2, &folded.3] {
        assert_eq!(bits(folded), bits(&x));
    }
    assert_eq!(numbers(&jit(|x: &Array| x.flip(1))(&x).expect("it runs"))[0], 1.0);
    let folded = jit(|x: &Array| (x.max(0), x.min(keep(0)), x.sum(0), x.argmax(0), x.argmin(0)))(&x).expect("it runs");
    for folded in [&folded.0, &folded.1, &folded.2] {
        assert_eq!(bits(folded), bits(&x));
    }
    assert_eq!((folded.0.shape(), folded.1.shape()), (&[5][..], &[1, 5][..]));
    for position in [&folded.3, &folded.4] {
        assert_eq!((position.shape(), position.to_vec::<i32>().expect("it runs")), (&[5][..], vec![0; 5]));
    }
    // Of more elements, one is chosen.
    assert_eq!(jit(|x: &Array| x.argmax(1))(&x).expect("it runs").to_vec::<i32>().expect("it runs"), [1]);
    let (largest, none) = jit(|x: &Array| (x.top_k(1, 0), x.top_k(0, 0)))(&x).expect("it runs");
    assert_eq!((bits(&largest.0), largest.1.to_vec::<i32>().expect("it runs")), (bits(&x), vec![0; 5]));
    assert_eq!((none.0.shape(), none.1.shape()), (&[0, 5][..], &[0, 5][..]));
    // There is no such operation.
    let all = |x: &Array| ((x.sort(0), x.argsort(0), x.cumsum(0), x.flip(0)), (x.max(0), x.argmin(0), x.top_k(1, 0)));
    let text = lower(all)(&x).expect("it is traced").to_plan();
    let names = ["sort axis", "cumulative", "reverse", "reduce", "top_k", "take_along_axis"];
    assert!(!names.iter().any(|name| text.contains(name)), "{text}");
}
