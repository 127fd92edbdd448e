//! Scans with an associative function: as a tree, or one element after the other ("in turn").
//!
//! ```text
//! tree      pairs of elements, pairs of pairs, ..: all elements of a level at once (GPUs, meshes, long vectors)
//! in turn   one row after the other: half as many calls on elements, and each array is read once (one CPU)
//! ```
use super::control_flow::Scan;
use super::function::Outcome;
use super::linearize::check_matching_leaves;
use super::trace::{apply_multi_result, longest_traced_mesh_axis_size, type_of};
use crate::array::{Array, canonicalize_axis};
use crate::tree::{self, Tree};
use pallas_device::DeviceKind;
use pallas_device::error::{Error, Result};
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{Concat, Reshape, Reverse, Slice};
use pallas_ir::{At, Diag, Dim, Loc, StructuralOp, Type};

/// Options of [`associative_scan`]: the axis, and the direction.
///
/// ```
/// use pallas_rt::{Array, AssociativeScan};
/// // Maxima from the end of each row.
/// let x = Array::from_slice(&[1.0f32, 3.0, 2.0, 4.0, 6.0, 5.0], &[2, 3])?;
/// let y = AssociativeScan::new().axis(1).reverse(true).run(&x, |a: &Array, b: &Array| a.maximum(b))?;
/// assert_eq!(y.to_vec::<f32>()?, [3.0, 3.0, 2.0, 6.0, 6.0, 5.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AssociativeScan {
    axis: isize,
    reverse: bool,
}

impl AssociativeScan {
    /// Returns the default options: along the first axis, from the first element to the last.
    pub fn new() -> AssociativeScan {
        AssociativeScan::default()
    }

    /// Sets the axis; negative numbers count from the last one.
    #[must_use]
    pub fn axis(mut self, axis: isize) -> AssociativeScan {
        self.axis = axis;
        self
    }

    /// Sets the direction: true scans from the last element to the first.
    #[must_use]
    pub fn reverse(mut self, reverse: bool) -> AssociativeScan {
        self.reverse = reverse;
        self
    }

    /// Runs the scan; see [`associative_scan`].
    ///
    /// # Errors
    /// As [`associative_scan`].
    #[track_caller]
    pub fn run<T, R>(self, xs: &T, combine: impl Fn(&T, &T) -> R) -> Result<T>
    where
        T: Tree,
        R: Outcome<Tree = T>,
    {
        let at = Loc::caller();
        let refused = |message: String, help: &str| {
            Err(Error::operation(at, Diag::new("associative-scan", At::Op, message, help)))
        };
        let leaves = tree::leaves(xs);
        let mut length = None;
        let mut axes = vec![];
        for (x, path) in leaves.iter().zip(tree::paths(xs)) {
            x.check()?;
            let Ok(axis) = canonicalize_axis(self.axis, x.rank()) else {
                let message = format!("an associative scan along axis {} of `{path}` of {}", self.axis, type_of(x));
                return refused(message, "all arrays have this axis");
            };
            let n = x.shape()[axis];
            if *length.get_or_insert(n) != n {
                let message = format!("`{path}` of {} in an associative scan of {:?} elements", type_of(x), length);
                return refused(message, "all arrays are equally long along the axis");
            }
            axes.push(axis);
        }
        let Some(length) = length else {
            return refused("an associative scan without arrays".into(), "give it a tree with at least one array");
        };
        let scan = ScanArguments { xs, combine: &combine, axes: &axes, at };
        if scan.is_sequential_faster(&leaves, length) {
            return tree::rebuild(xs, scan.scan_sequentially(&leaves, length, self.reverse)?);
        }
        let turned = |all: Vec<Array>| match self.reverse {
            true => scan.push_for_each_leaf([&all], push_reverse),
            false => Ok(all),
        };
        let found = scan.scan_as_tree(turned(leaves)?, length)?;
        tree::rebuild(xs, turned(found)?)
    }
}

/// Returns all partial results of an associative function along an axis: the first element, `combine` of the first two,
/// of the first three, and so on; `lax.associative_scan`.
///
/// # Errors
/// `combine`'s own error; arrays without the axis, or of other lengths; a result of `combine` that is another tree or
/// has other types than it takes; errors of the device.
///
/// ```
/// use pallas_rt::{Array, associative_scan};
/// // h[i] = a[i] h[i-1] + b[i], all at once.
/// let a = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4])?;
/// let b = Array::from_slice(&[1.0f32; 4], &[4])?;
/// let (_, h) = associative_scan(&(a, b), |(a, b): &(Array, Array), (c, d): &(Array, Array)| (a * c, c * b + d))?;
/// assert_eq!(h.to_vec::<f32>()?, [1.0, 3.0, 10.0, 41.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn associative_scan<T, R>(xs: &T, combine: impl Fn(&T, &T) -> R) -> Result<T>
where
    T: Tree,
    R: Outcome<Tree = T>,
{
    AssociativeScan::new().run(xs, combine)
}

/// Arguments of one associative scan: the tree that is scanned, the function that combines elements, and the axis of
/// each leaf.
struct ScanArguments<'a, T, F> {
    xs: &'a T,
    combine: &'a F,
    /// The axis of each leaf.
    axes: &'a [usize],
    at: Loc,
}

/// Maximum number of steps of a scan in turn that are unrolled.
const MAX_UNROLLED_STEPS: usize = 8;

/// Maximum number of elements of arrays without further axes that are scanned in turn: for more of them a tree is
/// faster, since each step in turn would compute a single number.
const MAX_SEQUENTIAL_ELEMENTS: usize = 4096;

impl<T: Tree, R: Outcome<Tree = T>, F: Fn(&T, &T) -> R> ScanArguments<'_, T, F> {
    /// Returns true if a scan of `n` elements in turn is faster than a tree: on one CPU, for elements with several
    /// numbers or for a short array.
    fn is_sequential_faster(&self, arrays: &[Array], n: usize) -> bool {
        let has_rows = arrays.iter().any(|x| x.shape().iter().product::<usize>() > n);
        arrays[0].client().kind() == DeviceKind::Cpu
            && longest_traced_mesh_axis_size() == 1
            && (has_rows || n <= MAX_SEQUENTIAL_ELEMENTS)
    }

    /// Scans arrays with `n` elements along their axes one element after the other, from the last one on if `reverse`.
    fn scan_sequentially(&self, arrays: &[Array], n: usize, reverse: bool) -> Result<Vec<Array>> {
        if n < 2 {
            return Ok(arrays.to_vec());
        }
        let (first, rest) = if reverse { (n - 1, 0) } else { (0, 1) };
        let (first, rest) = (self.strided_slice(arrays, first, 1, 1)?, self.strided_slice(arrays, rest, n - 1, 1)?);
        let rest: Vec<Array> = self.map_with_axes(&rest, |x, axis| x.moveaxis(axis, 0));
        let first = self.map_with_axes(&first, |x, axis| x.squeeze([axis]));
        let step = |before: &Vec<Array>, x: &Vec<Array>| {
            let [before, x] = [before, x].map(|all| self.map_with_axes(all, |x, axis| x.expand_dims(axis)));
            let made = self.map_with_axes(&self.combine_elements(before, x)?, |x, axis| x.squeeze([axis]));
            Ok::<_, Error>((made.clone(), made))
        };
        let scan = Scan::new().reverse(reverse).unroll(if n <= MAX_UNROLLED_STEPS { n } else { 1 });
        let (_, rest): (Vec<Array>, Vec<Array>) = scan.run(&first, &rest, step)?;
        let first = self.map_with_axes(&first, |x, axis| x.expand_dims(axis));
        let rest = self.map_with_axes(&rest, |x, axis| x.moveaxis(0, axis));
        let (a, b) = if reverse { (&rest, &first) } else { (&first, &rest) };
        self.push_for_each_leaf([a, b], push_concat)
    }

    fn map_with_axes(&self, arrays: &[Array], f: impl Fn(&Array, isize) -> Array) -> Vec<Array> {
        arrays.iter().zip(self.axes).map(|(x, &axis)| f(x, axis as isize)).collect()
    }

    /// Scans arrays with `n` elements along their axes as a tree: combines pairs, scans the pairs, and fills in the
    /// elements between.
    fn scan_as_tree(&self, arrays: Vec<Array>, n: usize) -> Result<Vec<Array>> {
        // The arrays of each level, of which the next one has the combined pairs.
        let (mut levels, mut n) = (vec![], n);
        let mut all = arrays;
        while n >= 2 {
            let first = self.strided_slice(&all, 0, n / 2, 2)?;
            let second = self.strided_slice(&all, 1, n / 2, 2)?;
            let pairs = self.combine_elements(first, second)?;
            levels.push((all, n));
            (all, n) = (pairs, n / 2);
        }
        // Results at odd positions are those of the level of pairs; combining each with the next element gives those at
        // even positions.
        while let Some((own, n)) = levels.pop() {
            let evens = n.div_ceil(2);
            let before = self.strided_slice(&all, 0, evens - 1, 1)?;
            let mut even = self.strided_slice(&own, 0, 1, 1)?;
            if evens > 1 {
                let next = self.combine_elements(before, self.strided_slice(&own, 2, evens - 1, 2)?)?;
                even = self.push_for_each_leaf([&even, &next], push_concat)?;
            }
            all = self.push_for_each_leaf([&even, &all], push_interleave)?;
        }
        Ok(all)
    }

    fn combine_elements(&self, a: Vec<Array>, b: Vec<Array>) -> Result<Vec<Array>> {
        let types: Vec<Type> = a.iter().map(type_of).collect();
        let found = (self.combine)(&tree::rebuild(self.xs, a)?, &tree::rebuild(self.xs, b)?).tree()?;
        check_matching_leaves(self.xs, &found, &types, "result of an associative scan's function", self.at)
    }

    /// Takes `count` elements of each array along its axis, from `start` on, with a stride.
    fn strided_slice(&self, arrays: &[Array], start: usize, count: usize, stride: usize) -> Result<Vec<Array>> {
        self.push_for_each_leaf([arrays], |graph, v, axis| {
            let mut shape = graph.ty(v[0]).shape.clone();
            let (mut starts, mut strides) = (vec![0; shape.len()], vec![1; shape.len()]);
            (shape[axis], starts[axis], strides[axis]) = (count, start as i64, stride as i64);
            graph.push(StructuralOp::from(Slice { start: starts, size: to_dims(&shape), stride: strides }), v)
        })
    }

    /// Appends the operation of `f` once for each leaf of the scanned tree, and returns the results. `f` takes the
    /// leaf's array from each of `lists`, and the axis along which the leaf is scanned.
    fn push_for_each_leaf<const N: usize>(
        &self,
        lists: [&[Array]; N],
        f: impl Fn(&mut Graph, &[Var], usize) -> Result<Var, Diag>,
    ) -> Result<Vec<Array>> {
        let one = |(i, &axis): (usize, &usize)| {
            let leaves = lists.map(|list| &list[i]);
            Ok(apply_multi_result(&leaves, self.at, |graph, v| Ok(vec![f(graph, v, axis)?]))?.remove(0))
        };
        self.axes.iter().enumerate().map(one).collect()
    }
}

fn to_dims(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&n| Dim::from(n)).collect()
}

fn push_reverse(graph: &mut Graph, v: &[Var], axis: usize) -> Result<Var, Diag> {
    graph.push(StructuralOp::from(Reverse { axes: vec![axis] }), v)
}

fn push_concat(graph: &mut Graph, v: &[Var], axis: usize) -> Result<Var, Diag> {
    graph.push(StructuralOp::from(Concat { axis }), v)
}

/// Interleaves two arrays along an axis: an element of the first, one of the second, and so on; the first may have one
/// more.
fn push_interleave(graph: &mut Graph, v: &[Var], axis: usize) -> Result<Var, Diag> {
    let shape = graph.ty(v[1]).shape.clone();
    let n = shape[axis];
    let rows = |graph: &mut Graph, first: usize, count: usize| {
        let mut size = shape.clone();
        let mut start = vec![0; shape.len()];
        (size[axis], start[axis]) = (count, first as i64);
        graph.push(StructuralOp::from(Slice { start, size: to_dims(&size), stride: vec![1; shape.len()] }), &[v[0]])
    };
    let has_more = graph.ty(v[0]).shape[axis] > n;
    let first = if has_more { rows(graph, 0, n)? } else { v[0] };
    let mut pair = shape.clone();
    pair.insert(axis + 1, 1);
    let mut pairs = vec![];
    for v in [first, v[1]] {
        pairs.push(graph.push(StructuralOp::from(Reshape { to: to_dims(&pair) }), &[v])?);
    }
    let pairs = graph.push(StructuralOp::from(Concat { axis: axis + 1 }), &pairs)?;
    let mut both = shape.clone();
    both[axis] = 2 * n;
    let both = graph.push(StructuralOp::from(Reshape { to: to_dims(&both) }), &[pairs])?;
    match has_more {
        true => {
            let last = rows(graph, n, 1)?;
            push_concat(graph, &[both, last], axis)
        }
        false => Ok(both),
    }
}
