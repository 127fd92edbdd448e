//! Inference of an operation's result type: the one rule that the builder, the verifier and eager execution share.
use crate::diag::{self, At, Diag};
use crate::dim::SizeComparison;
use crate::kernel::{Kernel, MAX_RANK, Op, OperandKind, Type, View};
use crate::{DType, Dim, Facts, OperandId, ScalarOp};

impl Type {
    /// Refuses shapes that no backend supports: more than [`MAX_RANK`] axes, or more than 2^31 - 1 elements.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn check(&self) -> Result<(), Diag> {
        if self.shape.len() > MAX_RANK {
            let message = format!("a tile of {self} has {} axes", self.shape.len());
            let help = format!("at most {MAX_RANK}: merge some by `reshape`");
            return Err(Diag::new("tile-rank", At::Op, message, help));
        }
        if !self.is_indexable() {
            let message = format!("a tile of {self} has more than 2^31 - 1 elements");
            return Err(Diag::new("tile-size", At::Op, message, "use smaller blocks"));
        }
        Ok(())
    }
}

impl ScalarOp {
    /// Returns the result's shape: scalars broadcast to every shape; tiles have equal ranks and along each axis equal
    /// extents or 1. Works on symbolic and on constant sizes.
    pub fn infer_shape(self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
        use crate::diag::{shape, size_mismatch_help};
        if args.len() != self.arity() {
            let names: Vec<&str> = self.row().operands.iter().map(|o| o.0).collect();
            let found =
                format!("`{self}` takes {} operands ({}), found {}", self.arity(), names.join(", "), args.len());
            return Err(Diag::new("arity", At::Op, found, self.row().doc.trim()));
        }
        let mut tiles = args.iter().enumerate().filter(|(_, arg)| !arg.is_empty());
        let mut out = tiles.next().map_or(vec![], |(_, first)| first.to_vec());
        for (i, arg) in tiles {
            let so_far = out.clone();
            let disagree = |help: String| {
                let found = format!("`{self}` of {} and {}", shape(&so_far), shape(arg));
                Diag::new("elementwise", At::Operand(i), found, help)
            };
            if arg.len() != out.len() {
                return Err(disagree(
                    "ranks are equal in an elementwise operation: `.expand(axis)` adds an axis".into(),
                ));
            }
            for (axis, (a, b)) in so_far.iter().zip(*arg).enumerate() {
                if a.as_number() == Some(1) {
                    out[axis] = b.clone();
                } else if b.as_number() != Some(1) && facts.compare_equal(a, b) == SizeComparison::No {
                    return Err(disagree(format!(
                        "axis {axis} is {a} on one side and {b} on the other; {}",
                        size_mismatch_help(a, b)
                    )));
                }
            }
        }
        Ok(out)
    }
}

/// The type of an operation's result, for operations without regions; `None` if it has no result.
///
/// # Errors
/// A [`Diag`] at the operation or at the argument to blame.
pub fn infer(kernel: &Kernel, op: &Op, args: &[&Type]) -> Result<Option<Type>, Diag> {
    let fixed = match op {
        Op::ProgramId(_) | Op::NumPrograms(_) | Op::NumSteps(_) => Some(0),
        Op::Const(_) | Op::Extent(_) | Op::Param(_) => Some(0),
        Op::DebugPrint(_) | Op::DebugAssert(_) => Some(1),
        _ => None,
    };
    if let Some(n) = fixed.filter(|&n| n != args.len()) {
        return Err(Diag::new("arity", At::Op, format!("this takes {n} arguments, found {}", args.len()), ""));
    }
    Ok(Some(match op {
        Op::Const(x) => Type::scalar(x.dtype),
        Op::Scalar(op) => {
            let wrong = |message| Diag::new("dtype", At::Op, message, "cast one side: `x.cast::<T>()`");
            let dtype = op.infer_dtype(&argument_dtypes(args)).map_err(wrong)?;
            Type::new(dtype, apply_shape_rule(args, |dims, facts| op.infer_shape(dims, facts))?)
        }
        Op::Structural(op) => {
            let shape = apply_shape_rule(args, |dims, facts| op.infer(dims, facts))?;
            Type::new(op.dtype(&argument_dtypes(args))?, shape)
        }
        Op::ProgramId(axis) | Op::NumPrograms(axis) | Op::NumSteps(axis) => {
            let axes = if let Op::NumSteps(_) = op { kernel.steps.len() } else { kernel.grid.len() };
            if *axis >= axes {
                return Err(diag::grid_axis_out_of_range(*axis, axes));
            }
            Type::scalar(DType::I32)
        }
        Op::Extent(_) => Type::scalar(DType::I32),
        Op::Param(o) => Type::scalar(kernel.operand(*o).dtype),
        Op::Prefetch(o) => {
            let operand = kernel.operand(*o);
            check_prefetch_indices(args, operand.dims.len(), &operand.name)?;
            Type::scalar(operand.dtype)
        }
        Op::Load { from, view, masked } => {
            let ty = Type::new(kernel.operand(*from).dtype, view.shape());
            let mut expected = dynamic_start_types(view);
            if *masked {
                check_mask(args.get(expected.len()), view)?;
                expected.push(Type::new(DType::Bool, view.shape()));
                expected.push(Type::scalar(ty.dtype));
            }
            check_arguments(args, &expected, "load")?;
            ty
        }
        Op::Valid { view, axis, .. } => {
            check_arguments(args, &dynamic_start_types(view), "valid")?;
            let mut shape = view.shape();
            if *axis >= shape.len() {
                return Err(diag::block_axis_out_of_range(*axis, shape.len()));
            }
            (0..shape.len()).filter(|a| a != axis).for_each(|a| shape[a] = 1);
            Type::new(DType::Bool, shape)
        }
        Op::Store { to, view, masked } => {
            check_store(kernel, *to, view, *masked, args)?;
            return Ok(None);
        }
        Op::DebugAssert(_) => {
            if args[0].dtype != DType::Bool {
                let message = format!("debug_assert takes bool, found {}", args[0]);
                return Err(Diag::new("dtype", At::Operand(0), message, "compare first"));
            }
            return Ok(None);
        }
        Op::DebugPrint(_) | Op::If | Op::For { .. } | Op::While => return Ok(None),
    }))
}

/// Element types of the arguments.
fn argument_dtypes(args: &[&Type]) -> Vec<DType> {
    args.iter().map(|t| t.dtype).collect()
}

/// Applies a shape rule to the shapes of the arguments.
fn apply_shape_rule(
    args: &[&Type],
    rule: impl FnOnce(&[&[Dim]], &Facts) -> Result<Vec<Dim>, Diag>,
) -> Result<Vec<usize>, Diag> {
    let dims: Vec<Vec<Dim>> = args.iter().map(|t| t.dims()).collect();
    let dims: Vec<&[Dim]> = dims.iter().map(|d| &d[..]).collect();
    to_constant_sizes(&rule(&dims, &Facts::default())?)
}

/// Checks a store: the operand's kind, and the types of value, starts and mask.
fn check_store(kernel: &Kernel, to: OperandId, view: &View, has_mask: bool, args: &[&Type]) -> Result<(), Diag> {
    let operand = kernel.operand(to);
    if !matches!(operand.kind, OperandKind::Output { .. } | OperandKind::Scratch) {
        let message = format!("`{}` is an input and can't be written", operand.name);
        return Err(Diag::new("write-input", At::Op, message, "store to an `Out` or `Scratch`"));
    }
    let target = Type::new(operand.dtype, view.shape());
    if let Some(value) = args.first().filter(|value| ***value != target) {
        let mut wrong = diag::store_mismatch(value, &target, &operand.name);
        if value.dtype != target.dtype {
            wrong.help = "a store does not cast: `.cast::<T>()`".into();
        }
        return Err(wrong);
    }
    let mut expected = vec![target];
    expected.extend(dynamic_start_types(view));
    if has_mask {
        check_mask(args.get(expected.len()), view)?;
        expected.push(Type::new(DType::Bool, view.shape()));
    }
    check_arguments(args, &expected, "store")
}

/// Checks that the mask of a load or store has the view's shape.
fn check_mask(mask_type: Option<&&Type>, view: &View) -> Result<(), Diag> {
    match mask_type {
        Some(found) if found.shape != view.shape() => {
            Err(diag::mask_mismatch(found, Type::new(DType::Bool, view.shape())))
        }
        _ => Ok(()),
    }
}

/// Types of the arguments that give a view's dynamic starts: an i32 scalar for each.
fn dynamic_start_types(view: &View) -> Vec<Type> {
    vec![Type::scalar(DType::I32); view.dynamic_count()]
}

/// Checks that the arguments of an instruction have the types `expected`; errors call the instruction `operation`.
fn check_arguments(args: &[&Type], expected: &[Type], operation: &str) -> Result<(), Diag> {
    if args.len() != expected.len() {
        let message = format!("a {operation} takes {} arguments here, found {}", expected.len(), args.len());
        return Err(Diag::new("arity", At::Op, message, ""));
    }
    for (i, (found, want)) in args.iter().zip(expected).enumerate() {
        if *found != want {
            let message = format!("argument {i} of this {operation} is {want}, found {found}");
            return Err(Diag::new("argument", At::Operand(i), message, "broadcast or cast it first"));
        }
    }
    Ok(())
}

/// Checks that the indices of an element of prefetch operand `name` are i32 scalars, one for each of its `rank`
/// dimensions.
fn check_prefetch_indices(args: &[&Type], rank: usize, name: &str) -> Result<(), Diag> {
    if args.len() != rank {
        return Err(diag::wrong_prefetch_index_count(name, rank, args.len()));
    }
    check_arguments(args, &vec![Type::scalar(DType::I32); rank], "prefetch")
}

/// Converts sizes to numbers; refuses those not known while tracing.
fn to_constant_sizes(dims: &[Dim]) -> Result<Vec<usize>, Diag> {
    let number = |d: &Dim| {
        let n = d.as_number().and_then(|n| usize::try_from(n).ok());
        n.ok_or_else(|| Diag::new("size", At::Op, format!("`{d}` is not a size that is known while tracing"), ""))
    };
    dims.iter().map(number).collect()
}
