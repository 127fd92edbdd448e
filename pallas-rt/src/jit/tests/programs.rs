//! Programs, plans and blocks of graphs that tests have made.
use super::super::compile::{Compilation, CompilationInput, ShardedGraph, convert_transform_error};
use super::super::program::Program;
use super::super::sharded::DeclaredShardings;
use crate::array::Client;
use crate::sharding::{Mesh, Sharding};
use pallas_device::error::Result;
use pallas_device::startup::Engine;
use pallas_graph::Graph;
use pallas_graph::fuse::{Plan, plan};
use pallas_graph::shard::{PartitionedGraph, Propagation, propagate_and_partition};
use pallas_graph::simplify::simplify;
use std::sync::Arc;

/// The simplified form of a graph, and its plan for a client.
pub(in crate::jit) fn planned(graph: &Graph, client: &Client) -> (Graph, Plan) {
    let simplified = simplify(graph);
    let plan = plan(&simplified, &[], &super::sizes::device_limits(client));
    (simplified, plan)
}

/// The shardings of a graph without calls of functions, and what partitioning makes of it.
pub(in crate::jit) fn sharded(
    flat: &Graph,
    mesh: &Arc<Mesh>,
    declared: &[Option<Sharding>],
) -> Result<(Propagation, PartitionedGraph)> {
    propagate_and_partition(flat, mesh, declared, &vec![None; flat.results.len()], &mut ())
        .map_err(convert_transform_error)
}

/// A graph whose parameters are declared to be sharded so.
fn on_mesh(graph: &Graph, mesh: &Arc<Mesh>, declared: &[Option<Sharding>], client: &Client) -> CompilationInput {
    let (mesh, statements) = (Some(mesh.clone()), vec![None; declared.len()]);
    let declared = DeclaredShardings { mesh, shardings: declared.to_vec(), statements };
    CompilationInput { declared, ..CompilationInput::from_graph(graph.clone(), client) }
}

impl Program {
    /// The program of a graph on one device.
    pub(in crate::jit) fn new(graph: &Graph, client: &Client) -> Result<Program> {
        Compilation::new(CompilationInput::from_graph(graph.clone(), client)).into_program()
    }

    /// The program of a graph on a mesh.
    pub(in crate::jit) fn for_mesh(
        graph: &Graph,
        mesh: &Arc<Mesh>,
        declared: &[Option<Sharding>],
        client: &Client,
    ) -> Result<Program> {
        Compilation::new(on_mesh(graph, mesh, declared, client)).into_program()
    }

    /// The same as [`for_mesh`](Program::for_mesh), on this engine.
    pub(in crate::jit) fn on_engine(
        engine: Engine,
        graph: &Graph,
        mesh: &Arc<Mesh>,
        declared: &[Option<Sharding>],
        client: &Client,
    ) -> Result<Program> {
        Compilation::new(on_mesh(graph, mesh, declared, client)).into_program_with_engine(engine)
    }

    /// The program of a graph that a test has partitioned.
    pub(in crate::jit) fn of_partitioned(
        engine: Engine,
        flat: &Graph,
        (found, made): (Propagation, PartitionedGraph),
        client: &Client,
    ) -> Result<Program> {
        let input = on_mesh(flat, &made.mesh.clone(), &vec![None; flat.params.len()], client);
        let sharded = ShardedGraph { flat: Arc::new(flat.clone()), propagation: found, partitioned: made };
        Compilation::from_sharded(input, sharded).into_program_with_engine(engine)
    }
}
