//! Sharding of one array among the devices of a mesh.
use crate::Mesh;
use crate::axis::{Axis, product_of_sizes, push_merged, sort_and_merge};
use pallas_ir::{At, Diag, Type};
use std::fmt::{Display, Write};
use std::sync::Arc;

/// Sharding of one dimension of an array: the axes that divide it, and what propagation may change.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct DimSharding {
    /// The axes that shard the dimension, the slowest first.
    pub axes: Vec<Axis>,
    /// True if propagation may add axes to the dimension.
    pub open: bool,
    /// The round of propagation in which the axes start to count; 0, the same as `None`, is the first round.
    pub priority: Option<u32>,
}

/// Sharding of an array over a mesh: the mesh axes that divide each dimension, those that must divide none, and those
/// along which devices have partial sums.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sharding {
    /// By dimension, its axes.
    pub dims: Vec<DimSharding>,
    /// Axes that must not shard any dimension.
    pub replicated: Vec<Axis>,
    /// Axes along which devices have partial sums, which add up to the array.
    pub unreduced: Vec<Axis>,
}

/// A sharding together with the mesh that its axes belong to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MeshSharding {
    /// The mesh that the axes belong to.
    pub mesh: Arc<Mesh>,
    /// The sharding by axes of the mesh.
    pub sharding: Sharding,
}

impl DimSharding {
    /// Returns the sharding of a dimension by these axes, to which propagation may add none.
    pub fn closed(axes: Vec<Axis>) -> DimSharding {
        DimSharding { axes, ..DimSharding::default() }
    }
}

impl Sharding {
    /// Returns a sharding without axes, to every dimension of which propagation may add some.
    pub fn open(rank: usize) -> Sharding {
        Sharding { dims: vec![DimSharding { open: true, ..DimSharding::default() }; rank], ..Sharding::default() }
    }

    /// Returns the closed sharding with which every device has the whole array.
    pub fn replicated(rank: usize) -> Sharding {
        Sharding { dims: vec![DimSharding::default(); rank], ..Sharding::default() }
    }

    /// Returns the sharding by these axes of each dimension, to which propagation may add none.
    pub fn closed(axes: impl IntoIterator<Item = Vec<Axis>>) -> Sharding {
        Sharding { dims: axes.into_iter().map(DimSharding::closed).collect(), ..Sharding::default() }
    }

    /// Returns the axes of each dimension, in the order of the dimensions.
    pub fn axes(&self) -> Vec<Vec<Axis>> {
        self.dims.iter().map(|dim| dim.axes.clone()).collect()
    }

    /// Returns true if the sharding names no axis: none that shards a dimension, no replicated and no unreduced one.
    pub fn mentions_no_axis(&self) -> bool {
        self.dims.iter().all(|dim| dim.axes.is_empty()) && self.replicated.is_empty() && self.unreduced.is_empty()
    }

    /// Returns true if every device has the whole array, not a partial sum.
    pub fn is_replicated(&self) -> bool {
        self.dims.iter().all(|dim| dim.axes.is_empty()) && self.unreduced.is_empty()
    }

    /// Returns the sharding with every dimension closed and without priorities, so that propagation has nothing left to
    /// choose; the axes stay.
    pub fn without_choices(&self) -> Sharding {
        let dims = self.dims.iter().map(|dim| DimSharding::closed(dim.axes.clone())).collect();
        Sharding { dims, ..self.clone() }
    }

    /// Returns the number of blocks along each dimension.
    pub fn blocks_per_dim(&self) -> Vec<usize> {
        self.dims.iter().map(|dim| product_of_sizes(&dim.axes)).collect()
    }

    /// Returns the shape of a device's block of an array with this shape; the last blocks of a dimension may extend
    /// beyond the array.
    pub fn local_shape(&self, shape: &[usize]) -> Vec<usize> {
        shape.iter().zip(self.blocks_per_dim()).map(|(&n, parts)| n.div_ceil(parts)).collect()
    }

    /// Returns the normal form of the sharding, in which shardings that mean the same are equal: axes of size 1
    /// removed, parts of an axis that follow each other joined, and axes sorted where their order means nothing.
    #[must_use]
    pub fn normal(&self, mesh: &Mesh) -> Sharding {
        let wide = |axes: &[Axis]| {
            let mut kept = vec![];
            axes.iter().filter(|axis| axis.size > 1).for_each(|&axis| push_merged(&mut kept, axis));
            kept
        };
        let sorted = |axes: &[Axis]| {
            let mut axes = wide(axes);
            sort_and_merge(&mut axes);
            axes
        };
        debug_assert!(self.dims.iter().flat_map(|dim| &dim.axes).all(|axis| usize::from(axis.id) < mesh.rank()));
        let dims = self.dims.iter().map(|dim| DimSharding {
            axes: wide(&dim.axes),
            open: dim.open,
            // What an empty closed dimension says counts from the beginning.
            priority: dim.priority.filter(|&p| p > 0 && (dim.open || !wide(&dim.axes).is_empty())),
        });
        let (dims, replicated, unreduced) = (dims.collect(), sorted(&self.replicated), sorted(&self.unreduced));
        Sharding { dims, replicated, unreduced }
    }

    /// Checks the sharding for an array of type `ty`: one entry for each dimension, no priority of a dimension that is
    /// closed without axes, each axis once, and parts of an axis that occur in one division of it.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn verify(&self, mesh: &Mesh, ty: &Type) -> Result<(), Diag> {
        self.verify_for(mesh, ty.shape.len(), ty)
    }

    /// Checks the sharding for an array with `rank` dimensions, which messages call `array_name`, like
    /// [`verify`](Sharding::verify).
    ///
    /// # Errors
    /// The errors of [`verify`](Sharding::verify).
    pub fn verify_for(&self, mesh: &Mesh, rank: usize, array_name: &dyn Display) -> Result<(), Diag> {
        let wrong = |message: String, help: &str| Err(Diag::new("sharding", At::Op, message, help));
        if self.dims.len() != rank {
            let found = format!("a sharding of {} dimensions for an array of {array_name}", self.dims.len());
            return wrong(found, "one entry for each dimension at most; those that are missing are not sharded");
        }
        let is_void = |dim: &DimSharding| dim.priority.is_some() && dim.axes.is_empty() && !dim.open;
        if let Some(dim) = self.dims.iter().position(is_void) {
            let found = format!("a priority of dimension {dim}, which nothing divides and nothing may divide");
            return wrong(found, "give it an axis, open it, or leave the priority out");
        }
        let mut seen: Vec<Axis> = vec![];
        let all = self.dims.iter().flat_map(|dim| &dim.axes).chain(&self.replicated).chain(&self.unreduced);
        for &axis in all {
            let name = || mesh.name(usize::from(axis.id)).to_string();
            if usize::from(axis.id) >= mesh.rank() {
                return wrong(
                    format!("axis {} of a mesh of {} axes", axis.id, mesh.rank()),
                    "name an axis of the mesh",
                );
            }
            let whole = mesh.size(usize::from(axis.id));
            if axis.size == 0
                || axis.pre == 0
                || u64::from(axis.next_pre_size()) > whole as u64
                || !whole.is_multiple_of(axis.next_pre_size() as usize)
            {
                let found =
                    format!("a part of size {} behind {} of axis `{}` of size {whole}", axis.size, axis.pre, name());
                return wrong(found, "the sizes of an axis' parts multiply to its own");
            }
            // Axes of size 1 overlap nothing.
            if seen.iter().any(|other| other.overlaps(axis) || *other == axis) {
                let found = format!("axis `{}` divides an array of {array_name} twice", name());
                return wrong(found, "each axis divides at most one dimension, and is not replicated as well");
            }
            if seen.iter().any(|other| !other.can_coexist(axis)) {
                return wrong(format!("parts of axis `{}` do not go together", name()), "divide the axis in one way");
            }
            seen.push(axis);
        }
        Ok(())
    }

    /// Returns the sharding in Shardy's syntax: `[{"x", ?}, {}p1], replicated={"y"}`. `?` marks open dimensions, `p1` a
    /// priority.
    pub fn text(&self, mesh: &Mesh) -> String {
        let mut text = String::from("[");
        for (i, dim) in self.dims.iter().enumerate() {
            text += if i > 0 { ", {" } else { "{" };
            text += &axes_text(&dim.axes, mesh);
            text += match (dim.open, dim.axes.is_empty()) {
                (false, _) => "",
                (true, true) => "?",
                (true, false) => ", ?",
            };
            text.push('}');
            if let Some(priority) = dim.priority {
                write!(text, "p{priority}").expect("a string");
            }
        }
        text.push(']');
        for (name, axes) in [("replicated", &self.replicated), ("unreduced", &self.unreduced)] {
            if !axes.is_empty() {
                write!(text, ", {name}={{{}}}", axes_text(axes, mesh)).expect("a string");
            }
        }
        text
    }
}

/// Returns axes in Shardy's syntax, `"x", "y":(1)2`, where the second one is a part of an axis.
pub fn axes_text(axes: &[Axis], mesh: &Mesh) -> String {
    let one = |axis: &Axis| {
        let id = usize::from(axis.id);
        match axis.pre == 1 && axis.len() == mesh.size(id) {
            true => format!("\"{}\"", mesh.name(id)),
            false => format!("\"{}\":({}){}", mesh.name(id), axis.pre, axis.size),
        }
    };
    axes.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl Sharding {
    /// Parses a sharding from the syntax of [`text`](Sharding::text).
    ///
    /// # Errors
    /// Text that is no sharding; an axis that the mesh does not have.
    pub fn parse(text: &str, mesh: &Mesh) -> Result<Sharding, String> {
        let mut left = ShardingParser { left: text.trim(), mesh };
        let mut sharding = Sharding::default();
        left.expect("[")?;
        while !left.try_skip("]") {
            left.try_skip(",");
            let (axes, open) = left.parse_dim_axes()?;
            let priority = if left.try_skip("p") { Some(left.parse_number()?) } else { None };
            sharding.dims.push(DimSharding { axes, open, priority });
        }
        while left.try_skip(",") {
            let list = match (left.try_skip("replicated="), left.try_skip("unreduced=")) {
                (true, _) => &mut sharding.replicated,
                (_, true) => &mut sharding.unreduced,
                _ => return Err(format!("expected `replicated` or `unreduced`, found `{}`", left.left)),
            };
            *list = left.parse_dim_axes()?.0;
        }
        if left.left.is_empty() { Ok(sharding) } else { Err(format!("expected the end, found `{}`", left.left)) }
    }
}

/// A parser of shardings, with the text that is left to read.
struct ShardingParser<'a> {
    left: &'a str,
    mesh: &'a Mesh,
}

impl ShardingParser<'_> {
    /// Skips `token` if the text begins with it; returns true if it did.
    fn try_skip(&mut self, token: &str) -> bool {
        match self.left.strip_prefix(token) {
            Some(left) => {
                self.left = left.trim_start();
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.try_skip(token) { Ok(()) } else { Err(format!("expected `{token}`, found `{}`", self.left)) }
    }

    fn parse_number(&mut self) -> Result<u32, String> {
        let digits = self.left.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.left.len());
        let (number, left) = self.left.split_at(digits);
        self.left = left.trim_start();
        number.parse().map_err(|_| format!("expected a number, found `{number}{left}`"))
    }

    /// Reads axes of one dimension, as in `{"x", "y":(1)2, ?}`; returns true if the dimension is open.
    fn parse_dim_axes(&mut self) -> Result<(Vec<Axis>, bool), String> {
        self.expect("{")?;
        let (mut axes, mut open) = (vec![], false);
        while !self.try_skip("}") {
            self.try_skip(",");
            if self.try_skip("?") {
                open = true;
                continue;
            }
            self.expect("\"")?;
            let (name, left) = self.left.split_once('"').ok_or("a name has no end")?;
            let mut axis = self.mesh.find(name).map_err(|diag| diag.to_string())?;
            self.left = left.trim_start();
            if self.try_skip(":") {
                self.expect("(")?;
                axis.pre = self.parse_number()?;
                self.expect(")")?;
                axis.size = self.parse_number()?;
            }
            axes.push(axis);
        }
        Ok((axes, open))
    }
}
