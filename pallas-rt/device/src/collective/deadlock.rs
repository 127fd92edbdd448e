//! The report of a deadlock or another failure at the rendezvous: what each device was doing, and the peer to blame.
use super::ticket::Ticket;
use std::collections::BTreeMap;

/// Outcome of the program of a device.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DeviceOutcome {
    /// The program returned a value.
    Finished,
    /// The program returned an error, with this message.
    Failed(String),
    /// The program panicked, with this message.
    Panicked(String),
}

/// State of all devices at the first failure of a collective: the last collective of each, those that wait, those that
/// have ended, and the cause.
#[derive(Clone, Debug)]
pub(super) struct FailureSnapshot {
    pub(super) last: BTreeMap<usize, (Ticket, Vec<usize>)>,
    pub(super) waiting: Vec<usize>,
    pub(super) ended: BTreeMap<usize, DeviceOutcome>,
    pub(super) cause: FailureCause,
}

/// Cause of the failure that ended all collectives.
#[derive(Clone, Copy, Debug)]
pub(super) enum FailureCause {
    /// This device ended while others waited for it, or ended with an error.
    Ended(usize),
    /// These two devices arrived at a collective with different tickets.
    TicketsDiffer(usize, usize),
    /// All devices wait; this one is at the end of a chain of waiting devices.
    Deadlocked(usize),
}

/// A peer to blame, and what it did instead of taking part.
pub(super) type BlamedPeer = (usize, String);

impl FailureSnapshot {
    /// The device that caused the failure; of two whose tickets differ, the other one than `device`.
    pub(super) fn find_culprit_for(&self, device: usize) -> usize {
        match self.cause {
            FailureCause::Ended(culprit) | FailureCause::Deadlocked(culprit) => culprit,
            FailureCause::TicketsDiffer(first, second) => {
                if second == device {
                    first
                } else {
                    second
                }
            }
        }
    }

    /// The peer to blame in the error of `device` at the collective with this `group` and `ticket`: a member of the
    /// group that has ended or is at another collective, else the device that caused the failure.
    pub(super) fn blamed_peer_of(&self, device: usize, group: &[usize], ticket: &Ticket) -> BlamedPeer {
        let differs = |peer: usize| self.last.get(&peer).and_then(|(other, _)| ticket.first_difference(other));
        let peers = || group.iter().copied().filter(|&peer| peer != device);
        // A member of the group that takes part in no more collectives, or is at another one.
        let found = match self.cause {
            // The device whose step is higher has left out a collective.
            FailureCause::TicketsDiffer(first, second) => {
                let step = |peer: usize| self.last.get(&peer).map(|(ticket, _)| ticket.step);
                let both = if step(first) > step(second) { [first, second] } else { [second, first] };
                both.into_iter().find(|&peer| peer != device && differs(peer).is_some())
            }
            FailureCause::Ended(_) | FailureCause::Deadlocked(_) => peers().find(|peer| self.ended.contains_key(peer)),
        };
        // A device at a lower step may only be slow; one that is as far must have left out this collective.
        let is_elsewhere = |&peer: &usize| {
            let is_as_far = self.last.get(&peer).is_some_and(|(other, _)| other.step >= ticket.step);
            is_as_far && self.waiting.contains(&peer) && differs(peer).is_some()
        };
        let elsewhere = || match self.cause {
            FailureCause::Ended(_) | FailureCause::Deadlocked(_) => peers().find(is_elsewhere),
            FailureCause::TicketsDiffer(..) => None,
        };
        let peer = found.or_else(elsewhere).unwrap_or_else(|| self.find_culprit_for(device));
        if peer == device {
            // Others wait for this device elsewhere, or have failed.
            let other = self.waiting.iter().copied().find(|&other| other != device);
            return self.describe_peer(other.or_else(|| peers().next()).unwrap_or(device));
        }
        match differs(peer) {
            Some(difference) if !self.ended.contains_key(&peer) => (peer, difference),
            _ => self.describe_peer(peer),
        }
    }

    /// Returns `peer` as the peer to blame, with a text of what it was doing at the failure.
    pub(super) fn describe_peer(&self, peer: usize) -> BlamedPeer {
        let found = match (self.ended.get(&peer), self.last.get(&peer)) {
            (Some(DeviceOutcome::Finished), _) => "has finished, and takes part in no more collectives".to_string(),
            (Some(DeviceOutcome::Failed(message)), _) => format!("has failed: {message}"),
            (Some(DeviceOutcome::Panicked(message)), _) => format!("panicked: {message}"),
            (None, Some((ticket, _))) if self.waiting.contains(&peer) => format!("waits in {ticket}"),
            (None, Some((ticket, _))) => format!("was last at {ticket}"),
            (None, None) => "has come to no exchange".to_string(),
        };
        (peer, found)
    }
}
