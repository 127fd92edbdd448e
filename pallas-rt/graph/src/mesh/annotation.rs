//! Statements of a graph about the sharding of a value.
use super::{DimSharding, Mesh, Sharding};
use std::fmt;
use std::sync::Arc;

/// An operation that is the identity, and says how its operand is divided among devices.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Annotation {
    /// `jax.lax.with_sharding_constraint`: the value has this sharding.
    Constraint(Placed),
    /// The values of a group have one sharding, whichever it is. Numbers are those of a graph alone: graphs that it calls,
    /// also bodies of loops, have groups of their own.
    Group(u32),
    /// Shardings go through it in these directions alone.
    Barrier(Flow),
}

/// A sharding on a mesh.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Placed {
    /// The mesh.
    pub mesh: Arc<Mesh>,
    /// The sharding.
    pub sharding: Sharding,
}

/// The directions in which shardings go through a barrier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Flow {
    /// From the operand to the result.
    Forward,
    /// From the result to the operand.
    Backward,
    /// Nowhere.
    None,
    /// Both ways. It stops nothing, but what is declared of an array in front of it is no demand on a kernel behind it, which
    /// may have the array gathered. Shardy has no such barrier.
    Both,
}

impl Flow {
    /// Shardy's name.
    pub fn name(self) -> &'static str {
        match self {
            Flow::Forward => "FORWARD",
            Flow::Backward => "BACKWARD",
            Flow::None => "NONE",
            Flow::Both => "BOTH",
        }
    }
}

impl Annotation {
    /// The same where the groups of its graph begin with this number.
    #[must_use]
    pub(crate) fn in_groups_from(&self, first: u32) -> Annotation {
        match self {
            Annotation::Group(group) => Annotation::Group(first + group),
            Annotation::Constraint(_) | Annotation::Barrier(_) => self.clone(),
        }
    }

    /// JAX's name of the operation, and its parameters.
    pub(crate) fn jaxpr(&self) -> (String, Vec<String>) {
        match self {
            Annotation::Constraint(Placed { mesh, sharding }) => {
                ("sharding_constraint".into(), vec![format!("sharding={}", sharding.text(mesh))])
            }
            Annotation::Group(group) => ("shard_alike".into(), vec![format!("group={group}")]),
            Annotation::Barrier(flow) => ("propagation_barrier".into(), vec![format!("direction={}", flow.name())]),
        }
    }

    /// The annotation of a batch of values: nothing is said about the batch's axis, which is the first one.
    pub(crate) fn batched(&self) -> Annotation {
        match self {
            Annotation::Constraint(Placed { mesh, sharding }) => {
                let mut sharding = sharding.clone();
                sharding.dims.insert(0, DimSharding { open: true, ..DimSharding::default() });
                Annotation::Constraint(Placed { mesh: mesh.clone(), sharding })
            }
            Annotation::Group(_) | Annotation::Barrier(_) => self.clone(),
        }
    }
}

impl fmt::Display for Annotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Annotation::Constraint(Placed { mesh, sharding }) => {
                write!(f, "sharding_constraint mesh{mesh} sharding<{}>", sharding.text(mesh))
            }
            Annotation::Group(group) => write!(f, "sharding_group group({group})"),
            Annotation::Barrier(flow) => write!(f, "propagation_barrier direction({})", flow.name()),
        }
    }
}

impl std::str::FromStr for Annotation {
    type Err = String;
    /// Reads the text of an annotation back.
    fn from_str(text: &str) -> Result<Annotation, String> {
        let wrong = || format!("`{text}` is no annotation");
        let (name, rest) = text.split_once(' ').ok_or_else(wrong)?;
        let inside = |open: &str| rest.strip_prefix(open).and_then(|rest| rest.strip_suffix(')')).ok_or_else(wrong);
        match name {
            "sharding_constraint" => {
                let rest = rest.strip_prefix("mesh").and_then(|rest| rest.strip_suffix('>')).ok_or_else(wrong)?;
                let (mesh, sharding) = rest.split_once(" sharding<").ok_or_else(wrong)?;
                let mesh: Mesh = mesh.parse()?;
                let sharding = Sharding::parse(sharding, &mesh)?;
                Ok(Annotation::Constraint(Placed { mesh: Arc::new(mesh), sharding }))
            }
            "sharding_group" => Ok(Annotation::Group(inside("group(")?.parse().map_err(|_| wrong())?)),
            "propagation_barrier" => {
                let flow = inside("direction(")?;
                let all = [Flow::Forward, Flow::Backward, Flow::None, Flow::Both];
                Ok(Annotation::Barrier(all.into_iter().find(|f| f.name() == flow).ok_or_else(wrong)?))
            }
            _ => Err(wrong()),
        }
    }
}
