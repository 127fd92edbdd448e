//! The number of threads that run the programs of a launch.
use super::Executable;

/// Elementary operations below which a launch runs on the caller's thread.
pub const MIN_THREADED_OPERATIONS: usize = 40_000;

impl Executable {
    /// Returns the number of elementary operations of all programs of a grid.
    pub fn operation_count(&self, grid: &[i64]) -> usize {
        let programs: i64 = grid.iter().product();
        self.plan.work.saturating_mul(programs as usize)
    }

    /// Returns true if the launch finishes before another thread could take part in it.
    pub fn is_small_launch(&self, grid: &[i64]) -> bool {
        self.operation_count(grid) < MIN_THREADED_OPERATIONS
    }

    /// Returns the number of threads that run the programs of a grid: one if waking others would take longer than the
    /// work; then the thread pool is not started either.
    pub fn thread_count(&self, grid: &[i64]) -> usize {
        let programs: i64 = grid.iter().product();
        if programs <= 1 || self.is_small_launch(grid) {
            1
        } else {
            rayon_core::current_num_threads().min(programs as usize)
        }
    }
}

/// Returns the number of threads that share `units` of work, at most one for each unit: one alone if there is a single
/// unit, or if the work has fewer elementary operations than the given minimum.
pub(super) fn thread_count(units: i64, operations: usize, min_shared_operations: usize) -> usize {
    let is_shared = units > 1 && operations >= min_shared_operations;
    if is_shared { rayon_core::current_num_threads().min(units as usize).max(1) } else { 1 }
}
