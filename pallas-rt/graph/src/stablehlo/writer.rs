//! A writer of StableHLO operations, with new values as their results.
use super::operation::{HloAttributes, HloLine, HloOperation, HloRegion, HloValue};
use pallas_ir::{DType, Literal, Type};

/// The operation of StableHLO or Shardy for an identity operation of a graph. No method has a default.
pub(crate) trait IdentityHlo {
    /// Appends the operation with operand `x`; returns its result, or the operand if no operation stands for the
    /// identity.
    fn emit_stablehlo(&self, w: &mut HloWriter, x: &HloValue) -> HloValue;
}

/// A writer of operations to a list, that of a function or a region.
#[derive(Default)]
pub(crate) struct HloWriter {
    /// The operations so far.
    lines: Vec<HloLine>,
    /// Number of values so far, the next value's number; no number occurs twice.
    next: usize,
    /// Number of collectives so far.
    channels: usize,
    /// True if operations of CHLO, which HLO lacks, are replaced by others.
    pub without_chlo: bool,
    /// True if sharding annotations are written as operations of Shardy; otherwise they are left out.
    pub with_shardings: bool,
    /// The number of the current equation.
    pub label: usize,
}

impl HloWriter {
    /// Appends an operation or a comment.
    pub(crate) fn push_line(&mut self, line: HloLine) {
        self.lines.push(line);
    }

    /// Replaces the list of operations; returns the old one.
    pub(crate) fn replace_lines(&mut self, lines: Vec<HloLine>) -> Vec<HloLine> {
        std::mem::replace(&mut self.lines, lines)
    }

    fn fresh_value_number(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    /// Returns the channel number for a collective, different from those of all others; they start at 1.
    pub(crate) fn next_channel(&mut self) -> usize {
        self.channels += 1;
        self.channels
    }

    /// Returns new values of these types, as parameters of a function or a region.
    pub(crate) fn new_params(&mut self, types: &[Type]) -> Vec<HloValue> {
        types
            .iter()
            .map(|ty| HloValue { id: self.fresh_value_number(), part: None, ty: ty.clone(), splat: None })
            .collect()
    }

    /// Appends an operation with one result and without regions; returns the result.
    pub(crate) fn emit_op(
        &mut self,
        name: &'static str,
        args: &[&HloValue],
        attributes: HloAttributes,
        ty: Type,
    ) -> HloValue {
        self.emit_op_with_regions(name, args, vec![], attributes, &[ty]).remove(0)
    }

    /// Appends an operation with results of the types `gives`; returns them. Names without a dialect are StableHLO's.
    pub(crate) fn emit_op_with_regions(
        &mut self,
        name: &'static str,
        args: &[&HloValue],
        regions: Vec<HloRegion>,
        attributes: HloAttributes,
        gives: &[Type],
    ) -> Vec<HloValue> {
        let id = self.fresh_value_number();
        let part = |i: usize| if gives.len() == 1 { None } else { Some(i) };
        let results: Vec<HloValue> = gives
            .iter()
            .enumerate()
            .map(|(i, ty)| HloValue { id, part: part(i), ty: ty.clone(), splat: None })
            .collect();
        let args = args.iter().map(|&x| x.clone()).collect();
        let label = self.with_shardings.then_some(self.label);
        self.push_line(HloLine::Operation(HloOperation {
            name,
            args,
            regions,
            detail: attributes,
            results: results.clone(),
            label,
        }));
        results
    }

    /// Appends the operation that ends a region or a function and returns these values.
    pub(crate) fn emit_return(&mut self, name: &'static str, values: &[HloValue]) {
        self.emit_op_with_regions(name, &values.iter().collect::<Vec<_>>(), vec![], HloAttributes::None, &[]);
    }

    /// Returns a region with parameters of the types `param_types`; `write` appends its operations and returns its
    /// results.
    pub(crate) fn build_region(
        &mut self,
        param_types: &[Type],
        write: impl FnOnce(&mut Self, &[HloValue]) -> Vec<HloValue>,
    ) -> HloRegion {
        let params = self.new_params(param_types);
        let outer = self.replace_lines(vec![]);
        let made = write(self, &params);
        self.emit_return("return", &made);
        HloRegion { params, lines: self.replace_lines(outer) }
    }

    /// Appends an array whose elements all are `x`.
    pub(crate) fn emit_constant(&mut self, x: Literal, shape: &[usize]) -> HloValue {
        let made = self.emit_op("constant", &[], HloAttributes::Constant(x), Type::new(x.dtype, shape));
        HloValue { splat: Some(x), ..made }
    }

    /// Appends the constant `n` as an `i32` scalar.
    pub(crate) fn emit_index_constant(&mut self, n: usize) -> HloValue {
        self.emit_constant(Literal::int(DType::I32, n as i64), &[])
    }

    /// Appends a constant with the type and shape of a value, all of whose elements are `x`.
    pub(crate) fn emit_constant_like(&mut self, value: &HloValue, x: f64) -> HloValue {
        self.emit_constant(Literal::new(value.ty.dtype, x), &value.ty.shape)
    }

    /// Appends an operation whose result has the type of its operand.
    pub(crate) fn emit_unary(&mut self, name: &'static str, x: &HloValue) -> HloValue {
        self.emit_op(name, &[x], HloAttributes::None, x.ty.clone())
    }

    /// Appends an operation whose result has the type of its operands.
    pub(crate) fn emit_binary(&mut self, name: &'static str, a: &HloValue, b: &HloValue) -> HloValue {
        self.emit_op(name, &[a, b], HloAttributes::None, a.ty.clone())
    }

    /// Appends a comparison in the kind of order that the element type has; `direction` is `LT`, `EQ` and so on.
    pub(crate) fn emit_comparison(&mut self, direction: &'static str, a: &HloValue, b: &HloValue) -> HloValue {
        let kind = match a.ty.dtype {
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => "FLOAT",
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => "SIGNED",
            DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool => "UNSIGNED",
        };
        self.emit_comparison_of_kind(kind, direction, a, b)
    }

    /// Appends a comparison in this kind of order, such as `TOTALORDER`.
    pub(crate) fn emit_comparison_of_kind(
        &mut self,
        order_kind: &'static str,
        direction: &'static str,
        a: &HloValue,
        b: &HloValue,
    ) -> HloValue {
        self.emit_op(
            "compare",
            &[a, b],
            HloAttributes::Compare { kind: order_kind, direction },
            Type::new(DType::Bool, &a.ty.shape[..]),
        )
    }

    pub(crate) fn emit_select(&mut self, condition: &HloValue, a: &HloValue, b: &HloValue) -> HloValue {
        self.emit_op("select", &[condition, a, b], HloAttributes::None, a.ty.clone())
    }

    /// Appends the slice of an array from `start` up to `limit` along each axis.
    pub(crate) fn emit_slice(&mut self, x: &HloValue, start: Vec<i64>, limit: Vec<i64>) -> HloValue {
        let shape: Vec<usize> = start.iter().zip(&limit).map(|(from, to)| (to - from) as usize).collect();
        let detail = HloAttributes::Slice { stride: vec![1; start.len()], start, limit };
        self.emit_op("slice", &[x], detail, Type::new(x.ty.dtype, shape))
    }

    /// Appends a reshape; returns `x` itself if it has the shape.
    pub(crate) fn emit_reshape(&mut self, x: &HloValue, shape: &[usize]) -> HloValue {
        if x.ty.shape == shape {
            x.clone()
        } else {
            self.emit_op("reshape", &[x], HloAttributes::None, Type::new(x.ty.dtype, shape))
        }
    }

    /// Appends a cast; returns `x` itself if it has the type.
    pub(crate) fn emit_cast(&mut self, x: &HloValue, to: DType) -> HloValue {
        if x.ty.dtype == to {
            x.clone()
        } else {
            self.emit_op("convert", &[x], HloAttributes::None, Type::new(to, &x.ty.shape[..]))
        }
    }
}
