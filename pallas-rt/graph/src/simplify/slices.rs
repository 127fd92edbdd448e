//! Computes only the elements of arrays that slices take.
//!
//! ```text
//! slice (f (pad x))           f x, if the slice is what was padded
//! slice (f (concat a b))      f a, if the slice is that operand
//! ```
//! Here `f` stands for elementwise operations whose other operands are broadcast along the axes that are sliced.
//! Gradients through `pad` and `concatenate` end in such slices.
use super::rewrite::GraphRewriter;
use crate::build::constant_dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;
use pallas_ir::structural::{Broadcast, Reshape};

/// Replaces each slice whose elements can be computed without a larger array by the same computation on slices of its
/// operands.
pub(super) fn push_slices_to_operands(graph: Graph) -> Graph {
    let is_slice = |e: &Equation| matches!(&e.op, Op::Structural(StructuralOp::Slice(_)));
    if !graph.equations.iter().any(is_slice) {
        return graph;
    }
    let is_sliced = only_sliced_vars(&graph);
    let (equations, to) = GraphRewriter::take_equations(graph);
    let mut pass = SliceRewriter { to, is_sliced };
    for e in equations {
        pass.to.graph.at = e.loc;
        match pass.find_slice_form(&e) {
            Some(made) => pass.define_as_slice(made, &e),
            None => pass.to.push(e),
        }
    }
    pass.to.graph
}

/// Returns by variable true if the graph only reads slices of it, or of values that elementwise operations compute from
/// it.
fn only_sliced_vars(graph: &Graph) -> Vec<bool> {
    let mut found = vec![true; graph.types.len()];
    graph.results.iter().for_each(|r| found[r.index()] = false);
    for e in graph.equations.iter().rev() {
        let reads_slices = match &e.op {
            Op::Structural(StructuralOp::Slice(_)) => true,
            op => is_elementwise(op) && found[e.result().index()],
        };
        if !reads_slices {
            e.args.iter().for_each(|a| found[a.index()] = false);
        }
    }
    found
}

fn is_elementwise(op: &Op) -> bool {
    matches!(op, Op::Scalar(_) | Op::Structural(StructuralOp::Cast(_) | StructuralOp::Powi(_)))
}

/// A slice with stride 1: the first element and the number of elements along each axis.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct UnitStrideSlice {
    start: Vec<usize>,
    size: Vec<usize>,
}

/// An expression that gives a slice of a value without computing the whole value.
enum SliceForm {
    /// The slice is this variable.
    SameAs(Var),
    /// The slice is a smaller broadcast of this variable.
    Rebroadcast(Var, Broadcast),
    /// The slice is the result of an elementwise operation on slices.
    Elementwise(Op, Vec<SliceForm>),
}

/// The pass that replaces slices by computations on slices of operands, with the graph that it writes.
struct SliceRewriter {
    to: GraphRewriter,
    /// By variable of the old graph, the result of [`only_sliced_vars`].
    is_sliced: Vec<bool>,
}

/// Most operations by which a slice is computed: graphs can be very deep.
const MAX_OPERATIONS_PER_SLICE: usize = 64;

impl SliceRewriter {
    /// Returns the way in which a slice of adjacent elements can be computed without a larger array; `None` if there is
    /// none, or for other equations.
    fn find_slice_form(&self, e: &Equation) -> Option<SliceForm> {
        let Op::Structural(StructuralOp::Slice(op)) = &e.op else { return None };
        if op.stride.iter().any(|&n| n != 1) {
            return None;
        }
        let start = op.start.iter().map(|&n| usize::try_from(n).ok()).collect::<Option<_>>()?;
        let part = UnitStrideSlice { start, size: self.to.graph.ty(e.result()).shape.clone() };
        self.find_value_slice_form(e.args[0], &part, &mut { MAX_OPERATIONS_PER_SLICE })
    }

    /// Returns the way in which a slice of a value can be computed with at most `operations_left` operations; `None` if
    /// there is none.
    fn find_value_slice_form(&self, v: Var, part: &UnitStrideSlice, operations_left: &mut usize) -> Option<SliceForm> {
        *operations_left = operations_left.checked_sub(1)?;
        let shape = &self.to.graph.ty(v).shape;
        if *shape == part.size {
            return Some(SliceForm::SameAs(v));
        }
        let Equation { op, args, .. } = self.to.definition(v)?;
        match op {
            op if is_elementwise(op) && self.is_sliced.get(v.index()) != Some(&false) => {
                let is_same = |&a: &Var| self.to.graph.ty(a).shape == *shape;
                let parts =
                    args.iter().map(|a| self.find_value_slice_form(*a, part, operations_left).filter(|_| is_same(a)));
                Some(SliceForm::Elementwise(op.clone(), parts.collect::<Option<_>>()?))
            }
            Op::Structural(StructuralOp::Broadcast(op)) => {
                let rank = self.to.graph.ty(args[0]).shape.len();
                let is_whole = op.dims[..rank].iter().all(|&axis| shape[axis] == part.size[axis]);
                let op = Broadcast { to: constant_dims(&part.size), dims: op.dims.clone() };
                is_whole.then_some(SliceForm::Rebroadcast(args[0], op))
            }
            Op::Structural(StructuralOp::Pad(pad)) => {
                let low = pad.low.iter().map(|n| usize::try_from(n.as_number()?).ok()).collect::<Option<Vec<_>>>()?;
                let is_padded = low == part.start && self.to.graph.ty(args[0]).shape == part.size;
                is_padded.then_some(SliceForm::SameAs(args[0]))
            }
            Op::Structural(StructuralOp::Concat(concat)) => {
                let mut starts = vec![0; shape.len()];
                args.iter().copied().find_map(|a| {
                    let own = &self.to.graph.ty(a).shape;
                    let is_it = starts == part.start && *own == part.size;
                    starts[concat.axis] += own[concat.axis];
                    is_it.then_some(SliceForm::SameAs(a))
                })
            }
            _ => None,
        }
    }

    /// Appends the equations that compute a slice; returns it.
    fn emit_slice(&mut self, form: SliceForm) -> Var {
        match form {
            SliceForm::SameAs(v) => v,
            SliceForm::Rebroadcast(v, op) => self.to.append(StructuralOp::from(op), &[v]),
            SliceForm::Elementwise(op, parts) => {
                let args: Vec<Var> = parts.into_iter().map(|part| self.emit_slice(part)).collect();
                self.to.append(op, &args)
            }
        }
    }

    /// Defines the result of slice `e` by the computation `form`, which needs no larger array.
    fn define_as_slice(&mut self, form: SliceForm, e: &Equation) {
        let (op, args) = match form {
            // The variable that others read; later passes drop the reshape.
            SliceForm::SameAs(v) => {
                (StructuralOp::from(Reshape { to: constant_dims(&self.to.graph.ty(v).shape) }).into(), vec![v])
            }
            SliceForm::Rebroadcast(v, op) => (StructuralOp::from(op).into(), vec![v]),
            SliceForm::Elementwise(op, parts) => (op, parts.into_iter().map(|part| self.emit_slice(part)).collect()),
        };
        self.to.push(Equation { op, args, ..e.clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_code::without_dead_equations;
    use pallas_ir::structural::{Concat, Pad, Slice};
    use pallas_ir::{DType, Literal, ScalarOp, Type};

    /// Returns the names of the operations that compute a slice, from `start` on, of twice a padded matrix, or of one
    /// concatenated with itself.
    fn names(is_joined: bool, start: [i64; 2], size: [usize; 2], is_read: bool) -> Vec<String> {
        let mut graph = Graph::default();
        let x = graph.param(Type::new(DType::F32, vec![3, 4]));
        let zero = graph.literal(Literal::new(DType::F32, 0.0));
        let large = match is_joined {
            true => graph.push(StructuralOp::from(Concat { axis: 0 }), &[x, x]),
            false => graph.push(
                StructuralOp::from(Pad { low: constant_dims(&[1, 0]), high: constant_dims(&[2, 3]) }),
                &[x, zero],
            ),
        };
        let large = large.expect("it fits");
        let two = graph.splat(Literal::new(DType::F32, 2.0), &graph.ty(large).shape.clone());
        let twice = graph.push(ScalarOp::Mul, &[two, large]).expect("one shape");
        let slice = Slice { start: start.to_vec(), size: constant_dims(&size), stride: vec![1, 1] };
        graph.results = vec![graph.push(StructuralOp::from(slice), &[twice]).expect("it lies inside")];
        graph.results.extend(is_read.then_some(twice));
        let found = without_dead_equations(push_slices_to_operands(graph.clone()));
        assert_eq!(crate::verify(&found), Ok(()));
        found.equations.iter().map(|e| e.op.to_string().split(' ').next().unwrap_or_default().to_string()).collect()
    }

    #[test]
    fn slices_of_what_was_padded_or_joined_need_no_larger_array() {
        let alone = ["0.0", "2.0", "broadcast", "mul"];
        let computed = |names: Vec<String>| names.into_iter().filter(|name| name != "0.0").collect::<Vec<_>>();
        assert_eq!(computed(names(false, [1, 0], [3, 4], false)), alone[1..]);
        assert_eq!(computed(names(true, [0, 0], [3, 4], false)), alone[1..]);
        assert_eq!(computed(names(true, [3, 0], [3, 4], false)), alone[1..]);
        // Other elements, and an array that somebody reads whole.
        for (is_joined, start, size, is_read) in [
            (false, [0, 0], [3, 4], false),
            (false, [1, 0], [3, 5], false),
            (true, [1, 0], [3, 4], false),
            (false, [1, 0], [3, 4], true),
        ] {
            let found = names(is_joined, start, size, is_read);
            assert!(found.contains(&"slice".to_string()), "{found:?} from {start:?}");
        }
    }
}
