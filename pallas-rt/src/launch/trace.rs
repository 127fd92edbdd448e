//! Makes tile IR from a spec, sizes, and the user's closures.
use super::bind::CallSizes;
use super::spec::{BlockDim, Frame, IndexMap, IndexMaps, KernelBody, KernelSpec, Kind, Site};
use super::uninitialized_reads;
use crate::lang::context::{self, BodyMistake};
use crate::{Error, Result};
use pallas_ir::{At, Axis, Builder, DType, Diag, Dim, Kernel, Literal, Loc, OperandId, OperandKind, RegionId, Type};
use std::cell::RefCell;

/// Traces a kernel: runs its index maps and its body once, and records their operations.
pub(super) fn trace_kernel(
    site: &Site<'_>,
    spec: &KernelSpec,
    sizes: &CallSizes,
    maps: IndexMaps<'_>,
    body: &dyn KernelBody,
) -> Result<Kernel> {
    let mut builder = Builder::new(site.name);
    let statics: Vec<(&str, i64)> = sizes.statics.iter().map(|n| (n.as_str(), sizes.sizes[n])).collect();
    for name in sizes.sizes.keys() {
        builder.dim(name, statics.iter().find(|(s, _)| s == name).map(|(_, n)| *n));
    }
    let axis = |(extent, &semantics): (&Dim, _)| Axis { extent: extent.bind(&statics), semantics };
    builder.kernel_mut().grid = spec.grid.iter().zip(spec.semantics).map(axis).collect();
    builder.kernel_mut().allow = spec.allow;
    for slot in 0..spec.operands.len() {
        let operand = to_ir_operand(spec, sizes, slot, &statics);
        builder.operand(operand);
    }
    let failed = |m: BodyMistake| Error::kernel(site.name, m.loc, "", m.diag);
    for &(slot, map) in maps {
        builder = trace_index_map(site.at, spec, builder, slot, map, create_trace_frame(sizes)).map_err(failed)?;
    }
    let frame = create_trace_frame(sizes);
    builder = context::trace_body(builder, site.at, || body.run(&frame)).map_err(failed)?;
    let kernel = builder.finish();
    uninitialized_reads::check_early_reads(&kernel, spec, sizes)
        .map_err(|(loc, diag)| Error::kernel(site.name, loc, "", diag))?;
    Ok(kernel)
}

/// Returns the context that index maps and the kernel's body are traced in: the sizes that are known then, and no
/// program ids yet.
pub(super) fn create_trace_frame(sizes: &CallSizes) -> Frame {
    let statics = sizes.statics.iter().map(|n| (n.clone(), sizes.sizes[n])).collect();
    Frame { sizes: statics, programs: RefCell::new(vec![]) }
}

/// Traces the index map of the operand with the index `operand_index`, which becomes a region of the kernel.
fn trace_index_map(
    at: Loc,
    spec: &KernelSpec,
    mut builder: Builder,
    operand_index: usize,
    map: &dyn IndexMap,
    frame: Frame,
) -> Result<Builder, BodyMistake> {
    let rank = builder.kernel().operands[operand_index].dims.len();
    let mut region = RegionId(0);
    builder = context::trace_body(builder, at, || {
        let ids = context::begin_traced_region(false, vec![Type::scalar(DType::I32); spec.grid.len()], &[]);
        *frame.programs.borrow_mut() = ids;
        let index = map.block_indices(&frame);
        if index.len() != rank {
            let message = format!(
                "the index map of `{}` gives {} indices for {rank} dimensions",
                spec.operands[operand_index].name,
                index.len()
            );
            context::record_error_at(
                Diag::new("index-map", At::Operand(operand_index), message, "one per dimension of the array"),
                at,
            );
        }
        region = context::end_traced_region(&index, at);
    })?;
    builder.kernel_mut().operands[operand_index].map = Some(region);
    Ok(builder)
}

/// Converts the operand of the spec with the index `operand_index` to one of tile IR, with the sizes that are known
/// while tracing as numbers.
fn to_ir_operand(
    spec: &KernelSpec,
    sizes: &CallSizes,
    operand_index: usize,
    static_dims: &[(&str, i64)],
) -> pallas_ir::Operand {
    let operand = &spec.operands[operand_index];
    let shape = &sizes.geometry.shapes[operand_index];
    let number = |d: &Dim| d.bind(static_dims).as_number().expect("block sizes are static") as usize;
    let literal = |x: f64| Literal::new(operand.dtype, x);
    let dims: Vec<Dim> = match &operand.dims {
        Some(dims) => dims.iter().map(|d| d.bind(static_dims)).collect(),
        None => shape.iter().map(|&n| Dim::from(n)).collect(),
    };
    let block = match &operand.block {
        Some(block) => block
            .iter()
            .map(|b| match b {
                BlockDim::Squeezed => pallas_ir::BlockDim::Squeezed,
                BlockDim::Blocked(n) => pallas_ir::BlockDim::Blocked(number(n)),
                BlockDim::Element { size, low, high } => {
                    pallas_ir::BlockDim::Element { size: number(size), low: number(low), high: number(high) }
                }
            })
            .collect(),
        // Prefetches are read element by element: their extents may stay open.
        None if operand.kind == Kind::Prefetch => vec![pallas_ir::BlockDim::Squeezed; dims.len()],
        None => shape.iter().map(|&n| pallas_ir::BlockDim::Blocked(n)).collect(),
    };
    let kind = match operand.kind {
        Kind::Input => OperandKind::Input,
        Kind::Prefetch => OperandKind::Prefetch,
        Kind::Scratch => OperandKind::Scratch,
        Kind::Param => OperandKind::Param,
        Kind::Output => OperandKind::Output {
            empty: literal(operand.empty.unwrap_or(0.0)),
            alias: operand
                .alias
                .and_then(|name| spec.operands.iter().position(|o| o.name == name).map(|i| OperandId(i as u32))),
        },
    };
    let fill = operand.fill.map(literal);
    let (name, dtype, buffered) = (operand.name.into(), operand.dtype, operand.buffered);
    pallas_ir::Operand { name, kind, dtype, dims, block, map: None, fill, buffered }
}
