//! Evaluates scalar operations element by element, by the reference functions of the operation table, with poison.
use super::datum::{Data, Datum, flatten, positions};
use pallas_ir::{DType, Elem, ElementFunction, ElementOperands, Literal, OpVisitor, ScalarOp, Slice, Type};

/// Applies the reference function of a scalar operation to each element; axes of extent 1 and scalars are broadcast.
///
/// Poison in any operand makes the element poison; `select` only looks at the mask and the chosen side.
pub fn eval_scalar(op: ScalarOp, args: &[&Datum], ty: Type) -> Datum {
    let n = ty.elements();
    let spread: Vec<Datum> = args.iter().map(|a| broadcast(a, &ty.shape)).collect();
    let strips: Vec<Slice<'_>> = spread.iter().map(|a| a.data.slice()).collect();
    // The element type is that of the first operand whose type the operation leaves open.
    let open = op.row().operands.iter().position(|(_, t)| *t == pallas_ir::scalar::SignatureType::T);
    let dtype = args[open.unwrap_or(0)].ty.dtype;
    let data = op.visit(dtype, ReferenceVisitor { strips: &strips, n }).expect("types were inferred");
    let poisoned = |i: usize| {
        if op == ScalarOp::Select {
            let chosen = if spread[0].data.get(i).as_i64() != 0 { 1 } else { 2 };
            spread[0].is_poison(i) || spread[chosen].is_poison(i)
        } else {
            spread.iter().any(|a| a.is_poison(i))
        }
    };
    let poison = if spread.iter().any(|a| a.poison.is_some()) { (0..n).map(poisoned).collect() } else { vec![] };
    Datum::new(ty, data).with_poison(poison)
}

/// Returns the first element of an i32 sum, difference, product or negation that does not fit an i32, with its exact
/// value.
pub(super) fn find_i32_overflow(op: ScalarOp, args: &[&Datum], ty: &Type) -> Option<(usize, i64)> {
    let exact: fn(i64, i64) -> i64 = match op {
        ScalarOp::Add => |a, b| a + b,
        ScalarOp::Sub => |a, b| a - b,
        ScalarOp::Mul => |a, b| a * b,
        ScalarOp::Neg => |a, _| -a,
        _ => return None,
    };
    let Type { dtype: DType::I32, shape } = ty else { return None };
    let args: Vec<Datum> = args.iter().map(|a| broadcast(a, shape)).collect();
    let number = |i: usize| {
        let of = |a: &Datum| a.data.get(i).as_i64();
        exact(of(&args[0]), args.get(1).map_or(0, of))
    };
    let defined = |i: &usize| !args.iter().any(|a| a.is_poison(*i));
    (0..ty.elements()).filter(defined).map(|i| (i, number(i))).find(|(_, n)| i32::try_from(*n).is_err())
}

/// The visitor that applies an operation's reference function to `n` elements.
struct ReferenceVisitor<'a> {
    strips: &'a [Slice<'a>],
    n: usize,
}
impl OpVisitor for ReferenceVisitor<'_> {
    type Out = Data;
    fn visit<O: ElementFunction<A>, A: ElementOperands>(self) -> Data {
        let strips = A::strips(self.strips, self.n);
        let mut out = Data::zeros(<O::Out as Elem>::DTYPE, self.n);
        let elements = <O::Out as Elem>::of_mut(out.slice_mut());
        for (i, y) in elements.iter_mut().enumerate() {
            *y = O::reference(A::at(strips, i));
        }
        out
    }
}

/// Evaluates a scalar operation on single elements, by its reference function.
pub fn eval_element(op: ScalarOp, args: &[Literal]) -> Literal {
    let args: Vec<Datum> = args.iter().map(|&x| Datum::scalar(x)).collect();
    let refs: Vec<&Datum> = args.iter().collect();
    let dtype = op.infer_dtype(&refs.iter().map(|a| a.ty.dtype).collect::<Vec<_>>()).expect("types were inferred");
    eval_scalar(op, &refs, Type::scalar(dtype)).data.get(0)
}

/// Broadcasts `x` to `shape`: along axes of extent 1, or everywhere if it is a scalar.
pub(super) fn broadcast(x: &Datum, shape: &[usize]) -> Datum {
    if x.ty.shape == shape {
        return x.clone();
    }
    let from = &x.ty.shape;
    let at: Vec<usize> = positions(shape)
        .map(|p| {
            let p: Vec<usize> = from.iter().zip(&p).map(|(&n, &i)| if n == 1 { 0 } else { i }).collect();
            flatten(&p, from)
        })
        .collect();
    collect_elements(&[x], Type::new(x.ty.dtype, shape), at.into_iter().map(|i| (0, i)))
}

/// Creates a value whose elements come from `sources`: pairs of an operand's number and a position in it.
pub(super) fn collect_elements(args: &[&Datum], ty: Type, sources: impl Iterator<Item = (usize, usize)>) -> Datum {
    let from: Vec<(usize, usize)> = sources.collect();
    let mut data = Data::zeros(ty.dtype, from.len());
    if let [x] = args {
        data = x.data.gather(from.iter().map(|&(_, i)| Some(i)), Literal::new(ty.dtype, 0.0));
    } else {
        from.iter().enumerate().for_each(|(to, &(k, i))| data.set(to, args[k].data.get(i)));
    }
    let dirty = args.iter().any(|a| a.poison.is_some());
    let poison = if dirty { from.iter().map(|&(k, i)| args[k].is_poison(i)).collect() } else { vec![] };
    Datum::new(ty, data).with_poison(poison)
}
