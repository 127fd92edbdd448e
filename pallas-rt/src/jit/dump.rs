//! Text after each stage, in the folder that `PALLAS_DUMP` names, and the verifier that runs on it.
use pallas_device::timeline;
use pallas_graph::{Graph, StageObserver, StageOutput};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Verifies what each stage makes, and writes it to the folder that `PALLAS_DUMP` names.
pub(super) struct StageWatcher {
    /// The folder, and the number of the compilation.
    dump: Option<(&'static Path, usize)>,
    /// The number of the next text.
    next: usize,
    /// The text that was written last: an equal one is not written again.
    last: String,
    /// The graph that was verified last.
    verified: Option<Graph>,
    /// The time when the stage that runs began, for a timeline.
    pub(super) began: Option<Duration>,
}

/// The folder for the texts of graphs and plans; `None` if `PALLAS_DUMP` is not set.
static DUMP_FOLDER: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::var_os("PALLAS_DUMP").map(PathBuf::from));

impl StageWatcher {
    /// A watcher for the stages of a traced graph, which it writes first.
    pub(super) fn from_graph(graph: &Graph) -> StageWatcher {
        static NEXT_COMPILATION_NUMBER: AtomicUsize = AtomicUsize::new(0);
        let dump = DUMP_FOLDER.as_deref().map(|folder| (folder, NEXT_COMPILATION_NUMBER.fetch_add(1, Relaxed)));
        let mut watcher = StageWatcher { dump, next: 0, last: String::new(), verified: None, began: None };
        watcher.observe_stage("traced", graph);
        watcher
    }
}

impl StageObserver for StageWatcher {
    fn observe_stage(&mut self, stage: &'static str, program: &dyn StageOutput) {
        timeline::record_span_since(self.began, timeline::SpanKind::Compile, || (stage.into(), String::new()));
        // Random tests also run in release builds, and verify there.
        let graph = program.as_graph();
        if cfg!(any(debug_assertions, test)) && (graph.is_none() || graph != self.verified.as_ref()) {
            assert_eq!(program.verify(), Ok(()), "after {stage}:\n{program}");
            self.verified = graph.cloned().or_else(|| self.verified.take());
        }
        if let Some((folder, number)) = self.dump {
            let text = program.to_string();
            if text != self.last {
                let file = folder.join(format!("{number:04}.{:02}.{stage}.txt", self.next));
                self.next += 1;
                if let Err(error) = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&file, &text)) {
                    eprintln!("PALLAS_DUMP: {}: {error}", file.display());
                }
                self.last = text;
            }
        }
        self.began = timeline::now_if_recording();
    }
}
