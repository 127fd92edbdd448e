//! Conversion of a cluster to a tile kernel, in which its equations are operations on blocks.
use super::axis_tiling::{self, AxisTiling, AxisTiling::Full, AxisTiling::Grid, AxisTiling::GridParts};
use super::cluster::Cluster;
use super::cluster_blocks::choose_block_sizes;
use super::device_limits::{CACHE_LINE_ELEMENTS, DeviceLimits};
use super::equation_kinds::is_always_inlined;
use super::panels;
use super::plan::{LoweredStep, StepOp};
use crate::build::constant_dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{Broadcast, Iota, Reduce, Reshape, Slice};
use pallas_ir::{
    Axis, BlockDim, Builder, DType, Dim, Literal, Loc, Op as TileOp, Operand, OperandId, OperandKind, ScalarOp,
    Semantics, StructuralOp, Type, Value, View,
};
use std::collections::BTreeMap;

/// Converts a cluster to a kernel with blocks for this device. Extents of axes that are shared among programs are
/// symbolic dimensions of the kernel, so one kernel serves arrays of any length along them.
pub(crate) fn lower_cluster(
    graph: &Graph,
    definitions: &[Option<usize>],
    cluster: &Cluster,
    sizes: &DeviceLimits,
) -> LoweredStep {
    let flat = flattened_extent(graph, definitions, cluster);
    let (is_flat, mut extents) = (flat.is_some(), flat.map_or_else(|| cluster.extents.clone(), |n| vec![n]));
    let mut blocks = match extents[..] {
        // The tilings of the members belong to the axes before flattening.
        [n] if is_flat => vec![sizes.balanced_block_size(n, n.clamp(1, sizes.tile), 1, CACHE_LINE_ELEMENTS)],
        _ => choose_block_sizes(graph, cluster, &extents, sizes),
    };
    let parallel = extents.len();
    extents.extend(&cluster.panels);
    blocks.extend(panels::panel_block_sizes(&cluster.panels, sizes));
    let mut b = Builder::new(&kernel_name(graph, cluster));
    let names: Vec<String> = (0..extents.len()).map(|k| format!("n{k}")).collect();
    for name in &names {
        b.dim(name, None);
    }
    let axis = |(k, (name, &block)): (usize, (&String, &usize))| Axis {
        extent: Dim::name(name).cdiv(&Dim::from(block)),
        semantics: if k < parallel { Semantics::Parallel } else { Semantics::Arbitrary },
    };
    b.kernel_mut().grid = names.iter().zip(&blocks).enumerate().map(axis).collect();
    let (sizes, made) = (extents.iter().map(|&n| n as i64).collect(), BTreeMap::new());
    let mut to = KernelLowering {
        graph,
        definitions,
        cluster,
        is_flat,
        names,
        extents,
        blocks,
        b,
        made,
        broadcasts: vec![],
        inputs: vec![],
    };

    for e in cluster.members.iter().map(|&i| &graph.equations[i]) {
        for (&arg, tiling) in e.args.iter().zip(&to.operand_tilings(e)) {
            to.declare_input(arg, tiling);
        }
    }
    let outputs: Vec<Var> = cluster.outs.iter().copied().collect();
    for &v in &outputs {
        let kind = OperandKind::Output { empty: Literal::new(graph.ty(v).dtype, 0.0), alias: None };
        to.declare_operand(v, &to.member_tiling(v), kind);
    }
    match cluster.product.filter(|_| !cluster.panels.is_empty()) {
        Some(product) => to.emit_members_in_panels(product, &outputs),
        None => cluster.members.iter().for_each(|&i| to.emit_member(i, &outputs)),
    }
    // A value is read once for each of its tilings.
    let inputs = to.inputs.iter().map(|(v, _)| *v).collect();
    let work = StepOp::from_kernel(to.b.finish(), sizes);
    LoweredStep { work, inputs, in_place: vec![None; outputs.len()], outputs }
}

/// Returns a kernel's name: the names of the cluster's operations, each once, at most four of those that compute.
fn kernel_name(graph: &Graph, cluster: &Cluster) -> String {
    let mut words: Vec<String> = vec![];
    for &i in &cluster.members {
        let text = graph.equations[i].op.to_string();
        let word = text.split(' ').next().unwrap_or_default();
        if !words.iter().any(|known| known == word) {
            words.push(word.into());
        }
    }
    let moves = ["broadcast", "cast", "reshape", "stop_gradient", "optimization_barrier"];
    let is_literal = |word: &String| !word.starts_with(|c: char| c.is_ascii_alphabetic());
    let work = words.iter().filter(|word| !moves.contains(&word.as_str()) && !is_literal(word));
    let mut shown: Vec<&str> = work.map(String::as_str).collect();
    if shown.len() > 4 {
        shown.drain(3..shown.len() - 1);
    }
    if shown.is_empty() {
        words.last().filter(|w| !is_literal(w)).map_or("fill".into(), String::clone)
    } else {
        shown.join("_")
    }
}

/// Returns the number of elements if all members work element by element on one shape and read no iota: then all arrays
/// can be treated as arrays of one axis. Returns `None` for other clusters.
fn flattened_extent(graph: &Graph, definitions: &[Option<usize>], cluster: &Cluster) -> Option<usize> {
    let is_pointwise = |e: &Equation| match &e.op {
        Op::Literal(_) | Op::Identity(_) | Op::Scalar(_) => true,
        Op::Structural(StructuralOp::Cast(_) | StructuralOp::Powi(_) | StructuralOp::Bitcast(_)) => true,
        Op::Structural(_) | Op::Dynamic(_) | Op::Collective(_) | Op::Call(_) => false,
    };
    let is_positions = |v: &Var| {
        let definition = definitions[v.index()].map(|i| &graph.equations[i].op);
        matches!(definition, Some(Op::Structural(StructuralOp::Iota(_))))
    };
    let members = || cluster.members.iter().map(|&i| &graph.equations[i]);
    let shapes = members().flat_map(|e| e.args.iter().chain(&e.results)).map(|&v| &graph.ty(v).shape);
    let mut shapes = shapes.filter(|shape| !shape.is_empty());
    let first = shapes.next()?;
    let is_flat = first.len() > 1
        && !cluster.outs.iter().any(|&v| graph.ty(v).is_scalar())
        && shapes.all(|shape| shape == first)
        && members().all(|e| is_pointwise(e) && !e.args.iter().any(is_positions));
    is_flat.then(|| first.iter().product())
}

/// State of the lowering of one cluster of equations to one tile kernel: the kernel built so far, the sizes of its
/// grid and blocks, and the blocks that its body already holds.
pub(super) struct KernelLowering<'g> {
    pub graph: &'g Graph,
    pub definitions: &'g [Option<usize>],
    pub cluster: &'g Cluster,
    /// True if all arrays are treated as arrays of one axis.
    is_flat: bool,
    /// By axis of the grid, the name of the kernel's dimension along it.
    pub names: Vec<String>,
    /// By axis of the grid, the extent of the arrays along it.
    pub extents: Vec<usize>,
    /// By axis of the grid, the size of a block along it.
    pub blocks: Vec<usize>,
    pub b: Builder,
    /// By value and tiling, the block that was computed or loaded.
    made: BTreeMap<(Var, Vec<AxisTiling>), Value>,
    /// Broadcasts of blocks so far: the operation, its operand, its result.
    broadcasts: Vec<(Broadcast, Value, Value)>,
    /// The kernel's inputs in order, each with its tiling.
    inputs: Vec<(Var, Vec<AxisTiling>)>,
}

impl KernelLowering<'_> {
    /// Returns the shape that a value has in the kernel: one axis of all elements if the kernel treats arrays as flat,
    /// else its shape in the graph.
    fn kernel_shape(&self, v: Var) -> Vec<usize> {
        let shape = &self.graph.ty(v).shape;
        if self.is_flat && !shape.is_empty() { vec![shape.iter().product()] } else { shape.clone() }
    }

    /// Returns the tiling of the result `v` of one of the cluster's equations: one axis split along the grid if arrays
    /// are treated as flat.
    pub(super) fn member_tiling(&self, v: Var) -> Vec<AxisTiling> {
        if self.is_flat { vec![Grid(0)] } else { self.cluster.tilings[&v].clone() }
    }

    /// Returns the tiling of each operand of a member.
    pub(super) fn operand_tilings(&self, e: &Equation) -> Vec<Vec<AxisTiling>> {
        if self.is_flat {
            let tiling = |&v: &Var| if self.graph.ty(v).is_scalar() { vec![] } else { vec![Grid(0)] };
            return e.args.iter().map(tiling).collect();
        }
        self.cluster.operand_tilings(self.graph, e, &self.cluster.tilings[&e.result()]).expect("a member has a tiling")
    }

    /// Returns the shape of a program's block of a value with this tiling.
    pub(super) fn block_shape(&self, v: Var, tiling: &[AxisTiling]) -> Vec<usize> {
        let extent = |(n, axis_tiling): (usize, &AxisTiling)| match axis_tiling {
            Grid(k) => self.blocks[*k as usize],
            GridParts(k, part) => self.blocks[*k as usize] * part,
            Full => n,
        };
        self.kernel_shape(v).into_iter().zip(tiling).map(extent).collect()
    }

    fn defining_equation(&self, v: Var) -> Option<&Equation> {
        self.definitions[v.index()].map(|i| &self.graph.equations[i])
    }

    /// Returns true if the kernel computes a value instead of reading it.
    pub(super) fn is_computed_here(&self, v: Var) -> bool {
        let is_member = self.definitions[v.index()].is_some_and(|i| self.cluster.members.contains(&i));
        is_member || self.defining_equation(v).is_some_and(|e| is_always_inlined(self.graph, self.definitions, e))
    }

    /// Declares an input of the kernel for a value with this tiling, unless the kernel computes it or has the input.
    fn declare_input(&mut self, v: Var, tiling: &[AxisTiling]) {
        let key = (v, tiling.to_vec());
        if !self.is_computed_here(v) && !self.inputs.contains(&key) {
            self.declare_operand(v, tiling, OperandKind::Input);
            self.inputs.push(key);
        }
    }

    /// Declares an operand of the kernel for a value with this tiling: its dimensions, block, index map and fill.
    fn declare_operand(&mut self, v: Var, tiling: &[AxisTiling], kind: OperandKind) {
        let dims = self.kernel_shape(v).into_iter().zip(tiling).map(|(n, axis_tiling)| match axis_tiling {
            Grid(k) => Dim::name(&self.names[*k as usize]),
            GridParts(k, part) if n == self.extents[*k as usize] * part => {
                &Dim::name(&self.names[*k as usize]) * &Dim::from(*part)
            }
            GridParts(..) | Full => Dim::from(n),
        });
        let dims = dims.collect();
        let block = self.block_shape(v, tiling).into_iter().map(BlockDim::Blocked).collect();
        let ids = self.b.begin(&vec![Type::scalar(DType::I32); self.blocks.len()]);
        let zero = tiling.contains(&Full).then(|| self.b.int(0, Loc::NONE));
        let index = |axis_tiling: &AxisTiling| match axis_tiling {
            Grid(k) | GridParts(k, _) => ids[*k as usize],
            Full => zero.expect("an axis is whole"),
        };
        let map = Some(self.b.end(&tiling.iter().map(index).collect::<Vec<_>>()));
        let name = format!("a{}", self.b.kernel().operands.len());
        let dtype = self.graph.ty(v).dtype;
        let is_input = matches!(kind, OperandKind::Input);
        let is_ragged = is_input && tiling.iter().any(|axis_tiling| self.has_partial_last_panel(axis_tiling));
        let padding = self.common_padding_value(v, tiling).filter(|_| is_input);
        let fill = padding.or(is_ragged.then(|| Literal::new(dtype, 0.0)));
        self.b.operand(Operand { name, kind, dtype, dims, block, map, fill, buffered: None });
    }

    pub(super) fn emit(&mut self, op: TileOp, args: &[Value], loc: Loc) -> Value {
        self.b.emit(op.clone(), args, loc).unwrap_or_else(|diag| panic!("{op:?} of blocks: {diag}"))
    }

    pub(super) fn emit_structural(&mut self, op: impl Into<StructuralOp>, args: &[Value], loc: Loc) -> Value {
        self.emit(TileOp::Structural(op.into()), args, loc)
    }

    /// If the kernel makes a value as the broadcast of a scalar, returns the scalar.
    fn broadcast_source(&self, v: Var) -> Option<Var> {
        let e = self.defining_equation(v).filter(|_| self.is_computed_here(v))?;
        let is_spread =
            matches!(e.op, Op::Structural(StructuralOp::Broadcast(_))) && self.graph.ty(e.args[0]).is_scalar();
        is_spread.then(|| e.args[0])
    }

    /// Returns the blocks that are a member's operands. An elementwise operation gets a broadcast scalar as a scalar if
    /// another operand is a block: a block of equal elements would occupy memory or a register for each of them.
    pub(super) fn load_operand_blocks(&mut self, e: &Equation, tilings: &[Vec<AxisTiling>]) -> Vec<Value> {
        let has_block = e.args.iter().any(|&arg| self.broadcast_source(arg).is_none());
        let takes_scalars = matches!(e.op, Op::Scalar(_)) && has_block;
        let operand =
            |(&arg, tiling): (&Var, &Vec<AxisTiling>)| match self.broadcast_source(arg).filter(|_| takes_scalars) {
                Some(scalar) => self.load_or_compute_block(scalar, &[]),
                None => self.load_or_compute_block(arg, tiling),
            };
        e.args.iter().zip(tilings).map(operand).collect()
    }

    /// Returns the block of a value with this tiling, which is computed or loaded on first use.
    fn load_or_compute_block(&mut self, v: Var, tiling: &[AxisTiling]) -> Value {
        let key = (v, tiling.to_vec());
        if let Some(&value) = self.made.get(&key) {
            return value;
        }
        let value = match self.defining_equation(v).filter(|_| self.is_computed_here(v)).cloned() {
            Some(e) => {
                let args: Vec<Value> = e.args.iter().map(|&arg| self.load_or_compute_block(arg, &[])).collect();
                self.emit_equation(&e, &args, tiling)
            }
            None => {
                let from = self.inputs.iter().position(|input| *input == key).expect("it is declared");
                let view = View::whole(&self.block_shape(v, tiling));
                self.emit(TileOp::Load { from: OperandId(from as u32), view, masked: false }, &[], Loc::NONE)
            }
        };
        self.made.insert(key, value);
        value
    }

    /// Appends to the kernel the instructions that compute one block of an equation's result from `args`, the blocks
    /// of its operands; shapes among the operation's attributes become those of the block with this tiling.
    pub(super) fn emit_equation(&mut self, e: &Equation, args: &[Value], tiling: &[AxisTiling]) -> Value {
        let block = constant_dims(&self.block_shape(e.result(), tiling));
        match &e.op {
            Op::Literal(x) => self.emit(TileOp::Const(*x), &[], e.loc),
            Op::Identity(_) => args[0],
            Op::Scalar(op) => self.emit(TileOp::Scalar(*op), args, e.loc),
            // A scalar can be broadcast to any shape, also to a flattened block.
            Op::Structural(StructuralOp::Broadcast(_)) if self.graph.ty(e.args[0]).is_scalar() => {
                self.emit_shared_broadcast(Broadcast::to(block), args[0], e.loc)
            }
            Op::Structural(StructuralOp::Broadcast(op)) => {
                self.emit_shared_broadcast(Broadcast { to: block, dims: op.dims.clone() }, args[0], e.loc)
            }
            Op::Structural(StructuralOp::Reshape(_)) => self.emit_structural(Reshape { to: block }, args, e.loc),
            Op::Structural(StructuralOp::Slice(op)) => {
                self.emit_structural(Slice { size: block, ..op.clone() }, args, e.loc)
            }
            Op::Structural(StructuralOp::Gather(op)) => {
                let rank = self.graph.ty(e.args[1]).shape.len();
                let mut op = op.clone();
                let windows = op.windows(rank);
                for (size, window) in op.slice_sizes.iter_mut().zip(&windows.axes) {
                    if let (None, Some(axis)) = (window.start, window.axis.filter(|a| !windows.index.contains(a))) {
                        *size = block[axis].clone();
                    }
                }
                self.emit_structural(op, args, e.loc)
            }
            Op::Structural(StructuralOp::Iota(op)) => {
                let own = self.emit_structural(Iota { shape: block, ..op.clone() }, &[], e.loc);
                let Some(first) = self.emit_block_start(tiling[op.axis], e.loc) else { return own };
                let dtype = self.graph.ty(e.result()).dtype;
                let first = if dtype == DType::I32 {
                    first
                } else {
                    self.emit_structural(pallas_ir::structural::Cast { to: dtype }, &[first], e.loc)
                };
                self.b.scalar(ScalarOp::Add, &[own, first], e.loc)
            }
            Op::Structural(StructuralOp::Reduce(op))
                if let Some((v, tiling, axis)) = self.find_single_folded_part(e, op) =>
            {
                self.emit_part_fold(e, op, (v, &tiling, axis), block)
            }
            Op::Structural(StructuralOp::Pad(op))
                if let Some(axis) = axis_tiling::padded_parts_axis(&op.low, &op.high, tiling) =>
            {
                self.emit_last_part_pad(e, axis, args, tiling)
            }
            Op::Structural(op) => self.emit_structural(op.clone(), args, e.loc),
            Op::Dynamic(_) | Op::Collective(_) | Op::Call(_) => unreachable!("{} shares no kernel", e.op),
        }
    }

    /// Appends a broadcast of a block; equal broadcasts share one value.
    fn emit_shared_broadcast(&mut self, op: Broadcast, x: Value, loc: Loc) -> Value {
        if let Some((.., made)) = self.broadcasts.iter().find(|(other, of, _)| (other, *of) == (&op, x)) {
            return *made;
        }
        let made = self.emit_structural(op.clone(), &[x], loc);
        self.broadcasts.push((op, x, made));
        made
    }

    /// If each program folds exactly one part of an array that a reshape splits into parts, returns the array before
    /// the reshape, its tiling, and the axis that is split.
    fn find_single_folded_part(&self, e: &Equation, op: &Reduce) -> Option<(Var, Vec<AxisTiling>, usize)> {
        let is_reshape = |e: &&Equation| matches!(e.op, Op::Structural(StructuralOp::Reshape(_)));
        let parts =
            self.defining_equation(e.args[0]).filter(|_| self.is_computed_here(e.args[0])).filter(is_reshape)?;
        let tiling = self.operand_tilings(parts).swap_remove(0);
        let is_single =
            |axis_tiling: &AxisTiling| matches!(axis_tiling, GridParts(k, _) if self.blocks[*k as usize] == 1);
        let axis = tiling.iter().position(is_single)?;
        (!op.keep && op.axes.contains(&(axis + 1))).then(|| (parts.args[0], tiling, axis))
    }

    /// Appends the fold of a program's only part of an array, first along rows, then over their results. `part` is
    /// what `find_single_folded_part` returned, `block` the shape of the result's block.
    fn emit_part_fold(
        &mut self,
        e: &Equation,
        op: &Reduce,
        part: (Var, &[AxisTiling], usize),
        block: Vec<Dim>,
    ) -> Value {
        let (v, tiling, axis) = part;
        let axes = op.axes.iter().map(|&a| if a > axis { a - 1 } else { a });
        let (rows, others): (Vec<usize>, Vec<usize>) = axes.partition(|&a| a + 1 == tiling.len());
        let mut folded = self.load_or_compute_block(v, tiling);
        for axes in [rows, others].into_iter().filter(|axes| !axes.is_empty()) {
            folded = self.emit_structural(Reduce { op: op.op, axes, keep: true }, &[folded], e.loc);
        }
        self.emit_structural(Reshape { to: block }, &[folded], e.loc)
    }

    /// Appends the position of a block's first element along an axis with this tiling; `None` if the block has the
    /// whole axis.
    fn emit_block_start(&mut self, tiling: AxisTiling, loc: Loc) -> Option<Value> {
        let k = tiling.grid_axis()?;
        let id = self.emit(TileOp::ProgramId(k as usize), &[], loc);
        let size = self.b.int((self.blocks[k as usize] * tiling.min_block_extent(1)) as i64, loc);
        Some(self.b.scalar(ScalarOp::Mul, &[id, size], loc))
    }

    /// Returns the number with which the kernel's members fill up the last part of an array, if all of them take the
    /// same one: then loads fill with it, and the members need not.
    fn common_padding_value(&self, v: Var, tiling: &[AxisTiling]) -> Option<Literal> {
        // Products in panels read zeros there.
        if self.is_computed_here(v) || !self.cluster.panels.is_empty() {
            return None;
        }
        let mut found = None;
        for e in self.cluster.members.iter().map(|&i| &self.graph.equations[i]) {
            let Op::Structural(StructuralOp::Pad(op)) = &e.op else { continue };
            let own = self.member_tiling(e.result());
            if e.args[0] != v || own != tiling || axis_tiling::padded_parts_axis(&op.low, &op.high, &own).is_none() {
                continue;
            }
            let Op::Literal(x) = self.defining_equation(e.args[1])?.op else { return None };
            if found.is_some_and(|other| other != x) {
                return None;
            }
            found = Some(x);
        }
        found
    }

    /// Appends the pad that fills up the last part of an axis, which replaces elements outside of the operand; returns
    /// the operand itself if loads fill that part already.
    fn emit_last_part_pad(&mut self, e: &Equation, axis: usize, args: &[Value], tiling: &[AxisTiling]) -> Value {
        if self.common_padding_value(e.args[0], tiling).is_some() {
            return args[0];
        }
        let block = self.block_shape(e.result(), tiling);
        let end = self.b.int(self.kernel_shape(e.args[0])[axis] as i64, e.loc);
        self.emit_fill_past_end(end, [args[0], args[1]], (&block, axis, tiling[axis]), e.loc)
    }

    /// Appends the block `value` with the elements of `fill` in place of its own at positions from `end` on along
    /// array axis `axis`; `block` is the block's shape, and `tiling` the tiling of the axis.
    pub(super) fn emit_fill_past_end(
        &mut self,
        end: Value,
        [value, fill]: [Value; 2],
        (block, axis, tiling): (&[usize], usize, AxisTiling),
        loc: Loc,
    ) -> Value {
        let mut shape = vec![1; block.len()];
        shape[axis] = block[axis];
        let at = self.emit_structural(Iota { dtype: DType::I32, shape: constant_dims(&shape), axis }, &[], loc);
        let first = self.emit_block_start(tiling, loc).expect("the axis is divided");
        let left = self.b.scalar(ScalarOp::Sub, &[end, first], loc);
        let is_inside = self.b.scalar(ScalarOp::Lt, &[at, left], loc);
        self.b.scalar(ScalarOp::Select, &[is_inside, value, fill], loc)
    }

    /// Appends to the kernel the instructions of one of the cluster's equations, and a store of its block if its
    /// result is one of `outputs`. A scalar's broadcast that is not stored is left out, as its readers make it.
    pub(super) fn emit_member(&mut self, equation: usize, outputs: &[Var]) {
        let e = &self.graph.equations[equation];
        if self.broadcast_source(e.result()).is_some() && !outputs.contains(&e.result()) {
            return;
        }
        let args = self.load_operand_blocks(e, &self.operand_tilings(e));
        let own = self.member_tiling(e.result());
        let value = self.emit_equation(e, &args, &own);
        self.define_and_store(e.result(), own, value, outputs, e.loc);
    }

    /// Records the block that a member computed for a value, and stores it if the value is one of `outputs`.
    pub(super) fn define_and_store(
        &mut self,
        v: Var,
        tiling: Vec<AxisTiling>,
        value: Value,
        outputs: &[Var],
        loc: Loc,
    ) {
        let Some(at) = outputs.iter().position(|&out| out == v) else {
            self.made.insert((v, tiling), value);
            return;
        };
        let block = self.block_shape(v, &tiling);
        self.made.insert((v, tiling), value);
        let (to, view) = (OperandId((self.inputs.len() + at) as u32), View::whole(&block));
        let stored = self.b.effect(TileOp::Store { to, view, masked: false }, &[value], loc);
        stored.unwrap_or_else(|diag| panic!("a store of {block:?}: {diag}"));
    }
}
