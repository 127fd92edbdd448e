//! The programs of the processes of a job.
use super::{tensor_parallel, train};
use pallas_rt::collective::{AllGather, AllReduce};
use pallas_rt::distributed::{Distributed, Local, Member, initialize, metric, self_check};
use pallas_rt::ir::ScalarOp;
use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
use pallas_rt::{Array, Client, Error, Result, counters, jit, shard_map, spmd, while_loop};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// One process of a job, if another test has started it.
#[test]
fn rank() {
    let Ok(case) = std::env::var("PALLAS_MPI_CASE") else { return };
    if case == "late" {
        let _early = array(&[2]);
        let error = initialize().expect_err("an array was made before");
        eprintln!("{error}");
        std::process::exit(1);
    }
    let job = initialize().expect("mpirun started it");
    // In one piece, so that lines of processes do not mix.
    let write = |text: String| std::io::stderr().write_all(text.as_bytes()).expect("stderr is there");
    match run(&case, &job) {
        Ok(result) => write(format!("\nrank {} has {result}\n", job.rank())),
        Err(error) => {
            write(format!("\n{error}\n"));
            drop(job);
            std::process::exit(1);
        }
    }
}

fn mesh() -> Arc<Mesh> {
    Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("a mesh"))
}

fn array(shape: &[usize]) -> Array {
    Client::cpu().full(shape, 1.0f32).expect("it fits")
}

fn add() -> AllReduce {
    AllReduce(ScalarOp::Add)
}

fn run(case: &str, job: &Distributed) -> Result<String> {
    match case {
        "example" => tensor_parallel::run(job.rank() == 0).map(|is_right| {
            assert!(is_right);
            "the result".into()
        }),
        "train" => train::on_mesh().map(|numbers| train::text(&numbers)),
        "whole" => whole(job),
        "apart" => apart(),
        "partial" => partial(),
        "program" => {
            let x = device_put(&array(&[8]), &NamedSharding::new(&mesh(), P("model")))?;
            let scale = if job.rank() == 2 { 3.0 } else { 2.0 };
            jit(move |x: &Array| (x * scale).sum(..))(&x)?.to_vec::<f32>().map(|_| "a number".into())
        }
        "mesh" => {
            let axes = if job.rank() == 2 { [("data", 4), ("model", 2)] } else { [("data", 2), ("model", 4)] };
            Member::of_job(&Arc::new(Mesh::new(&axes).expect("a mesh"))).map(|_| "a number".into())
        }
        "cache" => {
            let before = counters();
            let x = device_put(&array(&[8, 6]), &NamedSharding::new(&mesh(), P("model")))?;
            let sum = jit(|x: &Array| (x.exp() * 3.0).sum(..))(&x)?.to_vec::<f32>()?;
            assert!((sum[0] - 48.0 * 3.0 * 1f32.exp()).abs() < 1e-2);
            let after = counters();
            let (hits, writes) = (after.disk_hits - before.disk_hits, after.disk_writes - before.disk_writes);
            assert_eq!((writes > 0, hits > 0), (job.rank() == 0, job.rank() != 0), "{hits} hits, {writes} writes");
            assert!(after.compile_time > before.compile_time);
            assert!(job.rank() > 0 || after.disk_misses > before.disk_misses);
            Ok("its entries".into())
        }
        "forever" => {
            let device = Member::of_job(&four())?;
            let pid = std::env::var("PALLAS_MPI_FOLDER").expect("it is set");
            for step in 0.. {
                device.exchange(step, add(), &["rank"], &[array(&[2000])])?;
                if step == 3 {
                    let file = std::path::Path::new(&pid).join(format!("pid-{}", job.rank()));
                    std::fs::write(file, format!("{}\n", std::process::id())).expect("the folder is there");
                }
            }
            unreachable!("it does not end by itself")
        }
        fault => faults(fault, job),
    }
}

/// A mesh with a device in each process.
fn four() -> Arc<Mesh> {
    Arc::new(Mesh::new(&[("rank", 4)]).expect("a mesh"))
}

/// Three sums over all processes; in the second one, rank 2 does something else.
fn faults(case: &str, job: &Distributed) -> Result<String> {
    // In the case of other axes the odd process exchanges with its neighbour.
    let is_square = case == "axes";
    let square = || Arc::new(Mesh::new(&[("across", 2), ("pair", 2)]).expect("a mesh"));
    let device = Member::of_job(&if is_square { square() } else { four() })?;
    let axes: &[&str] = if is_square { &["across", "pair"] } else { &["rank"] };
    let arrays = |shape: &[usize]| vec![array(shape); device.positions().len()];
    for step in 0..3 {
        let is_odd = job.rank() == 2 && step == 1;
        let layout: &[usize] = if is_odd && case == "layout" { &[1, 0] } else { &[0, 1] };
        match case {
            "skipped" if is_odd => continue,
            "finished" if is_odd => return Ok("ended".into()),
            "panicked" if is_odd => panic!("on purpose"),
            "silent" if is_odd => std::thread::sleep(Duration::from_secs(5)),
            "kind" if is_odd => {
                device.exchange(step, AllGather, &["rank"], &arrays(&[2, 2]))?;
            }
            "axes" if is_odd => {
                device.exchange(step, add(), &["pair"], &arrays(&[2, 2]))?;
            }
            "shape" if is_odd => {
                device.exchange(step, add(), &["rank"], &arrays(&[3, 2]))?;
            }
            _ => {
                let begun = device.start_with_layout(step, add(), axes, layout, &arrays(&[2, 2]))?;
                let sum = device.finish(begun)?[0].to_vec::<f32>()?;
                assert_eq!(sum, [4.0; 4], "never another number");
            }
        }
    }
    Ok("a number".into())
}

/// Loops of which each device has its own number of steps, between exchanges.
fn apart() -> Result<String> {
    let f = |x: &Array| {
        let doubled = while_loop(x, |x: &Array| x.sum(..).lt(40.0), |x: &Array| x * 2.0)?;
        Ok::<_, Error>(&doubled + spmd::psum(&doubled, "data"))
    };
    let both = || [P((["data", "model"],))];
    let x = Client::cpu().array(&[1.0f32, 3.0, 5.0, 7.0, 9.0, 11.0, 50.0, 30.0], &[8])?;
    let y = jit(shard_map(f, &mesh(), both(), both()))(&x)?.to_vec::<f32>()?;
    assert_eq!(y, [200.0, 140.0, 130.0, 172.0, 208.0, 136.0, 140.0, 176.0]);
    // A row of devices exchanges in its steps; the other row takes none. The sum of a row doubles in each.
    let rows = |x: &Array| {
        let is_less = |x: &Array| spmd::psum(x, "model").sum(..).lt(100.0);
        while_loop(x, is_less, |x: &Array| x + spmd::psum(x, "model") * 0.25)
    };
    let x = Client::cpu().array(&[1.0f32, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0], &[8])?;
    let y = jit(shard_map(rows, &mesh(), both(), both()))(&x)?.to_vec::<f32>()?;
    assert_eq!(y, [38.5, 39.5, 40.5, 41.5, 10.0, 20.0, 30.0, 40.0]);
    Ok("its own steps".into())
}

/// A body that is manual along one axis, which the compiler divides along the other one, and a body in a body.
fn partial() -> Result<String> {
    let numbers: Vec<f32> = (0..32).map(|i| (i % 7) as f32).collect();
    let x = device_put(&Client::cpu().array(&numbers, &[4, 8])?, &NamedSharding::new(&mesh(), P(("data", "model"))))?;
    let gram = |x: &Array| spmd::psum(&x.matmul(&x.transpose(&[1, 0])), "data");
    let found = jit(shard_map(gram, &mesh(), [P("data")], [P(())]).axis_names("data"))(&x)?.to_vec::<f32>()?;
    let product = |i: usize, j: usize| (0..8).map(|k| numbers[8 * i + k] * numbers[8 * j + k]).sum::<f32>();
    let expected = [[0, 0], [0, 1], [1, 0], [1, 1]].map(|[i, j]| product(i, j) + product(i + 2, j + 2));
    assert_eq!(found, expected);
    let nested = |x: &Array| {
        let inner = |x: &Array| spmd::psum(&x.sum(..), ["data", "model"]);
        shard_map(inner, &mesh(), [P((None, "model"))], [P(())]).axis_names("model")(x)
    };
    let found = jit(shard_map(nested, &mesh(), [P("data")], [P(())]).axis_names("data"))(&x)?.to_vec::<f32>()?;
    assert_eq!(found, [numbers.iter().sum::<f32>()]);
    Ok("its part".into())
}

/// Self-check, reads of sharded arrays, and metrics.
fn whole(job: &Distributed) -> Result<String> {
    // Devices in an order that is not row-major.
    let devices = vec![3, 0, 6, 5, 2, 7, 1, 4];
    let shuffled = Arc::new(Mesh::with_devices(&[("a", 2), ("b", 2), ("c", 2)], devices).expect("a mesh"));
    for mesh in [mesh(), shuffled.clone()] {
        let found = self_check(&mesh)?;
        assert_eq!(found.axes.len(), mesh.rank());
    }
    let numbers: Vec<f32> = (0..35).map(|i| i as f32).collect();
    let x = Client::cpu().array(&numbers, &[5, 7])?;
    let y = jit({
        let named = NamedSharding::new(&shuffled, P(("b", ["c", "a"])));
        move |x: &Array| pallas_rt::with_sharding_constraint(&(x + 1.0), &named)
    })(&x)?;
    assert_eq!(y.addressable_shards()?.len(), 2);
    let plus: Vec<f32> = numbers.iter().map(|x| x + 1.0).collect();
    assert_eq!(y.to_vec::<f32>()?, plus, "a read gathers");
    let error = metric(&array(&[])).expect_err("each process has its own").to_string();
    assert!(error.contains(&format!("an array that rank {} alone has", job.rank())), "{error}");
    let speed = Local::of_process(job.rank() as f64)?;
    assert!(speed.metric().expect_err("it varies").to_string().contains("varies along `process`"));
    let speed = speed.reduce(ScalarOp::Add, &["process"])?.metric()?;
    assert_eq!(
        (speed.value, speed.receipts[0].participants, &speed.receipts[0].group[..]),
        (6.0, 4, &[0, 1, 2, 3][..])
    );
    let loss = metric(&jit(|x: &Array| x.mean(..))(&device_put(&x, &NamedSharding::new(&mesh(), P(())))?)?)?;
    assert_eq!(loss.value, 17.0);
    assert!(
        matches!(job.config().engine, pallas_rt::startup::Engine::Mpi)
            && job.config().to_string().contains("4 processes")
    );
    let refused = pallas_rt::startup::StartupConfig { spmd: false, ..job.config().clone() }.apply();
    assert!(matches!(refused, Err(Error::Settled { .. })));
    Ok("the whole".into())
}
