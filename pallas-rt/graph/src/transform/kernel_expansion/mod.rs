//! Replaces kernels by plain operations, for compilers and devices that know no kernels.
//!
//! ```text
//! grid 4 parallel              while step < 4, carrying the outputs and the scratch
//! %1 = load @x                   %1 = dynamic_slice x, 8 · step
//! %2 = mul %1, %1                %2 = mul %1, %1
//! store @out %2                  out = dynamic_update_slice out, %2, 8 · step
//! ```
//!
//! Programs run one after the other; the sequential axes of the grid are the innermost ones. If blocks may extend
//! beyond an array, the array is padded by as many elements (its margins), so that the windows of `dynamic_slice` and
//! `dynamic_update_slice` always lie inside of it. `ranges` finds the blocks that need no padding, `access` has loads
//! and stores, `control` branches and loops. Assertions are dropped.
mod access;
mod control;
mod ranges;

use super::TransformError;
use crate::build::constant_dims;
use crate::call::{ClosedCall, KernelCall, Print};
use crate::dead_code::without_dead_equations;
use crate::graph::{Graph, Op, Var};
use pallas_ir::structural::{Broadcast, Pad, Slice};
use pallas_ir::{
    At, BlockDim, DType, Diag, Dim, Inst, InstId, Kernel, Literal, Loc, Op as TileOp, OperandId, OperandKind, RegionId,
    ScalarOp, Semantics, StructuralOp, Type, Value,
};
use ranges::{CallSizes, IntegerBounds, clamped_block_range};
use std::collections::HashMap;

/// Returns the graph with plain operations in place of every kernel, also in the graphs that it calls: each kernel
/// becomes a call of a function.
///
/// # Errors
/// An operation that cannot be expressed by plain operations, with the kernel's name and the line.
pub fn without_kernels(graph: &Graph) -> Result<Graph, TransformError> {
    let mut own = graph.clone();
    for e in &mut own.equations {
        let Op::Call(call) = &e.op else { continue };
        e.op = match KernelCall::of(call) {
            Some(kernel) => {
                ClosedCall(kernel_to_graph(kernel).map_err(|diag| TransformError { at: e.loc, diag })?).into()
            }
            None => call.try_map_graphs(without_kernels)?.into(),
        };
    }
    Ok(own)
}

/// Something that a region may read from the regions around it; the key of its variable in an [`UnfinishedGraph`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ValueKey {
    /// A value of the kernel.
    Value(Value),
    /// The elements of an operand, padded by its margins.
    Memory(OperandId),
    /// The index of the program along an axis of the grid.
    ProgramId(usize),
    /// The position of the first element of an operand's block along an axis.
    BlockOrigin(OperandId, usize),
    /// A value of the translation itself, which the kernel does not have.
    Translated(u32),
}

/// A graph under construction: the whole function, a branch, or the condition or body of a loop.
#[derive(Default)]
struct UnfinishedGraph {
    graph: Graph,
    found: HashMap<ValueKey, Var>,
    /// The values read from the graphs around it, each with the parameter that stands for it.
    captured: Vec<(ValueKey, Var)>,
}

/// The translation of one kernel call into plain operations.
struct KernelToGraph<'a> {
    kernel: &'a Kernel,
    sizes: CallSizes,
    ranges: IntegerBounds,
    /// The graphs under construction, the innermost last.
    scopes: Vec<UnfinishedGraph>,
    /// The index of the next [`ValueKey::Translated`].
    next: u32,
    /// The line that is being translated, for messages.
    at: Loc,
}

/// Returns the function that a call of a kernel computes, as a graph of plain operations.
fn kernel_to_graph(call: &KernelCall) -> Result<Graph, Diag> {
    let kernel = &*call.kernel;
    let sizes = call_sizes(call);
    let ranges = IntegerBounds::from_kernel(kernel, &sizes);
    let mut own =
        KernelToGraph { kernel, sizes, ranges, scopes: vec![UnfinishedGraph::default()], next: 0, at: Loc::NONE };
    own.build_function(call).map_err(|diag| {
        let message = format!("kernel `{}` as plain operations: {} ({})", kernel.name, diag.message, own.at);
        Diag::new("plain-kernel", At::Op, message, &*diag.help)
    })
}

/// Returns the sizes of a call, and the values in the kernel that are constants for these sizes.
fn call_sizes(call: &KernelCall) -> CallSizes {
    let kernel = &*call.kernel;
    let names: Vec<(&str, i64)> = kernel.dims.iter().map(|d| &*d.name).zip(call.sizes.iter().copied()).collect();
    let number = |n: &Dim| n.evaluate(&names).expect("a call's sizes were evaluated when it was bound");
    let grid: Vec<i64> = kernel.grid.iter().map(|axis| number(&axis.extent)).collect();
    let shape = |dims: &[Dim]| dims.iter().map(|n| number(n) as usize).collect();
    let shapes = kernel.operands.iter().map(|operand| shape(&operand.dims)).collect();
    let params = kernel.operands.iter().filter(|operand| operand.kind == OperandKind::Param);
    let param = |of: OperandId| {
        let before = kernel.operands[..of.index()].iter().filter(|operand| operand.kind == OperandKind::Param).count();
        call.params[before]
    };
    debug_assert_eq!(params.count(), call.params.len());
    let of = |inst: &Inst| match inst.op {
        TileOp::Const(x) => Some(x),
        TileOp::Param(of) => Some(param(of)),
        TileOp::Extent(dim) => Some(Literal::int(DType::I32, call.sizes[dim.index()])),
        TileOp::NumPrograms(axis) => Some(Literal::int(DType::I32, grid[axis])),
        _ => None,
    };
    let known = kernel.insts.iter().filter_map(|inst| of(inst).map(|x| (inst.results[0], x))).collect();
    CallSizes { grid, shapes, known }
}

impl KernelToGraph<'_> {
    /// Returns the graph of the whole call: its parameters are the call's operands, its results the kernel's outputs.
    fn build_function(&mut self, call: &KernelCall) -> Result<Graph, Diag> {
        let kernel = self.kernel;
        let mut takes = call.takes.iter();
        let mut given = HashMap::new();
        for (id, operand) in (0..).map(OperandId).zip(&kernel.operands) {
            let start = match &operand.kind {
                OperandKind::Input | OperandKind::Prefetch => {
                    let ty = takes.next().expect("an operand for each input and prefetch");
                    let x = self.innermost_graph().param(ty.clone());
                    given.insert(id, x);
                    x
                }
                OperandKind::Output { alias: Some(alias), .. } => given[alias],
                OperandKind::Output { empty, .. } => self.push_splat(*empty, &self.sizes.shapes[id.index()].clone()),
                // The initial elements of scratch are undefined.
                OperandKind::Scratch => {
                    self.push_splat(Literal::int(operand.dtype, 0), &self.sizes.shapes[id.index()].clone())
                }
                OperandKind::Param => continue,
            };
            let padded = self.pad_by_margins(id, start)?;
            self.define_key(ValueKey::Memory(id), padded);
        }
        self.translate_all_programs()?;
        let outputs = kernel.operands.iter().zip(0..).filter(|(o, _)| matches!(o.kind, OperandKind::Output { .. }));
        for (_, id) in outputs {
            let id = OperandId(id);
            let x = self.var_in_innermost_graph(ValueKey::Memory(id));
            let (margins, shape) = (&self.ranges.margins[id.index()], &self.sizes.shapes[id.index()]);
            let start: Vec<i64> = margins.iter().map(|(low, _)| *low as i64).collect();
            let cut = Slice { start, size: constant_dims(shape), stride: vec![1; shape.len()] };
            let is_padded = margins.iter().any(|margin| *margin != (0, 0));
            let result = if is_padded { self.push(StructuralOp::from(cut), &[x])? } else { x };
            self.innermost_graph().results.push(result);
        }
        let scope = self.scopes.pop().expect("the function");
        Ok(without_dead_equations(scope.graph))
    }

    /// Pads an operand's array by its margins with the operand's fill, so that loads beyond the array read what they
    /// should.
    fn pad_by_margins(&mut self, id: OperandId, x: Var) -> Result<Var, Diag> {
        let margins = &self.ranges.margins[id.index()];
        if margins.iter().all(|margin| *margin == (0, 0)) {
            return Ok(x);
        }
        let side = |of: fn(&(usize, usize)) -> usize| constant_dims(&margins.iter().map(of).collect::<Vec<usize>>());
        let op = Pad { low: side(|m| m.0), high: side(|m| m.1) };
        let fill = self.fill_value(id);
        let fill = self.innermost_graph().literal(fill);
        self.push(StructuralOp::from(op), &[x, fill])
    }

    /// Translates the body for all programs: a `while` over program indices, unless there is only one.
    fn translate_all_programs(&mut self) -> Result<(), Diag> {
        let kernel = self.kernel;
        let total = self.sizes.grid.iter().try_fold(1i64, |product, &n| product.checked_mul(n));
        let Some(total) = total.filter(|&n| n <= i64::from(i32::MAX)) else {
            let message = format!("a grid of {:?} programs", self.sizes.grid);
            return Err(Diag::new("grid", At::Op, message, "at most 2^31 - 1 in all"));
        };
        match total {
            0 => Ok(()),
            1 => self.translate_program(None),
            _ => {
                let stored = self.stored_operands(&[kernel.body]);
                let zero = self.push_int_constant(0);
                let mut state = vec![zero];
                state.extend(stored.iter().map(|&id| self.var_in_innermost_graph(ValueKey::Memory(id))));
                let last = self.push_while(
                    &state,
                    |own, state| {
                        let total = own.push_int_constant(total);
                        own.push(ScalarOp::Lt, &[state[0], total])
                    },
                    |own, state| {
                        stored.iter().zip(&state[1..]).for_each(|(&id, &x)| own.define_key(ValueKey::Memory(id), x));
                        own.translate_program(Some(state[0]))?;
                        let mut made = vec![own.push_plus_constant(state[0], 1)?];
                        made.extend(stored.iter().map(|&id| own.var_in_innermost_graph(ValueKey::Memory(id))));
                        Ok(made)
                    },
                )?;
                stored.iter().zip(&last[1..]).for_each(|(&id, &x)| self.define_key(ValueKey::Memory(id), x));
                Ok(())
            }
        }
    }

    /// Translates the body for the program at `program_index` in the order of execution; `None` if it is the only
    /// program.
    fn translate_program(&mut self, program_index: Option<Var>) -> Result<(), Diag> {
        let kernel = self.kernel;
        // Sequential axes are innermost, so that the programs that share scratch follow each other.
        let of = |semantics: Semantics| {
            kernel.grid.iter().enumerate().filter(move |(_, axis)| axis.semantics == semantics).map(|(i, _)| i)
        };
        let order: Vec<usize> = of(Semantics::Parallel).chain(of(Semantics::Arbitrary)).collect();
        let mut after = 1;
        for &axis in order.iter().rev() {
            let n = self.sizes.grid[axis];
            let outer: i64 = self.sizes.grid.iter().product::<i64>() / after / n;
            let index = match program_index {
                Some(number) if n > 1 => {
                    let behind = self.push_with_constant(ScalarOp::Div, number, after)?;
                    if outer > 1 { self.push_with_constant(ScalarOp::Rem, behind, n)? } else { behind }
                }
                _ => self.push_int_constant(0),
            };
            self.define_key(ValueKey::ProgramId(axis), index);
            after *= n;
        }
        for (i, operand) in kernel.operands.iter().enumerate() {
            let Some(map) = operand.map else { continue };
            for (axis, &p) in kernel.region(map).params.iter().enumerate() {
                let index = self.var_in_innermost_graph(ValueKey::ProgramId(axis));
                self.define_key(ValueKey::Value(p), index);
            }
            let indices = self.translate_region(map)?;
            let yields = &kernel.region(map).yields;
            for (axis, (&v, index)) in yields.iter().zip(indices).enumerate() {
                let origin = self.push_block_origin(operand.block[axis], self.sizes.shapes[i][axis], v, index)?;
                self.define_key(ValueKey::BlockOrigin(OperandId(i as u32), axis), origin);
            }
        }
        self.translate_region(kernel.body).map(drop)
    }

    /// Computes the position of a block's first element along an axis of extent `axis_extent`. `index` is the value
    /// that the index map yields as `yielded`.
    fn push_block_origin(
        &mut self,
        block: BlockDim,
        axis_extent: usize,
        yielded: Value,
        index: Var,
    ) -> Result<Var, Diag> {
        let (low, high) = clamped_block_range(block, axis_extent);
        let mut index = index;
        if self.ranges.bounds_of(yielded).is_none_or(|(a, b)| a < low || b > high) {
            let (low, high) = (self.push_int_constant(low), self.push_int_constant(high));
            index = self.push(ScalarOp::Clamp, &[index, low, high])?;
        }
        match block {
            BlockDim::Squeezed => Ok(index),
            BlockDim::Blocked(size) => self.push_with_constant(ScalarOp::Mul, index, size as i64),
            BlockDim::Element { low, .. } => self.push_plus_constant(index, -(low as i64)),
        }
    }

    /// Translates a region, and returns the variables that it yields.
    fn translate_region(&mut self, region: RegionId) -> Result<Vec<Var>, Diag> {
        let region = self.kernel.region(region);
        region.insts.iter().try_for_each(|&id| self.translate_inst(id))?;
        Ok(region.yields.iter().map(|&v| self.var_in_innermost_graph(ValueKey::Value(v))).collect())
    }

    /// Translates an instruction of the kernel.
    fn translate_inst(&mut self, id: InstId) -> Result<(), Diag> {
        let kernel = self.kernel;
        let inst = kernel.inst(id);
        self.at = kernel.loc(id);
        self.innermost_graph().at = kernel.loc(id);
        if inst.results.first().is_some_and(|v| self.sizes.known.contains_key(v)) {
            return Ok(());
        }
        let args: Vec<Var> = inst.args.iter().map(|&v| self.var_in_innermost_graph(ValueKey::Value(v))).collect();
        let made = match &inst.op {
            TileOp::Const(_) | TileOp::Param(_) | TileOp::Extent(_) | TileOp::NumPrograms(_) => {
                unreachable!("its value is known")
            }
            TileOp::NumSteps(_) => unreachable!("a call has a traced kernel"),
            TileOp::Scalar(op) => {
                let shape = &kernel.ty(inst.results[0]).shape;
                let args =
                    args.iter().map(|&v| self.innermost_graph().broadcast(v, shape)).collect::<Result<Vec<_>, _>>()?;
                self.push(*op, &args)?
            }
            TileOp::Structural(op) => self.push(op.clone(), &args)?,
            TileOp::ProgramId(axis) => self.var_in_innermost_graph(ValueKey::ProgramId(*axis)),
            TileOp::Prefetch(of) => self.translate_prefetch(*of, &args)?,
            TileOp::Load { from, view, masked } => self.translate_load(*from, view, *masked, inst, &args)?,
            TileOp::Valid { of, view, axis } => self.translate_valid(*of, view, *axis, inst)?,
            TileOp::Store { to, view, masked } => return self.translate_store(*to, view, *masked, inst, &args),
            TileOp::If => return self.translate_if(inst, args[0]),
            TileOp::For { reverse } => return self.translate_for(inst, *reverse, &args),
            TileOp::While => return self.translate_while(inst, &args),
            TileOp::DebugPrint(label) => {
                let print = Print { label: label.clone(), batches: vec![] };
                return self.push(print, &args).map(drop);
            }
            TileOp::DebugAssert(_) => return Ok(()),
        };
        debug_assert_eq!(self.innermost_graph().ty(made), kernel.ty(inst.results[0]), "{:?}", inst.op);
        self.define_key(ValueKey::Value(inst.results[0]), made);
        Ok(())
    }

    /// Returns the number that loads read outside of an operand's array.
    fn fill_value(&self, id: OperandId) -> Literal {
        let operand = self.kernel.operand(id);
        operand.fill.unwrap_or(Literal::new(operand.dtype, 0.0))
    }

    fn innermost_graph(&mut self) -> &mut Graph {
        &mut self.scopes.last_mut().expect("a scope is open").graph
    }

    fn define_key(&mut self, key: ValueKey, v: Var) {
        self.scopes.last_mut().expect("a scope is open").found.insert(key, v);
    }

    /// Returns the variable for `key` in the innermost graph; what outer graphs define becomes a parameter of it.
    fn var_in_innermost_graph(&mut self, key: ValueKey) -> Var {
        if let ValueKey::Value(v) = key
            && let Some(&x) = self.sizes.known.get(&v)
        {
            return self.innermost_graph().literal(x);
        }
        self.var_at_depth(self.scopes.len() - 1, key)
    }

    /// Returns the variable for `key` in the graph at `depth`, with a new parameter in each graph down to it that has
    /// none.
    fn var_at_depth(&mut self, depth: usize, key: ValueKey) -> Var {
        if let Some(&v) = self.scopes[depth].found.get(&key) {
            return v;
        }
        let outer = self.var_at_depth(depth.checked_sub(1).expect("values are defined before their uses"), key);
        let ty = self.scopes[depth - 1].graph.ty(outer).clone();
        let scope = &mut self.scopes[depth];
        let v = scope.graph.var(ty);
        scope.captured.push((key, v));
        scope.found.insert(key, v);
        v
    }

    fn push(&mut self, op: impl Into<Op>, args: &[Var]) -> Result<Var, Diag> {
        self.innermost_graph().push(op, args)
    }

    fn push_int_constant(&mut self, n: i64) -> Var {
        self.innermost_graph().i32_literal(n)
    }

    fn push_splat(&mut self, x: Literal, shape: &[usize]) -> Var {
        self.innermost_graph().splat(x, shape)
    }

    /// Appends the operation of integer `x` and the number `n`; returns `x` itself for a product or quotient by 1.
    fn push_with_constant(&mut self, op: ScalarOp, x: Var, n: i64) -> Result<Var, Diag> {
        if n == 1 && matches!(op, ScalarOp::Mul | ScalarOp::Div) {
            return Ok(x);
        }
        let n = self.push_int_constant(n);
        self.push(op, &[x, n])
    }

    fn push_plus_constant(&mut self, x: Var, n: i64) -> Result<Var, Diag> {
        if n == 0 { Ok(x) } else { self.push_with_constant(ScalarOp::Add, x, n) }
    }

    /// Broadcasts `x` to a shape: axis `i` of `x` becomes `axes[i]` of the result, and has its extent or 1.
    fn push_broadcast(&mut self, x: Var, shape: &[usize], axes: Vec<usize>) -> Result<Var, Diag> {
        self.push(StructuralOp::from(Broadcast { to: constant_dims(shape), dims: axes }), &[x])
    }
}

/// Returns the type of loop counters and program indices: an i32 scalar.
fn counter_type() -> Type {
    Type::scalar(DType::I32)
}
