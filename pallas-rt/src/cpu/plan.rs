//! From lowered tile IR to what a program needs at run time: where each tile lives, which loads need no copy, which
//! loops run.
use super::strips::{Strip, strip};
use pallas_ir::{Access, DType, InstId, Kernel, Op, OperandId, OperandKind, RegionId, ScalarOp, StructuralOp, Value};
use std::sync::Arc;

/// A compiled kernel.
pub(super) struct Plan {
    pub(super) kernel: Arc<Kernel>,
    /// Byte offset of each tile's slot in a program's arena; shared by tiles that are not alive at once.
    pub(super) slots: Vec<usize>,
    /// Byte offset of each scratch operand, behind the slots.
    pub(super) scratch: Vec<usize>,
    pub(super) arena_bytes: usize,
    /// By instruction: how it runs.
    pub(super) steps: Vec<Step>,
    /// By value: what an absorbed transpose reads.
    absorbed: Vec<Option<Value>>,
    /// Rough number of elementary operations of one program.
    pub(super) work: usize,
}

impl Plan {
    /// The operand of an absorbed transpose.
    pub(super) fn absorbed(&self, v: Value) -> Option<Value> {
        self.absorbed[v.index()]
    }
}

/// How an instruction runs.
pub(super) enum Step {
    /// As its operation says.
    Plain,
    /// An elementwise loop.
    Strip(Strip),
    /// A load that may refer to the operand's memory.
    InPlace,
    /// Nothing: its users look through it.
    Absorbed,
    /// Copies elements from (operand, position) pairs.
    Gather(Vec<(u8, u32)>),
}

/// First and last instruction, in program order, that a value's memory must survive.
#[derive(Clone, Copy)]
struct Live {
    from: usize,
    to: usize,
}

pub(super) fn plan(kernel: Arc<Kernel>) -> Plan {
    let order = Order::of(&kernel);
    let steps: Vec<Step> = (0..kernel.insts.len()).map(|i| step(&kernel, &order, InstId(i as u32))).collect();
    let (slots, mut bytes) = allocate(&kernel, &order);
    let mut scratch = vec![];
    for operand in &kernel.operands {
        scratch.push(bytes);
        if operand.kind == OperandKind::Scratch {
            let elements: usize = operand.block_shape().iter().product();
            bytes += (elements * operand.dtype.bytes()).next_multiple_of(64);
        }
    }
    let work = work(&kernel, kernel.body);
    let mut absorbed = vec![None; kernel.values.len()];
    for (inst, step) in kernel.insts.iter().zip(&steps) {
        if matches!(step, Step::Absorbed) {
            absorbed[inst.results[0].index()] = Some(inst.args[0]);
        }
    }
    Plan { absorbed, slots, scratch, arena_bytes: bytes, steps, work, kernel }
}

/// The program order of instructions, and what uses what.
struct Order {
    /// Position of each instruction's start and end.
    start: Vec<usize>,
    end: Vec<usize>,
    live: Vec<Live>,
    /// Instructions that use each value.
    uses: Vec<Vec<InstId>>,
    /// The instruction that defines each value.
    defined: Vec<Option<InstId>>,
    /// Positions of stores to each operand.
    stores: Vec<Vec<usize>>,
}

impl Order {
    fn of(kernel: &Kernel) -> Order {
        let (values, insts) = (kernel.values.len(), kernel.insts.len());
        let mut order = Order {
            start: vec![0; insts],
            end: vec![0; insts],
            live: vec![Live { from: usize::MAX, to: 0 }; values],
            uses: vec![vec![]; values],
            defined: vec![None; values],
            stores: vec![vec![]; kernel.operands.len()],
        };
        let mut at = 0;
        order.number(kernel, kernel.body, &mut at);
        order.touch(kernel, kernel.body, &mut vec![]);
        order
    }
    fn number(&mut self, kernel: &Kernel, region: RegionId, at: &mut usize) {
        for &i in &kernel.region(region).insts {
            let inst = kernel.inst(i);
            *at += 1;
            self.start[i.index()] = *at;
            for &v in &inst.results {
                self.defined[v.index()] = Some(i);
            }
            for &v in &inst.args {
                self.uses[v.index()].push(i);
            }
            if let Op::Store { to, .. } = &inst.op {
                self.stores[to.index()].push(*at);
            }
            for &r in &inst.regions {
                self.number(kernel, r, at);
            }
            *at += 1;
            self.end[i.index()] = *at;
        }
    }
    /// Extends lives over uses; a use inside of a loop that a value enters from outside lasts until the loop ends.
    fn touch(&mut self, kernel: &Kernel, region: RegionId, loops: &mut Vec<InstId>) {
        let yields = kernel.region(region).yields.clone();
        for &i in &kernel.region(region).insts {
            let inst = kernel.inst(i);
            let (start, end) = (self.start[i.index()], self.end[i.index()]);
            for &v in &inst.args {
                self.used(kernel, v, start, loops);
            }
            for &v in &inst.results {
                // Results of regions are written while the region still runs.
                self.extend(v, start);
                self.extend(v, end);
            }
            let looping = matches!(inst.op, Op::For { .. } | Op::While);
            for &r in &inst.regions {
                if looping {
                    // Carried values live through every iteration.
                    for &p in &kernel.region(r).params {
                        self.extend(p, start);
                        self.extend(p, end);
                    }
                    inst.results.iter().for_each(|&v| self.extend(v, start));
                    loops.push(i);
                }
                self.touch(kernel, r, loops);
                for &v in &kernel.region(r).yields {
                    self.used(kernel, v, end, loops);
                }
                if looping {
                    loops.pop();
                }
            }
        }
        let _ = yields;
    }
    fn used(&mut self, kernel: &Kernel, v: Value, at: usize, loops: &[InstId]) {
        let entered = loops.iter().find(|l| self.live[v.index()].from < self.start[l.index()]);
        let until = entered.map_or(at, |l| self.end[l.index()].max(at));
        self.extend(v, until);
        // What an absorbed transpose reads is read by the transpose's users.
        if let Some(i) = self.defined[v.index()]
            && is_flip(kernel, i)
        {
            self.used(kernel, kernel.inst(i).args[0], at, loops);
        }
    }
    fn extend(&mut self, v: Value, at: usize) {
        let live = &mut self.live[v.index()];
        live.from = live.from.min(at);
        live.to = live.to.max(at);
    }
}

/// A transpose of two axes.
fn is_flip(kernel: &Kernel, i: InstId) -> bool {
    matches!(&kernel.inst(i).op, Op::Structural(StructuralOp::Transpose(t)) if t.axes == [1, 0])
}

/// Whether a dot runs as a product of f32 matrices.
pub(super) fn is_product(kernel: &Kernel, i: InstId) -> bool {
    let inst = kernel.inst(i);
    let Op::Structural(StructuralOp::Dot(dot)) = &inst.op else { return false };
    let float = |v: Value| matches!(kernel.ty(v).dtype, DType::F32 | DType::F16 | DType::Bf16);
    let flat = |v: Value| kernel.ty(v).shape.len() == 2;
    dot.batch.is_empty()
        && dot.contract.len() == 1
        && dot.acc == DType::F32
        && inst.args.iter().all(|&v| float(v) && flat(v))
}

fn step(kernel: &Kernel, order: &Order, i: InstId) -> Step {
    let inst = kernel.inst(i);
    match &inst.op {
        Op::Scalar(op) => Step::Strip(strip(*op, open_dtype(kernel, *op, &inst.args))),
        Op::Load { from, masked: false, .. } if may_refer(kernel, order, i, *from) => Step::InPlace,
        Op::Structural(_) if is_flip(kernel, i) && only_products(kernel, order, inst.results[0]) => Step::Absorbed,
        Op::Structural(op) => gather(kernel, op, inst.args.as_slice(), inst.results[0]),
        _ => Step::Plain,
    }
}

/// The type of the operands whose type the row leaves open.
fn open_dtype(kernel: &Kernel, op: ScalarOp, args: &[Value]) -> DType {
    let open = op.row().operands.iter().position(|(_, t)| *t == pallas_ir::scalar::Ty::T);
    kernel.ty(args[open.unwrap_or(0)]).dtype
}

fn only_products(kernel: &Kernel, order: &Order, v: Value) -> bool {
    let uses = &order.uses[v.index()];
    let yielded = kernel.regions.iter().any(|r| r.yields.contains(&v));
    !uses.is_empty() && !yielded && kernel.ty(v).dtype == DType::F32 && uses.iter().all(|&u| is_product(kernel, u))
}

/// Whether nobody writes the memory while the loaded tile is alive.
fn may_refer(kernel: &Kernel, order: &Order, i: InstId, from: OperandId) -> bool {
    let live = order.live[kernel.inst(i).results[0].index()];
    let here = order.start[i.index()];
    match &kernel.operand(from).kind {
        OperandKind::Input => {
            !kernel.operands.iter().any(|o| matches!(o.kind, OperandKind::Output { alias: Some(a), .. } if a == from))
        }
        OperandKind::Scratch => !order.stores[from.index()].iter().any(|&s| here < s && s < live.to),
        _ => false,
    }
}

/// Element-moving operations become a list of positions, once.
fn gather(kernel: &Kernel, op: &StructuralOp, args: &[Value], result: Value) -> Step {
    let dims: Vec<_> = args.iter().map(|&v| kernel.ty(v).dims()).collect();
    let dims: Vec<_> = dims.iter().map(|d| &d[..]).collect();
    let Access::Map(pieces) = op.access(&dims) else { return Step::Plain };
    // A scalar everywhere needs no list.
    if let [v] = args
        && kernel.ty(*v).elements() == 1
    {
        return Step::Plain;
    }
    let shapes: Vec<&[usize]> = args.iter().map(|&v| &kernel.ty(v).shape[..]).collect();
    let shape = &kernel.ty(result).shape;
    let from = crate::interp::datum::positions(shape).map(|at| {
        let (operand, position) = crate::interp::eval::source(&pieces, &shapes, &at);
        (operand as u8, position as u32)
    });
    Step::Gather(from.collect())
}

/// First-fit slots: tiles alive at once do not overlap. Results of loops share their carried value's slot.
fn allocate(kernel: &Kernel, order: &Order) -> (Vec<usize>, usize) {
    let mut lives: Vec<Live> = order.live.clone();
    let mut owner: Vec<usize> = (0..kernel.values.len()).collect();
    for inst in &kernel.insts {
        if let Op::For { .. } = inst.op {
            let params = &kernel.region(inst.regions[0]).params[1..];
            for (&r, &p) in inst.results.iter().zip(params) {
                owner[r.index()] = p.index();
                let other = lives[r.index()];
                let live = &mut lives[p.index()];
                live.from = live.from.min(other.from);
                live.to = live.to.max(other.to);
            }
        }
    }
    let mut wanted: Vec<usize> = (0..lives.len())
        .filter(|&v| owner[v] == v && !kernel.values[v].is_scalar() && lives[v].from != usize::MAX)
        .collect();
    wanted.sort_by_key(|&v| lives[v].from);
    let mut placed: Vec<(usize, usize, usize)> = vec![];
    let (mut slots, mut top) = (vec![0; lives.len()], 0);
    for v in wanted {
        let bytes = kernel.values[v].bytes().next_multiple_of(64).max(64);
        let mut busy: Vec<(usize, usize)> =
            placed.iter().filter(|p| lives[p.0].to >= lives[v].from).map(|p| (p.1, p.2)).collect();
        busy.sort_unstable();
        let mut at = 0;
        for (from, to) in busy {
            if at + bytes <= from {
                break;
            }
            at = at.max(to);
        }
        placed.push((v, at, at + bytes));
        slots[v] = at;
        top = top.max(at + bytes);
    }
    for v in 0..slots.len() {
        slots[v] = slots[owner[v]];
    }
    (slots, top)
}

/// Elements computed by one program; loops count eight times.
fn work(kernel: &Kernel, region: RegionId) -> usize {
    let mut sum = 0;
    for &i in &kernel.region(region).insts {
        let inst = kernel.inst(i);
        let own: usize = inst.results.iter().map(|&v| kernel.ty(v).elements()).sum();
        let inner = match &inst.op {
            Op::Structural(StructuralOp::Dot(d)) => {
                d.contract.iter().map(|p| kernel.ty(inst.args[0]).shape[p.0]).product()
            }
            _ => 1,
        };
        let nested: usize = inst.regions.iter().map(|&r| work(kernel, r)).sum();
        let trips = if matches!(inst.op, Op::If) { 1 } else { 8 };
        sum += own * inner + nested * trips;
    }
    sum
}
