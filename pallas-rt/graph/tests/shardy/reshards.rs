//! The collectives of single reshards.
use crate::draw::Dice;
use crate::oracle::{Operation, ask, python};
use crate::{count, parsed};
use pallas_graph::mesh::{Axis, Mesh, Sharding};
use pallas_graph::shard::reshard::plan_shardy_steps;

/// Number of reshards in a module.
const PER_MODULE: usize = 20;

/// The kinds of graphs that are drawn.
#[derive(Clone, Copy)]
struct Config {
    name: &'static str,
    /// Sizes of axes.
    sizes: &'static [usize],
    extents: &'static [usize],
    /// Also halves of axes.
    halves: bool,
}

struct Case {
    shape: Vec<usize>,
    from: Sharding,
    to: Sharding,
}

fn mesh(dice: &mut Dice, sizes: &[usize]) -> Mesh {
    let names = &["x", "y", "z", "w"][..2 + dice.below(3)];
    let axes: Vec<(&str, usize)> = names.iter().map(|name| (*name, *dice.pick(sizes))).collect();
    Mesh::new(&axes).expect("a mesh")
}

/// A closed sharding by most axes of a mesh, or by halves of them.
fn sharding(dice: &mut Dice, mesh: &Mesh, rank: usize, halves: bool) -> Sharding {
    let mut sharding = Sharding::replicated(rank);
    for mut axis in dice.shuffled(mesh.rank()).into_iter().map(|i| mesh.axis(i)) {
        if !dice.chance(70) {
            continue;
        }
        if halves && axis.size > 2 && axis.size % 2 == 0 && dice.chance(25) {
            axis = Axis { pre: if dice.chance(50) { 1 } else { 2 }, size: axis.size / 2, ..axis };
        }
        sharding.dims[dice.below(rank)].axes.push(axis);
    }
    sharding
}

fn text(mesh: &Mesh, cases: &[Case]) -> String {
    let (mut params, mut lines, mut results, mut types) = (vec![], String::new(), vec![], vec![]);
    for (i, case) in cases.iter().enumerate() {
        let shape: Vec<String> = case.shape.iter().map(ToString::to_string).collect();
        let ty = format!("tensor<{}xf32>", shape.join("x"));
        params.push(format!("%a{i}: {ty} {{sdy.sharding = #sdy.sharding<@mesh, {}>}}", case.from.text(mesh)));
        lines += &format!("    %v{i} = sdy.reshard %a{i} <@mesh, {}> : {ty} loc(\"v{i}\")\n", case.to.text(mesh));
        results.push(format!("%v{i}"));
        types.push(ty);
    }
    let (params, results, types) = (params.join(", "), results.join(", "), types.join(", "));
    format!(
        "module {{\n  sdy.mesh @mesh = {mesh}\n  func.func @main({params}) -> ({types}) {{\n{lines}    \
         return {results} : {types}\n  }}\n}}\n"
    )
}

fn ours(mesh: &Mesh, case: &Case) -> Vec<String> {
    let steps = plan_shardy_steps(&case.shape, &case.from, &case.to);
    steps.iter().map(|(step, after)| format!("{} {}", step.text(mesh), after.text(mesh))).collect()
}

/// The text of a collective as `ReshardStep::text` has it, and the sharding after it.
fn theirs(mesh: &Mesh, op: &Operation) -> String {
    let inside = |name: &str, list: &str| {
        let text = op.attribute(name).unwrap_or_else(|| panic!("{name} in {op:?}"));
        text.strip_prefix(list).and_then(|text| text.strip_suffix('>')).unwrap_or_else(|| panic!("{text}")).to_string()
    };
    let step = match &op.name[..] {
        "sdy.all_gather" => format!("all_gather {}", inside("gathering_axes", "#sdy<list_of_axis_ref_lists")),
        "sdy.all_slice" => format!("all_slice {}", inside("slicing_axes", "#sdy<list_of_axis_ref_lists")),
        "sdy.all_to_all" => {
            let moves = inside("params", "#sdy<all_to_all_param_list");
            format!("all_to_all {}", moves.trim_matches(['[', ']']))
        }
        name => name.trim_start_matches("sdy.").to_string(),
    };
    let after = op.attribute("out_sharding").and_then(|text| parsed(text, mesh)).expect("a sharding");
    format!("{step} {}", after.text(mesh))
}

#[test]
fn reshards_are_those_of_shardy() {
    let Some(python) = python() else { return };
    let plain = Config { name: "whole axes", sizes: &[2, 2, 4, 4, 8], extents: &[576, 1152], halves: false };
    let kinds = [
        plain,
        Config { name: "parts of axes", sizes: &[2, 4, 6, 3, 8], halves: true, ..plain },
        Config { name: "uneven", extents: &[5, 12, 30, 64, 100], ..plain },
    ];
    for (seed, Config { name, sizes, extents, halves }) in kinds.into_iter().enumerate() {
        let mut dice = Dice(300 + seed as u64);
        let modules: Vec<(Mesh, Vec<Case>)> = (0..count())
            .map(|_| {
                let mesh = mesh(&mut dice, sizes);
                let case = |dice: &mut Dice| {
                    let rank = 1 + dice.below(3);
                    let shape = (0..rank).map(|_| *dice.pick(extents)).collect();
                    let mut sharding = || sharding(dice, &mesh, rank, halves);
                    Case { shape, from: sharding(), to: sharding() }
                };
                let cases = (0..PER_MODULE).map(|_| case(&mut dice)).collect();
                (mesh, cases)
            })
            .collect();
        let texts: Vec<String> = modules.iter().map(|(mesh, cases)| text(mesh, cases)).collect();
        let (mut agreed, mut total, mut steps, mut failures, mut shown) = (0, 0, 0, 0, vec![]);
        for ((mesh, cases), found) in modules.iter().zip(ask(&python, "reshards", &texts)) {
            if let Some(failure) = found.failure {
                failures += 1;
                println!("{name}: Shardy fails: {failure}");
                continue;
            }
            for (i, case) in cases.iter().enumerate() {
                let own = found.operations.iter().filter(|op| op.label == Some(i) && op.name != "sdy.reshard");
                let (ours, theirs) = (ours(mesh, case), own.map(|op| theirs(mesh, op)).collect::<Vec<_>>());
                total += 1;
                steps += theirs.len();
                agreed += usize::from(ours == theirs);
                if ours != theirs {
                    let (from, to) = (case.from.text(mesh), case.to.text(mesh));
                    let (ours, theirs) = (ours.join("\n    "), theirs.join("\n    "));
                    shown.push(format!(
                        "{mesh} {:?} {from} -> {to}\n  ours\n    {ours}\n  Shardy\n    {theirs}",
                        case.shape
                    ));
                }
            }
        }
        println!("{name}: agreement: {agreed} of {total} reshards, {steps} steps; Shardy failed on {failures} modules");
        // Where sizes do not divide each other, parts of axes may go another way.
        assert!(agreed * 1000 >= total * 995, "{}", shown[..shown.len().min(6)].join("\n"));
    }
}
