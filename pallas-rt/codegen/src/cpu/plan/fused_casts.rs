//! Casts that products and scatter-adds do themselves as they read their operand in its narrow type (f16, bf16, bytes,
//! 4-bit halves of bytes): elements that are read once need not be written as f32 first.
use super::super::gemm::few_rows;
use crate::passes::count_uses;
use crate::passes::rewrite::KernelRewriter;
use pallas_ir::{DType, Inst, Kernel, Op, ScalarOp, StructuralOp, Type, Value};
use std::collections::HashMap;

/// The operand that a product reads instead of a cast's result.
#[derive(Clone, Copy)]
pub(super) struct CastSource {
    pub(super) value: Value,
    /// Mask of the bits of each byte that count; `masked` is the value with those bits alone, if an instruction
    /// computes it.
    pub(super) bits: u8,
    pub(super) masked: Option<Value>,
}

/// Returns the operand of a cast to f32 that a product may do itself.
fn fusable_cast_operand(kernel: &Kernel, inst: &Inst) -> Option<Value> {
    let Op::Structural(StructuralOp::Cast(cast)) = &inst.op else { return None };
    let from = inst.args[0];
    let known = few_rows::fastest_narrow_kernel(kernel.ty(from).dtype, few_rows::WHOLE_ELEMENT_MASK).is_some()
        && !kernel.ty(from).is_scalar();
    (cast.to == DType::F32 && known).then_some(from)
}

/// Moves casts after transposes: where a transpose is the only use of a cast, elements are moved in their narrow type.
/// Returns `None` if the kernel has no such cast.
pub(super) fn move_casts_behind_transposes(kernel: &Kernel) -> Option<Kernel> {
    let (uses, mut source) = (count_uses(kernel), vec![None; kernel.values.len()]);
    let mut turned = vec![false; kernel.values.len()];
    kernel.walk(kernel.body, &mut |_, inst| {
        if let Some(from) = fusable_cast_operand(kernel, inst) {
            source[inst.results[0].index()] = Some((from, inst.op.clone()));
        }
        if let Op::Structural(StructuralOp::Transpose(_)) = &inst.op {
            turned[inst.args[0].index()] = true;
        }
    });
    let moves = |v: Value| turned[v.index()] && uses[v.index()] == 1;
    if !kernel.insts.iter().any(|i| i.results.iter().any(|&v| moves(v) && source[v.index()].is_some())) {
        return None;
    }
    let mut rewrite = KernelRewriter::new(kernel);
    rewrite.inline_region(kernel.body, &mut |r, inst, loc| {
        // The transpose will find the cast's operand.
        if inst.results.first().is_some_and(|&v| moves(v) && source[v.index()].is_some()) {
            return true;
        }
        let cast = inst.args.first().filter(|&&v| moves(v)).and_then(|v| source[v.index()].clone());
        let Some((from, cast)) = cast else { return false };
        let ty = Type::new(kernel.ty(from).dtype, kernel.ty(inst.results[0]).shape.clone());
        let (from, moved) = (r.mapped_value(from), r.out.value(ty));
        r.out.push(Inst { op: inst.op.clone(), args: vec![from], results: vec![moved], regions: vec![] }, loc);
        r.append(cast, vec![moved], inst, loc);
        true
    });
    Some(rewrite.finish())
}

/// Returns for each cast whose result only products read what these read instead, if they can do the cast themselves;
/// `None` for other values. The other side of such a product has few rows.
pub(super) fn find_product_casts(kernel: &Kernel) -> Vec<Option<CastSource>> {
    let mut source = vec![None; kernel.values.len()];
    let masks = find_byte_masks(kernel);
    kernel.walk(kernel.body, &mut |_, inst| {
        if let Some(from) = fusable_cast_operand(kernel, inst) {
            let plain = CastSource { value: from, bits: few_rows::WHOLE_ELEMENT_MASK, masked: None };
            source[inst.results[0].index()] = Some(masks[from.index()].unwrap_or(plain));
        }
    });
    kernel.walk(kernel.body, &mut |_, inst| {
        for (side, v) in inst.args.iter().enumerate() {
            let few = match &inst.op {
                Op::Structural(StructuralOp::Dot(dot)) => {
                    let free = |side: usize| -> usize {
                        let shape = &kernel.ty(inst.args[side]).shape;
                        dot.free_axes(side, shape.len()).iter().map(|&axis| shape[axis]).product()
                    };
                    // The other side is multiplied from the left, unless it is a column; of a row's bytes all bits
                    // count.
                    let masked = source[v.index()].is_some_and(|source| source.masked.is_some());
                    kernel.ty(inst.results[0]).dtype == DType::F32
                        && if side == 1 { free(0) <= few_rows::MAX_NARROW_ROWS } else { free(1) == 1 }
                        && !(masked && (side == 0 || free(1) == 1))
                }
                _ => false,
            };
            if !few {
                source[v.index()] = None;
            }
        }
        inst.regions.iter().flat_map(|&r| &kernel.region(r).yields).for_each(|v| source[v.index()] = None);
    });
    kernel.region(kernel.body).yields.iter().for_each(|v| source[v.index()] = None);
    source
}

/// A scatter-add of 16-bit rows to zeros, whose casts to f32 and back are part of it.
///
/// ```text
/// %3 = cast to(f32) %2; %4 = scatter .. op(add) zeros, %1, %3; %5 = cast to(bf16) %4
///   ->  %5 = sum of rows of %2 at %1
/// ```
#[derive(Clone, Copy)]
pub(super) struct RowScatterAdd {
    pub(super) rows: Value,
    pub(super) to: Value,
}

/// Returns the [`RowScatterAdd`]s of a kernel by the scatter's result, and for each value true if it is the result of a
/// cast that is part of one.
pub(super) fn find_row_scatter_adds(kernel: &Kernel, uses: &[usize]) -> (HashMap<Value, RowScatterAdd>, Vec<bool>) {
    let insts = || kernel.region(kernel.body).insts.iter().map(|&i| kernel.inst(i));
    let (mut zeros, mut cast) = (vec![false; kernel.values.len()], vec![None; kernel.values.len()]);
    let (mut scattered, mut sums, mut is_made) = (HashMap::new(), HashMap::new(), vec![false; kernel.values.len()]);
    for inst in insts() {
        let Some(&to) = inst.results.first() else { continue };
        match (&inst.op, &inst.args[..]) {
            (Op::Const(x), _) => zeros[to.index()] = x.bits == 0,
            (Op::Structural(StructuralOp::Broadcast(_)), [x]) => zeros[to.index()] = zeros[x.index()],
            (Op::Structural(StructuralOp::Scatter(op)), &[x, index, updates]) if zeros[x.index()] => {
                let [x, index, added] = [x, index, updates].map(|v| kernel.ty(v));
                let windows = op.windows(x.shape.len(), index.shape.len(), &added.dims());
                let is_sum = op.op == Some(ScalarOp::Add) && windows.are_operand_rows(&x.shape);
                if let (Some(rows), true) = (cast[updates.index()], is_sum && uses[updates.index()] == 1) {
                    scattered.insert(to, (rows, updates));
                }
            }
            (Op::Structural(StructuralOp::Cast(_)), &[from]) => {
                cast[to.index()] = Some(from);
                let Some(&(rows, updates)) = scattered.get(&from).filter(|_| uses[from.index()] == 1) else { continue };
                let [narrow, wide] = [to, from].map(|v| kernel.ty(v).dtype);
                if kernel.ty(rows).dtype == narrow && narrow != wide && narrow.accumulator() == wide {
                    sums.insert(from, RowScatterAdd { rows, to });
                    [updates, to].iter().for_each(|v| is_made[v.index()] = true);
                }
            }
            _ => {}
        }
    }
    (sums, is_made)
}

/// Returns, for each value that is a tile of bytes `&` a constant, these bytes and the constant as a mask, if a
/// product's kernel can apply the mask as it reads them; `None` for other values.
fn find_byte_masks(kernel: &Kernel) -> Vec<Option<CastSource>> {
    let (mut number, mut found) = (vec![None; kernel.values.len()], vec![None; kernel.values.len()]);
    kernel.walk(kernel.body, &mut |_, inst| match (&inst.op, &inst.args[..]) {
        (Op::Const(x), _) => number[inst.results[0].index()] = Some(x.bits as u8),
        (Op::Scalar(ScalarOp::BitAnd), &[value, mask]) if kernel.ty(value).dtype == DType::U8 => {
            let bits = number[mask.index()].filter(|&bits| few_rows::fastest_narrow_kernel(DType::U8, bits).is_some());
            let to = inst.results[0];
            let same = kernel.ty(value).shape == kernel.ty(to).shape;
            found[to.index()] = bits.filter(|_| same).map(|bits| CastSource { value, bits, masked: Some(to) });
        }
        _ => {}
    });
    found
}
