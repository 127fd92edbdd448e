//! The text around a kernel's body: bindings, and the numbers of threads and programs.
use super::super::barriers::ShaderNode;
use super::super::buffer_addresses::MemorySizes;
use super::super::place::PlacementPlan;
use super::super::place::cooperative_matrices::StorageCell;
use super::super::types::called_helper_functions;
use super::emitter::EmittedBody;
use super::names::{
    array_name, bound_arrays, constant_uniform_word, dim_text, dim_uniform_word, extent_uniform_word,
    grid_uniform_word, launch_computed_extents, uniform_word_expression,
};
use super::word_packing;
use pallas_ir::Kernel;
use std::fmt::Write;

/// Returns the text of a shader around `body`, which has its barriers already; declares memory of these `sizes` and, if
/// `error_flag`, the buffer in which the shader reports errors.
pub(in crate::wgsl) fn emit_module(
    k: &Kernel,
    plan: &PlacementPlan,
    body: &EmittedBody,
    sizes: MemorySizes,
    error_flag: bool,
) -> String {
    let scratch_words = sizes.scratch;
    let mut m = String::new();
    let mut put = |s: String| m.push_str(&(s + "\n"));
    let (rows, columns) = plan.grid;
    if plan.has_f16_tiles() {
        put("enable f16;".into());
    }
    let cooperative = plan.fragments.iter().any(Option::is_some);
    if cooperative {
        put("enable wgpu_cooperative_matrix;".into());
        // naga assumes that variables differ between threads; those that control flow depends on here are equal.
        put("diagnostic(off, derivative_uniformity);".into());
    }
    put(format!("// kernel {}: one workgroup of {rows} x {columns} threads a program", k.name));
    let uniform = constant_uniform_word(k, body.constants.len()).div_ceil(4);
    put(format!("struct Launch {{ words: array<vec4<u32>, {uniform}> }}"));
    put("@group(0) @binding(0) var<uniform> launch: Launch;".into());
    let bound = bound_arrays(k);
    let mut text = String::new();
    render_nodes(&body.nodes, 2, body.lockstep, &mut text);
    let mut functions = String::new();
    for (i, (id, written)) in bound.iter().enumerate() {
        let access = if *written { "read_write" } else { "read" };
        let (word, own) = word_packing::binding_and_accessors(k, *id, body.fours.contains(id), &text);
        functions.push_str(&own);
        let (name, dtype) = (array_name(k, *id), k.operand(*id).dtype);
        put(format!("@group(0) @binding({}) var<storage, {access}> {name}: array<{word}>; // {dtype}", i + 1));
    }
    let mut next = bound.len() + 1;
    if scratch_words > 0 {
        put(format!("@group(0) @binding({next}) var<storage, read_write> scratch: array<u32>;"));
        next += 1;
    }
    if error_flag {
        put(format!("@group(0) @binding({next}) var<storage, read_write> error_flag: array<atomic<u32>>;"));
        put("var<private> spent: u32;".into());
    }
    for cell in StorageCell::ALL.into_iter().filter(|&cell| sizes.workgroup_elements(cell) > 0) {
        let count = sizes.workgroup_elements(cell).div_ceil(cell.elements_per_cell());
        put(format!("var<workgroup> {}: array<{}, {count}>;", cell.workgroup_array_name(), cell.wgsl_type()));
    }
    if body.broadcasts_scalars {
        put("var<workgroup> agreed: u32;".into());
    }
    for b in &plan.buffers {
        put(format!("const at_{} = {}u;", b.name, b.at));
    }
    put("fn word(i: u32) -> u32 { return launch.words[i / 4u][i % 4u]; }".into());
    put(functions);
    body.helpers.iter().for_each(|h| put((*h).to_string()));
    put(format!("@compute @workgroup_size({})", plan.thread_count()));
    let subgroup = if cooperative { ", @builtin(subgroup_id) subgroup: u32" } else { "" };
    put(format!(
        "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) thread: u32{subgroup}) {{"
    ));
    if error_flag {
        // Private memory starts undefined where the driver's zeroing is off.
        put("    spent = 0u;".into());
    }
    put("    let local = group.x + groups.x * (group.y + groups.y * group.z);".into());
    put("    let program = word(0u) + local;".into());
    put("    if (local < word(2u) && program < word(1u)) {".into());
    if scratch_words > 0 {
        put(format!("        let own = local * {scratch_words}u;"));
    }
    put(format!("        let row = thread / {columns}u;"));
    put(format!("        let column = thread % {columns}u;"));
    for i in (0..k.dims.len()).filter(|&i| k.dims[i].size.is_none()) {
        put(format!("        let {} = i32({});", dim_text(k, i), uniform_word_expression(dim_uniform_word(k, i))));
    }
    for i in 0..launch_computed_extents(k).len() {
        put(format!("        let extent_{i} = i32({});", uniform_word_expression(extent_uniform_word(k, i))));
    }
    let mut rest = "program".to_string();
    for axis in (0..k.grid.len()).rev() {
        put(format!(
            "        let id{axis} = i32({rest} % max({}, 1u));",
            uniform_word_expression(grid_uniform_word(axis))
        ));
        rest = format!("({rest} / max({}, 1u))", uniform_word_expression(grid_uniform_word(axis)));
    }
    put(text.trim_end().to_string());
    put("    }".into());
    put("}".into());
    m += &called_helper_functions(&m);
    m
}

/// Appends the text of nodes and of their barriers, which are indented to `depth`; if `lockstep`, as one subgroup runs
/// all threads, workgroup memory needs a `subgroupBarrier` only.
fn render_nodes(nodes: &[ShaderNode], depth: usize, lockstep: bool, out: &mut String) {
    for node in nodes {
        match node {
            ShaderNode::Text(text) => out.push_str(text),
            ShaderNode::MemoryStep(step) => out.push_str(&step.text),
            ShaderNode::Barrier(b) => {
                let barrier = match (b.storage, lockstep) {
                    (true, _) => "workgroupBarrier(); storageBarrier();",
                    (false, false) => "workgroupBarrier();",
                    (false, true) => "subgroupBarrier();",
                };
                writeln!(out, "{}{barrier} // {}", "    ".repeat(depth), b.why).expect("text");
            }
            ShaderNode::ControlFlow(nest) => {
                for (head, part) in &nest.parts {
                    out.push_str(head);
                    render_nodes(part, depth + 1, lockstep, out);
                }
                out.push_str(&nest.close);
            }
        }
    }
}
