//! An eager builder over arrays of `f64`: each structural operation is computed from its access form.
use pallas_ir::emit::{Term, ValueId};
use pallas_ir::structural::{IndexedWindows, LoopNest, RuleOperand, SortOrder, WindowAxis};
use pallas_ir::{AccessForm, DType, Dim, E, Facts, RuleBackend, ScalarOp, StructuralOp};
use std::cell::RefCell;

/// Shape, elements in row-major order, element type.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) shape: Vec<Dim>,
    pub(crate) data: Vec<f64>,
    pub(crate) dtype: DType,
}

/// Every value so far.
#[derive(Default)]
pub(crate) struct Arrays(Vec<Value>);

impl RuleBackend for Arrays {
    fn emit(&mut self, op: Term, args: &[ValueId]) -> ValueId {
        let args: Vec<&Value> = args.iter().map(|a| &self.0[a.0 as usize]).collect();
        let value = match op {
            Term::Like(x) => Value { data: vec![x; args[0].data.len()], ..args[0].clone() },
            Term::Number(x) => Value { shape: vec![], data: vec![x], dtype: args[0].dtype },
            Term::Scalar(op) => elementwise(op, &args),
            Term::Structural(op) => structural(&op, &args),
        };
        self.0.push(value);
        ValueId(self.0.len() as u32 - 1)
    }
}

/// A value that rules can use.
pub(crate) fn put(to: &RefCell<Arrays>, value: Value) -> E<'_> {
    let mut arrays = to.borrow_mut();
    arrays.0.push(value);
    E { to, id: ValueId(arrays.0.len() as u32 - 1) }
}

/// What a value is.
pub(crate) fn get(from: &RefCell<Arrays>, value: E<'_>) -> Value {
    from.borrow().0[value.id.0 as usize].clone()
}

/// An operand of a rule.
pub(crate) fn arg<'a, 'g>(g: &'g RefCell<Arrays>, value: &'a Value) -> RuleOperand<'a, 'g> {
    RuleOperand { value: put(g, value.clone()), shape: &value.shape, dtype: value.dtype }
}

pub(crate) fn number(dim: &Dim) -> usize {
    usize::try_from(dim.as_number().expect("sizes are numbers")).expect("sizes are not negative")
}
fn numbers(shape: &[Dim]) -> Vec<usize> {
    shape.iter().map(number).collect()
}
/// Every coordinate, in row-major order.
fn coordinates(shape: &[usize]) -> Vec<Vec<usize>> {
    let longer = |all: Vec<Vec<usize>>, &n: &usize| -> Vec<Vec<usize>> {
        all.iter().flat_map(|at| (0..n).map(move |i| [&at[..], &[i]].concat())).collect()
    };
    shape.iter().fold(vec![vec![]], longer)
}
fn flat(shape: &[usize], at: &[usize]) -> usize {
    shape.iter().zip(at).fold(0, |sum, (n, i)| sum * n + i)
}

/// Unit axes and scalars stretch.
fn elementwise(op: ScalarOp, args: &[&Value]) -> Value {
    let shape = args.iter().max_by_key(|a| (a.shape.len(), a.data.len())).expect("an operand").shape.clone();
    let sizes = numbers(&shape);
    let element = |a: &Value, at: &[usize]| {
        let own = numbers(&a.shape);
        let at: Vec<usize> = own.iter().zip(at).map(|(&n, &i)| if n == 1 { 0 } else { i }).collect();
        a.data[flat(&own, &at)]
    };
    let stretch = |a: &&Value| -> Vec<f64> { coordinates(&sizes).iter().map(|at| element(a, at)).collect() };
    let args_of: Vec<Vec<f64>> = args.iter().map(stretch).collect();
    let types: Vec<DType> = args.iter().map(|a| a.dtype).collect();
    let dtype = op.infer_dtype(&types).unwrap_or_else(|e| panic!("{op} of {types:?}: {e}"));
    let data = super::apply(op, &args_of.iter().map(|x| &x[..]).collect::<Vec<_>>());
    Value { shape, data, dtype }
}

/// The meaning of each form of access.
pub(crate) fn structural(op: &StructuralOp, args: &[&Value]) -> Value {
    let shapes: Vec<&[Dim]> = args.iter().map(|a| &a.shape[..]).collect();
    let shape = op.infer(&shapes, &Facts::default()).unwrap_or_else(|d| panic!("{op}: {}", d.message));
    let dtype = op.dtype(&args.iter().map(|a| a.dtype).collect::<Vec<_>>()).unwrap_or_else(|d| panic!("{op}: {d}"));
    let (sizes, own): (_, Vec<Vec<usize>>) = (numbers(&shape), args.iter().map(|a| numbers(&a.shape)).collect());
    let at = |i: usize, at: &[usize]| args[i].data[flat(&own[i], at)];
    let one = |op: ScalarOp, a: f64, b: f64| super::apply(op, &[&[a], &[b]])[0];
    // The elements of a line of operand 0 through a coordinate, up to an end.
    let line = |c: &[usize], axis: usize, end: usize| -> Vec<f64> {
        let element = |k| at(0, &[&c[..axis], &[k], &c[axis + 1..]].concat());
        (0..end).map(element).collect()
    };
    // A coordinate of the result with the axes that a fold dropped.
    let restored = |c: &[usize], axes: &[usize]| -> Vec<usize> {
        let mut kept = c.iter().copied();
        let dropped = |a: usize| own[0].len() > c.len() && axes.contains(&a);
        (0..own[0].len()).map(|a| if dropped(a) { 0 } else { kept.next().expect("one per axis kept") }).collect()
    };
    let access = op.access(&shapes);
    let element = |c: &Vec<usize>| -> f64 {
        match &access {
            AccessForm::Map(pieces) => {
                let holds = |axis: usize, lo: &Dim, hi: &Dim| (number(lo)..number(hi)).contains(&c[axis]);
                let piece = pieces.iter().find(|p| p.bounds.iter().all(|(a, lo, hi)| holds(*a, lo, hi)));
                let piece = piece.expect("pieces cover the result");
                let coordinate = |i: &pallas_ir::structural::AffineIndex| {
                    let moved = i.axis.map_or(0, |a| i.stride.as_number().expect("a number") * c[a] as i64);
                    usize::try_from(i.offset.as_number().expect("a number") + moved).expect("inside")
                };
                at(piece.operand, &piece.index.iter().map(coordinate).collect::<Vec<_>>())
            }
            AccessForm::Flat => args[0].data[flat(&sizes, c)],
            AccessForm::Contract { batch, contract } => {
                let inner: Vec<usize> = contract.iter().map(|p| own[0][p.0]).collect();
                let used = |side: usize, axis: usize| batch.iter().chain(contract).any(|p| [p.0, p.1][side] == axis);
                let place = |side: usize, k: &[usize]| -> Vec<usize> {
                    let mut full = vec![0; own[side].len()];
                    batch.iter().enumerate().for_each(|(i, p)| full[[p.0, p.1][side]] = c[i]);
                    contract.iter().zip(k).for_each(|(p, &k)| full[[p.0, p.1][side]] = k);
                    let before = if side == 0 { 0 } else { (0..own[0].len()).filter(|&a| !used(0, a)).count() };
                    let free = (0..own[side].len()).filter(|&a| !used(side, a));
                    free.enumerate().for_each(|(i, a)| full[a] = c[batch.len() + before + i]);
                    full
                };
                coordinates(&inner).iter().map(|k| at(0, &place(0, k)) * at(1, &place(1, k))).sum()
            }
            AccessForm::Fold { op, axes } => {
                let inner: Vec<usize> = axes.iter().map(|&a| own[0][a]).collect();
                let element = |k: &Vec<usize>| {
                    let mut full = restored(c, axes);
                    axes.iter().zip(k).for_each(|(&a, &k)| full[a] = k);
                    at(0, &full)
                };
                coordinates(&inner).iter().map(element).reduce(|a, b| one(*op, a, b)).expect("not empty")
            }
            AccessForm::Nest(nest) => {
                let start = nest.op.neutral(DType::F64).expect("a monoid").as_f64();
                let extents: Vec<usize> = nest.axes.iter().map(|axis| axis.extent as usize).collect();
                let term = |at: Vec<usize>| {
                    let at: Vec<i64> = at.iter().map(|&i| i as i64).collect();
                    let to = LoopNest::flat_index(&nest.result, &at, &sizes)?;
                    let read =
                        |(i, place): (usize, &Vec<_>)| Some(args[i].data[LoopNest::flat_index(place, &at, &own[i])?]);
                    (to == flat(&sizes, c))
                        .then(|| nest.operands.iter().enumerate().map(read).product::<Option<f64>>())?
                };
                coordinates(&extents).into_iter().filter_map(term).fold(start, |a, b| one(nest.op, a, b))
            }
            AccessForm::Scan { op, axis, reverse } => {
                let all = line(c, *axis, own[0][*axis]);
                let part = if *reverse { &all[c[*axis]..] } else { &all[..=c[*axis]] };
                part.iter().copied().reduce(|a, b| one(*op, a, b)).expect("not empty")
            }
            AccessForm::Arg { max, axis } => {
                let all = line(&restored(c, &[*axis]), *axis, own[0][*axis]);
                let better = |a: f64, b: f64| if *max { a > b } else { a < b };
                (1..all.len()).fold(0, |best, i| if better(all[i], all[best]) { i } else { best }) as f64
            }
            AccessForm::Gather { windows, .. } => {
                let starts = starts(windows, &own[1], &args[1].data, c);
                let position = |(a, w): (usize, &WindowAxis)| {
                    let start = w.start.map_or(0, |k| starts[k].clamp(0, (own[0][a] - number(&w.size)) as i64));
                    start as usize + w.axis.map_or(0, |axis| c[axis])
                };
                at(0, &windows.axes.iter().enumerate().map(position).collect::<Vec<_>>())
            }
            AccessForm::Scatter { .. } => unreachable!("made as a whole"),
            AccessForm::Sort { axis, order, positions } => {
                let all = line(c, *axis, own[0][*axis]);
                let mut sorted: Vec<usize> = (0..all.len()).collect();
                sorted.sort_by(|&a, &b| match order {
                    SortOrder::Ascending => all[a].partial_cmp(&all[b]).expect("no NaN"),
                    SortOrder::Descending | SortOrder::Largest => all[b].partial_cmp(&all[a]).expect("no NaN"),
                });
                let k = sorted[c[*axis]];
                if *positions { k as f64 } else { all[k] }
            }
            AccessForm::Iota { axis } => c[*axis] as f64,
            AccessForm::Cast => {
                let x = at(0, c);
                if dtype.is_float() { x } else { x.trunc() }
            }
            AccessForm::Bitcast => f64::from((at(0, c) as f32).to_bits()),
            AccessForm::Powi(n) => at(0, c).powi(*n),
        }
    };
    let data = match &access {
        AccessForm::Scatter { windows, op } => scattered(windows, *op, args, &own),
        _ => coordinates(&sizes).iter().map(element).collect(),
    };
    Value { shape, data, dtype }
}

/// The start vector at a position of the windows' array.
fn starts(windows: &IndexedWindows, index: &[usize], data: &[f64], at: &[usize]) -> Vec<i64> {
    let start = |k: usize| {
        let mut own = windows.index.iter().map(|&axis| at[axis]);
        let position = |axis| if Some(axis) == windows.vector { k } else { own.next().expect("one per axis") };
        data[flat(index, &(0..index.len()).map(position).collect::<Vec<_>>())] as i64
    };
    (0..windows.start_vector_length()).map(start).collect()
}

/// A scatter: position after position, each with all elements of its window.
fn scattered(windows: &IndexedWindows, op: Option<ScalarOp>, args: &[&Value], own: &[Vec<usize>]) -> Vec<f64> {
    let mut out = args[0].data.clone();
    let mut order = coordinates(&own[2]);
    order.sort_by_key(|at| windows.index.iter().map(|&axis| at[axis]).collect::<Vec<_>>());
    for at in order {
        let starts = starts(windows, &own[1], &args[1].data, &at);
        let fits = |(w, &n): (&WindowAxis, &usize)| {
            w.start.is_none_or(|k| (0..=(n - number(&w.size)) as i64).contains(&starts[k]))
        };
        if windows.axes.iter().zip(&own[0]).all(fits) {
            let position =
                |w: &WindowAxis| w.start.map_or(0, |k| starts[k] as usize) + w.axis.map_or(0, |axis| at[axis]);
            let to = flat(&own[0], &windows.axes.iter().map(position).collect::<Vec<_>>());
            let update = args[2].data[flat(&own[2], &at)];
            out[to] = op.map_or(update, |op| super::apply(op, &[&[out[to]], &[update]])[0]);
        }
    }
    out
}
