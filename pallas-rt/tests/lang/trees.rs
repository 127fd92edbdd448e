//! Trees of arrays: leaves, paths, structures, and what differs between two of them.
use pallas_rt::prelude::*;
use pallas_rt::tree::{self, Structure};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A scalar array.
fn leaf(x: f32) -> Array {
    Client::cpu().array(&[x], &[]).expect("it fits")
}

/// The values of a tree of scalars.
fn values<T: Tree>(tree: &T) -> Vec<f32> {
    tree::leaves(tree).iter().map(|x| x.to_vec::<f32>().expect("it is f32")[0]).collect()
}

fn text<T: Tree>(tree: &T) -> String {
    tree::structure(tree).to_string()
}

#[derive(Clone, Tree)]
struct Dense {
    weight: Array,
    #[tree(fixed)]
    stride: [usize; 2],
    bias: Option<Array>,
}

#[derive(Clone, Tree)]
enum Layer {
    Dense(Dense),
    Norm { gain: Array, r#type: Box<Array> },
    Scaled(#[tree(fixed)] &'static str, Array, #[tree(fixed)] u8),
    Relu,
}

#[derive(Clone, Tree)]
struct Model {
    layers: Vec<Layer>,
    pair: (Array, [Array; 2]),
    heads: BTreeMap<String, Dense>,
    unit: (),
    last: (Array,),
}

/// Parameters that are trees, fixed, or both.
#[derive(Clone, Tree)]
struct Generic<'a, T, F, B, const N: usize>
where
    F: PartialEq,
{
    items: [T; N],
    #[tree(fixed)]
    options: (F, &'a str),
    both: B,
    #[tree(fixed)]
    again: Option<B>,
}

#[derive(Clone, Tree)]
struct Unit;

#[derive(Clone, Tree)]
enum Never {}

#[derive(Clone, Tree)]
#[tree(crate = ::pallas_rt)]
struct Renamed(Array, Option<Never>);

fn dense(from: f32) -> Dense {
    Dense { weight: leaf(from), stride: [2, 1], bias: Some(leaf(from + 1.0)) }
}

fn model() -> Model {
    Model {
        layers: vec![
            Layer::Dense(dense(0.0)),
            Layer::Relu,
            Layer::Norm { gain: leaf(2.0), r#type: Box::new(leaf(3.0)) },
            Layer::Scaled("half", leaf(4.0), 7),
        ],
        pair: (leaf(5.0), [leaf(6.0), leaf(7.0)]),
        heads: [("z", 10.0), ("a", 8.0)].map(|(key, from)| (key.to_string(), dense(from))).into(),
        unit: (),
        last: (leaf(12.0),),
    }
}

#[test]
fn leaves_are_in_order_and_have_paths() {
    let model = model();
    assert_eq!(values(&model), (0..13).map(|i| i as f32).collect::<Vec<f32>>());
    let paths = [
        "layers[0].0.weight",
        "layers[0].0.bias",
        "layers[2].gain",
        "layers[2].type",
        "layers[3].1",
        "pair.0",
        "pair.1[0]",
        "pair.1[1]",
        "heads[\"a\"].weight",
        "heads[\"a\"].bias",
        "heads[\"z\"].weight",
        "heads[\"z\"].bias",
        "last.0",
    ];
    assert_eq!(tree::paths(&model), paths);
    assert_eq!(tree::paths(&leaf(1.0)), [""]);
    assert_eq!(tree::paths(&vec![(leaf(1.0), leaf(2.0))]), ["[0].0", "[0].1"]);
    assert_eq!(tree::paths(&((), None::<Array>, Unit)), [""; 0]);
    assert_eq!(tree::leaves(&model)[0].buffer().map(|b| b.as_ptr()), leaf_pointer(&model), "leaves share memory");
}

fn leaf_pointer(model: &Model) -> Result<*const u8> {
    match &model.layers[0] {
        Layer::Dense(dense) => dense.weight.buffer().map(|b| b.as_ptr()),
        Layer::Norm { .. } | Layer::Scaled(..) | Layer::Relu => unreachable!("the first layer is dense"),
    }
}

#[test]
fn structures_print() {
    let dense = |bias: &str| format!("Dense {{ stride = [2, 1], weight: *, bias: {bias} }}");
    let (whole, none) = (dense("*"), dense("None"));
    let expected = format!(
        "Model {{ layers: [Layer::Dense({whole}), Layer::Relu, Layer::Norm {{ gain: *, type: * }}, \
         Layer::Scaled(0 = \"half\", 2 = 7, *)], pair: (*, [*, *]), heads: {{\"a\": {none}, \"z\": {whole}}}, \
         unit: (), last: (*,) }}"
    );
    let mut model = model();
    model.heads.get_mut("a").expect("it was inserted").bias = None;
    assert_eq!(text(&model), expected);
    assert_eq!(format!("{:?}", tree::structure(&model)), expected);
    assert_eq!(tree::structure(&model).leaves(), 12);
    assert_eq!(text(&(leaf(1.0), Unit, None::<Array>, Vec::<Array>::new())), "(*, Unit, None, [])");
    assert_eq!(text(&Renamed(leaf(1.0), None)), "Renamed(*, None)");
    assert_eq!(Structure::default().to_string(), "");
    let name = String::from("half");
    let generic = Generic { items: [leaf(1.0), leaf(2.0)], options: (3, &name[..]), both: (), again: Some(()) };
    assert_eq!(text(&generic), "Generic { options = (3, \"half\"), again = Some(()), items: [*, *], both: () }");
}

#[test]
fn a_tree_is_rebuilt_from_its_leaves() {
    let model = model();
    let (leaves, structure) = tree::flatten(&model);
    let same = tree::rebuild(&model, leaves.clone()).expect("as many leaves");
    assert_eq!((values(&same), tree::structure(&same)), (values(&model), structure.clone()));
    let reversed = tree::rebuild(&model, leaves.iter().rev().cloned()).expect("as many leaves");
    assert_eq!(values(&reversed), (0..13).rev().map(|i| i as f32).collect::<Vec<f32>>());
    assert!(structure.is_of(&reversed));

    let mut own = model.clone();
    for count in [0, 12, 14] {
        let others = vec![leaf(0.5); count];
        let error = tree::rebuild(&model, others.clone()).map(drop).expect_err("other number of leaves");
        let (line, text) = (line!() - 1, error.to_string());
        assert!(error.code() == "tree" && text.starts_with(&format!("{}:{line}:", file!())), "{text}");
        assert!(text.ends_with(&format!(": the tree has 13 leaves, {count} were given")), "{text}");
        assert!(tree::replace(&mut own, others).is_err());
        assert_eq!(values(&own), values(&model), "it keeps its own");
    }
    tree::replace(&mut own, vec![leaf(0.5); 13]).expect("as many leaves");
    assert_eq!(values(&own), [0.5; 13]);
}

/// Trees of one type whose structures differ, and the place and words of the difference.
fn differ<T: Tree>(a: &T, b: &T, words: &str) {
    let [x, y] = [a, b].map(tree::structure);
    assert_ne!(x, y, "{words}");
    assert_eq!(HashSet::from([x.clone(), y.clone(), x.clone()]).len(), 2);
    assert!(x.is_of(a) && !x.is_of(b) && y.is_of(b) && !y.is_of(a));
    let error = |result: Result<T>| {
        let text = result.map(drop).expect_err("the structures differ").to_string();
        let (line, words) = text.split_once(": ").expect("a line before the words");
        assert!(line.starts_with(&format!("{}:", file!())), "{text}");
        words.to_string()
    };
    let expected = |name: &str| format!("the trees differ at {}", words.replace("OTHER", name));
    assert_eq!(error(tree::map2(a, b, |x, _| Ok(x.clone()))), expected("second"));
    assert_eq!(error(tree::map3(a, b, b, |x, _, _| Ok(x.clone()))), expected("second"));
    assert_eq!(error(tree::map3(a, a, b, |x, _, _| Ok(x.clone()))), expected("third"));
}

#[test]
fn structures_differ_in_everything_but_the_leaves() {
    let changed = |change: &dyn Fn(&mut Model), words: &str| {
        let mut other = model();
        change(&mut other);
        differ(&model(), &other, words);
    };
    changed(&|m| m.layers[1] = Layer::Scaled("one", leaf(1.0), 0), {
        "`layers[1]`: the first has `Layer::Relu`, the OTHER `Layer::Scaled` with 0 = \"one\", 2 = 0"
    });
    changed(&|m| m.layers[3] = Layer::Scaled("half", leaf(1.0), 8), {
        "`layers[3]`: the first has `Layer::Scaled` with 0 = \"half\", 2 = 7, the OTHER `Layer::Scaled` with \
         0 = \"half\", 2 = 8"
    });
    changed(&|m| m.layers.truncate(2), "`layers`: the first has a list of 4, the OTHER a list of 2");
    changed(&|m| m.layers[0] = Layer::Dense(Dense { bias: None, ..dense(0.0) }), {
        "`layers[0].0.bias`: the first has `Some`, the OTHER `None`"
    });
    changed(&|m| m.layers[0] = Layer::Dense(Dense { stride: [1, 2], ..dense(0.0) }), {
        "`layers[0].0`: the first has `Dense` with stride = [2, 1], the OTHER `Dense` with stride = [1, 2]"
    });
    changed(&|m| drop(m.heads.remove("z")), {
        "`heads`: the first has a map with the keys [\"a\", \"z\"], the OTHER a map with the keys [\"a\"]"
    });
    let renamed = |m: &mut Model| {
        let z = m.heads.remove("z").expect("it was inserted");
        m.heads.insert("y".into(), z);
    };
    changed(
        &renamed,
        "`heads`: the first has a map with the keys [\"a\", \"z\"], the OTHER a map with the keys [\"a\", \"y\"]",
    );
    differ(&vec![leaf(1.0)], &vec![], "the root: the first has a list of 1, the OTHER a list of 0");
    differ(&None, &Some((leaf(1.0), leaf(2.0))), "the root: the first has `None`, the OTHER `Some`");
    differ(&None, &Some(None::<Array>), "the root: the first has `None`, the OTHER `Some`");
    assert_eq!(text(&Some(Some(None::<Array>))), "Some(Some(None))");
    assert_eq!(text(&(Some(leaf(1.0)), Some(()))), "(*, ())");
    // Keys and values that are one text when they are joined.
    let keys = |keys: [&str; 2]| BTreeMap::from(keys.map(|key| (key.to_string(), leaf(1.0))));
    differ(&keys(["a", "bc"]), &keys(["ab", "c"]), {
        "the root: the first has a map with the keys [\"a\", \"bc\"], the OTHER a map with the keys [\"ab\", \"c\"]"
    });
    #[derive(Clone, Tree)]
    struct Texts(#[tree(fixed)] &'static str, #[tree(fixed)] &'static str);
    differ(&Texts("a", "bc"), &Texts("ab", "c"), {
        "the root: the first has `Texts` with 0 = \"a\", 1 = \"bc\", the OTHER `Texts` with 0 = \"ab\", 1 = \"c\""
    });
}

#[test]
fn types_of_one_name_have_structures_of_their_own() {
    let other = {
        #[derive(Clone, Tree)]
        struct Renamed(Array, Option<Never>);
        tree::structure(&Renamed(leaf(1.0), None))
    };
    let own = tree::structure(&Renamed(leaf(1.0), None));
    assert_eq!(own.to_string(), other.to_string());
    assert_ne!(own, other);
}

#[test]
fn maps_are_in_the_order_of_their_keys() {
    let keys = ["b", "a", "d", "c"];
    let entries = || (0..4).map(|i| (keys[i].to_string(), leaf(i as f32)));
    let hashed = entries().collect::<HashMap<String, Array>>();
    let ordered = entries().rev().collect::<BTreeMap<String, Array>>();
    let other = entries().rev().collect::<HashMap<String, Array>>();
    assert_eq!(values(&hashed), [1.0, 0.0, 3.0, 2.0]);
    assert_eq!(values(&ordered), values(&hashed));
    assert_eq!(tree::paths(&hashed), ["[\"a\"]", "[\"b\"]", "[\"c\"]", "[\"d\"]"]);
    let structures = [tree::structure(&hashed), tree::structure(&other), tree::structure(&ordered)];
    assert!(structures.iter().all(|s| *s == structures[0]), "{structures:?}");
    let numbered = tree::rebuild(&other, (0..4).map(|i| leaf(i as f32))).expect("four leaves");
    assert_eq!((values(&numbered), values(&vec![numbered["d"].clone()])), (vec![0.0, 1.0, 2.0, 3.0], vec![3.0]));
}

#[kernel(grid = (cdiv(N, 8)))]
fn sum(
    #[block([N] => [8], |i| (i,))] x: In<f32>,
    #[block([N] => [8], |i| (i,))] y: In<f32>,
    #[block([N] => [8], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load() + y.load());
}

#[test]
fn maps_over_leaves_return_trees_and_errors() {
    let one = |x: &Array| Ok(x.reshape(&[1]));
    let a = tree::map(&model(), one).expect("one element each");
    let b = tree::map2(&a, &a, |x, y| sum(x, y)).expect("equal structures");
    assert_eq!(values(&b), (0..13).map(|i| 2.0 * i as f32).collect::<Vec<f32>>());
    let c = tree::map3(&a, &b, &a, |x, y, z| sum(sum(x, y)?, z)).expect("equal structures");
    assert_eq!(values(&c), (0..13).map(|i| 4.0 * i as f32).collect::<Vec<f32>>());
    assert!(tree::structure(&model()).is_of(&c));
    let mut calls = 0;
    let error = tree::map(&a, |x| {
        calls += 1;
        let shape = if calls == 3 { [2] } else { [1] };
        x.reshape(&shape).check().cloned()
    });
    assert_eq!((error.map(drop).map_err(|e| e.code()), calls), (Err("reshape"), 3));
    let [a, b, c, d, e, f, g, h] = std::array::from_fn(|i| leaf(i as f32));
    assert_eq!(text(&(a, b, c, d, e, f, g, h)), "(*, *, *, *, *, *, *, *)");
}

#[derive(Clone, Tree)]
struct Chain {
    #[tree(fixed)]
    level: usize,
    before: Array,
    next: Option<Box<Chain>>,
    after: Vec<Array>,
}

fn chain(levels: usize) -> Chain {
    let x = leaf(0.0);
    let link = |level, next| Chain { level, before: x.clone(), next, after: vec![x.clone()] };
    (1..levels).fold(link(0, None), |next, level| link(level, Some(Box::new(next))))
}

#[test]
fn deep_trees_need_no_deep_stack() {
    const LEVELS: usize = 10_000;
    let run = || {
        let mut chain = chain(LEVELS);
        let (leaves, structure) = tree::flatten(&chain);
        assert_eq!((leaves.len(), structure.leaves()), (2 * LEVELS, 2 * LEVELS));
        assert!(structure.to_string().starts_with("Chain { level = 9999, before: *, next: Chain { level = 9998, "));
        assert!(structure.to_string().ends_with(", after: [*] }"));
        tree::replace(&mut chain, (0..leaves.len()).map(|i| leaf(i as f32))).expect("as many leaves");
        assert_eq!(values(&chain), (0..leaves.len()).map(|i| i as f32).collect::<Vec<f32>>());
        let sizes = tree::map(&chain, |x| Ok(x.reshape(&[1]))).expect("one element each");
        assert_eq!(tree::structure(&sizes), structure);
        let mut deepest = &mut chain;
        while deepest.next.is_some() {
            deepest = deepest.next.as_mut().expect("it was looked at");
        }
        deepest.after.clear();
        let error = tree::map2(&chain, &sizes, |x, _| Ok(x.clone())).map(drop).expect_err("a leaf less").to_string();
        assert!(error.contains("next.next.after`: the first has a list of 0, the second a list of 1"));
    };
    // All paths of such a tree are too long.
    let paths = tree::paths(&chain(100));
    assert_eq!((paths[1].as_str(), paths[198].as_str()), ("next.before", "next.after[0]"));
    assert_eq!(paths[100], format!("{}after[0]", "next.".repeat(99)));
    // The clone and the drop that are derived for the chain recurse; walks of its tree must not.
    let thread = std::thread::Builder::new().stack_size(4 << 20).spawn(run);
    thread.expect("a thread").join().expect("the stack is large enough");
}
