//! Block sizes by measurement: the candidates of a kernel's `tune(..)` are timed once, and the fastest is remembered.
//!
//! In memory by what a call looks like; on disk by the tile IR of every candidate, the arrays' shapes and types, device and
//! driver: whatever changes in the kernel changes the name of its entry, so an old one is never found.
use super::inspect;
use super::key::{FixedKey, Key};
use super::recent::Recent;
use super::scope::{self, Purpose};
use super::timing;
use crate::disk;
use crate::{Array, Client, DeviceKind, Error, Result};
use pallas_ir::{At, DType, Diag, Loc};
use serde::{Deserialize, Serialize};
use std::any::TypeId;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// What an expansion says of a tuned call.
#[derive(Debug)]
pub struct Candidates<'a> {
    /// The kernel's name.
    pub name: &'static str,
    /// The kernel's line.
    pub at: Loc,
    /// The tuned const generics.
    pub names: &'static [&'static str],
    /// Their values, candidate by candidate.
    pub values: &'static [&'static [u64]],
    /// `#[fixed]` parameters.
    pub fixed: &'a [FixedKey<'a>],
    /// `#[dim]` parameters.
    pub given: &'a [i64],
    /// The call's arrays.
    pub arrays: &'a [&'a Array],
}

/// How the block sizes of a call were chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct Tuning {
    /// The tuned const generics.
    pub names: &'static [&'static str],
    /// The candidates, in the order of their declaration.
    pub candidates: Vec<Candidate>,
    /// Which of them runs.
    pub chosen: usize,
    /// Why.
    pub why: &'static str,
}

/// A combination of sizes.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// In the order of the names.
    pub values: &'static [u64],
    /// What became of it.
    pub outcome: Outcome,
    /// Bytes of memory that a launch takes besides its arrays, on a GPU with its results; 0 for one that was not looked at.
    pub room: u64,
}

/// What became of a candidate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The shortest of its runs.
    Time(Duration),
    /// It does not run here, and why.
    Skipped(String),
    /// Nobody timed it.
    Untimed,
}

const TIMED: &str = "the fastest, timed by this process";
const STORED: &str = "the fastest, timed earlier";
const ROOM: &str = "the fastest that memory has room for";
const OFF: &str = "the first that fits: PALLAS_TUNE=off";
const INTERPRETED: &str = "the first that fits: the interpreter is not timed";
/// Until a call is timed.
const NOT_YET: &str = "the first that fits: nothing was timed for this call yet";

/// What the disk keeps of a tuning.
#[derive(Serialize, Deserialize)]
struct Stored {
    kernel: String,
    chosen: usize,
    outcomes: Vec<Outcome>,
    rooms: Vec<u64>,
}

/// What a call looks like: equal calls have the same candidates, on the same device.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Call {
    name: &'static str,
    at: Loc,
    instance: TypeId,
    fixed: Vec<Key>,
    given: Vec<i64>,
    shapes: Vec<(DType, Vec<usize>)>,
    device: (DeviceKind, usize),
}

type Entry = Arc<Mutex<Option<Arc<Tuning>>>>;
static TUNED: LazyLock<Mutex<HashMap<Call, Entry>>> = LazyLock::new(Mutex::default);
thread_local! {
    /// The last tuned calls, which need not be looked up.
    static RECENT: Recent<(Call, Arc<Tuning>)> = Recent::default();
}

/// The number of the candidate that is fastest for this call; `run` launches one. The first such call times all.
///
/// # Errors
/// No candidate runs; device trouble.
pub fn tune<F: Fn(usize) -> Result<()>>(candidates: Candidates<'_>, run: &F) -> Result<usize> {
    // The type of the closure has every generic argument around it.
    choose(&candidates, run, typeid::of::<F>())
}

fn choose(candidates: &Candidates<'_>, run: &dyn Fn(usize) -> Result<()>, instance: TypeId) -> Result<usize> {
    let client = client_of(candidates)?;
    let same = |(call, tuning): &(Call, Arc<Tuning>)| call.is(candidates, &client).then(|| tuning.clone());
    let tuning = match RECENT.with(|recent| recent.find(instance, same)) {
        Some(tuning) => tuning,
        None => known(candidates, &client, run, instance)?,
    };
    // Memory may have become scarce since.
    let tuning = match tuning.within(&client) {
        Some(chosen) if chosen == tuning.chosen => tuning,
        Some(chosen) => Arc::new(Tuning { chosen, why: ROOM, ..Tuning::clone(&tuning) }),
        None if tuning.candidates[tuning.chosen].outcome == Outcome::Untimed => {
            Arc::new(decide(candidates, &client, run)?)
        }
        // The call itself says how much it lacks.
        None => tuning,
    };
    let chosen = tuning.chosen;
    if let Purpose::Explain { tuning: told, .. } = &*scope::current().purpose {
        told.replace(Some(tuning));
    }
    Ok(chosen)
}

/// What this process knows of such calls; nothing yet: it is found out.
fn known(
    candidates: &Candidates<'_>,
    client: &Client,
    run: &dyn Fn(usize) -> Result<()>,
    instance: TypeId,
) -> Result<Arc<Tuning>> {
    // Some `#[fixed]` value can't be compared: the candidates' traces decide, each time.
    let Some(call) = call(candidates, client, instance) else { return decide(candidates, client, run).map(Arc::new) };
    let entry = TUNED.lock().unwrap_or_else(PoisonError::into_inner).entry(call.clone()).or_default().clone();
    // Held while timing: who makes the same call meanwhile waits for its outcome.
    let mut known = entry.lock().unwrap_or_else(PoisonError::into_inner);
    let tuning = match &*known {
        Some(tuning) => tuning.clone(),
        None => Arc::new(decide(candidates, client, run)?),
    };
    if tuning.why != NOT_YET {
        *known = Some(tuning.clone());
        RECENT.with(|recent| recent.keep(instance, (call, tuning.clone())));
    }
    Ok(tuning)
}

impl Tuning {
    /// The fastest candidate that memory has room for now: the one that was chosen, if it can be.
    fn within(&self, client: &Client) -> Option<usize> {
        let fits = |i: &usize| client.has_room(self.candidates[*i].room);
        if fits(&self.chosen) {
            return Some(self.chosen);
        }
        let timed = self.candidates.iter().enumerate().filter_map(|(i, candidate)| match candidate.outcome {
            Outcome::Time(time) => Some((time, i)),
            Outcome::Skipped(_) | Outcome::Untimed => None,
        });
        timed.filter(|(_, i)| fits(i)).min().map(|(_, i)| i)
    }
}

/// All arrays live on one client, which the launch checks; without arrays it is the process's.
fn client_of(candidates: &Candidates<'_>) -> Result<Client> {
    let client = candidates.arrays.first().map(|array| array.client().clone());
    client.or_else(|| scope::current().client()).map_or_else(Client::from_env, Ok)
}

fn shapes(candidates: &Candidates<'_>) -> Vec<(DType, Vec<usize>)> {
    candidates.arrays.iter().map(|array| (array.dtype(), array.shape().to_vec())).collect()
}

fn call(candidates: &Candidates<'_>, client: &Client, instance: TypeId) -> Option<Call> {
    let device = client.device();
    Some(Call {
        name: candidates.name,
        at: candidates.at,
        instance,
        fixed: candidates.fixed.iter().map(FixedKey::kept).collect::<Option<_>>()?,
        given: candidates.given.to_vec(),
        shapes: shapes(candidates),
        device: (device.kind, device.index),
    })
}

impl Call {
    /// Whether a call of the same instance looks like this one.
    fn is(&self, candidates: &Candidates<'_>, client: &Client) -> bool {
        let device = client.device();
        let alike = |(array, (dtype, shape)): (&&Array, &(DType, Vec<usize>))| {
            array.dtype() == *dtype && array.shape() == &shape[..]
        };
        self.device == (device.kind, device.index)
            && self.given == candidates.given
            && candidates.fixed.iter().zip(&self.fixed).all(|(key, kept)| key.is(kept))
            && candidates.arrays.iter().zip(&self.shapes).all(alike)
    }
}

fn decide(candidates: &Candidates<'_>, client: &Client, run: &dyn Fn(usize) -> Result<()>) -> Result<Tuning> {
    let count = candidates.values.len();
    let traced: Vec<Result<String>> = (0..count).map(|i| inspect::traced(|| run(i))).collect();
    let untraced = |r: &Result<String>| match r {
        Ok(_) => Outcome::Untimed,
        Err(e) => Outcome::Skipped(e.to_string()),
    };
    let mut outcomes: Vec<Outcome> = traced.iter().map(untraced).collect();
    let first = match traced.iter().position(Result::is_ok) {
        Some(first) => first,
        None => return Err(refused(candidates, traced.into_iter().filter_map(Result::err).collect())),
    };
    let mut rooms = vec![0; count];
    let untimed = match client.kind() == DeviceKind::Interpreter {
        true => Some(INTERPRETED),
        false => switched_off()?.then_some(OFF),
    };
    if let Some(why) = untimed {
        let mut failures: Vec<Error> = traced.into_iter().filter_map(Result::err).collect();
        for i in 0..count {
            if outcomes[i] != Outcome::Untimed {
                continue;
            }
            match fits(candidates, client, run, i) {
                Ok(room) => {
                    rooms[i] = room;
                    return Ok(tuning(candidates, outcomes, rooms, i, why));
                }
                Err(e) => {
                    outcomes[i] = Outcome::Skipped(e.to_string());
                    failures.push(e);
                }
            }
        }
        return Err(refused(candidates, failures));
    }
    let key = entry(candidates, client, &traced);
    let stored = |stored: Stored| {
        let runs = |i: usize| matches!(stored.outcomes.get(i), Some(Outcome::Time(_)));
        let whole = [stored.outcomes.len(), stored.rooms.len()] == [count; 2];
        (whole && runs(stored.chosen)).then_some(stored)
    };
    if let Some(found) = disk::load(&key, stored) {
        return Ok(tuning(candidates, found.outcomes, found.rooms, found.chosen, STORED));
    }
    if scope::current().purpose.intercepts() {
        return Ok(tuning(candidates, outcomes, rooms, first, NOT_YET));
    }
    // Arrays on loan are for the call itself, and a check is of the call itself.
    let (failures, _) = scope::purposed(Purpose::Run, || timing::time(candidates, client, &mut outcomes, run));
    let failures = failures?;
    let time = |i: &usize| match outcomes[*i] {
        Outcome::Time(time) => time,
        Outcome::Skipped(_) | Outcome::Untimed => Duration::MAX,
    };
    let chosen = (0..count).min_by_key(time).filter(|i| time(i) < Duration::MAX);
    let Some(chosen) = chosen else {
        let errors = traced.into_iter().filter_map(Result::err).chain(failures).collect();
        return Err(refused(candidates, errors));
    };
    for (i, room) in rooms.iter_mut().enumerate().filter(|(i, _)| time(i) < Duration::MAX) {
        *room = inspect::memory_needed(|| run(i))?;
    }
    let stored = Stored { kernel: candidates.name.into(), chosen, outcomes, rooms };
    disk::save(&key, || &stored);
    Ok(tuning(candidates, stored.outcomes, stored.rooms, chosen, TIMED))
}

/// The memory that a candidate takes, if there is so much.
fn fits(candidates: &Candidates<'_>, client: &Client, run: &dyn Fn(usize) -> Result<()>, i: usize) -> Result<u64> {
    let room = inspect::memory_needed(|| run(i))?;
    client.check_room(candidates.name, room)?;
    Ok(room)
}

fn tuning(
    candidates: &Candidates<'_>,
    outcomes: Vec<Outcome>,
    rooms: Vec<u64>,
    chosen: usize,
    why: &'static str,
) -> Tuning {
    let each = candidates.values.iter().zip(outcomes).zip(rooms);
    let each = each.map(|((values, outcome), room)| Candidate { values, outcome, room });
    Tuning { names: candidates.names, candidates: each.collect(), chosen, why }
}

/// Whether the environment wants no measurement to decide anything.
fn switched_off() -> Result<bool> {
    const VARIABLE: &str = "PALLAS_TUNE";
    match std::env::var(VARIABLE).as_deref() {
        Err(_) | Ok("on") => Ok(false),
        Ok("off") => Ok(true),
        Ok(other) => Err(Error::Environment { variable: VARIABLE, value: other.into(), allowed: "on, off" }),
    }
}

/// What the choice follows from.
fn entry(candidates: &Candidates<'_>, client: &Client, traced: &[Result<String>]) -> disk::Key {
    let device = client.device();
    let (own, shapes) =
        (format!("{:?} {:?}", candidates.names, candidates.values), format!("{:?}", shapes(candidates)));
    // A software adapter and the CPU backend are as fast as the processor.
    let machine = format!("{device} {:?} {} {}", device.target, processor(), rayon::current_num_threads());
    let mut parts = vec![own, shapes, machine];
    parts.extend(traced.iter().map(|t| t.clone().unwrap_or_else(|e| format!("error: {e}"))));
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    disk::Key::new("tuned", &parts)
}

/// The processor's name, where the system says it.
fn processor() -> String {
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = about.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split(": ").nth(1)).unwrap_or(std::env::consts::ARCH).to_string()
}

/// What is said where no candidate runs: the one reason, or each.
fn refused(candidates: &Candidates<'_>, errors: Vec<Error>) -> Error {
    let one = errors.iter().all(|e| e.code() == errors[0].code());
    if let (true, Some(first)) = (one, errors.first()) {
        return first.clone();
    }
    let each: Vec<String> = errors.iter().map(Error::to_string).collect();
    let message = format!("none of its {} candidates runs: {}", candidates.values.len(), each.join("; "));
    let diag = Diag::new("tune", At::Op, message, "declare other sizes in `tune(..)`");
    Error::kernel(candidates.name, candidates.at, "", diag)
}

/// `BQ = 64, BK = 32`
pub(super) fn sizes(names: &[&str], values: &[u64]) -> String {
    let each: Vec<String> = names.iter().zip(values).map(|(name, n)| format!("{name} = {n}")).collect();
    each.join(", ")
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = sizes(self.names, self.candidates[self.chosen].values);
        writeln!(f, "  tuned: {own}, of {} candidates {}", self.candidates.len(), self.why)?;
        for candidate in &self.candidates {
            let sizes = sizes(self.names, candidate.values);
            match &candidate.outcome {
                Outcome::Time(time) => writeln!(f, "    {sizes:<28} {:.4} ms", time.as_secs_f64() * 1e3)?,
                Outcome::Skipped(why) => writeln!(f, "    {sizes:<28} skipped: {why}")?,
                Outcome::Untimed => writeln!(f, "    {sizes:<28} not timed")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::TUNED;
    use pallas_rt::prelude::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[kernel(grid = (cdiv(N, BN)), tune(BN = [8, 16]))]
    fn plus<const BN: usize>(
        #[block([N] => [BN], |i| (i,))] x: In<f32>,
        #[block([N] => [BN], |i| (i,))] out: Out<f32>,
        #[fixed] by: f32,
    ) {
        out.store(x.load() + by);
    }

    #[test]
    fn a_call_like_one_before_looks_nothing_up() {
        let call = |n: usize, by: f32| {
            let x = Client::cpu().full(&[n], 1.0f32).expect("it fits");
            assert_eq!(plus_tuned(&x, by).and_then(|y| y.to_vec::<f32>()), Ok(vec![1.0 + by; n]));
        };
        let (done, seen) = channel();
        let (go, wait) = channel();
        let thread = std::thread::spawn(move || {
            let all = || [(20, 1.0), (20, 2.0), (30, 1.0)].into_iter().for_each(|(n, by)| call(n, by));
            all();
            done.send(()).expect("it is waited for");
            wait.recv().expect("it comes");
            all();
            done.send(()).expect("it is waited for");
        });
        seen.recv().expect("the first calls are right");
        let locked = TUNED.lock().expect("nobody panicked");
        go.send(()).expect("it waits");
        let alone = seen.recv_timeout(Duration::from_secs(20));
        drop(locked);
        thread.join().expect("the results are right");
        assert_eq!(alone, Ok(()), "what all threads share was asked");
    }
}
