//! Shaders with cooperative matrices, on adapters that have none: the text as it is emitted, its matrix types and
//! functions replaced by plain WGSL, and its f16 by f32.
use crate::support::{doubles, epsilon};
use crate::validate::validate;
use pallas_rt::__tests::UNIFORM_HEADER_WORDS;
use pallas_rt::ir::{Kernel, OperandKind};
use pallas_rt::launch::Explanation;
use pallas_rt::prelude::*;
use pallas_rt::shader::Shader;
use pallas_rt::wgpu::{self, util::DeviceExt};
use std::collections::BTreeMap;

/// Matrices of N x N in plain WGSL. A factor is where it lies in memory: at, from row to row, from column to column. Of
/// accumulators each thread of a subgroup has every L-th element, as the real ones.
const MATRIX: &str = "
struct MatrixN { e: array<f32, SHARE> }
fn multiply_WHERE_N(a: vec3<u32>, b: vec3<u32>, c: ptr<function, MatrixN>) {
    for (var k = 0u; k < Nu; k++) {
        MULTIPLY
    }
}
fn store_N(m: ptr<function, MatrixN>, at: u32, pitch: u32) {
    STORE
}
";
const MULTIPLY: &str = "(*c).e[I] = fma(f32(WHERE[a.x + (lane + Iu * Lu) / Nu * a.y + k * a.z]), \
                        f32(WHERE[b.x + k * b.y + (lane + Iu * Lu) % Nu * b.z]), (*c).e[I]);";
const STORE: &str = "floats[at + (lane + Iu * Lu) / Nu * pitch + (lane + Iu * Lu) % Nu] = (*m).e[I];";

/// The text between two marks behind `at`, and where the second one ends.
fn between<'t>(text: &'t str, at: usize, first: &str, last: &str) -> (&'t str, usize) {
    let from = at + text[at..].find(first).expect("the first mark") + first.len();
    let to = from + text[from..].find(last).expect("the second mark");
    (&text[from..to], to + last.len())
}

/// A shader's text with plain matrices, on subgroups of so many threads.
pub fn plain(text: &str, lanes: usize) -> String {
    let mut out = String::new();
    // The arena that factors are loaded from, and their extents.
    let mut loaded = None;
    for line in text.lines().filter(|l| !l.starts_with("enable ") && !l.starts_with("diagnostic(")) {
        let mut line = line.replace("f16(", "f32(").replace("array<f16", "array<f32");
        if line.starts_with("fn main(") {
            let subgroup = ", @builtin(subgroup_id) subgroup: u32";
            assert!(line.contains(subgroup), "a subgroup knows its number");
            line = line.replace(subgroup, "") + &format!("lane = thread % {lanes}u; let subgroup = thread / {lanes}u;");
        }
        if let Some(at) = line.find(" = coopLoad") {
            let (size, _) = between(&line, at, "coop_mat", "x");
            let (arena, end) = between(&line, at, "(&", "[");
            let (index, end) = between(&line, end - 1, "[", "], ");
            let pitch = line[end..].trim_end_matches(");");
            let strides = if line.contains("coopLoadT<") { format!("{pitch}, 1u") } else { format!("1u, {pitch}") };
            let new = (arena.to_string(), size.to_string());
            assert!(loaded.is_none() || loaded.as_ref() == Some(&new), "this kernel's matrices are all alike");
            line = format!("{} = vec3<u32>({index}, {strides});", &line[..at]);
            loaded = Some(new);
        } else if line.contains(" = coopMultiplyAdd(") {
            let (sum, _) = line.trim_start().split_once(" =").expect("an assignment");
            let (factors, _) = between(&line, 0, "coopMultiplyAdd(", ");");
            let [a, b, c] = factors.split(", ").collect::<Vec<_>>()[..] else { panic!("{line}") };
            assert_eq!(c, sum, "sums grow in place");
            let (arena, size) = loaded.as_ref().expect("factors were loaded");
            line = format!("multiply_{arena}_{size}({a}, {b}, &{c});");
        } else if line.contains("coopStoreT(") {
            let (sum, _) = between(&line, 0, "coopStoreT(", ", ");
            let (index, end) = between(&line, 0, "&floats[", "], ");
            let (_, size) = loaded.as_ref().expect("products come before their results");
            line = format!("store_{size}(&{sum}, {index}, {}", &line[end..]);
        }
        for size in ["8", "16"] {
            line = line.replace(&format!("coop_mat{size}x{size}<f32, C>"), &format!("Matrix{size}"));
        }
        assert!(!line.contains("coop"), "{line}");
        out += &(line + "\n");
    }
    let (arena, size) = loaded.expect("the shader multiplies by matrices");
    let n: usize = size.parse().expect("a size");
    let share = n * n / lanes;
    let each = |template: &str| (0..share).map(|i| template.replace('I', &i.to_string())).collect::<String>();
    let matrix = MATRIX.replace("MULTIPLY", &each(MULTIPLY)).replace("STORE", &each(STORE));
    let matrix = matrix.replace("SHARE", &share.to_string()).replace("WHERE", &arena);
    out + "var<private> lane: u32;" + &matrix.replace("Lu", &format!("{lanes}u")).replace('N', &size)
}

/// Runs a kernel's shader, made plain, on arrays by their operands' names; its outputs have the given shapes.
pub fn run(
    client: &Client,
    explanation: &Explanation,
    (shader, lanes): (&Shader, usize),
    inputs: &[(&str, &Array)],
    params: &[(&str, u32)],
    outputs: &[(&str, Vec<usize>)],
) -> BTreeMap<String, Vec<f32>> {
    let (device, queue) = client.wgpu().expect("a GPU client");
    let (kernel, text) = (&explanation.kernels[0], plain(&shader.text, lanes));
    validate(&text);
    let k = &*kernel.lowered;
    let shape = |name: &str| -> Vec<usize> {
        let input = inputs.iter().find(|(n, _)| *n == name).map(|(_, x)| x.shape().to_vec());
        let output = || outputs.iter().find(|(n, _)| *n == name).map(|(_, shape)| shape.clone());
        input.or_else(output).unwrap_or_else(|| panic!("`{name}` has a shape"))
    };
    let programs: u64 = kernel.grid[..k.grid.len()].iter().map(|&n| n as u64).product();
    let mut words = vec![0, programs as u32, programs as u32, 0];
    assert_eq!(words.len(), UNIFORM_HEADER_WORDS);
    words.extend(kernel.grid[..k.grid.len()].iter().map(|&n| n as u32));
    words.extend(kernel.grid[k.grid.len()..].iter().map(|&n| n as u32));
    words.extend(k.dims.iter().map(|d| d.size.unwrap_or_else(|| dim(k, &d.name, &shape)) as u32));
    assert!(shader.extents.is_empty(), "arrays have sizes that are dimensions");
    let param = |name: &str| params.iter().find(|(n, _)| *n == name).map_or(0, |(_, bits)| *bits);
    words.extend(k.operands.iter().map(|o| param(&o.name)));
    words.extend(&shader.constants);
    words.resize(words.len().next_multiple_of(4), 0);

    let buffer = |contents: &[u8], usage| {
        device.create_buffer_init(&wgpu::util::BufferInitDescriptor { label: None, contents, usage })
    };
    let bytes = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let mut buffers = vec![buffer(&bytes(&words), wgpu::BufferUsages::UNIFORM)];
    let storage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
    for &(id, _) in &shader.bindings {
        let operand = k.operand(id);
        let contents = match inputs.iter().find(|(n, _)| *n == operand.name) {
            Some((_, x)) => x.to_bytes().expect("it is on the host"),
            None => vec![0; shape(&operand.name).iter().product::<usize>() * 4],
        };
        let padded = contents.len().next_multiple_of(16).max(16);
        buffers.push(buffer(&[contents.clone(), vec![0; padded - contents.len()]].concat(), storage));
    }
    if shader.scratch_words > 0 {
        buffers.push(buffer(&vec![0; shader.scratch_words * 4 * programs as usize], storage));
    }

    let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let source = wgpu::ShaderSource::Wgsl(text.as_str().into());
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    });
    let resource = |(i, b): (usize, &wgpu::Buffer)| (i as u32, b.clone());
    let all: Vec<(u32, wgpu::Buffer)> = buffers.iter().enumerate().map(resource).collect();
    let entries: Vec<wgpu::BindGroupEntry<'_>> = all
        .iter()
        .map(|(binding, b)| wgpu::BindGroupEntry { binding: *binding, resource: b.as_entire_binding() })
        .collect();
    let layout = pipeline.get_bind_group_layout(0);
    let group =
        device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries });
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups(programs as u32, 1, 1);
    drop(pass);
    let mut results = vec![];
    for (i, &(id, _)) in shader.bindings.iter().enumerate() {
        let operand = k.operand(id);
        if matches!(operand.kind, OperandKind::Output { .. }) {
            let source = &buffers[i + 1];
            let usage = wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ;
            let copy = device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: source.size(),
                usage,
                mapped_at_creation: false,
            });
            encoder.copy_buffer_to_buffer(source, 0, &copy, 0, source.size());
            results.push((operand, copy));
        }
    }
    queue.submit([encoder.finish()]);
    let refused = now(scope.pop());
    assert!(refused.is_none(), "{refused:?}");
    let read = |(operand, copy): (&pallas_rt::ir::Operand, wgpu::Buffer)| {
        copy.map_async(wgpu::MapMode::Read, .., |mapped| mapped.expect("it is mapped"));
        device.poll(wgpu::PollType::wait_indefinitely()).expect("it runs");
        let count = shape(&operand.name).iter().product();
        let bytes = copy.get_mapped_range(..).expect("it is mapped").to_vec();
        let values: Vec<f32> = match operand.dtype {
            DType::F32 => bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).take(count).collect(),
            DType::Bf16 => bytes.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).take(count).collect(),
            DType::F16 => bytes.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).take(count).collect(),
            other => panic!("no test reads {other}"),
        };
        (operand.name.clone(), values)
    };
    results.into_iter().map(read).collect()
}

/// What is there already: on native platforms nothing is waited for.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("it is not there"),
    }
}

/// The size of a dimension that some array has an axis of.
fn dim(k: &Kernel, name: &str, shape: &dyn Fn(&str) -> Vec<usize>) -> i64 {
    let axis = |o: &pallas_rt::ir::Operand| {
        let axis = o.dims.iter().position(|d| d.to_string() == name)?;
        Some(shape(&o.name)[axis] as i64)
    };
    k.arrays().find_map(|(_, o)| axis(o)).unwrap_or_else(|| panic!("`{name}` sizes some array"))
}

/// Compares with what the interpreter gives: within `k` units of the type, and of f32 for a sum of so many terms.
pub fn agrees(found: &[f32], want: &Array, terms: usize, k: f64, what: &str) {
    let want_values = doubles(want);
    assert_eq!(found.len(), want_values.len(), "{what}");
    let tolerance = k * (epsilon(want.dtype()) + epsilon(DType::F32) * (terms as f64).sqrt());
    for (i, (&a, &b)) in found.iter().zip(&want_values).enumerate() {
        let a = f64::from(a);
        let same = a == b || (a - b).abs() <= tolerance * b.abs().max(1.0);
        assert!(same, "{what}: element {i} is {a}, the interpreter's {b}");
    }
}
