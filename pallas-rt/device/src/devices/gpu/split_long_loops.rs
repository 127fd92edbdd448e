//! The ranges of sequential axes among which a launch splits loops that are too long for a driver.
use pallas_codegen::wgsl::IterationBound;

/// Splits the sequential axes into ranges, each `from to` for every axis, outermost first, such that a thread runs at
/// most `limit` loop iterations per range, or a single step.
pub(super) fn split_sequential_axes(iterations: &IterationBound, steps: &[i64], limit: u64) -> Vec<Vec<u32>> {
    /// Splits axis `axis` and those inside of it into ranges of at most `max_iterations` iterations, or a single step,
    /// and appends them to `ranges`; `outer_bounds` has the range of each axis outside of it.
    fn split_axis(
        axis: usize,
        bound_and_steps: (&IterationBound, &[i64]),
        max_iterations: u64,
        outer_bounds: &mut Vec<u32>,
        ranges: &mut Vec<Vec<u32>>,
    ) {
        let (iterations, steps) = bound_and_steps;
        let deeper =
            IterationBound { outside: iterations.axes[axis], axes: iterations.axes[axis + 1..].to_vec(), more: false };
        let most = max_iterations / deeper.total(&steps[axis + 1..]).max(1);
        let last = axis + 1 == steps.len();
        let chunk = most.clamp(1, steps[axis].max(1) as u64) as usize;
        for from in (0..steps[axis]).step_by(chunk) {
            let bounds = outer_bounds.len();
            outer_bounds.extend([from as u32, (from + chunk as i64).min(steps[axis]) as u32]);
            if most == 0 && !last {
                split_axis(
                    axis + 1,
                    bound_and_steps,
                    max_iterations.saturating_sub(iterations.axes[axis]),
                    outer_bounds,
                    ranges,
                );
            } else {
                let rest = steps[axis + 1..].iter().flat_map(|&n| [0, n as u32]);
                ranges.push(outer_bounds.iter().copied().chain(rest).collect());
            }
            outer_bounds.truncate(bounds);
        }
    }
    let mut out = vec![];
    split_axis(0, (iterations, steps), limit.saturating_sub(iterations.outside), &mut vec![], &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_keep_to_the_limit_and_cover_every_step_once() {
        let check = |outside, axes: &[u64], steps: &[i64], limit| {
            let iterations = IterationBound { outside, axes: axes.to_vec(), more: false };
            let ranges = split_sequential_axes(&iterations, steps, limit);
            let covered: i64 =
                ranges.iter().map(|r| r.chunks(2).map(|b| i64::from(b[1] - b[0])).product::<i64>()).sum();
            assert_eq!(covered, steps.iter().product::<i64>(), "{ranges:?}");
            let long = |r: &Vec<u32>| {
                let own: Vec<i64> = r.chunks(2).map(|b| i64::from(b[1] - b[0])).collect();
                iterations.total(&own) > limit && own.iter().any(|&n| n > 1)
            };
            assert!(!ranges.iter().any(long), "{ranges:?}");
            ranges
        };
        assert_eq!(check(1, &[10], &[7], 31), [[0, 3], [3, 6], [6, 7]]);
        assert_eq!(check(0, &[10], &[2], 5), [[0, 1], [1, 2]], "a single step may be longer");
        assert_eq!(check(0, &[1, 10], &[4, 2], 50), [[0, 2, 0, 2], [2, 4, 0, 2]]);
        assert_eq!(check(0, &[1, 10], &[2, 3], 21), [[0, 1, 0, 2], [0, 1, 2, 3], [1, 2, 0, 2], [1, 2, 2, 3]]);
        assert!(check(5, &[1, 2, 3], &[5, 7, 11], 40).len() > 5);
    }
}
