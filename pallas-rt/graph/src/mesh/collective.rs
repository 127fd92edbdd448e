//! Operations by which the devices of a mesh exchange arrays.
//!
//! Every device has an operand of the same type. Those that differ along the collective's axes alone form a *group*; in it
//! a device has a number, its coordinate along these axes. Parts for or from the members of a group lie along a first axis,
//! so what is exchanged is always whole pieces of memory.
use super::{Axis, Mesh, State, names, size};
use pallas_ir::{At, DType, Diag, ScalarOp, Type};
use std::fmt;
use std::sync::Arc;

/// An operation on the arrays of a group of devices.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Collective {
    /// The result of each device.
    pub kind: Exchange,
    /// The mesh.
    pub mesh: Arc<Mesh>,
    /// The axes along which the devices of a group differ, the slowest first.
    pub axes: Vec<Axis>,
}

/// The result of each device in a group of `k`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Exchange {
    /// `T[..] -> T[k, ..]`: the operands of all.
    AllGather,
    /// `T[k, ..] -> T[k, ..]`: of each operand the part that has the device's number.
    AllToAll,
    /// `T[..] -> T[..]`: the operands combined by a monoid, in the order of the numbers.
    AllReduce(ScalarOp),
    /// `T[k, ..] -> T[..]`: of each operand the part that has the device's number, combined in the order of the numbers.
    ReduceScatter(ScalarOp),
    /// `T[..] -> T[..]`: the operand of the device with this number; zeros where there is none.
    Permute(Vec<Option<usize>>),
    /// `-> i32[]`: the entry that has the device's number.
    Table(Vec<i32>),
    /// `T[..] -> T[..]`: the operand, as a value in another state. It stands in a [`ShardMap`](crate::call::ShardMap) alone, where
    /// derivatives need it; devices do nothing for it.
    Cast {
        /// The state of the operand.
        from: State,
        /// The state of the result.
        to: State,
    },
}

impl Collective {
    /// Number of devices in a group.
    pub fn members(&self) -> usize {
        size(&self.axes)
    }

    /// The name of the operation, as in StableHLO.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Exchange::AllGather => "all_gather",
            Exchange::AllToAll => "all_to_all",
            Exchange::AllReduce(_) => "all_reduce",
            Exchange::ReduceScatter(_) => "reduce_scatter",
            Exchange::Permute(_) => "collective_permute",
            Exchange::Table(_) => "device_table",
            Exchange::Cast { .. } => "pcast",
        }
    }

    /// Returns true if the operand has a first axis of parts for the members, and if the result has one of parts from them.
    pub(crate) fn parts(&self) -> (bool, bool) {
        match self.kind {
            Exchange::AllToAll => (true, true),
            Exchange::ReduceScatter(_) => (true, false),
            Exchange::AllGather => (false, true),
            Exchange::AllReduce(_) | Exchange::Permute(_) | Exchange::Table(_) | Exchange::Cast { .. } => {
                (false, false)
            }
        }
    }

    /// Returns true if devices exchange something.
    pub fn communicates(&self) -> bool {
        !matches!(self.kind, Exchange::Table(_) | Exchange::Cast { .. })
    }

    /// The type of the result.
    ///
    /// # Errors
    /// Another number of operands, operands without an axis for the members, or elements that the operation does not combine.
    pub fn infer(&self, args: &[&Type]) -> Result<Type, Diag> {
        let wrong = |message: String, help: &str| Err(Diag::new(self.name(), At::Op, message, help));
        let k = self.members();
        if let (Exchange::Table(table), []) = (&self.kind, args) {
            return match table.len() == k {
                true => Ok(Type::scalar(DType::I32)),
                false => wrong(format!("{} entries for {k} devices", table.len()), "one entry for each device"),
            };
        }
        let [x] = args else {
            return wrong(format!("{} operands", args.len()), "one array, or none for a table");
        };
        let parts = || x.shape.first() == Some(&k);
        if let Exchange::AllReduce(by) | Exchange::ReduceScatter(by) = &self.kind
            && !by.is_monoid(x.dtype)
        {
            let all = ScalarOp::ALL.iter().filter(|op| op.is_monoid(x.dtype)).map(|op| format!("`{op}`"));
            let help = format!("elements of {} are combined by {}", x.dtype, all.collect::<Vec<_>>().join(", "));
            return wrong(format!("elements of {} combined by `{by}`", x.dtype), &help);
        }
        match &self.kind {
            Exchange::AllGather => Ok(Type::new(x.dtype, [&[k], &x.shape[..]].concat())),
            Exchange::AllToAll if parts() => Ok((*x).clone()),
            Exchange::ReduceScatter(_) if parts() => Ok(Type::new(x.dtype, &x.shape[1..])),
            Exchange::AllReduce(_) | Exchange::Cast { .. } => Ok((*x).clone()),
            Exchange::Permute(sources) if sources.len() == k && sources.iter().flatten().all(|&s| s < k) => {
                Ok((*x).clone())
            }
            Exchange::Permute(_) => wrong(format!("sources for {k} devices"), "one of the group for each device"),
            Exchange::AllToAll | Exchange::ReduceScatter(_) => {
                wrong(format!("{x} among {k} devices"), "the first axis has a part for each device")
            }
            Exchange::Table(_) => wrong("a table with an operand".into(), "a table has none"),
        }
    }

    /// Bytes that a device sends, if it sends each part once to each member that needs it.
    pub fn bytes_sent(&self, operand: &Type) -> usize {
        let (bytes, k) = (operand.bytes(), self.members());
        match &self.kind {
            Exchange::AllGather => bytes * (k - 1),
            Exchange::AllToAll | Exchange::ReduceScatter(_) => bytes / k * (k - 1),
            // A reduce-scatter and an all-gather.
            Exchange::AllReduce(_) => 2 * bytes.div_ceil(k) * (k - 1),
            Exchange::Permute(_) => bytes,
            Exchange::Table(_) | Exchange::Cast { .. } => 0,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        match &self.kind {
            Exchange::AllReduce(op) | Exchange::ReduceScatter(op) => write!(f, " {op}")?,
            Exchange::Permute(sources) => {
                let all = sources.iter().map(|s| s.map_or("-".into(), |s| s.to_string()));
                write!(f, " from({})", all.collect::<Vec<_>>().join(", "))?;
            }
            Exchange::Table(table) => write!(f, " {table:?}")?,
            Exchange::Cast { from, to } => write!(f, " {} to {}", from.name(), to.name())?,
            Exchange::AllGather | Exchange::AllToAll => {}
        }
        write!(f, " axes({})", names(&self.axes, &self.mesh))
    }
}
