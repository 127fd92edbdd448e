//! An exchange whose groups are known.
use super::combine::fold;
use super::ticket::Ticket;
use pallas_graph::mesh::{Axis, Collective, Exchange, Form, Mesh, Piece, names};
use pallas_ir::{Loc, Type};
use std::sync::Arc;

/// An exchange on a mesh: the groups of devices that take part in it, and the result of each.
#[derive(Clone, Debug)]
pub struct Meeting {
    kind: Exchange,
    mesh: Arc<Mesh>,
    axes: Vec<Axis>,
    /// The type of the result.
    gives: Type,
    /// The positions of each group, in the order of the members' numbers.
    groups: Vec<Vec<usize>>,
    /// By position, its group and its number in that.
    places: Vec<(usize, usize)>,
    ticket: Ticket,
    at: Loc,
}

impl Meeting {
    /// An exchange whose results have the type `gives`.
    pub(crate) fn new(op: &Collective, gives: &Type, at: Loc) -> Meeting {
        let devices = op.mesh.devices();
        let (mut groups, mut places) = (vec![], vec![(usize::MAX, 0); devices]);
        for position in 0..devices {
            if places[position].0 == usize::MAX {
                let group = op.mesh.group(position, &op.axes);
                group.iter().enumerate().for_each(|(number, &member)| places[member] = (groups.len(), number));
                groups.push(group);
            }
        }
        let kind = match op.form() {
            Form::Fold(combined, _) => format!("{} {combined}", op.name()),
            Form::One(_) => format!("{} {:?}", op.name(), op.sources()),
            Form::Stack(_) | Form::Number(_) | Form::Own => op.name().to_string(),
        };
        let ticket = Ticket {
            step: 0,
            kind,
            axes: names(&op.axes, &op.mesh),
            shape: gives.shape.clone(),
            dtype: gives.dtype.to_string(),
            layout: (0..gives.shape.len()).collect(),
            line: if at == Loc::NONE { String::new() } else { at.to_string() },
        };
        Meeting {
            kind: op.kind.clone(),
            mesh: op.mesh.clone(),
            axes: op.axes.clone(),
            gives: gives.clone(),
            groups,
            places,
            ticket,
            at,
        }
    }

    /// The same exchange of arrays whose dimensions lie in memory in this order.
    #[must_use]
    pub(crate) fn with_layout(mut self, layout: Vec<usize>) -> Meeting {
        self.ticket.layout = layout;
        self
    }

    /// The exchange with another name on its ticket.
    #[must_use]
    pub(crate) fn named(mut self, kind: &str) -> Meeting {
        self.ticket.kind = kind.to_string();
        self
    }

    /// The mesh.
    pub fn mesh(&self) -> &Arc<Mesh> {
        &self.mesh
    }

    /// The exchange.
    pub fn kind(&self) -> &Exchange {
        &self.kind
    }

    /// The axes along which the devices of a group differ.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// The type of each result.
    pub fn gives(&self) -> &Type {
        &self.gives
    }

    /// The user's line.
    pub fn at(&self) -> Loc {
        self.at
    }

    /// The ticket of a step.
    pub fn ticket(&self, step: u64) -> Ticket {
        Ticket { step, ..self.ticket.clone() }
    }

    /// The positions of a device's group, in the order of their numbers.
    pub fn group(&self, position: usize) -> &[usize] {
        &self.groups[self.places[position].0]
    }

    /// The number of a device in its group.
    pub fn number(&self, position: usize) -> usize {
        self.places[position].1
    }

    /// Returns true if devices exchange something.
    pub(crate) fn communicates(&self) -> bool {
        !matches!(self.kind.form(0), Form::Number(_)) && self.groups[0].len() > 1
    }

    /// Fills the result of a group's member from the operands of all, in the order of their numbers.
    pub(crate) fn fill<'a>(&self, number: usize, operand: impl Fn(usize) -> &'a [u8], result: &mut [u8]) {
        let members = self.groups[0].len();
        let bytes = result.len();
        match self.kind.form(number) {
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

    /// Fills the results of all devices from the operands of all; those of sums are added up once a group.
    pub(crate) fn fill_all(&self, operands: &[&[u8]], results: &mut [&mut [u8]]) {
        for group in &self.groups {
            for (number, &member) in group.iter().enumerate() {
                match (self.kind.form(number), number) {
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
