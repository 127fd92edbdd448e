//! The memory of the strict interpreter: arrays, blocks and scratch, with a record of the programs that accessed them.
//!
//! Every class of wrong access is found here: poison stored to an output, blocks out of range, illegal revisits, races
//! between parallel programs, outputs that are not written.
use super::datum::{Data, Datum, PoisonOrigin, flatten, positions};
use super::fault::Fault;
use super::load_counts;
use pallas_ir::{BlockDim, Dim, Kernel, Literal, Loc, OperandId, OperandKind, Semantics, Type, View, ViewFrame};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The memory of one operand, with a record of the accesses to each element.
pub(super) struct OperandMemory {
    pub(super) shape: Vec<usize>,
    data: Data,
    /// For each element of an output or of scratch, true if it has not been written yet.
    unwritten: Vec<bool>,
    /// For each element the parallel program that last wrote it, counted from 1; 0 if none did.
    pub(super) writer: Vec<u32>,
    /// For each element the first two parallel programs that read it, counted from 1, or 0: at least one of two
    /// readers is not the writer.
    pub(super) readers: Vec<[u32; 2]>,
    /// The output that shares this input's memory.
    pub(super) alias: Option<OperandId>,
    /// For each block of an output, by its first element: the parallel program that wrote it, and the line of its
    /// store.
    pub(super) owner: HashMap<Vec<i64>, (u32, Loc)>,
    /// Blocks of an output that this parallel program has written before another block.
    pub(super) left: HashSet<Vec<i64>>,
    /// The block of an output that the current parallel program last stored to.
    pub(super) current: Option<Vec<i64>>,
    /// For each element the step that last stored to it, counted from 1; 0 if none did.
    pub(super) stored: Vec<u32>,
    /// For each element of an output, true if nothing has read it since it was stored.
    pub(super) unread: Vec<bool>,
    /// The origin of the undefined elements that were stored.
    pub(super) origin: Option<Arc<PoisonOrigin>>,
}

/// The interpreter of one launch: executes accesses to memory, and reports faulty ones.
pub struct Machine {
    pub(super) kernel: Arc<Kernel>,
    pub(super) grid: Vec<i64>,
    /// Extents of the sequential axes, if the kernel is in lowered form.
    pub(super) steps: Vec<i64>,
    /// Extents of the dimensions, by `DimId`.
    pub(super) sizes: Vec<i64>,
    params: Vec<Option<Literal>>,
    pub(super) memory: Vec<OperandMemory>,
    /// Program ids of the current step.
    pub(super) program: Vec<i64>,
    /// Number of the current parallel program, counted from 1.
    pub(super) lane: u32,
    /// Program ids of the first step of each parallel program.
    pub(super) lanes: Vec<Vec<i64>>,
    /// First element of each operand's block in this step; computed when it is needed.
    blocks: Vec<Option<Vec<i64>>>,
    /// Lines that the kernel printed.
    pub log: Vec<String>,
    /// True if an operation that makes NaN from numbers is a fault.
    pub finds_nans: bool,
    /// Number of the current step, counted from 1.
    pub(super) step: u32,
    /// True if this step has read a value that an earlier step stored.
    pub(super) carries: bool,
}

/// An argument of a launch, one for each operand ([`OperandId`]).
pub enum Argument {
    /// The shape and contents of an input or prefetch.
    Array(Vec<usize>, Data),
    /// The shape of an output or scratch.
    Uninitialized(Vec<usize>),
    /// The value of a parameter.
    Param(Literal),
}

/// The position in the array of each element of an access (`None` outside of it), and the mask if there is one.
type PositionsAndMask = (Vec<Option<usize>>, Option<Vec<bool>>);

impl Machine {
    /// Creates the interpreter of a launch of `kernel` with these sizes (by `DimId`), grid extents and operands.
    pub fn new(kernel: Arc<Kernel>, sizes: Vec<i64>, grid: Vec<i64>, arguments: Vec<Argument>) -> Machine {
        let mut params = vec![];
        let mut memory: Vec<OperandMemory> = vec![];
        for (operand, argument) in kernel.operands.iter().zip(arguments) {
            let (shape, data, param) = match argument {
                Argument::Array(shape, data) => (shape, Some(data), None),
                Argument::Uninitialized(shape) => (shape, None, None),
                Argument::Param(x) => (vec![], None, Some(x)),
            };
            let n = shape.iter().product();
            let unwritten = vec![data.is_none(); n];
            let data = data.unwrap_or_else(|| Data::zeros(operand.dtype, n));
            params.push(param);
            memory.push(OperandMemory {
                shape,
                data,
                unwritten,
                writer: vec![0; n],
                readers: vec![[0; 2]; n],
                alias: None,
                owner: HashMap::new(),
                left: HashSet::new(),
                current: None,
                stored: vec![0; n],
                unread: vec![false; n],
                origin: None,
            });
        }
        for (i, operand) in kernel.operands.iter().enumerate() {
            if let OperandKind::Output { alias: Some(from), .. } = &operand.kind {
                memory[i].data = memory[from.index()].data.clone();
                memory[i].unwritten.fill(false);
                // Reads of the input are reads of the shared memory.
                memory[from.index()].alias = Some(OperandId(i as u32));
            }
        }
        let blocks = vec![None; kernel.operands.len()];
        let program = vec![0; grid.len()];
        let names: Vec<(&str, i64)> = kernel.dims.iter().map(|d| &d.name[..]).zip(sizes.iter().copied()).collect();
        let number = |n: &Dim| n.evaluate(&names).expect("a launch's sizes were evaluated when it was bound");
        let steps = kernel.steps.iter().map(number).collect();
        Machine {
            kernel,
            program,
            grid,
            steps,
            sizes,
            params,
            memory,
            lane: 0,
            lanes: vec![],
            blocks,
            log: vec![],
            finds_nans: false,
            step: 0,
            carries: false,
        }
    }

    /// Returns the kernel that runs.
    pub fn kernel(&self) -> &Arc<Kernel> {
        &self.kernel
    }
    /// Returns a parameter's value.
    pub(super) fn parameter_value(&self, operand: OperandId) -> Literal {
        self.params[operand.index()].expect("a parameter has a value")
    }

    /// Returns the parallel programs in a random order that follows from `seed`: each is a list of its sequential
    /// steps, in order.
    pub fn schedule(&self, seed: u64) -> Vec<Vec<Vec<i64>>> {
        let extents: Vec<usize> = self.grid.iter().map(|&n| n as usize).collect();
        let parallel = |a: usize| self.kernel.grid[a].semantics == Semantics::Parallel;
        let mut order: Vec<Vec<i64>> = vec![];
        let mut steps: HashMap<Vec<i64>, Vec<Vec<i64>>> = HashMap::new();
        for p in positions(&extents) {
            let p: Vec<i64> = p.into_iter().map(|x| x as i64).collect();
            let key: Vec<i64> = (0..p.len()).filter(|&a| parallel(a)).map(|a| p[a]).collect();
            let list = steps.entry(key.clone()).or_insert_with(|| {
                order.push(key);
                vec![]
            });
            list.push(p);
        }
        shuffle(&mut order, seed);
        order.into_iter().map(|key| steps.remove(&key).expect("each program has steps")).collect()
    }
    /// Begins the next parallel program; scratch is undefined again.
    pub fn begin_parallel_program(&mut self) {
        self.lane += 1;
        for (operand, memory) in self.kernel.operands.iter().zip(&mut self.memory) {
            memory.left.clear();
            memory.current = None;
            if operand.kind == OperandKind::Scratch {
                memory.unwritten.fill(true);
                memory.origin = None;
            }
        }
    }
    /// Begins a step of the current parallel program.
    pub fn begin_step(&mut self, program: Vec<i64>) {
        if self.lanes.len() < self.lane as usize {
            self.lanes.push(program.clone());
        }
        self.program = program;
        self.step += 1;
        self.carries = false;
        self.blocks.fill(None);
    }

    /// Returns a fault of this step, with `help` on what to do about it.
    pub(super) fn fault(&self, code: &'static str, loc: Loc, message: String, help: &str) -> Fault {
        Fault { code, kernel: self.kernel.name.clone(), program: self.program.clone(), loc, message, help: help.into() }
    }

    /// Returns a fault of this step, whose message already says what to do.
    pub fn fault_without_help(&self, code: &'static str, loc: Loc, message: String) -> Fault {
        self.fault(code, loc, message, "")
    }
    /// Returns the first element of the operand's block in each dimension.
    pub(super) fn block_origin(&mut self, operand: OperandId, loc: Loc) -> Result<Vec<i64>, Fault> {
        if let Some(origin) = &self.blocks[operand.index()] {
            return Ok(origin.clone());
        }
        let o = self.kernel.operand(operand).clone();
        let index: Vec<i64> = match o.map {
            None => vec![0; o.block.len()],
            Some(map) => super::walk::eval_index_map(self, map)?,
        };
        let mut origin = vec![];
        for (axis, (&block, &i)) in o.block.iter().zip(&index).enumerate() {
            let extent = self.memory[operand.index()].shape[axis] as i64;
            let (first, legal) = match block {
                BlockDim::Squeezed => (i, 0..extent),
                BlockDim::Blocked(0) => (0, 0..1),
                BlockDim::Blocked(n) => (i * n as i64, 0..(extent + n as i64 - 1) / n as i64),
                BlockDim::Element { size, low, high } => (
                    i - low as i64,
                    0..extent + (low + high + 1) as i64 - (size as i64).min(extent + (low + high) as i64),
                ),
            };
            if !legal.contains(&i) {
                let what = if matches!(block, BlockDim::Element { .. }) { "element offset" } else { "block index" };
                let message = format!(
                    "the index map of `{}` gives {what} {i} in dimension {axis}, which has {}",
                    o.name,
                    if legal.end == 0 { "none".to_string() } else { format!("0..{}", legal.end) }
                );
                let help = match block {
                    BlockDim::Element { size, low, high } => format!(
                        "`Element({size}, {low}, {high})`: offset 0 is {low} before the array's first element, and a \
                         block ends at most {high} after its last one"
                    ),
                    _ => "clamp it with `min`, or check the grid".to_string(),
                };
                return Err(self.fault("block-range", loc, message, &help));
            }
            origin.push(first);
        }
        self.blocks[operand.index()] = Some(origin.clone());
        Ok(origin)
    }

    /// Returns the position in the array from which a view's positions count (its block's first element, or 0) and, for
    /// each axis of the view, its axis of the array.
    fn view_origin_and_axes(
        &mut self,
        operand: OperandId,
        view: &View,
        loc: Loc,
    ) -> Result<(Vec<i64>, Vec<usize>), Fault> {
        let rank = self.kernel.operand(operand).block.len();
        Ok(match view.frame {
            ViewFrame::Array => (vec![0; rank], (0..rank).collect()),
            ViewFrame::Block => {
                let block = &self.kernel.operand(operand).block;
                let kept = (0..rank).filter(|&a| block[a].is_kept()).collect();
                (self.block_origin(operand, loc)?, kept)
            }
        })
    }

    /// Returns the position in the array of every element of a view, `None` for elements outside of it. Masked
    /// elements may be outside of the block.
    fn view_positions(
        &mut self,
        operand: OperandId,
        view: &View,
        starts: &[i64],
        mask: Option<&[bool]>,
        loc: Loc,
    ) -> Result<Vec<Option<usize>>, Fault> {
        let (o, shape) = (self.kernel.operand(operand).clone(), self.memory[operand.index()].shape.clone());
        let (mut base, axes) = self.view_origin_and_axes(operand, view, loc)?;
        let mut starts = starts.iter();
        let sizes: Vec<usize> = view.axes.iter().map(|a| a.size).collect();
        for (k, (view_axis, &axis)) in view.axes.iter().zip(&axes).enumerate() {
            let start = view_axis.offset
                + if view_axis.dynamic { *starts.next().expect("one start per dynamic axis") } else { 0 };
            let last = start + view_axis.stride * (view_axis.size as i64 - 1);
            let size = o.block[axis].size() as i64;
            let beyond = |i: usize| !(0..size).contains(&(start + i as i64 * view_axis.stride));
            let wanted = |i: usize| mask.is_none_or(|m| m[i]);
            if view.frame == ViewFrame::Block
                && view_axis.size > 0
                && (beyond(0) || beyond(view_axis.size - 1))
                && positions(&sizes).enumerate().any(|(i, p)| wanted(i) && beyond(p[k]))
            {
                let message =
                    format!("elements {start}..={last} of `{}` along axis {axis}: its block has {size}", o.name);
                return Err(self.fault("view-range", loc, message, "a view stays inside of its block"));
            }
            base[axis] += start;
        }
        let place = |p: Vec<usize>| {
            let mut at = base.clone();
            p.iter().zip(&view.axes).zip(&axes).for_each(|((&i, v), &axis)| at[axis] += i as i64 * v.stride);
            let inside = at.iter().zip(&shape).all(|(&x, &n)| (0..n as i64).contains(&x));
            inside.then(|| flatten(&at.iter().map(|&x| x as usize).collect::<Vec<_>>(), &shape))
        };
        Ok(positions(&sizes).map(place).collect())
    }

    /// Returns the position in the array of each element of an access, `None` for elements outside of it, and the
    /// mask; `args` has the view's starts, then the mask if there is one.
    fn access_positions(
        &mut self,
        operand: OperandId,
        view: &View,
        args: &[&Datum],
        loc: Loc,
    ) -> Result<PositionsAndMask, Fault> {
        let (starts, rest) = args.split_at(view.dynamic_count());
        let starts = self.checked_starts(starts, loc)?;
        let mask = rest.first().map(|mask| self.checked_mask(mask, loc)).transpose()?;
        Ok((self.view_positions(operand, view, &starts, mask.as_deref(), loc)?, mask))
    }

    /// Returns the elements that a load reads; `args` has the view's starts, then the mask if there is one.
    ///
    /// # Errors
    /// The block or the view is out of range; the mask is poisoned; another parallel program wrote an element.
    pub(super) fn load(&mut self, from: OperandId, view: &View, args: &[&Datum], loc: Loc) -> Result<Datum, Fault> {
        let (at, mask) = self.access_positions(from, view, args, loc)?;
        let operand = self.kernel.operand(from).clone();
        let wanted = |i: usize| mask.as_ref().is_none_or(|m| m[i]);
        // Other programs' stores: to this output, or to the output that shares this input's memory.
        if let Some(shared) = self.aliased_output(from) {
            for at in (0..at.len()).filter(|&i| wanted(i)).filter_map(|i| at[i]) {
                self.record_and_check_read(from, shared, at, loc)?;
            }
        }
        if operand.kind == OperandKind::Input {
            let loaded = || at.iter().enumerate().filter(|(i, at)| at.is_some() && wanted(*i)).count();
            load_counts::count_load(&self.kernel.name, &operand.name, loaded);
        }
        let written = matches!(operand.kind, OperandKind::Scratch | OperandKind::Output { .. });
        let memory = &self.memory[from.index()];
        let earlier = |at: usize| !memory.unwritten[at] && ![0, self.step].contains(&memory.stored[at]);
        self.carries |= written && at.iter().flatten().any(|&at| earlier(at));
        let memory = &self.memory[from.index()];
        let zero = Literal::new(operand.dtype, 0.0);
        let mut data = memory.data.gather(at.iter().copied(), operand.fill.unwrap_or(zero));
        let mut poison: Vec<bool> =
            at.iter().map(|at| at.map_or(operand.fill.is_none(), |at| memory.unwritten[at])).collect();
        if mask.is_some() {
            let other = args[view.dynamic_count() + 1];
            for i in (0..at.len()).filter(|&i| !wanted(i)) {
                data.set(i, other.data.get(0));
                poison[i] = other.is_poison(0);
            }
        }
        let mut loaded = Datum::new(Type::new(operand.dtype, view.shape()), data).with_poison(poison);
        if let Some(poison) = &loaded.poison {
            let i = poison.iter().position(|&p| p).expect("it has poison");
            loaded.origin = match wanted(i) {
                true => Some(self.poison_origin(from, i, at[i], &loaded.ty.shape, loc)),
                false => args[view.dynamic_count() + 1].origin.clone(),
            };
        }
        Ok(loaded)
    }

    /// Writes the elements of a view that are inside of the array and not masked; `args` has the tile, the view's
    /// starts, then the mask if there is one.
    ///
    /// # Errors
    /// Those of [`Machine::load`]; poison would be stored to an output; the block was left before, or belongs to
    /// another program.
    pub(super) fn store(&mut self, to: OperandId, view: &View, args: &[&Datum], loc: Loc) -> Result<(), Fault> {
        let (value, rest) = (args[0], &args[1..]);
        let (at, mask) = self.access_positions(to, view, rest, loc)?;
        let output = matches!(self.kernel.operand(to).kind, OperandKind::Output { .. });
        if output {
            self.record_block_visit(to, view, loc)?;
        }
        for (i, at) in at.iter().enumerate().filter(|(i, _)| mask.as_ref().is_none_or(|m| m[*i])) {
            let Some(at) = *at else { continue };
            if output {
                if value.is_poison(i) {
                    return Err(self.poisoned_store_fault(to, i, at, value, loc));
                }
                self.record_and_check_write(to, at, loc)?;
                self.check_lost_store(to, at, loc)?;
            }
            let memory = &mut self.memory[to.index()];
            memory.data.set(at, value.data.get(i));
            memory.unwritten[at] = value.is_poison(i);
            (memory.stored[at], memory.unread[at]) = (self.step, output);
            if value.is_poison(i) {
                memory.origin.clone_from(&value.origin);
            }
        }
        Ok(())
    }

    /// Returns a mask of the positions along a view's axis that are inside of the array.
    ///
    /// # Errors
    /// Those of [`Machine::load`].
    pub(super) fn valid_mask(
        &mut self,
        of: OperandId,
        view: &View,
        axis: usize,
        args: &[&Datum],
        loc: Loc,
    ) -> Result<Datum, Fault> {
        let starts = self.checked_starts(args, loc)?;
        let (origin, frame_axes) = self.view_origin_and_axes(of, view, loc)?;
        let kept: Vec<usize> = (0..view.axes.len()).filter(|&a| view.axes[a].kept).collect();
        let v = view.axes[kept[axis]];
        let dynamic_before = view.axes[..kept[axis]].iter().filter(|a| a.dynamic).count();
        let array_axis = frame_axes[kept[axis]];
        let start = origin[array_axis] + v.offset + if v.dynamic { starts[dynamic_before] } else { 0 };
        let extent = self.memory[of.index()].shape[array_axis] as i64;
        let inside = (0..v.size as i64).map(|i| (0..extent).contains(&(start + i * v.stride))).collect();
        let mut shape = vec![1; kept.len()];
        shape[axis] = v.size;
        Ok(Datum::new(Type::new(pallas_ir::DType::Bool, shape), Data::Bool(inside)))
    }

    /// Returns an element of a prefetch operand.
    ///
    /// # Errors
    /// The index is poisoned or out of range.
    pub(super) fn read_prefetched(&mut self, of: OperandId, args: &[&Datum], loc: Loc) -> Result<Datum, Fault> {
        let mut at = vec![];
        for (axis, index) in args.iter().enumerate() {
            let i = self.checked_integer(index, "an index of a prefetched operand", loc)?;
            let n = self.memory[of.index()].shape[axis];
            if !(0..n as i64).contains(&i) {
                let name = &self.kernel.operand(of).name;
                let message =
                    format!("index {i} of prefetched `{name}` is out of range: dimension {axis} has {n} elements");
                return Err(self.fault("prefetch-range", loc, message, "check the host's table, or clamp the index"));
            }
            at.push(i as usize);
        }
        let memory = &self.memory[of.index()];
        Ok(Datum::scalar(memory.data.get(flatten(&at, &memory.shape))))
    }

    /// Ends the launch; returns the outputs in order, and the lines that the kernel printed.
    ///
    /// # Errors
    /// An element of an output was never written.
    pub fn finish(mut self) -> Result<(Vec<Data>, Vec<String>), Fault> {
        let mut outputs = vec![];
        let kernel = Arc::clone(&self.kernel);
        for (i, operand) in kernel.operands.iter().enumerate() {
            let OperandKind::Output { empty, .. } = &operand.kind else { continue };
            if self.lane == 0 {
                let memory = &mut self.memory[i];
                let unwritten: Vec<usize> = (0..memory.unwritten.len()).filter(|&at| memory.unwritten[at]).collect();
                unwritten.into_iter().for_each(|at| memory.data.set(at, *empty));
            } else if let Some(at) = self.memory[i].unwritten.iter().position(|&u| u) {
                let output = OperandId(i as u32);
                let message = format!("{} is written by no program", self.describe_element(output, at));
                let help = self.unwritten_output_help(output);
                self.program.clear();
                return Err(self.fault("unwritten", Loc::NONE, message, &help));
            }
            outputs.push(std::mem::replace(&mut self.memory[i].data, Data::zeros(operand.dtype, 0)));
        }
        Ok((outputs, self.log))
    }
}

/// Shuffles items with the Fisher-Yates algorithm and random numbers from splitmix64.
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    for i in (1..items.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        items.swap(i, ((z ^ (z >> 31)) % (i as u64 + 1)) as usize);
    }
}
