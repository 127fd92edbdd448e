//! Makes operations of StableHLO, with new values as their results.
use super::operation::{Detail, HloRegion, Line, Operation, Value};
use pallas_ir::{DType, Literal, Type};

/// The operation of StableHLO or Shardy for an identity. No method has a default.
pub(crate) trait IdentityHlo {
    /// Writes it for this operand; returns its result, which is the operand if there is no operation for it.
    fn stablehlo(&self, w: &mut Writer, x: &Value) -> Value;
}

/// A list of operations that is being made.
#[derive(Default)]
pub(crate) struct Writer {
    lines: Vec<Line>,
    /// Number of values so far; no number occurs twice.
    next: usize,
    /// Number of exchanges so far.
    channels: usize,
    /// True if only operations that HLO has too are made, which lacks those of CHLO.
    pub without_chlo: bool,
    /// True if annotations are operations of Shardy; otherwise they leave nothing.
    pub with_shardings: bool,
    /// The number of the present equation.
    pub label: usize,
}

impl Writer {
    /// Appends an entry.
    pub(crate) fn line(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// Puts another list in place of the present one, which is returned.
    pub(crate) fn turn(&mut self, lines: Vec<Line>) -> Vec<Line> {
        std::mem::replace(&mut self.lines, lines)
    }

    fn fresh(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    /// A channel that no other exchange has; they count from 1.
    pub(crate) fn channel(&mut self) -> usize {
        self.channels += 1;
        self.channels
    }

    /// New values of these types, which a function or a region takes.
    pub(crate) fn params(&mut self, types: &[Type]) -> Vec<Value> {
        types.iter().map(|ty| Value { id: self.fresh(), part: None, ty: ty.clone(), splat: None }).collect()
    }

    /// An operation with one result and without regions.
    pub(crate) fn op(&mut self, name: &'static str, args: &[&Value], detail: Detail, ty: Type) -> Value {
        self.operation(name, args, vec![], detail, &[ty]).remove(0)
    }

    /// An operation. Names without a dialect are StableHLO's.
    pub(crate) fn operation(
        &mut self,
        name: &'static str,
        args: &[&Value],
        regions: Vec<HloRegion>,
        detail: Detail,
        gives: &[Type],
    ) -> Vec<Value> {
        let id = self.fresh();
        let part = |i: usize| if gives.len() == 1 { None } else { Some(i) };
        let results: Vec<Value> =
            gives.iter().enumerate().map(|(i, ty)| Value { id, part: part(i), ty: ty.clone(), splat: None }).collect();
        let args = args.iter().map(|&x| x.clone()).collect();
        let label = self.with_shardings.then_some(self.label);
        self.line(Line::Operation(Operation { name, args, regions, detail, results: results.clone(), label }));
        results
    }

    /// The end of a region or a function.
    pub(crate) fn end(&mut self, name: &'static str, values: &[Value]) {
        self.operation(name, &values.iter().collect::<Vec<_>>(), vec![], Detail::None, &[]);
    }

    /// A region that takes values of these types and returns what `write` makes of them.
    pub(crate) fn region(
        &mut self,
        takes: &[Type],
        write: impl FnOnce(&mut Self, &[Value]) -> Vec<Value>,
    ) -> HloRegion {
        let params = self.params(takes);
        let outer = self.turn(vec![]);
        let made = write(self, &params);
        self.end("return", &made);
        HloRegion { params, lines: self.turn(outer) }
    }

    /// An array with the same number everywhere.
    pub(crate) fn constant(&mut self, x: Literal, shape: &[usize]) -> Value {
        let made = self.op("constant", &[], Detail::Constant(x), Type::new(x.dtype, shape));
        Value { splat: Some(x), ..made }
    }

    /// An `i32` scalar.
    pub(crate) fn position(&mut self, n: usize) -> Value {
        self.constant(Literal::int(DType::I32, n as i64), &[])
    }

    /// A number of the type and shape of a value.
    pub(crate) fn like(&mut self, value: &Value, x: f64) -> Value {
        self.constant(Literal::new(value.ty.dtype, x), &value.ty.shape)
    }

    /// An operation whose result has the type of its operand.
    pub(crate) fn unary(&mut self, name: &'static str, x: &Value) -> Value {
        self.op(name, &[x], Detail::None, x.ty.clone())
    }

    /// An operation whose result has the type of its operands.
    pub(crate) fn binary(&mut self, name: &'static str, a: &Value, b: &Value) -> Value {
        self.op(name, &[a, b], Detail::None, a.ty.clone())
    }

    /// A comparison of numbers: `LT`, `EQ` and so on.
    pub(crate) fn compare(&mut self, direction: &'static str, a: &Value, b: &Value) -> Value {
        let kind = match a.ty.dtype {
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => "FLOAT",
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => "SIGNED",
            DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool => "UNSIGNED",
        };
        self.compare_as(kind, direction, a, b)
    }

    /// A comparison of this kind: `TOTALORDER` and so on.
    pub(crate) fn compare_as(&mut self, kind: &'static str, direction: &'static str, a: &Value, b: &Value) -> Value {
        self.op("compare", &[a, b], Detail::Compare { kind, direction }, Type::new(DType::Bool, &a.ty.shape[..]))
    }

    pub(crate) fn select(&mut self, condition: &Value, a: &Value, b: &Value) -> Value {
        self.op("select", &[condition, a, b], Detail::None, a.ty.clone())
    }

    /// The elements of an array from `start` up to `limit` along each axis.
    pub(crate) fn part(&mut self, x: &Value, start: Vec<i64>, limit: Vec<i64>) -> Value {
        let shape: Vec<usize> = start.iter().zip(&limit).map(|(from, to)| (to - from) as usize).collect();
        let detail = Detail::Slice { stride: vec![1; start.len()], start, limit };
        self.op("slice", &[x], detail, Type::new(x.ty.dtype, shape))
    }

    /// The value with another shape of as many elements.
    pub(crate) fn reshape(&mut self, x: &Value, shape: &[usize]) -> Value {
        if x.ty.shape == shape {
            x.clone()
        } else {
            self.op("reshape", &[x], Detail::None, Type::new(x.ty.dtype, shape))
        }
    }

    /// The value with another element type.
    pub(crate) fn cast(&mut self, x: &Value, to: DType) -> Value {
        if x.ty.dtype == to {
            x.clone()
        } else {
            self.op("convert", &[x], Detail::None, Type::new(to, &x.ty.shape[..]))
        }
    }
}
