//! Functions and methods of the kernel language, by name: reads their arguments and applies pallas-ir's shape rules.
//!
//! A function is taken for the prelude's unless the body declares another one of its name.
use super::body::ShapeChecker;
use super::symbolic_value::{AxisSpan, SymbolicValue};
use super::tracked_variables::{root_variable, strip_parentheses};
use pallas_ir::dim::SizeComparison;
use pallas_ir::scalar::CallSyntax;
use pallas_ir::structural::{Broadcast, Concat, Dot, Iota, Reshape, Slice, Transpose};
use pallas_ir::{DType, Diag, Dim, ScalarOp, diag};
use syn::{Expr, ExprCall, ExprMethodCall};

/// Element type for rules of shapes, which do not depend on it.
const PLACEHOLDER_DTYPE: DType = DType::F32;

/// Expands a kind of argument to its statically known value, if any, or to the operand and its expression.
macro_rules! argument {
    (Axis $arg:ident $rank:ident) => {
        $arg.0.as_axis()
    };
    (Axes $arg:ident $rank:ident) => {
        $arg.0.as_axes($rank)
    };
    (Size $arg:ident $rank:ident) => {
        Some($arg.0.as_size())
    };
    (Sizes $arg:ident $rank:ident) => {
        $arg.0.as_shape()
    };
    (Offset $arg:ident $rank:ident) => {
        $arg.0.as_size().as_number()
    };
    (Index $arg:ident $rank:ident) => {
        tile_shape($arg.0).map(|shape| (shape, $arg.1))
    };
    (Value $arg:ident $rank:ident) => {
        $arg.0.operand_shape().map(|shape| (shape, $arg.1))
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

impl ShapeChecker {
    /// Returns the name of the called function if it is one of the language; `None` if it is or may be a function of
    /// the user.
    fn language_function_name(&mut self, callee: &Expr) -> Option<String> {
        let Expr::Path(p) = strip_parentheses(callee) else { return None };
        let segments = &p.path.segments;
        let last = &segments.last()?.ident;
        let ours = match segments.len() {
            1 => {
                self.called.insert(last.to_string());
                self.variables.get(last).is_none() && !self.unseen.may_shadow_function(last)
            }
            _ => segments[segments.len() - 2].ident == "prelude",
        };
        (ours && p.qself.is_none()).then(|| last.to_string())
    }

    /// Returns the symbolic value of a function call; unknown for a function that is not of the language.
    pub(super) fn eval_call(&mut self, c: &ExprCall) -> SymbolicValue {
        let args: Vec<SymbolicValue> = c.args.iter().map(|a| self.eval_expr(a)).collect();
        let exprs: Vec<&Expr> = c.args.iter().collect();
        let Some(name) = self.language_function_name(&c.func) else { return SymbolicValue::Unknown };
        let at = &c.func;
        match (name.as_str(), &args[..]) {
            ("dot", [SymbolicValue::Tile(a), SymbolicValue::Tile(b)]) => {
                let rank = a.len();
                let op = if rank <= 2 || rank != b.len() {
                    Dot::matmul(PLACEHOLDER_DTYPE)
                } else {
                    let batch = (0..rank - 2).map(|axis| (axis, axis)).collect();
                    Dot { batch, contract: vec![(rank - 1, rank - 2)], acc: PLACEHOLDER_DTYPE }
                };
                self.structural_value(op, &[a, b], at, &exprs)
            }
            ("dot_general", [SymbolicValue::Tile(a), SymbolicValue::Tile(b), contract, batch]) => {
                match (axis_pairs(contract), axis_pairs(batch)) {
                    (Some(contract), Some(batch)) => {
                        self.structural_value(Dot { batch, contract, acc: PLACEHOLDER_DTYPE }, &[a, b], at, &exprs)
                    }
                    _ => SymbolicValue::Unknown,
                }
            }
            ("select", [mask, a, b]) => self.elementwise_value(ScalarOp::Select, &[mask, a, b], at, &exprs),
            ("maximum", [a, b]) => self.elementwise_value(ScalarOp::Maximum, &[a, b], at, &exprs),
            ("minimum", [a, b]) => self.elementwise_value(ScalarOp::Minimum, &[a, b], at, &exprs),
            ("scalar", [_]) | ("cdiv", [_, _]) => SymbolicValue::run_time_scalar(),
            ("full", [to, x]) => match (to.as_shape(), x.operand_shape()) {
                (Some(to), Some(x)) => self.structural_value(Broadcast::to(to), &[x], at, &exprs[1..]),
                (to, _) => to.map_or(SymbolicValue::Unknown, SymbolicValue::Tile),
            },
            ("zeros", [to]) => to.as_shape().map_or(SymbolicValue::Unknown, SymbolicValue::Tile),
            ("iota", [shape, axis]) => match (shape.as_shape(), axis.as_axis()) {
                (Some(shape), Some(axis)) => {
                    self.structural_value(Iota { shape, axis, dtype: PLACEHOLDER_DTYPE }, &[], at, &[])
                }
                (shape, _) => shape.map_or(SymbolicValue::Unknown, SymbolicValue::Tile),
            },
            ("concat", [SymbolicValue::Sequence(tiles), axis]) => {
                let shapes: Option<Vec<&[Dim]>> = tiles.iter().map(tile_shape).collect();
                let (Some(shapes), Some(axis)) = (shapes, axis.as_axis()) else { return SymbolicValue::Unknown };
                let written: Vec<&Expr> = match strip_parentheses(exprs[0]) {
                    Expr::Array(a) => a.elems.iter().collect(),
                    _ => vec![],
                };
                self.structural_value(Concat { axis }, &shapes, at, &written)
            }
            ("tril" | "triu", [rows, columns, _]) => SymbolicValue::Tile(vec![rows.as_size(), columns.as_size()]),
            ("program_id" | "num_programs", [axis]) => {
                if let (Some(axis), Some(axes)) = (axis.as_axis(), self.axes)
                    && axis >= axes
                {
                    self.report(&diag::grid_axis_out_of_range(axis, axes), exprs[0], &[]);
                }
                SymbolicValue::run_time_scalar()
            }
            ("ds", [start, size]) => axis_span(start, size, &SymbolicValue::constant_size(1)),
            ("strided", [start, size, stride]) => axis_span(start, size, stride),
            _ => SymbolicValue::Unknown,
        }
    }

    /// Returns the symbolic value of a method call; unknown if the language has no such method.
    pub(super) fn eval_method_call(&mut self, m: &ExprMethodCall) -> SymbolicValue {
        let receiver = self.eval_expr(&m.receiver);
        let args: Vec<SymbolicValue> = m.args.iter().map(|a| self.eval_expr(a)).collect();
        let known = match receiver {
            SymbolicValue::View(view) => Some(self.eval_view_method(view, m, &args)),
            SymbolicValue::Prefetch(name, rank) => Some(self.eval_prefetch_method(&name, rank, m, &args)),
            SymbolicValue::Tile(ref dims) => self.eval_tile_method(dims, m, &args),
            SymbolicValue::Sequence(ref items) if m.method == "len" => {
                Some(SymbolicValue::constant_size(items.len() as i64))
            }
            ref host if host.is_host_scalar() => eval_host_method(host, m, &args),
            _ => None,
        };
        known.unwrap_or_else(|| {
            // An unknown method may borrow its receiver mutably.
            if let Some(name) = root_variable(&m.receiver) {
                self.variables.forget_value(name);
            }
            SymbolicValue::Unknown
        })
    }
    /// Returns the symbolic value of a method of a tile or a scalar; `None` if the language has none of this name.
    fn eval_tile_method(&mut self, dims: &[Dim], m: &ExprMethodCall, args: &[SymbolicValue]) -> Option<SymbolicValue> {
        let name = m.method.to_string();
        let exprs: Vec<&Expr> = std::iter::once(&*m.receiver).chain(&m.args).collect();
        let same = || SymbolicValue::Tile(dims.to_vec());
        match (name.as_str(), args) {
            ("cast" | "bitcast" | "clone" | "tile", []) | ("powi", [_]) => return Some(same()),
            ("broadcast", [to]) if dims.is_empty() => {
                let shape =
                    to.as_shape().map(|to| self.structural_value(Broadcast::to(to), &[dims], &m.method, &exprs));
                return Some(shape.unwrap_or(SymbolicValue::Unknown));
            }
            _ => {}
        }
        // Rust's name of the logarithm.
        let name = if name == "ln" { "log" } else { name.as_str() };
        if let Some(op) =
            ScalarOp::parse(name).filter(|op| op.row().surface == CallSyntax::Method && op.arity() == exprs.len())
        {
            let receiver = same();
            let values: Vec<&SymbolicValue> = std::iter::once(&receiver).chain(args).collect();
            return Some(self.elementwise_value(op, &values, &m.method, &exprs));
        }
        if dims.is_empty() {
            // Scalars have no other method.
            return None;
        }
        self.eval_shape_method(dims, m, args, &exprs)
    }
    /// Returns the symbolic value of a method that changes shapes; `None` if there is none of this name.
    fn eval_shape_method(
        &mut self,
        dims: &[Dim],
        m: &ExprMethodCall,
        args: &[SymbolicValue],
        exprs: &[&Expr],
    ) -> Option<SymbolicValue> {
        let (name, rank) = (m.method.to_string(), dims.len());
        let given: Vec<(&SymbolicValue, &Expr)> = args.iter().zip(exprs[1..].iter().copied()).collect();
        /// Expands a method that an operation's file declares to its check, if the names are equal. An unknown argument
        /// makes the result unknown.
        macro_rules! declared {
            ($doc:tt $name:ident $Class:ident ($($arg:ident: $Kind:ident),*) $Element:ident { $op:expr }) => {
                if let (stringify!($name), [$($arg),*]) = (name.as_str(), &given[..]) {
                    $(let Some($arg) = argument!($Kind $arg rank) else { return Some(SymbolicValue::Unknown) };)*
                    let operands = [Some((dims, exprs[0])) $(, argument!($Kind $arg))*];
                    let (shapes, written): (Vec<&[Dim]>, Vec<&Expr>) = operands.into_iter().flatten().unzip();
                    return Some(self.structural_value($op, &shapes, &m.method, &written));
                }
            };
        }
        pallas_ir::for_each_structural_method! { declared }
        // Unknown arguments make an unknown result.
        Some(match (name.as_str(), args) {
            ("shape", []) => SymbolicValue::Sequence(dims.iter().cloned().map(SymbolicValue::Size).collect()),
            ("rank", []) => SymbolicValue::constant_size(rank as i64),
            ("t", []) => {
                let mut axes: Vec<usize> = (0..rank.max(2)).collect();
                axes.swap(rank.max(2) - 2, rank.max(2) - 1);
                self.structural_value(Transpose { axes }, &[dims], &m.method, exprs)
            }
            ("expand", [axis]) => match axis.as_axis() {
                Some(axis) if axis <= rank => {
                    let mut dims = dims.to_vec();
                    dims.insert(axis, Dim::from(1i64));
                    SymbolicValue::Tile(dims)
                }
                Some(axis) => self.report_method_mistake(&diag::new_axis_out_of_range(axis, rank), m),
                None => SymbolicValue::Unknown,
            },
            ("squeeze", [axis]) => match axis.as_axis() {
                Some(axis) if dims.get(axis).is_some_and(|d| self.may_be_one(d)) => {
                    let mut dims = dims.to_vec();
                    dims.remove(axis);
                    SymbolicValue::Tile(dims)
                }
                Some(axis) => self.report_method_mistake(&diag::axis_not_droppable(axis, diag::shape(dims)), m),
                None => SymbolicValue::Unknown,
            },
            ("at", [index]) => {
                self.indexed_shape(dims, index, exprs[1]).map_or(SymbolicValue::Unknown, SymbolicValue::Tile)
            }
            ("item", []) => self.structural_value(Reshape { to: vec![] }, &[dims], &m.method, exprs),
            ("slice", [start, size]) => {
                let every = SymbolicValue::Sequence(vec![SymbolicValue::constant_size(1); rank]);
                self.eval_slice(dims, [start, size, &every], m, exprs)
            }
            ("strided_slice", [start, size, stride]) => self.eval_slice(dims, [start, size, stride], m, exprs),
            ("one_hot", [depth]) => {
                let mut marks = vec![Dim::from(1i64); rank];
                marks[rank - 1] = depth.as_size();
                let (index, marks) = (SymbolicValue::Tile(dims.to_vec()), SymbolicValue::Tile(marks));
                self.elementwise_value(ScalarOp::Eq, &[&index, &marks], &m.method, exprs)
            }
            _ => return None,
        })
    }
    fn may_be_one(&self, d: &Dim) -> bool {
        self.facts.compare_equal(d, &Dim::from(1i64)) != SizeComparison::No
    }
    /// Reports a mistake at the name of the called method, and returns the unknown value, as the call's result.
    fn report_method_mistake(&mut self, mistake: &Diag, m: &ExprMethodCall) -> SymbolicValue {
        self.report(mistake, &m.method, &[]);
        SymbolicValue::Unknown
    }
    /// Returns the symbolic value of a slice with these starts, sizes and strides.
    fn eval_slice(
        &mut self,
        dims: &[Dim],
        starts_sizes_strides: [&SymbolicValue; 3],
        m: &ExprMethodCall,
        exprs: &[&Expr],
    ) -> SymbolicValue {
        let [Some(start), Some(size), Some(stride)] = starts_sizes_strides.map(SymbolicValue::as_shape) else {
            return SymbolicValue::Unknown;
        };
        let numbers = |sizes: &[Dim]| sizes.iter().map(Dim::as_number).collect::<Option<Vec<i64>>>();
        match (numbers(&start), numbers(&stride)) {
            (Some(start), Some(stride)) => {
                self.structural_value(Slice { start, size, stride }, &[dims], &m.method, exprs)
            }
            _ if [&start, &size, &stride].iter().any(|part| part.len() != dims.len()) => SymbolicValue::Tile(size),
            _ => {
                let part = |axis: usize| [&start[axis], &size[axis], &stride[axis]];
                let mut axes = 0..dims.len();
                let outside = axes.find_map(|axis| Slice::check_bounds(dims, axis, part(axis), &self.facts).err());
                outside.map_or(SymbolicValue::Tile(size.clone()), |mistake| self.report_method_mistake(&mistake, m))
            }
        }
    }
}

fn tile_shape(v: &SymbolicValue) -> Option<&[Dim]> {
    match v {
        SymbolicValue::Tile(dims) => Some(dims),
        _ => None,
    }
}

/// Returns the pairs of axes in an expression such as `&[(1, 0)]`; `None` if it is no list of pairs of numbers.
fn axis_pairs(v: &SymbolicValue) -> Option<Vec<(usize, usize)>> {
    let pair = |v: &SymbolicValue| match v {
        SymbolicValue::Sequence(two) if two.len() == 2 => Some((two[0].as_axis()?, two[1].as_axis()?)),
        _ => None,
    };
    match v {
        SymbolicValue::Sequence(items) => items.iter().map(pair).collect(),
        _ => None,
    }
}

fn axis_span(start: &SymbolicValue, size: &SymbolicValue, stride: &SymbolicValue) -> SymbolicValue {
    let start = match start {
        SymbolicValue::Size(d) => Some(d.clone()),
        _ => None,
    };
    SymbolicValue::Span(AxisSpan::Part { start, size: size.as_size(), stride: stride.as_size() })
}

/// Returns the symbolic value of a host number's method that returns a host number; `None` if the check does not know
/// the method.
fn eval_host_method(host: &SymbolicValue, m: &ExprMethodCall, args: &[SymbolicValue]) -> Option<SymbolicValue> {
    let name = m.method.to_string();
    if let (SymbolicValue::Size(a), [SymbolicValue::Size(b)]) = (host, args) {
        match name.as_str() {
            "min" => return Some(SymbolicValue::Size(a.min(b))),
            "max" => return Some(SymbolicValue::Size(a.max(b))),
            "div_ceil" => return Some(SymbolicValue::Size(a.cdiv(b))),
            _ => {}
        }
    }
    const NUMERIC_METHODS: [&str; 14] = [
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
    let numeric = NUMERIC_METHODS.contains(&name.as_str()) && args.iter().all(SymbolicValue::is_host_scalar);
    let sized = host.depends_on_sizes() || args.iter().any(SymbolicValue::depends_on_sizes);
    numeric.then_some(SymbolicValue::Host { sized })
}
