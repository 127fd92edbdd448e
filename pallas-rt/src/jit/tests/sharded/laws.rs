//! Every structural operation on sharded operands is the one on whole operands.
use super::draw::{Config, Dice, sharding};
use super::{count, difference, mesh, operand, with_garbage};
use crate::jit::program::Program;
use crate::jit::tests::numbers;
use crate::prelude::*;
use crate::sharding::Mesh;
use pallas_graph::call::OpSample;
use pallas_graph::mesh::{MeshSharding, ShardingConstraint};
use pallas_graph::{DynamicSlice, DynamicUpdateSlice, Graph, Op, Var};
use pallas_ir::structural::{
    ArgReduce, ArgTopK, Cast, Concat, Conv, Gather, Pad, Reduce, ReduceWindow, Reshape, Reverse, Roll, Slice,
    TakeAlong, WindowDim,
};
use pallas_ir::{Dim, Literal, ScalarOp, StructuralOp, Type};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An operation on operands of these types.
struct Case {
    op: Op,
    types: Vec<Type>,
}

/// The operation on operands and with a result that are sharded at random, also unevenly, against one device.
fn check(case: &Case, mesh: &Arc<Mesh>, dice: &mut Dice) -> Result<usize, String> {
    let config = Config { uneven: true, ..Config::default() };
    let mut graph = Graph::default();
    let params: Vec<Var> = case.types.iter().map(|ty| graph.param(ty.clone())).collect();
    let constrained = |graph: &mut Graph, dice: &mut Dice, v: Var| {
        let sharding = sharding(dice, mesh, &graph.ty(v).shape.clone(), &config);
        graph.push(ShardingConstraint(MeshSharding { mesh: mesh.clone(), sharding }), &[v]).expect("the identity")
    };
    let mut args: Vec<Var> = params.iter().map(|&v| constrained(&mut graph, dice, v)).collect();
    if let Op::Structural(StructuralOp::TakeAlong(take)) = &case.op {
        // Other positions are a mistake.
        let (shape, n) = (case.types[1].shape.clone(), case.types[0].shape[take.axis]);
        let bounds = [0, n as i64 - 1].map(|n| graph.splat(Literal::int(DType::I32, n), &shape));
        args[1] = graph.push(ScalarOp::Clamp, &[args[1], bounds[0], bounds[1]]).expect("i32");
    }
    let Ok(made) = graph.push_multi_result(case.op.clone(), &args) else { return Ok(0) };
    for y in made {
        let y = if dice.chance(70) { constrained(&mut graph, dice, y) } else { y };
        let y = graph.push(StructuralOp::from(Cast { to: DType::F32 }), &[y]).expect("a number");
        graph.results.push(y);
    }
    let values: Vec<Array> = case.types.iter().map(|ty| operand(dice, ty)).collect();
    let values: Vec<&Array> = values.iter().collect();
    let whole = Program::new(&graph, &Client::cpu()).expect("it compiles").run(&values).expect("it runs");
    let program = with_garbage(&graph, mesh, &vec![None; values.len()]);
    let sharded = program.run(&values).expect("it runs");
    let each = whole.iter().zip(&sharded).map(|(whole, sharded)| difference(&numbers(whole), sharded, mesh));
    let worst = each.fold(0.0, f32::max);
    // Sums of few numbers of 16 bits.
    let is_narrow = case.types.iter().any(|ty| ty.dtype.is_float() && ty.dtype.bytes() == 2);
    match worst <= if is_narrow { 1e-2 } else { 1e-5 } {
        true => Ok(1),
        false => Err(format!("{} {:?} on {mesh}: {worst}\n{graph}", case.op, case.types)),
    }
}

fn meshes() -> Vec<Arc<Mesh>> {
    vec![
        mesh(&[("x", 2)]),
        mesh(&[("x", 4)]),
        mesh(&[("x", 3)]),
        mesh(&[("x", 2), ("y", 4)]),
        mesh(&[("y", 2), ("x", 3)]),
    ]
}

/// The samples of the registry, also with larger sizes where the operation takes them.
#[test]
fn operations_on_blocks_are_those_on_arrays() {
    let (mut dice, mut found, mut wrong) = (Dice(71), BTreeMap::<&str, usize>::new(), vec![]);
    for sample in StructuralOp::samples() {
        for scale in [1, 3] {
            let with: Vec<(&str, i64)> = sample.with.iter().map(|&(name, n)| (name, n * scale)).collect();
            let number = |name: &&str| {
                let size: Dim = name.parse().expect("a size");
                size.bind(&with).as_number().expect("all names have values") as usize
            };
            let shapes = sample.args.iter().map(|shape| shape.iter().map(number).collect::<Vec<usize>>());
            let types = shapes.zip(sample.dtypes).map(|(shape, &dtype)| Type::new(dtype, shape)).collect();
            let case = Case { op: sample.op.bind(&with).into(), types };
            for mesh in meshes() {
                for _ in 0..1 + count() / 20 {
                    match check(&case, &mesh, &mut dice) {
                        Ok(ran) => *found.entry(sample.op.name()).or_default() += ran,
                        Err(text) => wrong.push(text),
                    }
                }
            }
        }
    }
    println!("{found:?}");
    assert!(wrong.is_empty(), "{} differ: {}", wrong.len(), wrong[..wrong.len().min(3)].join("\n"));
    let missing: Vec<&&str> =
        StructuralOp::NAMES.iter().filter(|name| found.get(*name).is_none_or(|&ran| ran == 0)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The samples of every operation that devices run, against one device.
#[test]
fn calls_on_blocks_are_those_on_arrays() {
    let (mut dice, mut ran, mut wrong) = (Dice(72), 0, vec![]);
    for sample in OpSample::all(DType::F32) {
        let case = Case { op: sample.op.clone(), types: sample.takes.clone() };
        for mesh in meshes() {
            for _ in 0..1 + count() / 20 {
                match check(&case, &mesh, &mut dice) {
                    Ok(n) => ran += n,
                    Err(text) => wrong.push(text),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ: {}", wrong.len(), wrong[..wrong.len().min(3)].join("\n"));
    assert!(ran >= OpSample::all(DType::F32).len() * meshes().len(), "{ran}");
}

fn dims(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&n| Dim::from(n)).collect()
}

/// An operation that moves elements or addresses them, with drawn attributes.
fn drawn(dice: &mut Dice) -> Case {
    let rank = 1 + dice.below(3);
    let shape: Vec<usize> = (0..rank).map(|_| 1 + dice.below(17)).collect();
    let axis = dice.below(rank);
    let n = shape[axis];
    let with = |extent: usize| [&shape[..axis], &[extent], &shape[axis + 1..]].concat();
    let f32 = |shape: &[usize]| Type::new(DType::F32, shape);
    let i32 = |shape: &[usize]| Type::new(DType::I32, shape);
    let window = |dice: &mut Dice| WindowDim {
        stride: 1 + dice.below(3) as i64,
        low: dice.below(5) as i64 - 1,
        high: dice.below(5) as i64 - 1,
        dilation: *dice.pick(&[1, 1, 2, 3]),
        spacing: 1 + dice.below(2) as i64,
    };
    match dice.below(11) {
        0 => {
            let stride: Vec<usize> = shape.iter().map(|_| 1 + dice.below(3)).collect();
            let start: Vec<usize> = shape.iter().map(|&n| dice.below(n)).collect();
            let size: Vec<usize> =
                (0..rank).map(|d| 1 + dice.below((shape[d] - start[d]).div_ceil(stride[d]))).collect();
            let signed = |all: Vec<usize>| all.into_iter().map(|n| n as i64).collect();
            let op = Slice { start: signed(start), size: dims(&size), stride: signed(stride) };
            Case { op: StructuralOp::from(op).into(), types: vec![f32(&shape)] }
        }
        1 => {
            let mut sizes = || shape.iter().map(|_| Dim::from(dice.below(9))).collect::<Vec<_>>();
            let op = Pad { low: sizes(), high: sizes() };
            Case { op: StructuralOp::from(op).into(), types: vec![f32(&shape), f32(&[])] }
        }
        2 => {
            let axes = (0..rank).filter(|&axis| axis == 0 || dice.chance(50)).collect();
            Case { op: StructuralOp::from(Reverse { axes }).into(), types: vec![f32(&shape)] }
        }
        3 => {
            let shift = dice.below(3 * n) as i64 - n as i64;
            Case { op: StructuralOp::from(Roll { shift, axis }).into(), types: vec![f32(&shape)] }
        }
        4 => {
            let types = (0..2 + dice.below(2)).map(|_| f32(&with(1 + dice.below(9)))).collect();
            Case { op: StructuralOp::from(Concat { axis }).into(), types }
        }
        5 => {
            let op = *dice.pick(&[ScalarOp::Add, ScalarOp::Maximum, ScalarOp::Minimum]);
            let size = shape.iter().map(|_| 1 + dice.below(4) as i64).collect();
            let windows = shape.iter().map(|_| window(dice)).collect();
            let op = ReduceWindow { op, size, windows };
            Case { op: StructuralOp::from(op).into(), types: vec![f32(&shape)] }
        }
        6 => {
            // Batch, features and one or two places, in a drawn order.
            let spatial = 1 + dice.below(2);
            let groups = *dice.pick(&[1, 1, 2, 4, 6]);
            let mut extents: Vec<usize> = (0..spatial + 2).map(|_| 1 + dice.below(9)).collect();
            let order = |dice: &mut Dice| dice.shuffled(spatial + 2);
            let (lhs, rhs, out) = (order(dice), order(dice), order(dice));
            let place = |order: &[usize], sizes: &[usize]| {
                let mut shape = vec![0; sizes.len()];
                order.iter().zip(sizes).for_each(|(&axis, &size)| shape[axis] = size);
                shape
            };
            // Windows as long as the operand are those of gradients by weights.
            let window_size = |dice: &mut Dice, n: usize| if dice.chance(30) { n } else { 1 + dice.below(4) };
            let sizes: Vec<usize> = extents[2..].iter().map(|&n| window_size(dice, n)).collect();
            let own = if groups == 1 { extents[1] } else { 1 + dice.below(2) };
            extents[1] = own * groups;
            let kernel: Vec<usize> = [groups * (1 + dice.below(5)), own].into_iter().chain(sizes).collect();
            let types = vec![f32(&place(&lhs, &extents)), f32(&place(&rhs, &kernel))];
            let windows = (0..spatial).map(|_| window(dice)).collect();
            let op = Conv { windows, groups, batch_groups: 1, lhs, rhs, out, acc: DType::F32 };
            Case { op: StructuralOp::from(op).into(), types }
        }
        7 => {
            // A window with a part of some dimensions, at positions that may be outside.
            let part: Vec<usize> = shape.iter().map(|&n| if dice.chance(50) { n } else { 1 + dice.below(n) }).collect();
            let is_update = dice.chance(70);
            let mut types = vec![f32(&shape)];
            types.extend(is_update.then(|| f32(&part)));
            types.extend((0..rank).map(|_| i32(&[])));
            let op: Op = if is_update { DynamicUpdateSlice.into() } else { DynamicSlice { size: part }.into() };
            Case { op, types }
        }
        9 => {
            let k = 1 + dice.below(n.min(3));
            let op = match dice.below(3) {
                0 => ArgTopK { k: k.into(), axis }.into(),
                number => StructuralOp::from(ArgReduce { max: number == 1, axis, keep: dice.chance(50) }),
            };
            Case { op: op.into(), types: vec![f32(&shape)] }
        }
        8 if rank > 1 => {
            let types = vec![f32(&shape), i32(&with(1 + dice.below(9)))];
            Case { op: StructuralOp::from(TakeAlong { axis }).into(), types }
        }
        _ => {
            // Rows at one or two addressed dimensions, or what is scattered there.
            let addressed = if rank > 1 && dice.chance(40) { vec![1, 0] } else { vec![dice.below(rank)] };
            let count = [1 + dice.below(9), addressed.len()];
            let is_vector = addressed.len() > 1 || dice.chance(50);
            let index = if is_vector { count.to_vec() } else { vec![count[0]] };
            let left: Vec<usize> = (0..rank).filter(|dim| !addressed.contains(dim)).collect();
            let sizes: Vec<usize> = (0..rank).map(|d| if addressed.contains(&d) { 1 } else { shape[d] }).collect();
            let mut collapsed = addressed.clone();
            collapsed.sort_unstable();
            let gather = Gather {
                offset_dims: (1..=left.len()).collect(),
                collapsed_slice_dims: collapsed,
                operand_batching_dims: vec![],
                start_indices_batching_dims: vec![],
                start_index_map: addressed,
                index_vector_dim: 1,
                slice_sizes: dims(&sizes),
            };
            let updates: Vec<usize> = [count[0]].into_iter().chain(left.iter().map(|&d| shape[d])).collect();
            if dice.chance(50) {
                return Case { op: StructuralOp::from(gather).into(), types: vec![f32(&shape), i32(&index)] };
            }
            let op = *dice.pick(&[Some(ScalarOp::Add), Some(ScalarOp::Mul), Some(ScalarOp::Maximum), None]);
            let types = vec![f32(&shape), i32(&index), f32(&updates)];
            Case { op: StructuralOp::from(gather.matching_scatter(op)).into(), types }
        }
    }
}

#[test]
fn elements_move_between_blocks_as_in_arrays() {
    let (mut dice, mut found, mut wrong) = (Dice(72), BTreeMap::<String, usize>::new(), vec![]);
    for _ in 0..25 * count() {
        let case = drawn(&mut dice);
        let mesh = dice.pick(&meshes()).clone();
        let name = case.op.to_string().split(' ').next().unwrap_or_default().to_string();
        match check(&case, &mesh, &mut dice) {
            Ok(ran) => *found.entry(name).or_default() += ran,
            Err(text) => wrong.push(text),
        }
    }
    println!("{found:?}");
    assert!(wrong.is_empty(), "{} differ: {}", wrong.len(), wrong[..wrong.len().min(3)].join("\n"));
    assert!(found.len() >= 10 && found.values().all(|&ran| ran > 0), "{found:?}");
}

/// Factors in order, some neighbours of which are one dimension.
fn joined(dice: &mut Dice, factors: &[usize]) -> Vec<usize> {
    let mut shape = vec![factors[0]];
    for &n in &factors[1..] {
        match dice.chance(50) {
            true => *shape.last_mut().expect("it has one") *= n,
            false => shape.push(n),
        }
    }
    if dice.chance(20) {
        shape.insert(dice.below(shape.len() + 1), 1);
    }
    shape
}

/// Dimensions that are split, merged and shifted, and sums, both with drawn divisions before and after.
#[test]
fn reshapes_and_sums_of_blocks_are_those_of_arrays() {
    let (mut dice, mut found, mut wrong) = (Dice(73), BTreeMap::<&str, usize>::new(), vec![]);
    for k in 0..40 * count() {
        let factors: Vec<usize> = (0..2 + dice.below(3)).map(|_| 2 + dice.below(5)).collect();
        let shape = joined(&mut dice, &factors);
        let (name, op) = if k % 2 == 0 {
            // 4 x 5 is 5 x 4 as well.
            let other = dice.chance(30).then(|| factors.iter().rev().copied().collect());
            let to = joined(&mut dice, &other.unwrap_or(factors));
            ("reshape", StructuralOp::from(Reshape { to: dims(&to) }))
        } else {
            let axes = (0..shape.len()).filter(|_| dice.chance(40)).collect();
            let op = *dice.pick(&[ScalarOp::Add, ScalarOp::Maximum]);
            ("sum", StructuralOp::from(Reduce { axes, op, keep: false }))
        };
        let mesh = dice.pick(&meshes()).clone();
        let case = Case { op: op.into(), types: vec![Type::new(DType::F32, shape)] };
        match check(&case, &mesh, &mut dice) {
            Ok(ran) => *found.entry(name).or_default() += ran,
            Err(text) => wrong.push(text),
        }
    }
    println!("{found:?}");
    assert!(wrong.is_empty(), "{} differ: {}", wrong.len(), wrong[..wrong.len().min(3)].join("\n"));
    assert!(found.values().all(|&ran| ran >= 15 * count()), "{found:?}");
}
