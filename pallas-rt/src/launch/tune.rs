//! Block sizes by measurement: the candidates of a kernel's `tune(..)` are timed once, and the fastest is remembered.
//!
//! In memory by what a call looks like; on disk by the tile IR of every candidate, the arrays' shapes and types, device and
//! driver: whatever changes in the kernel changes the name of its entry, so an old one is never found.
use super::inspect;
use super::into::with_lent;
use super::key::{FixedKey, Key};
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
    device: (DeviceKind, usize, String, String),
}

type Entry = Arc<Mutex<Option<Arc<Tuning>>>>;
static TUNED: LazyLock<Mutex<HashMap<Call, Entry>>> = LazyLock::new(Mutex::default);

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
    let entry = match call(candidates, &client, instance) {
        Some(call) => TUNED.lock().unwrap_or_else(PoisonError::into_inner).entry(call).or_default().clone(),
        // Some `#[fixed]` value can't be compared: the candidates' traces decide, each time.
        None => Entry::default(),
    };
    // Held while timing: who makes the same call meanwhile waits for its outcome.
    let mut known = entry.lock().unwrap_or_else(PoisonError::into_inner);
    let tuning = match &*known {
        Some(tuning) => tuning.clone(),
        None => {
            let tuning = Arc::new(decide(candidates, &client, run)?);
            if tuning.why != NOT_YET {
                *known = Some(tuning.clone());
            }
            tuning
        }
    };
    let chosen = tuning.chosen;
    inspect::tuned(tuning);
    Ok(chosen)
}

/// All arrays live on one client, which the launch checks; without arrays it is the process's.
fn client_of(candidates: &Candidates<'_>) -> Result<Client> {
    candidates.arrays.first().map_or_else(Client::from_env, |array| Ok(array.client().clone()))
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
        device: (device.kind, device.index, device.name.clone(), device.driver.clone()),
    })
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
    if client.kind() == DeviceKind::Interpreter {
        return Ok(tuning(candidates, outcomes, first, INTERPRETED));
    }
    if switched_off()? {
        return Ok(tuning(candidates, outcomes, first, OFF));
    }
    let key = entry(candidates, client, &traced);
    let stored = |stored: Stored| {
        let runs = |i: usize| matches!(stored.outcomes.get(i), Some(Outcome::Time(_)));
        (stored.outcomes.len() == count && runs(stored.chosen)).then_some(stored)
    };
    if let Some(found) = disk::load(&key, stored) {
        return Ok(tuning(candidates, found.outcomes, found.chosen, STORED));
    }
    if inspect::intercepts() {
        return Ok(tuning(candidates, outcomes, first, NOT_YET));
    }
    // Arrays on loan are for the call itself, and a check is of the call itself.
    let failures = with_lent(vec![], || inspect::openly(|| timing::time(candidates, client, &mut outcomes, run)))?;
    let time = |i: &usize| match outcomes[*i] {
        Outcome::Time(time) => time,
        Outcome::Skipped(_) | Outcome::Untimed => Duration::MAX,
    };
    let chosen = (0..count).min_by_key(time).filter(|i| time(i) < Duration::MAX);
    let Some(chosen) = chosen else {
        let errors = traced.into_iter().filter_map(Result::err).chain(failures).collect();
        return Err(refused(candidates, errors));
    };
    disk::save(&key, &Stored { kernel: candidates.name.into(), chosen, outcomes: outcomes.clone() });
    Ok(tuning(candidates, outcomes, chosen, TIMED))
}

fn tuning(candidates: &Candidates<'_>, outcomes: Vec<Outcome>, chosen: usize, why: &'static str) -> Tuning {
    let each = candidates.values.iter().zip(outcomes).map(|(values, outcome)| Candidate { values, outcome });
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
    let machine = format!("{device} {:?} {} {}", device.limits, processor(), rayon::current_num_threads());
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
