//! Functions whose values are on several meshes: they run on one mesh if the others are views of its devices.
use super::{DeclaredShardings, declared_sharding};
use crate::array::Array;
use crate::sharding::Mesh;
use pallas_device::error::{Error, Result};
use pallas_graph::mesh::MeshSharding;
use pallas_graph::shard::translate_constraints;
use pallas_graph::{Graph, Op};
use pallas_ir::{At, Diag, Loc};
use std::borrow::Cow;
use std::sync::Arc;

/// A mesh, with the line and the kind of value that name it.
struct NamedMesh<'a> {
    mesh: &'a Arc<Mesh>,
    at: Loc,
    by: MeshSource,
}

/// The kind of value that names a mesh.
enum MeshSource {
    ShardMap,
    Constraint,
    /// A parameter, by its index.
    Param(usize),
}

impl NamedMesh<'_> {
    fn describe(&self, name_parameter: &dyn Fn(usize) -> String) -> String {
        let by = match self.by {
            MeshSource::ShardMap => "a `shard_map`".to_string(),
            MeshSource::Constraint => "a constraint".to_string(),
            MeshSource::Param(i) => name_parameter(i),
        };
        let at = if self.at == Loc::NONE { String::new() } else { format!(" ({})", self.at) };
        format!("{by}{at} on the mesh {}", self.mesh)
    }
}

impl DeclaredShardings {
    /// Collects the declarations of a graph's annotations and of `args`, the arrays that are its parameters, and
    /// rewrites the graph so that everything is on one mesh. `name_parameter` names a parameter in messages.
    ///
    /// # Errors
    /// Meshes of other devices, or whose axes have no parts in common.
    pub(in crate::jit) fn collect_declarations<'g, 'a>(
        graph: &'g Graph,
        args: impl Iterator<Item = &'a Array> + Clone,
        name_parameter: &dyn Fn(usize) -> String,
    ) -> Result<(Cow<'g, Graph>, DeclaredShardings)> {
        let mut all: Vec<NamedMesh<'_>> = vec![];
        collect_meshes(graph, &mut all)?;
        for (i, x) in args.clone().enumerate() {
            let placement = x.placement();
            if let Some((placement, declared)) = placement.and_then(|own| Some((own, own.declared.as_ref()?))) {
                all.push(NamedMesh { mesh: &placement.mesh, at: declared.at, by: MeshSource::Param(i) });
            }
        }
        let mesh = choose_mesh(&all, name_parameter)?;
        let own = |placed: MeshSharding| match &mesh {
            Some(mesh) if placed.mesh != *mesh => mesh.translate_sharding(&placed.mesh, &placed.sharding),
            _ => Some(placed.sharding),
        };
        let mut shardings = vec![];
        for (i, x) in args.clone().enumerate() {
            let found = declared_sharding(x).map(|placed| own(placed).ok_or(i)).transpose();
            shardings.push(found.map_err(|i| {
                mesh_mismatch_error(&all, |by| matches!(by, MeshSource::Param(k) if *k == i), name_parameter)
            })?);
        }
        let statements = args.map(|x| x.placement().and_then(|placement| placement.declared.clone())).collect();
        let graph = match &mesh {
            Some(mesh) if all.iter().any(|named| named.mesh != mesh) => {
                let by_constraint =
                    || mesh_mismatch_error(&all, |by| matches!(by, MeshSource::Constraint), name_parameter);
                Cow::Owned(translate_constraints(graph, mesh).ok_or_else(by_constraint)?)
            }
            _ => Cow::Borrowed(graph),
        };
        Ok((graph, DeclaredShardings { mesh, shardings, statements }))
    }
}

/// The mesh on which everything runs, with the others as views of it: the mesh of a `shard_map`, whose body names its
/// axes, else the one with the most axes of which all others are views. `None` if nothing names a mesh.
fn choose_mesh(all: &[NamedMesh<'_>], name_parameter: &dyn Fn(usize) -> String) -> Result<Option<Arc<Mesh>>> {
    let fixed: Vec<&NamedMesh<'_>> = all.iter().filter(|named| matches!(named.by, MeshSource::ShardMap)).collect();
    let mut candidates: Vec<&NamedMesh<'_>> = if fixed.is_empty() { all.iter().collect() } else { fixed };
    // Propagation shards by whole axes better than by parts of them, and the finest mesh has the most axes.
    candidates.sort_by_key(|named| std::cmp::Reverse(named.mesh.rank()));
    let is_view = |mesh: &Mesh, named: &NamedMesh<'_>| match named.by {
        MeshSource::ShardMap => *mesh == **named.mesh,
        MeshSource::Constraint | MeshSource::Param(_) => mesh.is_view(named.mesh),
    };
    match candidates.iter().find(|main| all.iter().all(|named| is_view(main.mesh, named))) {
        Some(main) => Ok(Some(main.mesh.clone())),
        None if all.is_empty() => Ok(None),
        None => {
            let first = candidates.first().map_or(&all[0], |main| main);
            Err(mesh_mismatch_error_between(
                first,
                all.iter().find(|named| !is_view(first.mesh, named)),
                name_parameter,
            ))
        }
    }
}

/// Returns the error about a value whose sharding cannot be expressed on the mesh of the others; `is_mismatched`
/// selects that value by its source.
fn mesh_mismatch_error(
    all: &[NamedMesh<'_>],
    is_mismatched: impl Fn(&MeshSource) -> bool,
    name_parameter: &dyn Fn(usize) -> String,
) -> Error {
    mesh_mismatch_error_between(&all[0], all.iter().rev().find(|named| is_mismatched(&named.by)), name_parameter)
}

fn mesh_mismatch_error_between(
    first: &NamedMesh<'_>,
    other: Option<&NamedMesh<'_>>,
    name_parameter: &dyn Fn(usize) -> String,
) -> Error {
    let at = other.map_or(first.at, |other| other.at);
    let other = other.map_or_else(|| "another value".to_string(), |other| other.describe(name_parameter));
    let found = format!("values on two meshes: {}, and {other}", first.describe(name_parameter));
    let help =
        "a function runs on one mesh; others may be views of its devices, whose axes are made of parts of its axes";
    Error::operation(at, Diag::new("mesh", At::Op, found, help))
}

/// Collects the meshes that annotations and calls of `shard_map` name, with their lines.
///
/// # Errors
/// A collective outside of a `shard_map`.
fn collect_meshes<'g>(graph: &'g Graph, all: &mut Vec<NamedMesh<'g>>) -> Result<()> {
    for e in &graph.equations {
        if let Some(placed) = e.op.sharding_constraint() {
            all.push(NamedMesh { mesh: &placed.mesh, at: e.loc, by: MeshSource::Constraint });
        }
        match &e.op {
            Op::Collective(op) => {
                let found = format!("`{}` in a function that is compiled apart from its `shard_map`", op.name());
                let help = "call the function without `jit` there: the whole `shard_map` is compiled";
                return Err(Error::operation(e.loc, Diag::new("shard_map", At::Op, found, help)));
            }
            Op::Call(call) => match call.mesh() {
                Some(mesh) => all.push(NamedMesh { mesh, at: e.loc, by: MeshSource::ShardMap }),
                None => call.graphs().into_iter().try_for_each(|graph| collect_meshes(graph, all))?,
            },
            _ => {}
        }
    }
    Ok(())
}
