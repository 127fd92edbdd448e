//! Methods that append equations to a graph; the types of results follow from the rules of pallas-ir.
use crate::call::Call;
use crate::dynamic::Dynamic;
use crate::graph::{Equation, Graph, Op, Var};
use crate::identity::Identity;
use crate::mesh::Collective;
use pallas_ir::emit::{Term, ValueId};
use pallas_ir::structural::{Broadcast, Cast, Reshape};
use pallas_ir::{At, DType, Diag, Dim, Facts, Literal, Loc, MAX_RANK, RuleBackend, ScalarOp, StructuralOp, Type};
use std::sync::Arc;

impl Graph {
    /// Adds a variable of a type, which no equation defines yet.
    pub fn var(&mut self, ty: Type) -> Var {
        self.types.push(ty);
        Var(self.types.len() as u32 - 1)
    }

    /// Adds a parameter of a type.
    pub fn param(&mut self, ty: Type) -> Var {
        let v = self.var(ty);
        self.params.push(v);
        v
    }

    /// Appends an equation with one result, and returns the result. A fold that accumulates in another type than that
    /// of its operand is put between two casts ([`StructuralOp::accumulator`]).
    ///
    /// # Errors
    /// Operands that do not fit the operation; an array with more than 8 axes, 2^31 - 1 elements along one, or 2^48
    /// bytes.
    pub fn push(&mut self, op: impl Into<Op>, args: &[Var]) -> Result<Var, Diag> {
        let results = self.push_multi_result(op, args)?;
        Ok(results[0])
    }

    /// Appends an equation, and returns all of its results.
    ///
    /// # Errors
    /// Those of [`push`](Graph::push).
    pub fn push_multi_result(&mut self, op: impl Into<Op>, args: &[Var]) -> Result<Vec<Var>, Diag> {
        let op = op.into();
        let types: Vec<&Type> = args.iter().map(|&v| self.ty(v)).collect();
        let gives = infer(&op, &types)?;
        types.into_iter().chain(&gives).try_for_each(check_array_limits)?;
        Ok(self.push_equation(op, args, gives))
    }

    /// Appends a fold between casts to its accumulator's type and back; `None`, and nothing is appended, for operations
    /// that need no cast.
    fn push_widened_fold(&mut self, op: &Op, args: &[Var]) -> Option<Var> {
        let (Op::Structural(fold), &[x]) = (op, args) else { return None };
        let own = self.ty(x).dtype;
        let to = fold.accumulator(&[own])?;
        let x = self.cast(x, to);
        let y = self.push_valid(op.clone(), &[x]);
        Some(self.cast(y, own))
    }

    /// Appends an equation whose results have the types `gives`.
    fn push_equation(&mut self, op: Op, args: &[Var], gives: Vec<Type>) -> Vec<Var> {
        if let Some(result) = self.push_widened_fold(&op, args) {
            return vec![result];
        }
        let results: Vec<Var> = gives.into_iter().map(|ty| self.var(ty)).collect();
        self.equations.push(Equation { op, args: args.to_vec(), results: results.clone(), loc: self.at });
        results
    }

    /// Appends an equation with one result whose operands are known to fit. Its size is not checked: transformations
    /// check the whole graph at their end.
    pub(crate) fn push_valid(&mut self, op: impl Into<Op>, args: &[Var]) -> Var {
        self.push_valid_multi_result(op, args)[0]
    }

    /// Appends an equation whose operands are known to fit, without checking its size, and returns all of its results.
    pub(crate) fn push_valid_multi_result(&mut self, op: impl Into<Op>, args: &[Var]) -> Vec<Var> {
        let op = op.into();
        let types: Vec<&Type> = args.iter().map(|&v| self.ty(v)).collect();
        let gives = infer(&op, &types).unwrap_or_else(|diag| panic!("{op} of operands known to fit: {diag}"));
        self.push_equation(op, args, gives)
    }

    /// Appends a conversion to an element type, unless `v` has that type.
    pub(crate) fn cast(&mut self, v: Var, to: DType) -> Var {
        if self.ty(v).dtype == to { v } else { self.push_valid(StructuralOp::from(Cast { to }), &[v]) }
    }

    /// Appends a constant of rank 0.
    pub fn literal(&mut self, x: Literal) -> Var {
        self.push_valid(Op::Literal(x), &[])
    }

    /// Appends an i32 constant of rank 0.
    pub(crate) fn i32_literal(&mut self, n: i64) -> Var {
        self.literal(Literal::int(DType::I32, n))
    }

    /// Appends a reshape, unless the variable has the shape.
    pub(crate) fn reshape(&mut self, v: Var, shape: &[usize]) -> Var {
        if self.ty(v).shape == shape {
            v
        } else {
            self.push_valid(StructuralOp::from(Reshape { to: constant_dims(shape) }), &[v])
        }
    }

    /// Appends an array that has the constant `x` everywhere.
    pub fn splat(&mut self, x: Literal, shape: &[usize]) -> Var {
        let v = self.literal(x);
        if shape.is_empty() {
            v
        } else {
            self.push_valid(StructuralOp::from(Broadcast::to(constant_dims(shape))), &[v])
        }
    }

    /// Appends a broadcast of `v` to `shape` by NumPy's rule: axes are added in front, and axes of extent 1 stretched.
    ///
    /// # Errors
    /// An axis of `v` that has neither extent 1 nor that of `shape`.
    pub fn broadcast(&mut self, v: Var, shape: &[usize]) -> Result<Var, Diag> {
        let own = self.ty(v).shape.clone();
        if own == shape {
            return Ok(v);
        }
        let Some(missing) = shape.len().checked_sub(own.len()) else {
            let message = format!("a broadcast of {} to {shape:?}", self.ty(v));
            return Err(Diag::new("broadcast", At::Op, message, "a broadcast adds axes in front, and drops none"));
        };
        let op = Broadcast { to: constant_dims(shape), dims: (missing..missing + own.len()).collect() };
        self.push(StructuralOp::from(op), &[v])
    }

    /// Appends the equations of another graph, with `args` as its parameters, and returns its results. Its sharding
    /// groups are renumbered so that they differ from those of this graph.
    pub fn inline(&mut self, other: &Graph, args: &[Var]) -> Vec<Var> {
        self.inline_with_sharding_groups_from(other, args, 0)
    }

    /// Inlines a graph like [`inline`](Graph::inline), with its sharding groups numbered from at least `min_group`.
    pub(crate) fn inline_with_sharding_groups_from(&mut self, other: &Graph, args: &[Var], min_group: u32) -> Vec<Var> {
        let first = if other.sharding_group_count() == 0 { 0 } else { self.sharding_group_count().max(min_group) };
        let mut names: Vec<Option<Var>> = vec![None; other.types.len()];
        other.params.iter().zip(args).for_each(|(p, &a)| names[p.index()] = Some(a));
        let at = self.at;
        for e in &other.equations {
            let args: Vec<Var> = e.args.iter().map(|a| names[a.index()].expect("defined before its use")).collect();
            self.at = e.loc;
            let results: Vec<Var> = e.results.iter().map(|&r| self.var(other.ty(r).clone())).collect();
            e.results.iter().zip(&results).for_each(|(old, &new)| names[old.index()] = Some(new));
            self.equations.push(Equation { op: e.op.with_sharding_groups_shifted(first), args, results, loc: e.loc });
        }
        self.at = at;
        other.results.iter().map(|r| names[r.index()].expect("a result is defined")).collect()
    }
}

macro_rules! impl_from_op_kinds {
    ($($Kind:ident($Op:ty)),*) => {
        $(impl From<$Op> for Op {
            fn from(op: $Op) -> Op {
                Op::$Kind(op)
            }
        })*
    };
}

impl_from_op_kinds! { Scalar(ScalarOp), Structural(StructuralOp), Dynamic(Dynamic), Identity(Identity), Collective(Collective) }

impl From<Call> for Op {
    fn from(call: Call) -> Op {
        Op::Call(Arc::new(call))
    }
}

/// Maximum size of an array in bytes; sums of such sizes do not overflow.
const MAX_ARRAY_BYTES: usize = 1 << 48;

/// Refuses array types that no graph may have: too many axes, elements along an axis, or bytes. The limits are wider
/// than those of kernels, since an array may be sharded among devices; [`check_arrays_indexable`] checks what one
/// device runs.
pub(crate) fn check_array_limits(ty: &Type) -> Result<(), Diag> {
    if ty.shape.len() > MAX_RANK {
        let message = format!("an array of {ty} has {} axes", ty.shape.len());
        return Err(Diag::new("rank", At::Op, message, format!("at most {MAX_RANK}: merge some by `reshape`")));
    }
    if let Some(axis) = ty.shape.iter().position(|&n| n > i32::MAX as usize) {
        let message = format!("axis {axis} of an array of {ty} has more than 2^31 - 1 elements");
        return Err(Diag::new("size", At::Op, message, "divide it into several axes"));
    }
    let bytes = ty.shape.iter().try_fold(ty.dtype.bytes(), |bytes, &n| bytes.checked_mul(n.max(1)));
    if bytes.is_none_or(|bytes| bytes > MAX_ARRAY_BYTES) {
        let message = format!("an array of {ty} has more than 2^48 bytes");
        return Err(Diag::new("size", At::Op, message, "divide it into several arrays"));
    }
    Ok(())
}

/// Checks that all arrays of a graph that one device runs are small enough for kernels, whose positions are i32.
///
/// # Errors
/// The first array that is too large, with the line that makes it.
pub fn check_arrays_indexable(graph: &Graph) -> Result<(), (Loc, Diag)> {
    let fits = |v: &Var, at: Loc| {
        let ty = graph.ty(*v);
        if ty.is_indexable() {
            return Ok(());
        }
        let message = format!("an array of {ty} has more than 2^31 - 1 elements");
        Err((at, Diag::new("size", At::Op, message, "divide it among devices, or into several arrays")))
    };
    graph.params.iter().try_for_each(|v| fits(v, Loc::NONE))?;
    for e in &graph.equations {
        e.results.iter().try_for_each(|v| fits(v, e.loc))?;
        if let Op::Call(call) = &e.op {
            call.graphs().into_iter().try_for_each(check_arrays_indexable)?;
        }
    }
    Ok(())
}

/// Converts extents to the symbolic sizes that structural operations take.
pub(crate) fn constant_dims(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&n| Dim::from(n)).collect()
}

/// Returns the types of an operation's results for operands of types `args`.
///
/// # Errors
/// Operands that do not fit the operation.
pub(crate) fn infer(op: &Op, args: &[&Type]) -> Result<Vec<Type>, Diag> {
    let dtypes: Vec<_> = args.iter().map(|ty| ty.dtype).collect();
    let one = match op {
        Op::Call(call) => return call.infer(args),
        Op::Dynamic(op) => op.infer(args),
        Op::Literal(x) if args.is_empty() => Ok(Type::scalar(x.dtype)),
        Op::Literal(_) => Err(Diag::new("arity", At::Op, format!("a literal has {} operands", args.len()), "")),
        Op::Collective(op) => op.infer(args),
        Op::Identity(_) => match args {
            [x] => Ok((*x).clone()),
            _ => Err(Diag::new("arity", At::Op, format!("{op} of {} operands", args.len()), "")),
        },
        Op::Scalar(op) => {
            let dtype =
                op.infer_dtype(&dtypes).map_err(|m| Diag::new("dtype", At::Op, m, "cast one side: `x.cast(dtype)`"))?;
            if let Some(i) = args.iter().position(|ty| ty.shape != args[0].shape) {
                let message = format!("`{op}` of {} and {}", args[0], args[i]);
                return Err(Diag::new("elementwise", At::Operand(i), message, "broadcast them to one shape first"));
            }
            Ok(Type::new(dtype, args[0].shape.clone()))
        }
        Op::Structural(op) => {
            let shapes: Vec<Vec<Dim>> = args.iter().map(|ty| ty.dims()).collect();
            let shapes: Vec<&[Dim]> = shapes.iter().map(|s| &s[..]).collect();
            let shape = op.infer(&shapes, &Facts::default())?;
            let number = |d: Dim| d.as_number().and_then(|n| usize::try_from(n).ok());
            let extents: Option<Vec<usize>> = shape.into_iter().map(number).collect();
            let wrong =
                || Diag::new("extent", At::Op, format!("`{op}` has a negative extent"), "extents are at least 0");
            Ok(Type::new(op.dtype(&dtypes)?, extents.ok_or_else(wrong)?))
        }
    };
    one.map(|ty| vec![ty])
}

/// Lets the derivative and batching rules of pallas-ir append to a graph. Operands that such a rule lets stretch are
/// broadcast here.
impl RuleBackend for Graph {
    fn emit(&mut self, op: Term, args: &[ValueId]) -> ValueId {
        let args: Vec<Var> = args.iter().map(|a| Var(a.0)).collect();
        let made = match op {
            Term::Scalar(op) => {
                let widest =
                    args.iter().map(|&v| &self.ty(v).shape).max_by_key(|s| (s.len(), s.iter().product::<usize>()));
                let shape = widest.cloned().unwrap_or_default();
                let args: Vec<Var> =
                    args.iter().map(|&v| self.broadcast(v, &shape).expect("operands of a rule stretch")).collect();
                self.push_valid(op, &args)
            }
            Term::Structural(op) => self.push_valid(op, &args),
            Term::Like(x) => {
                let ty = self.ty(args[0]).clone();
                self.splat(Literal::new(ty.dtype, x), &ty.shape)
            }
            Term::Number(x) => self.literal(Literal::new(self.ty(args[0]).dtype, x)),
        };
        ValueId(made.0)
    }
}
