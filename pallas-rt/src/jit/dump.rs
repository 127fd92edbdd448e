//! Text after each stage, in the folder that `PALLAS_DUMP` names, and the verifier that runs on it.
use pallas_device::timeline;
use pallas_graph::{Graph, Made, Watch};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Verifies what each stage makes, and writes it to the folder that `PALLAS_DUMP` names.
pub(super) struct Watcher {
    /// The folder, and the number of the compilation.
    dump: Option<(&'static Path, usize)>,
    /// The number of the next text.
    next: usize,
    /// The text that was written last: an equal one is not written again.
    last: String,
    /// The time when the stage that runs began, for a timeline.
    pub(super) began: Option<Duration>,
}

/// The folder for the texts of graphs and plans; `None` if `PALLAS_DUMP` is not set.
static DUMPS: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::var_os("PALLAS_DUMP").map(PathBuf::from));

impl Watcher {
    /// A watcher for the stages of a traced graph, which it writes first.
    pub(super) fn of(graph: &Graph) -> Watcher {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let dump = DUMPS.as_deref().map(|folder| (folder, NUMBER.fetch_add(1, Relaxed)));
        let mut watcher = Watcher { dump, next: 0, last: String::new(), began: None };
        watcher.made("traced", graph);
        watcher
    }
}

impl Watch for Watcher {
    fn made(&mut self, stage: &'static str, program: &dyn Made) {
        timeline::since(self.began, timeline::Kind::Compile, || (stage.into(), String::new()));
        // Random tests also run in release builds, and verify there.
        if cfg!(any(debug_assertions, test)) {
            assert_eq!(program.verify(), Ok(()), "after {stage}:\n{program}");
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
        self.began = timeline::now();
    }
}
