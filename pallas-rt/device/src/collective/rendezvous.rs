//! The rendezvous, at which devices on threads of one process exchange operands.
//!
//! A device *waits* in a collective until its whole group has arrived. If every device waits or has ended, a deadlock
//! is certain: devices are counted, so no timer is needed, and no slow device is taken for a lost one. The first
//! failure ends all collectives: each device that waits, or arrives later, gets an error that names a peer.
use super::ticket::Ticket;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

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

/// Key of a collective: its group, and the number of the group's collectives before.
type CollectiveKey = (Vec<usize>, u64);

/// Operands of a group's members, in the order of their numbers.
pub(super) type Operands = Vec<Arc<[u8]>>;

/// A collective at which at least one device has arrived.
struct ArrivedOperands {
    ticket: Ticket,
    /// Operand of each member that has arrived, by number in the group.
    here: Vec<Option<Arc<[u8]>>>,
    /// Number of members that have not taken the operands yet.
    left: usize,
}

/// State of all devices.
#[derive(Default)]
struct RendezvousState {
    tables: HashMap<CollectiveKey, ArrivedOperands>,
    /// Last ticket and group of each device.
    last: BTreeMap<usize, (Ticket, Vec<usize>)>,
    /// Devices that wait, with the key of their collective.
    waiting: BTreeMap<usize, CollectiveKey>,
    ended: BTreeMap<usize, DeviceOutcome>,
    failure: Option<FailureSnapshot>,
}

/// The first failure: what every device was doing at that time.
#[derive(Clone, Debug)]
struct FailureSnapshot {
    last: BTreeMap<usize, (Ticket, Vec<usize>)>,
    waiting: Vec<usize>,
    ended: BTreeMap<usize, DeviceOutcome>,
    cause: FailureCause,
}

/// Cause of the failure that ended all collectives.
#[derive(Clone, Copy, Debug)]
enum FailureCause {
    /// This device ended while others waited for it, or ended with an error.
    Ended(usize),
    /// These two devices arrived at a collective with different tickets.
    TicketsDiffer(usize, usize),
    /// All devices wait; this one is at the end of a chain of waiting devices.
    Deadlocked(usize),
}

/// Place where devices on threads exchange operands: see the module.
pub(super) struct Rendezvous {
    devices: usize,
    state: Mutex<RendezvousState>,
    bell: Condvar,
}

/// A peer to blame, and what it did instead of taking part.
pub(super) type BlamedPeer = (usize, String);

impl Rendezvous {
    pub(super) fn new(devices: usize) -> Rendezvous {
        Rendezvous { devices, state: Mutex::default(), bell: Condvar::new() }
    }

    /// Hands in a device's operand for the collective of its group: `number` is the device's in the group, `round`
    /// counts the group's collectives.
    pub(super) fn arrive(
        &self,
        (device, number): (usize, usize),
        (group, round): (&[usize], u64),
        ticket: &Ticket,
        operand: Arc<[u8]>,
    ) -> Result<(), BlamedPeer> {
        let mut state = self.state.lock();
        state.last.insert(device, (ticket.clone(), group.to_vec()));
        if state.failure.is_none() {
            let fresh = || ArrivedOperands { ticket: ticket.clone(), here: vec![None; group.len()], left: group.len() };
            let table = state.tables.entry((group.to_vec(), round)).or_insert_with(fresh);
            if table.ticket.difference(ticket).is_some() {
                let first = table.here.iter().position(Option::is_some).expect("a table has a first device");
                self.fail(&mut state, FailureCause::TicketsDiffer(group[first], device));
            } else {
                table.here[number] = Some(operand);
                if table.here.iter().all(Option::is_some) {
                    group.iter().for_each(|member| {
                        state.waiting.remove(member);
                    });
                    self.bell.notify_all();
                }
            }
        }
        state.failure.as_ref().map_or(Ok(()), |failure| Err(failure.blamed_peer_of(device, group, ticket)))
    }

    /// Waits until the whole group has arrived, and returns its operands.
    pub(super) fn wait_for_group(
        &self,
        device: usize,
        (group, round): (&[usize], u64),
        ticket: &Ticket,
    ) -> Result<Operands, BlamedPeer> {
        let key = (group.to_vec(), round);
        let mut state = self.state.lock();
        loop {
            let table = state.tables.get_mut(&key).expect("the device has arrived");
            // The whole group arrived before any failure.
            if table.here.iter().all(Option::is_some) {
                let all = table.here.iter().flatten().cloned().collect();
                table.left -= 1;
                if table.left == 0 {
                    state.tables.remove(&key);
                }
                return Ok(all);
            }
            let table = &state.tables[&key];
            if let Some(failure) = &state.failure {
                return Err(failure.blamed_peer_of(device, group, ticket));
            }
            let missing = group.iter().zip(&table.here).filter(|(_, here)| here.is_none()).map(|(&member, _)| member);
            let missing: Vec<usize> = missing.collect();
            let gone = missing.iter().copied().find(|member| state.ended.contains_key(member));
            state.waiting.insert(device, key.clone());
            if let Some(device) = gone {
                self.fail(&mut state, FailureCause::Ended(device));
            } else if state.waiting.len() + state.ended.len() == self.devices {
                let cause = FailureCause::Deadlocked(state.find_blocking_device(missing[0]));
                self.fail(&mut state, cause);
            } else {
                self.bell.wait(&mut state);
            }
        }
    }

    /// Records that a device takes part in no more collectives.
    pub(super) fn record_end(&self, device: usize, end: DeviceOutcome) {
        let mut state = self.state.lock();
        let fails = end != DeviceOutcome::Finished;
        state.ended.insert(device, end);
        let expected = |(group, round): &CollectiveKey| {
            let table = state.tables.get(&(group.clone(), *round));
            let at = group.iter().position(|&member| member == device);
            at.zip(table).is_some_and(|(at, table)| table.here[at].is_none())
        };
        let is_expected = state.waiting.values().any(expected);
        if state.failure.is_none() && (fails || is_expected) {
            self.fail(&mut state, FailureCause::Ended(device));
        } else if state.waiting.len() + state.ended.len() == self.devices
            && let Some(&first) = state.waiting.keys().next()
        {
            let cause = FailureCause::Deadlocked(state.find_blocking_device(first));
            self.fail(&mut state, cause);
        }
    }

    /// The peer to blame for a device that has ended well, if others have failed.
    pub(super) fn find_blamed_peer(&self, device: usize) -> Option<BlamedPeer> {
        let state = self.state.lock();
        let failure = state.failure.as_ref()?;
        let culprit = failure.culprit(device);
        // A device that is to blame itself names a device that waited for it.
        let waits = || failure.waiting.iter().copied().find(|&other| other != device);
        Some(failure.describe_peer(if culprit == device { waits().unwrap_or(device) } else { culprit }))
    }

    /// Records the first failure, and wakes all devices.
    fn fail(&self, state: &mut RendezvousState, cause: FailureCause) {
        if state.failure.is_none() {
            let (last, ended) = (state.last.clone(), state.ended.clone());
            let waiting = state.waiting.keys().copied().collect();
            state.failure = Some(FailureSnapshot { last, waiting, ended, cause });
        }
        self.bell.notify_all();
    }
}

impl RendezvousState {
    /// Follows who waits for whom, and returns the last device: one that has ended, or one of a circle.
    fn find_blocking_device(&self, first: usize) -> usize {
        let (mut at, mut seen) = (first, vec![]);
        while !seen.contains(&at) {
            seen.push(at);
            let Some(key) = self.waiting.get(&at) else { return at };
            let Some(table) = self.tables.get(key) else { return at };
            let missing = key.0.iter().zip(&table.here).find(|(_, here)| here.is_none());
            at = missing.map_or(at, |(&member, _)| member);
        }
        at
    }
}

impl FailureSnapshot {
    /// The device that caused the failure; of two whose tickets differ, the other one than `device`.
    fn culprit(&self, device: usize) -> usize {
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

    /// The peer to blame in the error of a device at a collective.
    fn blamed_peer_of(&self, device: usize, group: &[usize], ticket: &Ticket) -> BlamedPeer {
        let differs = |peer: usize| self.last.get(&peer).and_then(|(other, _)| ticket.difference(other));
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
        let peer = found.or_else(elsewhere).unwrap_or_else(|| self.culprit(device));
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

    /// Blames a device, with what it is doing as text.
    fn describe_peer(&self, peer: usize) -> BlamedPeer {
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
