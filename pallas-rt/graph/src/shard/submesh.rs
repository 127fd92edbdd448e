//! Bodies of `shard_map` that are manual along some axes of a mesh; the other axes shard the body like any other graph.
//!
//! The body is partitioned for the mesh of its automatic axes alone. So the partitioner cannot mix devices that differ
//! along manual axes: along these, values of a body differ without a sharding that says so. In the end each collective
//! over automatic axes is one on the whole mesh, in the groups of equal coordinates along the manual axes.
use crate::call::ShardMap;
use crate::graph::{Graph, Op};
use crate::identity::IdentityUpdate;
use crate::mesh::{Axis, Collective, DimSharding, Mesh, MeshSharding, Sharding};
use crate::refusal::TransformError;
use pallas_ir::{At, Diag};
use std::sync::Arc;

/// The mesh of the axes that a body of `shard_map` leaves automatic, as a part of a whole mesh.
pub(crate) struct Submesh {
    /// The whole mesh.
    whole: Arc<Mesh>,
    /// The mesh of the automatic axes.
    pub(crate) mesh: Arc<Mesh>,
    /// By axis of the automatic mesh, its number in the whole mesh.
    ids: Vec<u8>,
}

impl Submesh {
    /// Returns the mesh of the automatic axes; `is_manual` is true for the other axes of the whole mesh.
    pub(crate) fn new(whole: &Arc<Mesh>, is_manual: &[bool]) -> Submesh {
        let ids: Vec<u8> = (0..whole.rank()).filter(|&axis| !is_manual[axis]).map(|axis| axis as u8).collect();
        let axes: Vec<(&str, usize)> =
            ids.iter().map(|&id| (whole.name(usize::from(id)), whole.size(usize::from(id)))).collect();
        let mesh = Mesh::new(&axes).expect("a part of a mesh is one");
        Submesh { whole: whole.clone(), mesh: Arc::new(mesh), ids }
    }

    /// Translates an axis of the whole mesh to the automatic mesh; `None` if it is manual.
    fn to_submesh_axis(&self, axis: Axis) -> Option<Axis> {
        let id = self.ids.iter().position(|&id| id == axis.id)?;
        Some(Axis { id: id as u8, ..axis })
    }

    /// Translates an axis of the automatic mesh to the whole mesh.
    fn to_whole_mesh_axis(&self, axis: Axis) -> Axis {
        Axis { id: self.ids[usize::from(axis.id)], ..axis }
    }

    /// Translates a sharding of blocks to the automatic mesh; `None` if it has manual axes.
    pub(super) fn to_submesh_sharding(&self, sharding: &Sharding) -> Option<Sharding> {
        let all = |axes: &[Axis]| axes.iter().map(|&axis| self.to_submesh_axis(axis)).collect::<Option<Vec<Axis>>>();
        let dims = sharding.dims.iter().map(|dim| Some(DimSharding { axes: all(&dim.axes)?, ..dim.clone() }));
        Some(Sharding {
            dims: dims.collect::<Option<_>>()?,
            replicated: all(&sharding.replicated)?,
            unreduced: all(&sharding.unreduced)?,
        })
    }

    /// Returns the sharding of a whole array from its sharding along manual axes and the sharding `block_sharding` of
    /// its manual blocks.
    pub(crate) fn prepend_manual_axes(&self, manual: &Sharding, block_sharding: &Sharding) -> Sharding {
        let both = |(manual, own): (&DimSharding, &DimSharding)| {
            DimSharding::closed(
                manual.axes.iter().copied().chain(own.axes.iter().map(|&a| self.to_whole_mesh_axis(a))).collect(),
            )
        };
        Sharding { dims: manual.dims.iter().zip(&block_sharding.dims).map(both).collect(), ..Sharding::default() }
            .normal(&self.whole)
    }

    /// Returns the sharding of an array's manual blocks that follows from a sharding of the array: the axes after the
    /// manual ones. A dimension gets no axes if it does not begin with the manual ones, or if the axes do not divide
    /// the block evenly.
    pub(crate) fn strip_manual_axes(&self, manual: &Sharding, sharding: &Sharding, block: &[usize]) -> Sharding {
        let manual = manual.normal(&self.whole);
        let mut own = Sharding::open(block.len());
        for (((own, manual), dim), n) in own.dims.iter_mut().zip(&manual.dims).zip(&sharding.dims).zip(block) {
            let rest = dim.axes.strip_prefix(&manual.axes[..]).unwrap_or_default();
            let rest: Option<Vec<Axis>> = rest.iter().map(|&axis| self.to_submesh_axis(axis)).collect();
            own.axes = rest.filter(|axes| n.is_multiple_of(crate::mesh::product_of_sizes(axes))).unwrap_or_default();
        }
        own
    }

    /// Translates the shardings in a body to the automatic mesh.
    pub(crate) fn to_submesh_graph(&self, graph: &Graph) -> Result<Graph, TransformError> {
        let mut to = graph.clone();
        for e in &mut to.equations {
            let refused = || {
                let message = format!("`{}` of an axis that is manual", e.op.name());
                let help = "in a body, shardings name the axes that it leaves automatic";
                TransformError { at: e.loc, diag: Diag::new("shard_map", At::Op, message, help) }
            };
            let op = match &e.op {
                Op::Identity(op) => match op.sharding_constraint() {
                    Some(placed) if placed.mesh == self.whole => {
                        let sharding = self.to_submesh_sharding(&placed.sharding).ok_or_else(refused)?;
                        op.data()
                            .with_update(IdentityUpdate::ReplaceSharding(MeshSharding {
                                mesh: self.mesh.clone(),
                                sharding,
                            }))
                            .into()
                    }
                    _ => continue,
                },
                Op::Call(call) => match ShardMap::of(call) {
                    Some(map) if map.mesh == self.whole => {
                        let all = |all: &[Sharding]| {
                            all.iter().map(|s| self.to_submesh_sharding(s)).collect::<Option<Vec<_>>>()
                        };
                        let takes = all(&map.takes).ok_or_else(refused)?;
                        let gives = all(&map.gives).ok_or_else(refused)?;
                        let manual = self.ids.iter().map(|&id| map.manual[usize::from(id)]).collect();
                        let body = self.to_submesh_graph(&map.body)?;
                        ShardMap { mesh: self.mesh.clone(), manual, takes, gives, body }.into()
                    }
                    _ => call.try_map_graphs(|graph| self.to_submesh_graph(graph))?.into(),
                },
                _ => continue,
            };
            e.op = op;
        }
        Ok(to)
    }

    /// Translates the collectives in a graph of blocks from the automatic mesh to the whole mesh.
    pub(crate) fn to_whole_mesh_graph(&self, graph: &Graph) -> Graph {
        let mut to = graph.clone();
        for e in &mut to.equations {
            match &e.op {
                Op::Collective(op) if op.mesh == self.mesh => {
                    let axes = op.axes.iter().map(|&axis| self.to_whole_mesh_axis(axis)).collect();
                    e.op = Collective { kind: op.kind.clone(), mesh: self.whole.clone(), axes }.into();
                }
                Op::Call(call) => e.op = call.map_graphs(|graph| self.to_whole_mesh_graph(graph)).into(),
                _ => {}
            }
        }
        to
    }
}
