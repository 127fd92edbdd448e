//! Collectives on a mesh whose groups of devices are known.
//!
//! In graphs, collectives are operations too. The parts for or from other devices are along a first axis, so that each
//! is contiguous in memory; plain operations before and after, which are fused with their neighbours, put dimensions in
//! order. Devices of one process run in lockstep: `device/sequence` does each action of a program for all of them, each
//! with its own table of memory. In long launches each thread of the pool takes a device, since blocks are too small to
//! be shared one by one. A collective (`collective/lockstep`) copies between devices, so nothing can deadlock, and sums
//! have the order of the devices. In a loop or branch each device decides by its own values, and only devices that take
//! a step do its actions, on every engine. If the steps have collectives, all devices go through each step that one of
//! them takes, and devices that do not take it exchange data that nobody reads: so engines need no other collectives.
//! The devices of a group must all take a step, or none; otherwise it is an error before the collective.
//!
//! A GPU and the interpreter do not have a table of memory for each device: the graphs of all devices become one
//! (`shard/virtual_mesh`), with collectives as slices, concatenations and sums, which is planned and fused like any
//! other. Devices with a collective in a loop share the loop, so its condition is read once for all of them; other
//! devices have separate loops.
//!
//! Other engines run the same sequence for fewer devices at a time (*participants*: one on each of several threads, or
//! some in each process of an MPI job) and exchange arrays by the trait `Collectives`, whose `start` takes the operands
//! and whose `finish` writes the results; `jit/program/cpu_sequence` places `finish` before the first step that uses
//! them. All engines compute results by one function (`collective/resolved`), so they give the same bits. Tickets are
//! compared before any data is used. Threads meet in a `collective/rendezvous`, which finds deadlocks by counting: if
//! all devices wait or have ended, no device will arrive. Processes have one thread for all calls of MPI
//! (`collective/mpi/point_to_point`) and send point to point with a probe and a deadline, because MPI's own collectives
//! hang or give a wrong result if processes are at different ones. The values that decide about steps with collectives
//! (the condition of a loop, the index of a branch) are gathered from all devices whenever they are read. Programs of a
//! job run within their calls, not in the queue, so that all processes reach collectives in the order of their calls.
//!
//! An array on a mesh has a block for each device (`array::ShardedBlocks`, `sharding/`); code that asks for its memory
//! gets the whole array, assembled once. The key of a program contains the declared shardings, not those in which
//! functions placed their results. A result whose sharding is that of a declared argument may take the argument's
//! place; otherwise a training step would be compiled a second time, without the declarations of its weights. When a
//! function is compiled again, each leaf keeps its declaration from the most similar entry
//! (`sharded::keep_declarations`). An operation that runs at once is compiled for the shardings of its operands
//! (`sharded::operand_shardings`).
use super::combine::fold_members;
use super::ticket::Ticket;
use pallas_ir::{Loc, Type};
use pallas_mesh::{Axis, CollectiveForm, Mesh, SentPart, axes_text};
use std::sync::Arc;

/// A collective on a mesh: the groups of devices that take part in it, and what each member gets.
#[derive(Clone, Debug)]
pub struct ResolvedCollective {
    /// Form of each member's result, by its number in the group.
    forms: Vec<CollectiveForm>,
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
        forms: Vec<CollectiveForm>,
        result_type: &Type,
        at: Loc,
    ) -> ResolvedCollective {
        let devices = mesh.device_count();
        let (mut groups, mut places) = (vec![], vec![(usize::MAX, 0); devices]);
        for position in 0..devices {
            if places[position].0 == usize::MAX {
                let group = mesh.group(position, axes);
                group.iter().enumerate().for_each(|(number, &member)| places[member] = (groups.len(), number));
                groups.push(group);
            }
        }
        let source = |form: &CollectiveForm| if let CollectiveForm::FromMember(source) = form { *source } else { None };
        let kind = match forms[0] {
            CollectiveForm::Fold(combined, _) => format!("{name} {combined}"),
            CollectiveForm::FromMember(_) => format!("{name} {:?}", forms.iter().map(source).collect::<Vec<_>>()),
            CollectiveForm::Stack(_) | CollectiveForm::Constant(_) | CollectiveForm::Own => name.to_string(),
        };
        let ticket = Ticket {
            step: 0,
            kind,
            axes: axes_text(axes, mesh),
            shape: result_type.shape.clone(),
            dtype: result_type.dtype.to_string(),
            layout: (0..result_type.shape.len()).collect(),
            line: if at == Loc::NONE { String::new() } else { at.to_string() },
        };
        let (mesh, axes, gives) = (mesh.clone(), axes.to_vec(), result_type.clone());
        ResolvedCollective { forms, mesh, axes, gives, groups, places, ticket, at }
    }

    /// Sets the order of the arrays' dimensions in memory, which all members must agree on.
    #[must_use]
    #[doc(hidden)]
    pub fn with_layout(mut self, layout: Vec<usize>) -> ResolvedCollective {
        self.ticket.layout = layout;
        self
    }

    /// Sets the kind of exchange on the collective's ticket, which the tickets of all members must have.
    #[must_use]
    #[doc(hidden)]
    pub fn with_ticket_kind(mut self, kind: &str) -> ResolvedCollective {
        self.ticket.kind = kind.to_string();
        self
    }

    /// The mesh of the devices.
    pub fn mesh(&self) -> &Arc<Mesh> {
        &self.mesh
    }

    /// Returns which operands of the group, or which combination of them, are the result of the member with this
    /// number. All members have the same variant.
    pub fn result_form(&self, number: usize) -> CollectiveForm {
        self.forms[number]
    }

    /// The axes along which the devices of a group differ.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Type of each device's result.
    pub fn result_type(&self) -> &Type {
        &self.gives
    }

    /// Source position of the collective.
    pub fn loc(&self) -> Loc {
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
    pub fn number_in_group(&self, position: usize) -> usize {
        self.places[position].1
    }

    /// Returns true if devices exchange data: groups have several members, and the result depends on operands.
    #[doc(hidden)]
    pub fn needs_communication(&self) -> bool {
        !matches!(self.result_form(0), CollectiveForm::Constant(_)) && self.groups[0].len() > 1
    }

    /// Computes the result of the member with this number; `operand(k)` is that of member k.
    #[doc(hidden)]
    pub fn compute_result<'a>(&self, number: usize, operand: impl Fn(usize) -> &'a [u8], result: &mut [u8]) {
        let members = self.groups[0].len();
        let bytes = result.len();
        match self.result_form(number) {
            CollectiveForm::Own => unreachable!("devices do nothing for it"),
            CollectiveForm::Constant(n) => result.copy_from_slice(&n.to_ne_bytes()),
            CollectiveForm::Stack(SentPart::Whole) => {
                for (k, part) in result.chunks_exact_mut((bytes / members).max(1)).enumerate() {
                    part.copy_from_slice(operand(k));
                }
            }
            CollectiveForm::Stack(SentPart::Part) => {
                let own = bytes / members;
                for k in 0..members {
                    result[k * own..][..own].copy_from_slice(&operand(k)[number * own..][..own]);
                }
            }
            CollectiveForm::FromMember(Some(source)) => result.copy_from_slice(operand(source)),
            CollectiveForm::FromMember(None) => result.fill(0),
            CollectiveForm::Fold(op, SentPart::Whole) => fold_members(op, self.gives.dtype, result, members, operand),
            CollectiveForm::Fold(op, SentPart::Part) => {
                let part = |k: usize| &operand(k)[number * bytes..][..bytes];
                fold_members(op, self.gives.dtype, result, members, part);
            }
        }
    }

    /// Computes the results of all devices from the operands of all, on this thread; sums are computed once per group.
    #[doc(hidden)]
    pub fn compute_all_results(&self, operands: &[&[u8]], results: &mut [&mut [u8]]) {
        for group in &self.groups {
            for (number, &member) in group.iter().enumerate() {
                match (self.result_form(number), number) {
                    (CollectiveForm::Fold(_, SentPart::Whole), 1..) => {
                        let [first, own] =
                            results.get_disjoint_mut([group[0], member]).expect("a group has a member once");
                        own.copy_from_slice(first);
                    }
                    _ => self.compute_result(number, |k| operands[group[k]], results[member]),
                }
            }
        }
    }
}
