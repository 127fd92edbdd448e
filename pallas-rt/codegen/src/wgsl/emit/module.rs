//! What stands around a kernel's body: bindings, the uniform, names of dimensions and arrays.
use super::super::HEADER_WORDS;
use super::super::arena::Sizes;
use super::super::place::Plan;
use super::super::place::matrices::Cell;
use super::super::sync::Node;
use super::super::types::helpers;
use super::Emitted;
use super::element::FOUR;
use super::words;
use pallas_ir::{Dim, InstId, Kernel, Op, OperandId, OperandKind, ScalarOp, Value};
use std::fmt::Write;

// ---- words of the uniform: header, grid, steps, dimensions, extents of arrays, parameters, constants

pub(super) fn word(i: usize) -> String {
    format!("word({i}u)")
}
pub(super) fn grid_word(axis: usize) -> usize {
    HEADER_WORDS + axis
}
pub(super) fn steps_word(k: &Kernel, axis: usize) -> usize {
    grid_word(k.grid.len()) + axis
}
pub(super) fn dim_word(k: &Kernel, dim: usize) -> usize {
    steps_word(k, k.steps.len()) + dim
}
fn extent_word(k: &Kernel, i: usize) -> usize {
    dim_word(k, k.dims.len()) + i
}
pub(super) fn param_word(k: &Kernel, operand: OperandId) -> usize {
    extent_word(k, extents(k).len()) + operand.index()
}
pub(super) fn constant_word(k: &Kernel, i: usize) -> usize {
    extent_word(k, extents(k).len()) + k.operands.len() + i
}

// ---- dimensions

/// A dimension: its number, or the name the text gives it.
pub(super) fn dim(k: &Kernel, i: usize) -> String {
    k.dims[i].size.map_or_else(|| format!("dim_{}", ident(&k.dims[i].name, i)), |n| format!("i32({n})"))
}
/// The user's name where WGSL takes it, else the number.
fn ident(name: &str, i: usize) -> String {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if plain { name.to_string() } else { i.to_string() }
}
/// An array's size along an axis, bound as far as it is known while tracing.
fn bound(k: &Kernel, of: OperandId, axis: usize) -> Dim {
    let known: Vec<(&str, i64)> = k.dims.iter().filter_map(|d| Some((d.name.as_str(), d.size?))).collect();
    k.operand(of).dims[axis].bind(&known)
}
/// An array's size along an axis, if it is known while tracing.
pub(super) fn size(k: &Kernel, of: OperandId, axis: usize) -> Option<i64> {
    bound(k, of, axis).as_number()
}
/// An array's size along an axis, as text.
pub(super) fn extent(k: &Kernel, of: OperandId, axis: usize) -> String {
    let size = bound(k, of, axis);
    if let Some(n) = size.as_number() {
        return format!("i32({n})");
    }
    if let Some(name) = size.as_name() {
        return dim(k, k.dims.iter().position(|d| d.name == name).expect("dimensions are declared"));
    }
    let known = extents(k).iter().position(|&(id, a)| bound(k, id, a) == size);
    format!("extent_{}", known.expect("the list has every such size"))
}
/// Sizes of arrays that are neither numbers nor dimensions, each by the first array and axis that has it. The launch computes
/// them: their terms may need more than an i32.
pub(in crate::wgsl) fn extents(k: &Kernel) -> Vec<(OperandId, usize)> {
    let mut found: Vec<(Dim, (OperandId, usize))> = vec![];
    for (id, operand) in k.arrays() {
        for axis in 0..operand.dims.len() {
            let size = bound(k, id, axis);
            let simple = size.as_number().is_some() || size.as_name().is_some();
            if !simple && found.iter().all(|(known, _)| *known != size) {
                found.push((size, (id, axis)));
            }
        }
    }
    found.into_iter().map(|(_, place)| place).collect()
}
/// The distance between neighbours along an axis of an array; None: 1.
pub(super) fn stride(k: &Kernel, of: OperandId, axis: usize) -> Option<String> {
    let (mut number, mut names) = (1, vec![]);
    for a in axis + 1..k.operand(of).dims.len() {
        match size(k, of, a) {
            Some(n) => number *= n,
            None => names.push(extent(k, of, a)),
        }
    }
    if number != 1 {
        names.push(number.to_string());
    }
    (!names.is_empty()).then(|| if names.len() == 1 { names[0].clone() } else { format!("({})", names.join(" * ")) })
}

/// Whether a dimension is known to be a multiple of four; bits of `multiples` say so of those known at launch only.
struct Multiple<'k>(&'k Kernel, u64);
impl pallas_ir::dim::Fold for Multiple<'_> {
    type Out = bool;
    fn number(&mut self, n: i64) -> bool {
        n % FOUR as i64 == 0
    }
    fn name(&mut self, name: &str) -> bool {
        let i = self.0.dims.iter().position(|d| d.name == name).expect("dimensions are declared");
        self.0.dims[i].size.map_or(i < 64 && self.1 >> i & 1 == 1, |n| self.number(n))
    }
    fn add(&mut self, a: bool, b: bool) -> bool {
        a && b
    }
    fn mul(&mut self, a: bool, b: bool) -> bool {
        a || b
    }
    fn cdiv(&mut self, _: bool, _: bool) -> bool {
        false
    }
    fn min(&mut self, a: bool, b: bool) -> bool {
        a && b
    }
    fn max(&mut self, a: bool, b: bool) -> bool {
        a && b
    }
}
/// Whether a scalar is known to be a multiple of `n`; of what is known at launch only, `multiples` tells whether four is.
pub(super) fn multiple(k: &Kernel, defined: &[Option<InstId>], v: Value, n: i64, multiples: u64) -> bool {
    let Some(id) = defined[v.index()] else { return false };
    let inst = k.inst(id);
    let of = |v: &Value| multiple(k, defined, *v, n, multiples);
    match &inst.op {
        Op::Const(x) => x.as_i64() % n == 0,
        Op::Scalar(ScalarOp::Mul) => inst.args.iter().any(of),
        Op::Scalar(ScalarOp::Add | ScalarOp::Sub) => inst.args.iter().all(of),
        Op::Extent(dim) => {
            let i = dim.index();
            let four = || FOUR as i64 % n == 0 && i < 64 && multiples >> i & 1 == 1;
            k.dims[i].size.map_or_else(four, |size| size % n == 0)
        }
        _ => false,
    }
}
/// Whether an array may be bound as vectors of four elements: its rows are whole vectors, and so are those of whoever shares
/// its memory.
pub(in crate::wgsl) fn fours(k: &Kernel, of: OperandId, multiples: u64) -> bool {
    let memory = k.memory_of(of);
    k.arrays().filter(|(id, _)| k.memory_of(*id) == memory).all(|(id, o)| {
        let rows = o.dims.len().checked_sub(1).map(|last| bound(k, id, last));
        o.dtype.bytes() <= FOUR && rows.is_some_and(|n| n.fold(&mut Multiple(k, multiples)))
    })
}

// ---- arrays

/// The name of an array.
pub(super) fn array(k: &Kernel, id: OperandId) -> String {
    let id = k.memory_of(id);
    format!("array_{}", ident(&k.operand(id).name, id.index()))
}
/// Whether a kernel writes to an operand's memory.
pub(super) fn written(k: &Kernel, id: OperandId) -> bool {
    matches!(k.operand(k.memory_of(id)).kind, OperandKind::Output { .. })
}
/// Arrays in the order of their bindings, and whether they are written: an aliased input is its output's, and one that
/// nothing reads takes none.
pub(in crate::wgsl) fn arrays(k: &Kernel) -> Vec<(OperandId, bool)> {
    let mut touched = vec![false; k.operands.len()];
    k.walk(k.body, &mut |_, inst| {
        if let Op::Load { from: id, .. } | Op::Store { to: id, .. } | Op::Prefetch(id) = &inst.op {
            touched[k.memory_of(*id).index()] = true;
        }
    });
    let bound = |id: &OperandId| k.memory_of(*id) == *id && (touched[id.index()] || written(k, *id));
    k.arrays().filter(|(id, _)| bound(id)).map(|(id, _)| (id, written(k, id))).collect()
}

// ---- the text

/// The whole shader around a body that has its barriers.
pub(in crate::wgsl) fn module(k: &Kernel, plan: &Plan, body: &Emitted, sizes: Sizes, error_flag: bool) -> String {
    let scratch_words = sizes.scratch;
    let mut m = String::new();
    let mut put = |s: String| m.push_str(&(s + "\n"));
    let (rows, columns) = plan.grid;
    if plan.halves() {
        put("enable f16;".into());
    }
    let cooperative = plan.fragments.iter().any(Option::is_some);
    if cooperative {
        put("enable wgpu_cooperative_matrix;".into());
        // naga takes every variable for different in each thread. Ours control flow by what all threads agree on.
        put("diagnostic(off, derivative_uniformity);".into());
    }
    put(format!("// kernel {}: one workgroup of {rows} x {columns} threads a program", k.name));
    let uniform = constant_word(k, body.constants.len()).div_ceil(4);
    put(format!("struct Launch {{ words: array<vec4<u32>, {uniform}> }}"));
    put("@group(0) @binding(0) var<uniform> launch: Launch;".into());
    let bound = arrays(k);
    let mut text = String::new();
    render(&body.nodes, 2, body.lockstep, &mut text);
    let mut functions = String::new();
    for (i, (id, written)) in bound.iter().enumerate() {
        let access = if *written { "read_write" } else { "read" };
        let (word, own) = words::binding(k, *id, body.fours.contains(id), &text);
        functions.push_str(&own);
        let (name, dtype) = (array(k, *id), k.operand(*id).dtype);
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
    for cell in Cell::ALL.into_iter().filter(|&cell| sizes.of(cell) > 0) {
        let count = sizes.of(cell).div_ceil(cell.width());
        put(format!("var<workgroup> {}: array<{}, {count}>;", cell.arena(), cell.wgsl()));
    }
    if body.agrees {
        put("var<workgroup> agreed: u32;".into());
    }
    for b in &plan.buffers {
        put(format!("const at_{} = {}u;", b.name, b.at));
    }
    put("fn word(i: u32) -> u32 { return launch.words[i / 4u][i % 4u]; }".into());
    put(functions);
    body.helpers.iter().for_each(|h| put((*h).to_string()));
    put(format!("@compute @workgroup_size({})", plan.threads()));
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
        put(format!("        let {} = i32({});", dim(k, i), word(dim_word(k, i))));
    }
    for i in 0..extents(k).len() {
        put(format!("        let extent_{i} = i32({});", word(extent_word(k, i))));
    }
    let mut rest = "program".to_string();
    for axis in (0..k.grid.len()).rev() {
        put(format!("        let id{axis} = i32({rest} % max({}, 1u));", word(grid_word(axis))));
        rest = format!("({rest} / max({}, 1u))", word(grid_word(axis)));
    }
    put(text.trim_end().to_string());
    put("    }".into());
    put("}".into());
    m += &helpers(&m);
    m
}

fn render(nodes: &[Node], depth: usize, lockstep: bool, out: &mut String) {
    for node in nodes {
        match node {
            Node::Text(text) => out.push_str(text),
            Node::Step(step) => out.push_str(&step.text),
            Node::Barrier(b) => {
                let barrier = match (b.storage, lockstep) {
                    (true, _) => "workgroupBarrier(); storageBarrier();",
                    (false, false) => "workgroupBarrier();",
                    (false, true) => "subgroupBarrier();",
                };
                writeln!(out, "{}{barrier} // {}", "    ".repeat(depth), b.why).expect("text");
            }
            Node::Nest(nest) => {
                for (head, part) in &nest.parts {
                    out.push_str(head);
                    render(part, depth + 1, lockstep, out);
                }
                out.push_str(&nest.close);
            }
        }
    }
}
