//! Kernels on meshes of virtual devices, against the same kernels on one device: sharded along their parallel grid
//! axes, in whole blocks, for lengths and blocks that fit the devices and others.
use super::super::program::Program;
use super::super::trace::{TracedParameter, trace};
use super::numbers;
use super::programs::sharded;
use super::sharded::{Dice, difference, mesh, operand};
use crate::sharding::{Mesh, NamedSharding, P, Sharding, device_put};
use crate::{jit, ops, partitioned, shard_map, with_sharding_constraint};
use pallas_device::startup::Engine;
use pallas_graph::call::{Call, ClosedCall};
use pallas_graph::mesh::{MeshSharding, ShardingConstraint};
use pallas_graph::{Graph, Op};
use pallas_ir::{Kernel, Literal, Op as TileOp, OperandId, Type};
use pallas_rt::prelude::*;
use std::sync::Arc;

mod loops;

/// Elements, their positions in the whole array, and what is known of the grid.
#[kernel(grid = (cdiv(N, B)))]
fn positions<const B: usize>(
    #[block([N] => [B], |i| (i,), fill = 1.0)] x: In<f32>,
    #[block([N] => [B], |i| (i,))] out: Out<f32>,
) {
    let at = iota::<i32>([B], 0) + program_id(0) * B;
    let last = (at + 1).eq(N).cast::<f32>();
    let inside = x.valid(0).cast::<f32>();
    // What is not there is 1 each.
    let sum = x.load().sum(0) + inside.sum(0) * 100.0;
    out.store(x.load() + at.cast::<f32>() + sum + last * 1e4 + num_programs(0).cast::<f32>());
}

/// Rows and columns in blocks; each row's scale is data, each column's offset is in one block.
#[kernel(grid = (cdiv(M, A), cdiv(N, B)))]
fn grid_of_blocks<const A: usize, const B: usize>(
    #[block([M, N] => [A, B], |i, j| (i, j))] x: In<f32>,
    #[block([M, 1] => [A, 1], |i, _| (i, 0))] rows: In<f32>,
    #[prefetch([N])] columns: Prefetch<i32>,
    #[block([N, M] => [B, A], |i, j| (j, i))] transposed: Out<f32>,
) {
    let first = minimum(program_id(1) * B, N - 1);
    let scaled = x.load() * rows.load() + columns.at(first).cast::<f32>();
    transposed.store(scaled.t());
}

/// Each row's sum of the products with all rows that are not after it: blocks of them one after the other.
#[kernel(grid = (cdiv(S, B), cdiv(S, B)), semantics = (parallel, arbitrary))]
fn causal<const B: usize>(
    #[block([S, D] => [B, D], |i, _| (i, 0), fill = 0.0)] q: In<f32>,
    #[block([S, D] => [B, D], |_, j| (j, 0), fill = 0.0)] k: In<f32>,
    #[block([S, D] => [B, D], |i, _| (i, 0))] out: Out<f32>,
    #[block([S] => [B], |i, _| (i,))] count: Out<f32>,
    #[scratch([B, D])] acc: Scratch<f32>,
    #[scratch([B, 1])] seen: Scratch<f32>,
) {
    if program_id(1) == 0 {
        acc.store(zeros([B, D]));
        seen.store(zeros([B, 1]));
    }
    let row = iota::<i32>([B, B], 0) + program_id(0) * B;
    let column = iota::<i32>([B, B], 1) + program_id(1) * B;
    let weight = select(column.le(row), dot(q.load(), k.load().t()), 0.0);
    acc.store(acc.load() + dot(weight, k.load()));
    seen.store(seen.load() + column.le(row).cast::<f32>().sum(1));
    if program_id(1) == num_programs(1) - 1 {
        out.store(acc.load());
        count.store(seen.load().reshape([B]));
    }
}

/// The sum of each row, blocks of columns one after the other.
#[kernel(grid = (cdiv(M, A), cdiv(N, B)), semantics = (parallel, arbitrary))]
fn row_sums<const A: usize, const B: usize>(
    #[block([M, N] => [A, B], |i, j| (i, j), fill = 0.0)] x: In<f32>,
    #[block([M, 1] => [A, 1], |i, _| (i, 0))] out: Out<f32>,
    #[scratch([A, 1])] acc: Scratch<f32>,
) {
    if program_id(1) == 0 {
        acc.fill(0.0);
    }
    acc.store(acc.load() + (x.load().sum(1) + program_id(1).cast::<f32>()));
    if program_id(1) == num_programs(1) - 1 {
        out.store(acc.load());
    }
}

/// The greatest element of each row and the number of its block.
#[kernel(grid = (cdiv(M, A), cdiv(N, B)), semantics = (parallel, arbitrary))]
fn row_maxima<const A: usize, const B: usize>(
    #[block([M, N] => [A, B], |i, j| (i, j), fill = f32::NEG_INFINITY)] x: In<f32>,
    #[block([M, 1] => [A, 1], |i, _| (i, 0))] out: Out<f32>,
    #[scratch([A, 1])] acc: Scratch<f32>,
) {
    if program_id(1) == 0 {
        acc.fill(f32::NEG_INFINITY);
    }
    acc.store(maximum(acc.load(), x.load().max(1) + program_id(1).cast::<f32>()));
    if program_id(1) == num_programs(1) - 1 {
        out.store(acc.load());
    }
}

/// As [`row_sums`], but for a number that is added in the end.
#[kernel(grid = (cdiv(M, A), cdiv(N, B)), semantics = (parallel, arbitrary))]
fn biased_sums<const A: usize, const B: usize>(
    #[block([M, N] => [A, B], |i, j| (i, j), fill = 0.0)] x: In<f32>,
    #[block([M, 1] => [A, 1], |i, _| (i, 0))] out: Out<f32>,
    #[scratch([A, 1])] acc: Scratch<f32>,
) {
    if program_id(1) == 0 {
        acc.fill(0.0);
    }
    acc.store(acc.load() + x.load().sum(1));
    if program_id(1) == num_programs(1) - 1 {
        out.store(acc.load() + 1.0);
    }
}

/// The sums of the sums so far.
#[kernel(grid = (cdiv(M, A), cdiv(N, B)), semantics = (parallel, arbitrary))]
fn sums_of_sums<const A: usize, const B: usize>(
    #[block([M, N] => [A, B], |i, j| (i, j), fill = 0.0)] x: In<f32>,
    #[block([M, 1] => [A, 1], |i, _| (i, 0))] out: Out<f32>,
    #[scratch([A, 1])] acc: Scratch<f32>,
    #[scratch([A, 1])] all: Scratch<f32>,
) {
    if program_id(1) == 0 {
        acc.fill(0.0);
        all.fill(0.0);
    }
    let sum = acc.load() + x.load().sum(1);
    acc.store(sum);
    all.store(all.load() + sum);
    if program_id(1) == num_programs(1) - 1 {
        out.store(all.load());
    }
}

/// The sum of all blocks but the last one.
#[kernel(grid = (cdiv(M, A), cdiv(N, B)), semantics = (parallel, arbitrary))]
fn sums_without_last<const A: usize, const B: usize>(
    #[block([M, N] => [A, B], |i, j| (i, j), fill = 0.0)] x: In<f32>,
    #[block([M, 1] => [A, 1], |i, _| (i, 0))] out: Out<f32>,
    #[scratch([A, 1])] acc: Scratch<f32>,
) {
    if program_id(1) == 0 {
        acc.fill(0.0);
    }
    let before = acc.load();
    acc.store(acc.load() + x.load().sum(1));
    if program_id(1) == num_programs(1) - 1 {
        out.store(before);
    }
}

/// Sums of the first rows in the memory of an input, which has the other ones.
#[kernel(grid = (1, cdiv(N, B)), semantics = (parallel, arbitrary))]
fn first_sums<const A: usize, const B: usize>(
    #[block([M, N] => [A, B], |_, j| (0, j), fill = 0.0)] x: In<f32>,
    #[block([M, 1] => [A, 1], |_, _| (0, 0))] base: In<f32>,
    #[block([M, 1] => [A, 1], |_, _| (0, 0), alias = base)] out: Out<f32>,
) {
    if program_id(1) == 0 {
        out.store(zeros([A, 1]));
    }
    out.store(out.load() + x.load().sum(1));
}

/// The graph of a function of arrays of these types, with constraints in front of it.
fn constrained(
    takes: &[Type],
    mesh: &Arc<Mesh>,
    shardings: &[Option<Sharding>],
    f: impl Fn(&[Array]) -> Result<Vec<Array>>,
) -> Graph {
    let taken: Vec<TracedParameter> = takes.iter().map(|ty| TracedParameter::with_states(ty.clone(), None)).collect();
    let inner = trace(&Client::cpu(), &taken, |params| f(params)).expect("it is traced").graph;
    let mut graph = Graph::default();
    let args: Vec<_> = (takes.iter().zip(shardings))
        .map(|(ty, sharding)| {
            let param = graph.param(ty.clone());
            let Some(sharding) = sharding.clone() else { return param };
            let placed = MeshSharding { mesh: mesh.clone(), sharding };
            graph.push(ShardingConstraint(placed), &[param]).expect("the identity")
        })
        .collect();
    graph.results = graph.push_multi_result(ClosedCall(inner), &args).expect("it takes them");
    graph
}

/// The kernels of a graph that devices run parts of, changed by `f`.
fn each_shard(graph: &mut Graph, f: &dyn Fn(&mut Kernel)) -> usize {
    let mut count = 0;
    for e in &mut graph.equations {
        if let Op::Call(call) = &mut e.op
            && let Call::KernelCall(call) = Arc::make_mut(call)
            && call.kernel.name.ends_with("_shard")
        {
            f(Arc::make_mut(&mut call.kernel));
            count += 1;
        }
    }
    count
}

/// Runs a graph on one device, and on a mesh with kernels that count their programs from 0 on each device; returns the
/// greatest difference.
fn with_local_ids(graph: &Graph, mesh: &Arc<Mesh>, args: &[Array]) -> f32 {
    let cpu = Client::cpu();
    let args: Vec<&Array> = args.iter().collect();
    let one = Program::new(graph, &cpu).expect("it compiles").run(&args).expect("it runs");
    let inlined = pallas_graph::shard::inlined(graph);
    let (found, mut parts) = sharded(&inlined, mesh, &vec![None; args.len()]).expect("it is not refused");
    let local = |kernel: &mut Kernel| {
        let offsets = OperandId(kernel.operands.len() as u32 - 1);
        for inst in &mut kernel.insts {
            if inst.op == TileOp::Prefetch(offsets) {
                (inst.op, inst.args) = (TileOp::Const(Literal::int(DType::I32, 0)), vec![]);
            }
        }
    };
    assert!(each_shard(&mut parts.graph, &local) > 0, "no kernel is sharded");
    let all = Program::of_partitioned(Engine::Lockstep, &inlined, (found, parts), &cpu).expect("it compiles");
    let all = all.run(&args).expect("it runs");
    one.iter().zip(&all).map(|(a, b)| difference(&numbers(a), b, mesh)).fold(0.0, f32::max)
}

/// Runs a graph on one device and on a mesh; returns the greatest difference.
#[track_caller]
fn compared(graph: &Graph, mesh: &Arc<Mesh>, args: &[Array]) -> f32 {
    let cpu = Client::cpu();
    let args: Vec<&Array> = args.iter().collect();
    let one = Program::new(graph, &cpu).expect("it compiles").run(&args).expect("it runs");
    let declared = vec![None; args.len()];
    let all = Program::for_mesh(graph, mesh, &declared, &cpu).unwrap_or_else(|e| panic!("{e}"));
    let all = all.run(&args).expect("it runs");
    one.iter().zip(&all).map(|(a, b)| difference(&numbers(a), b, mesh)).fold(0.0, f32::max)
}

fn rows(mesh: &Mesh, rank: usize) -> Option<Sharding> {
    let mut axes = vec![vec![]; rank];
    axes[0] = vec![mesh.axis(0)];
    Some(Sharding::closed(axes))
}

/// The function in front makes the elements beyond an array infinite.
fn reciprocal(x: &Array) -> Array {
    1.0 / (x + 2.0)
}

#[test]
fn blocks_of_one_axis() {
    for devices in 1..=5 {
        let mesh = mesh(&[("x", devices)]);
        for n in [1, 2, 3, 5, 8, 11, 16, 19, 20, 24, 31, 32, 33, 40, 47, 64] {
            let f = |x: &[Array]| {
                let x = reciprocal(&x[0]);
                Ok(vec![positions::<1>(&x)?, positions::<4>(&x)?, positions::<8>(&x)?])
            };
            let ty = Type::new(DType::F32, [n]);
            let graph = constrained(std::slice::from_ref(&ty), &mesh, &[rows(&mesh, 1)], f);
            let args = [operand(&mut Dice(n as u64), &ty)];
            assert_eq!(compared(&graph, &mesh, &args), 0.0, "{n} elements on {devices} devices");
        }
    }
}

/// Each axis of the mesh divides an axis of the grid, or both divide one; operands are also transposed, whole and data.
#[test]
fn blocks_of_two_axes() {
    let mesh = mesh(&[("x", 2), ("y", 3)]);
    let [x, y] = [0, 1].map(|axis| vec![mesh.axis(axis)]);
    let both = vec![mesh.axis(0), mesh.axis(1)];
    let divisions = [[x.clone(), y.clone()], [y, x.clone()], [both.clone(), vec![]], [vec![], both], [vec![], x]];
    for [m, n] in [[12, 12], [5, 7], [1, 30], [17, 4], [24, 16]] {
        for axes in &divisions {
            let takes = [Type::new(DType::F32, [m, n]), Type::new(DType::F32, [m, 1]), Type::new(DType::I32, [n])];
            let f = |x: &[Array]| {
                let args = [&reciprocal(&x[0]), &reciprocal(&x[1]), &x[2]];
                let one = grid_of_blocks::<2, 4>(args[0], args[1], args[2])?;
                Ok(vec![one, grid_of_blocks::<3, 2>(args[0], args[1], args[2])?])
            };
            let declared = [Some(Sharding::closed(axes.clone())), None, None];
            let graph = constrained(&takes, &mesh, &declared, f);
            let args = [0, 1, 2].map(|i| operand(&mut Dice(i as u64), &takes[i]));
            assert_eq!(compared(&graph, &mesh, &args), 0.0, "[{m}, {n}] by {axes:?}");
        }
    }
}

/// Positions are those in the whole array on every device: a device that counted its own rows would see other keys.
#[test]
fn masks_of_positions_are_global() {
    for devices in [2, 3, 4, 7] {
        let mesh = mesh(&[("x", devices)]);
        for n in [1, 4, 9, 16, 23, 33] {
            let takes = [(); 2].map(|()| Type::new(DType::F32, [n, 3]));
            let f = |x: &[Array]| {
                let (out, count) = causal::<4>(&reciprocal(&x[0]), &x[1])?;
                let (other, seen) = causal::<8>(&reciprocal(&x[0]), &x[1])?;
                Ok(vec![out, count, other, seen])
            };
            let graph = constrained(&takes, &mesh, &[rows(&mesh, 2), None], f);
            let args = [0, 1].map(|i| operand(&mut Dice(i as u64 + 5), &takes[i]));
            assert!(compared(&graph, &mesh, &args) < 1e-6, "{n} rows on {devices} devices");
            // One device alone has blocks of so few rows.
            if n > 8 {
                assert!(with_local_ids(&graph, &mesh, &args) > 1e-2, "{n} rows on {devices} devices see too much");
            }
        }
    }
}

/// Devices compute parts of what is a sum or a maximum, and only of that.
#[test]
fn sums_over_sequential_axes_are_parts_that_are_combined() {
    for devices in [2, 3, 5] {
        let mesh = mesh(&[("x", devices)]);
        for n in [1, 2, 4, 7, 12, 30, 33] {
            let ty = Type::new(DType::F32, [5, n]);
            let f = |x: &[Array]| {
                let x = reciprocal(&x[0]);
                let base = x.sum(1).reshape(&[5, 1]);
                Ok([
                    vec![row_sums::<2, 4>(&x)?, row_maxima::<5, 2>(&x)?, biased_sums::<1, 3>(&x)?],
                    vec![sums_of_sums::<2, 3>(&x)?, sums_without_last::<2, 3>(&x)?, first_sums::<2, 3>(&x, &base)?],
                ]
                .concat())
            };
            let columns = Sharding::closed([vec![], vec![mesh.axis(0)]]);
            let graph = constrained(std::slice::from_ref(&ty), &mesh, &[Some(columns)], f);
            let args = [operand(&mut Dice(n as u64), &ty)];
            assert!(compared(&graph, &mesh, &args) < 1e-5, "{n} columns on {devices} devices");
        }
    }
    let mesh = mesh(&[("x", 2)]);
    let x = Client::cpu().full(&[3, 16], 0.5f32).expect("it fits");
    let x = device_put(&x, &NamedSharding::new(&mesh, P((None, "x")))).expect("it is placed");
    for found in [partitioned(|x: &Array| row_sums::<2, 4>(x))(&x), partitioned(|x: &Array| row_maxima::<2, 4>(x))(&x)]
    {
        let collectives = found.expect("it is traced").collectives();
        let names: Vec<&str> = collectives.iter().map(|exchange| exchange.name).collect();
        assert_eq!(names, ["all_reduce"]);
    }
    let unproven = "grid axis 1 run in order, and are not proven to compute a plain sum";
    type Unary = fn(&Array) -> Result<Array>;
    let others: [(Unary, &str); 4] = [
        (|x| biased_sums::<2, 4>(x), unproven),
        (|x| sums_of_sums::<2, 4>(x), unproven),
        (|x| sums_without_last::<2, 4>(x), unproven),
        (
            |x| first_sums::<2, 4>(x, &ops::zeros(&[3, 1], DType::F32)),
            "programs along other axes than 1 do not write all blocks of `out`",
        ),
    ];
    for (f, reason) in others {
        let error = jit(f)(&x).expect_err("it is no sum").to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// A kernel that devices divide needs no exchange where blocks fit, and whole blocks of its neighbours where they do
/// not.
#[test]
fn a_sharded_kernel_stays_where_its_blocks_are() {
    let mesh = mesh(&[("x", 4)]);
    let named = NamedSharding::new(&mesh, P("x"));
    let with = |n: usize| {
        let x = Client::cpu().full(&[n], 1.5f32).expect("it fits");
        let x = device_put(&x, &named).expect("it is placed");
        let found = partitioned(|x: &Array| positions::<4>(x))(&x).expect("it is traced");
        assert_eq!(found.results()[0].text(&mesh), "[{\"x\"}]");
        let all: Vec<&str> = found.collectives().iter().map(|exchange| exchange.name).collect();
        all.join(" ")
    };
    assert_eq!(with(32), "");
    assert_eq!(with(64), "");
    assert_ne!(with(40), "");
    // One block: the first device has it, and the other ones run no program.
    for n in [1, 2, 3, 4] {
        let x = Client::cpu().full(&[4 * n], 1.5f32).expect("it fits");
        let want = numbers(&positions::<16>(&x).expect("it runs"));
        let x = device_put(&x, &named).expect("it is placed");
        let found = jit(|x: &Array| positions::<16>(x))(&x).expect("a declaration that the kernel follows");
        assert_eq!(numbers(&found), want, "{n} elements on each of 4 devices");
        assert_eq!(found.sharding().expect("it is sharded").blocks_per_dim(), [4]);
    }
}

/// A dimension that a kernel reads whole, and that is declared to be sharded.
#[test]
fn declarations_that_a_kernel_cannot_follow_are_refused() {
    let mesh = mesh(&[("x", 2)]);
    let [rows, columns] = [P("x"), P((None, "x"))].map(|spec| NamedSharding::new(&mesh, spec));
    let x = Client::cpu().full(&[8, 4], 0.5f32).expect("it fits");
    let put = |sharding: &NamedSharding| device_put(&x, sharding).expect("it is placed");
    let f = |q: &Array, k: &Array| Ok::<_, Error>(causal::<4>(q, k)?.0);
    let errors = [
        jit(f)(&put(&columns), &x),
        jit(f)(&x, &put(&rows)),
        partitioned(f)(&x, &put(&rows)).map(|_| x.clone()),
        jit({
            let columns = columns.clone();
            move |q: &Array, k: &Array| Ok::<_, Error>(with_sharding_constraint(&f(q, k)?, &columns))
        })(&x, &x),
    ];
    let parts = [
        "kernel `causal` cannot be sharded along dimension 1 of `q`, which is declared to be sharded by \"x\": each \
         program reads or writes the same part of it",
        "dimension 0 of `k`, which is declared to be sharded by \"x\": programs along grid axis 1 run in order, and are \
         not proven to compute a plain sum",
        "dimension 0 of `k`",
        "dimension 1 of `out`",
    ];
    for (found, part) in errors.into_iter().zip(parts) {
        let error = found.expect_err("a mistake");
        let text = error.to_string();
        assert!(text.contains(part) && text.contains("with_sharding_constraint"), "{text}");
        assert!(text.contains("sharded_kernels.rs") && error.code() == "sharded-kernel", "{text}");
    }
    // The remedy; what only propagation divides is gathered.
    let whole = NamedSharding::new(&mesh, P(()));
    let remedied = jit(move |q: &Array, k: &Array| f(q, &with_sharding_constraint(k, &whole)));
    let gathered = jit(move |q: &Array, k: &Array| f(q, &(k * 1.0)));
    let want = numbers(&jit(f)(&x, &x).expect("it runs"));
    for f in [remedied.into_fn(), gathered.into_fn()] {
        let found = f(&put(&rows), &put(&rows)).expect("it runs");
        assert_eq!(numbers(&found), want);
        assert_eq!(found.sharding().expect("it is sharded").blocks_per_dim(), [2, 1]);
    }
}

/// In a body that leaves axes automatic a kernel is sharded along them. It may have to be whole, unless the body
/// declares otherwise.
#[test]
fn kernels_in_partial_bodies() {
    let mesh = Arc::new(Mesh::new(&[("x", 2), ("y", 2)]).expect("a mesh"));
    let x = operand(&mut Dice(3), &Type::new(DType::F32, [16, 4]));
    let is_close = |y: &Array, expected: &[f32]| {
        numbers(y).iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs().max(1.0))
    };
    let f = |x: &Array| causal::<4>(x, x).map(|(out, _)| out * 2.0);
    let specs = || ([P("x")], [P("x")]);
    let halves = [0, 8].map(|i| x.index(crate::ops::between(i, i + 8)));
    let expected: Vec<f32> = halves.iter().flat_map(|x| numbers(&f(x).expect("it runs"))).collect();
    for spec in [P(()), P("x"), P((["x", "y"],)), P(("x", "y")), P((None, "y"))] {
        let x = device_put(&x, &NamedSharding::new(&mesh, spec)).expect("it is placed");
        let y = jit(shard_map(f, &mesh, specs().0, specs().1).axis_names("x"))(&x).expect("it runs");
        assert!(is_close(&y, &expected));
    }
    let each = |x: &Array| positions::<4>(x);
    let row = x.reshape(&[64]);
    let expected: Vec<f32> = [0, 32]
        .iter()
        .flat_map(|&i| numbers(&each(&row.index(crate::ops::between(i, i + 32))).expect("it runs")))
        .collect();
    let sharded = device_put(&row, &NamedSharding::new(&mesh, P((["x", "y"],)))).expect("it is placed");
    let y = jit(shard_map(each, &mesh, specs().0, specs().1).axis_names("x"))(&sharded).expect("it runs");
    assert!(is_close(&y, &expected));
    let own = mesh.clone();
    let declared = move |x: &Array| {
        let x = with_sharding_constraint(x, &NamedSharding::new(&own, P((None, "y"))));
        causal::<4>(&x, &x).map(|(out, _)| out + 1.0)
    };
    let error =
        jit(shard_map(declared, &mesh, specs().0, specs().1).axis_names("x"))(&x).expect_err("a mistake").to_string();
    assert!(error.contains("kernel `causal` cannot be sharded"), "{error}");
}
