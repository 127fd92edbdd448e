//! Lines of StableHLO text: values with their types, operations in MLIR's generic form, and regions.
use pallas_ir::{DType, Literal, Type};
use std::fmt::Write;

/// A value of the text.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// `%3`, or `%3#1` for one of several results.
    pub name: String,
    pub ty: Type,
    /// The number that all elements are, where that is known.
    pub splat: Option<Literal>,
}

/// A page that is being written.
#[derive(Default)]
pub(super) struct Writer {
    text: String,
    depth: usize,
    /// Number of values so far; no name occurs twice.
    next: usize,
}

impl Writer {
    /// Writes a line at the present depth.
    pub(super) fn line(&mut self, line: &str) {
        self.text.extend(std::iter::repeat_n("  ", self.depth + 1));
        self.text += line;
        self.text.push('\n');
    }

    /// Puts another page and depth in place of the present ones; returns the text so far.
    pub(super) fn turn(&mut self, page: String, depth: usize) -> String {
        self.depth = depth;
        std::mem::replace(&mut self.text, page)
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("%{}", self.next - 1)
    }

    /// New values of these types, which a function or a region takes.
    pub(super) fn params(&mut self, types: &[Type]) -> Vec<Value> {
        types.iter().map(|ty| Value { name: self.fresh(), ty: ty.clone(), splat: None }).collect()
    }

    /// An operation with one result and without regions.
    pub(super) fn op(&mut self, name: &str, args: &[&Value], attributes: &[String], ty: Type) -> Value {
        self.operation(name, args, &[], attributes, &[ty]).remove(0)
    }

    /// An operation. Names without a dialect are StableHLO's.
    pub(super) fn operation(
        &mut self,
        name: &str,
        args: &[&Value],
        regions: &[String],
        attributes: &[String],
        gives: &[Type],
    ) -> Vec<Value> {
        let own = self.fresh();
        let mut line = match gives.len() {
            0 => String::new(),
            1 => format!("{own} = "),
            n => format!("{own}:{n} = "),
        };
        let dialect = if name.contains('.') { "" } else { "stablehlo." };
        let names: Vec<&str> = args.iter().map(|x| x.name.as_str()).collect();
        let types: Vec<String> = args.iter().map(|x| tensor(&x.ty)).collect();
        write!(line, "\"{dialect}{name}\"({})", names.join(", ")).expect("a string");
        if !regions.is_empty() {
            write!(line, " ({})", regions.join(", ")).expect("a string");
        }
        if !attributes.is_empty() {
            write!(line, " {{{}}}", attributes.join(", ")).expect("a string");
        }
        write!(line, " : ({}) -> {}", types.join(", "), results(gives)).expect("a string");
        self.line(&line);
        let name = |i: usize| if gives.len() == 1 { own.clone() } else { format!("{own}#{i}") };
        gives.iter().enumerate().map(|(i, ty)| Value { name: name(i), ty: ty.clone(), splat: None }).collect()
    }

    /// The text of a region that takes values of these types and returns what `write` makes of them. It may read
    /// values from outside.
    pub(super) fn region(&mut self, takes: &[Type], write: impl FnOnce(&mut Self, &[Value]) -> Vec<Value>) -> String {
        let params = self.params(takes);
        let depth = self.depth;
        let outer = self.turn(String::new(), depth + 1);
        let made = write(self, &params);
        self.operation("return", &made.iter().collect::<Vec<_>>(), &[], &[], &[]);
        let body = self.turn(outer, depth);
        self.framed(&params, &body)
    }

    /// A region with this body.
    pub(super) fn framed(&self, params: &[Value], body: &str) -> String {
        let margin = "  ".repeat(self.depth + 1);
        match params.is_empty() {
            true => format!("{{\n{body}{margin}}}"),
            false => format!("{{\n{margin}^bb0({}):\n{body}{margin}}}", typed(params)),
        }
    }

    /// An array with the same number everywhere.
    pub(super) fn constant(&mut self, x: Literal, shape: &[usize]) -> Value {
        let ty = Type::new(x.dtype, shape);
        let made = self.op("constant", &[], &[format!("value = dense<{}> : {}", number(x), tensor(&ty))], ty);
        Value { splat: Some(x), ..made }
    }

    /// A number of the type and shape of a value.
    pub(super) fn like(&mut self, value: &Value, x: f64) -> Value {
        self.constant(Literal::new(value.ty.dtype, x), &value.ty.shape)
    }

    /// An operation whose result has the type of its operand.
    pub(super) fn unary(&mut self, name: &str, x: &Value) -> Value {
        self.op(name, &[x], &[], x.ty.clone())
    }

    /// An operation whose result has the type of its operands.
    pub(super) fn binary(&mut self, name: &str, a: &Value, b: &Value) -> Value {
        self.op(name, &[a, b], &[], a.ty.clone())
    }

    /// A comparison of numbers: `LT`, `EQ` and so on.
    pub(super) fn compare(&mut self, direction: &str, a: &Value, b: &Value) -> Value {
        let kind = match a.ty.dtype {
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => "FLOAT",
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => "SIGNED",
            DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool => "UNSIGNED",
        };
        self.compare_as(kind, direction, a, b)
    }

    /// A comparison of this kind: `TOTALORDER` and so on.
    pub(super) fn compare_as(&mut self, kind: &str, direction: &str, a: &Value, b: &Value) -> Value {
        let attributes = [
            format!("compare_type = #stablehlo<comparison_type {kind}>"),
            format!("comparison_direction = #stablehlo<comparison_direction {direction}>"),
        ];
        self.op("compare", &[a, b], &attributes, Type::new(DType::Bool, &a.ty.shape[..]))
    }

    pub(super) fn select(&mut self, condition: &Value, a: &Value, b: &Value) -> Value {
        self.op("select", &[condition, a, b], &[], a.ty.clone())
    }

    /// The value with another shape of as many elements.
    pub(super) fn reshape(&mut self, x: &Value, shape: &[usize]) -> Value {
        if x.ty.shape == shape { x.clone() } else { self.op("reshape", &[x], &[], Type::new(x.ty.dtype, shape)) }
    }

    /// The value with another element type.
    pub(super) fn cast(&mut self, x: &Value, to: DType) -> Value {
        if x.ty.dtype == to { x.clone() } else { self.op("convert", &[x], &[], Type::new(to, &x.ty.shape[..])) }
    }
}

/// `%0: tensor<2xf32>, %1: tensor<i32>`
pub(super) fn typed(values: &[Value]) -> String {
    values.iter().map(|x| format!("{}: {}", x.name, tensor(&x.ty))).collect::<Vec<_>>().join(", ")
}

/// The results of an operation or a function: a type, or several in parentheses.
pub(super) fn results(types: &[Type]) -> String {
    match types {
        [ty] => tensor(ty),
        all => format!("({})", all.iter().map(tensor).collect::<Vec<_>>().join(", ")),
    }
}

/// MLIR's text of an array's type.
pub(super) fn tensor(ty: &Type) -> String {
    let extents: String = ty.shape.iter().map(|n| format!("{n}x")).collect();
    format!("tensor<{extents}{}>", element(ty.dtype))
}

fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::F16 => "f16",
        DType::Bf16 => "bf16",
        DType::I8 => "i8",
        DType::U8 => "ui8",
        DType::I16 => "i16",
        DType::U16 => "ui16",
        DType::I32 => "i32",
        DType::U32 => "ui32",
        DType::I64 => "i64",
        DType::U64 => "ui64",
        DType::Bool => "i1",
    }
}

/// A number as MLIR reads it: floats in full, infinities and NaNs by their bits.
fn number(x: Literal) -> String {
    if x.dtype == DType::Bool {
        return if x.bits != 0 { "true" } else { "false" }.into();
    }
    if !x.dtype.is_float() {
        return if x.dtype.is_signed() { x.as_i64().to_string() } else { x.bits.to_string() };
    }
    let value = x.as_f64();
    if !value.is_finite() {
        return format!("0x{:0width$X}", x.bits, width = 2 * x.dtype.bytes());
    }
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    }
}

/// `name = array<i64: 1, 2>`
pub(super) fn list<T: TryInto<i64> + Copy>(name: &str, items: &[T]) -> String {
    let all: Vec<String> = items.iter().map(|&n| n.try_into().map_or(0, |n| n).to_string()).collect();
    format!("{name} = array<i64{}{}>", if all.is_empty() { "" } else { ": " }, all.join(", "))
}

/// `name = 1 : i64`
pub(super) fn integer(name: &str, n: usize) -> String {
    format!("{name} = {n} : i64")
}
