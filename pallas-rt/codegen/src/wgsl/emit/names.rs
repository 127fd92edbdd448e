//! Names of arrays, dimensions and values in a shader, and the layout of the words of the uniform.
use super::emitter::BodyEmitter;
use super::position::VEC4_WIDTH;
use pallas_ir::{Dim, InstId, Kernel, Op, OperandId, OperandKind, ScalarOp, Value};

// ---- words of the uniform: header, grid, steps, dimensions, extents of arrays, parameters, constants

/// Number of words at the start of the uniform buffer; they have the first program and the number of programs.
pub const UNIFORM_HEADER_WORDS: usize = 4;

pub(super) fn uniform_word_expression(word_index: usize) -> String {
    format!("word({word_index}u)")
}
pub(super) fn grid_uniform_word(axis: usize) -> usize {
    UNIFORM_HEADER_WORDS + axis
}
pub(super) fn steps_uniform_word(k: &Kernel, axis: usize) -> usize {
    grid_uniform_word(k.grid.len()) + axis
}
pub(super) fn dim_uniform_word(k: &Kernel, dim: usize) -> usize {
    steps_uniform_word(k, k.steps.len()) + dim
}
pub(super) fn extent_uniform_word(k: &Kernel, extent: usize) -> usize {
    dim_uniform_word(k, k.dims.len()) + extent
}
pub(super) fn param_uniform_word(k: &Kernel, operand: OperandId) -> usize {
    extent_uniform_word(k, launch_computed_extents(k).len()) + operand.index()
}
pub(super) fn constant_uniform_word(k: &Kernel, constant: usize) -> usize {
    extent_uniform_word(k, launch_computed_extents(k).len()) + k.operands.len() + constant
}

// ---- dimensions

/// Returns the WGSL expression of a dimension: its size as a number if that is known while tracing, else a variable's
/// name.
pub(super) fn dim_text(k: &Kernel, dim: usize) -> String {
    k.dims[dim]
        .size
        .map_or_else(|| format!("dim_{}", identifier_or_number(&k.dims[dim].name, dim)), |n| format!("i32({n})"))
}
/// Returns the user's name if it is a WGSL identifier, else the number.
fn identifier_or_number(name: &str, number: usize) -> String {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if plain { name.to_string() } else { number.to_string() }
}
/// Returns an array's size along an axis as an expression of dimensions; those that are known while tracing are numbers
/// in it.
fn symbolic_extent(k: &Kernel, of: OperandId, axis: usize) -> Dim {
    let known: Vec<(&str, i64)> = k.dims.iter().filter_map(|d| Some((d.name.as_str(), d.size?))).collect();
    k.operand(of).dims[axis].bind(&known)
}
/// Returns an array's size along an axis, if it is known while tracing.
pub(super) fn static_extent(k: &Kernel, of: OperandId, axis: usize) -> Option<i64> {
    symbolic_extent(k, of, axis).as_number()
}
/// Returns an array's size along an axis, as text.
pub(super) fn extent_text(k: &Kernel, of: OperandId, axis: usize) -> String {
    let size = symbolic_extent(k, of, axis);
    if let Some(n) = size.as_number() {
        return format!("i32({n})");
    }
    if let Some(name) = size.as_name() {
        return dim_text(k, k.dims.iter().position(|d| d.name == name).expect("dimensions are declared"));
    }
    let known = launch_computed_extents(k).iter().position(|&(id, a)| symbolic_extent(k, id, a) == size);
    format!("extent_{}", known.expect("the list has every such size"))
}
/// Returns the sizes of arrays that are neither numbers nor single dimensions, each as the first array and axis that
/// has it. The launch computes these sizes, since their terms may exceed an i32.
pub(in crate::wgsl) fn launch_computed_extents(k: &Kernel) -> Vec<(OperandId, usize)> {
    let mut found: Vec<(Dim, (OperandId, usize))> = vec![];
    for (id, operand) in k.arrays() {
        for axis in 0..operand.dims.len() {
            let size = symbolic_extent(k, id, axis);
            let simple = size.as_number().is_some() || size.as_name().is_some();
            if !simple && found.iter().all(|(known, _)| *known != size) {
                found.push((size, (id, axis)));
            }
        }
    }
    found.into_iter().map(|(_, place)| place).collect()
}
/// Returns the stride of an axis of an array, as text; `None` if it is 1.
pub(super) fn stride_text(k: &Kernel, of: OperandId, axis: usize) -> Option<String> {
    let (mut number, mut names) = (1, vec![]);
    for a in axis + 1..k.operand(of).dims.len() {
        match static_extent(k, of, a) {
            Some(n) => number *= n,
            None => names.push(extent_text(k, of, a)),
        }
    }
    if number != 1 {
        names.push(number.to_string());
    }
    (!names.is_empty()).then(|| if names.len() == 1 { names[0].clone() } else { format!("({})", names.join(" * ")) })
}

/// A fold over a size expression that is true if it is known to be a multiple of four; the bit mask says this of
/// dimensions that are known only at the launch.
struct MultipleOfFourAlgebra<'k>(&'k Kernel, u64);
impl pallas_ir::dim::DimAlgebra for MultipleOfFourAlgebra<'_> {
    type Out = bool;
    fn number(&mut self, n: i64) -> bool {
        n % VEC4_WIDTH as i64 == 0
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
/// Returns true if a scalar is known to be a multiple of `n`. Of the dimensions that are known only at the launch, the
/// bit mask `multiple_of_four_dims` has those that are multiples of four.
pub(super) fn is_known_multiple(
    k: &Kernel,
    defined: &[Option<InstId>],
    v: Value,
    n: i64,
    multiple_of_four_dims: u64,
) -> bool {
    let Some(id) = defined[v.index()] else { return false };
    let inst = k.inst(id);
    let of = |v: &Value| is_known_multiple(k, defined, *v, n, multiple_of_four_dims);
    match &inst.op {
        Op::Const(x) => x.as_i64() % n == 0,
        Op::Scalar(ScalarOp::Mul) => inst.args.iter().any(of),
        Op::Scalar(ScalarOp::Add | ScalarOp::Sub) => inst.args.iter().all(of),
        Op::Extent(dim) => {
            let i = dim.index();
            let four = || VEC4_WIDTH as i64 % n == 0 && i < 64 && multiple_of_four_dims >> i & 1 == 1;
            k.dims[i].size.map_or_else(four, |size| size % n == 0)
        }
        _ => false,
    }
}
/// Returns true if an array may be bound as an array of vec4: its rows consist of whole vectors, and so do those of
/// other arrays in the same memory.
pub(in crate::wgsl) fn can_bind_vec4(k: &Kernel, of: OperandId, multiple_of_four_dims: u64) -> bool {
    let memory = k.memory_of(of);
    k.arrays().filter(|(id, _)| k.memory_of(*id) == memory).all(|(id, o)| {
        let rows = o.dims.len().checked_sub(1).map(|last| symbolic_extent(k, id, last));
        o.dtype.bytes() <= VEC4_WIDTH
            && rows.is_some_and(|n| n.fold(&mut MultipleOfFourAlgebra(k, multiple_of_four_dims)))
    })
}

// ---- arrays

/// Returns the name of an array's binding.
pub(super) fn array_name(k: &Kernel, id: OperandId) -> String {
    let id = k.memory_of(id);
    format!("array_{}", identifier_or_number(&k.operand(id).name, id.index()))
}
/// Returns true if the kernel writes to an operand's memory.
pub(super) fn is_operand_written(k: &Kernel, id: OperandId) -> bool {
    matches!(k.operand(k.memory_of(id)).kind, OperandKind::Output { .. })
}
/// Returns the arrays in the order of their bindings, with true for those that are written. An aliased input has its
/// output's binding, and an array that nothing reads has none.
pub(in crate::wgsl) fn bound_arrays(k: &Kernel) -> Vec<(OperandId, bool)> {
    let mut touched = vec![false; k.operands.len()];
    k.walk(k.body, &mut |_, inst| {
        if let Op::Load { from: id, .. } | Op::Store { to: id, .. } | Op::Prefetch(id) = &inst.op {
            touched[k.memory_of(*id).index()] = true;
        }
    });
    let bound = |id: &OperandId| k.memory_of(*id) == *id && (touched[id.index()] || is_operand_written(k, *id));
    k.arrays().filter(|(id, _)| bound(id)).map(|(id, _)| (id, is_operand_written(k, id))).collect()
}

// ---- values

// A name has the value's number and variable (`Kernel::value_text`), as in `v9_scores_0`, else a stem and a counter, so
// that no two are equal.

impl BodyEmitter<'_> {
    pub(super) fn scalar_name(&self, v: Value) -> String {
        format!("s{}", self.k.label(v))
    }
    pub(super) fn register_name(&self, v: Value, i: usize) -> String {
        format!("v{}_{i}", self.k.label(v))
    }
    /// Returns a new name that begins with `stem`.
    pub(super) fn fresh_name(&mut self, stem: &str) -> String {
        debug_assert!(!["i", "u", "f"].contains(&stem), "`{stem}32` would hide a type");
        self.fresh += 1;
        format!("{stem}{}", self.fresh)
    }
}
