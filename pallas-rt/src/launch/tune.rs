//! Selects block sizes by measurement: the candidates of a kernel's `tune(..)` are timed once, and the fastest is
//! remembered.
//!
//! In memory the outcome is found by the call's kernel, values and shapes; on disk by the tile IR of every candidate,
//! the arrays' shapes and types, device and driver. A changed kernel has another name on disk, so an old entry is never
//! found.
use super::call::{called_at, client_of};
use super::key::{FixedKey, Key};
use super::recent::Recent;
use super::scope::{self, Purpose};
use super::tuning::{Candidate, Candidates, Outcome, Tuning};
use super::{inspect, timing};
use crate::{Array, Client, DeviceKind, Error, Result};
use pallas_device::disk;
use pallas_ir::{At, DType, Diag, Loc};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

const TIMED: &str = "the fastest, timed by this process";
const STORED: &str = "the fastest, timed earlier";
const ROOM: &str = "the fastest that memory has room for";
const OFF: &str = "the first that fits: PALLAS_TUNE=off";
const INTERPRETED: &str = "the first that fits: the interpreter is not timed";
/// Reason for the choice while no call has been timed.
const NOT_YET: &str = "the first that fits: nothing was timed for this call yet";

/// The outcome of tuning, as it is on disk.
#[derive(Serialize, Deserialize)]
struct Stored {
    kernel: String,
    chosen: usize,
    /// For each candidate its outcome and the bytes of memory that it takes.
    found: Vec<(Outcome, u64)>,
}

/// The identity of a call: equal calls have the same candidates, on the same device.
#[derive(Clone, PartialEq, Eq, Hash)]
struct TunedCall {
    name: &'static str,
    at: Loc,
    instance: TypeId,
    fixed: Vec<Key>,
    given: Vec<i64>,
    shapes: Vec<(DType, Vec<usize>)>,
    device: (DeviceKind, usize),
}

type TuningEntry = Arc<Mutex<Option<Arc<Tuning>>>>;
static TUNED: LazyLock<Mutex<HashMap<TunedCall, TuningEntry>>> = LazyLock::new(Mutex::default);
thread_local! {
    /// The last tuned calls of this thread, which are not looked up in [`TUNED`].
    static RECENT: Recent<(TunedCall, Arc<Tuning>)> = Recent::default();
}

/// Returns the index of the candidate that is fastest for this call; `run` launches the candidate with an index. The
/// first such call times all candidates.
///
/// # Errors
/// No candidate runs; device trouble; [`Error::Traced`] for a traced array; the error of a poisoned one.
pub fn tune<F: Fn(usize) -> Result<()>>(candidates: Candidates<'_>, run: &F) -> Result<usize> {
    // The type of the closure has every generic argument around it.
    choose(&candidates, run, typeid::of::<F>())
}

/// Chooses a candidate; an error has the line of the call.
fn choose(candidates: &Candidates<'_>, run: &dyn Fn(usize) -> Result<()>, instance: TypeId) -> Result<usize> {
    for array in candidates.arrays {
        array.check_argument(candidates.name, candidates.called)?;
    }
    called_at(candidates.called, chosen(candidates, run, instance))
}

/// Chooses the fastest candidate for which there is memory now, and notes the choice if the call is only recorded.
fn chosen(candidates: &Candidates<'_>, run: &dyn Fn(usize) -> Result<()>, instance: TypeId) -> Result<usize> {
    let client = client_of(
        candidates.arrays.iter().copied(),
        |_| format!("an operand of kernel `{}`", candidates.name),
        &scope::current(),
    )?;
    let same = |(call, tuning): &(TunedCall, Arc<Tuning>)| call.is(candidates, &client).then(|| tuning.clone());
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
    if let Purpose::Look(notes) = &scope::current().purpose {
        notes.borrow_mut().tuning = Some(tuning);
    }
    Ok(chosen)
}

/// Returns the tuning for calls like this one, which the first of them decides.
fn known(
    candidates: &Candidates<'_>,
    client: &Client,
    run: &dyn Fn(usize) -> Result<()>,
    instance: TypeId,
) -> Result<Arc<Tuning>> {
    // Some `#[fixed]` value can't be compared: the candidates' traces decide, each time.
    let Some(call) = call(candidates, client, instance) else { return decide(candidates, client, run).map(Arc::new) };
    let entry = TUNED.lock().entry(call.clone()).or_default().clone();
    // Held while timing: who makes the same call meanwhile waits for its outcome.
    let mut known = entry.lock();
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

fn shapes(candidates: &Candidates<'_>) -> Vec<(DType, Vec<usize>)> {
    candidates.arrays.iter().map(|array| (array.dtype(), array.shape().to_vec())).collect()
}

/// Returns the identity of a call; `None` if one of its `#[fixed]` values can't be compared.
fn call(candidates: &Candidates<'_>, client: &Client, instance: TypeId) -> Option<TunedCall> {
    let device = client.device();
    Some(TunedCall {
        name: candidates.name,
        at: candidates.at,
        instance,
        fixed: candidates.fixed.iter().map(FixedKey::kept).collect::<Option<_>>()?,
        given: candidates.given.to_vec(),
        shapes: shapes(candidates),
        device: (device.kind, device.index),
    })
}

impl TunedCall {
    /// Returns true if a call of the same kernel has the same values, array types and device.
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

/// Decides which candidate runs: by the times on disk, else by timing all. Where nothing may be timed it is the first
/// that fits.
fn decide(candidates: &Candidates<'_>, client: &Client, run: &dyn Fn(usize) -> Result<()>) -> Result<Tuning> {
    let count = candidates.values.len();
    let traced: Vec<Result<String>> = (0..count).map(|i| inspect::traced(|| run(i))).collect();
    let candidate = |(&values, traced): (&&'static [u64], &Result<String>)| {
        let outcome = traced.as_ref().err().map_or(Outcome::Untimed, |e| Outcome::Skipped(e.to_string()));
        Candidate { values, outcome, room: 0 }
    };
    let each = candidates.values.iter().zip(&traced).map(candidate).collect();
    let mut failures: Vec<Error> = traced.iter().filter_map(|traced| traced.clone().err()).collect();
    let Some(chosen) = traced.iter().position(Result::is_ok) else { return Err(refused(candidates, failures)) };
    let mut tuning = Tuning { names: candidates.names, candidates: each, chosen, why: NOT_YET };
    let untimed = match client.kind() == DeviceKind::Interpreter {
        true => Some(INTERPRETED),
        false => (measure()? == Measure::Off).then_some(OFF),
    };
    if let Some(why) = untimed {
        for i in (0..count).filter(|&i| traced[i].is_ok()) {
            // The memory that the candidate takes, if that much is available.
            let needed = inspect::memory_needed(|| run(i));
            match needed.and_then(|room| client.check_room(candidates.name, room).map(|()| room)) {
                Ok(room) => {
                    tuning.candidates[i].room = room;
                    return Ok(Tuning { chosen: i, why, ..tuning });
                }
                Err(e) => {
                    tuning.candidates[i].outcome = Outcome::Skipped(e.to_string());
                    failures.push(e);
                }
            }
        }
        return Err(refused(candidates, failures));
    }
    let key = entry(candidates, client, &traced);
    let whole = |stored: Stored| {
        let runs = matches!(stored.found.get(stored.chosen), Some((Outcome::Time(_), _)));
        (runs && stored.found.len() == count).then_some(stored)
    };
    let again = measure()? == Measure::Again;
    if let Some(Stored { chosen, found, .. }) = (!again).then(|| disk::load(&key, whole)).flatten() {
        for (candidate, (outcome, room)) in tuning.candidates.iter_mut().zip(found) {
            (candidate.outcome, candidate.room) = (outcome, room);
        }
        return Ok(Tuning { chosen, why: STORED, ..tuning });
    }
    if scope::current().purpose.intercepts() {
        return Ok(tuning);
    }
    // Arrays on loan are for the call itself, and a check is of the call itself.
    let time = || timing::time(candidates, client, &mut tuning.candidates, run);
    failures.extend(scope::purposed(Purpose::Run, time)?);
    let Some((_, chosen)) = tuning.timed().min() else { return Err(refused(candidates, failures)) };
    for (i, candidate) in tuning.candidates.iter_mut().enumerate() {
        if let Outcome::Time(_) = candidate.outcome {
            candidate.room = inspect::memory_needed(|| run(i))?;
        }
    }
    disk::save(&key, || {
        let found = tuning.candidates.iter().map(|candidate| (candidate.outcome.clone(), candidate.room)).collect();
        Stored { kernel: candidates.name.into(), chosen, found }
    });
    Ok(Tuning { chosen, why: TIMED, ..tuning })
}

/// The times that decide which candidate runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Measure {
    /// Times on disk, else new ones.
    On,
    /// No times: the first candidate that fits runs.
    Off,
    /// New times of this process, which replace those on disk.
    Again,
}

/// Returns the setting of `PALLAS_TUNE` in the environment.
fn measure() -> Result<Measure> {
    const VARIABLE: &str = "PALLAS_TUNE";
    match std::env::var(VARIABLE).as_deref() {
        Err(_) | Ok("on") => Ok(Measure::On),
        Ok("off") => Ok(Measure::Off),
        Ok("again") => Ok(Measure::Again),
        Ok(other) => Err(Error::Environment { variable: VARIABLE, value: other.into(), allowed: "on, off, again" }),
    }
}

/// Returns the name of the outcome on disk, from all that determines it.
fn entry(candidates: &Candidates<'_>, client: &Client, traced: &[Result<String>]) -> disk::Key {
    let device = client.device();
    let (own, shapes) =
        (format!("{:?} {:?}", candidates.names, candidates.values), format!("{:?}", shapes(candidates)));
    // A software adapter and the CPU backend are as fast as the processor.
    let machine = format!("{device} {:?} {} {}", device.target, processor(), rayon_core::current_num_threads());
    let mut parts = vec![own, shapes, machine];
    parts.extend(traced.iter().map(|t| t.clone().unwrap_or_else(|e| format!("error: {e}"))));
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    disk::Key::new("tuned", &parts)
}

/// Returns the processor's name, or the architecture's if the system does not give it.
fn processor() -> String {
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = about.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split(": ").nth(1)).unwrap_or(std::env::consts::ARCH).to_string()
}

/// Returns the error if no candidate runs: their common reason, or the reason of each.
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
        let locked = TUNED.lock();
        go.send(()).expect("it waits");
        let alone = seen.recv_timeout(Duration::from_secs(20));
        drop(locked);
        thread.join().expect("the results are right");
        assert_eq!(alone, Ok(()), "what all threads share was asked");
    }
}
