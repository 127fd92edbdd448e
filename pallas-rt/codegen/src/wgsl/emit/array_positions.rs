//! Positions of elements and of groups of four in arrays, and tests whether they are inside.
use super::emitter::BodyEmitter;
use super::loads_stores::ArrayAccess;
use super::names;
use super::position::{ArrayAccessCache, ArrayCoord, TileCoord, TilePosition, VEC4_WIDTH};
use crate::wgsl::barriers::WordOwnership;
use pallas_ir::{Op, Value};

impl BodyEmitter<'_> {
    /// Returns the position of the vec4 that contains the element at `at`, and the element's component in it; `None`
    /// unless the four elements are adjacent in the array, and all inside or all outside.
    pub(super) fn array_vec4_position(
        &self,
        access: ArrayAccess<'_>,
        at: &TilePosition,
    ) -> Option<(TilePosition, usize)> {
        let ArrayAccess { of, view, starts } = access;
        if !self.can_access_vec4(of) || self.plan.scratches[of.index()].is_some() {
            return None;
        }
        let last = view.axes.last().filter(|v| v.kept && v.stride == 1 && v.offset % VEC4_WIDTH as i64 == 0)?;
        if last.dynamic && !self.is_known_multiple(*starts.last()?, VEC4_WIDTH) {
            return None;
        }
        let (base, part) = at.coords.last()?.part.clone()?;
        let mut at = TilePosition { coords: at.coords.clone(), flat: None };
        *at.coords.last_mut()? = TileCoord::from_text(base);
        Some((at, part))
    }

    /// Returns true if a scalar is known to be a multiple of `n`.
    pub(super) fn is_known_multiple(&self, v: Value, n: usize) -> bool {
        names::is_known_multiple(self.k, &self.plan.defined, v, n as i64, self.multiples)
    }
    /// Returns the owner of an array's element at one of a thread's own positions, and true if several threads have
    /// that position. Where blocks are side by side, a step that stores another block than the step before touches no
    /// elements of other threads.
    pub(super) fn array_element_owner(
        &self,
        access: ArrayAccess<'_>,
        at: &TilePosition,
    ) -> Option<(WordOwnership, bool)> {
        let (mut coords, mut starts) = (at.coords.iter(), access.starts.iter());
        let mut classes = vec![];
        for axis in &access.view.axes {
            let own = if axis.kept { coords.next()?.own } else { None };
            let start = if axis.dynamic { starts.next() } else { None };
            let beside = || {
                let whole = axis.stride == 1 && axis.offset % axis.size as i64 == 0;
                whole && start.is_none_or(|v| self.is_known_multiple(*v, axis.size))
            };
            match own {
                _ if axis.size == 1 => classes.push(None),
                Some((c, _)) if beside() => classes.push(Some(c)),
                _ => return None,
            }
        }
        let blocks = access.view.axes.iter().zip(&classes);
        let blocks = blocks.map(|(axis, c)| (axis.size, c.map(|c| self.plan.layout.classes[c]))).collect();
        Some((WordOwnership::Blocks(blocks), self.axes_owner_test(&classes).is_some()))
    }

    /// Returns an expression for the position along an array's axis that `view_coordinate` of a view has, and true if
    /// it is known to be inside.
    pub(super) fn array_position(&self, access: ArrayAccess<'_>, axis: usize, view_coordinate: &str) -> (String, bool) {
        let v = access.view.axes[axis];
        let before = access.view.axes[..axis].iter().filter(|x| x.dynamic).count();
        let mut terms = vec![];
        if v.dynamic {
            terms.push(self.scalar_name(access.starts[before]));
        }
        if v.offset != 0 {
            terms.push(v.offset.to_string());
        }
        if view_coordinate != "0u" {
            terms.push(if v.stride == 1 {
                format!("i32({view_coordinate})")
            } else {
                format!("i32({view_coordinate}) * {}", v.stride)
            });
        }
        let start = if v.dynamic { self.plan.constant_value(self.k, access.starts[before]) } else { Some(0) };
        let extent = names::static_extent(self.k, access.of, axis);
        let within = |start: i64, n: i64| {
            let first = start + v.offset;
            let last = first + (v.size as i64 - 1) * v.stride;
            first.min(last) >= 0 && first.max(last) < n
        };
        let covered = v.dynamic && v.size == 1 && v.offset == 0 && {
            // A grid axis has one program for each position along the axis.
            let id = self.plan.defined[access.starts[before].index()].map(|i| &self.k.inst(i).op);
            matches!(id, Some(Op::ProgramId(a)) if self.k.grid[*a].extent == self.k.operand(access.of).dims[axis])
        };
        let safe = covered || start.zip(extent).is_some_and(|(start, n)| within(start, n));
        let text = match &terms[..] {
            [] => "0".into(),
            [one] => one.clone(),
            more => format!("({})", more.join(" + ")),
        };
        (text, safe)
    }
    /// Returns the coordinates of an access along every axis of the array, after writing the lines that compute those
    /// that `known` does not have yet.
    pub(super) fn emit_access_coordinates(
        &mut self,
        access: ArrayAccess<'_>,
        at: &TilePosition,
        known: &mut ArrayAccessCache,
    ) -> Vec<ArrayCoord> {
        let mut coords = at.coords.iter();
        (0..access.view.axes.len())
            .map(|a| {
                let kept = access.view.axes[a].kept;
                let c = if kept { &coords.next().expect("one per kept axis").text } else { "0u" };
                self.emit_access_coordinate(access, a, c, known)
            })
            .collect()
    }
    /// Returns the coordinate along an array's axis that belongs to `view_coordinate` of the access's view, after
    /// writing the lines that compute it, unless `known` has it already.
    pub(super) fn emit_access_coordinate(
        &mut self,
        access: ArrayAccess<'_>,
        array_axis: usize,
        view_coordinate: &str,
        known: &mut ArrayAccessCache,
    ) -> ArrayCoord {
        let found = known.along.iter().find(|(axis, coord, _)| *axis == array_axis && coord == view_coordinate);
        if let Some((.., found)) = found {
            return found.clone();
        }
        let (text, safe) = self.array_position(access, array_axis, view_coordinate);
        let n = self.fresh_name("");
        let simple = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !simple {
            self.emit_line(format!("let p{n} = {text};"));
        }
        let position = if simple { text } else { format!("p{n}") };
        let inside = (!safe).then(|| {
            let extent = names::extent_text(self.k, access.of, array_axis);
            // As unsigned numbers, negative positions are beyond any extent.
            self.emit_line(format!("let in{n} = u32({position}) < u32({extent});"));
            format!("in{n}")
        });
        let offset = match names::stride_text(self.k, access.of, array_axis).as_deref() {
            _ if position == "0" => "0".into(),
            None => position.clone(),
            Some(stride) => {
                self.emit_line(format!("let o{n} = {position} * {stride};"));
                format!("o{n}")
            }
        };
        let along = ArrayCoord { position, offset, inside };
        known.along.push((array_axis, view_coordinate.into(), along.clone()));
        along
    }
}

/// Returns the test that an access is inside of the array along every axis; `None` if it always is.
pub(super) fn bounds_test(coords: &[ArrayCoord]) -> Option<String> {
    let tests: Vec<&str> = coords.iter().filter_map(|a| a.inside.as_deref()).collect();
    match &tests[..] {
        [] => None,
        [one] => Some((*one).to_string()),
        more => Some(format!("({})", more.join(" && "))),
    }
}
/// Returns an expression for the row-major number of an element.
pub(super) fn row_major_number(coords: &[ArrayCoord]) -> String {
    let terms: Vec<&str> = coords.iter().map(|a| a.offset.as_str()).filter(|o| *o != "0").collect();
    if terms.is_empty() { "0u".into() } else { format!("u32({})", terms.join(" + ")) }
}
/// Returns the position of an access in a buffer: if the test `inside_test` is given and fails, all coordinates are 0.
pub(super) fn guarded_buffer_position(coords: &[ArrayCoord], inside_test: Option<&str>) -> TilePosition {
    let coord = |a: &ArrayCoord| match (a.position.as_str(), inside_test) {
        ("0", _) => TileCoord::from_text("0u"),
        (p, None) => TileCoord::from_text(format!("u32({p})")),
        (p, Some(test)) => TileCoord::from_text(format!("select(0u, u32({p}), {test})")),
    };
    TilePosition { coords: coords.iter().map(coord).collect(), flat: None }
}
