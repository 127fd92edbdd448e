//! Translates elementwise instructions, and folds of their rows or columns, to chains.
use super::super::super::{convert, fold, strips};
use super::super::step::{
    ChainFold, ChainInput, ChainLink, ElementwiseChain, ElementwiseOp, FoldDirection, LinkOperand, Step,
};
use super::StepBuilder;
use pallas_ir::scalar::SignatureType;
use pallas_ir::{DType, Inst, Literal, ScalarOp, Value};
use std::collections::HashMap;

/// A chain to which instructions may still be added.
pub(super) struct ChainBuilder {
    chain: ElementwiseChain,
    /// For each link the value that it computes, if the kernel names it.
    values: Vec<Option<Value>>,
    /// For each link the number of links and sinks of the chain that use its result.
    inside: Vec<usize>,
    /// Position of each input in the chain's list.
    inputs: HashMap<ChainInput, usize>,
    /// Values that the chain defines: each with its link, or `None` for a fold.
    made: HashMap<Value, Option<usize>>,
}

impl ChainBuilder {
    fn new(shape: &[usize]) -> ChainBuilder {
        let chain = ElementwiseChain { shape: shape.to_vec(), ..ElementwiseChain::default() };
        ChainBuilder { chain, values: vec![], inside: vec![], inputs: HashMap::new(), made: HashMap::new() }
    }
    /// Returns true if the chain computes the value, by a link or by a fold.
    pub(super) fn defines(&self, v: Value) -> bool {
        self.made.contains_key(&v)
    }
    /// Returns true if the value is a fold of the chain, which is available only after the chain has run.
    fn is_fold_result(&self, v: Value) -> bool {
        self.made.get(&v) == Some(&None)
    }
    /// Number of memory addresses that the chain needs so far: one for each input that is no constant, and for each
    /// fold.
    fn address_count(&self) -> usize {
        self.chain.input_values().count() + self.chain.sinks.len()
    }
    /// Returns the link that computes the value, if one does.
    pub(super) fn find_link(&self, v: Value) -> Option<usize> {
        self.made.get(&v).copied().flatten()
    }
}

/// Maximum number of inputs, results and folds with which a chain goes on after a store of its results; above it the
/// chain ends at the store, since the addresses would no longer fit the registers.
const MAX_CHAIN_ADDRESSES: usize = 8;

/// Minimum number of columns with which a fold of columns is part of a chain, row by row with vectors; a fold of fewer
/// columns is a step of its own.
const MIN_CHAIN_FOLD_COLUMNS: usize = 8;

impl StepBuilder<'_> {
    /// Translates a scalar operation on tiles or scalars.
    pub(super) fn translate_scalar(&mut self, op: ScalarOp, inst: &Inst) {
        let to = inst.results[0];
        if op == ScalarOp::Add && self.translate_accumulation(inst) {
            return;
        }
        self.add_elementwise(ElementwiseOp::Scalar(op), &inst.args, to);
    }

    /// Adds an elementwise operation to the open chain; on scalars it becomes a step of its own.
    pub(super) fn add_elementwise(&mut self, op: ElementwiseOp, args: &[Value], to: Value) {
        if self.kernel.ty(to).is_scalar() {
            self.emit_pending_values(args);
            let dtypes: Vec<DType> = args.iter().map(|&v| self.dtype(v)).collect();
            return self.push(Step::Scalar {
                strip: strip_function(op, &dtypes, self.dtype(to)),
                args: args.to_vec(),
                to,
            });
        }
        self.open_compatible_chain(args, to);
        let args: Vec<_> = args.iter().map(|&v| (self.find_or_add_link_operand(v), self.dtype(v))).collect();
        self.append_link(op, args, self.dtype(to), Some(to));
    }

    /// Makes sure that the open chain has the shape of `to` and can use `args`, by ending it and opening another if
    /// necessary.
    fn open_compatible_chain(&mut self, args: &[Value], to: Value) {
        let shape = self.shape(to);
        let late = self.innermost_region().late.len();
        let leave = |g: &ChainBuilder| {
            g.chain.shape != shape || late > 0 && g.address_count() + late + args.len() > MAX_CHAIN_ADDRESSES
        };
        if self.innermost_region().chain.as_ref().is_some_and(leave) {
            self.flush_chain();
        }
        // An operand of the chain that is stretched, or folded, can't be read strip by strip while it is being made.
        let growing = self.open.last().and_then(|o| o.chain.as_ref());
        let folded = |v: Value| growing.is_some_and(|g| g.is_fold_result(v));
        let later = |v: &&Value| self.kernel.ty(**v).shape != shape || folded(**v);
        let outside: Vec<Value> = args.iter().filter(later).copied().collect();
        self.emit_pending_values(&outside);
        let waiting: Vec<Value> = args.iter().filter(|v| self.is_pending_product(**v)).copied().collect();
        self.emit_pending_values(&waiting);
        self.innermost_region().chain.get_or_insert_with(|| ChainBuilder::new(shape));
    }

    /// Returns the operand by which a link of the open chain reads a value: an earlier link, or an input, which is
    /// added if it is new.
    fn find_or_add_link_operand(&mut self, v: Value) -> LinkOperand {
        let growing = self.innermost_region().chain.as_mut().expect("joined before");
        if let Some(at) = growing.find_link(v) {
            growing.inside[at] += 1;
            return LinkOperand::Link(at);
        }
        let constant = self.constants[v.index()];
        self.find_or_add_input(constant.map_or(ChainInput::Value(v), ChainInput::Constant))
    }
    /// Returns an input of the open chain as an operand of a link; it is added if it is new.
    fn find_or_add_input(&mut self, input: ChainInput) -> LinkOperand {
        let ChainBuilder { chain, inputs, .. } = self.innermost_region().chain.as_mut().expect("joined before");
        let at = *inputs.entry(input).or_insert_with(|| {
            chain.inputs.push(input);
            chain.inputs.len() - 1
        });
        LinkOperand::Input(at)
    }
    /// Appends an operation with results of type `dtype` to the open chain, and returns its result as an operand of
    /// later links. `value` is the kernel's value that it computes, `None` for an intermediate result.
    fn append_link(
        &mut self,
        op: ElementwiseOp,
        args: Vec<(LinkOperand, DType)>,
        dtype: DType,
        value: Option<Value>,
    ) -> LinkOperand {
        let growing = self.innermost_region().chain.as_mut().expect("joined before");
        let dtypes: Vec<DType> = args.iter().map(|a| a.1).collect();
        let strip = strip_function(op, &dtypes, dtype);
        let link = ChainLink { op, strip, args, dtype, buffer: 0, output: None, aside: false, passing: false };
        growing.chain.links.push(link);
        growing.made.extend(value.map(|v| (v, Some(growing.values.len()))));
        growing.values.push(value);
        growing.inside.push(0);
        LinkOperand::Link(growing.values.len() - 1)
    }

    /// Adds a fold of rows or columns to the chain that computes its operand, or to a new chain. Returns false for
    /// folds of other axes.
    pub(super) fn add_fold(&mut self, op: ScalarOp, axes: &[usize], inst: &Inst) -> bool {
        let (from, to) = (inst.args[0], inst.results[0]);
        let (shape, dtype) = (self.shape(from), self.dtype(from));
        let Some((&columns, outer)) = shape.split_last().filter(|_| !shape.contains(&0)) else { return false };
        let along = if *axes == [outer.len()] {
            FoldDirection::Rows
        } else if !outer.is_empty() && axes.iter().copied().eq(0..outer.len()) && columns >= MIN_CHAIN_FOLD_COLUMNS {
            FoldDirection::Columns
        } else {
            return false;
        };
        let reads = |g: &ChainBuilder| g.find_link(from).is_some() || g.inputs.contains_key(&ChainInput::Value(from));
        if !self.innermost_region().chain.as_ref().is_some_and(reads) {
            self.flush_chain();
        }
        self.open_compatible_chain(&[from], from);
        let of = self.find_or_add_link_operand(from);
        let sink = ChainFold {
            along,
            op,
            fold: fold::fold_functions(op, dtype),
            start: op.neutral(dtype).expect("the shape rule admits monoids only"),
            of,
            dtype,
            to,
        };
        let growing = self.innermost_region().chain.as_mut().expect("joined before");
        growing.made.insert(to, None);
        growing.chain.sinks.push(sink);
        true
    }

    /// Translates `x^exponent` to repeated squaring, as the interpreter computes it.
    pub(super) fn translate_powi(&mut self, exponent: i32, inst: &Inst) {
        let (x, to) = (inst.args[0], inst.results[0]);
        let dtype = self.dtype(x);
        if self.kernel.ty(to).is_scalar() {
            // A chain over a single element.
            self.emit_pending_values(&[x]);
        }
        self.open_compatible_chain(&[x], to);
        let (mul, div) = (ElementwiseOp::Scalar(ScalarOp::Mul), ElementwiseOp::Scalar(ScalarOp::Div));
        let one = self.find_or_add_input(ChainInput::Constant(Literal::new(dtype, 1.0)));
        let mut square = self.find_or_add_link_operand(x);
        let (mut y, mut left) = (one, exponent.unsigned_abs());
        while left > 0 {
            let last = left == 1 && exponent > 0;
            if left & 1 == 1 {
                y = self.append_link(mul, vec![(y, dtype), (square, dtype)], dtype, last.then_some(to));
            }
            left >>= 1;
            if left > 0 {
                square = self.append_link(mul, vec![(square, dtype), (square, dtype)], dtype, None);
            }
        }
        if exponent <= 0 {
            self.append_link(div, vec![(one, dtype), (y, dtype)], dtype, Some(to));
        }
        if self.kernel.ty(to).is_scalar() {
            self.flush_chain();
        }
    }

    /// Ends the open chain and emits it, followed by the stores of its results.
    pub(super) fn flush_chain(&mut self) {
        let Some(ChainBuilder { mut chain, values, inside, .. }) = self.innermost_region().chain.take() else { return };
        let region = self.innermost_region().region;
        for (i, value) in values.iter().enumerate() {
            let Some(v) = *value else { continue };
            if self.uses[v.index()] > inside[i] {
                chain.links[i].output = Some(v);
                self.own[v.index()] = Some(region);
            }
        }
        let types = chain.links.iter().flat_map(|l| l.args.iter().map(|a| a.1).chain([l.dtype]));
        let bytes = types.chain(chain.sinks.iter().map(|s| s.dtype)).map(DType::bytes);
        chain.widest = bytes.max().unwrap_or(8);
        assign_buffers(&mut chain);
        self.push(Step::Chain(chain));
        let late = std::mem::take(&mut self.innermost_region().late);
        self.innermost_region().steps.extend(late);
    }
}

/// Returns the loop that applies an operation to operands and a result of these types.
fn strip_function(op: ElementwiseOp, args: &[DType], to: DType) -> strips::StripFn {
    match op {
        ElementwiseOp::Scalar(op) => {
            let open = op.row().operands.iter().position(|(_, t)| *t == SignatureType::T).unwrap_or(0);
            strips::scalar_strip_fn(op, args[open])
        }
        ElementwiseOp::Cast => convert::cast_strip_fn(args[0], to),
        ElementwiseOp::Bitcast => convert::bitcast_strip_fn(args[0], to),
    }
}

/// Assigns each link a strip buffer; a buffer is used again after the last use of what it holds.
fn assign_buffers(chain: &mut ElementwiseChain) {
    let mut last: Vec<usize> = (0..chain.links.len()).collect();
    for (i, link) in chain.links.iter().enumerate() {
        for (source, _) in &link.args {
            if let LinkOperand::Link(k) = source {
                last[*k] = last[*k].max(i);
            }
        }
        // Results are copied out when the whole strip is done.
        if link.output.is_some() {
            last[i] = usize::MAX;
        }
    }
    for sink in &chain.sinks {
        if let LinkOperand::Link(k) = sink.of {
            last[k] = usize::MAX;
        }
    }
    let (mut free, mut total) = (vec![], 0);
    for i in 0..chain.links.len() {
        chain.links[i].buffer = free.pop().unwrap_or_else(|| {
            total += 1;
            total - 1
        });
        // Values last read here: the link itself, if nothing reads it, and operands of the link.
        let operands = chain.links[i].args.iter().filter_map(|(source, _)| match source {
            LinkOperand::Link(k) => Some(*k),
            LinkOperand::Input(_) => None,
        });
        let mut ended: Vec<usize> = operands.chain([i]).filter(|&k| last[k] == i).collect();
        ended.sort_unstable();
        ended.dedup();
        free.extend(ended.into_iter().map(|k| chain.links[k].buffer));
    }
    chain.buffers = total;
}
