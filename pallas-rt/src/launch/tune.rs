//! Selects block sizes by measurement: the candidates of a kernel's `tune(..)` are timed once, and the fastest is
//! remembered.
//!
//! In memory the outcome is found by the call's kernel, values and shapes; on disk by the tile IR of every candidate,
//! the arrays' shapes and types, device and driver. A changed kernel has another name on disk, so an old entry is never
//! found.
use super::call::{called_at, common_client};
use super::fixed_values::{FixedKey, StoredFixedValue};
use super::recent_calls::RecentCalls;
use super::scope::{self, CallPurpose};
use super::tuning_outcome::{Candidate, Candidates, Outcome, Tuning};
use super::{candidate_timing, inspect};
use crate::{Array, Client, DeviceKind, Error, Result};
use pallas_device::disk;
use pallas_ir::{At, DType, Diag, Loc};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

const REASON_TIMED_NOW: &str = "the fastest, timed by this process";
const REASON_TIMED_EARLIER: &str = "the fastest, timed earlier";
const REASON_FITS_MEMORY: &str = "the fastest that memory has room for";
const REASON_TUNING_OFF: &str = "the first that fits: PALLAS_TUNE=off";
const REASON_INTERPRETER: &str = "the first that fits: the interpreter is not timed";
/// Reason for the choice while no call has been timed.
const REASON_NOT_TIMED_YET: &str = "the first that fits: nothing was timed for this call yet";

/// The outcome of tuning, as it is on disk.
#[derive(Serialize, Deserialize)]
struct StoredTuning {
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
    fixed: Vec<StoredFixedValue>,
    given: Vec<i64>,
    shapes: Vec<(DType, Vec<usize>)>,
    device: (DeviceKind, usize),
}

type TuningEntry = Arc<Mutex<Option<Arc<Tuning>>>>;
static TUNINGS_BY_CALL: LazyLock<Mutex<HashMap<TunedCall, TuningEntry>>> = LazyLock::new(Mutex::default);
thread_local! {
    /// The last tuned calls of this thread, which are not looked up in [`TUNINGS_BY_CALL`].
    static RECENT_TUNINGS: RecentCalls<(TunedCall, Arc<Tuning>)> = RecentCalls::default();
}

/// Returns the index of the candidate that is fastest for this call; `run` launches the candidate with an index. The
/// first such call times all candidates.
///
/// # Errors
/// No candidate runs; device trouble; [`Error::Traced`] for a traced array; the error of a poisoned one.
pub fn tune<F: Fn(usize) -> Result<()>>(candidates: Candidates<'_>, run: &F) -> Result<usize> {
    // The type of the closure has every generic argument around it.
    choose_candidate(&candidates, run, typeid::of::<F>())
}

/// Returns the index of the candidate that is to run, after refusing traced and poisoned arrays; an error names the
/// line of the call. `run` launches the candidate with an index; `body_type` is the type of the kernel's body.
fn choose_candidate(
    candidates: &Candidates<'_>,
    run: &dyn Fn(usize) -> Result<()>,
    body_type: TypeId,
) -> Result<usize> {
    for array in candidates.arrays {
        array.check_kernel_argument(candidates.name, candidates.called)?;
    }
    called_at(candidates.called, choose_fastest_fitting(candidates, run, body_type))
}

/// Chooses the tuned candidate if there is memory for it now, else the fastest one that fits, and times the candidates
/// of a new call by `run`. In a call that is only recorded, the choice is noted. `body_type` is the type of the
/// kernel's body.
fn choose_fastest_fitting(
    candidates: &Candidates<'_>,
    run: &dyn Fn(usize) -> Result<()>,
    body_type: TypeId,
) -> Result<usize> {
    let client = common_client(
        candidates.arrays.iter().copied(),
        |_| format!("an operand of kernel `{}`", candidates.name),
        &scope::current_call_scope(),
    )?;
    let same =
        |(call, tuning): &(TunedCall, Arc<Tuning>)| call.matches_call(candidates, &client).then(|| tuning.clone());
    let tuning = match RECENT_TUNINGS.with(|recent| recent.find(body_type, same)) {
        Some(tuning) => tuning,
        None => find_or_decide_tuning(candidates, &client, run, body_type)?,
    };
    // Memory may have become scarce since.
    let tuning = match tuning.fastest_fitting_candidate(&client) {
        Some(chosen) if chosen == tuning.chosen => tuning,
        Some(chosen) => Arc::new(Tuning { chosen, why: REASON_FITS_MEMORY, ..Tuning::clone(&tuning) }),
        None if tuning.candidates[tuning.chosen].outcome == Outcome::Untimed => {
            Arc::new(decide_tuning(candidates, &client, run)?)
        }
        // The call itself says how much it lacks.
        None => tuning,
    };
    let chosen = tuning.chosen;
    if let CallPurpose::Record(notes) = &scope::current_call_scope().purpose {
        notes.borrow_mut().tuning = Some(tuning);
    }
    Ok(chosen)
}

/// Returns the tuning of this call's values, array types and device: that which an earlier equal call decided, else it
/// is decided now, and stored unless nothing was timed. `run` launches a candidate; `body_type` is the type of the
/// kernel's body.
fn find_or_decide_tuning(
    candidates: &Candidates<'_>,
    client: &Client,
    run: &dyn Fn(usize) -> Result<()>,
    body_type: TypeId,
) -> Result<Arc<Tuning>> {
    // Some `#[fixed]` value can't be compared: the candidates' traces decide, each time.
    let Some(call) = call_identity(candidates, client, body_type) else {
        return decide_tuning(candidates, client, run).map(Arc::new);
    };
    let entry = TUNINGS_BY_CALL.lock().entry(call.clone()).or_default().clone();
    // Held while timing: who makes the same call meanwhile waits for its outcome.
    let mut known = entry.lock();
    let tuning = match &*known {
        Some(tuning) => tuning.clone(),
        None => Arc::new(decide_tuning(candidates, client, run)?),
    };
    if tuning.why != REASON_NOT_TIMED_YET {
        *known = Some(tuning.clone());
        RECENT_TUNINGS.with(|recent| recent.remember(body_type, (call, tuning.clone())));
    }
    Ok(tuning)
}

fn array_types(candidates: &Candidates<'_>) -> Vec<(DType, Vec<usize>)> {
    candidates.arrays.iter().map(|array| (array.dtype(), array.shape().to_vec())).collect()
}

/// Returns the identity of a call; `None` if one of its `#[fixed]` values can't be compared.
fn call_identity(candidates: &Candidates<'_>, client: &Client, body_type: TypeId) -> Option<TunedCall> {
    let device = client.device();
    Some(TunedCall {
        name: candidates.name,
        at: candidates.at,
        instance: body_type,
        fixed: candidates.fixed.iter().map(FixedKey::stored_value).collect::<Option<_>>()?,
        given: candidates.given.to_vec(),
        shapes: array_types(candidates),
        device: (device.kind, device.index),
    })
}

impl TunedCall {
    /// Returns true if the call that `candidates` describes, of the same kernel, has the `#[dim]` and `#[fixed]`
    /// values, array types and shapes, and device of this one.
    fn matches_call(&self, candidates: &Candidates<'_>, client: &Client) -> bool {
        let device = client.device();
        let alike = |(array, (dtype, shape)): (&&Array, &(DType, Vec<usize>))| {
            array.dtype() == *dtype && array.shape() == &shape[..]
        };
        self.device == (device.kind, device.index)
            && self.given == candidates.given
            && candidates.fixed.iter().zip(&self.fixed).all(|(key, kept)| key.matches_stored(kept))
            && candidates.arrays.iter().zip(&self.shapes).all(alike)
    }
}

/// Decides which candidate runs: by the times on disk, else by timing all. Where nothing may be timed it is the first
/// that fits.
fn decide_tuning(candidates: &Candidates<'_>, client: &Client, run: &dyn Fn(usize) -> Result<()>) -> Result<Tuning> {
    let count = candidates.values.len();
    let traced: Vec<Result<String>> = (0..count).map(|i| inspect::collect_traced_text(|| run(i))).collect();
    let candidate = |(&values, traced): (&&'static [u64], &Result<String>)| {
        let outcome = traced.as_ref().err().map_or(Outcome::Untimed, |e| Outcome::Skipped(e.to_string()));
        Candidate { values, outcome, room: 0 }
    };
    let each = candidates.values.iter().zip(&traced).map(candidate).collect();
    let mut failures: Vec<Error> = traced.iter().filter_map(|traced| traced.clone().err()).collect();
    let Some(chosen) = traced.iter().position(Result::is_ok) else {
        return Err(no_candidate_error(candidates, failures));
    };
    let mut tuning = Tuning { names: candidates.names, candidates: each, chosen, why: REASON_NOT_TIMED_YET };
    let untimed = match client.kind() == DeviceKind::Interpreter {
        true => Some(REASON_INTERPRETER),
        false => (tune_mode_from_env()? == TuneMode::Off).then_some(REASON_TUNING_OFF),
    };
    if let Some(why) = untimed {
        for i in (0..count).filter(|&i| traced[i].is_ok()) {
            // The memory that the candidate takes, if that much is available.
            let needed = inspect::max_memory_needed(|| run(i));
            match needed.and_then(|room| client.check_memory_fits(candidates.name, room).map(|()| room)) {
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
        return Err(no_candidate_error(candidates, failures));
    }
    let key = stored_tuning_key(candidates, client, &traced);
    let whole = |stored: StoredTuning| {
        let runs = matches!(stored.found.get(stored.chosen), Some((Outcome::Time(_), _)));
        (runs && stored.found.len() == count).then_some(stored)
    };
    let again = tune_mode_from_env()? == TuneMode::Retime;
    if let Some(StoredTuning { chosen, found, .. }) = (!again).then(|| disk::load(&key, whole)).flatten() {
        for (candidate, (outcome, room)) in tuning.candidates.iter_mut().zip(found) {
            (candidate.outcome, candidate.room) = (outcome, room);
        }
        return Ok(Tuning { chosen, why: REASON_TIMED_EARLIER, ..tuning });
    }
    if scope::current_call_scope().purpose.is_recording() {
        return Ok(tuning);
    }
    // Arrays on loan are for the call itself, and a check is of the call itself.
    let time = || candidate_timing::time_candidates(candidates, client, &mut tuning.candidates, run);
    failures.extend(scope::run_with_purpose(CallPurpose::Run, time)?);
    let Some((_, chosen)) = tuning.timed_candidates().min() else {
        return Err(no_candidate_error(candidates, failures));
    };
    for (i, candidate) in tuning.candidates.iter_mut().enumerate() {
        if let Outcome::Time(_) = candidate.outcome {
            candidate.room = inspect::max_memory_needed(|| run(i))?;
        }
    }
    disk::save(&key, || {
        let found = tuning.candidates.iter().map(|candidate| (candidate.outcome.clone(), candidate.room)).collect();
        StoredTuning { kernel: candidates.name.into(), chosen, found }
    });
    Ok(Tuning { chosen, why: REASON_TIMED_NOW, ..tuning })
}

/// Setting of `PALLAS_TUNE`: use times on disk or measure, measure nothing, or measure anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TuneMode {
    /// Times on disk, else new ones.
    On,
    /// No times: the first candidate that fits runs.
    Off,
    /// New times of this process, which replace those on disk.
    Retime,
}

/// Returns the setting of `PALLAS_TUNE` in the environment.
fn tune_mode_from_env() -> Result<TuneMode> {
    const TUNE_ENV_VARIABLE: &str = "PALLAS_TUNE";
    match std::env::var(TUNE_ENV_VARIABLE).as_deref() {
        Err(_) | Ok("on") => Ok(TuneMode::On),
        Ok("off") => Ok(TuneMode::Off),
        Ok("again") => Ok(TuneMode::Retime),
        Ok(other) => {
            Err(Error::Environment { variable: TUNE_ENV_VARIABLE, value: other.into(), allowed: "on, off, again" })
        }
    }
}

/// Returns the name of the outcome on disk, from all that determines it.
fn stored_tuning_key(candidates: &Candidates<'_>, client: &Client, traced: &[Result<String>]) -> disk::EntryKey {
    let device = client.device();
    let (own, shapes) =
        (format!("{:?} {:?}", candidates.names, candidates.values), format!("{:?}", array_types(candidates)));
    // A software adapter and the CPU backend are as fast as the processor.
    let machine = format!("{device} {:?} {} {}", device.target, processor_name(), rayon_core::current_num_threads());
    let mut parts = vec![own, shapes, machine];
    parts.extend(traced.iter().map(|t| t.clone().unwrap_or_else(|e| format!("error: {e}"))));
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    disk::EntryKey::new("tuned", &parts)
}

/// Returns the processor's name, or the architecture's if the system does not give it.
fn processor_name() -> String {
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = about.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split(": ").nth(1)).unwrap_or(std::env::consts::ARCH).to_string()
}

/// Returns the error if no candidate runs: their common reason, or the reason of each.
fn no_candidate_error(candidates: &Candidates<'_>, errors: Vec<Error>) -> Error {
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
    use super::TUNINGS_BY_CALL;
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
        let locked = TUNINGS_BY_CALL.lock();
        go.send(()).expect("it waits");
        let alone = seen.recv_timeout(Duration::from_secs(20));
        drop(locked);
        thread.join().expect("the results are right");
        assert_eq!(alone, Ok(()), "what all threads share was asked");
    }
}
