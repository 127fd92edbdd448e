//! Estimates of the work of a launch.
use pallas_device::LaunchGeometry;
use pallas_ir::{AccessForm, InstId, Kernel, Op, ScalarOp, Value};

/// An estimate of the work of a launch.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Floating-point and integer operations; a multiplication and an addition of a product of matrices are two.
    pub flops: u64,
    /// Bytes loaded and stored.
    pub bytes_accessed: u64,
    /// Elements to which exp, log, sin and the like are applied.
    pub transcendentals: u64,
}

impl Cost {
    /// Adds the work of a scalar operation that is applied to this many elements.
    pub(crate) fn add_scalar_op(&mut self, op: ScalarOp, elements: u64) {
        let row = op.row().cost;
        self.flops += row.arithmetic * elements;
        self.transcendentals += row.transcendental * elements;
    }
    /// Adds the work `cost`, done `times` times.
    pub(crate) fn add_repeated(&mut self, times: u64, cost: Cost) {
        self.flops += times * cost.flops;
        self.bytes_accessed += times * cost.bytes_accessed;
        self.transcendentals += times * cost.transcendentals;
    }
    /// The least time for this work on a device with these peaks, in FLOP/s and bytes/s: all operations or all memory
    /// traffic, whichever takes longer (Williams, Waterman, Patterson 2009).
    pub fn roofline(&self, flops_per_second: f64, bytes_per_second: f64) -> std::time::Duration {
        let seconds = self.roofline_seconds(flops_per_second, bytes_per_second);
        std::time::Duration::try_from_secs_f64(seconds).unwrap_or(std::time::Duration::MAX)
    }
    /// The least time for this work in seconds; see [`roofline`](Cost::roofline).
    pub(crate) fn roofline_seconds(&self, flops_per_second: f64, bytes_per_second: f64) -> f64 {
        (self.flops as f64 / flops_per_second).max(self.bytes_accessed as f64 / bytes_per_second)
    }
}

/// Number of multiplications of a power by repeated squaring, and one division for a negative exponent.
fn count_power_multiplications(exponent: i32) -> u64 {
    let n = exponent.unsigned_abs();
    let squares = n.checked_ilog2().unwrap_or(0);
    u64::from(squares + n.count_ones().saturating_sub(1)) + u64::from(exponent < 0)
}

/// Estimates the work of a launch: that of a program, times the number of programs. Both sides of an `if` count; loops
/// of unknown length count once.
pub(crate) fn estimate_launch_cost(kernel: &Kernel, geometry: &LaunchGeometry) -> Cost {
    let mut sum = Cost::default();
    estimate_instruction_costs(kernel, geometry, &mut |_, own| sum.add_repeated(1, own));
    sum
}

/// Calls `f` with the estimated work of each instruction in all programs of a launch.
pub(crate) fn estimate_instruction_costs(kernel: &Kernel, geometry: &LaunchGeometry, f: &mut dyn FnMut(InstId, Cost)) {
    let programs: u64 = geometry.grid.iter().map(|&n| n as u64).product();
    let elements = |v: Value| programs * kernel.ty(v).elements() as u64;
    let bytes = |v: Value| programs * kernel.ty(v).bytes() as u64;
    kernel.walk(kernel.body, &mut |id, inst| {
        let mut cost = Cost::default();
        let results = inst.results.first().map_or(0, |&v| elements(v));
        match &inst.op {
            Op::Scalar(op) => cost.add_scalar_op(*op, results),
            Op::Structural(op) => {
                let dims: Vec<_> = inst.args.iter().map(|&v| kernel.ty(v).dims()).collect();
                let dims: Vec<_> = dims.iter().map(|d| &d[..]).collect();
                match op.access(&dims) {
                    AccessForm::Contract { contract, .. } => {
                        let inner = contract.iter().map(|p| kernel.ty(inst.args[0]).shape[p.0] as u64).product::<u64>();
                        cost.flops += 2 * results * inner;
                    }
                    AccessForm::Fold { op, .. } | AccessForm::Scan { op, .. } => {
                        cost.add_scalar_op(op, elements(inst.args[0]))
                    }
                    AccessForm::Scatter { op: Some(op), .. } => cost.add_scalar_op(op, elements(inst.args[2])),
                    AccessForm::Nest(nest) if inst.args.len() == 2 => {
                        cost.flops += 2 * results * nest.folded_count() as u64
                    }
                    AccessForm::Nest(nest) => cost.add_scalar_op(nest.op, results * nest.folded_count() as u64),
                    AccessForm::Arg { .. } => cost.flops += elements(inst.args[0]),
                    AccessForm::Sort { axis, .. } => {
                        let comparisons = kernel.ty(inst.args[0]).shape[axis].max(2).ilog2();
                        cost.flops += elements(inst.args[0]) * u64::from(comparisons);
                    }
                    AccessForm::Powi(exponent) => cost.flops += results * count_power_multiplications(exponent),
                    _ => {}
                }
            }
            Op::Load { .. } => cost.bytes_accessed += inst.results.first().map_or(0, |&v| bytes(v)),
            Op::Store { .. } => cost.bytes_accessed += bytes(inst.args[0]),
            _ => {}
        }
        f(id, cost);
    });
}
