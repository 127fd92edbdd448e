//! The verifier: [`verify`] lists and checks the invariants of a kernel between passes.
//!
//! A backend reads and writes memory as the kernel says. A kernel that reaches one was therefore built by this
//! program's own builder or accepted here.
use crate::kernel::*;
use crate::parse::region_count;
use crate::structural::{AccessForm, MapPiece};
use crate::{DType, Dim, StructuralOp, infer};
use std::collections::HashSet;
use std::fmt;

/// A violated invariant of a kernel: a mistake of a pass or of a text, never of a user's kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct Violation {
    /// Name of the kernel.
    pub kernel: String,
    /// Text of the instruction, operand or region.
    pub entity: String,
    /// Source position of the instruction.
    pub loc: Loc,
    /// The broken invariant.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel `{}`, {}: {}", self.kernel, self.entity, self.message)?;
        if self.loc != Loc::NONE { write!(f, " ({})", self.loc) } else { Ok(()) }
    }
}
impl std::error::Error for Violation {}

/// Checks that
///
/// - every id refers to an existing entity, and each instruction has a line;
/// - a tile, and an operand, has at most [`MAX_RANK`] axes; a tile has less than 2^31 elements;
/// - dimensions and operands have unique names; a size that is known is 0 to 2^31 - 1;
/// - sizes of operands, of the grid and of `steps` are known, and mention only the kernel's dimensions;
/// - a kernel with a sequential axis has no `steps`, which stand for these in lowered form;
/// - an array operand has one block dimension per array dimension, a parameter none, and scratch is one whole block;
/// - the sizes of a block, and its number of elements, are below 2^31 (a prefetch has no block);
/// - constants, `fill` and `empty` have no bits beyond the width of their type; a bool is 0 or 1;
/// - `fill` and `empty` have the operand's element type; `buffered` is 1 to 3;
/// - an output aliases an input of its own type, which no other output aliases;
/// - inputs and outputs alone have index maps: one i32 parameter per grid axis, one i32 yielded per dimension, no
///   loads, stores, prints and assertions;
/// - the body has no parameters and yields nothing;
/// - every region belongs to one owner, nested at most [`MAX_DEPTH`] deep, and each instruction is in exactly one
///   region;
/// - every value is defined once, and before its uses, in the same region or one around it;
/// - results have the types that [`infer`] gives; an instruction has as many regions as its operation takes;
/// - a fold that rounds at each step has operands of a type that accumulates: sums of 16-bit floats stand between
///   casts;
/// - `if` tests a bool, its sides have no parameters and yield the results' types;
/// - `for` counts with i32, its region takes the index and what is carried, and yields what is carried;
/// - `while` passes values of its results' types to the condition, from it (after a bool) to the body, and back to the
///   condition;
/// - a view has an axis per axis of its frame (kept block dimensions, or array dimensions); its positions before a
///   start is added, and its strides, are below 2^31, strides at least 1; a dropped axis has one element; constant
///   starts are inside of the block, for scratch in either frame;
/// - loads read inputs, outputs and scratch; stores write outputs and scratch; `param` and `prefetch` read their kinds;
/// - views either all count from blocks (traced form) or all from arrays (lowered form: no index maps, no sequential
///   axes).
///
/// # Errors
/// The first violation.
pub fn verify(kernel: &Kernel) -> Result<(), Violation> {
    let defined = vec![false; kernel.values.len()];
    let mut checker = KernelVerifier { kernel, defined, regions: HashSet::new(), insts: HashSet::new(), depth: 0 };
    checker.check_ids()?;
    checker.check_declarations()?;
    for operand in kernel.operands.iter().filter(|o| o.map.is_some()) {
        checker.check_index_map(operand)?;
    }
    let body = kernel.region(kernel.body);
    if !body.params.is_empty() || !body.yields.is_empty() {
        return checker.fail("the body", Loc::NONE, "has parameters or yields values");
    }
    checker.check_region(kernel.body, "the body", Loc::NONE)?;
    match checker.has_block_and_array_views() {
        (true, true) => checker.fail("the body", Loc::NONE, "has views of blocks and views of arrays"),
        (_, true) => checker.check_lowered(),
        _ => Ok(()),
    }
}

/// Checks the invariants of [`verify`], and that the kernel is in lowered form, which CPU backend and shaders need.
///
/// # Errors
/// The first violation.
pub fn verify_lowered(kernel: &Kernel) -> Result<(), Violation> {
    verify(kernel)?;
    let checker = KernelVerifier { kernel, defined: vec![], regions: HashSet::new(), insts: HashSet::new(), depth: 0 };
    match checker.has_block_and_array_views() {
        (true, _) => checker.fail("the body", Loc::NONE, "has views of blocks, which is not the lowered form"),
        _ => checker.check_lowered(),
    }
}

/// Result of a check: the first violation, if any.
type CheckResult = Result<(), Violation>;

/// Largest position and size: positions are i32.
const MAX_POSITION: i64 = i32::MAX as i64;

/// State of the verification of one kernel.
struct KernelVerifier<'a> {
    kernel: &'a Kernel,
    /// True if each value is defined in the current scope, indexed by [`Value`].
    defined: Vec<bool>,
    /// Regions and instructions seen so far: each may occur once.
    regions: HashSet<RegionId>,
    insts: HashSet<InstId>,
    /// Number of regions around the current one.
    depth: usize,
}

impl<'a> KernelVerifier<'a> {
    /// Returns the error that an entity of the kernel, such as `%3` or a grid axis, breaks an invariant.
    fn fail(&self, entity: impl Into<String>, loc: Loc, message: impl Into<String>) -> CheckResult {
        Err(Violation { kernel: self.kernel.name.clone(), entity: entity.into(), loc, message: message.into() })
    }
    /// Returns a violation of this instruction.
    fn fail_at(&self, id: InstId, message: impl Into<String>) -> CheckResult {
        self.fail(self.kernel.inst_text(self.kernel.inst(id)), self.kernel.loc(id), message)
    }

    /// Checks that every id refers to an existing entity, since later checks and every backend index by ids. Checks the
    /// limits of all tiles.
    #[warn(clippy::wildcard_enum_match_arm)]
    fn check_ids(&self) -> CheckResult {
        let k = self.kernel;
        let values = |list: &[Value]| list.iter().all(|v| v.index() < k.values.len());
        let operand = |id: &OperandId| id.index() < k.operands.len();
        let of_inst = |inst: &Inst| {
            let own = match &inst.op {
                Op::Extent(dim) => dim.index() < k.dims.len(),
                Op::Load { from: id, .. } | Op::Store { to: id, .. } | Op::Valid { of: id, .. } => operand(id),
                Op::Param(id) | Op::Prefetch(id) => operand(id),
                Op::Const(_) | Op::Scalar(_) | Op::Structural(_) => true,
                Op::ProgramId(_) | Op::NumPrograms(_) | Op::NumSteps(_) => true,
                Op::If | Op::For { .. } | Op::While | Op::DebugPrint(_) | Op::DebugAssert(_) => true,
            };
            own && values(&inst.args)
                && values(&inst.results)
                && inst.regions.iter().all(|r| r.index() < k.regions.len())
        };
        let of_region =
            |r: &Region| values(&r.params) && values(&r.yields) && r.insts.iter().all(|i| i.index() < k.insts.len());
        let of_operand = |o: &Operand| {
            let alias = if let OperandKind::Output { alias, .. } = &o.kind { *alias } else { None };
            alias.is_none_or(|id| operand(&id)) && o.map.is_none_or(|r| r.index() < k.regions.len())
        };
        let all = k.insts.iter().all(of_inst) && k.regions.iter().all(of_region) && k.operands.iter().all(of_operand);
        if !all || k.body.index() >= k.regions.len() || k.locs.len() != k.insts.len() {
            return self.fail("the kernel", Loc::NONE, "has an id that names nothing");
        }
        match k.values.iter().position(|ty| ty.check().is_err()) {
            Some(i) => {
                let message = format!("a tile has at most {MAX_RANK} axes and less than 2^31 elements");
                self.fail(format!("{}: {}", Value(i as u32), k.values[i]), Loc::NONE, message)
            }
            None => Ok(()),
        }
    }

    /// Checks the named dimensions, and the extents of grid, steps and operands.
    fn check_declarations(&self) -> CheckResult {
        let mut names = HashSet::new();
        for dim in &self.kernel.dims {
            if !names.insert(&dim.name[..]) {
                return self.fail(format!("dim {}", dim.name), Loc::NONE, "is declared twice");
            }
            if dim.size.is_some_and(|n| !(0..=MAX_POSITION).contains(&n)) {
                return self.fail(format!("dim {}", dim.name), Loc::NONE, "has a size that is not 0 to 2^31 - 1");
            }
        }
        let known = |dim: &Dim| *dim != Dim::UNKNOWN && dim.names().iter().all(|n| names.contains(&n[..]));
        if let Some(axis) = self.kernel.grid.iter().position(|axis| !known(&axis.extent)) {
            return self.fail(format!("grid axis {axis}"), Loc::NONE, "has an extent of unknown dimensions");
        }
        if !self.kernel.steps.iter().all(known) {
            return self.fail("the steps", Loc::NONE, "have an extent of unknown dimensions");
        }
        if !self.kernel.steps.is_empty() && self.kernel.grid.iter().any(|a| a.semantics == Semantics::Arbitrary) {
            return self.fail("the steps", Loc::NONE, "stand beside a sequential axis");
        }
        let (mut operands, mut taken) = (HashSet::new(), HashSet::new());
        for operand in &self.kernel.operands {
            let mut broken = self.operand_violation(operand);
            if !operands.insert(&operand.name) {
                broken = Some("is declared twice");
            } else if !operand.dims.iter().all(known) {
                broken = Some("has a size of unknown dimensions");
            } else if let OperandKind::Output { alias: Some(input), .. } = &operand.kind
                && !taken.insert(input)
            {
                broken = broken.or(Some("takes over an input that another output takes over"));
            }
            if let Some(message) = broken {
                return self.fail(format!("@{}", operand.name), Loc::NONE, message);
            }
        }
        Ok(())
    }
    /// Returns the message for the first rule that the declaration of an operand breaks, such as that on the size of
    /// its block; `None` if it is valid.
    fn operand_violation(&self, operand: &Operand) -> Option<&'static str> {
        use OperandKind::{Input, Output, Param, Prefetch, Scratch};
        let whole = |(b, d): (&BlockDim, &Dim)| b.is_kept() && d.as_number() == Some(b.size() as i64);
        let small = |b: &BlockDim| match b {
            BlockDim::Squeezed => true,
            BlockDim::Blocked(size) => *size as u64 <= MAX_POSITION as u64,
            BlockDim::Element { size, low, high } => {
                [size, low, high].iter().all(|n| **n as u64 <= MAX_POSITION as u64)
            }
        };
        let indexable = || Type::new(operand.dtype, operand.block_shape()).is_indexable();
        if operand.block.len() != operand.dims.len() {
            return Some("has another number of block dimensions than of dimensions");
        }
        if operand.dims.len() > MAX_RANK {
            return Some("has more than 8 dimensions");
        }
        if operand.kind == Param && !operand.dims.is_empty() {
            return Some("is a parameter with dimensions");
        }
        if operand.kind != Prefetch && !(operand.block.iter().all(small) && indexable()) {
            return Some("has a block of 2^31 elements or more");
        }
        if operand.kind == Scratch && !operand.block.iter().zip(&operand.dims).all(whole) {
            return Some("is scratch but not one whole block");
        }
        if operand.map.is_some() && !matches!(operand.kind, Input | Output { .. }) {
            return Some("has an index map, but is neither an input nor an output");
        }
        if operand.buffered.is_some_and(|n| !(1..=3).contains(&n)) {
            return Some("is buffered, but not 1 to 3 times");
        }
        if operand.fill.is_some_and(|x| x.dtype != operand.dtype || !x.is_canonical()) {
            return Some("has a fill that is not of its element type");
        }
        let Output { empty, alias } = &operand.kind else { return None };
        if empty.dtype != operand.dtype || !empty.is_canonical() {
            return Some("has an empty value that is not of its element type");
        }
        match alias.map(|id| self.kernel.operand(id)) {
            Some(o) if o.kind == Input && o.dtype == operand.dtype => None,
            None => None,
            Some(_) => Some("takes over what is no input of its element type"),
        }
    }

    /// Returns two bools: true if views of blocks occur (traced form), and true if views of arrays occur (lowered
    /// form).
    fn has_block_and_array_views(&self) -> (bool, bool) {
        let mut found = (false, false);
        self.kernel.walk(self.kernel.body, &mut |_, inst| {
            if let Op::Load { view, .. } | Op::Store { view, .. } | Op::Valid { view, .. } = &inst.op {
                found.0 |= view.frame == ViewFrame::Block;
                found.1 |= view.frame == ViewFrame::Array;
            }
        });
        found
    }
    /// Checks that nothing of the traced form is left, apart from views of blocks.
    fn check_lowered(&self) -> CheckResult {
        if let Some(operand) = self.kernel.operands.iter().find(|o| o.map.is_some()) {
            return self.fail(format!("@{}", operand.name), Loc::NONE, "has an index map beside views of arrays");
        }
        if let Some(axis) = self.kernel.grid.iter().position(|axis| axis.semantics == Semantics::Arbitrary) {
            return self.fail(format!("grid axis {axis}"), Loc::NONE, "is sequential beside views of arrays");
        }
        let mut broken = None;
        self.kernel.walk(self.kernel.body, &mut |id, inst| {
            if let (Op::Structural(op), None) = (&inst.op, broken) {
                broken = self.lowered_op_violation(op, inst).map(|message| (id, message));
            }
        });
        broken.map_or(Ok(()), |(id, message)| self.fail_at(id, message))
    }
    /// Returns the message for a structural operation of a lowered kernel that drops folded axes, or accesses elements
    /// outside of its operands or result; `None` if it is valid.
    fn lowered_op_violation(&self, op: &StructuralOp, inst: &Inst) -> Option<&'static str> {
        if op.with_kept_axes().is_some() {
            return Some("drops the axes it folds, which the lowered form keeps");
        }
        let dims: Vec<Vec<Dim>> = inst.args.iter().map(|&v| self.kernel.ty(v).dims()).collect();
        let dims: Vec<&[Dim]> = dims.iter().map(|d| &d[..]).collect();
        let result = self.kernel.ty(*inst.results.first()?).dims();
        let pieces = match op.access(&dims) {
            AccessForm::Map(pieces) => pieces,
            AccessForm::Nest(nest) => {
                let number = |n: &Dim| n.as_number().expect("a kernel's types have numbers");
                let fits = nest.is_empty()
                    || nest.result.len() == result.len()
                        && nest.result.iter().zip(&result).all(|(p, n)| p.is_always_inside(&nest.axes, number(n)));
                return (!fits).then_some("has an access form that writes outside of its result");
            }
            _ => return None,
        };
        let inside = |p: &MapPiece| dims.get(p.operand).is_some_and(|operand| p.is_inside_operand(operand, &result));
        (!pieces.iter().all(inside)).then_some("has an access form that reads outside of its operand")
    }

    /// Checks that the index map of an operand takes an i32 per grid axis, yields an i32 per dimension, and neither
    /// accesses blocks nor prints or asserts.
    fn check_index_map(&mut self, operand: &Operand) -> CheckResult {
        let entity = format!("the index map of @{}", operand.name);
        let id = operand.map.expect("called for operands with a map");
        let region = self.kernel.region(id);
        let integer = |v: &Value| *self.kernel.ty(*v) == Type::scalar(DType::I32);
        if region.params.len() != self.kernel.grid.len() || !region.params.iter().all(integer) {
            return self.fail(entity, Loc::NONE, "does not take one i32 per grid axis");
        }
        self.check_region(id, &entity, Loc::NONE)?;
        let region = self.kernel.region(id);
        if region.yields.len() != operand.dims.len() || !region.yields.iter().all(integer) {
            return self.fail(entity, Loc::NONE, "does not yield one i32 per dimension");
        }
        let mut touching = None;
        self.kernel.walk(id, &mut |i, inst| {
            let touches = matches!(
                inst.op,
                Op::Load { .. } | Op::Store { .. } | Op::Valid { .. } | Op::DebugPrint(_) | Op::DebugAssert(_)
            );
            touching = touching.or(touches.then_some(i));
        });
        match touching {
            Some(i) => self.fail_at(i, "an index map neither reads blocks nor has effects"),
            None => Ok(()),
        }
    }

    /// Checks a region and everything in it; its definitions go out of scope at its end.
    fn check_region(&mut self, id: RegionId, owner: &str, loc: Loc) -> CheckResult {
        let region = self.kernel.region(id);
        if self.depth > MAX_DEPTH {
            return self.fail(owner, loc, format!("is nested more than {MAX_DEPTH} deep"));
        }
        if !self.regions.insert(id) {
            return self.fail(owner, loc, format!("shares {id} with another owner"));
        }
        let mut scope: Vec<Value> = region.params.clone();
        for &v in &region.params {
            self.mark_defined(v, owner, loc)?;
        }
        self.depth += 1;
        for &i in &region.insts {
            self.check_inst(i)?;
            scope.extend(&self.kernel.inst(i).results);
        }
        for v in &region.yields {
            if !self.defined[v.index()] {
                return self.fail(owner, loc, format!("yields {v}, which is not defined there"));
            }
        }
        self.depth -= 1;
        scope.into_iter().for_each(|v| self.defined[v.index()] = false);
        Ok(())
    }
    /// Marks a value as defined. A second definition is a violation, for which `owner` and `loc` name what defines it
    /// and where.
    fn mark_defined(&mut self, v: Value, owner: &str, loc: Loc) -> CheckResult {
        if std::mem::replace(&mut self.defined[v.index()], true) {
            return self.fail(owner, loc, format!("defines {v} again"));
        }
        Ok(())
    }

    /// Checks an instruction and its regions.
    fn check_inst(&mut self, id: InstId) -> CheckResult {
        if !self.insts.insert(id) {
            return self.fail_at(id, "stands in the kernel twice");
        }
        let inst = self.kernel.inst(id);
        if let Some(v) = inst.args.iter().find(|v| !self.defined[v.index()]) {
            return self.fail_at(id, format!("uses {v}, which is not defined here"));
        }
        if inst.regions.len() != region_count(&inst.op) {
            return self.fail_at(id, format!("has {} regions, not {}", inst.regions.len(), region_count(&inst.op)));
        }
        for &region in &inst.regions {
            self.check_region(region, &self.kernel.inst_text(inst), self.kernel.loc(id))?;
        }
        if let Some(message) = self
            .access_violation(&inst.op)
            .or_else(|| self.type_violation(inst))
            .or_else(|| self.accumulator_violation(inst))
        {
            return self.fail_at(id, message);
        }
        match inst.results.iter().try_for_each(|&v| self.mark_defined(v, "", self.kernel.loc(id))) {
            Err(violation) => self.fail_at(id, violation.message),
            Ok(()) => Ok(()),
        }
    }

    /// Types of values.
    fn types_of(&self, values: &[Value]) -> Vec<&'a Type> {
        values.iter().map(|&v| self.kernel.ty(v)).collect()
    }
    /// Returns the message for an instruction whose operands, regions and results have types that do not fit its
    /// operation; `None` if they fit.
    fn type_violation(&self, inst: &Inst) -> Option<String> {
        let (args, results) = (self.types_of(&inst.args), self.types_of(&inst.results));
        let regions: Vec<&Region> = inst.regions.iter().map(|&r| self.kernel.region(r)).collect();
        let params = |i: usize| self.types_of(&regions[i].params);
        let yields = |i: usize| self.types_of(&regions[i].yields);
        let scalar = |t: &&Type, dtype| **t == Type::scalar(dtype);
        let fits = match &inst.op {
            Op::If => {
                let sides = (0..2).all(|i| params(i).is_empty() && yields(i) == results);
                args.len() == 1 && scalar(&args[0], DType::Bool) && sides
            }
            Op::For { .. } => {
                let counts = args.len() >= 3 && args[..3].iter().all(|t| scalar(t, DType::I32));
                let index = params(0).first().is_some_and(|t| scalar(t, DType::I32));
                counts && index && args[3..] == params(0)[1..] && yields(0) == results && args[3..] == results[..]
            }
            Op::While => {
                let tested = yields(0);
                let test = tested.first().is_some_and(|t| scalar(t, DType::Bool));
                test && params(0) == args && tested[1..] == results[..] && params(1) == results && yields(1) == args
            }
            op => {
                let expected = match infer(self.kernel, op, &args) {
                    Ok(expected) => expected,
                    Err(diag) => return Some(diag.message),
                };
                expected.iter().collect::<Vec<_>>() == results
            }
        };
        (!fits).then(|| "has types that its operation does not give".into())
    }

    /// Returns the violation if a fold does not accumulate in the type that its operation requires.
    fn accumulator_violation(&self, inst: &Inst) -> Option<String> {
        let Op::Structural(op) = &inst.op else { return None };
        let dtypes: Vec<DType> = inst.args.iter().map(|&v| self.kernel.ty(v).dtype).collect();
        op.accumulator(&dtypes).map(|wide| format!("accumulates in {}, not in {wide}", dtypes[0]))
    }

    /// Returns the message for an operation that accesses an operand of a wrong kind or by an invalid view, or a
    /// constant with excess bits; `None` if it is valid.
    #[warn(clippy::wildcard_enum_match_arm)]
    fn access_violation(&self, op: &Op) -> Option<String> {
        let kind = |id: &OperandId| &self.kernel.operand(*id).kind;
        let (id, allowed, view) = match op {
            Op::Load { from: id, view, .. } | Op::Valid { of: id, view, .. } => {
                (id, !matches!(kind(id), OperandKind::Param | OperandKind::Prefetch), Some(view))
            }
            Op::Store { to: id, view, .. } => {
                (id, matches!(kind(id), OperandKind::Output { .. } | OperandKind::Scratch), Some(view))
            }
            Op::Param(id) => (id, *kind(id) == OperandKind::Param, None),
            Op::Prefetch(id) => (id, *kind(id) == OperandKind::Prefetch, None),
            Op::Const(x) if !x.is_canonical() => return Some("has bits that its type has not".into()),
            Op::Const(_) | Op::Scalar(_) | Op::Structural(_) => return None,
            Op::ProgramId(_) | Op::NumPrograms(_) | Op::NumSteps(_) | Op::Extent(_) => return None,
            Op::If | Op::For { .. } | Op::While | Op::DebugPrint(_) | Op::DebugAssert(_) => return None,
        };
        if !allowed {
            return Some(format!("{id} is of a kind it does not access"));
        }
        self.view_violation(self.kernel.operand(*id), view?)
    }
    /// Returns the message for a view of an operand with a wrong number of axes, a stride below 1, positions beyond
    /// 2^31, or constant positions outside of its block; `None` if it is valid.
    fn view_violation(&self, operand: &Operand, view: &View) -> Option<String> {
        // The known extents: those of blocks and of scratch.
        let extents: Vec<Option<usize>> = match view.frame {
            _ if operand.kind == OperandKind::Scratch => operand.block_shape().into_iter().map(Some).collect(),
            ViewFrame::Block => operand.block_shape().into_iter().map(Some).collect(),
            ViewFrame::Array => vec![None; operand.dims.len()],
        };
        if view.axes.len() != extents.len() {
            return Some(format!("a view of {} axes into {}", view.axes.len(), extents.len()));
        }
        for (axis, extent) in view.axes.iter().zip(extents) {
            if axis.stride < 1 || (!axis.kept && axis.size != 1) {
                return Some(format!("the view's axis `{axis}` has no stride, or drops more than one element"));
            }
            let (first, steps) = (i128::from(axis.offset), axis.size.saturating_sub(1) as i128);
            let last = first + i128::from(axis.stride) * steps;
            let far = [first, last, i128::from(axis.stride)].into_iter().any(|n| i32::try_from(n).is_err());
            if far {
                return Some(format!("the view's axis `{axis}` has positions beyond 2^31"));
            }
            let inside = extent.is_none_or(|n| axis.size == 0 || (first >= 0 && last < n as i128));
            if !axis.dynamic && !inside {
                return Some(format!("the view's axis `{axis}` leaves its block"));
            }
        }
        None
    }
}
