//! The check that a step of a loop returns a tree like the one it takes.
use super::leaf_message_prefix;
use crate::array::Array;
use crate::jit::axis_names;
use crate::jit::trace::{manual_axis_states, type_of};
use crate::tree::{self, Structure, Tree};
use pallas_device::error::{Error, Result};
use pallas_ir::{At, Diag, Loc};

/// Checks that a step returns a tree (`after`) like the one it takes (`before`); returns the leaves of `after`.
///
/// # Errors
/// Another tree, or a leaf of another type.
pub(super) fn check_carried<C: Tree>(before: &C, after: &C, at: Loc) -> Result<Vec<Array>> {
    let [a, b] = [before, after].map(|tree| tree::structure(tree));
    let (old, new) = (tree::leaves(before), tree::leaves(after));
    check_carry_types(&a, &b, &old, &new, &|| tree::paths(before), at)?;
    Ok(new)
}

/// Returns an error unless the structures, and the types and states of the leaves, of two carried values are equal.
fn check_carry_types(
    old_structure: &Structure,
    new_structure: &Structure,
    old: &[Array],
    new: &[Array],
    paths: &dyn Fn() -> Vec<String>,
    at: Loc,
) -> Result<()> {
    let refused = |message: String, help: &str| Err(Error::operation(at, Diag::new("carry", At::Op, message, help)));
    if old_structure != new_structure {
        return refused(
            format!("a step takes {old_structure} and returns {new_structure}"),
            "it returns a tree like the one it takes",
        );
    }
    for ((old, new), path) in old.iter().zip(new).zip(paths()) {
        new.check()?;
        if type_of(old) != type_of(new) {
            let message =
                format!("a step takes {}{} and returns {}", leaf_message_prefix("", &path), type_of(old), type_of(new));
            return refused(message, "it returns the type it takes: cast or reshape one of them");
        }
        if let (Some(old), Some(new)) =
            (manual_axis_states(old).or_else(axis_names::all_invariant_states), manual_axis_states(new))
            && old != new
        {
            let path = if path.is_empty() { "an array".into() } else { format!("`{path}`") };
            let message = format!(
                "a step takes {path}, {}, and returns it {}",
                axis_names::describe_varying_axes(&old),
                axis_names::describe_varying_axes(&new)
            );
            return refused(message, "start with a value like the one it returns: `pvary` of it over the axis");
        }
    }
    Ok(())
}
