//! Makes the kernel that each device runs on its blocks of sharded arrays.
//!
//! ```text
//! in x: f32[1000] block [8]            in x: f32[256] block [8]               a whole number of blocks
//! grid 125 parallel                    grid 32 parallel
//!                                      prefetch offsets: i32[1]               the first program of the device
//! %i = program_id axis(0)              %i = program_id axis(0) + offsets[0]
//! %n = num_programs axis(0)            %n = 125
//! %x = load @x block[0:8]              %x = select (%i · 8 + iota < 1000) (load @x block[0:8]) fill
//! ```
//!
//! In the body, sizes, program ids and numbers of programs stay those of the whole arrays. Elements beyond the whole
//! array are read as fill, and are invalid, as before. Programs beyond the last global one do nothing. A sum over a
//! sequential axis begins and ends with the device's own steps. Dimensions that are whole on each device are indexed by
//! global program ids; sharded dimensions count from the device's first block.
use super::{KernelShardability, ShardableAxis};
use crate::ops::KernelCall;
use pallas_ir::structural::{Broadcast, Iota};
use pallas_ir::{
    BlockDim, Builder, DType, Dim, InstId, Kernel, Literal, Loc, Op, Operand, OperandId, OperandKind, RegionId,
    ScalarOp, StructuralOp, Type, Value, View,
};
use std::sync::Arc;

/// A grid axis whose programs are divided among devices.
#[derive(Clone, Debug)]
pub(in crate::ops::kernel) struct ShardedAxis {
    /// Index of the grid axis.
    pub axis: usize,
    /// The blocks and programs along the axis, of all devices together.
    pub tiled: ShardableAxis,
    /// Number of parts into which the programs are divided.
    pub parts: usize,
}

impl ShardedAxis {
    /// Returns the number of programs of each device along the axis, rounded up.
    pub(in crate::ops::kernel) fn programs_per_device(&self) -> usize {
        self.tiled.programs.div_ceil(self.parts)
    }

    /// Returns the number of elements of each device along a dimension that the axis cuts: a whole number of blocks.
    pub(in crate::ops::kernel) fn elements_per_device(&self) -> usize {
        self.programs_per_device() * self.tiled.block
    }

    /// Returns true if elements of the last devices lie beyond the end of the whole array.
    fn extends_past_array(&self) -> bool {
        self.elements_per_device() * self.parts > self.tiled.size
    }

    /// Returns true if programs of the last devices have no block, because the programs do not divide evenly.
    fn has_idle_programs(&self) -> bool {
        self.programs_per_device() * self.parts > self.tiled.programs
    }
}

/// Returns the call that a device runs on its blocks. An additional last operand has the global id of the device's
/// first program along each axis in `shares`. Operands that no program reads are passed as arrays of one element.
pub(in crate::ops::kernel) fn device_kernel_call(
    call: &KernelCall,
    tiling: &KernelShardability,
    shares: &[ShardedAxis],
) -> KernelCall {
    let share_of = |dim: &Result<usize, String>| {
        let axis = dim.as_ref().ok()?;
        shares.iter().find(|share| share.axis == *axis)
    };
    let block_type = |(ty, dims): (&Type, &Vec<Result<usize, String>>)| {
        let own = ty.shape.iter().zip(dims).map(|(&n, dim)| share_of(dim).map_or(n, ShardedAxis::elements_per_device));
        Type::new(ty.dtype, own.collect::<Vec<_>>())
    };
    let (takes, gives) = tiling.dims.split_at(call.takes.len());
    let takes = call.takes.iter().zip(takes).zip(&tiling.is_read).map(|(taken, is_read)| match is_read {
        true => block_type(taken),
        false => Type::new(taken.0.dtype, vec![1; taken.1.len()]),
    });
    let offsets = Type::new(DType::I32, [shares.len()]);
    KernelCall {
        kernel: Arc::new(DeviceKernelRewriter::new(&call.kernel, tiling, shares).finish()),
        sizes: call.sizes.clone(),
        params: call.params.clone(),
        takes: takes.chain([offsets]).collect(),
        gives: call.gives.iter().zip(gives).map(block_type).collect(),
    }
}

/// The position of a program along a grid axis that devices divide, as values of the kernel's body.
#[derive(Clone, Copy)]
struct ProgramPosition {
    /// The id among the device's programs.
    own: Value,
    /// The global id of the device's first program.
    first: Value,
    /// Number of elements from the start of the program's block to the end of the whole array; `None` if no block
    /// extends beyond the end.
    left: Option<Value>,
    /// The first and the last id among the device's programs, if the axis is summed over.
    ends: Option<[Value; 2]>,
}

/// A kernel that is being rewritten for the blocks of one device.
struct DeviceKernelRewriter<'a> {
    b: Builder,
    tiling: &'a KernelShardability,
    shares: &'a [ShardedAxis],
    /// The added prefetch operand: for each axis in `shares`, the global id of the device's first program.
    offsets: OperandId,
}

impl<'a> DeviceKernelRewriter<'a> {
    /// Begins rewriting `kernel`: adds a prefetch operand, under a free name, for the ids of a device's first programs.
    fn new(kernel: &Kernel, tiling: &'a KernelShardability, shares: &'a [ShardedAxis]) -> DeviceKernelRewriter<'a> {
        let mut b = Builder::edit(kernel.clone());
        let mut name = "offsets".to_string();
        while kernel.operands.iter().any(|operand| operand.name == name) {
            name.push('_');
        }
        let offsets = b.operand(Operand {
            name,
            kind: OperandKind::Prefetch,
            dtype: DType::I32,
            dims: vec![Dim::from(shares.len())],
            block: vec![BlockDim::Blocked(shares.len())],
            map: None,
            fill: None,
            buffered: None,
        });
        DeviceKernelRewriter { b, tiling, shares, offsets }
    }

    /// Rewrites grid, operands and body, and returns the kernel of a device.
    fn finish(mut self) -> Kernel {
        let old = self.b.kernel().clone();
        self.b.kernel_mut().name.push_str("_shard");
        for share in self.shares {
            self.b.kernel_mut().grid[share.axis].extent = Dim::from(share.programs_per_device());
        }
        for t in 0..self.tiling.operands.len() {
            self.rewrite_operand(&old, t);
        }
        self.rewrite_body(&old);
        self.b.finish()
    }

    /// Returns the instructions that `write` appends, which are not yet part of any region, and its result.
    fn collect_insts<T>(&mut self, write: impl FnOnce(&mut Self) -> T) -> (Vec<InstId>, T) {
        self.b.begin(&[]);
        let made = write(self);
        let region = self.b.end(&[]);
        let regions = &mut self.b.kernel_mut().regions;
        debug_assert_eq!(region.index() + 1, regions.len());
        (regions.pop().expect("it was closed").insts, made)
    }

    fn emit(&mut self, op: Op, args: &[Value]) -> Value {
        self.b.emit(op, args, Loc::NONE).expect("operands that fit")
    }

    fn emit_scalar_op(&mut self, op: ScalarOp, args: &[Value]) -> Value {
        self.b.scalar(op, args, Loc::NONE)
    }

    /// Appends the read of the global id of the device's first program along axis number `share_index` of `shares`.
    fn load_first_program_id(&mut self, share_index: usize) -> Value {
        let slot = self.b.int(share_index as i64, Loc::NONE);
        let offsets = self.offsets;
        self.emit(Op::Prefetch(offsets), &[slot])
    }

    /// Sets the array of the operand at `index` to the extents that one device has, and rewrites its index map for the
    /// device's program ids.
    fn rewrite_operand(&mut self, old: &Kernel, index: usize) {
        let id = self.tiling.operands[index];
        let axes: Vec<Option<usize>> = (self.tiling.dims[index].iter())
            .map(|dim| dim.as_ref().ok().copied().filter(|axis| self.shares.iter().any(|share| share.axis == *axis)))
            .collect();
        for (dim, axis) in axes.iter().enumerate() {
            if let Some(share) = self.shares.iter().find(|share| Some(share.axis) == *axis) {
                self.b.kernel_mut().operands[id.index()].dims[dim] = Dim::from(share.elements_per_device());
            }
        }
        if !self.tiling.is_read[index] {
            self.b.kernel_mut().operands[id.index()].dims.fill(Dim::from(1usize));
        }
        let Some(map) = old.operand(id).map else { return };
        // A sharded dimension is indexed by the id among the device's programs, others by the global id.
        let params = old.region(map).params.clone();
        let mut own = params.clone();
        let is_sharded = |dim: &usize| axes[*dim].is_some();
        let mut read: Vec<Value> = old
            .region(map)
            .yields
            .iter()
            .copied()
            .enumerate()
            .filter(|(dim, _)| !is_sharded(dim))
            .map(|(_, v)| v)
            .collect();
        old.walk(map, &mut |_, inst| {
            read.extend(&inst.args);
            inst.regions.iter().for_each(|&region| read.extend(&old.region(region).yields));
        });
        let shares = self.shares;
        let (global, ()) = self.collect_insts(|r| {
            for (i, share) in shares.iter().enumerate().filter(|(_, share)| read.contains(&params[share.axis])) {
                own[share.axis] = r.b.value(Type::scalar(DType::I32));
                let first = r.load_first_program_id(i);
                let sum = r.emit_scalar_op(ScalarOp::Add, &[own[share.axis], first]);
                r.redefine_last_result(sum, params[share.axis]);
            }
        });
        let region = &mut self.b.kernel_mut().regions[map.index()];
        region.insts.splice(0..0, global);
        for (dim, axis) in axes.iter().enumerate() {
            if let Some(axis) = axis {
                region.yields[dim] = own[*axis];
            }
        }
        region.params = own;
    }

    /// Makes the last instruction define `new_result` in place of the value `old_result`.
    fn redefine_last_result(&mut self, old_result: Value, new_result: Value) {
        let inst = self.b.kernel_mut().insts.last_mut().expect("an instruction was appended");
        assert_eq!(inst.results, [old_result]);
        inst.results = vec![new_result];
    }

    /// Rewrites the body: ids, loads and sums for the device's programs, in a branch that programs without a block
    /// skip.
    fn rewrite_body(&mut self, old: &Kernel) {
        let (mut start, positions) = self.collect_insts(DeviceKernelRewriter::push_program_positions);
        for region in nested_regions(old, old.body) {
            self.rewrite_region(old, region, &positions);
        }
        for (share, position) in self.shares.iter().zip(&positions) {
            self.rewrite_sum_step_tests(share, position);
        }
        let body = old.body.index();
        let own = std::mem::take(&mut self.b.kernel_mut().regions[body].insts);
        if self.shares.iter().any(|share| share.has_idle_programs() && share.tiled.sum.is_none()) {
            let (idle, ()) = self.collect_insts(|r| r.push_idle_body(old));
            let regions = &mut self.b.kernel_mut().regions;
            let [then, other] = [own, idle].map(|insts| {
                regions.push(pallas_ir::Region { insts, ..Default::default() });
                RegionId(regions.len() as u32 - 1)
            });
            let (guard, ()) = self.collect_insts(|r| r.push_block_guard(&positions, then, other));
            start.extend(guard);
        } else {
            start.extend(own);
        }
        self.b.kernel_mut().regions[body].insts = start;
    }

    /// Appends the body of programs without a block: it stores each result's `empty` value, so that its blocks are
    /// initialized.
    fn push_idle_body(&mut self, old: &Kernel) {
        for (i, operand) in old.operands.iter().enumerate() {
            let OperandKind::Output { empty, .. } = operand.kind else { continue };
            let shape = operand.block_shape();
            let mut value = self.b.constant(empty, Loc::NONE);
            if !shape.is_empty() {
                let to = shape.iter().copied().map(Dim::from).collect();
                value = self.emit(Op::Structural(Broadcast::to(to).into()), &[value]);
            }
            let store = Op::Store { to: OperandId(i as u32), view: View::whole(&shape), masked: false };
            self.b.effect(store, &[value], Loc::NONE).expect("a block of its type");
        }
    }

    /// Appends the instructions that compute the program's position along each axis in `shares`.
    fn push_program_positions(&mut self) -> Vec<ProgramPosition> {
        let shares = self.shares;
        let of = |(i, share): (usize, &ShardedAxis)| {
            let own = self.emit(Op::ProgramId(share.axis), &[]);
            let first = self.load_first_program_id(i);
            let left = share.extends_past_array().then(|| {
                let id = self.emit_scalar_op(ScalarOp::Add, &[own, first]);
                let block = self.b.int(share.tiled.block as i64, Loc::NONE);
                let start = self.emit_scalar_op(ScalarOp::Mul, &[id, block]);
                let size = self.b.int(share.tiled.size as i64, Loc::NONE);
                self.emit_scalar_op(ScalarOp::Sub, &[size, start])
            });
            let ends = share.tiled.sum.as_ref().map(|_| [0, share.programs_per_device() as i64 - 1]);
            let ends = ends.map(|ends| ends.map(|id| self.b.int(id, Loc::NONE)));
            ProgramPosition { own, first, left, ends }
        };
        shares.iter().enumerate().map(of).collect()
    }

    /// Appends an `if` that runs region `then` in programs that have a block, and `otherwise` in the rest.
    fn push_block_guard(&mut self, positions: &[ProgramPosition], then: RegionId, otherwise: RegionId) {
        let zero = self.b.int(0, Loc::NONE);
        let mut all: Option<Value> = None;
        let idle = self.shares.iter().zip(positions);
        let idle = idle.filter(|(share, _)| share.has_idle_programs() && share.tiled.sum.is_none());
        for left in idle.filter_map(|(_, position)| position.left) {
            let has_block = self.emit_scalar_op(ScalarOp::Lt, &[zero, left]);
            all = Some(all.map_or(has_block, |all| self.emit_scalar_op(ScalarOp::BitAnd, &[all, has_block])));
        }
        let condition = all.expect("a share with idle programs");
        self.b.emit_if(condition, then, otherwise, Loc::NONE).expect("sides without results");
    }

    /// Makes the tests for the first and the last step of a sum true in the device's own first and last step.
    fn rewrite_sum_step_tests(&mut self, share: &ShardedAxis, position: &ProgramPosition) {
        let (Some(sum), Some(ends)) = (&share.tiled.sum, position.ends) else { return };
        for (test, end) in [Some(sum.first), sum.last].into_iter().zip(ends) {
            if let Some(test) = test {
                self.b.kernel_mut().insts[test.index()].args = vec![position.own, end];
            }
        }
    }

    /// Replaces the term that instruction `add` adds to a sum by the neutral element in steps beyond the last global
    /// one; returns the instructions for that.
    fn mask_sum_term(&mut self, old: &Kernel, add: InstId, positions: &[ProgramPosition]) -> Vec<InstId> {
        let shares = self.shares;
        let idle = shares.iter().zip(positions).filter(|(share, _)| share.has_idle_programs());
        let Some((sum, arg, left)) = idle.into_iter().find_map(|(share, position)| {
            let sum = share.tiled.sum.as_ref()?;
            let (_, arg) = sum.terms.iter().find(|(id, _)| *id == add)?;
            Some((sum, *arg, position.left?))
        }) else {
            return vec![];
        };
        let term = old.inst(add).args[arg];
        let neutral = sum.op.neutral(old.ty(term).dtype).expect("a monoid");
        let (list, term) = self.collect_insts(|r| {
            let (zero, neutral) = (r.b.int(0, Loc::NONE), r.b.constant(neutral, Loc::NONE));
            let is_there = r.emit_scalar_op(ScalarOp::Lt, &[zero, left]);
            r.emit_scalar_op(ScalarOp::Select, &[is_there, term, neutral])
        });
        self.b.kernel_mut().insts[add.index()].args[arg] = term;
        list
    }

    /// Rewrites a region's instructions that ask for program ids, or access a block that may extend beyond its array.
    fn rewrite_region(&mut self, old: &Kernel, region: RegionId, positions: &[ProgramPosition]) {
        let mut list = vec![];
        for &id in &old.region(region).insts {
            let inst = old.inst(id);
            list.extend(self.mask_sum_term(old, id, positions));
            list.push(id);
            match &inst.op {
                Op::ProgramId(axis) => {
                    if let Some(i) = self.shares.iter().position(|share| share.axis == *axis) {
                        let inst = &mut self.b.kernel_mut().insts[id.index()];
                        inst.op = Op::Scalar(ScalarOp::Add);
                        inst.args = vec![positions[i].own, positions[i].first];
                    }
                }
                Op::NumPrograms(axis) => {
                    if let Some(share) = self.shares.iter().find(|share| share.axis == *axis) {
                        let count = Literal::int(DType::I32, share.tiled.programs as i64);
                        self.b.kernel_mut().insts[id.index()].op = Op::Const(count);
                    }
                }
                Op::Load { from, view, .. } => {
                    let limits = self.overhanging_axes(old, *from, view, &inst.args, positions);
                    list.extend(self.mask_loaded_tile(old, id, *from, limits));
                }
                Op::Valid { of, view, axis } => {
                    let mut limits = self.overhanging_axes(old, *of, view, &inst.args, positions);
                    limits.retain(|limit| limit.kept == Some(*axis));
                    list.extend(self.restrict_validity_mask(old, id, limits));
                }
                _ => {}
            }
        }
        self.b.kernel_mut().regions[region.index()].insts = list;
    }

    /// Returns the axes of a view along which it may extend beyond the whole array. `starts` are the view's dynamic
    /// starts.
    fn overhanging_axes(
        &self,
        old: &Kernel,
        of: OperandId,
        view: &View,
        starts: &[Value],
        positions: &[ProgramPosition],
    ) -> Vec<OverhangingAxis> {
        let Some(t) = self.tiling.operands.iter().position(|&id| id == of) else { return vec![] };
        let kept_dims = (0..old.operand(of).block.len()).filter(|&dim| old.operand(of).block[dim].is_kept());
        let (mut starts, mut kept, mut limits) = (starts.iter(), 0, vec![]);
        for (dim, axis) in kept_dims.zip(&view.axes) {
            let start = if axis.dynamic { starts.next().copied() } else { None };
            let share = self.tiling.dims[t][dim].as_ref().ok();
            let share = share.and_then(|own| self.shares.iter().position(|share| share.axis == *own));
            if let Some(left) = share.and_then(|i| positions[i].left) {
                let kept = axis.kept.then_some(kept);
                limits.push(OverhangingAxis {
                    left,
                    start,
                    offset: axis.offset,
                    stride: axis.stride,
                    size: axis.size,
                    kept,
                });
            }
            kept += usize::from(axis.kept);
        }
        limits
    }

    /// Returns instructions that replace the elements of loaded tile `id` that lie beyond the whole array by the
    /// operand's fill.
    fn mask_loaded_tile(
        &mut self,
        old: &Kernel,
        id: InstId,
        from: OperandId,
        overhanging: Vec<OverhangingAxis>,
    ) -> Vec<InstId> {
        let result = old.inst(id).results[0];
        let rank = old.ty(result).shape.len();
        self.replace_inst_result(id, overhanging.len(), result, |r, i, x| {
            let operand = old.operand(from);
            let is_there = r.emit_inside_array_mask(&overhanging[i], rank);
            let fill = r.b.constant(operand.fill.unwrap_or(Literal::new(operand.dtype, 0.0)), Loc::NONE);
            r.emit_scalar_op(ScalarOp::Select, &[is_there, x, fill])
        })
    }

    /// Returns instructions that make mask `id` false for elements beyond the whole array.
    fn restrict_validity_mask(&mut self, old: &Kernel, id: InstId, overhanging: Vec<OverhangingAxis>) -> Vec<InstId> {
        let result = old.inst(id).results[0];
        let rank = old.ty(result).shape.len();
        self.replace_inst_result(id, overhanging.len(), result, |r, i, x| {
            let is_there = r.emit_inside_array_mask(&overhanging[i], rank);
            r.emit_scalar_op(ScalarOp::BitAnd, &[x, is_there])
        })
    }

    /// Returns instructions that compute a new value for `result` of instruction `id`, which later ones read instead:
    /// each of the `rewrite_count` calls of `write` is given its number and the value so far, and returns the next.
    fn replace_inst_result(
        &mut self,
        id: InstId,
        rewrite_count: usize,
        result: Value,
        mut write: impl FnMut(&mut Self, usize, Value) -> Value,
    ) -> Vec<InstId> {
        if rewrite_count == 0 {
            return vec![];
        }
        let loaded = self.b.value(self.b.kernel().ty(result).clone());
        self.b.kernel_mut().insts[id.index()].results = vec![loaded];
        let (list, ()) = self.collect_insts(|r| {
            let changed = (0..rewrite_count).fold(loaded, |x, i| write(r, i, x));
            r.redefine_last_result(changed, result);
        });
        list
    }

    /// Returns a bool for each position along an axis of a view: true if it lies inside of the whole array. `rank` is
    /// that of the loaded tile.
    fn emit_inside_array_mask(&mut self, overhanging: &OverhangingAxis, rank: usize) -> Value {
        let mut first = self.b.int(overhanging.offset, Loc::NONE);
        if let Some(start) = overhanging.start {
            first = self.emit_scalar_op(ScalarOp::Add, &[first, start]);
        }
        let left = self.emit_scalar_op(ScalarOp::Sub, &[overhanging.left, first]);
        let Some(axis) = overhanging.kept else {
            let zero = self.b.int(0, Loc::NONE);
            return self.emit_scalar_op(ScalarOp::Lt, &[zero, left]);
        };
        let shape = (0..rank).map(|a| Dim::from(if a == axis { overhanging.size } else { 1 })).collect();
        let iota = StructuralOp::from(Iota { shape, axis, dtype: DType::I32 });
        let mut steps = self.emit(Op::Structural(iota), &[]);
        if overhanging.stride != 1 {
            let stride = self.b.int(overhanging.stride, Loc::NONE);
            steps = self.emit_scalar_op(ScalarOp::Mul, &[steps, stride]);
        }
        self.emit_scalar_op(ScalarOp::Lt, &[steps, left])
    }
}

/// An axis of a view along which it may extend beyond the end of the whole array.
struct OverhangingAxis {
    /// Number of elements from the start of the block to the end of the whole array.
    left: Value,
    start: Option<Value>,
    offset: i64,
    stride: i64,
    size: usize,
    /// The axis in the loaded tile; `None` if the load drops it.
    kept: Option<usize>,
}

/// Returns a region and all regions nested in it.
fn nested_regions(kernel: &Kernel, region: RegionId) -> Vec<RegionId> {
    let mut all = vec![region];
    kernel.walk(region, &mut |_, inst| all.extend(&inst.regions));
    all
}
