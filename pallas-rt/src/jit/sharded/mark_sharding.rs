//! Declarations for whole trees, by patterns of paths.
use super::{declared_sharding, push_sharding_constraint};
use crate::array::Array;
use crate::jit::function::{CallArguments, Function};
use crate::jit::trace::{sharding_constraint_of, type_of};
use crate::sharding::{
    Mesh, MeshPlacement, NamedSharding, ShardingDeclaration, ShardingPolicy, shard_with_declaration,
};
use crate::tree::{self, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::mesh::MeshSharding;
use pallas_ir::{At, Diag, Loc};
use std::sync::Arc;

/// Declares the arrays of a tree to be sharded: by one [`P`](crate::sharding::P) all of them, by a [`ShardingPolicy`]
/// each by the first pattern that matches its path; arrays that no pattern matches stay as they are. Outside of traced
/// functions arrays are sharded at once, as by [`device_put`](crate::sharding::device_put); a traced array gets a
/// constraint. PyTorch/XLA's `mark_sharding`.
///
/// An array that is declared to be sharded in this way already stays as it is; `P(())` declares that it is replicated,
/// which is not the same as no declaration.
///
/// # Errors
/// A pattern that matches no array; an array with another declaration, which [`clear_sharding`] takes back; an axis
/// that the mesh does not have, an axis twice, more entries than dimensions, a dimension that its axes do not divide.
/// The message has the array's path.
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::sharding::{Mesh, P, ShardingPolicy};
/// use pallas_rt::{clear_sharding, mark_sharding};
/// use std::sync::Arc;
/// #[derive(Clone, Tree)]
/// struct Layer {
///     weight: Array,
///     bias: Array,
/// }
/// let mesh = Arc::new(Mesh::new(&[("model", 4)]).expect("a mesh"));
/// let layer = || -> Result<Layer> { Ok(Layer { weight: Array::full(&[8, 8], 1.0f32)?, bias: Array::full(&[8], 0.0f32)? }) };
/// let policy = ShardingPolicy::new().rule("[*].weight", P((None, "model"))).rule("[*].bias", P(()));
/// let layers = mark_sharding(&vec![layer()?, layer()?], &mesh, &policy)?;
/// assert_eq!(layers[1].weight.sharding().expect("it is sharded").blocks_per_dim(), [1, 4]);
/// let layers = mark_sharding(&layers, &mesh, &policy)?;
/// let other = ShardingPolicy::new().rule("[*].weight", P("model"));
/// let error = mark_sharding(&layers, &mesh, &other).err().expect("another spec").to_string();
/// assert!(error.contains("`[0].weight`") && error.contains("clear_sharding"));
/// mark_sharding(&clear_sharding(&layers)?, &mesh, &other)?;
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn mark_sharding<T: Tree>(tree: &T, mesh: &Arc<Mesh>, how: impl Into<ShardingPolicy>) -> Result<T> {
    mark_tree_sharding(tree, mesh, &how.into(), Loc::caller())
}

impl ShardingPolicy {
    /// The policy with only the rules that match an array of a tree: for one that also has rules for other trees or
    /// names.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// use pallas_rt::sharding::{P, ShardingPolicy};
    /// let policy = ShardingPolicy::new().rule("[*]", P("data")).rule("hidden[*]", P("data"));
    /// let all = policy.for_tree(&vec![Array::full(&[4], 1.0f32)?]);
    /// assert_eq!(all.rules().iter().map(|rule| &rule.pattern[..]).collect::<Vec<_>>(), ["[*]"]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[must_use]
    pub fn for_tree<T: Tree>(&self, tree: &T) -> ShardingPolicy {
        self.restrict_to_paths(&tree::paths(tree))
    }
}

/// The function with declared shardings of its arguments and results, each by a [`P`](crate::sharding::P) for all
/// arrays or a [`ShardingPolicy`] of their paths, which for arguments begin with the argument's number; `in_shardings`
/// and `out_shardings` of `jax.jit`. The result is a function for [`jit`](crate::jit()),
/// [`partitioned`](crate::partitioned()) and the like, which reshard an argument with another sharding at each call.
///
/// # Errors
/// The function's own; those of [`mark_sharding`].
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::sharding::{Mesh, P, ShardingPolicy};
/// use pallas_rt::{in_out_shardings, jit};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("a mesh"));
/// let inputs = ShardingPolicy::new().rule("0", P("data")).rule("1", P((None, "model")));
/// let f = jit(in_out_shardings(|x: &Array, w: &Array| x.matmul(w), &mesh, inputs, P("data")));
/// let y = f(&Array::full(&[4, 8], 1.0f32)?, &Array::full(&[8, 8], 1.0f32)?)?;
/// assert_eq!(y.sharding().expect("it is sharded").blocks_per_dim(), [2, 1]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn in_out_shardings<Args: Tree + 'static, F: Function<Args>>(
    f: F,
    mesh: &Arc<Mesh>,
    inputs: impl Into<ShardingPolicy>,
    outputs: impl Into<ShardingPolicy>,
) -> F::Boxed<Result<F::Out>> {
    let (at, mesh, inputs, outputs) = (Loc::caller(), mesh.clone(), inputs.into(), outputs.into());
    F::boxed(move |given: CallArguments<'_, Args>| {
        let args = mark_tree_sharding(&(given.tuple)(), &mesh, &inputs, at)?;
        mark_tree_sharding(&f.call(&args)?, &mesh, &outputs, at)
    })
}

/// Declares the arrays of a tree to be sharded by a policy, at the line `at`; see [`mark_sharding`].
fn mark_tree_sharding<T: Tree>(tree: &T, mesh: &Arc<Mesh>, policy: &ShardingPolicy, at: Loc) -> Result<T> {
    let paths = tree::paths(tree);
    if let Some(pattern) = policy.first_unmatched_pattern(&paths) {
        let shown = paths.iter().take(4).map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ");
        let rest = if paths.len() > 4 { format!(" and {} more", paths.len() - 4) } else { String::new() };
        let found = format!("pattern `{pattern}` of the policy matches no array");
        let help = format!("the paths are {shown}{rest}; `policy.for_tree(&tree)` leaves out rules for other trees");
        return Err(Error::operation(at, Diag::new("sharding", At::Op, found, help)));
    }
    let mut paths = paths.into_iter();
    tree::map(tree, |x| {
        let path = paths.next().expect("a path for each leaf");
        let Some(rule) = policy.matching(&path).map(|rule| &policy.rules()[rule]) else { return Ok(x.clone()) };
        let Some(spec) = &rule.spec else { return Ok(x.clone()) };
        let sharding = NamedSharding::new(mesh, spec.clone());
        // `**` stands for one spec for all arrays, which is no pattern that the user chose.
        let pattern = (rule.pattern != "**").then(|| rule.pattern.as_str().into());
        let declaration = ShardingDeclaration { at, pattern };
        mark_array_sharding(x, &sharding, declaration).map_err(|error| add_path_to_error(error, &path, &rule.pattern))
    })
}

/// Takes back the declarations of a tree's arrays: they stay where they are, but propagation may shard them in another
/// way; a traced array is replaced by the operand of its constraint. PyTorch/XLA's `clear_sharding`.
///
/// # Errors
/// The error that an array holds.
pub fn clear_sharding<T: Tree>(tree: &T) -> Result<T> {
    tree::map(tree, |x| {
        x.check()?;
        if let Some((_, _, before)) = sharding_constraint_of(x) {
            return Ok(before);
        }
        Ok(match x.placement() {
            Some(placement) if !placement.is_cleared => {
                let placement = MeshPlacement { declared: None, is_cleared: true, ..placement.clone() };
                Array::from_blocks(x.dtype(), x.shape(), placement.into_sharded_blocks(x.local_blocks().to_vec()))
            }
            _ => x.clone(),
        })
    })
}

/// Declares an array to be sharded; one that is declared so already stays as it is, another declaration is an error.
fn mark_array_sharding(x: &Array, sharding: &NamedSharding, declaration: ShardingDeclaration) -> Result<Array> {
    x.check()?;
    let at = declaration.at;
    let mesh = sharding.mesh();
    let new = MeshSharding { mesh: mesh.clone(), sharding: sharding.sharding_of_type(&type_of(x), at)?.normal(mesh) };
    let earlier = match sharding_constraint_of(x) {
        Some((placed, line, _)) => {
            let sharding = placed.sharding.normal(&placed.mesh);
            Some((MeshSharding { sharding, ..placed }, line))
        }
        None => {
            let line = |x: &Array| x.placement().and_then(|p| p.declared.as_ref()).map_or(Loc::NONE, |d| d.at);
            declared_sharding(x).map(|placed| (placed, line(x)))
        }
    };
    match earlier {
        Some((old, _)) if old == new => Ok(x.clone()),
        Some((old, line)) => {
            let text = |placed: &MeshSharding| format!("{} on {}", placed.sharding.text(&placed.mesh), placed.mesh);
            let found = format!("{} is declared as {} at {line}, and here as {}", type_of(x), text(&old), text(&new));
            Err(Error::operation(
                at,
                Diag::new("sharding", At::Op, found, "take the first one back by `clear_sharding`"),
            ))
        }
        None if x.is_traced() => push_sharding_constraint(x, sharding, at),
        None => shard_with_declaration(x, sharding, declaration),
    }
}

/// Adds the path of the array, and the pattern that matched it, to an error.
fn add_path_to_error(error: Error, path: &str, pattern: &str) -> Error {
    match error {
        Error::Operation(operation) => {
            let mut diag = operation.diag;
            let by = if pattern == "**" { String::new() } else { format!(" by pattern `{pattern}`") };
            diag.message = format!("array `{path}`{by}: {}", diag.message);
            Error::operation(operation.called, diag)
        }
        error => error,
    }
}
