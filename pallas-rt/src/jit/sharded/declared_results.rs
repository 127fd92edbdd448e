//! Results of functions that count as declared like the arguments they replace, so that a second call does not compile.
use crate::array::Array;
use crate::sharding::{MeshPlacement, ShardingDeclaration};
use pallas_graph::mesh::MeshSharding;

/// By argument of a compiled function, its declared sharding, and the line and pattern that declare it.
type ArgumentDeclarations<'a> = (&'a [Option<MeshSharding>], &'a [Option<ShardingDeclaration>]);

/// Returns true if an argument fits the sharding `declared` that a function was compiled for: it is declared so, or is
/// a result that a function sharded so. A training step that replaces declared parameters by its results thus does not
/// recompile.
pub(in crate::jit) fn matches_declaration(x: &Array, declared: Option<&MeshSharding>) -> bool {
    let Some(placement) = x.placement() else { return declared.is_none() };
    let is_declared = placement.declared.is_some();
    match declared {
        None => !is_declared,
        Some(_) if !is_declared && placement.is_cleared => false,
        Some(own) if is_declared => {
            own.mesh == placement.mesh && own.sharding == placement.sharding.normal(&placement.mesh)
        }
        Some(own) => is_sharded_as(placement, own),
    }
}

/// Returns true if an array is sharded along the axes of a declaration, whose dimensions may be open or have
/// priorities.
fn is_sharded_as(placement: &MeshPlacement, declared: &MeshSharding) -> bool {
    placement.sharding_on_mesh(&declared.mesh).is_some_and(|sharding| declared.sharding.axes() == sharding.axes())
}

/// Returns the arguments for a compilation, each leaf on its own: a result that is passed in place of a declared
/// argument gets the declaration which that argument had at the most similar call. `known` has the declarations of
/// earlier calls whose arguments have the same structures.
pub(in crate::jit) fn keep_argument_declarations<'a>(
    known: impl Iterator<Item = ArgumentDeclarations<'a>>,
    args: &[Array],
) -> Vec<Array> {
    let alike = |(declared, _): &ArgumentDeclarations<'_>| {
        let same = |(own, x): &(&Option<MeshSharding>, &Array)| own.is_some() && matches_declaration(x, own.as_ref());
        declared.iter().zip(args).filter(same).count()
    };
    let Some((declared, statements)) = known.max_by_key(alike) else { return args.to_vec() };
    let own = declared.iter().zip(statements);
    args.iter()
        .zip(own)
        .map(|(x, (own, statement))| keep_argument_declaration(x, own.as_ref(), statement.as_ref()))
        .collect()
}

/// Returns the argument `x` for a recompilation: a result that replaces an argument declared as `declared` keeps that
/// declaration. If the result is sharded in another way, its own sharding is declared, at the line of `statement`.
fn keep_argument_declaration(
    x: &Array,
    declared: Option<&MeshSharding>,
    statement: Option<&ShardingDeclaration>,
) -> Array {
    let (Some(placement), Some(own), Some(statement)) = (x.placement(), declared, statement) else { return x.clone() };
    if placement.declared.is_some() || placement.is_cleared {
        return x.clone();
    }
    let Some(blocks) = placement.reorder_blocks_for_mesh(&own.mesh, x.local_blocks()) else { return x.clone() };
    let Some(found) = placement.sharding_on_mesh(&own.mesh) else { return x.clone() };
    let sharding = if own.sharding.axes() == found.axes() { own.sharding.clone() } else { found };
    let (mesh, declared) = (own.mesh.clone(), Some(statement.clone()));
    let placement = MeshPlacement { mesh, sharding, declared, ..placement.clone() };
    Array::from_blocks(x.dtype(), x.shape(), placement.into_sharded_blocks(blocks))
}
