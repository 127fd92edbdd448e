//! Drops the equations that no result depends on, and that have no effect; of scans, stacks and carried values as well.
//!
//! ```text
//! { lambda %0:f32[2] . %1:f32[2] = exp %0  %2:f32[2] = neg %0  in %2 }
//! { lambda %0:f32[2] .                     %2:f32[2] = neg %0  in %2 }
//!
//! %3, %4 = scan { lambda i x . j = add i, 1  y = exp x       in j, y } %0, %1        %5 = neg %4
//! %4     = scan { lambda x .                 y = exp x       in y } %1               %5 = neg %4
//! ```
use crate::call::{Call, Scan, has_effect, scan_of};
use crate::graph::{Equation, Graph};

/// The graph without them.
pub(crate) fn without_dead(mut graph: Graph) -> Graph {
    let mut live = vec![false; graph.types.len()];
    graph.results.iter().for_each(|r| live[r.index()] = true);
    let mut kept = vec![];
    for mut e in std::mem::take(&mut graph.equations).into_iter().rev() {
        if e.results.iter().any(|r| live[r.index()]) || has_effect(&e.op) {
            if let Some(scan) = scan_of(&e.op) {
                let is_read: Vec<bool> = e.results.iter().map(|r| live[r.index()]).collect();
                e = without_unread(&e, scan, &is_read).unwrap_or(e);
            }
            e.args.iter().for_each(|a| live[a.index()] = true);
            kept.push(e);
        }
    }
    kept.reverse();
    Graph { equations: kept, ..graph }
}

/// A scan without the stacks that are not read, and without carried values that nothing which is read depends on.
fn without_unread(e: &Equation, scan: &Scan, is_read: &[bool]) -> Option<Equation> {
    if !is_read.contains(&false) {
        return None;
    }
    let body = &scan.body;
    let mut live = vec![false; body.types.len()];
    body.results.iter().zip(is_read).filter(|(_, read)| **read).for_each(|(r, _)| live[r.index()] = true);
    let carried = scan.captured..scan.captured + scan.carried;
    loop {
        for e in body.equations.iter().rev() {
            if has_effect(&e.op) || e.results.iter().any(|r| live[r.index()]) {
                e.args.iter().for_each(|a| live[a.index()] = true);
            }
        }
        // What the next step reads.
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
    // An equation has a result.
    if !is_kept.contains(&false) || !is_kept.contains(&true) {
        return None;
    }
    let (mut e, mut scan) = (e.clone(), scan.clone());
    for k in (0..is_kept.len()).rev().filter(|&k| !is_kept[k]) {
        e.results.remove(k);
        scan.body.results.remove(k);
        if k < scan.carried {
            e.args.remove(scan.captured + k);
            scan.body.params.remove(scan.captured + k);
            scan.carried -= 1;
        }
    }
    scan.body = without_dead(std::mem::take(&mut scan.body));
    e.op = Call::Scan(scan).into();
    Some(e)
}
