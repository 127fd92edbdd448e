//! Evaluates structural operations by their access forms, with poison; [`super::scalar_eval`] has the scalar ones.
use super::datum::{Data, Datum, flatten, positions, strided_position, strides};
use super::gather_scatter_eval::{gather, scatter};
use super::scalar_eval::{broadcast, collect_elements};
pub use super::scalar_eval::{eval_element, eval_scalar};
use super::sort::{compare_ascending, sorted};
use pallas_ir::structural::{AccessForm, AffineIndex, LoopNest, MapPiece};
use pallas_ir::{DType, Diag, Literal, ScalarOp, StructuralOp, Type};
use std::cmp::Ordering;

/// Evaluates an operation on whole tiles (a reduction, product, gather, transpose ..), whose result has the type `ty`.
///
/// # Errors
/// A fault of the data: an index that is out of range or poisoned.
pub fn eval_structural(op: &StructuralOp, args: &[&Datum], ty: Type) -> Result<Datum, Diag> {
    // Folds are computed with the folded axes kept at extent 1; without them the order of elements is the same.
    let folded = |axes: &[usize]| {
        let mut shape = args[0].ty.shape.clone();
        axes.iter().for_each(|&axis| shape[axis] = 1);
        Type { shape, ..ty }
    };
    Ok(match access_form(op, args) {
        AccessForm::Map(pieces) => {
            let shapes: Vec<&[usize]> = args.iter().map(|a| &a.ty.shape[..]).collect();
            let at: Vec<_> = positions(&ty.shape).map(|p| source_element(&pieces, &shapes, &p)).collect();
            collect_elements(args, ty, at.into_iter())
        }
        AccessForm::Flat => Datum { ty, ..args[0].clone() },
        AccessForm::Contract { batch, contract } => dot(args[0], args[1], &batch, &contract, ty),
        AccessForm::Fold { op, axes } => Datum { ty: ty.clone(), ..fold(op, args[0], &axes, folded(&axes)) },
        AccessForm::Nest(own) => eval_nest(&own, args, ty),
        AccessForm::Scan { op, axis, reverse } => scan(op, args[0], axis, reverse),
        AccessForm::Arg { max, axis } => {
            Datum { ty: ty.clone(), ..eval_arg_min_max(max, args[0], axis, folded(&[axis])) }
        }
        AccessForm::Gather { windows, checked } => gather(&windows, checked, args[0], args[1], ty)?,
        AccessForm::Scatter { windows, op } => scatter(&windows, op, args[0], args[1], args[2])?,
        AccessForm::Sort { axis, order, positions } => sorted(args[0], axis, order, positions, ty),
        AccessForm::Iota { axis } => {
            let mut data = Data::zeros(ty.dtype, ty.elements());
            for (i, p) in positions(&ty.shape).enumerate() {
                data.set(i, Literal::int(ty.dtype, p[axis] as i64));
            }
            Datum::new(ty, data)
        }
        AccessForm::Cast => args[0].cast(ty.dtype),
        AccessForm::Bitcast => {
            let data = Data::from_bytes(ty.dtype, &args[0].data.to_bytes());
            Datum { data, ty, ..args[0].clone() }
        }
        AccessForm::Powi(exponent) => powi(args[0], exponent),
    })
}

/// Returns the way in which an operation reaches the elements of these operands, such as a fold, a contraction or a
/// gather.
pub(super) fn access_form(op: &StructuralOp, args: &[&Datum]) -> AccessForm {
    let dims: Vec<_> = args.iter().map(|a| a.ty.dims()).collect();
    op.access(&dims.iter().map(|d| &d[..]).collect::<Vec<_>>())
}

/// Returns the operand and the position in it from which a result's element of an [`AccessForm::Map`] comes.
pub fn source_element(pieces: &[MapPiece], shapes: &[&[usize]], at: &[usize]) -> (usize, usize) {
    let number = |d: &pallas_ir::Dim| d.as_number().expect("sizes are numbers at run time");
    let inside =
        |p: &&MapPiece| p.bounds.iter().all(|(axis, lo, hi)| (number(lo)..number(hi)).contains(&(at[*axis] as i64)));
    let piece = pieces.iter().find(inside).expect("pieces cover the result");
    let position = |i: &AffineIndex| number(&i.offset) + i.axis.map_or(0, |a| number(&i.stride) * at[a] as i64);
    let index: Vec<usize> = piece.index.iter().map(|i| position(i) as usize).collect();
    (piece.operand, flatten(&index, shapes[piece.operand]))
}

/// Computes powers by repeated multiplication, in the element type's own arithmetic.
fn powi(x: &Datum, exponent: i32) -> Datum {
    let ty = x.ty.clone();
    let one = broadcast(&Datum::scalar(Literal::new(ty.dtype, 1.0)), &ty.shape);
    let (mut y, mut square, mut left) = (one.clone(), x.clone(), exponent.unsigned_abs());
    while left > 0 {
        if left & 1 == 1 {
            y = eval_scalar(ScalarOp::Mul, &[&y, &square], ty.clone());
        }
        square = eval_scalar(ScalarOp::Mul, &[&square, &square], ty.clone());
        left >>= 1;
    }
    let y = if exponent < 0 { eval_scalar(ScalarOp::Div, &[&one, &y], ty) } else { y };
    Datum { poison: x.poison.clone(), ..y }
}

/// Computes a contraction; operands are converted to the result's type.
fn dot(a: &Datum, b: &Datum, batch: &[(usize, usize)], contract: &[(usize, usize)], ty: Type) -> Datum {
    let (wide_a, wide_b) = (a.data.cast(ty.dtype), b.data.cast(ty.dtype));
    // For one operand, the strides of its axes in the result (batch and free axes), and of the axes that are summed
    // over.
    let side = |x: &Datum, own: fn(&(usize, usize)) -> usize| {
        let step = strides(&x.ty.shape);
        let used: Vec<usize> = batch.iter().chain(contract).map(own).collect();
        let free: Vec<usize> = (0..step.len()).filter(|axis| !used.contains(axis)).map(|axis| step[axis]).collect();
        let of = |pairs: &[(usize, usize)]| pairs.iter().map(|p| step[own(p)]).collect::<Vec<_>>();
        (of(batch), free, of(contract))
    };
    let (batch_a, free_a, inner_a) = side(a, |p| p.0);
    let (batch_b, free_b, inner_b) = side(b, |p| p.1);
    let outer_a = [batch_a, free_a.clone(), vec![0; free_b.len()]].concat();
    let outer_b = [batch_b, vec![0; free_a.len()], free_b].concat();
    let offsets = |shape: &[usize], in_a: &[usize], in_b: &[usize]| -> Vec<(usize, usize)> {
        positions(shape).map(|p| (strided_position(&p, in_a), strided_position(&p, in_b))).collect()
    };
    let inner: Vec<usize> = contract.iter().map(|p| a.ty.shape[p.0]).collect();
    let (pairs, ks) = (offsets(&ty.shape, &outer_a, &outer_b), offsets(&inner, &inner_a, &inner_b));
    let data = contract_data(&wide_a, &wide_b, &pairs, &ks);
    let dirty = a.poison.is_some() || b.poison.is_some();
    let bad = |&(x, y): &(usize, usize)| ks.iter().any(|(i, j)| a.is_poison(x + i) || b.is_poison(y + j));
    Datum::new(ty, data).with_poison(if dirty { pairs.iter().map(bad).collect() } else { vec![] })
}

/// Sums products of elements of `a` and `b`. The offsets of a product's two factors are a pair of `result_offsets`,
/// which has one for each element of the result, plus a pair of `term_offsets`, which has one for each term.
fn contract_data(a: &Data, b: &Data, result_offsets: &[(usize, usize)], term_offsets: &[(usize, usize)]) -> Data {
    macro_rules! sum {
        ($($Variant:ident $zero:expr, |$s:ident, $x:ident, $y:ident| $step:expr;)*) => {
            match (a, b) {
                $((Data::$Variant(a), Data::$Variant(b)) => {
                    let sum = |&(i, j): &(usize, usize)| {
                        term_offsets.iter().fold($zero, |$s, &(k, l)| {
                            let ($x, $y) = (a[i + k], b[j + l]);
                            $step
                        })
                    };
                    Data::$Variant(result_offsets.iter().map(sum).collect())
                })*
                _ => unreachable!("both sides were cast to the accumulator"),
            }
        };
    }
    sum! {
        F32 0.0, |s, x, y| s + x * y; F64 0.0, |s, x, y| s + x * y;
        F16 half::f16::ZERO, |s, x, y| s + x * y; Bf16 half::bf16::ZERO, |s, x, y| s + x * y;
        I8 0_i8, |s, x, y| s.wrapping_add(x.wrapping_mul(y)); U8 0_u8, |s, x, y| s.wrapping_add(x.wrapping_mul(y));
        I16 0_i16, |s, x, y| s.wrapping_add(x.wrapping_mul(y)); U16 0_u16, |s, x, y| s.wrapping_add(x.wrapping_mul(y));
        I32 0_i32, |s, x, y| s.wrapping_add(x.wrapping_mul(y)); U32 0_u32, |s, x, y| s.wrapping_add(x.wrapping_mul(y));
        I64 0_i64, |s, x, y| s.wrapping_add(x.wrapping_mul(y)); U64 0_u64, |s, x, y| s.wrapping_add(x.wrapping_mul(y));
        Bool false, |s, x, y| s | (x & y);
    }
}

/// Computes a reduction, one position of the folded axes after the other for all elements of the result at once.
fn fold(op: ScalarOp, x: &Datum, axes: &[usize], ty: Type) -> Datum {
    let extents: Vec<usize> = axes.iter().map(|&a| x.ty.shape[a]).collect();
    let step = strides(&x.ty.shape);
    let bases: Vec<usize> = positions(&ty.shape).map(|p| strided_position(&p, &step)).collect();
    let start = broadcast(&Datum::scalar(op.neutral(ty.dtype).expect("types were inferred")), &ty.shape);
    positions(&extents).fold(start, |sum, k| {
        let off: usize = k.iter().zip(axes).map(|(k, &a)| k * step[a]).sum();
        let slice = collect_elements(&[x], ty.clone(), bases.iter().map(|b| (0, b + off)));
        eval_scalar(op, &[&sum, &slice], ty.clone())
    })
}

/// Evaluates a convolution or windowed reduction, given as a loop nest with affine indices: folds the terms at one
/// position of the reduced axes after the other into all elements of the result.
fn eval_nest(nest: &LoopNest, args: &[&Datum], ty: Type) -> Datum {
    let wide: Vec<Datum> = args.iter().map(|a| Datum { data: a.data.cast(ty.dtype), ..(*a).clone() }).collect();
    let (parallel, folded) = (nest.parallel_axes(), nest.folded_axes());
    let extents = |axes: &[usize]| axes.iter().map(|&a| nest.axes[a].extent as usize).collect::<Vec<_>>();
    let neutral = nest.op.neutral(ty.dtype).expect("types were inferred");
    let mut sum = broadcast(&Datum::scalar(neutral), &ty.shape);
    if args.iter().any(|a| a.poison.is_some()) {
        sum.poison = Some(vec![false; ty.elements()]);
    }
    for inner in positions(&extents(&folded)) {
        // For each element of the result: the positions of the operands' elements, if these exist.
        let read = |outer: Vec<usize>| {
            let mut at = vec![0; nest.axes.len()];
            parallel.iter().zip(&outer).chain(folded.iter().zip(&inner)).for_each(|(&a, &i)| at[a] = i as i64);
            let to = LoopNest::flat_index(&nest.result, &at, &ty.shape).expect("a nest writes inside of its result");
            let from = nest.operands.iter().zip(args).map(|(place, x)| LoopNest::flat_index(place, &at, &x.ty.shape));
            Some((to, from.collect::<Option<Vec<usize>>>()?))
        };
        let (to, from): (Vec<usize>, Vec<Vec<usize>>) = positions(&extents(&parallel)).filter_map(read).unzip();
        let part =
            |i: usize| collect_elements(&[&wide[i]], Type::new(ty.dtype, [to.len()]), from.iter().map(|f| (0, f[i])));
        let parts: Vec<Datum> = (0..args.len()).map(part).collect();
        let term = match &parts[..] {
            [a, b] => eval_scalar(ScalarOp::Mul, &[a, b], Type::new(ty.dtype, [to.len()])),
            _ => parts[0].clone(),
        };
        let own = collect_elements(&[&sum], term.ty.clone(), to.iter().map(|&i| (0, i)));
        let next = eval_scalar(nest.op, &[&own, &term], term.ty.clone());
        for (k, &i) in to.iter().enumerate() {
            sum.data.set(i, next.data.get(k));
            if next.is_poison(k) {
                sum.poison.as_mut().expect("an operand has poison")[i] = true;
            }
        }
    }
    Datum::new(ty, sum.data).with_poison(sum.poison.unwrap_or_default())
}

/// Computes a running fold (prefix scan) along an axis, from its last element backwards if `reverse`.
fn scan(op: ScalarOp, x: &Datum, axis: usize, reverse: bool) -> Datum {
    let (shape, step) = (&x.ty.shape, strides(&x.ty.shape));
    let mut out = x.clone();
    let n = shape[axis];
    let mut groups = shape.clone();
    groups[axis] = groups[axis].min(1);
    for base in positions(&groups).map(|p| strided_position(&p, &step)) {
        for k in 1..n {
            let (to, from) = if reverse { (n - 1 - k, n - k) } else { (k, k - 1) };
            let (to, from) = (base + to * step[axis], base + from * step[axis]);
            let y = eval_element(op, &[out.data.get(from), x.data.get(to)]);
            out.data.set(to, y);
            if out.is_poison(from) {
                out.poison.as_mut().expect("it has poison")[to] = true;
            }
        }
    }
    out
}

/// Computes the positions of the greatest (`max`) or smallest elements along an axis.
fn eval_arg_min_max(max: bool, x: &Datum, axis: usize, ty: Type) -> Datum {
    let (step, n) = (strides(&x.ty.shape), x.ty.shape[axis]);
    let better = Some(if max { Ordering::Greater } else { Ordering::Less });
    let (mut data, mut poison) = (Data::zeros(DType::I32, ty.elements()), vec![]);
    for (i, p) in positions(&ty.shape).enumerate() {
        let at = |k: usize| strided_position(&p, &step) + k * step[axis];
        let wins = |k: usize, best: usize| {
            let (a, b) = (x.data.get(at(k)), x.data.get(at(best)));
            if x.ty.dtype.is_float() {
                // The first NaN wins.
                let (a, b) = (a.as_f64(), b.as_f64());
                return !b.is_nan() && (a.is_nan() || a.partial_cmp(&b) == better);
            }
            Some(compare_ascending(a, b)) == better
        };
        let best = (1..n).fold(0, |best, k| if wins(k, best) { k } else { best });
        data.set(i, Literal::int(DType::I32, best as i64));
        poison.push((0..n).any(|k| x.is_poison(at(k))));
    }
    Datum::new(ty, data).with_poison(poison)
}
