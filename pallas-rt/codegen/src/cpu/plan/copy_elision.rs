//! Loads that refer to the operand's memory, and results computed in the memory they are stored to, without copies.
//!
//! ```text
//! %1 = load x[..]; .. %1 ..        ->  %1 refers to x's memory             if no step writes x while %1 is needed
//! %2 = chain(..); store %2 to y    ->  redirect %2 to y; %2 = chain(..)    if no step touches y in between
//! ```
//!
//! These passes decide by the plan alone. Whether the elements lie inside of the array is known only when the step
//! runs, which uses the tile's own memory if they do not.
use super::step::{ChainInput, OperandView, Step, StepBlock};
use super::uses::StepUses;
use pallas_ir::structural::IndexedWindows;
use pallas_ir::{DType, Kernel, Value, ViewFrame};

/// Marks the loads whose tiles may refer to the operand's memory, in a block and the blocks inside of it.
pub(super) fn mark_in_place_loads(kernel: &Kernel, roots: &[Value], block: &mut StepBlock) {
    block.steps.iter_mut().flat_map(Step::nested_blocks_mut).for_each(|b| mark_in_place_loads(kernel, roots, b));
    let (uses, steps) = (StepUses::collect(kernel, roots, block), block.steps.len());
    for (i, step) in block.steps.iter_mut().enumerate() {
        let Step::Load { from, mask: None, to, in_place, .. } = step else { continue };
        let written = uses.is_stored_in(kernel.memory_of(from.operand), i + 1..uses.last_use_end(*to, i, steps));
        // Bytes of bool arrays may be neither 0 nor 1: users write them, and uninitialised memory holds any. Loads copy
        // them and normalise them to 0 or 1.
        let trusted = kernel.ty(*to).dtype != DType::Bool;
        *in_place = !written && trusted && !kernel.ty(*to).is_scalar();
    }
}

/// Returns a bit mask of all axes of a gather's result but those along which its windows begin at a position given by
/// data.
fn unindexed_result_axes_mask(windows: &IndexedWindows) -> u8 {
    let moved = windows.axes.iter().filter(|axis| axis.start.is_some()).filter_map(|axis| axis.axis);
    moved.fold(u8::MAX, |axes, axis| axes & !(1 << axis))
}

/// Inserts a [`Step::RedirectResult`] before each step whose result may be computed in the memory that a later store
/// writes.
pub(super) fn redirect_results_to_stores(kernel: &Kernel, roots: &[Value], block: &mut StepBlock) {
    block.steps.iter_mut().flat_map(Step::nested_blocks_mut).for_each(|b| redirect_results_to_stores(kernel, roots, b));
    let uses = StepUses::collect(kernel, roots, block);
    let mut aims: Vec<(usize, Step)> = (0..block.steps.len())
        .filter_map(|at| {
            let (defined, aim) = find_redirect(kernel, roots, &uses, block, at)?;
            defer_aliased_write(kernel, &uses, block, &aim);
            Some((defined, aim))
        })
        .collect();
    aims.sort_by_key(|(defined, _)| *defined);
    let mut aims = aims.into_iter().peekable();
    let steps = std::mem::take(&mut block.steps);
    for (at, step) in steps.into_iter().enumerate() {
        block.steps.extend(std::iter::from_fn(|| aims.next_if(|(defined, _)| *defined == at)).map(|(_, aim)| aim));
        block.steps.push(step);
    }
}

/// Returns the [`Step::RedirectResult`] for the store at position `store`, and the position of the step that computes
/// the stored value; `None` if the value must be computed in its own memory.
fn find_redirect(
    kernel: &Kernel,
    roots: &[Value],
    uses: &StepUses,
    block: &StepBlock,
    store: usize,
) -> Option<(usize, Step)> {
    let Step::Store { value: stored, to: place, mask: None } = &block.steps[store] else { return None };
    let value = roots[stored.index()];
    let of = kernel.memory_of(place.operand);
    let &(defined, link) = uses.defined.get(&value).filter(|(defined, _)| *defined < store)?;
    let plain = match &block.steps[defined] {
        Step::Chain(_) => link.is_some(),
        Step::LoopNests(nested) => nested.args.len() == 2 && kernel.ty(value).dtype.bytes() >= 4,
        // Sums of 16-bit floats are made elsewhere and rounded.
        Step::Dot(dot) => dot.free.iter().all(|f| f.len() == 1) && kernel.ty(value).dtype.bytes() >= 4,
        Step::Gather(_) | Step::Scatter { .. } | Step::SumRows(_) | Step::ArgMinMax { .. } | Step::CopyBoxes { .. } => {
            true
        }
        _ => false,
    };
    // The whole of the stored value must be the root: a part of a larger tile can't be redirected.
    if !plain || kernel.ty(*stored) != kernel.ty(value) || !is_accumulated_in_place(uses, block, *stored, value) {
        return None;
    }
    if place.starts.iter().any(|v| uses.defined.get(v).is_some_and(|(start, _)| *start >= defined)) {
        return None;
    }
    // From its definition to its store nothing may read or write that memory, neither by name nor through a tile that
    // refers to it; nor may anything write it after the store while the value is still needed.
    let clear = !uses.is_accessed_in(of, defined..store)
        && !uses.is_stored_in(of, store + 1..uses.last_use_end(value, store, block.steps.len()))
        && !uses.reads_outer_tile(defined..store + 1)
        && uses.reads_of_loaded_tiles(of, defined..store + 1).iter().all(|&(by, loaded)| {
            by == defined && reads_exactly_written_elements(kernel, roots, uses, block, by, loaded, place)
        });
    let open = match &block.steps[defined] {
        Step::Gather(gather) if !uses.is_read_elsewhere(value, store) => unindexed_result_axes_mask(&gather.windows),
        _ => 0,
    };
    clear.then(|| (defined, Step::RedirectResult { value, at: place.clone(), open }))
}

/// If the redirected result belongs to a chain that also reads the memory it goes to, makes the chain write it only
/// after all links have processed a strip.
fn defer_aliased_write(kernel: &Kernel, uses: &StepUses, block: &mut StepBlock, redirect: &Step) {
    let Step::RedirectResult { value, at, .. } = redirect else { return };
    if let (defined, Some(link)) = uses.defined[value]
        && let Step::Chain(chain) = &mut block.steps[defined]
    {
        chain.links[link].aside =
            !uses.reads_of_loaded_tiles(kernel.memory_of(at.operand), defined..defined + 1).is_empty();
    }
}

/// Returns true if all values from `root` to `stored` are products accumulated in place, which lie exactly where the
/// root does.
fn is_accumulated_in_place(uses: &StepUses, block: &StepBlock, stored: Value, root: Value) -> bool {
    let mut v = stored;
    while v != root {
        match uses.defined.get(&v).map(|(at, _)| &block.steps[*at]) {
            Some(Step::Dot(dot)) if dot.to == v && dot.in_place => v = dot.init.expect("it is accumulated into"),
            _ => return false,
        }
    }
    true
}

/// Returns true if a step reads from the tile `loaded` exactly the elements that it writes to the same memory. This
/// holds for some chains, for products that add to the tile, and for scatters into it.
fn reads_exactly_written_elements(
    kernel: &Kernel,
    roots: &[Value],
    uses: &StepUses,
    block: &StepBlock,
    step: usize,
    loaded: Value,
    place: &OperandView,
) -> bool {
    let Step::Load { from, .. } = &block.steps[uses.defined[&loaded].0] else { return false };
    let lies_in = |v: &Value| roots[v.index()] == loaded;
    // An output may have the memory of an input of its shape. Views are of the array, not of a block.
    let is_same = kernel.memory_of(from.operand) == place.operand && from.view.frame == ViewFrame::Array;
    let same = is_same && from.view == place.view && from.starts == place.starts;
    same && match &block.steps[step] {
        Step::Chain(chain) => {
            let strided = |input: &ChainInput| matches!(input, ChainInput::Value(v) if *v != loaded && lies_in(v));
            chain.covers_shape(&kernel.ty(loaded).shape) && !chain.inputs.iter().any(strided)
        }
        // The tile that is changed in place.
        Step::Scatter { windows, updates, .. } => {
            windows.from == loaded && !lies_in(&windows.index) && !lies_in(updates)
        }
        // The tile that a product is added to.
        Step::Dot(dot) => dot.init == Some(loaded) && ![dot.a, dot.b].iter().chain(&dot.high).any(lies_in),
        _ => false,
    }
}
