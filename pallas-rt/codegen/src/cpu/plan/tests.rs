//! Planning takes time in proportion to the length of a body, whatever its steps are.
use super::super::Thresholds;
use super::build_plan;
use super::step::{Step as Planned, WindowReaders};
use crate::passes;
use pallas_ir::{
    BlockDim, Builder, DType, Dim, Kernel, Literal, Loc, Op, Operand, OperandId, OperandKind, ScalarOp, StructuralOp,
    Value, View, ViewAxis, structural,
};
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    static VISITED: Cell<usize> = const { Cell::new(0) };
}

/// Counts an inspection of a step.
pub(super) fn visited() {
    VISITED.set(VISITED.get() + 1);
}

const N: usize = 8;
const ROWS: usize = 64;
const SCRATCH: OperandId = OperandId(2);

/// A body under construction: the current tile, and a current tile of one row.
struct Body {
    b: Builder,
    tile: Value,
    row: Value,
    kept: Vec<Value>,
}

impl Body {
    fn op(&mut self, op: impl Into<Op>, args: &[Value]) -> Value {
        self.b.emit(op.into(), args, Loc::NONE).expect("the operands fit")
    }
    fn structural(&mut self, op: impl Into<StructuralOp>, args: &[Value]) -> Value {
        self.op(Op::Structural(op.into()), args)
    }
    fn add(&mut self, a: Value, b: Value) -> Value {
        self.op(Op::Scalar(ScalarOp::Add), &[a, b])
    }
    fn number(&mut self, i: usize) -> Value {
        self.b.constant(Literal::new(DType::F32, i as f64), Loc::NONE)
    }
    /// Eight rows of the scratch buffer.
    fn window(i: usize) -> View {
        let rows = ViewAxis { offset: (i % (ROWS - N)) as i64, ..ViewAxis::whole(N) };
        View { axes: vec![rows, ViewAxis::whole(N)], ..View::whole(&[N, N]) }
    }
    fn load(&mut self, i: usize) -> Value {
        self.op(Op::Load { from: SCRATCH, view: Body::window(i), masked: false }, &[])
    }
    fn store(&mut self, i: usize, x: Value) {
        let op = Op::Store { to: SCRATCH, view: Body::window(i), masked: false };
        self.b.effect(op, &[x], Loc::NONE).expect("it fits");
    }
    fn dot(&mut self, a: Value, b: Value) -> Value {
        let dot = structural::Dot { batch: vec![], contract: vec![(1, 0)], acc: DType::F32 };
        self.structural(dot, &[a, b])
    }
}

/// The kind of a step of a body.
type Step = fn(&mut Body, usize);

const BODIES: [(&str, Step); 10] = [
    ("a chain", |body, i| {
        let x = body.number(i);
        body.tile = body.add(body.tile, x);
    }),
    ("folds", |body, _| {
        let sum = body.structural(structural::Reduce::keeping(ScalarOp::Maximum, vec![1]), &[body.tile]);
        body.tile = body.add(body.tile, sum);
    }),
    ("folds of columns", |body, _| {
        let sum = body.structural(structural::Reduce::keeping(ScalarOp::Add, vec![0]), &[body.tile]);
        body.tile = body.add(body.tile, sum);
    }),
    ("memory", |body, i| {
        let x = body.load(i);
        let x = body.add(x, body.tile);
        body.store(i * 7, x);
    }),
    ("one place", |body, _| {
        let x = body.load(0);
        let x = body.add(x, body.tile);
        body.store(0, x);
    }),
    ("sums of products", |body, _| {
        let x = body.dot(body.row, body.row);
        body.tile = body.add(body.tile, x);
    }),
    ("products of sums", |body, _| {
        let x = body.dot(body.tile, body.row);
        body.tile = body.add(x, body.row);
    }),
    ("views", |body, _| {
        body.tile = body.structural(structural::Transpose { axes: vec![1, 0] }, &[body.tile]);
        body.tile = body.structural(structural::Reshape { to: vec![Dim::from(N * N)] }, &[body.tile]);
        body.tile = body.structural(structural::Reshape { to: vec![Dim::from(N), Dim::from(N)] }, &[body.tile]);
    }),
    ("many at once", |body, i| {
        let x = body.load(i);
        let x = body.dot(x, body.row);
        body.kept.push(x);
    }),
    ("loops", |body, i| {
        let bounds = [0, 2, 1].map(|n| body.b.int(n, Loc::NONE));
        let carried = body.b.kernel().ty(body.tile).clone();
        let params = body.b.begin(&[pallas_ir::Type::scalar(DType::I32), carried]);
        let number = body.number(i);
        let x = body.add(params[1], number);
        body.store(i, x);
        let region = body.b.end(&[x]);
        body.tile = body.b.emit_for(bounds, false, &[body.tile], region, Loc::NONE).expect("bounds are i32")[0];
    }),
];

/// Returns a traced kernel of this many steps over blocks of 8 x 8.
fn kernel(steps: usize, step: Step) -> Kernel {
    let mut b = Builder::new("long");
    let f32s = |name: &str, kind, rows: usize| Operand {
        name: name.into(),
        kind,
        dtype: DType::F32,
        dims: vec![Dim::from(rows), Dim::from(N)],
        block: vec![BlockDim::Blocked(rows), BlockDim::Blocked(N)],
        map: None,
        fill: None,
        buffered: None,
    };
    let x = b.operand(f32s("x", OperandKind::Input, N));
    let output = OperandKind::Output { empty: Literal::new(DType::F32, 0.0), alias: None };
    let out = b.operand(f32s("out", output, N));
    assert_eq!(b.operand(f32s("scratch", OperandKind::Scratch, ROWS)), SCRATCH);
    let load = Op::Load { from: x, view: View::whole(&[N, N]), masked: false };
    let tile = b.emit(load, &[], Loc::NONE).expect("it fits");
    let row = b.scalar(ScalarOp::Exp, &[tile], Loc::NONE);
    let mut body = Body { b, tile, row, kept: vec![] };
    (0..steps).for_each(|i| step(&mut body, i));
    for x in std::mem::take(&mut body.kept) {
        body.tile = body.add(body.tile, x);
    }
    let store = Op::Store { to: out, view: View::whole(&[N, N]), masked: false };
    body.b.effect(store, &[body.tile], Loc::NONE).expect("it fits");
    body.b.finish()
}

#[test]
fn plans_look_at_each_step_a_few_times() {
    for (name, step) in BODIES {
        let looks = |steps: usize| {
            let lowered = Arc::new(passes::run_lowering_passes(&kernel(steps, step)));
            VISITED.set(0);
            build_plan(lowered, &Thresholds::FOR_TESTS);
            VISITED.get() as f64 / steps as f64
        };
        let (few, many) = (looks(50), looks(400));
        assert!(many > 0.0 && many <= 1.1 * few, "{name}: {few} looks a step of 50, {many} of 400");
    }
}

/// Steps of a kernel that takes rows at positions, with `last` and `mask` in place of what says which are outside.
fn steps_of_rows(last: usize, mask: &str) -> Vec<Planned> {
    let text = format!(
        "kernel rows {{
  in at: i32[6] block [6]
  in table: f32[9, 20] block [9, 20]
  out out: f32[6, 20] block [6, 20] empty 0.0
  map @at {{
    %0: i32[] = const 0
    yield %0
  }}
  map @table {{
    %1: i32[] = const 0
    yield %1, %1
  }}
  map @out {{
    %2: i32[] = const 0
    yield %2, %2
  }}
  body {{
    %3: i32[6] = load @at block[0:6]
    %4: i32[] = const 0
    %5: i32[] = const {last}
    %6: i32[6] = clamp %3, %4, %5
    %7: bool[6] = {mask}
    %8: f32[9,20] = load @table block[0:9, 0:20]
    %9: f32[6,20] = gather offset_dims(1) collapsed_slice_dims(0) operand_batching_dims() start_indices_batching_dims() start_index_map(0) index_vector_dim(1) slice_sizes(1, 20) %8, %3
    %10: bool[6,20] = broadcast to(6, 20) dims(0) %7
    %11: f32[] = const 7.0
    %12: f32[6,20] = select %10, %9, %11
    store @out block[0:6, 0:20] %12
  }}
}}"
    );
    let kernel: Kernel = text.parse().expect("it is tile IR");
    build_plan(Arc::new(passes::run_lowering_passes(&kernel)), &Thresholds::FOR_TESTS).body.steps
}

#[test]
fn gathers_make_selections_by_their_own_positions() {
    let chains =
        |steps: &[Planned]| steps.iter().filter(|s| matches!(s, Planned::Chain(_) | Planned::FusedChains(_))).count();
    let own = steps_of_rows(8, "eq %3, %6");
    assert!(own.iter().any(|s| matches!(s, Planned::Gather(step) if step.fill.is_some())));
    assert_eq!(chains(&own), 0, "{own:?}");
    assert!(own.iter().any(|s| matches!(s, Planned::RedirectResult { .. })), "it is made where it is stored");
    for (last, mask) in [(7, "eq %3, %6"), (8, "eq %6, %5"), (8, "ne %3, %6")] {
        let other = steps_of_rows(last, mask);
        assert!(other.iter().all(|s| !matches!(s, Planned::Gather(step) if step.fill.is_some())), "{last}, {mask}");
        assert!(chains(&other) > 0, "{last}, {mask}");
    }
}

#[test]
fn columns_between_rows_join_their_sweep() {
    let text = "kernel norm {
  in x: f32[6, 40] block [6, 40]
  out out: f32[6, 40] block [6, 40] empty 0.0
  map @x {
    %0: i32[] = const 0
    yield %0, %0
  }
  map @out {
    %1: i32[] = const 0
    yield %1, %1
  }
  body {
    %2: f32[6,40] = load @x block[0:6, 0:40]
    %3: f32[6,1] = reduce op(add) axes(1) keep(true) %2
    %4: f32[6,1] = rsqrt %3
    %5: f32[6,1] = exp %4
    %6: f32[6,40] = mul %2, %5
    store @out block[0:6, 0:40] %6
  }
}";
    let kernel: Kernel = text.parse().expect("it is tile IR");
    let shapes = |step: &Planned| match step {
        Planned::FusedChains(sweep) => sweep.chains.iter().map(|chain| chain.shape.clone()).collect(),
        Planned::Chain(chain) => vec![chain.shape.clone()],
        _ => vec![],
    };
    let steps = build_plan(Arc::new(passes::run_lowering_passes(&kernel)), &Thresholds::FOR_TESTS).body.steps;
    let sweeps: Vec<_> = steps.iter().map(shapes).filter(|shapes| !shapes.is_empty()).collect();
    assert_eq!(sweeps, [[vec![6, 40], vec![6, 1], vec![6, 40]]]);
}

/// The steps of a kernel with these operands, all of whose blocks are whole arrays, and this body.
fn steps_of(operands: &[(&str, &str, &[usize])], body: &str) -> Vec<Planned> {
    let (mut declared, mut maps, mut next) = (String::new(), String::new(), 100);
    for (kind, name, shape) in operands {
        let dims = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let empty = if *kind == "out" { " empty 0.0" } else { "" };
        let dtype = if *name == "at" { "i32" } else { "f32" };
        declared += &format!("  {kind} {name}: {dtype}[{dims}] block [{dims}]{empty}\n");
        let zeros = vec![format!("%{next}"); shape.len()].join(", ");
        maps += &format!("  map @{name} {{\n    %{next}: i32[] = const 0\n    yield {zeros}\n  }}\n");
        next += 1;
    }
    let text = format!("kernel k {{\n{declared}{maps}  body {{\n{body}  }}\n}}");
    let kernel: Kernel = text.parse().unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    build_plan(Arc::new(passes::run_lowering_passes(&kernel)), &Thresholds::FOR_TESTS).body.steps
}

#[test]
fn a_single_position_may_be_a_scalar() {
    let steps = |mask: &str| {
        let body = format!(
            "    %0: i32[1] = load @at block[0:1]
    %1: i32[] = reshape to() %0
    %2: i32[] = const 0
    %3: i32[] = const 8
    %4: i32[] = clamp %1, %2, %3
    %5: bool[] = {mask}
    %6: i32[1,1] = reshape to(1, 1) %1
    %7: f32[9,20] = load @table block[0:9, 0:20]
    %8: f32[1,20] = gather offset_dims(1) collapsed_slice_dims(0) operand_batching_dims() start_indices_batching_dims() start_index_map(0) index_vector_dim(1) slice_sizes(1, 20) %7, %6
    %9: f32[] = const 7.0
    %10: f32[1,20] = select %5, %8, %9
    store @out block[0:1, 0:20] %10
"
        );
        steps_of(&[("in", "at", &[1]), ("in", "table", &[9, 20]), ("out", "out", &[1, 20])], &body)
    };
    let is_filled = |steps: &[Planned]| steps.iter().any(|s| matches!(s, Planned::Gather(s) if s.fill.is_some()));
    let own = steps("eq %1, %4");
    assert!(is_filled(&own) && !own.iter().any(|s| matches!(s, Planned::Chain(_))), "{own:?}");
    assert!(!is_filled(&steps("eq %4, %3")) && !is_filled(&steps("ne %1, %4")));
}

#[test]
fn tiles_side_by_side_are_stored_one_by_one() {
    let x = ("in", "x", &[4, 20][..]);
    let load = "    %0: f32[4,20] = load @x block[0:4, 0:20]\n    %1: f32[4,20] = exp %0\n";
    let count = |steps: &[Planned]| {
        let joins = steps.iter().filter(|s| matches!(s, Planned::CopyBoxes { .. })).count();
        [joins, steps.iter().filter(|s| matches!(s, Planned::Store { .. })).count()]
    };
    // Two of them side by side in another one.
    let nested = "    %2: f32[8,20] = concat axis(0) %0, %1
    %3: f32[8,40] = concat axis(1) %2, %2
    store @out block[0:8, 0:40] %3
";
    let steps = steps_of(&[x, ("out", "out", &[8, 40])], &format!("{load}{nested}"));
    assert_eq!(count(&steps), [1, 2], "what is stored twice is one tile: {steps:?}");
    let nested = "    %2: f32[8,20] = concat axis(0) %0, %1
    %3: f32[4,20] = add %1, %1
    %4: f32[12,20] = concat axis(0) %2, %3
    store @out block[0:12, 0:20] %4
";
    let steps = steps_of(&[x, ("out", "out", &[12, 20])], &format!("{load}{nested}"));
    assert_eq!(count(&steps), [0, 3], "{steps:?}");
    // Short rows are stored together.
    let short = "    %2: f32[4,20] = load @x block[0:4, 0:20]
    %3: f32[4,5] = slice start(0, 0) size(4, 5) stride(1, 1) %2
    %4: f32[4,25] = concat axis(1) %1, %3
    store @out block[0:4, 0:25] %4
";
    let steps = steps_of(&[x, ("out", "out", &[4, 25])], &format!("{load}{short}"));
    assert_eq!(count(&steps), [1, 1], "{steps:?}");
}

/// Those who alone read the rows of a table that a body takes.
fn readers_of_rows(body: &str) -> Option<WindowReaders> {
    let taken = "    %0: i32[5] = load @at block[0:5]
    %1: f32[9,20] = load @table block[0:9, 0:20]
    %2: f32[5,20] = gather offset_dims(1) collapsed_slice_dims(0) operand_batching_dims() start_indices_batching_dims() start_index_map(0) index_vector_dim(1) slice_sizes(1, 20) %1, %0
";
    let operands = [("in", "at", &[5][..]), ("in", "table", &[9, 20]), ("out", "out", &[5, 20])];
    let steps = steps_of(&operands, &format!("{taken}{body}    store @out block[0:5, 0:20] %9\n"));
    let readers = steps.iter().find_map(|s| match s {
        Planned::Gather(gather) => Some(gather.stays_for),
        _ => None,
    });
    readers.expect("rows are taken")
}

#[test]
fn operations_alone_read_rows_where_they_lie() {
    assert_eq!(readers_of_rows("    %9: f32[5,20] = exp %2\n"), Some(WindowReaders::Chains));
    let two = "    %3: f32[5] = reduce op(add) axes(1) keep(false) %2
    %4: f32[5,20] = broadcast to(5, 20) dims(0) %3
    %9: f32[5,20] = sub %2, %4
";
    assert_eq!(readers_of_rows(two), Some(WindowReaders::Chains));
    let sorted = "    %3: f32[5,20] = exp %2
    %4: f32[5,20] = cumulative op(add) axis(0) reverse(false) %2
    %9: f32[5,20] = add %3, %4
";
    assert_eq!(readers_of_rows(sorted), None, "others read them too");
    let turned = "    %3: f32[5,20] = reverse axes(0) %2
    %9: f32[5,20] = exp %3
";
    assert_eq!(readers_of_rows(turned), None, "rows in another order");
}
