//! Timing of candidates: each runs once to compile, then they alternate. The shortest run counts, and slow candidates
//! are dropped early.
use super::tuning_outcome::{Candidate, Candidates, Outcome, format_sizes};
use crate::{Client, Error, Result};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Number of runs of a candidate after which it may be dropped.
const MIN_CANDIDATE_RUNS: usize = 2;
/// Maximum number of runs of a candidate, and the time after which it is not run again.
const MAX_CANDIDATE_RUNS_AND_TIME: (usize, Duration) = (15, Duration::from_millis(60));
/// A candidate that is slower than the fastest by more than this factor is dropped before all its runs.
const MAX_KEPT_SLOWDOWN: f64 = 1.5;
/// A candidate that is slower than the fastest by at most this factor is timed again, alternating with it.
const MAX_RETIMED_SLOWDOWN: f64 = 1.15;
/// Number of additional runs of each candidate that is within [`MAX_RETIMED_SLOWDOWN`].
const RUNS_PER_RETIMED_CANDIDATE: usize = 8;

/// Times the candidates `each` of a tuned call: replaces each `Untimed` outcome by a time or the reason why the
/// candidate does not run, and returns the reasons as errors. `run` launches the candidate with an index. Progress is
/// shown on standard error, if that is a terminal.
pub(super) fn time_candidates(
    candidates: &Candidates<'_>,
    client: &Client,
    each: &mut [Candidate],
    run: &dyn Fn(usize) -> Result<()>,
) -> Result<Vec<Error>> {
    let show = |line: &str| {
        let mut err = std::io::stderr();
        if err.is_terminal() {
            // Back to the first column, and what the longer line before has left is cleared. A failure to show is none
            // to time.
            let _ = write!(err, "\r{line}\x1b[K").and_then(|()| err.flush());
        }
    };
    let once = |i: usize| {
        let start = Instant::now();
        run(i)?;
        client.block_until_ready()?;
        Ok::<_, Error>(start.elapsed())
    };
    let (mut failures, mut times) = (vec![], vec![Duration::MAX; each.len()]);
    let mut best: Option<usize> = None;
    for i in 0..each.len() {
        if each[i].outcome == Outcome::Untimed {
            match time_first_runs(i, &once, best.map(|b| times[b])) {
                Ok(time) => times[i] = time,
                Err(lost @ Error::DeviceLost { .. }) => return Err(lost),
                Err(e) => {
                    each[i].outcome = Outcome::Skipped(e.to_string());
                    failures.push(e);
                }
            }
            if times[i] < best.map_or(Duration::MAX, |b| times[b]) {
                best = Some(i);
            }
        }
        if let Some(best) = best {
            let found = format_sizes(candidates.names, each[best].values);
            let (name, of, ms) = (candidates.name, each.len(), times[best].as_secs_f64() * 1e3);
            show(&format!("tuning {name} {}/{of} {found}: {ms:.3} ms", i + 1));
        }
    }
    if let Some(best) = best {
        let limit = times[best].mul_f64(MAX_RETIMED_SLOWDOWN);
        let close: Vec<usize> = (0..times.len()).filter(|&i| times[i] <= limit).collect();
        for _ in 0..if close.len() > 1 { RUNS_PER_RETIMED_CANDIDATE } else { 0 } {
            for &i in &close {
                times[i] = times[i].min(once(i)?);
            }
        }
    }
    show("");
    for (candidate, time) in each.iter_mut().zip(times).filter(|(_, time)| *time < Duration::MAX) {
        candidate.outcome = Outcome::Time(time);
    }
    Ok(failures)
}

/// Returns the shortest time of a candidate's first runs, after one that compiles it. There are fewer runs if it is
/// much slower than `fastest_so_far`.
fn time_first_runs(
    i: usize,
    run_once: &dyn Fn(usize) -> Result<Duration>,
    fastest_so_far: Option<Duration>,
) -> Result<Duration> {
    run_once(i)?;
    let (mut shortest, begin) = (Duration::MAX, Instant::now());
    for n in 1..=MAX_CANDIDATE_RUNS_AND_TIME.0 {
        shortest = shortest.min(run_once(i)?);
        let hopeless = fastest_so_far.is_some_and(|best| shortest > best.mul_f64(MAX_KEPT_SLOWDOWN));
        if n >= MIN_CANDIDATE_RUNS && (hopeless || begin.elapsed() > MAX_CANDIDATE_RUNS_AND_TIME.1) {
            break;
        }
    }
    Ok(shortest)
}
