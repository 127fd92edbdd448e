//! Relation between the values that devices of a mesh have inside of `shard_map`.
use super::Mesh;

/// Relation between the values of the devices along one axis of a mesh, inside of a
/// [`ShardMap`](crate::call::ShardMap).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ManualAxisState {
    /// The devices have equal values.
    #[default]
    Invariant,
    /// The devices may have different values.
    Varying,
    /// The devices have partial sums, which nothing has combined yet.
    Unreduced,
    /// The devices have equal values whose cotangents are partial sums: the dual of `Unreduced`.
    Reduced,
}

/// The states (invariant, varying ..) of one value in a `shard_map`: one for each axis of the mesh.
pub type AxisStates = Vec<ManualAxisState>;

impl ManualAxisState {
    /// Returns the name that JAX uses.
    pub fn name(self) -> &'static str {
        match self {
            ManualAxisState::Invariant => "invarying",
            ManualAxisState::Varying => "varying",
            ManualAxisState::Unreduced => "unreduced",
            ManualAxisState::Reduced => "reduced",
        }
    }
}

/// Returns the states of a value that is equal on all devices of a mesh.
pub fn all_invariant_states(mesh: &Mesh) -> AxisStates {
    vec![ManualAxisState::Invariant; mesh.rank()]
}
