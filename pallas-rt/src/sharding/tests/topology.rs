//! Times of exchanges: closed forms against numbers by hand, and against messages over single links.
use super::mesh;
use crate::sharding::{Link, Mesh, Topology};
use pallas_graph::mesh::{
    AllGather, AllReduce, AllToAll, Axis, Collective, CollectiveKind, DeviceTable, Permute, ReduceScatter,
};
use pallas_ir::{DType, ScalarOp, Type};
use std::sync::Arc;

/// A byte takes a second over a link, and a step to a neighbour `latency` seconds.
fn slow(mesh: &Mesh, latency: f64, link: impl Fn(f64, f64) -> Link) -> Topology {
    let axes = (0..mesh.rank()).map(|axis| mesh.name(axis));
    axes.fold(Topology::new(1.0, 1.0), |all, axis| all.link(axis, link(1.0, latency)))
}

fn seconds(topology: &Topology, mesh: &Arc<Mesh>, axes: &[Axis], kind: impl Into<CollectiveKind>, bytes: usize) -> f64 {
    topology.verify(mesh).expect("it fits");
    let op = Collective { kind: kind.into(), mesh: mesh.clone(), axes: axes.to_vec() };
    topology.collective_seconds(&op, &Type::new(DType::U8, [bytes]))
}

const SUM: ScalarOp = ScalarOp::Add;

/// The time on 8 devices, whose operands have 800 bytes each; a step takes 10 seconds.
fn of_eight(link: impl Fn(f64, f64) -> Link, kind: impl Into<CollectiveKind>) -> f64 {
    let mesh = mesh(&[("x", 8)]);
    seconds(&slow(&mesh, 10.0, link), &mesh, &mesh.axes(), kind, 800)
}

fn ring(kind: impl Into<CollectiveKind>) -> f64 {
    of_eight(Link::ring, kind)
}

fn torus(kind: impl Into<CollectiveKind>) -> f64 {
    of_eight(|bandwidth, latency| Link::torus(&[2, 4], bandwidth, latency), kind)
}

fn switch(kind: impl Into<CollectiveKind>) -> f64 {
    of_eight(Link::switch, kind)
}

#[test]
fn numbers_by_hand() {
    let mesh = mesh(&[("x", 8)]);
    let shift = || Permute((0..8).map(|i| Some((i + 7) % 8)).collect());
    let far = || Permute((0..8).map(|i| Some((i + 4) % 8)).collect());
    // 7 parts of 800 bytes come from two sides, over 4 steps at most.
    assert_eq!(ring(AllGather), 4.0 * 10.0 + 7.0 * 800.0 / 2.0);
    // Parts of 100 bytes.
    assert_eq!(ring(ReduceScatter(SUM)), 4.0 * 10.0 + 7.0 * 100.0 / 2.0);
    assert_eq!(ring(AllReduce(SUM)), 2.0 * (4.0 * 10.0 + 7.0 * 100.0 / 2.0));
    // Distances 1, 2, 3, 4, 3, 2, 1 of 100 bytes, over two directions.
    assert_eq!(ring(AllToAll), 4.0 * 10.0 + 16.0 * 100.0 / 2.0);
    assert_eq!(ring(shift()), 10.0 + 800.0);
    // Four messages share each link.
    assert_eq!(ring(far()), 4.0 * 10.0 + 4.0 * 800.0);
    // One link along the side of two devices, two along the other; one and two steps.
    assert_eq!(torus(AllGather), 3.0 * 10.0 + 7.0 * 800.0 / 3.0);
    // Along the side of 4: 2 x (1 + 2 + 1) parts over two directions; along that of 2: 4 x 1.
    assert_eq!(torus(AllToAll), 3.0 * 10.0 + 4.0 * 100.0);
    assert_eq!(switch(AllGather), 3.0 * 10.0 + 7.0 * 800.0);
    assert_eq!(switch(AllReduce(SUM)), 2.0 * (3.0 * 10.0 + 7.0 * 100.0));
    assert_eq!(switch(AllToAll), 7.0 * (10.0 + 100.0));
    assert_eq!(switch(far()), 10.0 + 800.0);
    // One device sends to all.
    assert_eq!(switch(Permute(vec![Some(0); 8])), 10.0 + 7.0 * 800.0);
    // Nobody sends.
    assert_eq!(switch(Permute(vec![None; 8])), 0.0);
    assert_eq!(ring(DeviceTable(vec![0; 8])), 0.0);
    // 801 bytes are 8 parts of 101.
    let topology = slow(&mesh, 10.0, Link::ring);
    assert_eq!(seconds(&topology, &mesh, &mesh.axes(), AllReduce(SUM), 801), 2.0 * (40.0 + 7.0 * 101.0 / 2.0));
}

/// Two devices have one link; parts of an axis share its links.
#[test]
fn small_rings_and_parts_of_axes() {
    let two = mesh(&[("x", 2), ("one", 1)]);
    let topology = Topology::new(1.0, 1.0).link("x", Link::ring(1.0, 10.0));
    assert_eq!(seconds(&topology, &two, &two.axes(), AllGather, 800), 10.0 + 800.0);
    assert_eq!(seconds(&topology, &two, &[two.axis(1)], AllGather, 800), 0.0);
    let eight = mesh(&[("x", 8)]);
    let topology = slow(&eight, 10.0, Link::ring);
    // Four devices side by side are no ring: all of 3 parts come over one link, and go three steps.
    let line = Axis { id: 0, pre: 2, size: 4 };
    assert_eq!(seconds(&topology, &eight, &[line], AllGather, 800), 3.0 * 10.0 + 3.0 * 800.0);
    // Two devices half a ring apart, four pairs of which share the links.
    let apart = Axis { id: 0, pre: 1, size: 2 };
    assert_eq!(seconds(&topology, &eight, &[apart], AllGather, 800), 4.0 * 10.0 + 4.0 * 800.0);
    let switch = slow(&eight, 10.0, Link::switch);
    assert_eq!(seconds(&switch, &eight, &[apart], AllGather, 800), 10.0 + 800.0);
}

/// Along several axes the slow one comes first, while parts are small; a permutation goes along each in turn.
#[test]
fn several_axes() {
    let mesh = mesh(&[("slow", 2), ("fast", 4)]);
    let topology = Topology::new(1.0, 1.0).link("slow", Link::switch(1.0, 0.0)).link("fast", Link::switch(10.0, 0.0));
    let all = mesh.axes();
    assert_eq!(seconds(&topology, &mesh, &all, AllGather, 100), 100.0 + 3.0 * 200.0 / 10.0);
    assert_eq!(seconds(&topology, &mesh, &all, ReduceScatter(SUM), 800), 100.0 + 3.0 * 200.0 / 10.0);
    assert_eq!(seconds(&topology, &mesh, &all, AllReduce(SUM), 800), 2.0 * (100.0 + 3.0 * 200.0 / 10.0));
    assert_eq!(seconds(&topology, &mesh, &all, AllToAll, 800), 400.0 + 3.0 * 200.0 / 10.0);
    // To the other half, and one ahead there.
    let moved = Permute((0..8).map(|i| Some((i / 4 + 1) % 2 * 4 + (i + 3) % 4)).collect());
    assert_eq!(seconds(&topology, &mesh, &all, moved, 100), 100.0 + 10.0);
}

/// Of rings and tori with odd sides, and of lines, an all-to-all takes as long as its messages do on single links.
#[test]
fn closed_forms_are_those_of_messages() {
    let all_pairs = |k: usize, topology: &Topology, mesh: &Arc<Mesh>, axis: Axis| -> f64 {
        // Shifts by 1 to k - 1, one after the other, load each link as all at once do.
        let shift = |by: usize| Permute((0..k).map(|i| Some((i + k - by) % k)).collect());
        (1..k).map(|by| seconds(topology, mesh, &[axis], shift(by), 90)).sum()
    };
    for k in [3, 5, 7, 9] {
        let mesh = mesh(&[("x", k)]);
        let topology = slow(&mesh, 0.0, Link::ring);
        let found = seconds(&topology, &mesh, &mesh.axes(), AllToAll, 90 * k);
        // Shifts in one direction leave the other one free.
        assert_eq!(2.0 * found, all_pairs(k, &topology, &mesh, mesh.axis(0)), "{k}");
    }
    // The messages of a shift along a line load the link in its middle as all of them together do: in both directions.
    for k in [2usize, 3, 4, 8] {
        let mesh = mesh(&[("x", 2 * k)]);
        let (topology, line) = (slow(&mesh, 0.0, Link::ring), Axis { id: 0, pre: 2, size: k as u32 });
        let found = seconds(&topology, &mesh, &[line], AllToAll, 90 * k);
        assert_eq!(found, (k * k / 4 * 90) as f64);
        let back = Permute((0..k).map(|i| Some(k - 1 - i)).collect());
        assert_eq!(seconds(&topology, &mesh, &[line], back, 90), (k / 2 * 90) as f64, "{k}");
    }
    // A ring gathers in (k - 1) / 2 rounds, in which each device passes on what it has got from both sides.
    for k in [3usize, 5, 9] {
        let mesh = mesh(&[("x", k)]);
        let mut known: Vec<std::collections::BTreeSet<usize>> = (0..k).map(|i| [i].into()).collect();
        let (mut right, mut left): (Vec<usize>, Vec<usize>) = ((0..k).collect(), (0..k).collect());
        let mut rounds = 0;
        while known.iter().any(|own| own.len() < k) {
            right.rotate_right(1);
            left.rotate_left(1);
            (0..k).for_each(|i| known[i].extend([right[i], left[i]]));
            rounds += 1;
        }
        let found = seconds(&slow(&mesh, 10.0, Link::ring), &mesh, &mesh.axes(), AllGather, 90);
        assert_eq!(found, rounds as f64 * (10.0 + 90.0));
    }
}

#[test]
fn topologies_that_fit_no_mesh() {
    let mesh = mesh(&[("x", 8), ("one", 1)]);
    let good = || Topology::new(1.0, 1.0).link("x", Link::ring(1.0, 0.0));
    assert!(good().verify(&mesh).is_ok());
    let cases = [
        (Topology::new(1.0, 1.0), "no links along the axis `x` of 8 devices"),
        (good().link("x", Link::torus(&[2, 3], 1.0, 0.0)), "a torus of [2, 3] along the axis `x` of 8 devices"),
        (good().link("x", Link::torus(&[usize::MAX, 3], 1.0, 0.0)), "a torus of"),
        (good().link("x", Link::ring(0.0, 0.0)), "links along `x` with 0 bytes per second"),
        (good().link("x", Link::ring(f64::NAN, 0.0)), "links along `x` with NaN bytes per second"),
        (good().link("x", Link::switch(1.0, -1.0)), "-1 seconds"),
        (Topology::new(f64::INFINITY, 1.0).link("x", Link::ring(1.0, 0.0)), "inf operations"),
    ];
    for (topology, part) in cases {
        let text = topology.verify(&mesh).expect_err(part).to_string();
        assert!(text.contains(part), "{text}");
    }
}
