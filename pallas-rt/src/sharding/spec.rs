//! The axes that divide each dimension of an array, as users write them.
use crate::error::{Error, Result};
use pallas_graph::mesh::{DimSharding, Mesh, Sharding};
use pallas_ir::{At, Diag, Loc, Type};
use std::sync::Arc;

/// The axes of one dimension, and how far they bind propagation; see [`dim`] and [`UNCONSTRAINED`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DimSpec {
    axes: Vec<String>,
    /// True if propagation may divide it further.
    is_open: bool,
    /// The round of propagation in which it counts.
    priority: Option<u32>,
}

/// The entry of a dimension that propagation may divide; `PartitionSpec.UNCONSTRAINED` of JAX. Unlike JAX's it is also for
/// [`device_put`](super::device_put), which does not divide the dimension; functions of the array may.
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

/// The entry of a dimension with more than its axes: whether propagation may divide it further, and its priority.
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
    /// The same dimension, which propagation may divide further.
    #[must_use]
    pub fn open(mut self) -> DimSpec {
        self.is_open = true;
        self
    }

    /// The same dimension, which takes part in propagation from this round on. Round 0 is the first and strongest one; a
    /// dimension without a priority is in round 0. Where the spec is used, a priority of a closed dimension without axes is
    /// an error.
    #[must_use]
    pub fn priority(mut self, round: u32) -> DimSpec {
        self.priority = Some(round);
        self
    }
}

/// One entry of a [`P`]: an axis, several axes, or none.
pub trait Entry {
    /// The axes, the slowest first.
    fn dim(self) -> DimSpec;
}

impl Entry for DimSpec {
    fn dim(self) -> DimSpec {
        self
    }
}

impl Entry for &str {
    fn dim(self) -> DimSpec {
        [self].dim()
    }
}

impl Entry for Option<&str> {
    fn dim(self) -> DimSpec {
        closed(self)
    }
}

impl<const N: usize> Entry for [&str; N] {
    fn dim(self) -> DimSpec {
        closed(self)
    }
}

fn closed<'a>(axes: impl IntoIterator<Item = &'a str>) -> DimSpec {
    DimSpec { axes: axes.into_iter().map(String::from).collect(), ..DimSpec::default() }
}

/// A list of entries: one entry, or a tuple of them.
pub trait Spec {
    /// The entries.
    fn dims(self) -> Vec<DimSpec>;
}

impl Spec for () {
    fn dims(self) -> Vec<DimSpec> {
        vec![]
    }
}

impl Spec for DimSpec {
    fn dims(self) -> Vec<DimSpec> {
        vec![self]
    }
}

impl Spec for &str {
    fn dims(self) -> Vec<DimSpec> {
        vec![self.dim()]
    }
}

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

/// The axes that divide each dimension of an array; dimensions behind the last entry are not divided.
/// `jax.sharding.PartitionSpec`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PartitionSpec(Vec<DimSpec>);

/// A [`PartitionSpec`], as JAX writes it: `P(("data", None))`, `P("data")`, `P(())`, and `P((["data", "model"], None))` for
/// a dimension that two axes divide.
///
/// ```
/// use pallas_rt::sharding::{Mesh, NamedSharding, P};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)])?);
/// let rows = NamedSharding::new(&mesh, P(("data", None)));
/// assert_eq!(rows.to_string(), "[{\"data\"}, {}]");
/// # Ok::<(), pallas_rt::ir::Diag>(())
/// ```
#[allow(non_snake_case, reason = "as in JAX")]
pub fn P(spec: impl Spec) -> PartitionSpec {
    PartitionSpec(spec.dims())
}

impl PartitionSpec {
    /// The sharding of an array of a type on a mesh.
    ///
    /// # Errors
    /// More entries than dimensions, an axis that the mesh does not have, an axis twice.
    pub(crate) fn on(&self, mesh: &Mesh, ty: &Type) -> std::result::Result<Sharding, Diag> {
        if self.0.len() > ty.shape.len() {
            let found = format!("a spec of {} entries for an array of {ty}", self.0.len());
            return Err(Diag::new("sharding", At::Op, found, "one entry for each dimension at most"));
        }
        let mut sharding = Sharding::replicated(ty.shape.len());
        for (dim, spec) in sharding.dims.iter_mut().zip(&self.0) {
            let axes = spec.axes.iter().map(|name| mesh.find(name)).collect::<std::result::Result<_, _>>()?;
            *dim = DimSharding { axes, open: spec.is_open, priority: spec.priority };
        }
        sharding.verify(mesh, ty)?;
        Ok(sharding)
    }
}

/// A mesh, and the axes of it that divide an array. `jax.sharding.NamedSharding`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedSharding {
    mesh: Arc<Mesh>,
    spec: PartitionSpec,
}

impl NamedSharding {
    /// The division of arrays by a spec on a mesh.
    pub fn new(mesh: &Arc<Mesh>, spec: PartitionSpec) -> NamedSharding {
        NamedSharding { mesh: mesh.clone(), spec }
    }

    /// The mesh.
    pub fn mesh(&self) -> &Arc<Mesh> {
        &self.mesh
    }

    /// The sharding of an array of a type.
    pub(crate) fn of(&self, ty: &Type, at: Loc) -> Result<Sharding> {
        self.spec.on(&self.mesh, ty).map_err(|diag| Error::operation(at, diag))
    }
}

impl std::fmt::Display for NamedSharding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dim = |spec: &DimSpec| {
            let names = spec.axes.iter().map(|name| format!("{name:?}")).chain(spec.is_open.then(|| "?".into()));
            let priority = spec.priority.map_or(String::new(), |round| format!("p{round}"));
            format!("{{{}}}{priority}", names.collect::<Vec<_>>().join(", "))
        };
        let dims: Vec<String> = self.spec.0.iter().map(dim).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}
