//! A wgpu device: a shader of multiply-adds in registers, and a copy between buffers.
use pallas_rt::wgpu;
use std::time::Instant;

/// Sixteen chains of vectors of four; the factors come from memory, so that nothing is computed beforehand.
const SHADER: &str = "
@group(0) @binding(0) var<storage, read_write> x: array<vec4<f32>>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let a = x[0]; let b = x[1];
    var s0 = x[2] + f32(id.x); var s1 = s0 + a; var s2 = s1 + a; var s3 = s2 + a;
    var s4 = s3 + a; var s5 = s4 + a; var s6 = s5 + a; var s7 = s6 + a;
    for (var i = 0u; i < 1000u; i++) {
        s0 = fma(s0, a, b); s1 = fma(s1, a, b); s2 = fma(s2, a, b); s3 = fma(s3, a, b);
        s4 = fma(s4, a, b); s5 = fma(s5, a, b); s6 = fma(s6, a, b); s7 = fma(s7, a, b);
        s0 = fma(s0, a, b); s1 = fma(s1, a, b); s2 = fma(s2, a, b); s3 = fma(s3, a, b);
        s4 = fma(s4, a, b); s5 = fma(s5, a, b); s6 = fma(s6, a, b); s7 = fma(s7, a, b);
    }
    x[3u + id.x % 64u] = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7;
}";
/// Operations of an invocation: turns, chains, lanes, two a multiply-add.
const FLOPS: f64 = 1000.0 * 16.0 * 4.0 * 2.0;

/// Floating point operations and bytes a second; `software` adapters get less to do.
pub fn measure(device: &wgpu::Device, queue: &wgpu::Queue, software: bool) -> (f64, f64) {
    let (groups, bytes) = if software { (64, 16 << 20) } else { (16_384, 256 << 20) };
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let buffer =
        |size| device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false });
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some("multiply-adds"),
        source: wgpu::ShaderSource::Wgsl(SHADER.into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some("multiply-adds"),
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });
    let sums = buffer(16 * 128);
    let numbers: Vec<u8> = [0.999f32, 1e-6, 1.0].iter().flat_map(|x| [x.to_le_bytes(); 4].concat()).collect();
    queue.write_buffer(&sums, 0, &numbers);
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: sums.as_entire_binding() }],
    });
    let compute = seconds(device, queue, |encoder| {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(groups, 1, 1);
    });
    let (from, to) = (buffer(bytes), buffer(bytes));
    let copy = seconds(device, queue, |encoder| encoder.copy_buffer_to_buffer(&from, 0, &to, 0, bytes));
    (f64::from(groups) * 64.0 * FLOPS / compute, 2.0 * bytes as f64 / copy)
}

/// Seconds of the fastest of five runs of what is recorded, each run several times over to hide the start.
fn seconds(device: &wgpu::Device, queue: &wgpu::Queue, record: impl Fn(&mut wgpu::CommandEncoder)) -> f64 {
    const TIMES: u32 = 4;
    let run = |_| {
        let start = Instant::now();
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        (0..TIMES).for_each(|_| record(&mut encoder));
        queue.submit([encoder.finish()]);
        device.poll(wgpu::PollType::wait_indefinitely()).expect("the probe runs");
        start.elapsed().as_secs_f64() / f64::from(TIMES)
    };
    (0..6).map(run).fold(f64::INFINITY, f64::min)
}
