//! Texts of programs on meshes, which real XLA runs: those of every device, and those on whole arrays, which XLA
//! divides.
use super::draw::{self, Config, Dice};
use super::{count, operand};
use crate::jit::program::Program;
use crate::jit::tests::programs::sharded;
use crate::jit::tests::shard_map::laws;
use crate::jit::tests::stablehlo::{Numbers, check, divides_integers, write_numbers};
use crate::prelude::*;
use crate::sharding::{Mesh, MeshPlacement, NamedSharding, P, device_put, shard_like};
use crate::{jit, partitioned, shard_map, spmd};
use pallas_device::startup::Engine;
use pallas_graph::shard::inlined;
use pallas_ir::Type;
use std::path::Path;
use std::sync::Arc;

/// The blocks of an array, by device, as one array with a first axis.
fn blocks(x: &Array, mesh: &Mesh) -> Numbers {
    let mut shards = x.addressable_shards().expect("it is in blocks");
    assert_eq!(shards.len(), mesh.device_count());
    shards.sort_by_key(|shard| shard.device);
    let shape = [&[shards.len()], shards[0].data.shape()].concat();
    let bytes = shards.iter().flat_map(|shard| shard.data.to_bytes().expect("it ran")).collect();
    Numbers { dtype: x.dtype(), shape, bytes }
}

fn arange(shape: &[usize]) -> Array {
    let numbers: Vec<f32> = (0..shape.iter().product()).map(|i| i as f32 / 8.0).collect();
    Client::cpu().array(&numbers, shape).expect("it fits")
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("pallas-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn write(folder: &Path, name: &str, end: &str, text: &str) {
    std::fs::write(folder.join(format!("{name}.{end}")), text).expect("the folder can be written");
}

/// Random programs: what each device runs on its blocks, from StableHLO and from HLO, and the whole program with its
/// shardings.
#[test]
fn xla_runs_random_programs_on_meshes() {
    let Ok(python) = std::env::var("PALLAS_JAX") else { return };
    let plain = Config { open: true, priorities: true, operations: 10, ..Config::default() };
    let kinds = [
        ("even", plain),
        ("uneven", Config { uneven: true, ..plain }),
        ("windows", Config { windows: true, uneven: true, ..plain }),
        ("control", Config { control: true, groups: true, barriers: true, ..plain }),
    ];
    let (folder, mut written) = (folder("meshes"), 0);
    for (i, (kind, config)) in kinds.into_iter().enumerate() {
        let mut dice = Dice(1300 + i as u64);
        for k in 0..count().div_ceil(4) {
            let drawn = draw::draw(&mut dice, &config);
            let args: Vec<Array> = drawn.graph.param_types().iter().map(|ty| operand(&mut dice, ty)).collect();
            if drawn.mesh.device_count() > 16 || divides_integers(&drawn.graph) {
                continue;
            }
            let graph = inlined(&drawn.graph);
            let (_, made) = sharded(&graph, &drawn.mesh, &drawn.params).expect("it is partitioned");
            let args: Vec<Array> = args
                .iter()
                .zip(&made.params)
                .map(|(x, sharding)| {
                    let like = MeshPlacement {
                        mesh: drawn.mesh.clone(),
                        sharding: sharding.clone(),
                        ty: Type::new(x.dtype(), x.shape()),
                        declared: None,
                        is_cleared: false,
                        receipts: [].into(),
                    };
                    shard_like(x, &like).expect("it is sharded")
                })
                .collect();
            let args: Vec<&Array> = args.iter().collect();
            let program =
                Program::on_engine(Engine::Lockstep, &drawn.graph, &drawn.mesh, &drawn.params, &Client::cpu());
            let results = program.expect("it compiles").run(&args).expect("it runs");
            let devices = drawn.mesh.device_count();
            let takes: Vec<Numbers> = args.iter().map(|x| blocks(x, &drawn.mesh)).collect();
            let gives: Vec<Numbers> = results.iter().map(|x| blocks(x, &drawn.mesh)).collect();
            let name = format!("{kind}-{k}-blocks");
            write_numbers(&folder, &name, &format!("devices {devices} blocks"), &takes, &gives, 2e-4);
            write(&folder, &name, "mlir", &made.graph.to_stablehlo("blocks"));
            write(&folder, &name, "hlo", &made.graph.to_hlo("blocks"));
            let whole = |x: &Array| {
                let x = Client::cpu().array(&x.to_vec::<f32>().expect("floats"), x.shape()).expect("it fits");
                Numbers::of(&x)
            };
            let is_plain = args.iter().copied().chain(&results).all(|x| x.dtype() == DType::F32);
            written += 2;
            if is_plain {
                let [takes, gives] =
                    [args, results.iter().collect()].map(|all| all.into_iter().map(whole).collect::<Vec<_>>());
                let name = format!("{kind}-{k}-whole");
                write_numbers(&folder, &name, &format!("devices {devices} whole"), &takes, &gives, 2e-4);
                let results = vec![None; drawn.graph.results.len()];
                write(&folder, &name, "mlir", &drawn.graph.to_shardy("whole", &drawn.mesh, &drawn.params, &results));
                written += 1;
            }
        }
    }
    println!("agreement: {0} of {0} texts", check(&python, &folder, written));
    assert!(written >= count(), "{written} texts");
}

/// Random bodies on blocks, as a `manual_computation` of Shardy.
#[test]
fn xla_runs_random_bodies() {
    let Ok(python) = std::env::var("PALLAS_JAX") else { return };
    let (folder, mut written) = (folder("bodies"), 0);
    let mesh = Arc::new(Mesh::with_devices(&[("x", 2), ("y", 2)], vec![2, 0, 3, 1]).expect("a mesh"));
    for seed in 0..count() as u64 {
        let (f, [x, w]) = laws::drawn_with_operands(seed, &mesh);
        let text = partitioned(f)(&x, &w).expect("it is partitioned").to_shardy_text();
        // XLA knows no kernels of ours, and XLA's CPU no broadcast among devices.
        if text.contains("call_target_name") || text.contains("collective_broadcast") {
            continue;
        }
        assert!(text.contains("sdy.manual_computation"), "{text}");
        let (f, _) = laws::drawn_with_operands(seed, &mesh);
        let y = jit(f)(&x, &w).expect("it runs");
        let y = Client::cpu().array(&y.to_vec::<f32>().expect("floats"), y.shape()).expect("it fits");
        let name = format!("body-{seed}");
        write_numbers(&folder, &name, "devices 4 whole", &[Numbers::of(&x), Numbers::of(&w)], &[Numbers::of(&y)], 1e-4);
        write(&folder, &name, "mlir", &text);
        written += 1;
    }
    // A permute that moves nothing, and a body that leaves an axis to the partitioner.
    let x = device_put(&arange(&[4, 8]), &NamedSharding::new(&mesh, P(("x", "y")))).expect("it is sharded");
    let nothing = shard_map(|x: &Array| x + spmd::ppermute(x, "x", &[]), &mesh, [P("x")], [P("x")]);
    let products = |x: &Array| spmd::psum(&x.matmul(&x.transpose(&[1, 0])), "x");
    let products = shard_map(products, &mesh, [P("x")], [P(())]).axis_names("x");
    let f = Arc::new(move |x: &Array| Ok::<_, Error>((nothing(x)?, products(x)?)));
    let text = partitioned({
        let f = f.clone();
        move |x: &Array| f(x)
    })(&x)
    .expect("it is partitioned")
    .to_shardy_text();
    let (same, y) = jit(move |x: &Array| f(x))(&x).expect("it runs");
    let on_host =
        |x: &Array| Numbers::of(&Client::cpu().array(&x.to_vec::<f32>().expect("floats"), x.shape()).expect("it fits"));
    let gives = [on_host(&same), on_host(&y)];
    write_numbers(&folder, "corners", "devices 4 whole", &[on_host(&x)], &gives, 1e-4);
    write(&folder, "corners", "mlir", &text);
    written += 1;
    println!("agreement: {0} of {0} bodies", check(&python, &folder, written));
    assert!(written >= count() / 3, "{written} bodies");
}
