//! Refs and their views: results of loads, arguments of stores, and selections by indices.
use super::body::ShapeChecker;
use super::symbolic_value::{AxisSpan, SymbolicValue, View};
use super::tracked_variables::strip_parentheses;
use pallas_ir::Dim;
use pallas_ir::diag::{self, shape};
use pallas_ir::dim::SizeComparison;
use pallas_ir::structural::Broadcast;
use quote::ToTokens;
use syn::{Expr, ExprMethodCall};

impl ShapeChecker {
    /// Returns the symbolic value of a method of a ref or a view.
    pub(super) fn eval_view_method(&mut self, view: View, m: &ExprMethodCall, args: &[SymbolicValue]) -> SymbolicValue {
        let name = m.method.to_string();
        let Some(dims) = view.shape.clone() else {
            return if name == "at" { SymbolicValue::View(view) } else { SymbolicValue::Unknown };
        };
        match (name.as_str(), args) {
            ("load", []) => SymbolicValue::Tile(dims),
            ("load_masked", [mask, _]) => {
                self.check_mask_shape(mask, &dims, &m.args[0]);
                SymbolicValue::Tile(dims)
            }
            ("store", [tile]) => {
                self.check_stored_shape(tile, &view, &dims, &m.args[0]);
                SymbolicValue::Unit
            }
            ("store_masked", [tile, mask]) => {
                self.check_stored_shape(tile, &view, &dims, &m.args[0]);
                self.check_mask_shape(mask, &dims, &m.args[1]);
                SymbolicValue::Unit
            }
            ("swap", [tile]) => {
                self.check_stored_shape(tile, &view, &dims, &m.args[0]);
                SymbolicValue::Tile(dims)
            }
            ("fill", [value]) => {
                if let SymbolicValue::Tile(x) = value {
                    self.structural_value(Broadcast::to(dims), &[x], &m.method, &[&m.args[0]]);
                }
                SymbolicValue::Unit
            }
            ("valid", [axis]) => match axis.as_axis() {
                Some(axis) if axis < dims.len() => {
                    let kept = |(i, d): (usize, Dim)| if i == axis { d } else { Dim::from(1i64) };
                    SymbolicValue::Tile(dims.into_iter().enumerate().map(kept).collect())
                }
                Some(axis) => {
                    self.report(&diag::block_axis_out_of_range(axis, dims.len()), &m.args[0], &[]);
                    SymbolicValue::Unknown
                }
                None => SymbolicValue::Unknown,
            },
            ("shape", []) => SymbolicValue::Sequence(dims.into_iter().map(SymbolicValue::Size).collect()),
            ("clone", []) => SymbolicValue::View(view),
            ("at", [index]) => {
                SymbolicValue::View(View { shape: self.indexed_shape(&dims, index, &m.args[0]), ..view })
            }
            _ => SymbolicValue::Unknown,
        }
    }
    /// Evaluates a method of a prefetch operand: the read of an element, a scalar.
    pub(super) fn eval_prefetch_method(
        &mut self,
        name: &str,
        rank: usize,
        m: &ExprMethodCall,
        args: &[SymbolicValue],
    ) -> SymbolicValue {
        let [index] = args else { return SymbolicValue::Unknown };
        if m.method != "at" {
            return SymbolicValue::Unknown;
        }
        let indices = match index {
            SymbolicValue::Sequence(items) => items.len(),
            SymbolicValue::Size(_) | SymbolicValue::Host { .. } | SymbolicValue::Tile(_) => 1,
            _ => rank,
        };
        if indices != rank {
            self.report(&diag::wrong_prefetch_index_count(name, rank, indices), &m.args[0], &[]);
        }
        SymbolicValue::run_time_scalar()
    }
    /// Returns true if two shapes differ for some sizes.
    fn are_shapes_different(&self, a: &[Dim], b: &[Dim]) -> bool {
        a.len() != b.len() || a.iter().zip(b).any(|(a, b)| self.facts.compare_equal(a, b) == SizeComparison::No)
    }
    /// Reports a store to a view, whose shape is `dims`, of a tile of another shape.
    fn check_stored_shape(&mut self, tile: &SymbolicValue, view: &View, dims: &[Dim], at: &Expr) {
        if let SymbolicValue::Tile(found) = tile
            && self.are_shapes_different(found, dims)
        {
            self.report(&diag::store_mismatch(shape(found), shape(dims), &view.name), at, &[]);
        }
    }
    /// Reports a mask whose shape is not `dims`, the shape of what it masks.
    fn check_mask_shape(&mut self, mask: &SymbolicValue, dims: &[Dim], at: &Expr) {
        if let SymbolicValue::Tile(found) = mask
            && self.are_shapes_different(found, dims)
        {
            self.report(&diag::mask_mismatch(shape(found), shape(dims)), at, &[]);
        }
    }

    /// Shape of the part of a view or a tile that an index selects; `None` if any of it is unknown.
    pub(super) fn indexed_shape(&mut self, dims: &[Dim], index: &SymbolicValue, at: &Expr) -> Option<Vec<Dim>> {
        let written: Vec<&Expr> = match strip_parentheses(at) {
            Expr::Tuple(t) => t.elems.iter().collect(),
            one => vec![one],
        };
        let entries: Vec<&SymbolicValue> = match index {
            SymbolicValue::Sequence(items) => items.iter().collect(),
            SymbolicValue::Unknown => return None,
            one => vec![one],
        };
        if entries.len() > dims.len() {
            self.report(&diag::too_many_view_indices(entries.len(), dims.len()), at, &[]);
            return None;
        }
        let mut out = Some(vec![]);
        for (axis, dim) in dims.iter().enumerate() {
            let kept = match entries.get(axis) {
                None => Some(Some(dim.clone())),
                Some(entry) => {
                    let at: &dyn ToTokens = if written.len() == entries.len() { &written[axis] } else { &at };
                    self.indexed_extent(dim, entry, at)
                }
            };
            out = out.zip(kept).map(|(mut dims, dim)| {
                dims.extend(dim);
                dims
            });
        }
        out
    }
    /// Extent of an axis after indexing by `entry`: `Some(None)` if the axis is dropped, `None` if unknown.
    fn indexed_extent(&mut self, dim: &Dim, entry: &SymbolicValue, at: &dyn ToTokens) -> Option<Option<Dim>> {
        let one = Dim::from(1i64);
        match entry {
            SymbolicValue::Span(AxisSpan::All) => Some(Some(dim.clone())),
            SymbolicValue::Span(AxisSpan::Part { start, size, stride }) => {
                if let Some(start) = start {
                    let last = start + &(&(size - &one) * stride);
                    self.check_in_bounds(start, &last, size, dim, at);
                }
                Some(Some(size.clone()))
            }
            SymbolicValue::Size(at_element) => {
                self.check_in_bounds(at_element, at_element, &one, dim, at);
                Some(None)
            }
            SymbolicValue::Host { .. } => Some(None),
            SymbolicValue::Tile(dims) if dims.is_empty() => Some(None),
            _ => None,
        }
    }
    /// Reports a selection of `size` elements, from `start` to `last`, that is outside of an axis.
    fn check_in_bounds(&mut self, start: &Dim, last: &Dim, size: &Dim, dim: &Dim, at: &dyn ToTokens) {
        let one = Dim::from(1i64);
        let some = self.facts.compare_at_most(&one, size) == SizeComparison::Yes;
        let before = self.facts.compare_at_most(&Dim::from(0i64), start) == SizeComparison::No;
        let behind = self.facts.compare_at_most(&(last + &one), dim) == SizeComparison::No;
        if some && (before || behind) {
            self.report(&diag::view_out_of_bounds(start, last + &one, dim), at, &[]);
        }
    }
}
