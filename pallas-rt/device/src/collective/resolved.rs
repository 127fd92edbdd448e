//! Collectives on a mesh whose groups of devices are known.
//!
//! Exchanges are operations of graphs too: the parts for or from other devices lie along a first axis,
//! so that they are whole pieces of memory, and plain operations around them, which are fused with their neighbours, put
//! dimensions in order. Devices of one process run in lockstep: `device/sequence` does each action of a program for all of
//! them, with a table of memory each; the threads of the pool take a device each in long launches, since blocks are too small
//! to be shared one by one; and an exchange (`collective/lockstep`) copies between them. So nothing can wait for ever, and sums
//! have the order of the devices. In a loop or branch each device goes its own way: the actions are done for those that take
//! the step, on every engine. If its steps exchange something, all devices go through each step that one of them takes, and
//! exchange what nobody reads where they do not take it themselves: so engines need no other exchanges, and nothing can wait for
//! ever. Of a group all devices take a step or none; otherwise it is an error before the exchange.
//!
//! A GPU and the interpreter have no table of memory for each device: the graphs of all devices become one (`shard/united`),
//! with exchanges as slices, concatenations and sums, which is planned and fused like any other. Devices that exchange
//! something in a loop share the loop, so its condition is read once for all of them; others have loops of their own.
//!
//! Other engines run the same sequence for fewer devices at a time (*participants*: one on each of several threads, or some in each
//! process of an MPI job) and exchange arrays by the trait `Collectives`, whose `start` takes the operands and whose `finish`
//! writes the results; `jit/program/native` puts the latter in front of the first step that touches them. All engines fill
//! results by one function (`collective/resolved`), so they have the same bits. A ticket is compared before any number is used.
//! Threads meet in a `collective/rendezvous`, which finds deadlocks by counting: if all devices wait or have ended, nobody comes.
//! Processes have one thread for all calls of MPI (`collective/mpi/courier`) and send point to point with a probe and a
//! deadline, because MPI's own collectives hang or give a wrong number where processes are at different ones. What decides
//! about a step with exchanges (the condition of a loop, the number of a branch) is gathered from all devices at each reading.
//! Programs of a job run within their calls, not in the queue, so that all processes exchange in the order of their calls. An
//! array on a mesh has a block for each device (`array::Blocks`, `sharding/`); what asks for its memory gets the whole array,
//! put together once. A program's key has what was declared, not where functions placed their results; a result that lies as an
//! argument was declared may take its place, because a training step would otherwise be compiled a second time, without the
//! declarations of its weights. Where a function is compiled again, leaves keep the declarations of the most similar entry one
//! by one (`compiled::with_kept_declarations`). An operation that runs at once is compiled for the division of its operands
//! (`sharded::followed`).
use super::combine::fold;
use super::ticket::Ticket;
use pallas_ir::{Loc, Type};
use pallas_mesh::{Axis, Form, Mesh, Piece, names};
use std::sync::Arc;

/// A collective on a mesh: the groups of devices that take part in it, and what each member gets.
#[derive(Clone, Debug)]
pub struct ResolvedCollective {
    /// Form of each member's result, by its number in the group.
    forms: Vec<Form>,
    mesh: Arc<Mesh>,
    axes: Vec<Axis>,
    /// Type of each device's result.
    gives: Type,
    /// Positions of each group's devices on the mesh, in the order of their numbers.
    groups: Vec<Vec<usize>>,
    /// Group of the device at each position, and its number in the group.
    places: Vec<(usize, usize)>,
    ticket: Ticket,
    at: Loc,
}

impl ResolvedCollective {
    /// Creates the collective along `axes`: a name for messages, the form of each member's result, and the results'
    /// type.
    #[doc(hidden)]
    pub fn new(
        name: &str,
        mesh: &Arc<Mesh>,
        axes: &[Axis],
        forms: Vec<Form>,
        gives: &Type,
        at: Loc,
    ) -> ResolvedCollective {
        let devices = mesh.devices();
        let (mut groups, mut places) = (vec![], vec![(usize::MAX, 0); devices]);
        for position in 0..devices {
            if places[position].0 == usize::MAX {
                let group = mesh.group(position, axes);
                group.iter().enumerate().for_each(|(number, &member)| places[member] = (groups.len(), number));
                groups.push(group);
            }
        }
        let source = |form: &Form| if let Form::One(source) = form { *source } else { None };
        let kind = match forms[0] {
            Form::Fold(combined, _) => format!("{name} {combined}"),
            Form::One(_) => format!("{name} {:?}", forms.iter().map(source).collect::<Vec<_>>()),
            Form::Stack(_) | Form::Number(_) | Form::Own => name.to_string(),
        };
        let ticket = Ticket {
            step: 0,
            kind,
            axes: names(axes, mesh),
            shape: gives.shape.clone(),
            dtype: gives.dtype.to_string(),
            layout: (0..gives.shape.len()).collect(),
            line: if at == Loc::NONE { String::new() } else { at.to_string() },
        };
        let (mesh, axes, gives) = (mesh.clone(), axes.to_vec(), gives.clone());
        ResolvedCollective { forms, mesh, axes, gives, groups, places, ticket, at }
    }

    /// Sets the order of the arrays' dimensions in memory, which all members must agree on.
    #[must_use]
    #[doc(hidden)]
    pub fn with_layout(mut self, layout: Vec<usize>) -> ResolvedCollective {
        self.ticket.layout = layout;
        self
    }

    /// Sets the name on the collective's ticket.
    #[must_use]
    #[doc(hidden)]
    pub fn named(mut self, kind: &str) -> ResolvedCollective {
        self.ticket.kind = kind.to_string();
        self
    }

    /// The mesh of the devices.
    pub fn mesh(&self) -> &Arc<Mesh> {
        &self.mesh
    }

    /// Form of the result of the member with this number. All members have the same variant.
    pub fn form(&self, number: usize) -> Form {
        self.forms[number]
    }

    /// The axes along which the devices of a group differ.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Type of each device's result.
    pub fn gives(&self) -> &Type {
        &self.gives
    }

    /// Source position of the collective.
    pub fn at(&self) -> Loc {
        self.at
    }

    /// The ticket that members compare at this step: what they must agree about.
    pub fn ticket(&self, step: u64) -> Ticket {
        Ticket { step, ..self.ticket.clone() }
    }

    /// Positions of the group of the device at `position`, in the order of their numbers.
    pub fn group(&self, position: usize) -> &[usize] {
        &self.groups[self.places[position].0]
    }

    /// Number of the device at `position` in its group.
    pub fn number(&self, position: usize) -> usize {
        self.places[position].1
    }

    /// Returns true if devices exchange data: groups have several members, and the result depends on operands.
    #[doc(hidden)]
    pub fn communicates(&self) -> bool {
        !matches!(self.form(0), Form::Number(_)) && self.groups[0].len() > 1
    }

    /// Computes the result of the member with this number; `operand(k)` is that of member k.
    #[doc(hidden)]
    pub fn fill<'a>(&self, number: usize, operand: impl Fn(usize) -> &'a [u8], result: &mut [u8]) {
        let members = self.groups[0].len();
        let bytes = result.len();
        match self.form(number) {
            Form::Own => unreachable!("devices do nothing for it"),
            Form::Number(n) => result.copy_from_slice(&n.to_ne_bytes()),
            Form::Stack(Piece::Whole) => {
                for (k, part) in result.chunks_exact_mut((bytes / members).max(1)).enumerate() {
                    part.copy_from_slice(operand(k));
                }
            }
            Form::Stack(Piece::Part) => {
                let own = bytes / members;
                for k in 0..members {
                    result[k * own..][..own].copy_from_slice(&operand(k)[number * own..][..own]);
                }
            }
            Form::One(Some(source)) => result.copy_from_slice(operand(source)),
            Form::One(None) => result.fill(0),
            Form::Fold(op, Piece::Whole) => fold(op, self.gives.dtype, result, members, operand),
            Form::Fold(op, Piece::Part) => {
                let part = |k: usize| &operand(k)[number * bytes..][..bytes];
                fold(op, self.gives.dtype, result, members, part);
            }
        }
    }

    /// Computes the results of all devices from the operands of all, on this thread; sums are computed once per group.
    #[doc(hidden)]
    pub fn fill_all(&self, operands: &[&[u8]], results: &mut [&mut [u8]]) {
        for group in &self.groups {
            for (number, &member) in group.iter().enumerate() {
                match (self.form(number), number) {
                    (Form::Fold(_, Piece::Whole), 1..) => {
                        let [first, own] =
                            results.get_disjoint_mut([group[0], member]).expect("a group has a member once");
                        own.copy_from_slice(first);
                    }
                    _ => self.fill(number, |k| operands[group[k]], results[member]),
                }
            }
        }
    }
}
