//! Removes the parts of a scan that only unread results need.
use super::Scan;
use crate::call::{PlanStepInterface, has_effect};
use crate::dead_code::without_dead_equations;
use crate::graph::Equation;

impl PlanStepInterface for Scan {
    fn has_effect(&self) -> bool {
        false
    }
    /// Returns the scan without the stacks that are not read, and without carried values that no read result depends
    /// on; `None` if all of it is needed, or nothing.
    fn without_unread_results(&self, e: &Equation, is_read: &[bool]) -> Option<Equation> {
        let body = &self.body;
        let mut live = vec![false; body.types.len()];
        body.results.iter().zip(is_read).filter(|(_, read)| **read).for_each(|(r, _)| live[r.index()] = true);
        let carried = self.captured..self.first_array_operand();
        loop {
            for e in body.equations.iter().rev() {
                if has_effect(&e.op) || e.results.iter().any(|r| live[r.index()]) {
                    e.args.iter().for_each(|a| live[a.index()] = true);
                }
            }
            // A carried value that the body reads is needed from the step before.
            let next = body.params[carried.clone()].iter().zip(&body.results);
            let next: Vec<usize> =
                next.filter(|(p, r)| live[p.index()] && !live[r.index()]).map(|(_, r)| r.index()).collect();
            if next.is_empty() {
                break;
            }
            next.into_iter().for_each(|r| live[r] = true);
        }
        let mut is_kept = is_read.to_vec();
        for (kept, p) in is_kept.iter_mut().zip(&body.params[carried]) {
            *kept |= live[p.index()];
        }
        // An equation must keep at least one result.
        if !is_kept.contains(&false) || !is_kept.contains(&true) {
            return None;
        }
        let (mut e, mut scan) = (e.clone(), self.clone());
        for k in (0..is_kept.len()).rev().filter(|&k| !is_kept[k]) {
            e.results.remove(k);
            scan.body.results.remove(k);
            if k < scan.carried {
                e.args.remove(scan.captured + k);
                scan.body.params.remove(scan.captured + k);
                scan.carried -= 1;
            }
        }
        scan.body = without_dead_equations(std::mem::take(&mut scan.body));
        e.op = scan.into();
        Some(e)
    }
}
