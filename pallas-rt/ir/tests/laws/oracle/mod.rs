//! The oracle of the laws: an eager builder over `f64` that runs each row's reference.
pub(crate) mod shaped;

use pallas_ir::emit::{Term, ValueId};
use pallas_ir::scalar::SignatureType;
use pallas_ir::{DType, E, Elem, ElementFunction, ElementOperands, OpVisitor, RuleBackend, ScalarOp, Slice, SliceMut};
use std::cell::RefCell;

/// Every value so far, one element each lane; booleans are 0 and 1.
#[derive(Default)]
pub(crate) struct Eager(Vec<Vec<f64>>);

impl RuleBackend for Eager {
    fn emit(&mut self, op: Term, args: &[ValueId]) -> ValueId {
        let args: Vec<&[f64]> = args.iter().map(|a| &self.0[a.0 as usize][..]).collect();
        let value = match op {
            Term::Like(x) | Term::Number(x) => vec![x; args[0].len()],
            Term::Structural(op) => unreachable!("rows do not use `{op}`"),
            Term::Scalar(op) => apply(op, &args),
        };
        self.0.push(value);
        ValueId(self.0.len() as u32 - 1)
    }
}

/// A value that rules can use.
pub(crate) fn put(to: &RefCell<Eager>, value: Vec<f64>) -> E<'_> {
    let mut eager = to.borrow_mut();
    eager.0.push(value);
    E { to, id: ValueId(eager.0.len() as u32 - 1) }
}

/// What a value is.
pub(crate) fn get(from: &RefCell<Eager>, value: E<'_>) -> Vec<f64> {
    from.borrow().0[value.id.0 as usize].clone()
}

/// The row's reference on every lane.
pub(crate) fn apply(op: ScalarOp, args: &[&[f64]]) -> Vec<f64> {
    let n = args[0].len();
    (0..n).map(|i| one(op, &args.iter().map(|a| a[i]).collect::<Vec<_>>())).collect()
}

fn one(op: ScalarOp, args: &[f64]) -> f64 {
    let floats: Vec<[f64; 1]> = args.iter().map(|&x| [x]).collect();
    let bools: Vec<[bool; 1]> = args.iter().map(|&x| [x != 0.0]).collect();
    let strip = |(i, (_, ty)): (usize, &(&str, SignatureType))| match ty {
        SignatureType::Is(DType::Bool) => Slice::Bool(&bools[i]),
        SignatureType::Is(_) | SignatureType::T => Slice::F64(&floats[i]),
    };
    let strips: Vec<Slice<'_>> = op.row().operands.iter().enumerate().map(strip).collect();
    let (mut float, mut bool) = ([0.0], [false]);
    let returns_bool = op.row().result == SignatureType::Is(DType::Bool);
    let out = if returns_bool { SliceMut::Bool(&mut bool) } else { SliceMut::F64(&mut float) };
    let lane = Strip { args: &strips, out, fast: false };
    if op.visit(DType::F64, lane).is_none() {
        return of_integers(op, args);
    }
    if returns_bool { f64::from(bool[0]) } else { float[0] }
}

/// The same for operations on bits, which floats do not have.
fn of_integers(op: ScalarOp, args: &[f64]) -> f64 {
    let integers: Vec<[i32; 1]> = args.iter().map(|&x| [x as i32]).collect();
    let strips: Vec<Slice<'_>> = integers.iter().map(|x| Slice::I32(x)).collect();
    let mut out = [0];
    let lane = Strip { args: &strips, out: SliceMut::I32(&mut out), fast: false };
    op.visit(DType::I32, lane).unwrap_or_else(|| panic!("{op} has no lane of f64 or i32"));
    f64::from(out[0])
}

/// One strip through a row's lane.
pub(crate) struct Strip<'a, 'b> {
    /// The operands.
    pub(crate) args: &'b [Slice<'a>],
    /// The result; its length is the strip's.
    pub(crate) out: SliceMut<'b>,
    /// The `cpu` cell instead of the reference.
    pub(crate) fast: bool,
}

impl OpVisitor for Strip<'_, '_> {
    type Out = ();
    fn visit<O: ElementFunction<A>, A: ElementOperands>(self) {
        let out = O::Out::of_mut(self.out);
        let strips = A::strips(self.args, out.len());
        for (i, y) in out.iter_mut().enumerate() {
            let args = A::at(strips, i);
            *y = if self.fast { O::fast(args) } else { O::reference(args) };
        }
    }
}
