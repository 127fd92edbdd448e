//! Random exchanges on all engines, against lockstep.
use crate::collective::{
    AllGather, AllReduce, AllToAll, CollectiveInProgress, CollectiveKind, Collectives, DeviceTable, Pbroadcast,
    Permute, ReduceScatter, ResolvedCollective, Ticket, resolve_collective,
};
use pallas_device::collective::{
    ExchangeReply, ExchangeRequest, LockstepParticipant, ProcessGroup, ProcessOutcome, Transport, run_on_threads,
};
use pallas_graph::mesh::{Collective, Mesh};
use pallas_ir::{DType, Loc, ScalarOp, Type};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

/// A generator of numbers (Marsaglia's xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % n
    }

    fn shuffled(&mut self, n: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..n).collect();
        (1..n).for_each(|i| all.swap(i, self.below(i + 1)));
        all
    }
}

/// An exchange, and the operands of all devices.
struct Drawn {
    collective: Arc<ResolvedCollective>,
    operands: Vec<Vec<u8>>,
}

/// The operations that combine elements of a type.
fn monoids(dtype: DType) -> Vec<ScalarOp> {
    ScalarOp::ALL.iter().copied().filter(|op| op.is_monoid(dtype)).collect()
}

/// A mesh whose devices are in any order.
fn mesh(dice: &mut Dice) -> Arc<Mesh> {
    let axes: &[&[(&str, usize)]] = &[
        &[("x", 4)],
        &[("x", 2), ("y", 4)],
        &[("x", 3), ("y", 1), ("z", 4)],
        &[("x", 2), ("y", 2), ("z", 2)],
        &[("x", 8)],
        &[("x", 4), ("y", 3)],
    ];
    let axes = axes[dice.below(axes.len())];
    let count = axes.iter().map(|(_, size)| size).product();
    let devices = if dice.below(2) == 0 { (0..count).collect() } else { dice.shuffled(count) };
    Arc::new(Mesh::with_devices(axes, devices).expect("a mesh"))
}

fn draw(dice: &mut Dice, mesh: &Arc<Mesh>) -> Drawn {
    let order = dice.shuffled(mesh.rank());
    let axes: Vec<_> = order[..1 + dice.below(mesh.rank())].iter().map(|&axis| mesh.axis(axis)).collect();
    let members: usize = axes.iter().map(|axis| axis.size as usize).product();
    let dtype = DType::ALL[dice.below(DType::ALL.len())];
    let all = monoids(dtype);
    let op = all[dice.below(all.len())];
    let kind = match dice.below(7) {
        0 => AllGather.into(),
        1 => AllToAll.into(),
        2 => AllReduce(op).into(),
        3 => ReduceScatter(op).into(),
        4 => permute(dice, members),
        5 => Pbroadcast(dice.below(members)).into(),
        _ => DeviceTable((0..members as i32).map(|i| i * 7 - 3).collect()).into(),
    };
    // No elements, one, and some.
    let inner = [0, 1, 5][dice.below(3)];
    drawn(dice, Collective { kind, mesh: mesh.clone(), axes }, dtype, inner)
}

fn permute(dice: &mut Dice, members: usize) -> CollectiveKind {
    let sources = dice.shuffled(members).into_iter();
    Permute(sources.map(|source| (dice.below(4) > 0).then_some(source)).collect()).into()
}

/// An exchange with drawn operands, whose parts have `inner` elements.
fn drawn(dice: &mut Dice, op: Collective, dtype: DType, inner: usize) -> Drawn {
    let shape = if op.first_member_form().has_operand_and_result_member_axes().0 {
        vec![op.group_size(), inner]
    } else {
        vec![inner]
    };
    let ty = Type::new(dtype, shape);
    let is_table = matches!(op.kind, CollectiveKind::DeviceTable(_));
    let gives = op.infer(&[&ty][..usize::from(!is_table)]).expect("it fits");
    let bytes = if is_table { 0 } else { ty.bytes() };
    let values = if dtype == DType::Bool { 2 } else { 256 };
    let operands =
        (0..op.mesh.device_count()).map(|_| (0..bytes).map(|_| dice.below(values) as u8).collect()).collect();
    Drawn { collective: Arc::new(resolve_collective(&op, &gives, Loc::NONE)), operands }
}

/// The results of some devices of a participant.
fn exchange(participant: &dyn Collectives, drawn: &[Drawn]) -> crate::Result<Vec<Vec<Vec<u8>>>> {
    let mut all = vec![];
    let mut begun = vec![];
    let finish = |(started, bytes): (CollectiveInProgress, usize)| {
        let mut results = vec![vec![7; bytes]; participant.positions().len()];
        let mut each: Vec<&mut [u8]> = results.iter_mut().map(|result| &mut result[..]).collect();
        participant.finish(started, &mut each).map(|()| results)
    };
    for (step, Drawn { collective, operands }) in drawn.iter().enumerate() {
        let own: Vec<&[u8]> = participant.positions().iter().map(|&position| &operands[position][..]).collect();
        begun.push((participant.start(collective, step as u64, &own)?, collective.result_type().bytes()));
        // Two at a time are under way.
        if begun.len() == 2 {
            all.push(finish(begun.remove(0))?);
        }
    }
    for last in begun {
        all.push(finish(last)?);
    }
    Ok(all)
}

/// By exchange and position.
fn lockstep(mesh: &Mesh, drawn: &[Drawn]) -> Vec<Vec<Vec<u8>>> {
    exchange(&LockstepParticipant::new(mesh.device_count()), drawn).expect("nothing can fail")
}

/// A message: who sends it, the ticket, and the bytes.
type Message = (usize, Ticket, Vec<u8>);

/// The messages that come, and by sender those that nobody has asked for yet.
type Inbox = (Receiver<Message>, HashMap<usize, Vec<(Ticket, Vec<u8>)>>);

/// Messages among threads, each of which is a process.
struct Channels {
    rank: usize,
    to: Vec<Sender<Message>>,
    from: Mutex<Inbox>,
}

impl Transport for Channels {
    fn rank(&self) -> usize {
        self.rank
    }
    fn process_count(&self) -> usize {
        self.to.len()
    }
    fn exchange(&self, ExchangeRequest { peers, ticket, payloads, .. }: ExchangeRequest) -> Receiver<ExchangeReply> {
        for (&peer, payload) in peers.iter().zip(payloads) {
            self.to[peer].send((self.rank, ticket.clone(), payload)).expect("the peer is there");
        }
        let (reply, replies) = channel();
        let mut from = self.from.lock().expect("no test panics with it");
        let mut all = vec![];
        for peer in peers {
            while from.1.get(&peer).is_none_or(Vec::is_empty) {
                let (rank, ticket, payload) = from.0.recv().expect("the peer sends");
                from.1.entry(rank).or_default().push((ticket, payload));
            }
            let (theirs, payload) = from.1.get_mut(&peer).expect("it has come").remove(0);
            if let Some(difference) = ticket.first_difference(&theirs) {
                reply.send(Err((peer, difference))).expect("the program waits");
                return replies;
            }
            all.push(payload);
        }
        reply.send(Ok(all)).expect("the program waits");
        replies
    }
    fn create_communicators(&self, classes: Vec<Vec<Vec<usize>>>) -> Vec<usize> {
        for classes in &classes {
            let mut all = classes.concat();
            all.sort_unstable();
            assert!(all.iter().copied().eq(0..self.process_count()), "classes divide the ranks: {classes:?}");
        }
        (1..=classes.len()).collect()
    }
    fn announce_end(&self, _: ProcessOutcome) -> Result<(), (usize, String)> {
        Ok(())
    }
    fn abort_job(&self) -> ! {
        unreachable!("no test does")
    }
}

/// Calls a function on each of so many processes.
fn on_processes<T: Send>(count: usize, run: impl Fn(Arc<ProcessGroup>) -> T + Sync) -> Vec<T> {
    let (to, from): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
    thread::scope(|scope| {
        let start = |(rank, from)| {
            let (to, run) = (to.clone(), &run);
            let wire = Channels { rank, to, from: Mutex::new((from, HashMap::new())) };
            scope.spawn(move || run(Arc::new(ProcessGroup::new(Box::new(wire)))))
        };
        let threads: Vec<_> = from.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("it returns")).collect()
    })
}

/// Compares the results of threads and of a drawn number of processes with those of lockstep.
fn check_engines(dice: &mut Dice, mesh: &Arc<Mesh>, drawn: &[Drawn]) {
    let expected = lockstep(mesh, drawn);
    let threads = run_on_threads(mesh.device_count(), &|participant| exchange(participant, drawn)).expect("threads");
    for (position, results) in threads.into_iter().enumerate() {
        let results = results.expect("all take part");
        for ((found, expected), drawn) in results.iter().zip(&expected).zip(drawn) {
            assert_eq!(found[0], expected[position], "threads, device {position} of {mesh}: {:?}", drawn.collective);
        }
    }
    let divisors: Vec<usize> = (1..=4).filter(|count| mesh.device_count().is_multiple_of(*count)).collect();
    let count = divisors[dice.below(divisors.len())];
    let found = on_processes(count, |all| {
        let participant = all.participant(mesh).expect("a mesh for them");
        (participant.positions().to_vec(), exchange(&*participant, drawn).expect("all take part"))
    });
    let mut positions: Vec<usize> = found.iter().flat_map(|(positions, _)| positions.clone()).collect();
    positions.sort_unstable();
    assert!(positions.iter().copied().eq(0..mesh.device_count()), "each device is in one process");
    for (positions, results) in found {
        for ((found, expected), drawn) in results.iter().zip(&expected).zip(drawn) {
            for (found, &position) in found.iter().zip(&positions) {
                let collective = &drawn.collective;
                assert_eq!(
                    *found, expected[position],
                    "{count} processes, device {position} of {mesh}: {collective:?}"
                );
            }
        }
    }
}

#[test]
fn all_engines_give_the_same_bits() {
    let mut dice = Dice(11);
    for _ in 0..120 {
        let mesh = mesh(&mut dice);
        let drawn: Vec<Drawn> = (0..8).map(|_| draw(&mut dice, &mesh)).collect();
        check_engines(&mut dice, &mesh, &drawn);
    }
}

/// Every exchange of every element type by every monoid, more elements than a strip among them; what combines no
/// elements of a type is refused with the operations that do.
#[test]
fn every_exchange_of_every_type() {
    let mut dice = Dice(13);
    let mesh = Arc::new(Mesh::with_devices(&[("x", 2), ("y", 3)], dice.shuffled(6)).expect("a mesh"));
    for &dtype in DType::ALL {
        let mut kinds = vec![CollectiveKind::from(AllGather), AllToAll.into(), permute(&mut dice, 6)];
        for op in monoids(dtype) {
            kinds.extend([CollectiveKind::from(AllReduce(op)), ReduceScatter(op).into()]);
        }
        let of = |kind| Collective { kind, mesh: mesh.clone(), axes: mesh.axes() };
        let sizes = [3, 300];
        let all: Vec<Drawn> =
            kinds.into_iter().enumerate().map(|(i, kind)| drawn(&mut dice, of(kind), dtype, sizes[i % 2])).collect();
        check_engines(&mut dice, &mesh, &all);
        for &op in ScalarOp::ALL.iter().filter(|op| !op.is_monoid(dtype)) {
            for kind in [CollectiveKind::from(AllReduce(op)), ReduceScatter(op).into()] {
                let diag = of(kind).infer(&[&Type::new(dtype, [6, 2])]).expect_err("it combines nothing");
                assert!(diag.to_string().contains(&format!("elements of {dtype} combined by `{op}`")), "{diag}");
            }
        }
    }
}

/// A device leaves out one of many equal exchanges, or does another in its place: all devices have an error, and those
/// that meet it name it. The devices of other groups go on until they need one that has failed.
#[test]
fn a_device_that_differs_is_an_error_on_all_devices() {
    let mut dice = Dice(5);
    for round in 0..60 {
        let mesh = Arc::new(Mesh::new(&[("x", 2), ("y", 3)]).expect("a mesh"));
        let drawn: Vec<Drawn> = (0..6).map(|_| draw(&mut dice, &mesh)).collect();
        let (odd, at) = (dice.below(6), dice.below(6));
        if !drawn[at].collective.needs_communication() || drawn[at].collective.group(0).len() < 2 {
            continue;
        }
        let found = run_on_threads(6, &|participant| {
            let is_odd = participant.positions() == [odd];
            for (step, Drawn { collective, operands }) in drawn.iter().enumerate() {
                if is_odd && step == at {
                    match round % 3 {
                        0 => continue,
                        1 => return Ok(()),
                        _ => panic!("on purpose"),
                    }
                }
                let mut result = vec![0; collective.result_type().bytes()];
                participant.exchange(
                    collective,
                    step as u64,
                    &[&operands[participant.positions()[0]]],
                    &mut [&mut result],
                )?;
            }
            Ok(())
        })
        .expect("threads");
        let errors: Vec<String> = found.into_iter().map(|result| result.expect_err("no number").to_string()).collect();
        let named = format!("device {odd} ");
        let naming = errors.iter().filter(|error| error.contains(&named)).count();
        assert!(naming >= drawn[at].collective.group(odd).len() - 1, "device {odd} at {at}: {errors:#?}");
    }
}

/// A replicated array, and one whose parts several processes have: where these differ, every process names the two.
#[test]
fn processes_compare_arrays() {
    let check = |parts: &(dyn Fn(usize) -> Vec<(u64, u64)> + Sync)| {
        on_processes(3, |all| {
            let ty = Type::new(DType::F32, [2]);
            let own = parts(all.rank());
            crate::sharding::check_equal_elements(&all, &ty, "here".into(), &own, Loc::NONE)
                .map_err(|error| error.to_string())
        })
    };
    assert!(check(&|_| vec![(0, 7)]).into_iter().all(|found| found == Ok(())));
    // Each has a part of its own, and one with its neighbour.
    let apart = |rank: usize| vec![(rank as u64, rank as u64), (rank as u64 + 1, rank as u64 + 1)];
    assert!(check(&apart).into_iter().all(|found| found == Ok(())));
    for found in check(&|rank| vec![(0, u64::from(rank == 2))]) {
        let error = found.expect_err("rank 2 differs");
        assert!(error.contains("an array of f32[2] of which ranks 0 and 2 have different elements"), "{error}");
    }
    for found in check(&|rank| vec![(rank as u64, 5), (rank as u64 + 1, 5 + u64::from(rank == 1))]) {
        assert!(found.expect_err("a part of two").contains("ranks 1 and 2"));
    }
}

#[test]
fn processes_compare_what_they_run() {
    let found = on_processes(3, |all| {
        let program = if all.rank() == 1 { "other" } else { "one" };
        all.check_agreement("program", &[("mesh", "m".into()), ("program", program.into())])
            .map_err(|error| error.to_string())
    });
    for (rank, found) in found.into_iter().enumerate() {
        let error = found.expect_err("they differ");
        let peer =
            if rank == 1 { "rank 0 has another program: one, here it is other" } else { "rank 1 has another program" };
        assert!(error.contains(peer) && error.contains(&format!("on rank {rank}")), "{error}");
        assert!(!error.contains("over  ") && !error.contains("u8[]"), "names nothing: {error}");
    }
    let mesh = Arc::new(Mesh::new(&[("x", 4)]).expect("a mesh"));
    for found in on_processes(3, |all| all.participant(&mesh).map(|_| ()).map_err(|error| error.to_string())) {
        assert!(found.expect_err("4 devices on 3").contains("a mesh of 4 devices on 3 processes"));
    }
}
