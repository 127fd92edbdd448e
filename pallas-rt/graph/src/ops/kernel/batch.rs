//! Batches a kernel call by an additional grid axis, so that it stays one launch.
use crate::build::constant_dims;
use crate::call::KernelCall;
use pallas_ir::{
    Axis, BlockDim, Builder, DType, Dim, Inst, Kernel, Loc, Op as TileOp, Operand, OperandId, OperandKind, RegionId,
    Semantics, Type, Value,
};
use std::sync::Arc;

/// Returns the call for a batch of `size` elements: operands for which `has_batch_axis` is true, and all results, have
/// an additional first axis. Each program computes one element of the batch; operands without the axis are shared by
/// all.
pub(super) fn batch_kernel_call(call: &KernelCall, has_batch_axis: &[bool], size: usize) -> KernelCall {
    let wider = |ty: &Type| Type::new(ty.dtype, [&[size], &ty.shape[..]].concat());
    let takes =
        call.takes.iter().zip(has_batch_axis).map(|(ty, has)| if *has { wider(ty) } else { ty.clone() }).collect();
    let is_read = |kind: &OperandKind| matches!(kind, OperandKind::Input | OperandKind::Prefetch);
    let mut flags = has_batch_axis.iter();
    let wide = |operand: &Operand| match operand.kind {
        OperandKind::Output { .. } => true,
        OperandKind::Scratch | OperandKind::Param => false,
        _ => is_read(&operand.kind) && *flags.next().expect("an operand for each input"),
    };
    let wide: Vec<bool> = call.kernel.operands.iter().map(wide).collect();
    KernelCall {
        kernel: Arc::new(add_batch_grid_axis(&call.kernel, &wide, size)),
        gives: call.gives.iter().map(wider).collect(),
        takes,
        ..call.clone()
    }
}

/// Returns the kernel with the batch as its first grid axis, and with an additional first axis in the operands for
/// which `has_batch_axis` is true.
fn add_batch_grid_axis(kernel: &Kernel, has_batch_axis: &[bool], size: usize) -> Kernel {
    let maps: Vec<RegionId> = kernel.operands.iter().filter_map(|operand| operand.map).collect();
    let mut own = kernel.clone();
    for inst in &mut own.insts {
        if let TileOp::ProgramId(axis) | TileOp::NumPrograms(axis) = &mut inst.op {
            *axis += 1;
        }
    }
    own.grid.insert(0, Axis { extent: Dim::from(size), semantics: Semantics::Parallel });
    let mut b = Builder::edit(own);
    let id = Type::scalar(DType::I32);
    // The index in the batch of a program's element: a parameter of each map, and the first value of the body.
    let of_body = b.value(id.clone());
    let mut elements: Vec<(RegionId, Value)> = vec![(kernel.body, of_body)];
    for &map in &maps {
        let element = b.value(id.clone());
        b.kernel_mut().regions[map.index()].params.insert(0, element);
        elements.push((map, element));
    }
    for &(region, element) in &elements {
        prepend_prefetch_index(b.kernel_mut(), region, has_batch_axis, element);
    }
    let inst = Inst { op: TileOp::ProgramId(0), args: vec![], results: vec![of_body], regions: vec![] };
    let first = b.kernel_mut().insts.len();
    b.kernel_mut().insts.push(inst);
    b.kernel_mut().locs.push(Loc::NONE);
    b.kernel_mut().regions[kernel.body.index()].insts.insert(0, pallas_ir::InstId(first as u32));
    for (i, operand) in kernel.operands.iter().enumerate().filter(|(i, _)| has_batch_axis[*i]) {
        let map = match operand.map {
            Some(map) => {
                let element = elements.iter().find(|(region, _)| *region == map).expect("every map has one").1;
                b.kernel_mut().regions[map.index()].yields.insert(0, element);
                Some(map)
            }
            None if operand.kind == OperandKind::Prefetch => None,
            None => {
                let ids = b.begin(&vec![id.clone(); kernel.grid.len() + 1]);
                let zero = b.int(0, Loc::NONE);
                let yields: Vec<Value> = [ids[0]].into_iter().chain(operand.dims.iter().map(|_| zero)).collect();
                Some(b.end(&yields))
            }
        };
        let operand = &mut b.kernel_mut().operands[i];
        operand.map = map;
        operand.dims.splice(0..0, constant_dims(&[size]));
        operand.block.insert(0, BlockDim::Squeezed);
    }
    b.finish()
}

/// Makes a region's reads of prefetched operands for which `has_batch_axis` is true take `batch_index` as their first
/// index.
fn prepend_prefetch_index(kernel: &mut Kernel, region: RegionId, has_batch_axis: &[bool], batch_index: Value) {
    let mut found = vec![];
    kernel.walk(region, &mut |id, inst| {
        if let TileOp::Prefetch(OperandId(of)) = inst.op
            && has_batch_axis[of as usize]
        {
            found.push(id);
        }
    });
    found.into_iter().for_each(|id| kernel.insts[id.index()].args.insert(0, batch_index));
}
