//! Drops operations that change nothing, and merges operations that only move elements, each equation on its own:
//!
//! ```text
//! transpose (transpose x)      one transpose, or x
//! transpose x                  reshape x, if it moves axes of one element alone
//! transpose (dot a b)          dot b a, if that has the order of axes or the last axis, and nothing else reads the dot
//! dot (transpose a) b          dot a b over other axes, if the order of the result's axes stays the same
//! transpose (cast (dot a b))   cast (transpose (dot a b)), if nothing else reads the cast
//! dot (cast a) (cast b)        dot a b with wider sums, if both are 16-bit floats of one type
//! reshape (reshape x)          one reshape; x, if the shape is the same
//! broadcast (broadcast x)      one broadcast; likewise the reshape of one of a literal
//! cast (broadcast x)           broadcast (cast x), if that has fewer elements to convert
//! x * 1, x / 1, x - 0, cast to its own type      x; x + 0 of integers
//! select c x x                 x
//! select (not c) x y           select c y x, also of a repeated one
//! select c (f (select c x y)) z      select c (f x) z, if nothing else reads the result of an elementwise f
//! ge (cast c) 1                c, and likewise other comparisons of a bool cast to a number; `not c` if it is that
//! sort x, cumsum x, reverse x  x, along an axis of one element; argsort x, argmax x, arg_top_k x 0
//! take_along_axis x (iota)     x, by its own positions
//! sum x, max x                 reshape x, along axes of one element; x, along none
//! stop_gradient x              x: derivatives were made before
//! sharding_constraint x        x, and likewise other annotations: a graph is partitioned before
//! ```
mod select_rules;

use crate::build::{constant_dims, infer};
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{ArgReduce, ArgSort, ArgTopK, Broadcast, Cast, Dot, Iota, Reduce, Reshape, Transpose};
use pallas_ir::{DType, Literal, ScalarOp, StructuralOp};

/// Simplifies each equation of a graph, after those before it, by the rules in the module's comment.
pub(super) fn simplify_equations(mut graph: Graph) -> Graph {
    let uses = graph.read_counts();
    let equations = std::mem::take(&mut graph.equations);
    let made = vec![None; graph.types.len()];
    let mut to = EquationSimplifier { graph, made, uses };
    let mut same: Vec<Var> = (0..to.graph.types.len() as u32).map(Var).collect();
    for mut e in equations {
        e.args.iter_mut().for_each(|a| *a = same[a.index()]);
        match to.simplify_equation(&e) {
            SimplerForm::Existing(v) => same[e.result().index()] = v,
            SimplerForm::Operation(op, args) => to.push(Equation { op, args, ..e }),
            SimplerForm::TwoOperations(first, args, op) => {
                let result = to.add_result_var(&first, &args);
                to.push(Equation { op: first, args, results: vec![result], loc: e.loc });
                to.push(Equation { op, args: vec![result], ..e });
            }
            SimplerForm::NewOperand(mut operands, at, (first, args)) => {
                operands[at] = to.add_result_var(&first, &args);
                to.push(Equation { op: first, args, results: vec![operands[at]], loc: e.loc });
                to.push(Equation { args: operands, ..e });
            }
        }
    }
    to.graph.results.iter_mut().for_each(|r| *r = same[r.index()]);
    to.graph
}

/// The replacement for an equation that a simplification found; the equation itself if no rule applies.
enum SimplerForm {
    /// An existing variable that equals the result.
    Existing(Var),
    /// One operation with these operands; it may be the old one.
    Operation(Op, Vec<Var>),
    /// An operation on these operands, followed by another operation on its result.
    TwoOperations(Op, Vec<Var>, Op),
    /// The old operation with these operands, except that the operand with this number is the result of a new
    /// operation.
    NewOperand(Vec<Var>, usize, (Op, Vec<Var>)),
}

impl SimplerForm {
    fn structural(op: impl Into<StructuralOp>, args: &[Var]) -> SimplerForm {
        SimplerForm::Operation(Op::Structural(op.into()), args.to_vec())
    }
}

/// The graph that is being simplified, with the equations that are done.
struct EquationSimplifier {
    graph: Graph,
    /// By variable, the index of its equation among those that are done.
    made: Vec<Option<usize>>,
    /// By variable, number of times that the old graph reads it.
    uses: Vec<usize>,
}

impl EquationSimplifier {
    fn push(&mut self, e: Equation) {
        e.results.iter().for_each(|r| self.made[r.index()] = Some(self.graph.equations.len()));
        self.graph.equations.push(e);
    }

    /// Adds a variable of the type that an operation on these operands has.
    fn add_result_var(&mut self, op: &Op, args: &[Var]) -> Var {
        let types: Vec<_> = args.iter().map(|&v| self.graph.ty(v)).collect();
        let ty = infer(op, &types).expect("it fits").remove(0);
        self.made.push(None);
        self.uses.push(1);
        self.graph.var(ty)
    }

    fn definition(&self, v: Var) -> Option<&Equation> {
        self.made[v.index()].map(|i| &self.graph.equations[i])
    }

    /// Returns the structural operation that defines a variable, and its operands.
    fn structural_definition(&self, v: Var) -> Option<(&StructuralOp, &[Var])> {
        match self.definition(v)? {
            Equation { op: Op::Structural(op), args, .. } => Some((op, args)),
            _ => None,
        }
    }

    /// If a variable is a literal or a broadcast of one, returns the literal's variable and its value.
    fn splat_literal(&self, v: Var) -> Option<(Var, Literal)> {
        match self.definition(v)? {
            Equation { op: Op::Literal(x), .. } => Some((v, *x)),
            Equation { op: Op::Structural(StructuralOp::Broadcast(_)), args, .. } => match self.definition(args[0])?.op
            {
                Op::Literal(x) => Some((args[0], x)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the simpler form of an equation, or the equation itself if no rule applies.
    fn simplify_equation(&self, e: &Equation) -> SimplerForm {
        let found = match &e.op {
            Op::Identity(op) if !op.is_kept_in_plans() => Some(SimplerForm::Existing(e.args[0])),
            Op::Structural(StructuralOp::Transpose(op)) => self.simplify_transpose(e, op),
            Op::Structural(StructuralOp::Dot(op)) => self.simplify_dot(e, op),
            Op::Structural(StructuralOp::Reshape(_) | StructuralOp::Broadcast(_)) => self.simplify_reshape(e),
            Op::Structural(StructuralOp::Cast(Cast { to })) if self.graph.ty(e.args[0]).dtype == *to => {
                Some(SimplerForm::Existing(e.args[0]))
            }
            Op::Structural(StructuralOp::Cast(_)) => self.simplify_cast(e),
            Op::Structural(StructuralOp::Reduce(op)) => self.simplify_unit_axis_fold(e, op),
            Op::Structural(op) if self.is_unit_axis_identity(op, e) => Some(SimplerForm::Existing(e.args[0])),
            Op::Structural(
                StructuralOp::ArgSort(ArgSort { axis, .. })
                | StructuralOp::ArgTopK(ArgTopK { axis, .. })
                | StructuralOp::ArgReduce(ArgReduce { axis, .. }),
            ) => self.simplify_unit_axis_indices(e, *axis),
            Op::Structural(StructuralOp::TakeAlong(op)) => self.simplify_identity_take(e, op.axis),
            Op::Scalar(ScalarOp::Select) if e.args[1] == e.args[2] => Some(SimplerForm::Existing(e.args[1])),
            Op::Scalar(ScalarOp::Select) => self.simplify_negated_select(e).or_else(|| self.simplify_nested_select(e)),
            Op::Scalar(op) => self.simplify_bool_comparison(*op, e).or_else(|| self.simplify_neutral_operand(*op, e)),
            _ => None,
        };
        // A product over axes (1, 0) alone is that of two matrices: some forms do not exist.
        let exists = |simple: &SimplerForm| match simple {
            SimplerForm::Existing(_) => true,
            SimplerForm::Operation(op, args)
            | SimplerForm::TwoOperations(op, args, _)
            | SimplerForm::NewOperand(_, _, (op, args)) => {
                infer(op, &args.iter().map(|&v| self.graph.ty(v)).collect::<Vec<_>>()).is_ok()
            }
        };
        found.filter(exists).unwrap_or_else(|| SimplerForm::Operation(e.op.clone(), e.args.clone()))
    }

    /// Returns true for a sort, cumulative fold or reversal along axes of one element, whose result is its operand.
    fn is_unit_axis_identity(&self, op: &StructuralOp, e: &Equation) -> bool {
        let is_one = |axis: usize| self.graph.ty(e.args[0]).shape[axis] == 1;
        match op {
            StructuralOp::Sort(op) => is_one(op.axis),
            StructuralOp::Cumulative(op) => is_one(op.axis),
            StructuralOp::Reverse(op) => op.axes.iter().all(|&axis| is_one(axis)),
            _ => false,
        }
    }

    /// Simplifies a fold along axes of one element, or along none, to its operand, reshaped if needed. As in XLA, a sum
    /// of -0.0 alone is -0.0, not 0.
    fn simplify_unit_axis_fold(&self, e: &Equation, op: &Reduce) -> Option<SimplerForm> {
        let (from, to) = (&self.graph.ty(e.args[0]).shape, &self.graph.ty(e.result()).shape);
        op.axes.iter().all(|&axis| from[axis] == 1).then(|| match from == to {
            true => SimplerForm::Existing(e.args[0]),
            false => SimplerForm::structural(Reshape { to: constant_dims(to) }, &e.args),
        })
    }

    /// Simplifies the positions that a sort, top-k or argmax returns along an axis of one element to zeros.
    fn simplify_unit_axis_indices(&self, e: &Equation, axis: usize) -> Option<SimplerForm> {
        let (from, to) = (&self.graph.ty(e.args[0]).shape, &self.graph.ty(e.result()).shape);
        let iota = Iota { shape: constant_dims(from), axis, dtype: DType::I32 };
        let is_one = from[axis] == 1 && from.iter().product::<usize>() == to.iter().product();
        is_one.then(|| match from == to {
            true => SimplerForm::structural(iota, &[]),
            false => {
                let reshape = StructuralOp::from(Reshape { to: constant_dims(to) });
                SimplerForm::TwoOperations(Op::Structural(iota.into()), vec![], Op::Structural(reshape))
            }
        })
    }

    /// Simplifies an array that is indexed by its own positions along an axis to the array.
    fn simplify_identity_take(&self, e: &Equation, axis: usize) -> Option<SimplerForm> {
        let same = self.graph.ty(e.args[0]).shape == self.graph.ty(e.result()).shape;
        let own = matches!(self.structural_definition(e.args[1])?.0, StructuralOp::Iota(Iota { axis: along, .. }) if *along == axis);
        (same && own).then_some(SimplerForm::Existing(e.args[0]))
    }

    /// Simplifies a transpose, alone or together with the transpose, cast or product that it reads.
    fn simplify_transpose(&self, e: &Equation, op: &Transpose) -> Option<SimplerForm> {
        let is_identity = |axes: &[usize]| axes.iter().enumerate().all(|(i, &axis)| i == axis);
        if is_identity(&op.axes) {
            return Some(SimplerForm::Existing(e.args[0]));
        }
        let shape = &self.graph.ty(e.args[0]).shape;
        if op.axes.iter().copied().filter(|&axis| shape[axis] != 1).is_sorted() {
            let to = op.axes.iter().map(|&axis| shape[axis].into()).collect();
            return Some(SimplerForm::structural(Reshape { to }, &[e.args[0]]));
        }
        match self.structural_definition(e.args[0])? {
            (StructuralOp::Transpose(inner), args) => {
                let axes: Vec<usize> = op.axes.iter().map(|&axis| inner.axes[axis]).collect();
                Some(match is_identity(&axes) {
                    true => SimplerForm::Existing(args[0]),
                    false => SimplerForm::structural(Transpose { axes }, args),
                })
            }
            (StructuralOp::Cast(_), args) if self.uses[e.args[0].index()] == 1 => {
                let product = self.definition(args[0])?;
                match self.simplify_transpose(&Equation { args: args.to_vec(), ..e.clone() }, op)? {
                    SimplerForm::Operation(turned, from)
                        if matches!(product.op, Op::Structural(StructuralOp::Dot(_))) =>
                    {
                        Some(SimplerForm::TwoOperations(turned, from, self.definition(e.args[0])?.op.clone()))
                    }
                    _ => None,
                }
            }
            (StructuralOp::Dot(dot), args) if self.uses[e.args[0].index()] == 1 => {
                let [a, b] = [0, 1].map(|side| dot.free_axes(side, self.graph.ty(args[side]).shape.len()).len());
                let n = dot.batch.len();
                let swapped: Vec<usize> = (0..n).chain(n + a..n + a + b).chain(n..n + a).collect();
                if op.axes == swapped {
                    return Some(SimplerForm::structural(dot.swap_operands(), &[args[1], args[0]]));
                }
                // Keep the last axis where it is: adjacent elements can share a kernel with the equations that read
                // them.
                let rest: Vec<usize> = op
                    .axes
                    .iter()
                    .map(|axis| swapped.iter().position(|other| other == axis).expect("a permutation"))
                    .collect();
                let last = op.axes.len() - 1;
                (op.axes[last] != last && rest[last] == last).then(|| {
                    let rest = Op::Structural(Transpose { axes: rest }.into());
                    SimplerForm::TwoOperations(Op::Structural(dot.swap_operands().into()), vec![args[1], args[0]], rest)
                })
            }
            _ => None,
        }
    }

    /// Simplifies a dot of transposed operands to one that contracts other axes of the operands themselves, and a dot
    /// of 16-bit floats that are cast to f32 to one of the 16-bit floats.
    fn simplify_dot(&self, e: &Equation, op: &Dot) -> Option<SimplerForm> {
        let (mut op, mut args, mut is_simpler) = (op.clone(), e.args.clone(), false);
        let narrow = |v: Var| match self.structural_definition(v)? {
            (StructuralOp::Cast(_), from) => Some(from[0]).filter(|&v| self.graph.ty(v).dtype.bytes() == 2),
            _ => None,
        };
        // Products of 16-bit floats are exact in f32.
        if let [Some(a), Some(b)] = [narrow(args[0]), narrow(args[1])] {
            let [ty, other] = [a, b].map(|v| self.graph.ty(v).dtype);
            if ty == other && ty.is_float() && op.acc == DType::F32 && self.graph.ty(args[0]).dtype == DType::F32 {
                (args, is_simpler) = (vec![a, b], true);
            }
        }
        for side in [0, 1] {
            let Some((StructuralOp::Transpose(inner), from)) = self.structural_definition(args[side]) else { continue };
            let free = op.free_axes(side, inner.axes.len());
            if !free.is_sorted_by_key(|&axis| inner.axes[axis]) {
                continue;
            }
            for pair in op.batch.iter_mut().chain(&mut op.contract) {
                let own = if side == 0 { &mut pair.0 } else { &mut pair.1 };
                *own = inner.axes[*own];
            }
            (args[side], is_simpler) = (from[0], true);
        }
        is_simpler.then(|| SimplerForm::structural(op, &args))
    }

    /// Simplifies a cast of a broadcast to a broadcast of the cast, if that converts fewer elements.
    fn simplify_cast(&self, e: &Equation) -> Option<SimplerForm> {
        let x = e.args[0];
        let (op @ StructuralOp::Broadcast(_), of) = self.structural_definition(x)? else { return None };
        let is_smaller = self.graph.ty(of[0]).elements() < self.graph.ty(x).elements();
        let moved = || SimplerForm::TwoOperations(e.op.clone(), of.to_vec(), op.clone().into());
        (is_smaller && self.splat_literal(x).is_none()).then(moved)
    }

    /// Simplifies a reshape or a broadcast, alone or together with the reshape or broadcast that it reads.
    fn simplify_reshape(&self, e: &Equation) -> Option<SimplerForm> {
        let (arg, shape) = (e.args[0], &self.graph.ty(e.result()).shape);
        let is_in_order = !matches!(&e.op, Op::Structural(StructuralOp::Broadcast(op)) if !op.dims.is_sorted());
        if self.graph.ty(arg).shape == *shape && is_in_order {
            return Some(SimplerForm::Existing(arg));
        }
        if let Some((literal, _)) = self.splat_literal(arg) {
            return Some(match shape.is_empty() {
                true => SimplerForm::Existing(literal),
                false => SimplerForm::structural(Broadcast::to(constant_dims(shape)), &[literal]),
            });
        }
        match (&e.op, self.structural_definition(arg)?) {
            (Op::Structural(StructuralOp::Reshape(op)), (StructuralOp::Reshape(_), from)) => {
                Some(match self.graph.ty(from[0]).shape == *shape {
                    true => SimplerForm::Existing(from[0]),
                    false => SimplerForm::structural(Reshape { to: op.to.clone() }, from),
                })
            }
            (Op::Structural(StructuralOp::Broadcast(op)), (StructuralOp::Broadcast(inner), from)) => {
                let rank = self.graph.ty(from[0]).shape.len();
                let dims = inner.dims[..rank].iter().map(|&axis| op.dims[axis]).collect();
                Some(SimplerForm::structural(Broadcast { to: op.to.clone(), dims }, from))
            }
            _ => None,
        }
    }

    /// Simplifies an operation with a neutral operand to its other operand. A float sum with 0 stays, because -0 + 0 is
    /// 0.
    fn simplify_neutral_operand(&self, op: ScalarOp, e: &Equation) -> Option<SimplerForm> {
        let neutral = match op {
            ScalarOp::Mul | ScalarOp::Div => 1.0,
            ScalarOp::Sub => 0.0,
            ScalarOp::Add if !self.graph.ty(e.result()).dtype.is_float() => 0.0,
            _ => return None,
        };
        let is_neutral = |v: Var| self.splat_literal(v).is_some_and(|(_, x)| x == Literal::new(x.dtype, neutral));
        match (op, &e.args[..]) {
            (_, &[x, right]) if is_neutral(right) => Some(SimplerForm::Existing(x)),
            (ScalarOp::Add | ScalarOp::Mul, &[left, x]) if is_neutral(left) => Some(SimplerForm::Existing(x)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pallas_ir::Type;
    use pallas_ir::structural::TakeAlong;

    /// Each comparison with limits around 0 and 1 is simplified to what is right for both values of the bool.
    #[test]
    fn comparisons_of_truths_are_truths() {
        let comparisons = [ScalarOp::Eq, ScalarOp::Ne, ScalarOp::Lt, ScalarOp::Le, ScalarOp::Gt, ScalarOp::Ge];
        let mut known = 0;
        for (op, dtype) in comparisons.iter().flat_map(|op| [(op, DType::I32), (op, DType::F32), (op, DType::U8)]) {
            for limit in [-1.0, 0.0, 0.5, 1.0, 2.0] {
                if dtype != DType::F32 && limit % 1.0 != 0.0 || dtype == DType::U8 && limit < 0.0 {
                    continue;
                }
                let mut graph = Graph::default();
                let c = graph.param(Type::new(DType::Bool, vec![2]));
                let number = graph.push_valid(StructuralOp::from(Cast { to: dtype }), &[c]);
                let limit_value = graph.literal(Literal::new(dtype, limit));
                let limits = graph.push_valid(StructuralOp::from(Broadcast::to(constant_dims(&[2]))), &[limit_value]);
                let result = graph.push_valid(*op, &[number, limits]);
                graph.results = vec![result];
                let simple = simplify_equations(graph.clone());
                let of = |truth: f64| match op {
                    ScalarOp::Eq => truth == limit,
                    ScalarOp::Ne => truth != limit,
                    ScalarOp::Lt => truth < limit,
                    ScalarOp::Le => truth <= limit,
                    ScalarOp::Gt => truth > limit,
                    _ => truth >= limit,
                };
                let made = simple.equations.iter().find(|e| e.results == simple.results);
                let found = match made.map(|e| (&e.op, &e.args[..])) {
                    None => simple.results == [c] && !of(0.0) && of(1.0),
                    Some((Op::Scalar(ScalarOp::Not), args)) => *args == [c] && of(0.0) && !of(1.0),
                    Some((same, _)) => *same == Op::Scalar(*op) && of(0.0) == of(1.0),
                };
                assert!(found, "{op:?} {limit} of {dtype}: {simple}");
                known += usize::from(of(0.0) != of(1.0));
            }
        }
        assert!(known > 20, "{known}");
    }

    /// Computing from a select and selecting by the same condition becomes computing from one operand of the inner
    /// select: on each side, with the negated condition, broadcast or not; other conditions and results that are read
    /// twice stay.
    #[test]
    fn choices_by_one_condition_are_one() {
        let by = |repeats: bool, opposite: bool, side: usize, other: bool, twice: bool| {
            let mut graph = Graph::default();
            let shape: &[usize] = if repeats { &[4] } else { &[4, 3] };
            let [c, d] = [0, 1].map(|_| graph.param(Type::new(DType::Bool, shape.to_vec())));
            let [x, y, z, b] = [0; 4].map(|_| graph.param(Type::new(DType::F32, vec![4, 3])));
            let mut first = if other { d } else { c };
            let mut operands = [x, y];
            if opposite {
                first = graph.push_valid(ScalarOp::Not, &[first]);
                operands = [y, x];
            }
            let wide = |graph: &mut Graph, v: Var| {
                let op = Broadcast { to: constant_dims(&[4, 3]), dims: vec![0] };
                if repeats { graph.push_valid(StructuralOp::from(op), &[v]) } else { v }
            };
            let [first, last] = [wide(&mut graph, first), wide(&mut graph, c)];
            let inner = graph.push_valid(ScalarOp::Select, &[first, operands[0], operands[1]]);
            let made = graph.push_valid(ScalarOp::Mul, &[inner, b]);
            let result = match side {
                1 => graph.push_valid(ScalarOp::Select, &[last, made, z]),
                _ => graph.push_valid(ScalarOp::Select, &[last, z, made]),
            };
            graph.results = if twice { vec![result, made] } else { vec![result] };
            let made = (0..2).fold(graph, |graph, _| {
                crate::dead_code::without_dead_equations(
                    super::super::common_subexpressions::eliminate_common_subexpressions(simplify_equations(graph)),
                )
            });
            let product = made.equations.iter().find(|e| e.op == Op::Scalar(ScalarOp::Mul)).expect("it is there");
            let choices = made.equations.iter().filter(|e| e.op == Op::Scalar(ScalarOp::Select)).count();
            assert!(made.equations.iter().all(|e| e.op != Op::Scalar(ScalarOp::Not)), "{made}");
            (choices, product.args[0] == [x, y][side - 1])
        };
        for (repeats, opposite, side) in
            [false, true].iter().flat_map(|&r| [false, true].map(|o| (r, o))).flat_map(|(r, o)| [(r, o, 1), (r, o, 2)])
        {
            assert_eq!(by(repeats, opposite, side, false, false), (1, true), "{repeats} {opposite} {side}");
            assert_eq!(by(repeats, opposite, side, true, false), (2, false), "{repeats} {opposite} {side}, others");
            assert_eq!(by(repeats, opposite, side, false, true), (2, false), "{repeats} {opposite} {side}, read twice");
        }
    }

    /// Only indexing by all of its own positions along the axis is simplified to the array.
    #[test]
    fn positions_along_another_axis_are_followed() {
        for (axis, along, n, is_kept) in
            [(0, 0, 3, false), (1, 1, 3, false), (0, 1, 3, true), (1, 0, 3, true), (0, 0, 2, true)]
        {
            let mut graph = Graph::default();
            let x = graph.param(Type::new(DType::F32, [3, 3]));
            let mut shape = [3, 3];
            shape[axis] = n;
            let positions = graph.push_valid(
                StructuralOp::from(Iota { shape: constant_dims(&shape), axis: along, dtype: DType::I32 }),
                &[],
            );
            let taken = graph.push_valid(StructuralOp::from(TakeAlong { axis }), &[x, positions]);
            graph.results = vec![taken];
            let same = simplify_equations(graph).results[0];
            assert_eq!(same != x, is_kept, "along {axis} by {n} positions along {along}");
        }
    }
}
