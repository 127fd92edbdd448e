//! The rendezvous, at which devices on threads of one process exchange operands.
//!
//! A device *waits* in a collective until its whole group has arrived. If every device waits or has ended, a deadlock
//! is certain: devices are counted, so no timer is needed, and no slow device is taken for a lost one. The first
//! failure ends all collectives: each device that waits, or arrives later, gets an error that names a peer.
use super::deadlock::{BlamedPeer, DeviceOutcome, FailureCause, FailureSnapshot};
use super::ticket::Ticket;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Key of a collective: its group, and the number of the group's collectives before.
type CollectiveKey = (Vec<usize>, u64);

/// Operands of a group's members, in the order of their numbers.
pub(super) type GroupOperands = Vec<Arc<[u8]>>;

/// Operands that members of a group have handed in for one collective, with the ticket that all members must have.
struct ArrivedOperands {
    ticket: Ticket,
    /// Operand of each member that has arrived, by number in the group.
    here: Vec<Option<Arc<[u8]>>>,
    /// Number of members that have not taken the operands yet.
    left: usize,
}

/// State of a rendezvous: the operands that have arrived, the devices that wait or have ended, and the first failure.
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

/// State that the devices of one process share, each on its own thread: a device hands in its operand of a collective
/// there, and waits for the operands of its group.
pub(super) struct Rendezvous {
    devices: usize,
    state: Mutex<RendezvousState>,
    bell: Condvar,
}

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
            if table.ticket.first_difference(ticket).is_some() {
                let first = table.here.iter().position(Option::is_some).expect("a table has a first device");
                self.record_failure(&mut state, FailureCause::TicketsDiffer(group[first], device));
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

    /// Waits until all members of `group` have arrived at the group's collective number `round`, and returns their
    /// operands; `ticket` is that of `device`.
    ///
    /// # Errors
    /// The peer to blame, if a collective failed before all had arrived.
    pub(super) fn wait_for_group(
        &self,
        device: usize,
        (group, round): (&[usize], u64),
        ticket: &Ticket,
    ) -> Result<GroupOperands, BlamedPeer> {
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
                self.record_failure(&mut state, FailureCause::Ended(device));
            } else if state.waiting.len() + state.ended.len() == self.devices {
                let cause = FailureCause::Deadlocked(state.find_blocking_device(missing[0]));
                self.record_failure(&mut state, cause);
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
            self.record_failure(&mut state, FailureCause::Ended(device));
        } else if state.waiting.len() + state.ended.len() == self.devices
            && let Some(&first) = state.waiting.keys().next()
        {
            let cause = FailureCause::Deadlocked(state.find_blocking_device(first));
            self.record_failure(&mut state, cause);
        }
    }

    /// The peer to name in the error that `device` gets though its own program ended well, because the collectives have
    /// failed; `None` if they have not.
    pub(super) fn find_blamed_peer(&self, device: usize) -> Option<BlamedPeer> {
        let state = self.state.lock();
        let failure = state.failure.as_ref()?;
        let culprit = failure.find_culprit_for(device);
        // A device that is to blame itself names a device that waited for it.
        let waits = || failure.waiting.iter().copied().find(|&other| other != device);
        Some(failure.describe_peer(if culprit == device { waits().unwrap_or(device) } else { culprit }))
    }

    /// Records the first failure, and wakes all devices.
    fn record_failure(&self, state: &mut RendezvousState, cause: FailureCause) {
        if state.failure.is_none() {
            let (last, ended) = (state.last.clone(), state.ended.clone());
            let waiting = state.waiting.keys().copied().collect();
            state.failure = Some(FailureSnapshot { last, waiting, ended, cause });
        }
        self.bell.notify_all();
    }
}

impl RendezvousState {
    /// Follows the chain of devices, each of which waits for the next, from `first`, and returns the last one: a device
    /// that does not wait, or one of a cycle.
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
