//! Moves of elements (reverse, roll, transpose) go through elementwise operations to their operands, where one cancels
//! an opposite move.
//!
//! ```text
//! y = x + (reverse x)    reverse y           (reverse x) + x
//! y = x - (roll 3 x)     roll -3 y           (roll -3 x) - x
//! y = x + (transpose x)  transpose y         (transpose x) + x, if both axes have one extent
//! y = (transpose x) * b  transpose y         x * (transpose b)
//! ```
//!
//! Such moves come from gradients. Afterwards arrays in memory are moved, and no computed value has to be stored for a
//! move.
use super::rewrite::{GraphRewriter, rewrite_each_equation};
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;
use pallas_ir::structural::{Broadcast, Transpose};
use std::collections::HashMap;

/// Most elementwise operations that are repeated on moved operands to cancel one move, because others read their
/// unmoved results too.
const MAX_REPEATED_OPERATIONS_PER_MOVE: usize = 8;
/// Most elementwise operations that are done on moved operands alone to cancel one move, as nothing else reads their
/// unmoved results.
const MAX_MOVED_OPERATIONS_PER_MOVE: usize = 64;

/// Drops moves of elements (reverse, roll or transpose) by moving the operands of the elementwise operations before
/// them instead, where that undoes opposite moves.
pub(super) fn cancel_opposite_moves(graph: Graph) -> Graph {
    let mut known = HashMap::new();
    let uses = graph.read_counts();
    rewrite_each_equation(graph, |to, e| {
        let op = e.op.clone();
        is_move(e).then_some(())?;
        let mut found = MoveReplacement {
            to,
            op: &op,
            known: &mut known,
            uses: &uses,
            values: HashMap::new(),
            repeated: 0,
            taken: 0,
            added: 0,
            existing: 0,
            undone: 0,
        };
        let value = found.saves_moves(e.args[0]).then(|| found.emit_moved_value(e.args[0]));
        known.insert((op, e.args[0]), value.unwrap_or(e.result()));
        value
    })
}

/// Returns true for a reverse, a roll or a transpose: moves of elements that another move can undo.
fn is_move(e: &Equation) -> bool {
    use StructuralOp::{Reverse, Roll, Transpose};
    matches!(e.op, Op::Structural(Reverse(_) | Roll(_) | Transpose(_)))
}

/// Returns true if move `a` undoes move `b` of an array of this shape.
fn are_opposite(a: &Op, b: &Op, shape: &[usize]) -> bool {
    let (Op::Structural(a), Op::Structural(b)) = (a, b) else { return false };
    match (a, b) {
        (StructuralOp::Reverse(a), StructuralOp::Reverse(b)) => a == b,
        (StructuralOp::Roll(a), StructuralOp::Roll(b)) => {
            // Shifts may be as large as an i64.
            let n = shape[a.axis].max(1) as i64;
            a.axis == b.axis && (a.shift.rem_euclid(n) + b.shift.rem_euclid(n)) % n == 0
        }
        (StructuralOp::Transpose(a), StructuralOp::Transpose(b)) => {
            a.axes.iter().enumerate().all(|(to, &from)| b.axes[from] == to)
        }
        _ => false,
    }
}

/// An attempt to drop a move of elements (reverse, roll or transpose) by moving the values from which the moved value
/// is computed instead, where that undoes other moves.
struct MoveReplacement<'a> {
    /// The graph that the pass writes.
    to: &'a mut GraphRewriter,
    /// The move whose operand's operands could be moved instead.
    op: &'a Op,
    /// By move and variable, the moved variable if it exists already.
    known: &'a mut HashMap<(Op, Var), Var>,
    /// By variable of the old graph, number of equations that read it.
    uses: &'a [usize],
    /// By variable that was visited, its moved form; `None` before that is made.
    values: HashMap<Var, Option<Var>>,
    /// Number of elementwise operations that are repeated, because others read their unmoved results too.
    repeated: usize,
    /// Number of elementwise operations that are done on moved operands instead, as nothing else reads their results.
    taken: usize,
    /// Number of moves that are added.
    added: usize,
    /// Number of values that exist moved already.
    existing: usize,
    /// Number of moves that are undone.
    undone: usize,
}

/// The way in which a variable is computed with its elements already moved, so that the move itself can be dropped.
enum MovedForm {
    /// As the moved form of another variable, which has the same shape.
    SameAs(Var),
    /// As another broadcast of this variable.
    Broadcast(Broadcast, Var),
    /// As this variable, which exists already.
    Existing(Var),
    /// As this variable, of which the variable is the opposite move.
    Undone(Var),
    /// As the result of this elementwise operation, on moved operands.
    Elementwise(Box<Equation>),
    /// By a move of the variable itself, which is added.
    NewMove,
}

impl MoveReplacement<'_> {
    /// Returns true if computing `v` with its elements moved saves moves: it undoes at least one move and adds at most
    /// one, or it uses a value that exists moved already and adds none.
    fn saves_moves(&mut self, v: Var) -> bool {
        let can_be_made = self.try_count_needed_moves(v, true) && self.repeated + self.taken > 0;
        can_be_made && (self.undone > 0 || self.existing > 0 && self.added == 0)
    }

    /// Counts the moves and moved operations by which a variable is computed with its elements moved; returns false if
    /// they are too many. `is_only_use` is true if the equations that read the variable have a single reader in turn.
    fn try_count_needed_moves(&mut self, v: Var, is_only_use: bool) -> bool {
        if self.values.insert(v, None).is_some() {
            return true;
        }
        let taken = is_only_use && self.uses.get(v.index()) == Some(&1);
        match self.moved_form(v) {
            MovedForm::SameAs(other) => return self.try_count_needed_moves(other, taken),
            MovedForm::Broadcast(..) => {}
            MovedForm::Existing(_) => self.existing += 1,
            MovedForm::Undone(_) => self.undone += 1,
            MovedForm::Elementwise(e) => {
                let count = if taken { &mut self.taken } else { &mut self.repeated };
                *count += 1;
                let is_cheap = self.repeated <= MAX_REPEATED_OPERATIONS_PER_MOVE
                    && self.taken <= MAX_MOVED_OPERATIONS_PER_MOVE
                    && (taken || e.op.is_cheap_per_element());
                return is_cheap && e.args.iter().all(|&v| self.try_count_needed_moves(v, taken));
            }
            MovedForm::NewMove => self.added += 1,
        }
        self.added <= 1
    }

    /// Returns the way to compute a variable with its elements moved: an existing value, the operand of an opposite
    /// move, an operation on moved operands, or else a new move.
    fn moved_form(&self, v: Var) -> MovedForm {
        let shape = &self.to.graph.ty(v).shape;
        if let Some(&moved) = self.known.get(&(self.op.clone(), v)) {
            return MovedForm::Existing(moved);
        }
        let Some(e) = self.to.definition(v) else { return MovedForm::NewMove };
        let is_elementwise = || e.args.iter().all(|&arg| self.to.graph.ty(arg).shape == *shape);
        match &e.op {
            op if are_opposite(op, self.op, shape) => MovedForm::Undone(e.args[0]),
            Op::Structural(StructuralOp::Reshape(_)) if is_elementwise() => MovedForm::SameAs(e.args[0]),
            Op::Structural(StructuralOp::Broadcast(op)) => {
                let is_scalar = self.to.graph.ty(e.args[0]).shape.is_empty();
                self.moved_broadcast(op, is_scalar).map_or(MovedForm::NewMove, |op| MovedForm::Broadcast(op, e.args[0]))
            }
            Op::Scalar(_) | Op::Structural(StructuralOp::Cast(_)) if is_elementwise() => {
                MovedForm::Elementwise(Box::new(e.clone()))
            }
            _ => MovedForm::NewMove,
        }
    }

    /// Returns the broadcast whose result is the moved result of the broadcast `op`; `None` if no broadcast has it.
    /// `is_scalar` is true if the operand of `op` is a scalar.
    fn moved_broadcast(&self, op: &Broadcast, is_scalar: bool) -> Option<Broadcast> {
        match self.op {
            Op::Structural(StructuralOp::Transpose(Transpose { axes })) => {
                let to = axes.iter().map(|&axis| op.to[axis].clone()).collect::<Vec<_>>();
                let moved = |from: &usize| axes.iter().position(|axis| axis == from).expect("a permutation");
                let axes = op.dims.iter().map(moved).collect();
                Some(if is_scalar { Broadcast::to(to) } else { Broadcast { to, dims: axes } })
            }
            _ => is_scalar.then(|| op.clone()),
        }
    }

    /// Appends the equations for the moved form of a variable; returns it.
    fn emit_moved_value(&mut self, v: Var) -> Var {
        if let Some(&Some(moved)) = self.values.get(&v) {
            return moved;
        }
        let moved = match self.moved_form(v) {
            MovedForm::SameAs(other) => self.emit_moved_value(other),
            MovedForm::Broadcast(op, from) => self.to.append(StructuralOp::from(op), &[from]),
            MovedForm::Existing(moved) | MovedForm::Undone(moved) => moved,
            MovedForm::Elementwise(e) => {
                let args: Vec<Var> = e.args.iter().map(|&v| self.emit_moved_value(v)).collect();
                self.to.append(e.op, &args)
            }
            MovedForm::NewMove => {
                let moved = self.to.append(self.op.clone(), &[v]);
                self.known.insert((self.op.clone(), v), moved);
                moved
            }
        };
        self.values.insert(v, Some(moved));
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_code::without_dead_equations;
    use crate::simplify::{cancel::simplify_equations, common_subexpressions::eliminate_common_subexpressions};
    use pallas_ir::structural::{Reverse, Roll, Transpose};
    use pallas_ir::{DType, ScalarOp, Type};

    fn count(graph: &Graph, mut f: impl FnMut(&Equation) -> bool) -> usize {
        graph.equations.iter().filter(|e| f(e)).count()
    }

    /// Returns the graph of `y + second(y)` with `y = x - first(x)`, for two moves.
    fn twice(shape: &[usize], first: StructuralOp, second: StructuralOp) -> Graph {
        let mut graph = Graph::default();
        let x = graph.param(Type::new(DType::F32, shape.to_vec()));
        let moved = graph.push(first, &[x]).expect("it fits");
        let y = graph.push(ScalarOp::Sub, &[x, moved]).expect("one shape");
        let back = graph.push(second, &[y]).expect("it fits");
        graph.results = vec![graph.push(ScalarOp::Add, &[y, back]).expect("one shape")];
        graph
    }

    #[test]
    fn only_operands_are_moved_where_one_move_undoes_another() {
        let reverse = |axes: &[usize]| StructuralOp::from(Reverse { axes: axes.to_vec() });
        let roll = |shift, axis| StructuralOp::from(Roll { shift, axis });
        let transpose = |axes: &[usize]| StructuralOp::from(Transpose { axes: axes.to_vec() });
        // Moves, moves of computed values.
        for (shape, first, second, moves, of_computed) in [
            (&[3, 7][..], reverse(&[1]), reverse(&[1]), 1, 0),
            (&[3, 7], reverse(&[1]), reverse(&[0]), 2, 1),
            (&[3, 7], roll(3, 1), roll(-3, 1), 2, 0),
            (&[3, 7], roll(3, 1), roll(4, 1), 2, 0),
            (&[3, 7], roll(3, 1), roll(3, 1), 2, 1),
            (&[3, 7], roll(3, 1), roll(2, 1), 2, 1),
            (&[3, 7], roll(i64::MAX, 1), roll(-(i64::MAX % 7), 1), 2, 0),
            (&[3, 3], roll(i64::MAX, 1), roll(i64::MAX - 1, 1), 2, 1),
            (&[7, 7], roll(3, 1), roll(-3, 0), 2, 1),
            (&[5, 5], transpose(&[1, 0]), transpose(&[1, 0]), 1, 0),
            (&[5, 5, 5], transpose(&[1, 2, 0]), transpose(&[2, 0, 1]), 2, 0),
        ] {
            let graph = twice(shape, first, second);
            let found = without_dead_equations(eliminate_common_subexpressions(simplify_equations(
                cancel_opposite_moves(graph.clone()),
            )));
            assert_eq!(crate::verify(&found), Ok(()));
            let is_param = |v: Var| found.params.contains(&v);
            let is_move = |e: &Equation| matches!(e.op, Op::Structural(_));
            assert_eq!(count(&found, is_move), moves, "{}", graph);
            assert_eq!(count(&found, |e| is_move(e) && !is_param(e.args[0])), of_computed, "{}", graph);
        }
    }

    /// Operations that only a move reads are all done on its operands instead, in `move back f(move x, y)`.
    #[test]
    fn elementwise_operations_go_on_as_their_operands_lie() {
        let transpose = |axes: &[usize]| StructuralOp::from(Transpose { axes: axes.to_vec() });
        // Operations that only the move reads, the second operand, moves, moves of computed values.
        for (is_taken, broadcast, moves, of_computed) in [
            (true, Some((vec![], vec![])), 0, 0),
            (true, Some((vec![2], vec![7])), 0, 0),
            (true, Some((vec![2, 0], vec![7, 4])), 0, 0),
            (true, None, 1, 0),
            (false, None, 2, 1),
        ] {
            let mut graph = Graph::default();
            let x = graph.param(Type::new(DType::F32, vec![3, 7, 4]));
            let moved = graph.push(transpose(&[2, 0, 1]), &[x]).expect("it fits");
            let y = match broadcast {
                Some((axes, shape)) => {
                    let row = graph.param(Type::new(DType::F32, shape));
                    let to = [4, 3, 7].map(|n: i64| n.into()).to_vec();
                    let all = if axes.is_empty() { Broadcast::to(to) } else { Broadcast { to, dims: axes } };
                    graph.push(StructuralOp::from(all), &[row]).expect("it fits")
                }
                None => graph.param(Type::new(DType::F32, vec![4, 3, 7])),
            };
            let sum = graph.push(ScalarOp::Add, &[moved, y]).expect("one shape");
            let value = graph.push(ScalarOp::Tanh, &[sum]).expect("it is a float");
            let back = graph.push(transpose(&[1, 2, 0]), &[value]).expect("it fits");
            graph.results = if is_taken { vec![back] } else { vec![back, value] };
            let found = without_dead_equations(eliminate_common_subexpressions(simplify_equations(
                cancel_opposite_moves(graph.clone()),
            )));
            assert_eq!(crate::verify(&found), Ok(()));
            let is_move = |e: &Equation| matches!(e.op, Op::Structural(StructuralOp::Transpose(_)));
            assert_eq!(count(&found, is_move), moves, "{graph}{found}");
            let is_param = |v: Var| found.params.contains(&v);
            assert_eq!(count(&found, |e| is_move(e) && !is_param(e.args[0])), of_computed, "{graph}{found}");
        }
    }
}
