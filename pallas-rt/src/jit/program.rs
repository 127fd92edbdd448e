//! A plan with its kernels and its memory, ready to run.
use super::print::show;
use crate::array::Array;
use crate::device::{Buffer, Client, Lru};
use crate::error::Result;
use crate::exec::{Compiled, Prepared};
use pallas_graph::call::Print;
use pallas_graph::fuse::{self, Place, Plan, Sizes, plan};
use pallas_graph::{Graph, simplify};
use pallas_ir::{DType, Kernel, Literal, Loc, Type};
use smallvec::SmallVec;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// A graph that is compiled for a client.
pub(super) struct Program {
    client: Client,
    steps: Vec<Step>,
    /// Bytes of the memory of results.
    fresh: Vec<usize>,
    /// Bytes of the memory of values that are neither parameters nor results.
    temporary: Vec<usize>,
    results: Vec<(Place, Type)>,
    /// Temporary memory that no call uses.
    idle: Mutex<Vec<Vec<Option<Buffer>>>>,
}

struct Step {
    work: Work,
    copies: Vec<(Place, Place)>,
    inputs: SmallVec<[Place; 8]>,
    outputs: SmallVec<[Place; 4]>,
}

/// As [`pallas_graph::fuse::Work`], compiled.
enum Work {
    Launch { kernel: Prepared, params: Vec<Literal> },
    For { body: Program, length: usize },
    While { condition: Program, captured: usize, body: Program },
    Case { branches: Vec<Program> },
    Print { print: Print, ty: Type, at: Loc },
}

/// Kernels by their text: equal clusters share one.
static KERNELS: LazyLock<Lru<String, Compiled>> = LazyLock::new(|| Lru::new(Compiled::bytes));

/// The folder that the environment names for the texts of graphs and plans.
static DUMPS: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::var_os("PALLAS_DUMP").map(PathBuf::from));

/// Writes the forms of a program, numbered in the order of their compilation; says on stderr if that fails.
fn dump(folder: &Path, graphs: [(&str, &Graph); 2], plan: &Plan) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    let graphs = graphs.iter().map(|(level, graph)| (*level, graph.to_string()));
    for (level, text) in graphs.chain([("plan", plan.to_string())]) {
        let file = folder.join(format!("{number:04}.{level}.txt"));
        if let Err(error) = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&file, text)) {
            eprintln!("PALLAS_DUMP: {}: {error}", file.display());
        }
    }
}

fn compiled(kernel: &Kernel) -> Compiled {
    let text = kernel.to_string();
    KERNELS.get(&text).unwrap_or_else(|| KERNELS.insert(text, Compiled::of_trace(kernel.clone())))
}

/// Keeps the compiled forms of a kernel for programs that call it.
pub(super) fn keep(compiled: &Compiled) {
    let text = compiled.traced().to_string();
    if KERNELS.get(&text).is_none() {
        KERNELS.insert(text, compiled.clone());
    }
}

/// The block sizes for a client's device.
fn sizes(client: &Client) -> Sizes {
    let (target, budget) = (client.target(), client.target().budget());
    match target.cores {
        Some(cores) => {
            Sizes { programs: cores, tile: 1 << 14, product: [256, 512], scattered: usize::MAX, small: 1 << 22 }
        }
        // A program's tiles are in registers and workgroup memory.
        None => {
            let tile = budget.live_elements.min(1 << 14);
            Sizes { programs: budget.programs, tile, product: [64, 64], scattered: tile, small: 0 }
        }
    }
}

impl Program {
    /// Compiles a graph.
    ///
    /// # Errors
    /// Sizes that no launch can have.
    pub(super) fn new(graph: &Graph, client: &Client) -> Result<Program> {
        Program::donating(graph, &[], client)
    }

    /// As [`new`](Program::new), for [`run_donating`](Program::run_donating): results may take over the memory of the
    /// parameters for which `is_donated` is true.
    pub(super) fn donating(graph: &Graph, is_donated: &[bool], client: &Client) -> Result<Program> {
        let simplified = simplify::simplify(graph);
        debug_assert_eq!(pallas_graph::verify(&simplified), Ok(()));
        let plan = plan(&simplified, is_donated, &sizes(client));
        if let Some(folder) = &*DUMPS {
            dump(folder, [("traced", graph), ("simplified", &simplified)], &plan);
        }
        Program::of_plan(plan, client)
    }

    fn of_plan(plan: Plan, client: &Client) -> Result<Program> {
        let Plan { steps, fresh, temporary, results } = plan;
        let program = |plan: Plan| Program::of_plan(plan, client);
        let step = |fuse::Step { work, copies, inputs, outputs }| {
            let work = match work {
                fuse::Work::Kernel { kernel, sizes, params } => {
                    Work::Launch { kernel: compiled(&kernel).prepare(client, &sizes)?, params }
                }
                fuse::Work::For { body, length } => Work::For { body: program(*body)?, length },
                fuse::Work::While { condition, captured, body } => {
                    Work::While { condition: program(*condition)?, captured, body: program(*body)? }
                }
                fuse::Work::Print { print, ty, at } => Work::Print { print, ty, at },
                fuse::Work::Case { branches } => {
                    Work::Case { branches: branches.into_iter().map(program).collect::<Result<_>>()? }
                }
            };
            Ok(Step { work, copies, inputs: inputs.into(), outputs: outputs.into() })
        };
        let steps = steps.into_iter().map(step).collect::<Result<Vec<_>>>()?;
        Ok(Program { client: client.clone(), steps, fresh, temporary, results, idle: Mutex::default() })
    }

    /// Bytes of temporary memory, without those that steps of loops and branches need.
    #[cfg(test)]
    pub(super) fn temporary_bytes(&self) -> usize {
        self.temporary.iter().sum()
    }

    /// Number of steps of a run, of which each is a launch, a loop or a branch.
    pub(super) fn kernels(&self) -> usize {
        self.steps.len()
    }

    /// Estimated bytes.
    pub(super) fn bytes(&self) -> u64 {
        let of_step = |step: &Step| match &step.work {
            Work::Launch { .. } | Work::Print { .. } => 512,
            Work::For { body, .. } => body.bytes(),
            Work::While { condition, body, .. } => condition.bytes() + body.bytes(),
            Work::Case { branches } => branches.iter().map(Program::bytes).sum(),
        };
        self.steps.iter().map(of_step).sum::<u64>() + self.temporary.iter().sum::<usize>() as u64
    }

    /// Runs it on arrays of the types of its parameters, all on its client.
    ///
    /// # Errors
    /// Memory, a fault of the interpreter, device errors.
    pub(super) fn run(&self, args: &[&Array]) -> Result<Vec<Array>> {
        let mut params = args.iter().map(|x| x.buffer().map(Param::Shared)).collect::<Result<Vec<_>>>()?;
        let fresh = self.fresh.iter().map(|&bytes| self.allocate(bytes)).collect::<Result<_>>()?;
        let fresh = self.execute(&mut params, fresh)?;
        let fresh: Vec<_> = fresh.into_iter().map(|buffer| Arc::new(buffer.expect(HELD))).collect();
        let result = |(place, ty): &(Place, Type)| match place {
            Place::Param(i) => args[*i].with_shape(&ty.shape),
            Place::Fresh(i) => Ok(Array::sharing(ty.dtype, &ty.shape, fresh[*i].clone())),
            Place::Temporary(_) => unreachable!("a result outlives the call"),
        };
        self.results.iter().map(result).collect()
    }

    /// As [`run`](Program::run). The first parameters are `donated`: what a step writes of them has no other owner, or is
    /// copied before.
    pub(super) fn run_donating(&self, donated: Vec<Array>, rest: &[&Array]) -> Result<Vec<Array>> {
        let fresh = self.fresh.iter().map(|&bytes| self.allocate(bytes)).collect::<Result<_>>()?;
        let mut shared = vec![];
        let mut params = vec![];
        for (i, array) in donated.into_iter().enumerate() {
            let is_written = self.steps.iter().any(|step| step.outputs.contains(&Place::Param(i)));
            let buffer = match array.into_buffer(is_written)? {
                Ok(own) => Param::Own(Some(own)),
                Err(array) => {
                    shared.push((i, array));
                    Param::Own(None)
                }
            };
            params.push(buffer);
        }
        for (i, array) in &shared {
            params[*i] = Param::Shared(array.buffer()?);
        }
        let donated = params.len();
        for array in rest {
            params.push(Param::Shared(array.buffer()?));
        }
        let fresh = self.execute(&mut params, fresh)?;
        let fresh: Vec<_> = fresh.into_iter().map(|buffer| Arc::new(buffer.expect(HELD))).collect();
        params.truncate(donated);
        let own: Vec<Option<Arc<Buffer>>> = params
            .into_iter()
            .map(|param| match param {
                Param::Own(buffer) => buffer.map(Arc::new),
                Param::Shared(_) => None,
            })
            .collect();
        let result = |(place, ty): &(Place, Type)| match place {
            Place::Param(i) if *i >= donated => rest[*i - donated].with_shape(&ty.shape),
            Place::Param(i) => match (&own[*i], shared.iter().find(|(k, _)| k == i)) {
                (Some(buffer), _) => Ok(Array::sharing(ty.dtype, &ty.shape, buffer.clone())),
                (None, Some((_, array))) => array.with_shape(&ty.shape),
                (None, None) => unreachable!("{HELD}"),
            },
            Place::Fresh(i) => Ok(Array::sharing(ty.dtype, &ty.shape, fresh[*i].clone())),
            Place::Temporary(_) => unreachable!("a result outlives the call"),
        };
        self.results.iter().map(result).collect()
    }

    fn allocate(&self, bytes: usize) -> Result<Option<Buffer>> {
        Buffer::allocate(&self.client, bytes, false).map(Some)
    }

    /// Runs the steps; returns the memory of the results.
    fn execute(&self, params: &mut [Param<'_>], fresh: Vec<Option<Buffer>>) -> Result<Vec<Option<Buffer>>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let temporary = match idle {
            Some(buffers) => buffers,
            None => self.temporary.iter().map(|&bytes| self.allocate(bytes)).collect::<Result<_>>()?,
        };
        let mut memory = Memory { params, fresh, temporary };
        for step in &self.steps {
            memory.run(step, &self.client)?;
        }
        let Memory { fresh, temporary, .. } = memory;
        // After an error the buffers are dropped, since one of them may be missing.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(temporary);
        Ok(fresh)
    }

    /// Runs it, and returns each result in memory of its own. What it does not need of its parameters' memory is added to
    /// `spare`, from which new memory comes.
    fn step(&self, mut params: Vec<Param<'_>>, spare: &mut Vec<Buffer>) -> Result<Vec<Buffer>> {
        let of_size = |spare: &mut Vec<Buffer>, bytes: usize| match spare.iter().position(|b| b.len() == bytes) {
            Some(i) => Ok(spare.swap_remove(i)),
            None => Buffer::allocate(&self.client, bytes, false),
        };
        let fresh = self.fresh.iter().map(|&bytes| of_size(spare, bytes).map(Some)).collect::<Result<_>>()?;
        let mut fresh = self.execute(&mut params, fresh)?;
        let mut results: Vec<Buffer> = vec![];
        for (i, (place, ty)) in self.results.iter().enumerate() {
            let known = self.results[..i].iter().position(|(other, _)| other == place);
            let own = match (place, known) {
                (_, Some(_)) => None,
                (Place::Fresh(k), None) => fresh[*k].take(),
                (Place::Param(k), None) => match &mut params[*k] {
                    Param::Own(buffer) => buffer.take(),
                    Param::Shared(_) => None,
                },
                (Place::Temporary(_), None) => unreachable!("a result outlives the call"),
            };
            let own = match (own, known, place) {
                (Some(buffer), ..) => buffer,
                (None, known, place) => {
                    let mut copy = of_size(spare, ty.bytes())?;
                    copy.copy_from(match (known, place) {
                        (Some(k), _) => &results[k],
                        (None, Place::Param(k)) => params[*k].buffer(),
                        (None, _) => unreachable!("the first result of a place has its memory"),
                    })?;
                    copy
                }
            };
            results.push(own);
        }
        spare.extend(params.into_iter().filter_map(|param| match param {
            Param::Own(buffer) => buffer,
            Param::Shared(_) => None,
        }));
        Ok(results)
    }
}

/// No step both reads and writes a place.
const HELD: &str = "a buffer is there but while a step writes it";

/// The memory of a parameter.
enum Param<'a> {
    /// It is only read.
    Shared(&'a Buffer),
    /// A result may have it; `None` while a step writes it.
    Own(Option<Buffer>),
}

impl Param<'_> {
    fn buffer(&self) -> &Buffer {
        match self {
            Param::Shared(buffer) => buffer,
            Param::Own(buffer) => buffer.as_ref().expect(HELD),
        }
    }
}

/// The memory of one run.
struct Memory<'a, 'p> {
    params: &'a mut [Param<'p>],
    /// `None` while a step writes it.
    fresh: Vec<Option<Buffer>>,
    temporary: Vec<Option<Buffer>>,
}

impl Memory<'_, '_> {
    /// Runs a step. Its outputs leave the tables meanwhile, so that nothing else can read them.
    fn run(&mut self, step: &Step, client: &Client) -> Result<()> {
        for &(from, to) in &step.copies {
            let mut copy = self.own(to).take().expect(HELD);
            copy.copy_from(self.buffer(from))?;
            *self.own(to) = Some(copy);
        }
        let taken = |place: &Place| self.own(*place).take().expect("an output is no other's");
        let mut outputs: SmallVec<[Buffer; 4]> = step.outputs.iter().map(taken).collect();
        let inputs: SmallVec<[&Buffer; 8]> = step.inputs.iter().map(|&place| self.buffer(place)).collect();
        match &step.work {
            Work::Print { print, ty, at } => show(print, ty, inputs[0], *at)?,
            Work::Launch { kernel, params } => kernel.launch_on(&inputs, params, &mut outputs)?,
            Work::For { body, length } => {
                let counter = Buffer::holding(client, &0i32.to_ne_bytes())?;
                let mut carried: Vec<Buffer> = [counter].into_iter().chain(outputs.drain(..)).collect();
                let mut spare = vec![];
                for _ in 0..*length {
                    let mut own = carried.into_iter().map(|buffer| Param::Own(Some(buffer)));
                    let counter = own.next();
                    let shared = inputs.iter().map(|buffer| Param::Shared(buffer));
                    carried = body.step(counter.into_iter().chain(shared).chain(own).collect(), &mut spare)?;
                }
                outputs.extend(carried.into_iter().skip(1));
            }
            Work::While { condition, captured, body } => {
                let (of_condition, of_body) = inputs.split_at(*captured);
                let mut carried: Vec<Buffer> = outputs.drain(..).collect();
                let mut spare = vec![];
                loop {
                    let shared = of_condition.iter().copied().chain(&carried).map(Param::Shared).collect();
                    let goes_on = condition.step(shared, &mut spare)?.remove(0);
                    let goes_on = Array::sharing(DType::Bool, &[], Arc::new(goes_on));
                    if !goes_on.to_vec::<bool>()?[0] {
                        break;
                    }
                    let own = carried.into_iter().map(|buffer| Param::Own(Some(buffer)));
                    let shared = of_body.iter().map(|buffer| Param::Shared(buffer));
                    carried = body.step(shared.chain(own).collect(), &mut spare)?;
                }
                outputs.extend(carried);
            }
            Work::Case { branches } => {
                let index = inputs[0].contents()?;
                let index = i32::from_ne_bytes(index[..4].try_into().expect("four bytes"));
                let chosen = usize::try_from(index).unwrap_or(0).min(branches.len() - 1);
                let mut spare: Vec<Buffer> = outputs.drain(..).collect();
                let shared = inputs[1..].iter().map(|buffer| Param::Shared(buffer)).collect();
                outputs.extend(branches[chosen].step(shared, &mut spare)?);
            }
        }
        drop(inputs);
        for (&place, output) in step.outputs.iter().zip(outputs) {
            *self.own(place) = Some(output);
        }
        Ok(())
    }

    fn buffer(&self, place: Place) -> &Buffer {
        match place {
            Place::Param(i) => self.params[i].buffer(),
            Place::Fresh(i) => self.fresh[i].as_ref().expect(HELD),
            Place::Temporary(i) => self.temporary[i].as_ref().expect(HELD),
        }
    }

    fn own(&mut self, place: Place) -> &mut Option<Buffer> {
        match place {
            Place::Param(i) => match &mut self.params[i] {
                Param::Own(buffer) => buffer,
                Param::Shared(_) => unreachable!("memory that others read is not written"),
            },
            Place::Fresh(i) => &mut self.fresh[i],
            Place::Temporary(i) => &mut self.temporary[i],
        }
    }
}
