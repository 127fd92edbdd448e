//! Programs on meshes: the devices that this process runs, and what the processes of a job agree about.
use crate::array::Array;
use crate::collective::resolve_collective;
use crate::sharding::{Mesh, Receipt};
use pallas_device::collective::process_group;
use pallas_device::devices::sequence::SequenceDevices;
use pallas_device::disk::{DiskCache, disk_cache};
use pallas_device::error::{Error, Result};
use pallas_device::startup::{self, Engine, StartupConfig};
use pallas_graph::mesh::{Collective, CollectiveForm};
use pallas_graph::{Graph, Op, Var};
use pallas_ir::{DType, Loc, Type};
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The devices of a mesh that this process runs, and how it runs them.
pub(super) fn local_devices(mesh: &Arc<Mesh>, engine: Engine) -> Result<SequenceDevices> {
    let op = Collective::all_gather_over(mesh);
    let gives = Type::new(DType::I32, [mesh.device_count()]);
    let agreement = Arc::new(resolve_collective(&op, &gives, Loc::NONE).with_ticket_kind("decision"));
    Ok(match process_group() {
        Some(all) => SequenceDevices::AcrossProcesses { participant: all.participant(mesh)?, agreement },
        None => SequenceDevices::AllInProcess {
            count: mesh.device_count(),
            are_threads: engine == Engine::Threads,
            agreement,
        },
    })
}

/// Compiles a program that every process of the job has to compile as well. All processes first compare the program and
/// the values that they were started with. If compiled kernels are kept on disk, the first process compiles before the
/// others, which then find them.
///
/// # Errors
/// A process has another program, mesh, configuration or build. Errors of `compile`.
pub(super) fn compile_across_processes<T>(
    graph: &Graph,
    mesh: &Mesh,
    compile: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let Some(all) = process_group() else { return compile() };
    let config = startup::startup_config().expect("joining a job fixes it");
    // The folder that one process writes and the others read is the same; files of timelines and texts may differ.
    let StartupConfig { cache: _, flags, versions, .. } = config;
    let flags = flags.iter().filter(|(name, _)| !["PALLAS_TIMELINE", "PALLAS_DUMP"].contains(&&name[..]));
    let flags = flags.map(|(name, value)| format!("{name}={value}\n")).collect::<String>();
    let others = StartupConfig { cache: DiskCache::Off, flags: Default::default(), ..config.clone() };
    let values = [
        ("program", hash_text(&graph.to_string())),
        ("mesh", mesh.to_string()),
        ("configuration", format!("{others}\n{flags}").replace('\n', "; ")),
        ("build", versions.join(" ")),
    ];
    all.check_agreement("program", &values)?;
    if disk_cache().is_none_or(|cache| cache == DiskCache::Off) {
        return compile();
    }
    let tell = |outcome: &str| all.all_gather("compilation", String::new(), Loc::NONE, outcome.as_bytes().to_vec());
    if all.rank() == 0 {
        let done = compile();
        tell(&done.as_ref().err().map_or(String::new(), ToString::to_string))?;
        return done;
    }
    let first = String::from_utf8_lossy(&tell("")?[0]).into_owned();
    match &first[..] {
        "" => compile(),
        _ => Err(Error::Value { message: format!("rank 0 could not compile the program: {first}") }),
    }
}

fn hash_text(text: &str) -> String {
    hex::encode(&Sha256::digest(text)[..8])
}

/// Returns for each result of a graph of blocks the receipts (records) of the last collectives with a reduction that it
/// depends on, as the device at `device_position` takes part in them, and the indices of the parameters that it depends
/// on without such a collective.
pub(super) fn result_receipts(
    graph: &Graph,
    device_position: usize,
    engine: Engine,
) -> Vec<(Arc<[Receipt]>, Vec<usize>)> {
    let made: HashMap<Var, usize> =
        graph.equations.iter().enumerate().flat_map(|(i, e)| e.results.iter().map(move |&v| (v, i))).collect();
    let params: HashMap<Var, usize> = graph.params.iter().enumerate().map(|(i, &p)| (p, i)).collect();
    let of = |&result: &Var| {
        let (mut seen, mut left, mut found) = (BTreeSet::new(), vec![result], BTreeSet::new());
        let mut reads = BTreeSet::new();
        while let Some(v) = left.pop() {
            reads.extend(params.get(&v));
            let Some(&i) = made.get(&v).filter(|&&i| seen.insert(i)) else { continue };
            let e = &graph.equations[i];
            match &e.op {
                Op::Collective(op) if matches!(op.first_member_form(), CollectiveForm::Fold(..)) => {
                    found.insert(i);
                }
                _ => left.extend(&e.args),
            }
        }
        let receipt = |i: usize| {
            let e = &graph.equations[i];
            let Op::Collective(op) = &e.op else { unreachable!("only collectives are found") };
            Receipt::from_collective(op, device_position, engine, e.loc)
        };
        (found.into_iter().map(receipt).collect(), reads.into_iter().collect())
    };
    graph.results.iter().map(of).collect()
}

/// Returns the receipts (records of collectives with a reduction) of a result: `own`, or, if it has none, those of the
/// arguments with the indices `argument_indices`.
pub(super) fn own_or_argument_receipts(
    (own, argument_indices): &(Arc<[Receipt]>, Vec<usize>),
    args: &[&Array],
) -> Arc<[Receipt]> {
    if !own.is_empty() {
        return own.clone();
    }
    let mut all: Vec<Receipt> = vec![];
    for placement in argument_indices.iter().filter_map(|&i| args[i].placement()) {
        for receipt in placement.receipts.iter() {
            if !all.contains(receipt) {
                all.push(receipt.clone());
            }
        }
    }
    all.into()
}

#[cfg(test)]
mod tests {
    use super::super::{Program, ProgramShardings};
    use crate::array::Client;
    use crate::jit::tests::programs::planned;
    use crate::sharding::{DimSharding, Mesh, Sharding};
    use pallas_device::error::Error;
    use pallas_device::startup::Engine;
    use pallas_graph::Graph;
    use pallas_graph::call::Case;
    use pallas_graph::mesh::{AllReduce, Collective, DeviceTable};
    use pallas_ir::{DType, ScalarOp, Type};
    use std::sync::Arc;

    /// Each device's result of a branch whose number it has from a table: of 3, the sum of two, the product or the
    /// difference; branches that exchange add the sum of all devices' to it.
    fn chosen(numbers: &[i32], collectives: bool, engine: Engine) -> Result<Vec<f32>, Error> {
        let mesh = Arc::new(Mesh::new(&[("x", numbers.len())]).expect("a mesh"));
        let block = Type::new(DType::F32, [1]);
        let collective = |kind| Collective { kind, mesh: mesh.clone(), axes: mesh.axes() };
        let branch = |op: ScalarOp| {
            let mut graph = Graph::default();
            let x = graph.param(block.clone());
            let mut y = graph.push(op, &[x, x]).expect("it fits");
            if collectives {
                let sum = graph.push(collective(AllReduce(ScalarOp::Add).into()), &[y]).expect("it fits");
                y = graph.push(ScalarOp::Add, &[y, sum]).expect("it fits");
            }
            graph.results.push(y);
            graph
        };
        let mut graph = Graph::default();
        let x = graph.param(block.clone());
        let number = graph.push(collective(DeviceTable(numbers.to_vec()).into()), &[]).expect("it fits");
        let case = Case { branches: vec![branch(ScalarOp::Add), branch(ScalarOp::Mul), branch(ScalarOp::Sub)] };
        let y = graph.push(case, &[number, x]).expect("it fits");
        graph.results.push(y);
        let cpu = Client::cpu();
        let positions = (0..numbers.len()).collect();
        let along = || Sharding { dims: vec![DimSharding::closed(mesh.axes())], ..Sharding::replicated(1) };
        let whole = Type::new(DType::F32, [numbers.len()]);
        let results = vec![(whole, along(), ([].into(), vec![]))];
        let division = ProgramShardings { mesh: mesh.clone(), engine, positions, params: vec![along()], results };
        let plan = planned(&graph, &cpu).1;
        let program = Program::from_plan(plan, vec![4], Some(division), Arc::new(graph), &cpu)?;
        program.run(&[&cpu.full(&[numbers.len()], 3.0f32)?])?[0].to_vec::<f32>()
    }

    #[test]
    fn each_device_takes_its_own_branch() {
        for engine in [Engine::Lockstep, Engine::Threads] {
            assert_eq!(chosen(&[1, 1, 0, 1], false, engine), Ok(vec![9.0, 9.0, 6.0, 9.0]));
            // Numbers beyond the last branch mean that.
            assert_eq!(chosen(&[2, 7, -3, 1], false, engine), Ok(vec![0.0, 0.0, 6.0, 9.0]));
        }
    }

    #[test]
    fn a_decision_about_exchanges_that_differs_is_an_error_on_every_engine() {
        for engine in [Engine::Lockstep, Engine::Threads] {
            assert_eq!(chosen(&[1, 1, 1], true, engine), Ok(vec![36.0; 3]));
            let error = chosen(&[1, 1, 0, 1], true, engine).expect_err("device 2 goes another way");
            assert_eq!(error, Error::Varies { what: "the number of a branch", device: 2, expected: 1, found: 0 });
        }
    }
}
