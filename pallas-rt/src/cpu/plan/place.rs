//! Memory that needs no copy.
//!
//! ```text
//! %1 = load x[..]; .. %1 ..          ->  %1 refers to x's memory          if no step writes x while %1 is needed
//! %2 = chain(..); store %2 to y      ->  aim %2 at y; %2 = chain(..)      if no step touches y in between
//! ```
//!
//! Both are decided here for good conditions of the plan; whether the elements lie inside of the array is known when the
//! step runs, which falls back to the tile's own slot.
use super::root;
use super::step::{Block, Input, Place, Step};
use pallas_ir::{DType, Kernel, OperandId, OperandKind, Value};

/// The operand that stands for the memory of `o`: an input that an output takes over is that output.
pub(super) fn memory(kernel: &Kernel, o: OperandId) -> OperandId {
    let taken = |k: &OperandKind| matches!(k, OperandKind::Output { alias: Some(from), .. } if *from == o);
    (0..).map(OperandId).zip(&kernel.operands).find(|(_, other)| taken(&other.kind)).map_or(o, |(id, _)| id)
}

/// Whether the step, or one inside of it, passes a test.
fn any(step: &Step, test: &dyn Fn(&Step) -> bool) -> bool {
    test(step) || step.blocks().iter().any(|b| b.steps.iter().any(|s| any(s, test)))
}

/// Whether the step, or one inside of it, reads a value that lies in the memory of `v`.
pub(super) fn needs(step: &Step, base: &[Option<Value>], v: Value) -> bool {
    let lies = |x: &Value| lies_in(base, *x, v);
    any(step, &|s| s.reads().iter().any(lies) || s.blocks().iter().any(|b| b.yields.iter().any(lies)))
}

pub(super) fn lies_in(base: &[Option<Value>], mut x: Value, v: Value) -> bool {
    while x != v {
        match base[x.index()] {
            Some(b) => x = b,
            None => return false,
        }
    }
    true
}

/// Marks the loads whose tiles may refer to the operand's memory.
pub(super) fn refer_to_operands(kernel: &Kernel, base: &[Option<Value>], block: &mut Block) {
    for i in 0..block.steps.len() {
        block.steps[i].blocks_mut().into_iter().for_each(|b| refer_to_operands(kernel, base, b));
        let Step::Load { from, mask: None, to, .. } = &block.steps[i] else { continue };
        let (to, of) = (*to, memory(kernel, from.operand));
        let yielded = block.yields.iter().any(|y| lies_in(base, *y, to));
        let last = (i + 1..block.steps.len()).rfind(|&k| needs(&block.steps[k], base, to)).unwrap_or(i);
        let end = if yielded { block.steps.len() } else { last + 1 };
        let writes = |s: &Step| s.stores().is_some_and(|o| memory(kernel, o) == of);
        let written = block.steps[i + 1..end].iter().any(|s| any(s, &writes));
        if let Step::Load { in_place, .. } = &mut block.steps[i] {
            // Bytes of arrays may be neither 0 nor 1: users write them, and fresh memory holds any. Loads copy them, and make
            // truth values of them.
            let trusted = kernel.ty(to).dtype != DType::Bool;
            *in_place = !written && trusted && !kernel.ty(to).is_scalar();
        }
    }
}

/// Puts an [`Step::Aim`] before the step whose result a store takes, where it may be computed in the store's memory.
pub(super) fn aim_at_stores(kernel: &Kernel, base: &[Option<Value>], block: &mut Block) {
    block.steps.iter_mut().flat_map(Step::blocks_mut).for_each(|b| aim_at_stores(kernel, base, b));
    let mut at = 0;
    while at < block.steps.len() {
        if let Some((defined, aim)) = aim(kernel, base, block, at) {
            set_aside(kernel, base, block, defined, &aim);
            block.steps.insert(defined, aim);
            at += 1;
        }
        at += 1;
    }
}

fn aim(kernel: &Kernel, base: &[Option<Value>], block: &Block, at: usize) -> Option<(usize, Step)> {
    let Step::Store { value, to: place, mask: None } = &block.steps[at] else { return None };
    let value = root(base, *value);
    let of = memory(kernel, place.operand);
    let defined = block.steps[..at].iter().position(|s| s.defines().contains(&value))?;
    let plain = match &block.steps[defined] {
        Step::Chain(chain) => chain.links.iter().any(|l| l.output == Some(value)),
        Step::Dot(dot) => dot.batch[0].is_empty() && dot.free.iter().all(|f| f.len() == 1),
        _ => false,
    };
    // The whole of the stored value must be the root: a part of a larger tile can't be aimed.
    let same = |x: Value| kernel.ty(x) == kernel.ty(value);
    let Step::Store { value: stored, .. } = &block.steps[at] else { return None };
    if !plain || !same(*stored) || !only_products(base, block, *stored) {
        return None;
    }
    let starts_known = place.starts.iter().all(|v| {
        let by_earlier = block.steps[..defined].iter().any(|s| s.defines().contains(v));
        by_earlier || !block.steps.iter().any(|s| s.defines().contains(v))
    });
    if !starts_known {
        return None;
    }
    // From its definition to its store nothing may read or write that memory, neither by name nor through a tile that
    // refers to it.
    let touches = |s: &Step| match s {
        Step::Load { from, .. } => memory(kernel, from.operand) == of,
        Step::Store { to, .. } | Step::Aim { at: to, .. } => memory(kernel, to.operand) == of,
        _ => false,
    };
    if block.steps[defined..at].iter().any(|s| any(s, &touches)) {
        return None;
    }
    // Nor may anything write it after the store while the value is still needed.
    let last = (at + 1..block.steps.len()).rfind(|&k| needs(&block.steps[k], base, value)).unwrap_or(at);
    let yielded = block.yields.iter().any(|y| lies_in(base, *y, value));
    let end = if yielded { block.steps.len() } else { last + 1 };
    let writes = |s: &Step| s.stores().is_some_and(|o| memory(kernel, o) == of);
    if block.steps[at + 1..end].iter().any(|s| any(s, &writes)) {
        return None;
    }
    if referred(kernel, base, block, defined, at, of, place) {
        return None;
    }
    Some((defined, Step::Aim { value, at: place.clone() }))
}

/// Marks the aimed result of a chain that reads the memory where it goes.
fn set_aside(kernel: &Kernel, base: &[Option<Value>], block: &mut Block, defined: usize, aim: &Step) {
    let Step::Aim { value, at } = aim else { return };
    let of = memory(kernel, at.operand);
    let (before, rest) = block.steps.split_at_mut(defined);
    let reads = before.iter().any(|s| match s {
        Step::Load { from, to, .. } => memory(kernel, from.operand) == of && needs(&rest[0], base, *to),
        _ => false,
    });
    if let Step::Chain(chain) = &mut rest[0] {
        chain.links.iter_mut().filter(|l| l.output == Some(*value)).for_each(|l| l.aside = reads);
    }
}

/// Whether values between the root and the stored one are accumulated products: they lie exactly where the root does.
fn only_products(base: &[Option<Value>], block: &Block, stored: Value) -> bool {
    let mut v = stored;
    while let Some(b) = base[v.index()] {
        let product = |s: &Step| matches!(s, Step::Dot(dot) if dot.to == v && dot.in_place);
        if !block.steps.iter().any(product) {
            return false;
        }
        v = b;
    }
    true
}

/// Whether a tile that refers to the memory is read from step `defined` to the store at `at`. A chain may read exactly the
/// elements it writes, and a product add to them.
fn referred(
    kernel: &Kernel,
    base: &[Option<Value>],
    block: &Block,
    defined: usize,
    at: usize,
    of: OperandId,
    place: &Place,
) -> bool {
    let loads = block.steps[..defined].iter().filter_map(|s| match s {
        Step::Load { from, to, .. } if memory(kernel, from.operand) == of => Some((from, *to)),
        _ => None,
    });
    for (from, loaded) in loads {
        let same = from.operand == place.operand && from.view == place.view && from.starts == place.starts;
        let strided = |x: &Value| *x != loaded && lies_in(base, *x, loaded);
        for (k, step) in block.steps[defined..=at].iter().enumerate() {
            let reads_exactly = match step {
                Step::Chain(chain) if k == 0 && same => {
                    chain.shape == kernel.ty(loaded).shape
                        && !chain.inputs.iter().any(|i| matches!(i, Input::Value(v) if strided(v)))
                }
                // What a product is added to.
                Step::Dot(dot) if k == 0 && same => {
                    dot.init == Some(loaded) && ![dot.a, dot.b].iter().any(|v| lies_in(base, *v, loaded))
                }
                _ => false,
            };
            if !reads_exactly && needs(step, base, loaded) {
                return true;
            }
        }
    }
    // Tiles from outside of the block that refer to it.
    let outside = |v: &Value| {
        let root = root(base, *v);
        !block.steps.iter().any(|s| s.defines().contains(&root)) && !kernel.ty(root).is_scalar()
    };
    block.steps[defined..=at].iter().any(|s| any(s, &|s| s.reads().iter().any(outside)))
}
