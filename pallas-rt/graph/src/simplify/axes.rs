//! Adjacent axes that no operation treats differently become one axis, and axes of one element are dropped.
//!
//! ```text
//! exp x: f32[3010, 22, 3] - max over axis 0        the same of x: f32[3010, 66]
//! tanh x: f32[50, 1, 7] + broadcast y: f32[7]       the same of x: f32[50, 7]
//! ```
//!
//! Rows are as long as possible then, and folded elements are adjacent, whatever shape the arrays have.
//!
//! An axis joins the one before it, or is dropped if it has one element, unless an operation needs it: an operation
//! that broadcasts, folds or reverses one of the two axes needs them separate, and so does every operation that is not
//! elementwise, one of these, or a reshape. Axes that the operands of an operation share with its result join in all of
//! them or in none. Parameters and results are reshaped.
use super::rewrite::GraphRewriter;
use crate::build::constant_dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;
use pallas_ir::structural::{Broadcast, Reduce, Reverse};

/// Joins adjacent axes of a graph's values to one axis, and drops axes of one element, where no operation needs them
/// separate.
pub(super) fn join_adjacent_axes(graph: Graph) -> Graph {
    let mut joins = AxisClasses::new(&graph);
    graph.equations.iter().for_each(|e| joins.record_equation_constraints(e));
    joins.propagate_forbidden_joins();
    let mut pass = AxisJoiner {
        joined: vec![None; graph.types.len()],
        to: GraphRewriter::take_equations(graph.with_equations(vec![])).1,
        joins,
    };
    for e in &graph.equations {
        pass.to.graph.at = e.loc;
        if pass.rewrite_equation(e).is_none() {
            pass.to.push(e.clone());
        }
    }
    pass.to.graph
}

/// Decides for each axis of each variable if it joins the axis before it. Axes for which the decision has to be the
/// same form a class (union-find).
struct AxisClasses<'g> {
    graph: &'g Graph,
    /// By variable, the index of its first axis among the axes of all variables.
    first: Vec<usize>,
    /// By axis, another one of its class; the axis itself if it represents the class.
    class: Vec<usize>,
    /// By axis that represents a class, true if the axes of the class may not join others.
    stays: Vec<bool>,
}

impl<'g> AxisClasses<'g> {
    /// Puts each axis of a graph's variables into a class of its own.
    fn new(graph: &'g Graph) -> Self {
        let mut all = 0;
        let mut first = |rank| {
            all += rank;
            all - rank
        };
        let first = graph.types.iter().map(|ty| first(ty.shape.len())).collect();
        AxisClasses { graph, first, class: (0..all).collect(), stays: vec![false; all] }
    }

    fn shape(&self, v: Var) -> &'g [usize] {
        &self.graph.types[v.index()].shape
    }

    /// Returns the number of the axis that represents the class of an axis (union-find).
    fn find_class(&mut self, (v, axis): (Var, usize)) -> usize {
        let mut at = self.first[v.index()] + axis;
        while self.class[at] != at {
            self.class[at] = self.class[self.class[at]];
            at = self.class[at];
        }
        at
    }

    /// Records that an axis may not join the one before it.
    fn forbid_join_with_previous(&mut self, v: Var, axis: usize) {
        let class = self.find_class((v, axis));
        self.stays[class] = true;
    }

    /// Records that no axis of a variable may join another one.
    fn forbid_all_joins(&mut self, v: Var) {
        (0..self.shape(v).len()).for_each(|axis| self.forbid_join_with_previous(v, axis));
    }

    /// Merges the classes of two axes, which then join the axes before them both or not at all.
    fn unite_classes(&mut self, a: (Var, usize), b: (Var, usize)) {
        let [a, b] = [self.find_class(a), self.find_class(b)];
        self.class[a] = b;
        self.stays[b] |= self.stays[a];
    }

    /// Returns the nearest axis before this one that has more than one element.
    fn previous_nonunit_axis(&self, v: Var, axis: usize) -> Option<usize> {
        (0..axis).rev().find(|&axis| self.shape(v)[axis] != 1)
    }

    /// Records for an equation which axes have to stay separate, and which axes of its operands and its result may only
    /// join alike.
    fn record_equation_constraints(&mut self, e: &Equation) {
        match &e.op {
            Op::Literal(_) | Op::Structural(StructuralOp::Reshape(_)) => {}
            op if is_elementwise(op) => {
                let of = self.shape(e.result());
                for &arg in e.args.iter().filter(|&&arg| self.graph.ty(arg).shape == of) {
                    (0..of.len()).for_each(|axis| self.unite_classes((arg, axis), (e.result(), axis)));
                }
            }
            Op::Structural(StructuralOp::Broadcast(op)) if op.dims.is_sorted() => {
                // By axis of the result, the operand's axis that it is; `None` where elements are repeated.
                let [from, to] = [e.args[0], e.result()].map(|v| self.shape(v));
                let mut source = vec![None; to.len()];
                for (axis, &n) in from.iter().enumerate() {
                    source[op.dims[axis]] = (n == to[op.dims[axis]]).then_some(axis);
                }
                self.unite_matching_axes(e.args[0], e.result(), &source);
                self.forbid_joins_between_kinds(e.result(), |axis| source[axis].is_some());
            }
            Op::Structural(StructuralOp::Reduce(op)) => {
                let from = self.shape(e.args[0]);
                let kept: Vec<usize> = (0..from.len()).filter(|axis| !op.axes.contains(axis)).collect();
                let source: Vec<Option<usize>> = match op.keep {
                    true => (0..from.len()).map(|axis| kept.contains(&axis).then_some(axis)).collect(),
                    false => kept.iter().copied().map(Some).collect(),
                };
                self.unite_matching_axes(e.args[0], e.result(), &source);
                self.forbid_joins_between_kinds(e.args[0], |axis| op.axes.contains(&axis));
            }
            Op::Structural(StructuralOp::Reverse(op)) => {
                let of = self.shape(e.result());
                (0..of.len()).for_each(|axis| self.unite_classes((e.args[0], axis), (e.result(), axis)));
                self.forbid_joins_between_kinds(e.result(), |axis| op.axes.contains(&axis));
            }
            _ => e.args.iter().chain(&e.results).for_each(|&v| self.forbid_all_joins(v)),
        }
    }

    /// Forbids the join of two adjacent axes of `v` if `kind` returns true for one of them and false for the other.
    fn forbid_joins_between_kinds(&mut self, v: Var, kind: impl Fn(usize) -> bool) {
        let shape = self.shape(v);
        for axis in (0..shape.len()).filter(|&axis| shape[axis] != 1) {
            if self.previous_nonunit_axis(v, axis).is_some_and(|before| kind(axis) != kind(before)) {
                self.forbid_join_with_previous(v, axis);
            }
        }
    }

    /// Unites the classes of axes of the operand `from` and of the result `to` that correspond: `operand_axes` has by
    /// axis of `to` the axis of `from` that it is, or `None`. Axes that are adjacent in only one of both may not join.
    fn unite_matching_axes(&mut self, from: Var, to: Var, operand_axes: &[Option<usize>]) {
        for (axis, own) in operand_axes.iter().enumerate() {
            let Some(own) = *own else { continue };
            let [front, own_front] = [self.previous_nonunit_axis(to, axis), self.previous_nonunit_axis(from, own)];
            if self.shape(to)[axis] == 1 || front.and_then(|axis| operand_axes[axis]) == own_front {
                self.unite_classes((from, own), (to, axis));
            } else {
                self.forbid_join_with_previous(from, own);
                self.forbid_join_with_previous(to, axis);
            }
        }
    }

    /// Forbids an axis to join the nearest axis before it with more than one element if an axis of one element between
    /// the two may not be dropped; repeats this until nothing changes.
    fn propagate_forbidden_joins(&mut self) {
        loop {
            let mut is_settled = true;
            for v in (0..self.graph.types.len() as u32).map(Var) {
                let shape = self.shape(v);
                for axis in (0..shape.len()).filter(|&axis| shape[axis] != 1) {
                    let Some(before) = self.previous_nonunit_axis(v, axis) else { continue };
                    let is_apart = (before + 1..axis).any(|one| self.is_join_with_previous_forbidden(v, one));
                    if is_apart && !self.is_join_with_previous_forbidden(v, axis) {
                        self.forbid_join_with_previous(v, axis);
                        is_settled = false;
                    }
                }
            }
            if is_settled {
                return;
            }
        }
    }

    /// Returns true if an axis may not join the one before it.
    fn is_join_with_previous_forbidden(&mut self, v: Var, axis: usize) -> bool {
        let class = self.find_class((v, axis));
        self.stays[class]
    }

    /// Returns the axes of a variable after joining, each as a list of its original axes.
    fn joined_axis_groups(&mut self, v: Var) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = vec![];
        for (axis, &n) in self.shape(v).iter().enumerate() {
            let stays = self.is_join_with_previous_forbidden(v, axis);
            match groups.last_mut() {
                _ if n == 1 && !stays => {}
                // An axis of one element that stays is not joined by others.
                Some(last) if !stays && self.shape(v)[last[0]] != 1 => last.push(axis),
                _ => groups.push(vec![axis]),
            }
        }
        groups
    }
}

fn is_elementwise(op: &Op) -> bool {
    use StructuralOp::{Bitcast, Cast, Powi};
    matches!(op, Op::Scalar(_) | Op::Identity(_) | Op::Structural(Cast(_) | Powi(_) | Bitcast(_)))
}

/// The pass that writes the graph with joined axes.
struct AxisJoiner<'g> {
    to: GraphRewriter,
    joins: AxisClasses<'g>,
    /// By variable, its form with joined axes if it was needed so far.
    joined: Vec<Option<Var>>,
}

impl AxisJoiner<'_> {
    /// Returns the shape of a variable after joins: for each group of axes that become one, the product of their
    /// extents.
    fn joined_shape(&mut self, v: Var) -> Vec<usize> {
        let shape = self.joins.shape(v);
        self.joins.joined_axis_groups(v).iter().map(|group| group.iter().map(|&axis| shape[axis]).product()).collect()
    }

    /// Returns variable `v` reshaped such that axes that may join are one; `v` itself if none may.
    fn joined_value(&mut self, v: Var) -> Var {
        let shape = self.joined_shape(v);
        if shape == self.joins.shape(v) {
            return v;
        }
        if let Some(joined) = self.joined[v.index()] {
            return joined;
        }
        let joined = self.to.reshape_if_needed(v, &shape);
        self.joined[v.index()] = Some(joined);
        joined
    }

    /// Appends an equation with joined axes in place of `e`; returns `None` and appends nothing if no axis of it joins
    /// another.
    fn rewrite_equation(&mut self, e: &Equation) -> Option<()> {
        let &[result] = &e.results[..] else { return None };
        let changes = |pass: &mut Self, v: Var| pass.joined_shape(v) != pass.joins.shape(v);
        let is_reshape = matches!(e.op, Op::Structural(StructuralOp::Reshape(_)));
        if !changes(self, result) && (is_reshape || !e.args.iter().any(|&v| changes(self, v))) {
            if is_reshape && self.joined_shape(e.args[0]) == self.joins.shape(result) {
                self.joined[e.args[0].index()].get_or_insert(result);
            }
            return None;
        }
        let to = self.joined_shape(result);
        let made = match &e.op {
            op if is_elementwise(op) => {
                let args: Vec<Var> = e.args.iter().map(|&v| self.joined_value(v)).collect();
                self.to.append(e.op.clone(), &args)
            }
            _ if is_reshape => {
                let x = self.joined_value(e.args[0]);
                self.to.reshape_if_needed(x, &to)
            }
            Op::Structural(StructuralOp::Broadcast(op)) => {
                let of = self.joins.shape(e.args[0]);
                let (groups, mut own) =
                    (self.joins.joined_axis_groups(result), self.joins.joined_axis_groups(e.args[0]));
                // Axes of one element are dropped before the broadcast, which repeats them along other axes.
                own.retain(|group| of[group[0]] != 1);
                let shape: Vec<usize> = own.iter().map(|group| group.iter().map(|&axis| of[axis]).product()).collect();
                let place = |group: &Vec<usize>| groups.iter().position(|of| of.contains(&op.dims[group[0]]));
                let places = own.iter().map(place).collect::<Option<Vec<usize>>>();
                let x = self.joined_value(e.args[0]);
                let x = self.to.reshape_if_needed(x, &shape);
                self.to.append(
                    StructuralOp::from(Broadcast { to: constant_dims(&to), dims: places.expect("it is there") }),
                    &[x],
                )
            }
            Op::Structural(StructuralOp::Reduce(op)) => {
                let own = self.joins.joined_axis_groups(e.args[0]);
                let axes = (0..own.len()).filter(|&k| op.axes.contains(&own[k][0])).collect();
                let x = self.joined_value(e.args[0]);
                let folded = self.to.append(StructuralOp::from(Reduce { axes, keep: false, ..op.clone() }), &[x]);
                self.to.reshape_if_needed(folded, &to)
            }
            Op::Structural(StructuralOp::Reverse(op)) => {
                let own = self.joins.joined_axis_groups(result);
                let axes = (0..own.len()).filter(|&k| op.axes.contains(&own[k][0])).collect();
                let x = self.joined_value(e.args[0]);
                self.to.append(StructuralOp::from(Reverse { axes }), &[x])
            }
            _ => return None,
        };
        self.joined[result.index()] = Some(made);
        self.to.define_as_reshape(e, made);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_code::without_dead_equations;
    use crate::simplify::cancel::simplify_equations;
    use pallas_ir::structural::{Reshape, Transpose};
    use pallas_ir::{DType, ScalarOp, Type};

    fn add(graph: &mut Graph, op: impl Into<Op>, args: &[Var]) -> Var {
        graph.push(op, args).expect("it fits")
    }
    fn fold(axes: &[usize], keep: bool) -> StructuralOp {
        Reduce { op: ScalarOp::Add, axes: axes.to_vec(), keep }.into()
    }
    fn stretch(to: &[usize], axes: &[usize]) -> StructuralOp {
        Broadcast { to: constant_dims(to), dims: axes.to_vec() }.into()
    }

    /// Returns the shapes of the values that are computed in the simplified graph of one array, except reshapes.
    fn shapes(shape: &[usize], write: impl Fn(&mut Graph, Var) -> Var) -> Vec<Vec<usize>> {
        let mut graph = Graph::default();
        let x = graph.param(Type::new(DType::F32, shape.to_vec()));
        graph.results = vec![write(&mut graph, x)];
        let found = without_dead_equations(simplify_equations(join_adjacent_axes(graph.clone())));
        assert_eq!(crate::verify(&found), Ok(()));
        assert_eq!(found.ty(found.results[0]), graph.ty(graph.results[0]));
        let computed = found.equations.iter().filter(|e| !matches!(e.op, Op::Structural(StructuralOp::Reshape(_))));
        computed.map(|e| found.ty(e.result()).shape.clone()).collect()
    }

    #[test]
    fn axes_that_nothing_tells_apart_are_one() {
        let centred = |axes: &'static [usize], keep: bool| {
            move |graph: &mut Graph, x: Var| {
                let shape = graph.ty(x).shape.clone();
                let sum = add(graph, fold(axes, keep), &[x]);
                let places: Vec<usize> = (0..shape.len()).filter(|axis| keep || !axes.contains(axis)).collect();
                let sum = add(graph, stretch(&shape, &places), &[sum]);
                add(graph, ScalarOp::Sub, &[x, sum])
            }
        };
        for keep in [false, true] {
            // The fold, its repetition, and what they are for.
            assert_eq!(shapes(&[9, 4, 5], centred(&[0], keep)), [vec![20], vec![9, 20], vec![9, 20]]);
            assert_eq!(shapes(&[9, 4, 5], centred(&[2], keep)), [vec![36], vec![36, 5], vec![36, 5]]);
            assert_eq!(shapes(&[9, 1, 4, 5], centred(&[0, 2], keep)), [vec![5], vec![36, 5], vec![36, 5]]);
            assert_eq!(shapes(&[9, 4, 5], centred(&[1], keep)), [vec![9, 5], vec![9, 4, 5], vec![9, 4, 5]]);
            assert_eq!(shapes(&[9, 4, 5], centred(&[0, 1, 2], keep)), [vec![], vec![180], vec![180]]);
            assert_eq!(shapes(&[9, 0, 5], centred(&[0], keep)), [vec![0], vec![9, 0], vec![9, 0]]);
            assert_eq!(shapes(&[1, 1], centred(&[0], keep)), vec![vec![]] as Vec<Vec<usize>>);
        }
    }

    #[test]
    fn axes_that_are_told_apart_stay() {
        let turned = |graph: &mut Graph, x: Var| {
            let x = add(graph, ScalarOp::Exp, &[x]);
            add(graph, StructuralOp::from(Transpose { axes: vec![1, 0, 2] }), &[x])
        };
        assert_eq!(shapes(&[9, 4, 5], turned), [vec![9, 4, 5], vec![4, 9, 5]]);
        // A repetition in between, and one that has another order of axes.
        let between = |graph: &mut Graph, x: Var| {
            let x = add(graph, ScalarOp::Exp, &[x]);
            let x = add(graph, stretch(&[9, 3, 4], &[0, 2]), &[x]);
            add(graph, ScalarOp::Tanh, &[x])
        };
        assert_eq!(shapes(&[9, 4], between), [vec![9, 4], vec![9, 3, 4], vec![9, 3, 4]]);
        // What is folded apart from what stays, and one after the other.
        let twice = |graph: &mut Graph, x: Var| {
            let x = add(graph, fold(&[1], false), &[x]);
            add(graph, ScalarOp::Exp, &[x])
        };
        assert_eq!(shapes(&[9, 4, 5, 6], twice), vec![vec![9, 30]; 2]);
        // Of what is reversed both axes or none.
        let reversed = |axes: &'static [usize]| {
            move |graph: &mut Graph, x: Var| {
                let x = add(graph, ScalarOp::Exp, &[x]);
                add(graph, StructuralOp::from(Reverse { axes: axes.to_vec() }), &[x])
            }
        };
        assert_eq!(shapes(&[9, 4, 5], reversed(&[0, 1])), vec![vec![36, 5]; 2]);
        assert_eq!(shapes(&[9, 4, 1], reversed(&[1, 2])), vec![vec![9, 4]; 2]);
        // After a reshape that splits an axis, a fold tells other axes apart.
        let divided = |graph: &mut Graph, x: Var| {
            let x = add(graph, ScalarOp::Exp, &[x]);
            let x = add(graph, StructuralOp::from(Reshape { to: constant_dims(&[9, 2, 2, 5]) }), &[x]);
            add(graph, fold(&[1], false), &[x])
        };
        assert_eq!(shapes(&[9, 4, 5], divided), [vec![180], vec![9, 10]]);
    }
}
