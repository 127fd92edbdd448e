//! Metrics: numbers that hold for all devices, so that a number of one process alone is not taken for the whole.
use crate::array::Array;
use crate::collective::{Collectives, resolve_collective};
use crate::sharding::Mesh;
pub use crate::sharding::Receipt;
use pallas_device::collective::{LockstepParticipant, process_group};
use pallas_device::error::{Error, Result};
use pallas_device::startup::{self, StartupConfig};
use pallas_graph::mesh::{AllReduce, Axis, Collective};
use pallas_ir::{At, DType, Diag, Loc, ScalarOp, Type};
use std::fmt;
use std::sync::Arc;

/// A number that is equal on all devices, with the collectives that made it and the configuration of the process.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    /// The number.
    pub value: f64,
    /// The last collectives that it depends on; none in one process without a mesh.
    pub receipts: Vec<Receipt>,
    /// The startup configuration of the process.
    pub config: &'static StartupConfig,
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value)?;
        self.receipts.iter().try_for_each(|receipt| write!(f, " [{receipt}]"))
    }
}

/// Returns the number that an array with one element holds on all devices.
///
/// # Errors
/// An array with more or fewer elements, of integers beyond 2^53, or of complex type; an array whose devices have parts
/// of a sum; in a job, an array on no mesh, so that each process has its own.
///
/// ```
/// use pallas_rt::distributed::metric;
/// use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
/// use pallas_rt::{Array, jit};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 4)]).expect("a mesh"));
/// let x = device_put(&Array::full(&[8], 0.5f32)?, &NamedSharding::new(&mesh, P("data")))?;
/// let loss = metric(&jit(|x: &Array| x.mean(..))(&x)?)?;
/// assert_eq!((loss.value, loss.receipts[0].participants), (0.5, 4));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn metric(x: &Array) -> Result<Metric> {
    let at = Loc::caller();
    let wrong = |found: String, help: &str| Err(Error::operation(at, Diag::new("metric", At::Op, found, help)));
    x.check()?;
    if x.len() != 1 {
        return wrong(format!("an array of shape {:?} as a number", x.shape()), "reduce it to one element");
    }
    if let (None, Some(all)) = (x.placement(), process_group()) {
        let found =
            format!("an array that rank {} alone has, as the number of all {}", all.rank(), all.process_count());
        return wrong(found, "compute it from arrays on a mesh, or reduce a `Local`");
    }
    // Reading an array is an error if its devices have parts of a sum.
    let value = x.cast(DType::F64).to_vec::<f64>()?[0];
    let receipts = x.placement().map_or(vec![], |placement| placement.receipts.to_vec());
    let config = startup::get_or_freeze_config("a metric", std::panic::Location::caller())?;
    Ok(Metric { value, receipts, config })
}

/// Numbers of the host, one for each device of this process, such as images per second; other processes may have
/// others.
#[derive(Clone, Debug)]
pub struct Local {
    mesh: Arc<Mesh>,
    positions: Vec<usize>,
    values: Vec<f64>,
    /// Axes along which devices may have different numbers.
    varying: Vec<Axis>,
    receipts: Vec<Receipt>,
}

impl Local {
    /// Numbers of this process' devices on a mesh, in the order of their positions.
    ///
    /// # Errors
    /// Another number of values than devices; a mesh whose devices the processes cannot share evenly.
    pub fn new(mesh: &Arc<Mesh>, values: &[f64]) -> Result<Local> {
        let positions = match process_group() {
            Some(all) => all.participant(mesh)?.positions().to_vec(),
            None => (0..mesh.device_count()).collect(),
        };
        if values.len() != positions.len() {
            let found = format!("{} numbers for {} devices", values.len(), positions.len());
            let diag = Diag::new("metric", At::Op, found, "one number for each device of this process");
            return Err(Error::operation(Loc::NONE, diag));
        }
        let varying = mesh.axes().into_iter().filter(|axis| axis.size > 1).collect();
        Ok(Local { mesh: mesh.clone(), positions, values: values.to_vec(), varying, receipts: vec![] })
    }

    /// One number of this process, on a mesh with the one axis `process`.
    ///
    /// # Errors
    /// As [`new`](Local::new).
    ///
    /// ```
    /// use pallas_rt::distributed::Local;
    /// use pallas_rt::ir::ScalarOp;
    /// let images = Local::of_process(250.0)?.reduce(ScalarOp::Add, &["process"])?.metric()?;
    /// assert_eq!((images.value, images.receipts[0].participants), (250.0, 1));
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    pub fn of_process(value: f64) -> Result<Local> {
        let count = process_group().map_or(1, |all| all.process_count());
        let mesh = Mesh::new(&[("process", count)]).map_err(|diag| Error::operation(Loc::NONE, diag))?;
        Local::new(&Arc::new(mesh), &[value])
    }

    /// Combines the numbers over axes, in the order of the devices, by `Add`, `Mul`, `Minimum` or `Maximum`.
    ///
    /// # Errors
    /// Another operation; an axis that the mesh does not have; a process that runs another collective.
    #[track_caller]
    pub fn reduce(&self, op: ScalarOp, axes: &[&str]) -> Result<Local> {
        let at = Loc::caller();
        let axes = axes.iter().map(|name| self.mesh.find(name)).collect::<std::result::Result<Vec<_>, _>>();
        let axes = axes.map_err(|diag| Error::operation(at, diag))?;
        let op = Collective { kind: AllReduce(op).into(), mesh: self.mesh.clone(), axes: axes.clone() };
        let ty = Type::scalar(DType::F64);
        let gives = super::device_program::check_distinct_axes(&op).and_then(|()| op.infer(&[&ty]));
        let collective = Arc::new(resolve_collective(&op, &gives.map_err(|diag| Error::operation(at, diag))?, at));
        let participant: Arc<dyn Collectives> = match process_group() {
            Some(all) => all.participant(&self.mesh)?,
            None => Arc::new(LockstepParticipant::new(self.positions.len())),
        };
        let operands: Vec<[u8; 8]> = self.values.iter().map(|value| value.to_ne_bytes()).collect();
        let operands: Vec<&[u8]> = operands.iter().map(|bytes| &bytes[..]).collect();
        let mut results = vec![[0; 8]; operands.len()];
        let mut each: Vec<&mut [u8]> = results.iter_mut().map(|bytes| &mut bytes[..]).collect();
        participant.exchange(&collective, participant.next_collective_number(), &operands, &mut each)?;
        let receipt = Receipt::from_collective(&op, self.positions[0], startup::engine(), at);
        Ok(Local {
            values: results.into_iter().map(f64::from_ne_bytes).collect(),
            varying: self.varying.iter().copied().filter(|axis| !axes.contains(axis)).collect(),
            receipts: self.receipts.iter().cloned().chain([receipt]).collect(),
            ..self.clone()
        })
    }

    /// Returns the number if all devices have it.
    ///
    /// # Errors
    /// The numbers still vary along an axis.
    #[track_caller]
    pub fn metric(&self) -> Result<Metric> {
        if let Some(axis) = self.varying.first() {
            let found = format!("a number that varies along `{}`", self.mesh.name(usize::from(axis.id)));
            let diag = Diag::new("metric", At::Op, found, "`reduce` it over that axis first");
            return Err(Error::operation(Loc::caller(), diag));
        }
        let config = startup::get_or_freeze_config("a metric", std::panic::Location::caller())?;
        Ok(Metric { value: self.values[0], receipts: self.receipts.clone(), config })
    }
}
