//! The table of the guide's page on several machines: devices on threads that differ, each with the errors of all.
use super::{Local, Member, metric, run};
use crate::array::Array;
use crate::array::Client;
use crate::collective::{AllGather, AllReduce, CollectiveKind, Permute};
use crate::sharding::Mesh;
use pallas_device::error::{Error, Result};
use pallas_graph::mesh::AllToAll;
use pallas_ir::ScalarOp;
use std::sync::Arc;

fn mesh() -> Arc<Mesh> {
    Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("a mesh"))
}

fn array(shape: &[usize]) -> Array {
    Client::cpu().full(shape, 1.0f32).expect("it fits")
}

/// Three sums over `model`; in the second one, device 2 does something else.
fn steps(device: &Member<'_>, other: impl Fn(&Member<'_>) -> Result<()>) -> Result<f32> {
    let mut last = 0.0;
    for step in 0..3 {
        if device.positions() == [2] && step == 1 {
            other(device)?;
            continue;
        }
        let sum = device.exchange(step, AllReduce(ScalarOp::Add), &["model"], &[array(&[2])])?;
        last = sum[0].to_vec::<f32>()?[0];
    }
    Ok(last)
}

/// Every device ends with an error; those of the group of device 2 name it, what it did, and their own line.
#[track_caller]
fn check(found: &str, other: impl Fn(&Member<'_>) -> Result<()> + Sync) {
    let results = run(&mesh(), |device| steps(device, &other)).expect("threads");
    for (position, result) in results.into_iter().enumerate() {
        let error = result.expect_err("every device has an error").to_string();
        if [0, 1, 3].contains(&position) {
            let at = format!("{}:", file!());
            assert!(
                error.starts_with(&at) && error.contains("device 2 ") && error.contains(found),
                "{position}: {error}"
            );
            assert!(error.contains("step 1"), "{position}: {error}");
        }
    }
}

fn add() -> AllReduce {
    AllReduce(ScalarOp::Add)
}

#[test]
fn skipped() {
    check("is at an exchange of another step", |_| Ok(()));
}

#[test]
fn another_kind() {
    check("is at an exchange of another kind: all_gather", |device| {
        device.exchange(1, AllGather, &["model"], &[array(&[2])]).map(|_| ())
    });
}

#[test]
fn other_axes() {
    check("is at an exchange of another axes: all_reduce add over \"data\"", |device| {
        device.exchange(1, add(), &["data"], &[array(&[2])]).map(|_| ())
    });
}

#[test]
fn another_shape() {
    check("is at an exchange of another shape", |device| {
        device.exchange(1, add(), &["model"], &[array(&[3])]).map(|_| ())
    });
}

#[test]
fn another_layout() {
    let swapped = |device: &Member<'_>, layout: &[usize]| {
        let begun = device.start_with_layout(0, add(), &["model"], layout, &[array(&[2, 2])])?;
        device.finish(begun)?[0].to_vec::<f32>()
    };
    let results = run(&mesh(), |device| swapped(device, if device.positions() == [2] { &[1, 0] } else { &[0, 1] }));
    for (position, result) in results.expect("threads").into_iter().enumerate() {
        let error = result.expect_err("every device has an error").to_string();
        let is_named = error.contains("device 2 is at an exchange of another layout");
        assert!(is_named || ![0, 1, 3].contains(&position), "{position}: {error}");
    }
}

#[test]
fn finished_early() {
    check("has finished", |_| Err(Error::Value { message: "has finished".into() }));
    let results = run(&mesh(), |device| if device.positions() == [2] { Ok(0.0) } else { steps(device, |_| Ok(())) });
    for (position, result) in results.expect("threads").into_iter().enumerate() {
        let error = result.expect_err("every device has an error").to_string();
        assert!(![0, 1, 3].contains(&position) || error.contains("device 2 has finished"), "{position}: {error}");
    }
}

#[test]
fn panicked() {
    check("panicked: on purpose", |_| panic!("on purpose"));
}

/// Devices wait for each other in a circle; none has ended, and no two are at one collective.
#[test]
fn a_circle() {
    let mesh = Arc::new(Mesh::new(&[("x", 2), ("y", 2)]).expect("a mesh"));
    let results = run(&mesh, |device| {
        // 0 and 3 begin with `x`, 1 and 2 with `y`.
        let axes = if [0, 3].contains(&device.positions()[0]) { ["x", "y"] } else { ["y", "x"] };
        for (step, axis) in axes.into_iter().enumerate() {
            device.exchange(step as u64, add(), &[axis], &[array(&[1])])?;
        }
        Ok(())
    });
    for result in results.expect("threads") {
        let error = result.expect_err("nobody comes").to_string();
        assert!(error.contains("is at an exchange of another axes"), "{error}");
    }
}

#[test]
fn mistakes_in_a_call_are_errors() {
    let mesh = mesh();
    let error = |call: &(dyn Fn(&Member<'_>) -> Result<()> + Sync)| {
        run(&mesh, call).expect("threads").remove(0).expect_err("a mistake").to_string()
    };
    let exchange = |kind: CollectiveKind, axes: &[&str], operands: &[Array], expected: &str| {
        let found = error(&|device| device.exchange(0, kind.clone(), axes, operands).map(|_| ()));
        assert!(found.contains(expected) && found.contains(file!()), "{found}");
    };
    exchange(add().into(), &["rows"], &[array(&[2])], "`rows` is no axis");
    exchange(add().into(), &["data", "data"], &[array(&[2])], "axis `data` twice");
    exchange(add().into(), &["data"], &[], "0 arrays for 1 devices");
    exchange(AllReduce(ScalarOp::Sub).into(), &["data"], &[array(&[2])], "combined by `sub`");
    let truths = Client::cpu().full(&[2], true).expect("it fits");
    exchange(add().into(), &["data"], &[truths], "elements of bool combined by `add`");
    exchange(AllToAll.into(), &["model"], &[array(&[2])], "the first axis has a part for each device");
    exchange(Permute(vec![Some(0)]).into(), &["model"], &[array(&[2])], "sources for 4 devices");
    // The program of a device cannot wait for all devices.
    let nested = error(&|_| run(&mesh, |_| Ok(())).map(|_| ()));
    assert!(nested.contains("the program of a device cannot run a program on all devices"), "{nested}");
}

#[test]
fn numbers_that_vary_are_no_metrics() {
    let mesh = mesh();
    let speed = Local::new(&mesh, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).expect("a number for each device");
    let error = speed.metric().expect_err("it varies").to_string();
    assert!(error.contains("a number that varies along `data`") && error.contains(file!()), "{error}");
    let half = speed.reduce(ScalarOp::Add, &["data"]).expect("it is reduced");
    assert!(half.metric().expect_err("it varies").to_string().contains("`model`"));
    let whole = half.reduce(ScalarOp::Maximum, &["model"]).expect("it is reduced").metric().expect("all have it");
    assert_eq!(whole.value, 12.0);
    let receipts: Vec<(&str, usize)> = whole.receipts.iter().map(|r| (&r.collective[..], r.participants)).collect();
    assert_eq!(receipts, [("all_reduce add axes(\"data\")", 2), ("all_reduce maximum axes(\"model\")", 4)]);
    assert_eq!(whole.receipts[0].group, [0, 4]);
    assert!(whole.receipts[0].at.contains(file!()));
    assert!(Local::new(&mesh, &[1.0]).expect_err("8 devices").to_string().contains("1 numbers for 8 devices"));
    assert!(speed.reduce(ScalarOp::Sub, &["data"]).is_err());
}

#[test]
fn arrays_as_metrics_have_receipts() {
    use crate::sharding::{NamedSharding, P, device_put};
    let mesh = mesh();
    let x = device_put(&array(&[8, 4]), &NamedSharding::new(&mesh, P(("data", "model")))).expect("it is placed");
    let loss = crate::jit(|x: &Array| (x * 2.0).mean(..))(&x).expect("it runs");
    let loss = metric(&loss).expect("all have it");
    assert_eq!(loss.value, 2.0);
    let mut axes: Vec<&str> = loss.receipts.iter().flat_map(|r| r.axes.iter().map(|axis| &axis[..])).collect();
    axes.sort_unstable();
    assert_eq!(axes, ["data", "model"], "{loss}");
    assert!(loss.receipts[0].at.contains(file!()), "{loss}");
    assert!(metric(&x).expect_err("many elements").to_string().contains("shape [8, 4]"));
    assert_eq!(metric(&array(&[])).expect("one process").receipts, []);
}
