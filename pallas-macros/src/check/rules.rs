//! Functions and methods of the kernel language, by name: reads their arguments and applies pallas-ir's shape rules.
//!
//! A function is taken for the prelude's unless the body declares another one of its name.
use super::body::Walk;
use super::places::{bare, root};
use super::value::{Span, Value};
use pallas_ir::dim::Verdict;
use pallas_ir::scalar::Surface;
use pallas_ir::structural::{Broadcast, Concat, Dot, Iota, Reshape, Slice, Transpose};
use pallas_ir::{DType, Diag, Dim, ScalarOp, diag};
use syn::{Expr, ExprCall, ExprMethodCall};

/// Element type for rules of shapes, which do not depend on it.
const ANY: DType = DType::F32;

/// Expands a kind of argument to its statically known value, if any, or to the operand and its expression.
macro_rules! argument {
    (Axis $arg:ident $rank:ident) => {
        $arg.0.axis()
    };
    (Axes $arg:ident $rank:ident) => {
        $arg.0.axes($rank)
    };
    (Size $arg:ident $rank:ident) => {
        Some($arg.0.size())
    };
    (Sizes $arg:ident $rank:ident) => {
        $arg.0.sizes()
    };
    (Offset $arg:ident $rank:ident) => {
        $arg.0.size().as_number()
    };
    (Index $arg:ident $rank:ident) => {
        tile($arg.0).map(|shape| (shape, $arg.1))
    };
    (Value $arg:ident $rank:ident) => {
        $arg.0.operand().map(|shape| (shape, $arg.1))
    };
    (Index $arg:ident) => {
        Some($arg)
    };
    (Value $arg:ident) => {
        Some($arg)
    };
    ($Kind:ident $arg:ident) => {
        None
    };
}

impl Walk {
    /// The name of a function, if the callee is one of the language.
    fn function(&mut self, callee: &Expr) -> Option<String> {
        let Expr::Path(p) = bare(callee) else { return None };
        let segments = &p.path.segments;
        let last = &segments.last()?.ident;
        let ours = match segments.len() {
            1 => {
                self.called.insert(last.to_string());
                self.variables.get(last).is_none() && !self.unseen.covers(last)
            }
            _ => segments[segments.len() - 2].ident == "prelude",
        };
        (ours && p.qself.is_none()).then(|| last.to_string())
    }

    /// The value of a function call.
    pub(super) fn call(&mut self, c: &ExprCall) -> Value {
        let args: Vec<Value> = c.args.iter().map(|a| self.expr(a)).collect();
        let exprs: Vec<&Expr> = c.args.iter().collect();
        let Some(name) = self.function(&c.func) else { return Value::Unknown };
        let at = &c.func;
        match (name.as_str(), &args[..]) {
            ("dot", [Value::Tile(a), Value::Tile(b)]) => {
                let rank = a.len();
                let op = if rank <= 2 || rank != b.len() {
                    Dot::matmul(ANY)
                } else {
                    let batch = (0..rank - 2).map(|axis| (axis, axis)).collect();
                    Dot { batch, contract: vec![(rank - 1, rank - 2)], acc: ANY }
                };
                self.structural(op, &[a, b], at, &exprs)
            }
            ("dot_general", [Value::Tile(a), Value::Tile(b), contract, batch]) => match (pairs(contract), pairs(batch))
            {
                (Some(contract), Some(batch)) => {
                    self.structural(Dot { batch, contract, acc: ANY }, &[a, b], at, &exprs)
                }
                _ => Value::Unknown,
            },
            ("select", [mask, a, b]) => self.elementwise(ScalarOp::Select, &[mask, a, b], at, &exprs),
            ("maximum", [a, b]) => self.elementwise(ScalarOp::Maximum, &[a, b], at, &exprs),
            ("minimum", [a, b]) => self.elementwise(ScalarOp::Minimum, &[a, b], at, &exprs),
            ("scalar", [_]) | ("cdiv", [_, _]) => Value::scalar(),
            ("full", [to, x]) => match (to.sizes(), x.operand()) {
                (Some(to), Some(x)) => self.structural(Broadcast::to(to), &[x], at, &exprs[1..]),
                (to, _) => to.map_or(Value::Unknown, Value::Tile),
            },
            ("zeros", [to]) => to.sizes().map_or(Value::Unknown, Value::Tile),
            ("iota", [shape, axis]) => match (shape.sizes(), axis.axis()) {
                (Some(shape), Some(axis)) => self.structural(Iota { shape, axis, dtype: ANY }, &[], at, &[]),
                (shape, _) => shape.map_or(Value::Unknown, Value::Tile),
            },
            ("concat", [Value::Several(tiles), axis]) => {
                let shapes: Option<Vec<&[Dim]>> = tiles.iter().map(tile).collect();
                let (Some(shapes), Some(axis)) = (shapes, axis.axis()) else { return Value::Unknown };
                let written: Vec<&Expr> = match bare(exprs[0]) {
                    Expr::Array(a) => a.elems.iter().collect(),
                    _ => vec![],
                };
                self.structural(Concat { axis }, &shapes, at, &written)
            }
            ("tril" | "triu", [rows, columns, _]) => Value::Tile(vec![rows.size(), columns.size()]),
            ("program_id" | "num_programs", [axis]) => {
                if let (Some(axis), Some(axes)) = (axis.axis(), self.axes)
                    && axis >= axes
                {
                    self.report(&diag::grid_axis(axis, axes), exprs[0], &[]);
                }
                Value::scalar()
            }
            ("ds", [start, size]) => span(start, size, &Value::number(1)),
            ("strided", [start, size, stride]) => span(start, size, stride),
            _ => Value::Unknown,
        }
    }

    /// The value of a method call.
    pub(super) fn method(&mut self, m: &ExprMethodCall) -> Value {
        let receiver = self.expr(&m.receiver);
        let args: Vec<Value> = m.args.iter().map(|a| self.expr(a)).collect();
        let known = match receiver {
            Value::View(view) => Some(self.view_method(view, m, &args)),
            Value::Prefetch(name, rank) => Some(self.prefetched(&name, rank, m, &args)),
            Value::Tile(ref dims) => self.tile_method(dims, m, &args),
            Value::Several(ref items) if m.method == "len" => Some(Value::number(items.len() as i64)),
            ref host if host.is_host() => host_method(host, m, &args),
            _ => None,
        };
        known.unwrap_or_else(|| {
            // An unknown method may borrow its receiver mutably.
            if let Some(name) = root(&m.receiver) {
                self.variables.forget(name);
            }
            Value::Unknown
        })
    }
    /// The value of a method of a tile or a scalar; `None` if the language has none of this name.
    fn tile_method(&mut self, dims: &[Dim], m: &ExprMethodCall, args: &[Value]) -> Option<Value> {
        let name = m.method.to_string();
        let exprs: Vec<&Expr> = std::iter::once(&*m.receiver).chain(&m.args).collect();
        let same = || Value::Tile(dims.to_vec());
        match (name.as_str(), args) {
            ("cast" | "bitcast" | "clone" | "tile", []) | ("powi", [_]) => return Some(same()),
            ("broadcast", [to]) if dims.is_empty() => {
                let shape = to.sizes().map(|to| self.structural(Broadcast::to(to), &[dims], &m.method, &exprs));
                return Some(shape.unwrap_or(Value::Unknown));
            }
            _ => {}
        }
        // Rust's name of the logarithm.
        let name = if name == "ln" { "log" } else { name.as_str() };
        if let Some(op) =
            ScalarOp::parse(name).filter(|op| op.row().surface == Surface::Method && op.arity() == exprs.len())
        {
            let receiver = same();
            let values: Vec<&Value> = std::iter::once(&receiver).chain(args).collect();
            return Some(self.elementwise(op, &values, &m.method, &exprs));
        }
        if dims.is_empty() {
            // Scalars have no other method.
            return None;
        }
        self.shape_method(dims, m, args, &exprs)
    }
    /// The value of a method that changes shapes; `None` if there is none of this name.
    fn shape_method(&mut self, dims: &[Dim], m: &ExprMethodCall, args: &[Value], exprs: &[&Expr]) -> Option<Value> {
        let (name, rank) = (m.method.to_string(), dims.len());
        let given: Vec<(&Value, &Expr)> = args.iter().zip(exprs[1..].iter().copied()).collect();
        /// Expands a method that an operation's file declares to its check, if the names are equal. An unknown argument
        /// makes the result unknown.
        macro_rules! declared {
            ($doc:tt $name:ident $Class:ident ($($arg:ident: $Kind:ident),*) $Element:ident { $op:expr }) => {
                if let (stringify!($name), [$($arg),*]) = (name.as_str(), &given[..]) {
                    $(let Some($arg) = argument!($Kind $arg rank) else { return Some(Value::Unknown) };)*
                    let operands = [Some((dims, exprs[0])) $(, argument!($Kind $arg))*];
                    let (shapes, written): (Vec<&[Dim]>, Vec<&Expr>) = operands.into_iter().flatten().unzip();
                    return Some(self.structural($op, &shapes, &m.method, &written));
                }
            };
        }
        pallas_ir::for_each_structural_method! { declared }
        // Unknown arguments make an unknown result.
        Some(match (name.as_str(), args) {
            ("shape", []) => Value::Several(dims.iter().cloned().map(Value::Size).collect()),
            ("rank", []) => Value::number(rank as i64),
            ("t", []) => {
                let mut axes: Vec<usize> = (0..rank.max(2)).collect();
                axes.swap(rank.max(2) - 2, rank.max(2) - 1);
                self.structural(Transpose { axes }, &[dims], &m.method, exprs)
            }
            ("expand", [axis]) => match axis.axis() {
                Some(axis) if axis <= rank => {
                    let mut dims = dims.to_vec();
                    dims.insert(axis, Dim::from(1i64));
                    Value::Tile(dims)
                }
                Some(axis) => self.refuse(&diag::new_axis(axis, rank), m),
                None => Value::Unknown,
            },
            ("squeeze", [axis]) => match axis.axis() {
                Some(axis) if dims.get(axis).is_some_and(|d| self.may_be_one(d)) => {
                    let mut dims = dims.to_vec();
                    dims.remove(axis);
                    Value::Tile(dims)
                }
                Some(axis) => self.refuse(&diag::kept_axis(axis, diag::shape(dims)), m),
                None => Value::Unknown,
            },
            ("at", [index]) => self.part(dims, index, exprs[1]).map_or(Value::Unknown, Value::Tile),
            ("item", []) => self.structural(Reshape { to: vec![] }, &[dims], &m.method, exprs),
            ("slice", [start, size]) => {
                let every = Value::Several(vec![Value::number(1); rank]);
                self.slice(dims, [start, size, &every], m, exprs)
            }
            ("strided_slice", [start, size, stride]) => self.slice(dims, [start, size, stride], m, exprs),
            ("one_hot", [depth]) => {
                let mut marks = vec![Dim::from(1i64); rank];
                marks[rank - 1] = depth.size();
                let (index, marks) = (Value::Tile(dims.to_vec()), Value::Tile(marks));
                self.elementwise(ScalarOp::Eq, &[&index, &marks], &m.method, exprs)
            }
            _ => return None,
        })
    }
    fn may_be_one(&self, d: &Dim) -> bool {
        self.facts.same(d, &Dim::from(1i64)) != Verdict::No
    }
    /// Reports a mistake of a method call.
    fn refuse(&mut self, mistake: &Diag, m: &ExprMethodCall) -> Value {
        self.report(mistake, &m.method, &[]);
        Value::Unknown
    }
    /// The value of a slice with these starts, sizes and strides.
    fn slice(&mut self, dims: &[Dim], parts: [&Value; 3], m: &ExprMethodCall, exprs: &[&Expr]) -> Value {
        let [Some(start), Some(size), Some(stride)] = parts.map(Value::sizes) else { return Value::Unknown };
        let numbers = |sizes: &[Dim]| sizes.iter().map(Dim::as_number).collect::<Option<Vec<i64>>>();
        match (numbers(&start), numbers(&stride)) {
            (Some(start), Some(stride)) => self.structural(Slice { start, size, stride }, &[dims], &m.method, exprs),
            _ if [&start, &size, &stride].iter().any(|part| part.len() != dims.len()) => Value::Tile(size),
            _ => {
                let part = |axis: usize| [&start[axis], &size[axis], &stride[axis]];
                let mut axes = 0..dims.len();
                let outside = axes.find_map(|axis| Slice::within(dims, axis, part(axis), &self.facts).err());
                outside.map_or(Value::Tile(size.clone()), |mistake| self.refuse(&mistake, m))
            }
        }
    }
}

fn tile(v: &Value) -> Option<&[Dim]> {
    match v {
        Value::Tile(dims) => Some(dims),
        _ => None,
    }
}

/// The pairs of axes in an expression such as `&[(1, 0)]`.
fn pairs(v: &Value) -> Option<Vec<(usize, usize)>> {
    let pair = |v: &Value| match v {
        Value::Several(two) if two.len() == 2 => Some((two[0].axis()?, two[1].axis()?)),
        _ => None,
    };
    match v {
        Value::Several(items) => items.iter().map(pair).collect(),
        _ => None,
    }
}

fn span(start: &Value, size: &Value, stride: &Value) -> Value {
    let start = match start {
        Value::Size(d) => Some(d.clone()),
        _ => None,
    };
    Value::Span(Span::Part { start, size: size.size(), stride: stride.size() })
}

/// The value of a host number's method that returns a host number; `None` if the check does not know the method.
fn host_method(host: &Value, m: &ExprMethodCall, args: &[Value]) -> Option<Value> {
    let name = m.method.to_string();
    if let (Value::Size(a), [Value::Size(b)]) = (host, args) {
        match name.as_str() {
            "min" => return Some(Value::Size(a.min(b))),
            "max" => return Some(Value::Size(a.max(b))),
            "div_ceil" => return Some(Value::Size(a.cdiv(b))),
            _ => {}
        }
    }
    const NUMERIC: [&str; 14] = [
        "min",
        "max",
        "div_ceil",
        "sqrt",
        "powi",
        "powf",
        "exp",
        "ln",
        "recip",
        "abs",
        "pow",
        "ilog2",
        "is_power_of_two",
        "clone",
    ];
    let numeric = NUMERIC.contains(&name.as_str()) && args.iter().all(Value::is_host);
    let sized = host.is_sized() || args.iter().any(Value::is_sized);
    numeric.then_some(Value::Host { sized })
}
