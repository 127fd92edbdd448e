//! What every kernel holds between passes. The list of invariants is the doc of [`verify`].
use crate::kernel::*;
use crate::parse::region_count;
use crate::{DType, infer};
use std::collections::HashSet;
use std::fmt;

/// A kernel that is not well formed: a mistake of a pass or of a text, never of a user's kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct Violation {
    /// The kernel's name.
    pub kernel: String,
    /// The instruction, operand or region.
    pub entity: String,
    /// The user's line behind it.
    pub loc: Loc,
    /// Which invariant is broken.
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
/// - dimensions and operands have unique names;
/// - an array operand has at most [`MAX_RANK`] dimensions, one block dimension for each, a parameter none, and scratch is one
///   whole block;
/// - `fill` and `empty` have the operand's element type; an output takes over an input of its own
///   type, and each input is taken over once;
/// - an index map has one i32 parameter per grid axis, yields one i32 per dimension, and neither loads, stores nor prints;
/// - the body has no parameters and yields nothing;
/// - every region belongs to one owner, and each instruction stands in one region;
/// - every value is defined once, and before its uses, in the same region or one around it;
/// - tiles have at most [`MAX_RANK`] axes and 2^31 - 1 elements ([`Type::check`]);
/// - results have the types that [`infer`] gives; an instruction has as many regions as its operation takes;
/// - `if` tests a bool, its sides have no parameters and yield the results' types;
/// - `for` counts with i32, its region takes the index and what is carried, and yields what is carried;
/// - `while` carries its results' types into the condition, from it (behind a bool) into the body, and around;
/// - a view has an axis per axis of its frame (kept block dimensions, or array dimensions), with stride at least 1; a
///   dropped axis has one element; starts known now lie inside of the block;
/// - loads read inputs, outputs and scratch; stores write outputs and scratch; `param` and `prefetch` read their kinds.
///
/// # Errors
/// The first violation.
pub fn verify(kernel: &Kernel) -> Result<(), Violation> {
    let mut checker =
        Checker { kernel, defined: vec![false; kernel.values.len()], regions: HashSet::new(), insts: HashSet::new() };
    checker.declarations()?;
    for operand in kernel.operands.iter().filter(|o| o.map.is_some()) {
        checker.map(operand)?;
    }
    let body = kernel.region(kernel.body);
    if !body.params.is_empty() || !body.yields.is_empty() {
        return checker.fail("the body", Loc::NONE, "has parameters or yields values");
    }
    checker.region(kernel.body, "the body", Loc::NONE)
}

type Checked = Result<(), Violation>;

struct Checker<'a> {
    kernel: &'a Kernel,
    /// In scope, by value.
    defined: Vec<bool>,
    /// Seen so far: each may be seen once.
    regions: HashSet<RegionId>,
    insts: HashSet<InstId>,
}

impl<'a> Checker<'a> {
    fn fail(&self, entity: impl Into<String>, loc: Loc, message: impl Into<String>) -> Checked {
        Err(Violation { kernel: self.kernel.name.clone(), entity: entity.into(), loc, message: message.into() })
    }
    fn fail_at(&self, id: InstId, message: impl Into<String>) -> Checked {
        self.fail(self.kernel.inst_text(self.kernel.inst(id)), self.kernel.loc(id), message)
    }

    fn declarations(&self) -> Checked {
        let mut names = HashSet::new();
        if let Some(dim) = self.kernel.dims.iter().find(|d| !names.insert(&d.name)) {
            return self.fail(format!("dim {}", dim.name), Loc::NONE, "is declared twice");
        }
        let (mut names, mut aliased) = (HashSet::new(), HashSet::new());
        for operand in &self.kernel.operands {
            let broken = match &operand.kind {
                _ if !names.insert(&operand.name) => Some("is declared twice"),
                OperandKind::Output { alias: Some(from), .. } if !aliased.insert(from) => {
                    Some("takes over another's input")
                }
                _ => self.operand(operand),
            };
            if let Some(message) = broken {
                return self.fail(format!("@{}", operand.name), Loc::NONE, message);
            }
        }
        Ok(())
    }
    /// The broken invariant of an operand.
    fn operand(&self, operand: &Operand) -> Option<&'static str> {
        let param = operand.kind == OperandKind::Param;
        let whole = |(b, d): (&BlockDim, &crate::Dim)| b.kept() && d.as_number() == Some(b.size() as i64);
        if operand.block.len() != operand.dims.len() {
            return Some("has another number of block dimensions than of dimensions");
        }
        if operand.dims.len() > MAX_RANK {
            return Some("has too many dimensions");
        }
        if param && !operand.dims.is_empty() {
            return Some("is a parameter with dimensions");
        }
        if operand.kind == OperandKind::Scratch && !operand.block.iter().zip(&operand.dims).all(whole) {
            return Some("is scratch but not one whole block");
        }
        if operand.fill.is_some_and(|x| x.dtype != operand.dtype) {
            return Some("has a fill of another element type");
        }
        let OperandKind::Output { empty, alias } = &operand.kind else { return None };
        if empty.dtype != operand.dtype {
            return Some("has an empty value of another element type");
        }
        let input = alias.map(|id| self.kernel.operands.get(id.index()));
        match input {
            Some(Some(o)) if o.kind == OperandKind::Input && o.dtype == operand.dtype => None,
            None => None,
            Some(_) => Some("takes over what is no input of its element type"),
        }
    }

    fn map(&mut self, operand: &Operand) -> Checked {
        let entity = format!("the index map of @{}", operand.name);
        let id = operand.map.expect("called for operands with a map");
        let region = self.kernel.region(id);
        let integer = |v: &Value| *self.kernel.ty(*v) == Type::scalar(DType::I32);
        if region.params.len() != self.kernel.grid.len() || !region.params.iter().all(integer) {
            return self.fail(entity, Loc::NONE, "does not take one i32 per grid axis");
        }
        self.region(id, &entity, Loc::NONE)?;
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

    /// A region and everything in it; its definitions go out of scope again.
    fn region(&mut self, id: RegionId, owner: &str, loc: Loc) -> Checked {
        let Some(region) = self.kernel.regions.get(id.index()) else {
            return self.fail(owner, loc, format!("has no region {id}"));
        };
        if !self.regions.insert(id) {
            return self.fail(owner, loc, format!("shares {id} with another owner"));
        }
        let mut scope: Vec<Value> = region.params.clone();
        for &v in &region.params {
            self.define(v, owner, loc)?;
        }
        for &i in &region.insts {
            self.inst(i)?;
            scope.extend(&self.kernel.inst(i).results);
        }
        for v in &region.yields {
            if !self.defined[v.index()] {
                return self.fail(owner, loc, format!("yields {v}, which is not defined there"));
            }
        }
        scope.into_iter().for_each(|v| self.defined[v.index()] = false);
        Ok(())
    }
    fn define(&mut self, v: Value, owner: &str, loc: Loc) -> Checked {
        match self.defined.get_mut(v.index()) {
            Some(defined) if !*defined => {
                *defined = true;
                self.kernel.ty(v).check().or_else(|diag| self.fail(owner, loc, diag.message))
            }
            Some(_) => self.fail(owner, loc, format!("defines {v} again")),
            None => self.fail(owner, loc, format!("defines {v}, which has no type")),
        }
    }

    fn inst(&mut self, id: InstId) -> Checked {
        if !self.insts.insert(id) {
            return self.fail_at(id, "stands in the kernel twice");
        }
        let inst = self.kernel.inst(id);
        if let Some(v) = inst.args.iter().find(|v| !self.defined.get(v.index()).is_some_and(|d| *d)) {
            return self.fail_at(id, format!("uses {v}, which is not defined here"));
        }
        if inst.regions.len() != region_count(&inst.op) {
            return self.fail_at(id, format!("has {} regions, not {}", inst.regions.len(), region_count(&inst.op)));
        }
        for &region in &inst.regions {
            self.region(region, &self.kernel.inst_text(inst), self.kernel.loc(id))?;
        }
        if let Some(message) = self.access(&inst.op).or_else(|| self.types(inst)) {
            return self.fail_at(id, message);
        }
        match inst.results.iter().try_for_each(|&v| self.define(v, "", self.kernel.loc(id))) {
            Err(violation) => self.fail_at(id, violation.message),
            Ok(()) => Ok(()),
        }
    }

    fn types_of(&self, values: &[Value]) -> Vec<&'a Type> {
        values.iter().map(|&v| self.kernel.ty(v)).collect()
    }
    /// The broken invariant of an instruction's types.
    fn types(&self, inst: &Inst) -> Option<String> {
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

    /// The broken invariant of what an instruction touches.
    fn access(&self, op: &Op) -> Option<String> {
        let kind = |id: &OperandId| self.kernel.operands.get(id.index()).map(|o| &o.kind);
        let block = |k: &OperandKind| !matches!(k, OperandKind::Param | OperandKind::Prefetch);
        let (id, allowed, view) = match op {
            Op::Load { from: id, view, .. } | Op::Valid { of: id, view, .. } => {
                (id, kind(id).is_some_and(block), Some(view))
            }
            Op::Store { to: id, view, .. } => {
                let written = |k: &OperandKind| matches!(k, OperandKind::Output { .. } | OperandKind::Scratch);
                (id, kind(id).is_some_and(written), Some(view))
            }
            Op::Param(id) => (id, kind(id) == Some(&OperandKind::Param), None),
            Op::Prefetch(id) => (id, kind(id) == Some(&OperandKind::Prefetch), None),
            Op::Extent(dim) if dim.index() >= self.kernel.dims.len() => return Some(format!("there is no {dim}")),
            _ => return None,
        };
        if !allowed {
            return Some(format!("{id} is of a kind it does not access"));
        }
        self.view(self.kernel.operand(*id), view?)
    }
    fn view(&self, operand: &Operand, view: &View) -> Option<String> {
        let extents: Vec<Option<usize>> = match view.frame {
            Frame::Block => operand.block_shape().into_iter().map(Some).collect(),
            Frame::Array => vec![None; operand.dims.len()],
        };
        if view.axes.len() != extents.len() {
            return Some(format!("a view of {} axes into {}", view.axes.len(), extents.len()));
        }
        for (axis, extent) in view.axes.iter().zip(extents) {
            if axis.stride < 1 || (!axis.kept && axis.size != 1) {
                return Some(format!("the view's axis `{axis}` has no stride, or drops more than one element"));
            }
            let last = axis.offset + axis.stride * (axis.size as i64 - 1);
            let inside = extent.is_none_or(|n| axis.size == 0 || (axis.offset >= 0 && last < n as i64));
            if !axis.dynamic && !inside {
                return Some(format!("the view's axis `{axis}` leaves its block"));
            }
        }
        None
    }
}
