//! Programs that differ from device to device, and the collectives that they call.
use crate::array::Array;
use crate::array::Client;
use crate::collective::{CollectiveInProgress, CollectiveKind, Collectives, resolve_collective};
use crate::sharding::Mesh;
use pallas_device::Buffer;
use pallas_device::collective::{process_group, run_on_threads};
use pallas_device::error::{Error, Result};
use pallas_device::startup;
use pallas_graph::mesh::{Collective, CollectiveForm};
use pallas_ir::{At, Diag, Loc, Type};
use std::sync::Arc;

/// One participant of a mesh: the devices that one thread or one process runs. Its program calls collectives itself;
/// functions of [`jit`](crate::jit()) run those that the partitioner inserts.
pub struct Member<'p> {
    mesh: Arc<Mesh>,
    participant: Participant<'p>,
}

/// The kind of a participant: a thread of this process, or this process in a job.
enum Participant<'p> {
    Thread(&'p dyn Collectives),
    Process(Arc<dyn Collectives>),
}

/// A collective that has begun: see [`Member::start`].
pub struct StartedCollective {
    started: CollectiveInProgress,
    ty: Type,
    client: Client,
}

/// Calls `program` for each device of a mesh, each on a lasting thread of its own, and returns the results in the order
/// of the positions. No device waits for ever: if one is at another collective than its group, returns early or panics,
/// every result is an error that names it.
///
/// # Errors
/// A call from the thread of a device; threads that the system does not start; SPMD is off.
///
/// ```
/// use pallas_rt::collective::AllReduce;
/// use pallas_rt::distributed::run;
/// use pallas_rt::ir::ScalarOp;
/// use pallas_rt::sharding::Mesh;
/// use pallas_rt::{Array, Client};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 4)]).expect("a mesh"));
/// let sums = run(&mesh, |device| {
///     let own = Client::cpu().full(&[2], device.positions()[0] as f32)?;
///     Ok(device.exchange(0, AllReduce(ScalarOp::Add), &["data"], &[own])?.remove(0))
/// })?;
/// assert_eq!(sums[3].clone()?.to_vec::<f32>()?, [6.0, 6.0]);
/// // A device that leaves the exchange out is named to all others.
/// let sums = run(&mesh, |device| {
///     if device.positions() == [2] {
///         return Ok(());
///     }
///     let own = Client::cpu().full(&[2], 1.0f32)?;
///     device.exchange(0, AllReduce(ScalarOp::Add), &["data"], &[own]).map(|_| ())
/// })?;
/// assert!(sums[0].clone().unwrap_err().to_string().contains("device 2 has finished"));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn run<T: Send>(mesh: &Arc<Mesh>, program: impl Fn(&Member<'_>) -> Result<T> + Sync) -> Result<Vec<Result<T>>> {
    startup::require_spmd(std::panic::Location::caller(), mesh.device_count())?;
    run_on_threads(mesh.device_count(), &|participant| {
        program(&Member { mesh: mesh.clone(), participant: Participant::Thread(participant) })
    })
}

impl Member<'static> {
    /// The participant of this process on a mesh of a job's processes. All processes call it at the same time when the
    /// mesh is used first.
    ///
    /// # Errors
    /// A process in no job; a number of devices that the number of processes does not divide; a process that uses
    /// another mesh.
    pub fn of_job(mesh: &Arc<Mesh>) -> Result<Member<'static>> {
        let Some(all) = process_group() else {
            let what = "job of several processes".to_string();
            let help = "call `distributed::initialize` in processes of `mpirun`, or `distributed::run` in one";
            return Err(Error::Unsupported { what, device: "this process".into(), help });
        };
        Ok(Member { mesh: mesh.clone(), participant: Participant::Process(all.participant(mesh)?) })
    }
}

impl Member<'_> {
    fn participant(&self) -> &dyn Collectives {
        match &self.participant {
            Participant::Thread(participant) => *participant,
            Participant::Process(participant) => &**participant,
        }
    }

    /// The mesh that the participant belongs to.
    pub fn mesh(&self) -> &Arc<Mesh> {
        &self.mesh
    }

    /// The positions of the participant's devices, in ascending order.
    pub fn positions(&self) -> &[usize] {
        self.participant().positions()
    }

    /// Runs a collective on arrays, one of each device in the order of [`positions`](Member::positions), among the
    /// devices that differ along these axes alone. `step` is the number of the collective in the program, which tells
    /// equal ones apart.
    ///
    /// # Errors
    /// An axis that the mesh does not have; other arrays than one for each device, of one type that the collective
    /// takes; [`Error::Collective`] if a device of a group is at another collective or has ended.
    #[track_caller]
    pub fn exchange(
        &self,
        step: u64,
        kind: impl Into<CollectiveKind>,
        axes: &[&str],
        operands: &[Array],
    ) -> Result<Vec<Array>> {
        self.finish(self.start(step, kind, axes, operands)?)
    }

    /// Begins a collective as [`exchange`](Member::exchange) does, without waiting: it goes on while the program
    /// computes.
    ///
    /// # Errors
    /// As for [`exchange`](Member::exchange).
    #[track_caller]
    pub fn start(
        &self,
        step: u64,
        kind: impl Into<CollectiveKind>,
        axes: &[&str],
        operands: &[Array],
    ) -> Result<StartedCollective> {
        self.start_collective(Loc::caller(), step, &kind.into(), axes, None, operands)
    }

    /// Begins a collective of arrays whose dimensions lie in memory in the order of `layout`, the slowest first; see
    /// [`start`](Member::start).
    ///
    /// # Errors
    /// As for [`exchange`](Member::exchange); a device whose layout is another one.
    #[track_caller]
    pub fn start_with_layout(
        &self,
        step: u64,
        kind: impl Into<CollectiveKind>,
        axes: &[&str],
        layout: &[usize],
        operands: &[Array],
    ) -> Result<StartedCollective> {
        self.start_collective(Loc::caller(), step, &kind.into(), axes, Some(layout), operands)
    }

    /// Begins a collective that line `at` calls; without a `layout`, arrays are row-major.
    fn start_collective(
        &self,
        at: Loc,
        step: u64,
        kind: &CollectiveKind,
        axes: &[&str],
        layout: Option<&[usize]>,
        operands: &[Array],
    ) -> Result<StartedCollective> {
        let wrong = |diag| Error::operation(at, diag);
        let axes = axes.iter().map(|name| self.mesh.find(name)).collect::<std::result::Result<Vec<_>, _>>();
        let kind = operands.first().map_or_else(|| kind.clone(), |x| kind.for_dtype(x.dtype()));
        let op = Collective { kind, mesh: self.mesh.clone(), axes: axes.map_err(wrong)? };
        check_distinct_axes(&op).map_err(wrong)?;
        let count = self.positions().len();
        let first = operands.first().map(|x| Type::new(x.dtype(), x.shape()));
        let alike = |x: &Array| first.as_ref().is_some_and(|ty| x.dtype() == ty.dtype && x.shape() == &ty.shape[..]);
        let is_table = matches!(op.first_member_form(), CollectiveForm::Constant(_));
        if is_table && !operands.is_empty() || !is_table && (operands.len() != count || !operands.iter().all(alike)) {
            let found = format!("{} arrays for {count} devices", operands.len());
            return Err(wrong(Diag::new("exchange", At::Op, found, "an array of each device, all of one type")));
        }
        let given: Vec<&Type> = first.iter().collect();
        let ty = op.infer(&given).map_err(wrong)?;
        let collective = resolve_collective(&op, &ty, at);
        let collective = match layout {
            Some(layout) => collective.with_layout(layout.to_vec()),
            None => collective,
        };
        let client = operands.first().map_or_else(Client::cpu, |x| x.client().clone());
        let bytes = operands.iter().map(|x| x.buffer()?.contents()).collect::<Result<Vec<_>>>()?;
        let bytes: Vec<&[u8]> =
            if is_table { vec![&[]; count] } else { bytes.iter().map(|bytes| &bytes[..]).collect() };
        let started = self.participant().start(&Arc::new(collective), step, &bytes)?;
        Ok(StartedCollective { started, ty, client })
    }

    /// Waits for a collective that [`start`](Member::start) began; returns the result of each device.
    ///
    /// # Errors
    /// As for [`exchange`](Member::exchange).
    pub fn finish(&self, begun: StartedCollective) -> Result<Vec<Array>> {
        let StartedCollective { started, ty, client } = begun;
        let mut results = vec![vec![0; ty.bytes()]; self.positions().len()];
        let mut each: Vec<&mut [u8]> = results.iter_mut().map(|result| &mut result[..]).collect();
        self.participant().finish(started, &mut each)?;
        let array = |bytes: &Vec<u8>| {
            Ok(Array::from_shared_buffer(ty.dtype, &ty.shape, Arc::new(Buffer::from_bytes(&client, bytes)?)))
        };
        results.iter().map(array).collect()
    }
}

/// Checks that a collective names each axis once.
///
/// # Errors
/// An axis is named twice.
pub(super) fn check_distinct_axes(collective: &Collective) -> std::result::Result<(), Diag> {
    let Some((_, axis)) = collective.axes.iter().enumerate().find(|(i, axis)| collective.axes[..*i].contains(axis))
    else {
        return Ok(());
    };
    let found = format!("axis `{}` twice", collective.mesh.name(usize::from(axis.id)));
    Err(Diag::new(collective.name(), At::Op, found, "name each axis once"))
}
