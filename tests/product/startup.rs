//! The startup configuration of a process, which cannot change: each case in a process of its own.
use crate::support::again;
use pallas_rt::distributed::self_check;
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
use pallas_rt::startup::{Engine, StartupConfig, enable_spmd, startup_config};
use pallas_rt::{DeviceKind, DiskCache, jit, set_disk_cache};
use std::sync::Arc;

/// Runs a test of this file as a process, with these variables besides those of this one.
fn process(test: &str, variables: &[(&str, &str)]) {
    again(&format!("startup::{test}"), &[variables, &[("PALLAS_STARTUP_TEST", "1")]].concat());
}

/// True in a process of [`process`].
fn is_process() -> bool {
    std::env::var_os("PALLAS_STARTUP_TEST").is_some()
}

/// The message of an error, which names a line of this file.
#[track_caller]
fn refused<T>(result: Result<T>, expected: &[&str]) {
    let error = result.err().expect("it is refused").to_string();
    assert!(error.contains("startup.rs:") && expected.iter().all(|text| error.contains(text)), "{error}");
}

fn mesh() -> Arc<Mesh> {
    Arc::new(Mesh::new(&[("data", 2), ("model", 2)]).expect("a mesh"))
}

#[test]
fn the_first_use_fixes_the_configuration() {
    if !is_process() {
        return process("the_first_use_fixes_the_configuration", &[("PALLAS_HINT", "a flag")]);
    }
    assert_eq!(startup_config(), None);
    let _x = Client::cpu().full(&[2], 1.0f32).expect("it fits");
    let config = startup_config().expect("an array was made").clone();
    assert!(config.spmd && config.engine == Engine::Lockstep && config.processes == 1);
    let text = config.to_string();
    assert!(
        text.contains("PALLAS_HINT=a flag") && text.contains("cache: off") && text.contains("versions: "),
        "{text}"
    );
    assert_eq!(config.clone().apply(), Ok(()), "the same one");
    let first = "the first use: an array at ";
    refused(StartupConfig { engine: Engine::Threads, ..config.clone() }.apply(), &[first]);
    refused(StartupConfig { backend: "interpret".into(), ..config.clone() }.apply(), &[first]);
    refused(StartupConfig { devices: Some(3), ..config }.apply(), &[first]);
    refused(set_disk_cache(DiskCache::At { folder: "elsewhere".into(), limit: 1 }), &["an array at "]);
    assert_eq!(enable_spmd(), Ok(()), "it is on");
    // A result carries what the process was started with.
    let loss = jit(|x: &Array| x.mean(..))(&_x).expect("it runs");
    let loss = pallas_rt::distributed::metric(&loss).expect("a number");
    assert_eq!(Some(loss.config), startup_config());
}

#[test]
fn the_backend_decides_the_default_device() {
    if !is_process() {
        return process("the_backend_decides_the_default_device", &[("PALLAS_DEVICE", "cpu")]);
    }
    let config = StartupConfig::from_env().expect("an environment");
    assert_eq!(config.backend, "cpu");
    let error = StartupConfig { backend: "tpu".into(), ..config.clone() }.apply().expect_err("no device").to_string();
    assert!(error.starts_with("StartupConfig::backend=tpu is not understood; allowed: best, cpu, gpu"), "{error}");
    assert_eq!(startup_config(), None, "a refused configuration fixes nothing");
    StartupConfig { backend: "interpret".into(), ..config }.apply().expect("the first one");
    let x = Array::full(&[2], 1.0f32).expect("it fits");
    assert_eq!(x.device().kind, DeviceKind::Interpreter);
    assert!(Client::from_env().expect("the same").why().ends_with("StartupConfig::backend=interpret"));
}

#[test]
fn an_array_before_spmd_is_an_error() {
    if !is_process() {
        return process("an_array_before_spmd_is_an_error", &[("PALLAS_SPMD", "0")]);
    }
    let x = Array::full(&[4], 1.0f32).expect("it fits");
    refused(enable_spmd(), &["the first use, with SPMD off: an array at "]);
    refused(device_put(&x, &NamedSharding::new(&mesh(), P("data"))), &["with SPMD off"]);
    refused(self_check(&mesh()), &["with SPMD off"]);
    refused(pallas_rt::distributed::run(&mesh(), |_| Ok(())), &["with SPMD off"]);
}

#[test]
fn spmd_enabled_first_is_on() {
    if !is_process() {
        return process("spmd_enabled_first_is_on", &[("PALLAS_SPMD", "0"), ("PALLAS_DEVICES", "4")]);
    }
    assert_eq!(enable_spmd(), Ok(()));
    assert!(self_check(&mesh()).is_ok());
    let eight = Arc::new(Mesh::new(&[("data", 8)]).expect("a mesh"));
    let error = self_check(&eight).expect_err("8 of 4 devices").to_string();
    assert!(error.contains("8 devices of a mesh asked for, the limit is 4"), "{error}");
}

#[test]
fn values_that_are_not_allowed_are_refused() {
    if !is_process() {
        for (variable, value) in [
            ("PALLAS_DEVICE", "tpu"),
            ("PALLAS_ENGINE", "rayon"),
            ("PALLAS_SPMD", "yes"),
            ("PALLAS_DEVICES", "0"),
            ("PALLAS_DEADLINE_MS", "soon"),
            ("PALLAS_CACHE_POLICY", "mine"),
        ] {
            let all = [(variable, value), ("PALLAS_CACHE_DIR", "somewhere"), ("PALLAS_STARTUP_WRONG", variable)];
            process("values_that_are_not_allowed_are_refused", &all);
        }
        return;
    }
    let variable = std::env::var("PALLAS_STARTUP_WRONG").expect("set by the other process");
    let error = Client::cpu().full(&[2], 1.0f32).expect_err("a wrong value").to_string();
    assert!(error.contains(&format!("{variable}=")) && error.contains("allowed: "), "{error}");
}

/// Prints what is logged.
struct Printing;

impl log::Log for Printing {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        println!("{}: {}", record.level(), record.args());
    }
    fn flush(&self) {}
}

#[test]
fn warnings_go_to_the_logger_alone() {
    if !is_process() {
        for (is_installed, expected) in [("1", true), ("0", false)] {
            let variables = [("PALLAS_STARTUP_TEST", "1"), ("PALLAS_ENGIN", "threads"), ("TEST_LOGGER", is_installed)];
            let output = again("startup::warnings_go_to_the_logger_alone", &variables);
            assert_eq!(
                output.contains("WARN: `PALLAS_ENGIN` is ignored; help: the variable is `PALLAS_ENGINE`"),
                expected,
                "{output}"
            );
            assert_eq!(output.contains("PALLAS_ENGIN`"), expected, "{output}");
        }
        return;
    }
    if std::env::var("TEST_LOGGER").as_deref() == Ok("1") {
        log::set_logger(&Printing).expect("the first one");
        log::set_max_level(log::LevelFilter::Trace);
    }
    Client::cpu().full(&[2], 1.0f32).expect("it fits");
}

/// The choice of the environment holds for functions of `jit`, and for processes in no job.
#[test]
fn threads_run_functions_on_meshes() {
    if !is_process() {
        return process("threads_run_functions_on_meshes", &[("PALLAS_ENGINE", "threads")]);
    }
    let job = pallas_rt::distributed::initialize().expect("no job");
    assert_eq!((job.rank(), job.processes(), job.config().engine), (0, 1, Engine::Threads));
    let x = Client::cpu().array(&(0..12).map(|i| i as f32).collect::<Vec<_>>(), &[4, 3]).expect("it fits");
    let x = device_put(&x, &NamedSharding::new(&mesh(), P(("data", None)))).expect("it is placed");
    let y = jit(|x: &Array| x.sum(0))(&x).expect("it runs");
    assert_eq!(y.to_vec::<f32>(), Ok(vec![18.0, 22.0, 26.0]));
    assert!(self_check(&mesh()).is_ok());
    // Only joining a job chooses its engine.
    let joining = StartupConfig { engine: Engine::Mpi, ..job.config().clone() }.apply();
    assert!(joining.expect_err("no job").to_string().contains("distributed::initialize"));
}
