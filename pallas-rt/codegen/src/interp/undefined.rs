//! Messages about undefined elements: where each comes from, and how to correct the kernel.
use super::datum::{Datum, PoisonOrigin, unflatten};
use super::fault::Fault;
use super::machine::Machine;
use pallas_ir::{Inst, Loc, Op, OperandId, OperandKind};
use std::sync::Arc;

impl Machine {
    /// Describes the origin of the undefined element `i` of a loaded tile of shape `tile_shape`, which is at position
    /// `at` of its operand (`None`: outside).
    pub(super) fn poison_origin(
        &self,
        from: OperandId,
        i: usize,
        at: Option<usize>,
        tile_shape: &[usize],
        loc: Loc,
    ) -> Arc<PoisonOrigin> {
        let (operand, memory) = (self.kernel.operand(from), &self.memory[from.index()]);
        let name = &operand.name;
        if let (Some(_), Some(origin)) = (at, &memory.origin) {
            return origin.clone();
        }
        let (what, help) = match (at, &operand.kind) {
            (None, _) => (
                format!("outside of `{name}`, whose shape is {:?}: element {:?} of the loaded tile", memory.shape, unflatten(i, tile_shape)),
                format!("declare `fill = ..` beside the spec of `{name}`, or mask with `select({name}.valid(axis), ..)`"),
            ),
            (Some(at), OperandKind::Scratch) => (
                format!("element {:?} of scratch `{name}`, which this program has not stored", unflatten(at, &memory.shape)),
                format!("store to `{name}` at the program's first step, or before the load"),
            ),
            (Some(at), _) => (
                format!("{}, which was read before it was stored", self.describe_element(from, at)),
                "sum along an `arbitrary` axis that the output's index map leaves out, and begin where `program_id` of \
                 that axis is 0"
                    .to_string(),
            ),
        };
        Arc::new(PoisonOrigin { what, help, loc })
    }

    /// Returns the fault of a store of element `i` of the tile `value`, which is undefined, to the element at position
    /// `at` of the output `to`.
    pub(super) fn poisoned_store_fault(&self, to: OperandId, i: usize, at: usize, value: &Datum, loc: Loc) -> Fault {
        let in_tile = unflatten(i, &value.ty.shape);
        let (from, help) = Self::describe_origin(value);
        let message = format!("{}, element {in_tile:?} of the tile, comes from {from}", self.describe_element(to, at));
        self.fault("poison", loc, message, &help)
    }

    /// Returns the fault of an undefined value that controls something, described by `what`.
    pub(super) fn undefined_fault(&self, x: &Datum, what: &str, loc: Loc) -> Fault {
        let (from, help) = Self::describe_origin(x);
        self.fault("poisoned-decision", loc, format!("{what} comes from {from}"), &help)
    }
    /// Returns the origin of undefined elements in words, and the way to correct the kernel.
    fn describe_origin(x: &Datum) -> (String, String) {
        match &x.origin {
            Some(origin) => (format!("{}, loaded at {}", origin.what, origin.loc), origin.help.clone()),
            None => ("an undefined value".into(), "initialise it, or declare a `fill`".into()),
        }
    }

    /// Returns the hint for an output with unwritten elements: it names a store, if all stores are conditional.
    pub(super) fn unwritten_output_help(&self, output: OperandId) -> String {
        let kernel = &*self.kernel;
        let stores = |inst: &Inst| matches!(inst.op, Op::Store { to, .. } if to == output);
        let body = kernel.region(kernel.body).insts.iter().map(|&i| kernel.inst(i));
        let mut places = vec![];
        kernel.walk(kernel.body, &mut |i, inst| places.extend(stores(inst).then(|| kernel.loc(i))));
        let always = body.filter(|inst| stores(inst)).count();
        match places.first() {
            Some(at) if always == 0 && *at != Loc::NONE => {
                format!("the store at {at} depends on a condition or a loop: store in the other case as well")
            }
            _ => "check the grid's extents and the index map".to_string(),
        }
    }
}
