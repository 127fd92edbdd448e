//! Pictures as text, against JAX's, and as SVG.
use super::draw::Dice;
use super::{Case, ask, drawn, mesh, python};
use crate::markup::tests::check_markup;
use crate::prelude::*;
use crate::sharding::show::PALETTE;
use crate::sharding::{
    Mesh, NamedSharding, P, Picture, Sharding, TextStyle, device_put, sub_axis, to_hlo_sharding,
    visualize_array_sharding, visualize_sharding,
};
use pallas_ir::Loc;
use serde_json::json;

/// A character with its ink and its background.
type Inked = (char, String);

/// The characters of a text with escape sequences of colours, line by line without blanks at the end.
fn inked(text: &str) -> Vec<Vec<Inked>> {
    let (mut lines, mut line, mut codes) = (vec![], vec![], String::new());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' => {
                let code: String = rest.by_ref().take_while(|&c| c != 'm').collect();
                codes = if code == "[0" { String::new() } else { code };
            }
            '\n' => lines.push(std::mem::take(&mut line)),
            c => line.push((c, codes.clone())),
        }
    }
    lines.push(line);
    for line in &mut lines {
        while line.last().is_some_and(|(c, codes): &Inked| *c == ' ' && codes.is_empty()) {
            line.pop();
        }
    }
    while lines.last().is_some_and(Vec::is_empty) {
        lines.pop();
    }
    lines
}

fn sharding(case: &Case) -> Sharding {
    case.sharding().sharding_of_shape(&case.shape, Loc::NONE).expect("it fits")
}

/// Tables of arrays with one and two dimensions have JAX's text, and its colours.
#[test]
fn tables_are_those_of_jax() {
    let Some(python) = python() else { return };
    let mut dice = Dice(5);
    let mut cases: Vec<(Case, bool)> = vec![];
    while cases.len() < 200 {
        let Some(mut case) = drawn(&mut dice, "") else { continue };
        if !(1..=2).contains(&case.shape.len()) {
            continue;
        }
        case.shape.iter_mut().for_each(|n| *n *= 1 + dice.below(12));
        let color = dice.chance(50);
        cases.push((case, color));
    }
    let palette: Vec<[u8; 3]> = PALETTE.map(|rgb| rgb.to_be_bytes()).map(|[_, r, g, b]| [r, g, b]).to_vec();
    let questions = cases.iter().map(|(case, color)| {
        let mut question = case.json("picture");
        question["color"] = json!(color);
        question["palette"] = json!(palette);
        question
    });
    let answers = ask(&python, questions);
    let mut compared = [0, 0];
    for ((case, color), answer) in cases.iter().zip(&answers) {
        let theirs = inked(answer["text"].as_str().unwrap_or_else(|| panic!("{case:?}: {answer}")));
        // JAX's text disappears from tables that are too wide.
        if theirs.iter().any(|line| line.len() >= 79) {
            continue;
        }
        let picture = Picture::new(&case.mesh(), &sharding(case), &case.shape).expect("it fits");
        let ours = picture.to_jax_text(&TextStyle { color: *color, ..TextStyle::default() });
        // Without colours for cells, JAX has one for numbers.
        let plain = |lines: Vec<Vec<Inked>>| -> Vec<Vec<Inked>> {
            let of = |line: Vec<Inked>| line.into_iter().map(|(c, ink)| (c, if *color { ink } else { String::new() }));
            lines.into_iter().map(|line| of(line).collect()).collect()
        };
        assert!(inked(&ours) == plain(theirs), "{case:?}\n{ours}\n{}", answer["text"].as_str().expect("a text"));
        compared[usize::from(*color)] += 1;
    }
    assert!(compared.iter().all(|&n| n > 50), "{compared:?}");
}

/// XLA's text is JAX's, and reading it back gives the same picture, for devices in any order and parts of axes as well.
#[test]
fn texts_of_xla_are_read_back() {
    let mut dice = Dice(6);
    let cases: Vec<Case> = (0..300).filter_map(|_| drawn(&mut dice, "")).collect();
    for case in &cases {
        let (mesh, sharding) = (case.mesh(), sharding(case));
        let text = to_hlo_sharding(&mesh, &sharding);
        let read = Picture::of_hlo(&text, mesh.device_count()).unwrap_or_else(|diag| panic!("{case:?}: {diag}"));
        let whole = Picture::without_shape(&mesh, &sharding);
        if text == "{replicated}" {
            assert_eq!(read.cells, whole.cells, "{case:?}");
        } else {
            assert_eq!(read, whole, "{text} {case:?}");
        }
    }
    let mesh = mesh(&[("data", 2), ("model", 8)]);
    let parts = NamedSharding::new(&mesh, P((sub_axis("model", 2, 2), (0, sub_axis("model", 4, 2)))));
    let parts = parts.sharding_of_shape(&[8, 8], Loc::NONE).expect("it fits");
    let text = to_hlo_sharding(&mesh, &parts);
    assert_eq!(text, "{devices=[2,4,2]<=[2,2,2,2]T(2,0,3,1) last_tile_dim_replicate}");
    assert_eq!(Picture::of_hlo(&text, 16).expect("a sharding"), Picture::without_shape(&mesh, &parts));
    let sums = Sharding { unreduced: vec![mesh.axis(1)], ..Sharding::closed([vec![mesh.axis(0)]]) };
    let text = to_hlo_sharding(&mesh, &sums);
    assert_eq!(text, "{devices=[2,8]<=[16] last_tile_dims={unreduced}}");
    assert!(
        Picture::of_hlo(&text, 16).expect("a sharding").to_string().ends_with("parts of a sum along its last tiles\n")
    );
    let Some(python) = python() else { return };
    let answers = ask(&python, cases.iter().map(|case| case.json("place")));
    for (case, answer) in cases.iter().zip(&answers) {
        let axes: Vec<(&str, usize)> = case.mesh.iter().map(|(name, size)| (&name[..], *size)).collect();
        // JAX writes positions in the mesh.
        let positions = Mesh::new(&axes).expect("a mesh");
        assert_eq!(to_hlo_sharding(&positions, &sharding(case)), answer["hlo"].as_str().expect("a text"), "{case:?}");
    }
}

#[test]
fn texts_that_are_no_sharding_of_xla() {
    let texts = [
        ("", "it is not in braces"),
        ("{manual}", "it has no devices"),
        ("{devices=[2,2}", "its list of tiles has no end"),
        ("{devices=[2,2]0,1,2}", "3 devices for 4 tiles"),
        ("{devices=[2,2]0,1,2,2}", "device 2 is in two tiles"),
        ("{devices=[2,x]0,1}", "`x` is no number"),
        ("{devices=[0]}", "it has no tile, or more than 2^24"),
        ("{devices=[99999999999,99999999999,99999999999]<=[8]}", "it has no tile, or more than 2^24"),
        ("{devices=[2,2]<=[3]}", "an iota of [3] for 4 tiles"),
        ("{devices=[2,2]<=[2,2]T(0,0)}", "[0, 0] is no order of 2 axes"),
        ("{devices=[2,2]<=[2,2]T(0}", "its iota is followed by something else"),
        ("{devices=[2]<=[2", "it is not in braces"),
        ("{devices=[2]<=[2] last_tile_dims={manual}}", "`manual` tiles are shown by nothing here"),
        ("{devices=[2]<=[2] last_tile_dims={replicated, unreduced}}", "more names of last tiles than tiles"),
        ("{maximal device=x}", "its device is no number"),
    ];
    for (text, part) in texts {
        let found = Picture::of_hlo(text, 4).expect_err(text).to_string();
        assert!(found.contains(part), "{text}: {found}");
    }
}

/// Tables as PyTorch/XLA prints them.
#[test]
fn tables_of_pytorch() {
    let style = TextStyle { color: false, platform: "TPU".into(), ..TextStyle::default() };
    let text = |hlo: &str| Picture::of_hlo(hlo, 4).expect(hlo).to_xla_text(&style);
    let tiled = "\
┌───────┬───────┐
│       │       │
│       │       │
│ TPU 0 │ TPU 2 │
│       │       │
│       │       │
├───────┼───────┤
│       │       │
│       │       │
│ TPU 1 │ TPU 3 │
│       │       │
│       │       │
└───────┴───────┘
";
    assert_eq!(text("{devices=[2,2]0,2,1,3}"), tiled);
    assert_eq!(text("{devices=[2,2]<=[2,2]T(1,0)}"), tiled);
    let replicated = "\
┌────────────────┐
│TPU [0, 1, 2, 3]│
│                │
└────────────────┘
";
    assert_eq!(text("{replicated}"), replicated);
    assert_eq!(text("{maximal device=3}").lines().nth(1), Some("│ TPU 3 │"));
    let wide = text("{devices=[2,4]<=[8]}");
    assert_eq!(wide.lines().nth(3), Some("│     TPU 0      │     TPU 1      │     TPU 2      │     TPU 3      │"));
    // A vector is a row.
    assert_eq!(text("{devices=[4]3,2,1,0}").lines().count(), 4);
}

/// Every rank, extents that axes do not divide, no elements, and more devices than a table shows.
#[test]
fn pictures_of_all_kinds() {
    let plain = TextStyle { color: false, ..TextStyle::default() };
    let mesh = mesh(&[("a", 2), ("b", 3), ("c", 2)]);
    let of = |axes: &[Option<usize>], shape: &[usize]| {
        let axes = axes.iter().map(|axis| axis.iter().map(|&axis| mesh.axis(axis)).collect::<Vec<_>>());
        let picture = Picture::new(&mesh, &Sharding::closed(axes), shape).expect("it fits");
        check_markup(&picture.to_svg());
        picture
    };
    assert_eq!(of(&[], &[]).to_string(), "┌──────┐\n│ 0-11 │\n└──────┘\n");
    assert_eq!(of(&[], &[]).to_jax_text(&plain).lines().count(), 11);
    let cube = of(&[Some(0), Some(1), Some(2)], &[4, 5, 2]);
    let expected = "\
[0:2, :, :]
┌───┬───┐
│ 0 │ 1 │
├───┼───┤
│ 2 │ 3 │
├───┼───┤
│ 4 │ 5 │
└───┴───┘
[2:4, :, :]
";
    assert!(cube.to_string().starts_with(expected), "{cube}");
    // Five rows in three blocks, two, two and one, of ten lines with their borders.
    let jax = of(&[Some(1), None], &[5, 5]).to_jax_text(&plain);
    assert_eq!(jax.lines().filter(|line| line.starts_with('│')).count(), 3 + 3 + 1, "{jax}");
    assert_eq!(jax.matches("CPU").count(), 3);
    let svg = of(&[Some(1), None], &[5, 5]).to_svg();
    assert!(svg.contains("[4:5, :]: devices 4,5,10,11"), "{svg}");
    // Two rows in three blocks: the last one has no row; and an array without elements.
    for shape in [[2, 5], [0, 5], [5, 0]] {
        let picture = of(&[Some(1), Some(0)], &shape);
        assert_eq!(picture.to_jax_text(&plain).matches("CPU").count(), 6);
        assert_eq!(picture.to_svg().matches("<rect").count(), 1 + 6);
    }
    let four = of(&[Some(2), Some(0), None, Some(1)], &[2, 2, 7, 6]).to_jax_text(&plain);
    assert_eq!(
        four.lines().filter(|line| line.starts_with('[')).collect::<Vec<_>>(),
        ["[0:1, 0:1, :, :]", "[0:1, 1:2, :, :]", "[1:2, 0:1, :, :]", "[1:2, 1:2, :, :]"]
    );
    let large = super::mesh(&[("x", 64), ("y", 64)]);
    let tiled = Sharding::closed([vec![large.axis(0)], vec![], vec![large.axis(1)]]);
    let picture = Picture::new(&large, &tiled, &[640, 3, 640]).expect("it fits");
    let text = picture.to_string();
    assert!(text.contains("… 49 of 64 tables") && text.lines().count() < 80, "{text}");
    check_markup(&picture.to_svg());
    assert!(picture.to_svg().contains("49 of 64 tables are left out"));
    let columns = Sharding::closed([vec![], vec![large.axis(1)]]);
    let text = visualize_sharding(&large, &columns);
    assert!(text.contains("0,64,128,...,4032 (64 devices)") && text.contains("…"), "{text}");
    let text = Picture::new(&large, &columns, &[8, 6400]).expect("it fits").to_jax_text(&plain);
    assert!(text.lines().all(|line| line.chars().count() < 700), "{text}");
    assert!(Picture::new(&large, &columns, &[8]).is_err());
}

/// Arrays show themselves, in the order of the mesh's devices; those that are traced do not.
#[test]
fn arrays_show_themselves() {
    let mesh = std::sync::Arc::new(Mesh::with_devices(&[("x", 2), ("y", 2)], vec![3, 1, 2, 0]).expect("a mesh"));
    let x = Client::cpu().full(&[4, 4], 1.0f32).expect("it fits");
    let tiled = device_put(&x, &NamedSharding::new(&mesh, P(("x", "y")))).expect("it is placed");
    let numbers = |x: &Array| -> Vec<char> {
        let text = inked(&visualize_array_sharding(x).expect("it has a place"));
        text.concat().into_iter().map(|(c, _)| c).filter(char::is_ascii_digit).collect()
    };
    assert_eq!(numbers(&tiled), ['3', '1', '2', '0']);
    assert_eq!(numbers(&x), ['0']);
    let shape = Client::cpu().shape_dtype(&[4], DType::F32).expect("it fits");
    let text = visualize_array_sharding(&shape).expect_err("it has no place").to_string();
    assert!(text.contains("`partitioned(f)(..)`") && text.contains("pictures.rs"), "{text}");
}
