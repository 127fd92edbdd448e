//! Arrays that are shown at each call.
use super::super::print::PRINTED_LINES;
use super::array;
use crate::prelude::*;
use crate::{checkpoint, cond, disable_jit, fori_loop, grad, jit, scan, vmap, while_loop};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The lines that a call shows, without their places; all labels of a test begin with its own name.
fn shown(name: &str, call: impl FnOnce()) -> Vec<String> {
    call();
    let mut all = PRINTED_LINES.lock();
    let own: Vec<String> = all.iter().filter(|line| line.contains(&format!(": {name} "))).cloned().collect();
    all.retain(|line| !line.contains(&format!(": {name} ")));
    own.into_iter().map(|line| line.split_once(&format!(": {name} ")).expect("its name").1.to_string()).collect()
}

#[test]
fn prints_happen_at_each_call_and_other_effects_once_a_trace() {
    let traces = std::sync::Arc::new(AtomicUsize::new(0));
    let inner = traces.clone();
    let f = jit(move |x: &Array| {
        inner.fetch_add(1, Ordering::Relaxed);
        x.debug_print("each x");
        let y = x * 2.0;
        // Nothing reads it, and it is shown twice.
        (x + 1.0).debug_print("each x + 1");
        (x + 1.0).debug_print("each x + 1");
        y.sum(..).debug_print("each sum");
        y
    });
    for by in [1.0, 3.0] {
        let found = shown("each", || drop(f(&array(&[by, 2.0], &[2])).expect("it runs")));
        let next = format!("x + 1 = [{:.1}, 3.0]", by + 1.0);
        assert_eq!(found, [format!("x = [{by:.1}, 2.0]"), next.clone(), next, format!("sum = {:.1}", 2.0 * by + 4.0)]);
    }
    assert_eq!(traces.load(Ordering::Relaxed), 1);
    let line = line!() + 1;
    array(&[1.0], &[1]).debug_print("line x");
    let all = PRINTED_LINES.lock().clone();
    assert!(
        all.iter().any(|found| found.starts_with(&format!("{}:{line}:", file!())) && found.ends_with("line x = [1.0]"))
    );
    let guard = disable_jit();
    assert_eq!(shown("each", || drop(f(&array(&[1.0, 2.0], &[2])).expect("it runs"))).len(), 4);
    drop(guard);
}

#[test]
fn prints_pass_through_loops_and_transformations() {
    let x = array(&[1.0, 2.0, 3.0], &[3]);
    let steps = |x: &Array| {
        let (last, ys) = scan(&(x.sum(..) * 0.0), x, |c: &Array, x: &Array| {
            let c = c + x;
            c.debug_print("steps c");
            (c.clone(), c * 2.0)
        })?;
        ys.sum(..).debug_print("steps all");
        Ok::<_, Error>(last)
    };
    let wanted = ["c = 1.0", "c = 3.0", "c = 6.0", "all = 20.0"];
    assert_eq!(shown("steps", || drop(jit(steps)(&x).expect("it runs"))), wanted);
    assert_eq!(shown("steps", || drop(jit(grad(steps))(&x).expect("it runs"))), wanted);
    let each = |x: &Array| {
        (x * x).debug_print("batch square");
        x.sum(..).debug_print("batch sum");
        x * 1.0
    };
    let rows = array(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let wanted = ["square = [1.0, 4.0]", "square = [ 9.0, 16.0]", "sum = 3.0", "sum = 7.0"];
    assert_eq!(shown("batch", || drop(jit(vmap(each))(&rows).expect("it runs"))), wanted);
    let twice = vmap(vmap(|x: &Array| {
        x.debug_print("nested x");
        x + 1.0
    }));
    let found = shown("nested", || drop(jit(twice)(&rows).expect("it runs")));
    assert_eq!(found, ["x = 1.0", "x = 2.0", "x = 3.0", "x = 4.0"]);
    let over = |x: &Array| {
        fori_loop(0..2, x, |i: &Array, x: &Array| {
            (x + i.cast(DType::F32)).debug_print("over x");
            x * 2.0
        })
    };
    let found = shown("over", || drop(jit(vmap(over))(&array(&[1.0, 5.0], &[2])).expect("it runs")));
    assert_eq!(found, ["x = 1.0", "x = 5.0", "x = 3.0", "x = 11.0"]);
    // A branch that does not run shows nothing; a loop as often as it runs.
    let branch = |x: &Array| {
        let yes = |x: &Array| {
            x.debug_print("branch yes");
            x * 2.0
        };
        let no = |x: &Array| {
            x.debug_print("branch no");
            x * 3.0
        };
        cond(&x.gt(2.0), x, yes, no)
    };
    for (by, wanted) in [(1.0, "no = 1.0"), (4.0, "yes = 4.0")] {
        let x = array(&[by], &[]);
        assert_eq!(shown("branch", || drop(jit(branch)(&x).expect("it runs"))), [wanted]);
        assert_eq!(shown("branch", || drop(jit(grad(branch))(&x).expect("it runs"))), [wanted]);
    }
    let grows = |x: &Array| {
        while_loop(
            x,
            |x: &Array| x.lt(10.0),
            |x: &Array| {
                x.debug_print("grows x");
                x * 3.0
            },
        )
    };
    assert_eq!(
        shown("grows", || drop(jit(grows)(&array(&[1.0], &[])).expect("it runs"))),
        ["x = 1.0", "x = 3.0", "x = 9.0"]
    );
    // As in JAX, what is computed again is shown again.
    let function = checkpoint(|x: &Array| {
        x.debug_print("again x");
        x.sin().sin()
    });
    let again = jit(grad(move |x: &Array| function(x)));
    assert_eq!(shown("again", || drop(again(&array(&[1.0], &[])).expect("it runs"))), ["x = 1.0", "x = 1.0"]);
}
