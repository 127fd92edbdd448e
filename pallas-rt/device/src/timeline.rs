//! Timelines: when functions were traced and compiled and when kernels ran, as a file for
//! [Perfetto](https://ui.perfetto.dev).
//!
//! ```
//! use pallas_rt::prelude::*;
//! use pallas_rt::timeline::{SpanKind, Timeline};
//!
//! #[kernel(grid = (cdiv(N, 8)))]
//! fn doubled(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
//!     out.store(x.load() * 2.0);
//! }
//! let x = Client::cpu().full(&[20], 1.0f32)?;
//! let timeline = Timeline::start();
//! doubled(&x)?.block_until_ready()?;
//! let spans = timeline.stop();
//! assert!(spans.iter().any(|span| span.kind == SpanKind::Launch && span.name == "doubled"));
//! # #[cfg(any())]
//! pallas_rt::timeline::write("timeline.json", &spans)?;
//! # Ok::<(), Error>(())
//! ```
//!
//! With `PALLAS_TIMELINE=FILE` in the environment a process writes every span to that file as it ends.
use crate::error::{Error, Result};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::cell::Cell;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// Writes a line about a compilation to standard error if `PALLAS_LOG_COMPILES` is 1.
pub fn log_compiled(line: impl FnOnce() -> String) {
    static IS_LOGGING: LazyLock<bool> =
        LazyLock::new(|| std::env::var("PALLAS_LOG_COMPILES").is_ok_and(|value| value == "1"));
    if *IS_LOGGING {
        // A closed standard error is no reason to fail a call.
        let _ = writeln!(std::io::stderr(), "pallas: {}", line());
    }
}

/// The activity that a [`Span`] measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpanKind {
    /// Tracing of a function of arrays.
    Trace,
    /// Compiling a traced function to kernels.
    Compile,
    /// A call of a compiled function.
    Call,
    /// Run of a kernel; on a GPU, preparation of its launch.
    Launch,
    /// Exchange of arrays between devices of a mesh.
    Collective,
}

impl SpanKind {
    /// Category of the activity in the JSON format.
    fn category(self) -> &'static str {
        match self {
            SpanKind::Trace => "trace",
            SpanKind::Compile => "compile",
            SpanKind::Call => "call",
            SpanKind::Launch => "launch",
            SpanKind::Collective => "collective",
        }
    }
}

/// A measured activity of one thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// The kind of activity.
    pub kind: SpanKind,
    /// Name of the kernel or function.
    pub name: String,
    /// Further description, such as a launch's grid.
    pub detail: String,
    /// Time of its start, since the process' first use of timelines.
    pub start: Duration,
    /// Time from its start to its end.
    pub duration: Duration,
    /// Number of the thread, from 0 in the order of the threads' first spans.
    pub thread: u64,
}

/// A recording of the spans of all threads, until it is stopped or dropped.
#[derive(Debug)]
pub struct Timeline {
    spans: Arc<Mutex<Vec<Span>>>,
}

impl Timeline {
    /// Starts recording the spans of all threads.
    #[must_use = "it records until it is dropped"]
    pub fn start() -> Timeline {
        let spans: Arc<Mutex<Vec<Span>>> = Arc::default();
        let _ = *TIME_ORIGIN;
        RECORDED_SPANS.lock().push(spans.clone());
        ACTIVE_TIMELINES.fetch_add(1, Ordering::Release);
        Timeline { spans }
    }

    /// Stops recording and returns the spans that ended since the start, in the order of their ends. Launches that
    /// still run are missing: wait for the results first.
    pub fn stop(self) -> Vec<Span> {
        std::mem::take(&mut *self.spans.lock())
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        ACTIVE_TIMELINES.fetch_sub(1, Ordering::Release);
        RECORDED_SPANS.lock().retain(|spans| !Arc::ptr_eq(spans, &self.spans));
    }
}

/// Writes spans in the JSON format of trace events, which Perfetto and `chrome://tracing` open.
///
/// # Errors
/// [`Error::File`].
pub fn write(file: impl AsRef<Path>, spans: &[Span]) -> Result<()> {
    let file = file.as_ref();
    let text = json!({ "traceEvents": spans.iter().map(span_to_json).collect::<Vec<_>>(), "displayTimeUnit": "ns" });
    let refused = |e: std::io::Error| Error::File { path: file.display().to_string(), message: e.to_string() };
    std::fs::write(file, text.to_string()).map_err(refused)
}

/// A span as an event of the JSON format.
fn span_to_json(span: &Span) -> Value {
    let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
    json!({
        "name": span.name,
        "cat": span.kind.category(),
        "ph": "X",
        "ts": microseconds(span.start),
        "dur": microseconds(span.duration),
        "pid": std::process::id(),
        "tid": span.thread,
        "args": { "detail": span.detail },
    })
}

/// Number of active timelines.
static ACTIVE_TIMELINES: AtomicUsize = AtomicUsize::new(0);
/// Spans of the active timelines.
static RECORDED_SPANS: Mutex<Vec<Arc<Mutex<Vec<Span>>>>> = Mutex::new(vec![]);
/// Time from which spans count.
static TIME_ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
/// The file that `PALLAS_TIMELINE` names, if it is set.
static TIMELINE_FILE: LazyLock<Option<Mutex<File>>> = LazyLock::new(|| {
    let path = std::env::var_os("PALLAS_TIMELINE")?;
    match File::create(&path).and_then(|mut file| file.write_all(b"[\n]").map(|()| file)) {
        Ok(file) => Some(Mutex::new(file)),
        Err(error) => {
            eprintln!("PALLAS_TIMELINE={}: {error}", path.display());
            None
        }
    }
});

/// Returns true if spans are recorded, by a timeline or for `PALLAS_TIMELINE`.
pub fn is_recording() -> bool {
    ACTIVE_TIMELINES.load(Ordering::Acquire) > 0 || TIMELINE_FILE.is_some()
}

/// Runs a function and records its duration. `describe` gives name and detail; it is called only if spans are recorded.
pub fn run_in_span<R>(kind: SpanKind, describe: impl FnOnce() -> (String, String), run: impl FnOnce() -> R) -> R {
    let start = now_if_recording();
    let result = run();
    record_span_since(start, kind, describe);
    result
}

/// Returns the current time if spans are recorded, for [`record_span_since`]; else `None`.
pub fn now_if_recording() -> Option<Duration> {
    is_recording().then(|| TIME_ORIGIN.elapsed())
}

/// Records a span from `start`, a result of [`now_if_recording`], until now; does nothing for `None`.
pub fn record_span_since(start: Option<Duration>, kind: SpanKind, describe: impl FnOnce() -> (String, String)) {
    if let Some(start) = start {
        let duration = TIME_ORIGIN.elapsed() - start;
        record_span(kind, describe(), start, duration);
    }
}

/// Adds a finished span to the file and to all active timelines.
fn record_span(kind: SpanKind, (name, detail): (String, String), start: Duration, duration: Duration) {
    let span = Span { kind, name, detail, start, duration, thread: thread_number() };
    if let Some(file) = &*TIMELINE_FILE {
        // An error of the file must not affect the program.
        let _ = append_event(&mut *file.lock(), &span_to_json(&span));
    }
    for spans in RECORDED_SPANS.lock().iter() {
        spans.lock().push(span.clone());
    }
}

/// Appends an event to a JSON list in a file, which stays valid at any time, as a program may end without notice.
fn append_event(file: &mut (impl Write + Seek), event: &Value) -> std::io::Result<()> {
    // In an empty list the position before the end is also that after the beginning.
    let end = file.seek(SeekFrom::End(-2))?;
    let comma = if end > 1 { "," } else { "" };
    file.write_all(format!("{comma}\n{event}\n]").as_bytes())
}

/// Nanoseconds that all threads spent in [`time_compilation`].
static COMPILE_NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// Runs a function that compiles something, and counts its time for [`compile_time`]; nested calls are not counted
/// twice.
pub fn time_compilation<R>(run: impl FnOnce() -> R) -> R {
    thread_local! {
        static IS_COMPILING: Cell<bool> = const { Cell::new(false) };
    }
    /// Ends the outermost call of [`time_compilation`] when it is dropped, also if it panics.
    struct OutermostCompilation(Instant);
    impl Drop for OutermostCompilation {
        fn drop(&mut self) {
            IS_COMPILING.set(false);
            COMPILE_NANOSECONDS.fetch_add(self.0.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }
    let _outermost = (!IS_COMPILING.replace(true)).then(|| OutermostCompilation(Instant::now()));
    run()
}

/// Total time that threads spent compiling so far.
pub fn compile_time() -> Duration {
    Duration::from_nanos(COMPILE_NANOSECONDS.load(Ordering::Relaxed))
}

/// Number of this thread, given at its first span.
fn thread_number() -> u64 {
    static NEXT_THREAD_NUMBER: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static OWN_THREAD_NUMBER: Cell<Option<u64>> = const { Cell::new(None) };
    }
    OWN_THREAD_NUMBER.with(|own| {
        let number = own.get().unwrap_or_else(|| NEXT_THREAD_NUMBER.fetch_add(1, Ordering::Relaxed));
        own.set(Some(number));
        number
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_process_is_json_after_each_event() {
        let mut file = std::io::Cursor::new(b"[\n]".to_vec());
        for events in 0..4 {
            let list: Value = serde_json::from_slice(file.get_ref()).expect("JSON");
            assert_eq!(list.as_array().map(Vec::len), Some(events));
            append_event(&mut file, &json!({ "name": "a \"kernel\"", "ts": events })).expect("memory");
        }
    }
}
