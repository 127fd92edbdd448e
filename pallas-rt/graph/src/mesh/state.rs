//! Values inside of `shard_map`, as the devices of a mesh have them.
use super::Mesh;

/// A value inside of a [`ShardMap`](crate::call::ShardMap), along one axis of its mesh.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum State {
    /// Devices along the axis have equal values.
    #[default]
    Invariant,
    /// Devices have values of their own.
    Varying,
    /// Devices have parts of a sum, which nothing has combined yet.
    Unreduced,
    /// Devices have equal values, whose cotangents are parts of a sum: the dual of `Unreduced`.
    Reduced,
}

/// The state of a value along each axis of a mesh.
pub type States = Vec<State>;

impl State {
    /// JAX's name.
    pub fn name(self) -> &'static str {
        match self {
            State::Invariant => "invarying",
            State::Varying => "varying",
            State::Unreduced => "unreduced",
            State::Reduced => "reduced",
        }
    }
}

/// The states of a value that all devices of a mesh have alike.
pub fn invariant(mesh: &Mesh) -> States {
    vec![State::Invariant; mesh.rank()]
}
