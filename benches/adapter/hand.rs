//! Kernels as a person would write them for this one adapter: no staging, register tiles, eight invocations a
//! workgroup, sizes that fit. Lines that repeat are written out by loops here.
#![allow(unsafe_code, reason = "shaders without checks, as the library compiles its own")]
use crate::clock::{self, Took};
use crate::{Case, HEAD, Peer, numbers};
use pallas_rt::{Client, Result, wgpu};
use std::fmt::Write;
use wgpu::util::DeviceExt;

/// Invocations of a workgroup: the lanes of a processor's vector.
const LANES: usize = 8;

/// A pipeline with its operands.
pub struct Hand {
    name: String,
    device: wgpu::Device,
    queue: wgpu::Queue,
    text: String,
    groups: (u32, u32),
    buffers: Vec<wgpu::Buffer>,
    ready: Option<(wgpu::ComputePipeline, wgpu::BindGroup)>,
}

impl Hand {
    /// The ways a case was written; none has the causal mask.
    pub fn all(client: &Client, case: Case) -> Vec<Hand> {
        let Some((device, queue)) = client.wgpu() else { return vec![] };
        let ways: Vec<(String, String, (usize, usize))> = match case {
            Case::Matmul { n } => {
                let (rows, columns) = (16, 8);
                let groups = (n / columns, n / (rows * LANES));
                vec![(format!("hand-written, {rows} x {columns} a thread"), product(n, rows, columns), groups)]
            }
            Case::Attention { heads, positions, causal: false } => [4, 8]
                .map(|rows| {
                    let groups = (positions / (rows * LANES), heads);
                    (format!("hand-written, {rows} rows a thread"), attention(positions, rows), groups)
                })
                .into(),
            Case::Attention { causal: true, .. } => vec![],
        };
        let shapes = case.operands();
        ways.into_iter()
            .map(|(name, text, (x, y))| {
                let mut sizes = shapes.iter().map(|s| s.iter().product());
                let mut buffers: Vec<wgpu::Buffer> =
                    sizes.clone().enumerate().map(|(i, n)| buffer(device, &numbers(n, i))).collect();
                buffers.push(buffer(device, &vec![0.0; sizes.next_back().expect("operands")]));
                let (device, queue, groups) = (device.clone(), queue.clone(), (x as u32, y as u32));
                Hand { name, device, queue, text, groups, buffers, ready: None }
            })
            .collect()
    }
    fn compile(&self) -> (wgpu::ComputePipeline, wgpu::BindGroup) {
        let source = wgpu::ShaderSource::Wgsl(self.text.as_str().into());
        let descriptor = wgpu::ShaderModuleDescriptor { label: Some(&self.name), source };
        // SAFETY: the texts below stay inside of their arrays for the sizes they are written for.
        let module =
            unsafe { self.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) };
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&self.name),
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let entry = |(i, b): (usize, &wgpu::Buffer)| (i as u32, b.clone());
        let entries: Vec<(u32, wgpu::Buffer)> = self.buffers.iter().enumerate().map(entry).collect();
        let entries: Vec<wgpu::BindGroupEntry<'_>> = entries
            .iter()
            .map(|(binding, b)| wgpu::BindGroupEntry { binding: *binding, resource: b.as_entire_binding() })
            .collect();
        let layout = &pipeline.get_bind_group_layout(0);
        let group =
            self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries });
        (pipeline, group)
    }
}

fn buffer(device: &wgpu::Device, contents: &[f32]) -> wgpu::Buffer {
    let bytes: Vec<u8> = contents.iter().flat_map(|x| x.to_le_bytes()).collect();
    device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
        label: None,
        contents: &bytes,
        usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
    })
}

impl Peer for Hand {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn first(&mut self) -> Result<Took> {
        self.run()
    }
    fn run(&mut self) -> Result<Took> {
        clock::time(|| {
            if self.ready.is_none() {
                self.ready = Some(self.compile());
            }
            let (pipeline, group) = self.ready.as_ref().expect("made above");
            let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                pass.set_pipeline(pipeline);
                pass.set_bind_group(0, group, &[]);
                pass.dispatch_workgroups(self.groups.0, self.groups.1, 1);
            }
            self.queue.submit([encoder.finish()]);
            self.device.poll(wgpu::PollType::wait_indefinitely()).expect("it runs");
            Ok(())
        })
    }
    fn result(&mut self) -> Result<Vec<f32>> {
        let from = self.buffers.last().expect("the result is the last");
        let to = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: from.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(from, 0, &to, 0, from.size());
        self.queue.submit([encoder.finish()]);
        to.slice(..).map_async(wgpu::MapMode::Read, |done| done.expect("it is mapped"));
        self.device.poll(wgpu::PollType::wait_indefinitely()).expect("it is copied");
        let bytes = to.slice(..).get_mapped_range().expect("it was mapped").to_vec();
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }
}

/// A text from its lines.
macro_rules! lines {
    ($to:expr, $($line:tt)*) => { writeln!($to, $($line)*).expect("a String takes any text") };
}

/// `C = A·B`, n x n: an invocation has `rows` rows, eight apart, of `columns` columns.
fn product(n: usize, rows: usize, columns: usize) -> String {
    let (n4, vectors) = (n / 4, columns / 4);
    let mut t = String::new();
    lines!(t, "@group(0) @binding(0) var<storage, read> a: array<f32>;");
    lines!(t, "@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;");
    lines!(t, "@group(0) @binding(2) var<storage, read_write> c: array<vec4<f32>>;");
    lines!(t, "@compute @workgroup_size({LANES})");
    lines!(t, "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{");
    lines!(t, "  let row = group.y * {}u + lane;", rows * LANES);
    lines!(t, "  let column = group.x * {vectors}u;");
    let each = || (0..rows).flat_map(|r| (0..vectors).map(move |v| (r, v)));
    each().for_each(|(r, v)| lines!(t, "  var c{r}_{v} = vec4<f32>();"));
    lines!(t, "  for (var k = 0u; k < {n}u; k++) {{");
    (0..vectors).for_each(|v| lines!(t, "    let b{v} = b[k * {n4}u + column + {v}u];"));
    (0..rows).for_each(|r| lines!(t, "    let a{r} = a[(row + {}u) * {n}u + k];", r * LANES));
    each().for_each(|(r, v)| lines!(t, "    c{r}_{v} = fma(vec4<f32>(a{r}), b{v}, c{r}_{v});"));
    lines!(t, "  }}");
    each().for_each(|(r, v)| lines!(t, "  c[(row + {}u) * {n4}u + column + {v}u] = c{r}_{v};", r * LANES));
    lines!(t, "}}");
    t
}

/// Attention over `n` positions: an invocation has `rows` neighbouring queries, and sees a key at a time.
fn attention(n: usize, rows: usize) -> String {
    let vectors = HEAD / 4;
    let mut t = String::new();
    for (i, name) in ["q", "k", "v", "out"].iter().enumerate() {
        let access = if *name == "out" { "read_write" } else { "read" };
        lines!(t, "@group(0) @binding({i}) var<storage, {access}> {name}: array<vec4<f32>>;");
    }
    lines!(t, "@compute @workgroup_size({LANES})");
    lines!(t, "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{");
    lines!(t, "  let head = group.y * {}u;", n * vectors);
    lines!(t, "  let first = head + (group.x * {}u + lane * {rows}u) * {vectors}u;", rows * LANES);
    let each = || (0..rows).flat_map(|r| (0..vectors).map(move |d| (r, d)));
    (0..rows).for_each(|r| lines!(t, "  var top{r} = -1e30; var sum{r} = 0.0;"));
    let scale = (HEAD as f64).sqrt().recip();
    for (r, d) in each() {
        lines!(t, "  let q{r}_{d} = q[first + {}u] * {scale:?}; var o{r}_{d} = vec4<f32>();", r * vectors + d);
    }
    lines!(t, "  for (var j = 0u; j < {n}u; j++) {{");
    lines!(t, "    let at = head + j * {vectors}u;");
    (0..rows).for_each(|r| lines!(t, "    var s{r} = vec4<f32>();"));
    for d in 0..vectors {
        lines!(t, "    let k{d} = k[at + {d}u];");
        (0..rows).for_each(|r| lines!(t, "    s{r} = fma(q{r}_{d}, k{d}, s{r});"));
    }
    for r in 0..rows {
        lines!(t, "    let score{r} = s{r}.x + s{r}.y + s{r}.z + s{r}.w;");
        lines!(t, "    let now{r} = max(top{r}, score{r});");
        lines!(t, "    let less{r} = exp(top{r} - now{r}); let p{r} = exp(score{r} - now{r});");
        lines!(t, "    top{r} = now{r}; sum{r} = sum{r} * less{r} + p{r};");
    }
    for d in 0..vectors {
        lines!(t, "    let v{d} = v[at + {d}u];");
        (0..rows).for_each(|r| lines!(t, "    o{r}_{d} = fma(vec4<f32>(p{r}), v{d}, o{r}_{d} * less{r});"));
    }
    lines!(t, "  }}");
    each().for_each(|(r, d)| lines!(t, "  out[first + {}u] = o{r}_{d} / sum{r};", r * vectors + d));
    lines!(t, "}}");
    t
}
