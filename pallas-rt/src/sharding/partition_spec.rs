//! The axes that shard each dimension of an array, as users write them.
use super::blocks::block_ranges;
use pallas_device::error::{Error, Result};
use pallas_graph::mesh::{Axis, DimSharding, Mesh, Sharding};
use pallas_ir::{At, Diag, Loc, Type};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// An axis of a mesh, or a part of one, as users write it: its name, its number in the mesh, or a [`sub_axis`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AxisSpec {
    pub(super) which: AxisReference,
    /// For a part of an axis, the size of the more significant part before it and its own size; `None` for the whole
    /// axis.
    pub(super) part: Option<(u32, u32)>,
}

/// The way in which a mesh axis is named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AxisReference {
    Name(String),
    Number(usize),
}

/// The part of an axis that has `size` coordinates, after a more significant part with `pre` coordinates; Shardy's
/// `"name":(pre)size`. The product of both divides the size of the axis.
///
/// ```
/// use pallas_rt::sharding::{Mesh, NamedSharding, P, sub_axis};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("model", 8)])?);
/// let halves = NamedSharding::new(&mesh, P((sub_axis("model", 1, 2), sub_axis("model", 2, 4))));
/// assert_eq!(halves.to_string(), "[{\"model\":(1)2}, {\"model\":(2)4}]");
/// # Ok::<(), pallas_rt::ir::Diag>(())
/// ```
pub fn sub_axis(axis: impl AxisEntry, pre: u32, size: u32) -> AxisSpec {
    AxisSpec { part: Some((pre, size)), ..axis.axis() }
}

/// An axis of a spec: `"data"`, `0` for the first axis of the mesh as in PyTorch/XLA, or a [`sub_axis`].
pub trait AxisEntry {
    /// Converts to the axis.
    fn axis(self) -> AxisSpec;
}

impl AxisEntry for AxisSpec {
    fn axis(self) -> AxisSpec {
        self
    }
}

impl AxisEntry for &str {
    fn axis(self) -> AxisSpec {
        AxisSpec { which: AxisReference::Name(self.to_string()), part: None }
    }
}

impl AxisEntry for usize {
    fn axis(self) -> AxisSpec {
        AxisSpec { which: AxisReference::Number(self), part: None }
    }
}

impl AxisSpec {
    /// Finds this axis in a mesh.
    ///
    /// # Errors
    /// No axis of the mesh has this name or number.
    fn resolve(&self, mesh: &Mesh) -> std::result::Result<Axis, Diag> {
        let whole = match &self.which {
            AxisReference::Name(name) => mesh.find(name)?,
            AxisReference::Number(number) if *number < mesh.rank() => mesh.axis(*number),
            AxisReference::Number(number) => {
                let found = format!("{number} is no axis of the mesh {mesh}");
                return Err(Diag::new("mesh", At::Op, found, format!("its axes are below {}", mesh.rank())));
            }
        };
        Ok(self.part.map_or(whole, |(pre, size)| Axis { pre, size, ..whole }))
    }

    /// This axis by name instead of number; unchanged if the mesh has no axis with the number.
    fn with_axis_name(self, mesh: &Mesh) -> AxisSpec {
        match self.which {
            AxisReference::Number(number) if number < mesh.rank() => {
                AxisSpec { which: AxisReference::Name(mesh.name(number).to_string()), ..self }
            }
            AxisReference::Number(_) | AxisReference::Name(_) => self,
        }
    }
}

/// Writes `"data"`, or Shardy's `"data":(1)2` for a part; an axis that is still a number is written as one.
impl fmt::Display for AxisSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.which {
            AxisReference::Name(name) => write!(f, "{name:?}")?,
            AxisReference::Number(number) => write!(f, "{number}")?,
        }
        self.part.map_or(Ok(()), |(pre, size)| write!(f, ":({pre}){size}"))
    }
}

/// The axes that shard one dimension, and whether propagation may add others; see [`dim`] and [`UNCONSTRAINED`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DimSpec {
    pub(super) axes: Vec<AxisSpec>,
    /// True if propagation may shard the dimension further.
    pub(super) is_open: bool,
    /// The round from which on the dimension takes part in propagation; `None` for the first one.
    pub(super) priority: Option<u32>,
}

/// The entry of a dimension that propagation may shard; `PartitionSpec.UNCONSTRAINED` of JAX. Unlike JAX's it is also
/// allowed in [`device_put`](super::device_put), which leaves the dimension whole; functions of the array may shard it.
///
/// ```
/// use pallas_rt::sharding::{Mesh, NamedSharding, P, UNCONSTRAINED};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)])?);
/// let columns = NamedSharding::new(&mesh, P((UNCONSTRAINED, "model")));
/// assert_eq!(columns.to_string(), "[{?}, {\"model\"}]");
/// # Ok::<(), pallas_rt::ir::Diag>(())
/// ```
pub const UNCONSTRAINED: DimSpec = DimSpec { axes: vec![], is_open: true, priority: None };

/// Converts axes to the entry of a dimension, which [`open`](DimSpec::open) and [`priority`](DimSpec::priority) extend.
///
/// ```
/// use pallas_rt::sharding::{Mesh, NamedSharding, P, dim};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)])?);
/// let rows = NamedSharding::new(&mesh, P((dim("data").open().priority(1), None)));
/// assert_eq!(rows.to_string(), "[{\"data\", ?}p1, {}]");
/// # Ok::<(), pallas_rt::ir::Diag>(())
/// ```
pub fn dim(axes: impl Entry) -> DimSpec {
    axes.dim()
}

impl DimSpec {
    /// Lets propagation shard this dimension further.
    #[must_use]
    pub fn open(mut self) -> DimSpec {
        self.is_open = true;
        self
    }

    /// Makes this dimension take part in propagation from this round on. Round 0 is the first and strongest one; a
    /// dimension without a priority is in round 0. Where the spec is used, a priority of a closed dimension without
    /// axes is an error.
    #[must_use]
    pub fn priority(mut self, round: u32) -> DimSpec {
        self.priority = Some(round);
        self
    }
}

/// One entry of a [`P`]: an axis, an array or a tuple of axes, or none.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no entry of a `P`",
    note = "an entry is the name or number of an axis, a tuple or array of them, `None`, `UNCONSTRAINED` or `dim(..)`"
)]
pub trait Entry {
    /// Converts to the axes of one dimension, the slowest-varying first.
    fn dim(self) -> DimSpec;
}

impl Entry for DimSpec {
    fn dim(self) -> DimSpec {
        self
    }
}

impl Entry for Option<&str> {
    fn dim(self) -> DimSpec {
        closed_dim(self.map(AxisEntry::axis))
    }
}

impl<A: AxisEntry, const N: usize> Entry for [A; N] {
    fn dim(self) -> DimSpec {
        closed_dim(self.map(AxisEntry::axis))
    }
}

impl<A: AxisEntry> Entry for Vec<A> {
    fn dim(self) -> DimSpec {
        closed_dim(self.into_iter().map(AxisEntry::axis))
    }
}

fn closed_dim(axes: impl IntoIterator<Item = AxisSpec>) -> DimSpec {
    DimSpec { axes: axes.into_iter().collect(), ..DimSpec::default() }
}

/// The entries of a [`P`]: one entry, or a tuple of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no list of entries of a `P`",
    note = "an entry for each dimension: `P((\"data\", None))`, and `P(((\"data\", \"model\"), None))` for two axes of one"
)]
pub trait Spec {
    /// Converts to a list with one entry for each dimension.
    fn dims(self) -> Vec<DimSpec>;
}

impl Spec for () {
    fn dims(self) -> Vec<DimSpec> {
        vec![]
    }
}

/// A list of entries whose length is known at run time.
impl Spec for Vec<DimSpec> {
    fn dims(self) -> Vec<DimSpec> {
        self
    }
}

impl Spec for DimSpec {
    fn dims(self) -> Vec<DimSpec> {
        vec![self]
    }
}

impl Spec for Option<&str> {
    fn dims(self) -> Vec<DimSpec> {
        vec![self.dim()]
    }
}

/// Implements `Entry` and `Spec` for types that name one axis: it is an entry, and a list of one entry.
macro_rules! axes {
    ($($T:ty)*) => {
        $(impl Entry for $T {
            fn dim(self) -> DimSpec {
                closed_dim([self.axis()])
            }
        }

        impl Spec for $T {
            fn dims(self) -> Vec<DimSpec> {
                vec![self.dim()]
            }
        })*
    };
}
axes! { &str usize AxisSpec }

/// Implements `Entry` for tuples of axes: inside of a spec, a tuple lists the axes of one dimension.
macro_rules! nested {
    ($($($A:ident)+;)*) => {
        $(impl<$($A: AxisEntry),+> Entry for ($($A,)+) {
            #[allow(non_snake_case, reason = "one name for a type and its value")]
            fn dim(self) -> DimSpec {
                let ($($A,)+) = self;
                closed_dim([$($A.axis()),+])
            }
        })*
    };
}
nested! { A; A B; A B C; A B C D; }

/// Implements `Spec` for tuples of entries, one for each dimension.
macro_rules! tuples {
    ($($($E:ident)+;)*) => {
        $(impl<$($E: Entry),+> Spec for ($($E,)+) {
            #[allow(non_snake_case, reason = "one name for a type and its value")]
            fn dims(self) -> Vec<DimSpec> {
                let ($($E,)+) = self;
                vec![$($E.dim()),+]
            }
        })*
    };
}
tuples! { A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; A B C D E F G H; }

/// The axes that shard each dimension of an array; dimensions after the last entry are not sharded.
/// `jax.sharding.PartitionSpec`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PartitionSpec(pub(super) Vec<DimSpec>);

/// Makes a [`PartitionSpec`] in JAX's notation: `P(("data", None))`, `P("data")`, `P(())`, and `P((("data", "model"),
/// None))` or `P((["data", "model"], None))` for a dimension that two axes shard. As in PyTorch/XLA, the number of a
/// mesh axis can stand for its name.
///
/// ```
/// use pallas_rt::sharding::{Mesh, NamedSharding, P};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)])?);
/// let rows = NamedSharding::new(&mesh, P(("data", None)));
/// assert_eq!(rows.to_string(), "[{\"data\"}, {}]");
/// assert_eq!(NamedSharding::new(&mesh, P(None)).to_string(), "[{}]");
/// assert_eq!(rows, NamedSharding::new(&mesh, P((0, None))));
/// let both = NamedSharding::new(&mesh, P((("data", "model"), None)));
/// assert_eq!(both, NamedSharding::new(&mesh, P(((0, 1), None))));
/// # Ok::<(), pallas_rt::ir::Diag>(())
/// ```
#[allow(non_snake_case, reason = "as in JAX")]
pub fn P(spec: impl Spec) -> PartitionSpec {
    PartitionSpec(spec.dims())
}

impl PartitionSpec {
    /// Resolves this spec to the sharding of an array of a shape on a mesh; messages call the array `array`.
    ///
    /// # Errors
    /// More entries than dimensions, an axis that the mesh does not have, an axis twice.
    pub(crate) fn resolve(
        &self,
        mesh: &Mesh,
        shape: &[usize],
        array: &dyn fmt::Display,
    ) -> std::result::Result<Sharding, Diag> {
        let mut dims = vec![];
        for spec in &self.0 {
            let axes = spec.axes.iter().map(|axis| axis.resolve(mesh)).collect::<std::result::Result<_, _>>()?;
            dims.push(DimSharding { axes, open: spec.is_open, priority: spec.priority });
        }
        if dims.len() > shape.len() {
            let found = format!("a spec of {} entries for an array of {array}", dims.len());
            return Err(Diag::new("sharding", At::Op, found, "one entry for each dimension at most"));
        }
        dims.resize_with(shape.len(), DimSharding::default);
        let sharding = Sharding { dims, ..Sharding::default() };
        sharding.verify_for(mesh, shape.len(), array)?;
        Ok(sharding)
    }
}

/// A mesh, and the axes of it that shard an array. `jax.sharding.NamedSharding`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedSharding {
    mesh: Arc<Mesh>,
    spec: PartitionSpec,
}

impl NamedSharding {
    /// Shards arrays on a mesh by a spec. Errors in the spec are reported where it is used.
    pub fn new(mesh: &Arc<Mesh>, spec: PartitionSpec) -> NamedSharding {
        let named = |spec: DimSpec| DimSpec {
            axes: spec.axes.into_iter().map(|axis| axis.with_axis_name(mesh)).collect(),
            ..spec
        };
        NamedSharding { mesh: mesh.clone(), spec: PartitionSpec(spec.0.into_iter().map(named).collect()) }
    }

    /// The mesh.
    pub fn mesh(&self) -> &Arc<Mesh> {
        &self.mesh
    }

    /// The sharding of an array of a type; `at` is the line that errors name.
    pub(crate) fn sharding_of_type(&self, ty: &Type, at: Loc) -> Result<Sharding> {
        self.spec.resolve(&self.mesh, &ty.shape, ty).map_err(|diag| Error::operation(at, diag))
    }

    /// The sharding of an array of a shape, if every extent is a multiple of its number of blocks. Messages call the
    /// array `array`.
    pub(super) fn even_sharding(&self, shape: &[usize], array: &dyn fmt::Display, at: Loc) -> Result<Sharding> {
        let wrong = |diag| Error::operation(at, diag);
        let own = self.spec.resolve(&self.mesh, shape, array).map_err(wrong)?;
        for (dim, (parts, n)) in own.blocks_per_dim().into_iter().zip(shape).enumerate() {
            if !n.is_multiple_of(parts) {
                let found = format!("dimension {dim} of an array of {array} in {parts} parts");
                return Err(wrong(Diag::new(
                    "sharding",
                    At::Op,
                    found,
                    "an extent that the axes divide, or fewer axes",
                )));
            }
        }
        Ok(own)
    }

    /// The sharding of an array of a shape without a known element type, if every extent is a multiple of its number of
    /// blocks.
    pub(super) fn sharding_of_shape(&self, shape: &[usize], at: Loc) -> Result<Sharding> {
        self.even_sharding(shape, &format!("the shape {shape:?}"), at)
    }

    /// The shape of a device's block of an array.
    ///
    /// # Errors
    /// As for [`device_put`](super::device_put).
    ///
    /// ```
    /// use pallas_rt::sharding::{Mesh, NamedSharding, P};
    /// use std::sync::Arc;
    /// let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("a mesh"));
    /// let sharding = NamedSharding::new(&mesh, P(("data", "model")));
    /// assert_eq!(sharding.shard_shape(&[8, 8])?, [4, 2]);
    /// assert_eq!(sharding.devices_indices_map(&[8, 8])?[5], (5, vec![4..8, 2..4]));
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    pub fn shard_shape(&self, shape: &[usize]) -> Result<Vec<usize>> {
        Ok(self.sharding_of_shape(shape, Loc::caller())?.local_shape(shape))
    }

    /// By position in the mesh, the device and the range of indices of its block in each dimension of an array of this
    /// shape.
    ///
    /// # Errors
    /// As for [`device_put`](super::device_put).
    #[track_caller]
    pub fn devices_indices_map(&self, shape: &[usize]) -> Result<Vec<(usize, Vec<Range<usize>>)>> {
        let own = self.sharding_of_shape(shape, Loc::caller())?;
        let positions = 0..self.mesh.device_count();
        Ok(positions.map(|p| (self.mesh.device(p), block_ranges(&self.mesh, &own, shape, p))).collect())
    }

    /// Returns true if both declare the same about arrays with `rank` dimensions: `P("data")` and `P(("data", None))`
    /// do, and axes of size 1 mean nothing.
    ///
    /// # Errors
    /// More entries than dimensions, an axis that the mesh does not have, an axis twice.
    ///
    /// ```
    /// use pallas_rt::sharding::{Mesh, NamedSharding, P};
    /// use std::sync::Arc;
    /// let mesh = Arc::new(Mesh::new(&[("batch", 1), ("model", 4)]).expect("a mesh"));
    /// let [a, b] = [P("model"), P((("batch", 1), None))].map(|spec| NamedSharding::new(&mesh, spec));
    /// assert!(a != b && a.is_equivalent_to(&b, 2)?);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    pub fn is_equivalent_to(&self, other: &NamedSharding, rank: usize) -> Result<bool> {
        let at = Loc::caller();
        let of = |named: &NamedSharding| named.sharding_of_shape(&vec![0; rank], at).map(|own| own.normal(&named.mesh));
        let [a, b] = [self, other].map(of);
        Ok(self.mesh == other.mesh && a? == b?)
    }
}

impl fmt::Display for NamedSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}
