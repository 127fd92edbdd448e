//! Refs and their views: results of loads, arguments of stores, and selections by indices.
use super::body::Walk;
use super::places::bare;
use super::value::{Span, Value, View};
use pallas_ir::Dim;
use pallas_ir::diag::{self, shape};
use pallas_ir::dim::Verdict;
use pallas_ir::structural::Broadcast;
use quote::ToTokens;
use syn::{Expr, ExprMethodCall};

impl Walk {
    /// The value of a method of a ref or a view.
    pub(super) fn view_method(&mut self, view: View, m: &ExprMethodCall, args: &[Value]) -> Value {
        let name = m.method.to_string();
        let Some(dims) = view.shape.clone() else {
            return if name == "at" { Value::View(view) } else { Value::Unknown };
        };
        match (name.as_str(), args) {
            ("load", []) => Value::Tile(dims),
            ("load_masked", [mask, _]) => {
                self.masked(mask, &dims, &m.args[0]);
                Value::Tile(dims)
            }
            ("store", [tile]) => {
                self.stored(tile, &view, &dims, &m.args[0]);
                Value::Unit
            }
            ("store_masked", [tile, mask]) => {
                self.stored(tile, &view, &dims, &m.args[0]);
                self.masked(mask, &dims, &m.args[1]);
                Value::Unit
            }
            ("swap", [tile]) => {
                self.stored(tile, &view, &dims, &m.args[0]);
                Value::Tile(dims)
            }
            ("fill", [value]) => {
                if let Value::Tile(x) = value {
                    self.structural(Broadcast::to(dims), &[x], &m.method, &[&m.args[0]]);
                }
                Value::Unit
            }
            ("valid", [axis]) => match axis.axis() {
                Some(axis) if axis < dims.len() => {
                    let kept = |(i, d): (usize, Dim)| if i == axis { d } else { Dim::from(1i64) };
                    Value::Tile(dims.into_iter().enumerate().map(kept).collect())
                }
                Some(axis) => {
                    self.report(&diag::block_axis(axis, dims.len()), &m.args[0], &[]);
                    Value::Unknown
                }
                None => Value::Unknown,
            },
            ("shape", []) => Value::Several(dims.into_iter().map(Value::Size).collect()),
            ("clone", []) => Value::View(view),
            ("at", [index]) => Value::View(View { shape: self.part(&dims, index, &m.args[0]), ..view }),
            _ => Value::Unknown,
        }
    }
    /// The value of an element of a prefetch operand.
    pub(super) fn prefetched(&mut self, name: &str, rank: usize, m: &ExprMethodCall, args: &[Value]) -> Value {
        let [index] = args else { return Value::Unknown };
        if m.method != "at" {
            return Value::Unknown;
        }
        let indices = match index {
            Value::Several(items) => items.len(),
            Value::Size(_) | Value::Host { .. } | Value::Tile(_) => 1,
            _ => rank,
        };
        if indices != rank {
            self.report(&diag::element_rank(name, rank, indices), &m.args[0], &[]);
        }
        Value::scalar()
    }
    /// Returns true if two shapes differ for some sizes.
    fn differ(&self, a: &[Dim], b: &[Dim]) -> bool {
        a.len() != b.len() || a.iter().zip(b).any(|(a, b)| self.facts.same(a, b) == Verdict::No)
    }
    /// Reports a store of a tile of another shape.
    fn stored(&mut self, tile: &Value, view: &View, dims: &[Dim], at: &Expr) {
        if let Value::Tile(found) = tile
            && self.differ(found, dims)
        {
            self.report(&diag::stored(shape(found), shape(dims), &view.name), at, &[]);
        }
    }
    /// Reports a mask of another shape.
    fn masked(&mut self, mask: &Value, dims: &[Dim], at: &Expr) {
        if let Value::Tile(found) = mask
            && self.differ(found, dims)
        {
            self.report(&diag::masked(shape(found), shape(dims)), at, &[]);
        }
    }

    /// Shape of the part of a view or a tile that an index selects; `None` if any of it is unknown.
    pub(super) fn part(&mut self, dims: &[Dim], index: &Value, at: &Expr) -> Option<Vec<Dim>> {
        let written: Vec<&Expr> = match bare(at) {
            Expr::Tuple(t) => t.elems.iter().collect(),
            one => vec![one],
        };
        let entries: Vec<&Value> = match index {
            Value::Several(items) => items.iter().collect(),
            Value::Unknown => return None,
            one => vec![one],
        };
        if entries.len() > dims.len() {
            self.report(&diag::view_rank(entries.len(), dims.len()), at, &[]);
            return None;
        }
        let mut out = Some(vec![]);
        for (axis, dim) in dims.iter().enumerate() {
            let kept = match entries.get(axis) {
                None => Some(Some(dim.clone())),
                Some(entry) => {
                    let at: &dyn ToTokens = if written.len() == entries.len() { &written[axis] } else { &at };
                    self.selected(dim, entry, at)
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
    fn selected(&mut self, dim: &Dim, entry: &Value, at: &dyn ToTokens) -> Option<Option<Dim>> {
        let one = Dim::from(1i64);
        match entry {
            Value::Span(Span::All) => Some(Some(dim.clone())),
            Value::Span(Span::Part { start, size, stride }) => {
                if let Some(start) = start {
                    let last = start + &(&(size - &one) * stride);
                    self.inside(start, &last, size, dim, at);
                }
                Some(Some(size.clone()))
            }
            Value::Size(at_element) => {
                self.inside(at_element, at_element, &one, dim, at);
                Some(None)
            }
            Value::Host { .. } => Some(None),
            Value::Tile(dims) if dims.is_empty() => Some(None),
            _ => None,
        }
    }
    /// Reports a selection of `size` elements, from `start` to `last`, that is outside of an axis.
    fn inside(&mut self, start: &Dim, last: &Dim, size: &Dim, dim: &Dim, at: &dyn ToTokens) {
        let one = Dim::from(1i64);
        let some = self.facts.at_most(&one, size) == Verdict::Yes;
        let before = self.facts.at_most(&Dim::from(0i64), start) == Verdict::No;
        let behind = self.facts.at_most(&(last + &one), dim) == Verdict::No;
        if some && (before || behind) {
            self.report(&diag::view_bounds(start, last + &one, dim), at, &[]);
        }
    }
}
