//! The runtime on whatever adapter there is.
use crate::lang::random::again;
use crate::{Array, Buffer, Client, DeviceKind, Error, Result};
use pallas_device::devices::gpu::{Dispatch, ErrorCheck, Gpu, ShaderJob};
use pallas_ir::DType;
use std::sync::{Arc, mpsc};

/// A client of its own on the first adapter. `None`, with a notice, where there is none: a failure with
/// `PALLAS_REQUIRE_GPU=1`.
fn gpu() -> Option<Client> {
    match Client::gpu(0).and_then(|client| client.isolated()) {
        Ok(client) => Some(client),
        Err(error) => {
            let required = std::env::var("PALLAS_REQUIRE_GPU").is_ok_and(|value| value == "1");
            assert!(!required, "PALLAS_REQUIRE_GPU=1, but {error}");
            #[allow(clippy::print_stdout, reason = "a skipped test says so")]
            {
                println!("skipped: {error}");
            }
            None
        }
    }
}

/// Adds a constant from the uniform to the first `n` elements; element 7 reports itself.
const ADD: &str = "
struct Params { n: u32, by: f32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<storage, read_write> flag: array<u32, 4>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if i == 7u { flag[1] = i; }
    if i < params.n { y[i] = y[i] + x[i] + params.by; }
}";

fn dispatch(n: usize, by: f32) -> Dispatch {
    let uniform = [(n as u32).to_le_bytes(), by.to_le_bytes()].concat();
    Dispatch { workgroups: [n.div_ceil(64) as u32, 1, 1], uniform }
}

/// `y + dispatches * (x + by)` and the error flag.
fn add(client: &Client, x: &Array, by: &[f32]) -> Result<(Array, [u32; 4])> {
    let y = client.zeros(x.shape(), DType::F32)?;
    let dispatches: Vec<Dispatch> = by.iter().map(|&by| dispatch(x.len(), by)).collect();
    let bindings = [(memory(x), false), (memory(&y), true)];
    let (sender, receiver) = mpsc::channel();
    let check = Box::new(move |flag| {
        sender.send(flag).expect("the test waits");
        Ok(())
    });
    run(&client.gpu_runtime().expect("a GPU client"), &job(ADD, &bindings, &dispatches), check)?;
    Ok((y, receiver.recv().expect("a job with a flag")))
}

/// Runs a job. Shaders here stay within their bindings.
fn run(gpu: &Arc<Gpu>, job: &ShaderJob, check: ErrorCheck) -> Result<()> {
    // SAFETY: see above.
    unsafe { gpu.run_job(job, check) }
}

fn unchecked() -> ErrorCheck {
    Box::new(|_| Ok(()))
}

fn memory(x: &Array) -> &Buffer {
    x.buffer().expect("it has memory")
}

fn job<'a>(wgsl: &'a str, bindings: &'a [(&'a Buffer, bool)], dispatches: &'a [Dispatch]) -> ShaderJob<'a> {
    ShaderJob {
        label: "add",
        wgsl,
        trusted: true,
        workgroup: 64,
        bindings,
        dispatches,
        scratch_bytes: 0,
        error_flag: true,
    }
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

#[test]
fn dispatches_run_in_order_and_the_pipeline_is_compiled_once() {
    let Some(client) = gpu() else { return };
    assert_eq!(client.kind(), DeviceKind::Gpu);
    for n in [1, 7, 64, 1000] {
        let x = client.array(&numbers(n), &[n]).expect("uploads");
        let (y, flag) = add(&client, &x, &[0.5, 1.0]).expect("runs");
        let expected: Vec<f32> = numbers(n).iter().map(|x| 2.0 * x + 1.5).collect();
        assert_eq!(y.to_vec::<f32>(), Ok(expected));
        // Lanes past the end run too, and element 7 is a lane of every workgroup 0.
        assert_eq!(flag, [0, 7, 0, 0]);
    }
    let counters = client.gpu_counters();
    assert_eq!((counters.pipelines_compiled, counters.dispatches), (1, 8));
}

/// An upload takes effect before all that is submitted with it, but a program's launches before the upload do not see
/// it.
#[cfg(feature = "graph")]
#[test]
fn what_is_written_follows_the_launches_before_it() {
    let Some(client) = gpu() else { return };
    let n = 100;
    let x = client.array(&numbers(n), &[n]).expect("uploads");
    let mut y = Buffer::allocate(&client, 4 * n, true).expect("memory");
    let launch = |y: &Buffer| {
        let bindings = [(memory(&x), false), (y, true)];
        run(&client.gpu_runtime().expect("a GPU client"), &job(ADD, &bindings, &[dispatch(n, 1.0)]), unchecked())
    };
    let program = client.submit_together(|| {
        launch(&y)?;
        y.write(&5f32.to_le_bytes().repeat(n))?;
        launch(&y)
    });
    assert_eq!(program, Ok(()));
    let expected: Vec<u8> = numbers(n).iter().flat_map(|x| (x + 6.0).to_le_bytes()).collect();
    assert_eq!(y.contents().expect("bytes"), expected);
}

#[test]
fn every_element_type_comes_back_as_it_went() {
    let Some(client) = gpu() else { return };
    for &dtype in DType::ALL {
        for n in [0usize, 1, 3, 5, 17] {
            let bytes: Vec<u8> = (0..n * dtype.bytes()).map(|i| (i % 2) as u8).collect();
            let array = client.array_from_bytes(dtype, &[n], &bytes);
            if dtype.bytes() == 8 {
                assert_eq!(array.map(|_| ()).expect_err("no 64-bit types").code(), "unsupported");
                continue;
            }
            let array = array.expect("uploads");
            assert_eq!(array.to_bytes(), Ok(bytes.clone()));
            let moved = array.to_device(&Client::cpu()).and_then(|array| array.to_device(&client)).expect("moves");
            assert_eq!(moved.to_bytes(), Ok(bytes));
        }
    }
}

#[test]
fn a_refused_shader_is_an_error_and_the_client_goes_on() {
    let Some(client) = gpu() else { return };
    let x = client.array(&numbers(4), &[4]).expect("uploads");
    let binding = [(memory(&x), false)];
    let gpu = client.gpu_runtime().expect("a GPU client");
    let wrong_text = "@compute @workgroup_size(1) fn main() { let x: f32 = 1u; }";
    let wrong_binding = "@group(0) @binding(9) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(1) fn main() { y[0] = 1.0; }";
    for (wgsl, words) in [(wrong_text, "f32"), (wrong_binding, "9"), ("fn", "expected")] {
        let error = run(&gpu, &job(wgsl, &binding, &[dispatch(4, 0.0)]), unchecked()).expect_err("refused");
        assert!(
            matches!(&error, Error::Shader { kernel, message, .. } if kernel == "add" && message.contains(words)),
            "{error}"
        );
    }
    let twice = [(memory(&x), false), (memory(&x), true)];
    let error = run(&gpu, &job(ADD, &twice, &[dispatch(4, 0.0)]), unchecked()).expect_err("read and written at once");
    assert!(error.to_string().contains("failed to run kernel `add`"), "{error}");
    let (y, _) = add(&client, &x, &[1.0]).expect("goes on");
    assert_eq!(y.to_vec::<f32>(), Ok(vec![1.0, 2.0, 3.0, 4.0]));
    let counters = client.gpu_counters();
    assert_eq!((counters.pipelines_compiled, counters.dispatches), (1, 1));
}

#[test]
fn limits_are_checked_before_the_driver_sees_them() {
    let Some(client) = gpu() else { return };
    let gpu = client.gpu_runtime().expect("a GPU client");
    let limits = *client.target();
    assert!(limits.max_threads >= 256 && limits.workgroup_bytes >= 16 << 10, "{limits:?}");
    let refused = |job: &ShaderJob| run(&gpu, job, unchecked()).expect_err("beyond a limit").to_string();

    let x = client.array(&numbers(4), &[4]).expect("uploads");
    let many: Vec<_> = (0..100_000.min(limits.storage_bindings)).map(|_| (memory(&x), false)).collect();
    if limits.storage_bindings < 100_000 {
        let message = refused(&job(ADD, &many, &[]));
        assert!(message.contains(&format!("the limit is {}", limits.storage_bindings)), "{message}");
    }
    let message = refused(&ShaderJob { workgroup: limits.max_threads + 1, ..job(ADD, &[], &[]) });
    assert!(message.contains("threads a workgroup in kernel `add`"), "{message}");
    let grid = [Dispatch { workgroups: [1, limits.max_workgroups_per_axis + 1, 1], uniform: vec![] }];
    assert!(refused(&job(ADD, &[], &grid)).contains("workgroups along an axis"));
    let too_long = usize::try_from(limits.max_binding_bytes).unwrap_or(usize::MAX >> 2) / 4 + 1;
    let error = client.zeros(&[too_long], DType::F32).map(|_| ()).expect_err("too long for a binding");
    assert_eq!(error.code(), "limit");

    let host = Client::cpu().array(&numbers(4), &[4]).expect("host memory");
    let foreign = [(memory(&host), false)];
    assert!(refused(&job(ADD, &foreign, &[])).contains("lives on cpu"));
}

#[test]
fn the_memory_limit_refuses_and_freed_buffers_are_used_again() {
    let Some(client) = gpu() else { return };
    client.set_memory_limit(3 << 20);
    let held = client.zeros(&[1 << 19], DType::F32).expect("2 of 3 MiB");
    let error = client.zeros(&[1 << 19], DType::F32).map(|_| ()).expect_err("4 of 3 MiB");
    assert!(error.to_string().contains("2.00 MiB asked for, 2.00 MiB of 3.00 MiB in use"), "{error}");
    let address = held.wgpu_buffer().ok().flatten().expect("on the GPU").clone();
    drop(held);
    assert_eq!((client.memory().in_use, client.memory().kept), (0, 2 << 20));
    let again = client.full(&[1 << 19], 2.5f32).expect("the first one's memory");
    assert_eq!(again.wgpu_buffer(), Ok(Some(&address)));
    drop(again);
    let zeros = client.zeros(&[1 << 19], DType::F32).expect("cleared");
    assert!(zeros.to_vec::<f32>().expect("reads").iter().all(|&x| x == 0.0), "reused memory is cleared");
    drop(zeros);
    client.release_kept_memory();
    assert_eq!(client.memory().kept, 0);
}

#[test]
fn threads_share_a_client() {
    let Some(client) = gpu() else { return };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let client = &client;
            scope.spawn(move || {
                for n in [10 + thread, 300 + thread] {
                    let x = client.array(&numbers(n), &[n]).expect("uploads");
                    let by = thread as f32;
                    let (y, _) = add(client, &x, &[by]).expect("runs");
                    let expected: Vec<f32> = numbers(n).iter().map(|x| x + by).collect();
                    assert_eq!(y.to_vec::<f32>(), Ok(expected));
                }
            });
        }
    });
    assert_eq!(client.gpu_counters().pipelines_compiled, 1);
}

#[test]
fn the_users_own_device_and_buffers() {
    let Some(owner) = gpu() else { return };
    let (device, queue) = owner.wgpu().expect("a GPU client");
    let client = Client::from_wgpu(device.clone(), queue.clone());
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let buffer = |size, usage| {
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    };
    let mine = buffer(32, usage);
    queue.write_buffer(&mine, 0, &numbers(5).into_iter().flat_map(f32::to_ne_bytes).collect::<Vec<u8>>());
    let x = Array::from_wgpu(&client, mine.clone(), DType::F32, &[5]).expect("fits");
    assert_eq!(x.wgpu_buffer(), Ok(Some(&mine)));
    let (y, _) = add(&client, &x, &[2.0]).expect("runs");
    assert_eq!(y.to_vec::<f32>(), Ok(vec![2.0, 3.0, 4.0, 5.0, 6.0]));
    assert!(y.wgpu_buffer().ok().flatten().is_some_and(|out| out.size() >= 32));

    let refused = |buffer, client| Array::from_wgpu(client, buffer, DType::F32, &[5]).map(|_| ()).expect_err("refused");
    assert_eq!(refused(buffer(20, usage), &client).code(), "length");
    assert_eq!(refused(buffer(32, wgpu::BufferUsages::STORAGE), &client).code(), "unsupported");
    assert_eq!(refused(mine, &Client::cpu()).code(), "unsupported");
    let foreign = add(&owner, &x, &[1.0]).map(|_| ()).expect_err("an array of another client");
    assert_eq!(foreign.code(), "foreign-client");
}

#[test]
fn a_lost_device_answers_errors() {
    let Some(client) = gpu() else { return };
    let x = client.array(&numbers(4), &[4]).expect("uploads");
    client.wgpu().expect("a GPU client").0.destroy();
    let lost = |error: Error| assert_eq!(error.code(), "device-lost", "{error}");
    // Destroying is noticed when the device is polled next; until then calls may fail in the driver's words.
    let _ = client.block_until_ready();
    lost(client.block_until_ready().expect_err("lost"));
    lost(x.to_vec::<f32>().expect_err("lost"));
    lost(client.zeros(&[4], DType::F32).map(|_| ()).expect_err("lost"));
    lost(add(&client, &x, &[1.0]).map(|_| ()).expect_err("lost"));
    drop(x);
    let other = client.isolated().expect("the adapter is still there");
    let x = other.array(&numbers(4), &[4]).expect("works");
    assert_eq!(x.to_vec::<f32>(), Ok(numbers(4)));
}

#[test]
fn a_device_that_does_not_exist() {
    let error = Client::gpu(99).map(|_| ()).expect_err("no machine has as many");
    assert!(error.to_string().starts_with("no device `gpu:99`: "), "{error}");
}

#[test]
fn opengl_is_taken_by_name_only() {
    assert!(Client::devices().iter().all(|device| device.api != "GL"), "{:?}", Client::devices());
    assert!(Client::gpu(0).is_ok_and(|client| client.device().api != "GL") || Client::gpu(0).is_err());
    let Ok(client) = Client::gl(0) else { return };
    assert_eq!((client.device().api, client.device().id()), ("GL", "gl:0".to_string()));
    assert!(client.why().contains("GL"), "{}", client.why());
    assert_eq!(client.isolated().expect("another of it").device().id(), "gl:0");
}

/// The same text, where there is no Vulkan driver.
#[test]
fn opengl_is_taken_by_name_only_where_nothing_else_is() {
    again("tests::gpu::opengl_is_taken_by_name_only", &[("VK_DRIVER_FILES", "/nonexistent")]);
}

#[test]
fn threads_share_an_opengl_adapter() {
    let Ok(client) = Client::gl(0) else { return };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = client.isolated().expect("the adapter is there");
            scope.spawn(move || {
                for n in [10 + thread, 300 + thread] {
                    let x = client.array(&numbers(n), &[n]).expect("uploads");
                    let (y, _) = add(&client, &x, &[1.0]).expect("runs");
                    assert_eq!(y.to_vec::<f32>(), Ok(numbers(n).iter().map(|x| x + 1.0).collect()));
                }
            });
        }
    });
}
