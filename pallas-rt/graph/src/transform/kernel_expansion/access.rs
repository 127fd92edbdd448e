//! Translates a kernel's loads and stores to dynamic windows of arrays that are padded by margins.
use super::ranges::{view_axis_by_array_axis, view_spans, view_starts};
use super::{KernelToGraph, ValueKey, counter_type};
use crate::build::constant_dims;
use crate::dynamic::{DynamicSlice, DynamicUpdateSlice};
use crate::graph::Var;
use pallas_ir::structural::{Iota, Reshape, Slice};
use pallas_ir::{
    DType, Diag, Inst, Literal, OperandId, OperandKind, ScalarOp, StructuralOp, Type, Value, View, ViewFrame,
};

/// The smallest window of a padded array that contains the elements of a view.
struct PaddedWindow {
    starts: Vec<Var>,
    sizes: Vec<usize>,
}

impl KernelToGraph<'_> {
    /// Returns the position of a view's first element in the whole array, without margins, along each axis.
    fn push_view_position(&mut self, of: OperandId, view: &View, args: &[Value]) -> Result<Vec<Var>, Diag> {
        let is_block = view.frame == ViewFrame::Block && self.kernel.operand(of).map.is_some();
        let mut all = vec![];
        for (axis, start) in view_starts(self.kernel, of, view, args).into_iter().enumerate() {
            let mut position = is_block.then(|| self.var_in_innermost_graph(ValueKey::BlockOrigin(of, axis)));
            if let Some(v) = start.value {
                let own = self.var_in_innermost_graph(ValueKey::Value(v));
                position = Some(match position {
                    Some(origin) => self.push(ScalarOp::Add, &[origin, own])?,
                    None => own,
                });
            }
            all.push(match position {
                Some(position) => self.push_plus_constant(position, start.offset)?,
                None => self.push_int_constant(start.offset),
            });
        }
        Ok(all)
    }

    /// Returns the window of the padded array that contains a view's elements; for a store with a stride, also the gap
    /// after its last element.
    fn push_view_window(
        &mut self,
        of: OperandId,
        view: &View,
        args: &[Value],
        is_store: bool,
    ) -> Result<PaddedWindow, Diag> {
        let positions = self.push_view_position(of, view, args)?;
        let mut starts = vec![];
        for (axis, position) in positions.into_iter().enumerate() {
            let low = self.ranges.margins[of.index()][axis].0;
            starts.push(self.push_plus_constant(position, low as i64)?);
        }
        Ok(PaddedWindow { starts, sizes: view_spans(self.kernel, of, view, is_store) })
    }

    /// Returns the elements of a window. A window as large as its array is the array itself.
    fn push_window_read(&mut self, memory: Var, window: &PaddedWindow) -> Result<Var, Diag> {
        if self.innermost_graph().ty(memory).shape == window.sizes {
            return Ok(memory);
        }
        let op = DynamicSlice { size: window.sizes.clone() };
        self.push(op, &[&[memory], &window.starts[..]].concat())
    }

    fn push_reshape(&mut self, x: Var, shape: &[usize]) -> Result<Var, Diag> {
        if self.innermost_graph().ty(x).shape == shape {
            return Ok(x);
        }
        self.push(StructuralOp::from(Reshape { to: constant_dims(shape) }), &[x])
    }

    /// Translates a load of a view; `args` are the translated arguments of the instruction, of which a masked load has
    /// two for mask and replacement at the end.
    pub(super) fn translate_load(
        &mut self,
        from: OperandId,
        view: &View,
        masked: bool,
        inst: &Inst,
        args: &[Var],
    ) -> Result<Var, Diag> {
        let memory = self.var_in_innermost_graph(ValueKey::Memory(from));
        let window = self.push_view_window(from, view, &inst.args, false)?;
        let mut x = self.push_window_read(memory, &window)?;
        let axes = view_axis_by_array_axis(self.kernel, from, view);
        let sizes: Vec<usize> = axes.iter().map(|axis| axis.map_or(1, |axis| view.axes[axis].size)).collect();
        if sizes != window.sizes {
            let stride = axes.iter().map(|axis| axis.map_or(1, |axis| view.axes[axis].stride)).collect();
            let op = Slice { start: vec![0; sizes.len()], size: constant_dims(&sizes), stride };
            x = self.push(StructuralOp::from(op), &[x])?;
        }
        let shape = view.shape();
        x = self.push_reshape(x, &shape)?;
        // Stores outside of an output went into its margins, but loads must see `fill` there.
        let is_input = self.kernel.operand(from).kind == OperandKind::Input;
        if !is_input && self.ranges.margins[from.index()].iter().any(|margin| *margin != (0, 0)) {
            let inside = self.inside_array_masks(from, view, &inst.args)?;
            let fill = self.fill_value(from);
            let fill = self.push_splat(fill, &shape);
            for (_, inside) in inside {
                let inside = self.innermost_graph().broadcast(inside, &shape)?;
                x = self.push(ScalarOp::Select, &[inside, x, fill])?;
            }
        }
        if masked {
            let (mask, other) = (args[args.len() - 2], args[args.len() - 1]);
            let other = self.innermost_graph().broadcast(other, &shape)?;
            x = self.push(ScalarOp::Select, &[mask, x, other])?;
        }
        Ok(x)
    }

    /// Translates a store to a view. For strides above 1 and masks, the window's old elements are kept where nothing is
    /// stored.
    pub(super) fn translate_store(
        &mut self,
        to: OperandId,
        view: &View,
        masked: bool,
        inst: &Inst,
        args: &[Var],
    ) -> Result<(), Diag> {
        let memory = self.var_in_innermost_graph(ValueKey::Memory(to));
        let window = self.push_view_window(to, view, &inst.args[1..], true)?;
        let axes = view_axis_by_array_axis(self.kernel, to, view);
        let axis_of = |axis: &Option<usize>| axis.map_or((1, 1), |axis| (view.axes[axis].size, view.axes[axis].stride));
        let (sizes, strides): (Vec<usize>, Vec<i64>) = axes.iter().map(axis_of).unzip();
        let mut x = self.push_reshape(args[0], &sizes)?;
        let mut mask = match masked {
            true => Some(self.push_reshape(args[args.len() - 1], &sizes)?),
            false => None,
        };
        for (axis, &stride) in strides.iter().enumerate().filter(|(_, stride)| **stride > 1) {
            x = self.repeat_elements(x, axis, stride as usize)?;
            let shape = self.innermost_graph().ty(x).shape.clone();
            let number = self.push_axis_iota(axis, &shape)?;
            let stride = self.push_splat(Literal::int(DType::I32, stride), &shape);
            let within = self.push(ScalarOp::Rem, &[number, stride])?;
            let zero = self.push_splat(Literal::int(DType::I32, 0), &shape);
            let is_first = self.push(ScalarOp::Eq, &[within, zero])?;
            mask = Some(match mask {
                Some(mask) => {
                    let mask = self.repeat_elements(mask, axis, strides[axis] as usize)?;
                    self.push(ScalarOp::BitAnd, &[mask, is_first])?
                }
                None => is_first,
            });
        }
        if let Some(mask) = mask {
            let old = self.push_window_read(memory, &window)?;
            x = self.push(ScalarOp::Select, &[mask, x, old])?;
        }
        if self.innermost_graph().ty(memory).shape != window.sizes {
            x = self.push(DynamicUpdateSlice, &[&[memory, x], &window.starts[..]].concat())?;
        }
        self.define_key(ValueKey::Memory(to), x);
        Ok(())
    }

    /// Repeats each element `times` times along an axis.
    fn repeat_elements(&mut self, x: Var, axis: usize, times: usize) -> Result<Var, Diag> {
        let mut shape = self.innermost_graph().ty(x).shape.clone();
        let mut apart = shape.clone();
        apart.insert(axis + 1, times);
        let kept = (0..apart.len()).filter(|&a| a != axis + 1).collect();
        let x = self.push_broadcast(x, &apart, kept)?;
        shape[axis] *= times;
        self.push_reshape(x, &shape)
    }

    /// Returns an array of a shape that has each element's index along an axis.
    fn push_axis_iota(&mut self, axis: usize, shape: &[usize]) -> Result<Var, Diag> {
        self.push(StructuralOp::from(Iota { shape: constant_dims(shape), axis, dtype: DType::I32 }), &[])
    }

    /// Returns for each axis of the array a bool tile that is true where the view's positions lie inside of the array,
    /// and has extent 1 along other axes. With it comes the axis of the loaded tile that it is about; `None` for an
    /// axis that the load drops.
    fn inside_array_masks(
        &mut self,
        of: OperandId,
        view: &View,
        args: &[Value],
    ) -> Result<Vec<(Option<usize>, Var)>, Diag> {
        let positions = self.push_view_position(of, view, args)?;
        let rank = view.shape().len();
        let (mut all, mut kept) = (vec![], 0);
        for (axis, own) in view_axis_by_array_axis(self.kernel, of, view).into_iter().enumerate() {
            let own = own.map(|own| view.axes[own]).filter(|own| own.kept);
            let (at, mut shape) = (own.map(|_| kept), vec![1; rank]);
            if let Some(own) = own {
                (shape[kept], kept) = (own.size, kept + 1);
            }
            let mut position = self.innermost_graph().broadcast(positions[axis], &shape)?;
            if let Some((at, own)) = at.zip(own) {
                let number = self.push_axis_iota(at, &shape)?;
                let stride = self.push_splat(Literal::int(DType::I32, own.stride), &shape);
                let distance = self.push(ScalarOp::Mul, &[number, stride])?;
                position = self.push(ScalarOp::Add, &[position, distance])?;
            }
            let n = self.sizes.shapes[of.index()][axis] as i64;
            let [zero, n] = [0, n].map(|n| self.push_splat(Literal::int(DType::I32, n), &shape));
            let not_before = self.push(ScalarOp::Ge, &[position, zero])?;
            let not_after = self.push(ScalarOp::Lt, &[position, n])?;
            all.push((at, self.push(ScalarOp::BitAnd, &[not_before, not_after])?));
        }
        Ok(all)
    }

    /// Returns a bool tile that is true where the positions of a loaded view along `axis` lie inside of the operand's
    /// array, and has extent 1 along other axes.
    pub(super) fn translate_valid(
        &mut self,
        of: OperandId,
        view: &View,
        axis: usize,
        inst: &Inst,
    ) -> Result<Var, Diag> {
        let inside = self.inside_array_masks(of, view, &inst.args)?;
        Ok(inside.into_iter().find(|(at, _)| *at == Some(axis)).expect("an axis of the view").1)
    }

    /// Reads an element of a prefetched table. Indices are clamped to the table, as `dynamic_slice` does.
    pub(super) fn translate_prefetch(&mut self, of: OperandId, args: &[Var]) -> Result<Var, Diag> {
        let table = self.var_in_innermost_graph(ValueKey::Memory(of));
        let Type { dtype, shape } = self.innermost_graph().ty(table).clone();
        if shape.contains(&0) {
            return Ok(self.innermost_graph().literal(Literal::int(dtype, 0)));
        }
        debug_assert!(args.iter().all(|&v| *self.innermost_graph().ty(v) == counter_type()));
        let window = PaddedWindow { starts: args.to_vec(), sizes: vec![1; shape.len()] };
        let x = self.push_window_read(table, &window)?;
        self.push_reshape(x, &[])
    }
}
