//! The examples run on every device; they assert their own results.
#![allow(dead_code, clippy::duplicate_mod, reason = "each is a program of its own")]
use crate::support::clients;
use pallas_rt::Client;

#[path = "../../examples/add.rs"]
mod add;
#[path = "../../examples/attention_zoo.rs"]
mod attention_zoo;
#[cfg(feature = "graph")]
#[path = "../../examples/audit.rs"]
mod audit;
#[path = "../../examples/decode.rs"]
mod decode;
#[cfg(feature = "graph")]
#[path = "../../examples/encode_sentences/model.rs"]
mod encode_sentences;
#[path = "../../examples/gather.rs"]
mod gather;
#[cfg(feature = "graph")]
#[path = "../../examples/inspect.rs"]
mod inspect;
#[path = "../../examples/matmul_epilogue.rs"]
mod matmul_epilogue;
#[cfg(feature = "graph")]
#[path = "../../examples/mesh_shapes.rs"]
mod mesh_shapes;
#[cfg(feature = "graph")]
#[path = "../../examples/newton.rs"]
mod newton;
#[cfg(feature = "graph")]
#[path = "../../examples/per_example_gradients.rs"]
mod per_example_gradients;
#[cfg(feature = "graph")]
#[path = "../../examples/priority.rs"]
mod priority;
#[path = "../../examples/ragged_softmax.rs"]
mod ragged_softmax;
#[cfg(feature = "graph")]
#[path = "../../examples/recipes/main.rs"]
mod recipes;
#[cfg(feature = "graph")]
#[path = "../../examples/retrace.rs"]
mod retrace;
#[cfg(feature = "graph")]
#[path = "../../examples/rnn_scan.rs"]
mod rnn_scan;
#[cfg(feature = "graph")]
#[path = "../../examples/sample.rs"]
mod sample;
#[path = "../../examples/state_space.rs"]
mod state_space;
#[cfg(feature = "graph")]
#[path = "../../examples/tensor_parallel.rs"]
mod tensor_parallel;
#[cfg(feature = "graph")]
#[path = "../../examples/train_and_evaluate.rs"]
mod train_and_evaluate;
#[cfg(feature = "graph")]
#[path = "../../examples/train_digits/model.rs"]
mod train_digits;
#[path = "../../examples/usage/mod.rs"]
mod usage;
#[path = "../../examples/wrong_kernel.rs"]
mod wrong_kernel;

#[test]
fn examples_run_on_every_device() {
    for client in clients() {
        let simple = [add::run, gather::run, matmul_epilogue::run, ragged_softmax::run];
        for run in simple.into_iter().chain([decode::run, state_space::run, wrong_kernel::run]) {
            run(&client).unwrap_or_else(|e| panic!("{client:?}: {e}"));
        }
    }
}

/// The source of each example by name, with the options that it takes.
fn sources() -> Vec<(String, String, Vec<String>)> {
    let manifest = include_str!("../../examples/Cargo.toml");
    let paths = manifest.lines().filter_map(|line| line.strip_prefix("path = \"")?.strip_suffix('"'));
    let read = |path: &str| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
        let source = std::fs::read_to_string(format!("{folder}/{path}")).unwrap_or_else(|e| panic!("{path}: {e}"));
        let call = "    usage::read(include_str!(\"";
        let (_, rest) = source.split_once(call).unwrap_or_else(|| panic!("{path} does not read its arguments"));
        let (options, _) = rest.split_once(");").expect("the end of the call");
        let options: Vec<String> = options.split('"').filter(|part| part.starts_with("--")).map(String::from).collect();
        (path.trim_end_matches("/main.rs").trim_end_matches(".rs").to_string(), source, options)
    };
    paths.map(read).collect()
}

/// `--help` is answered by all, options are on their pages, and those that the README says to run on a device do so.
#[test]
fn examples_say_what_they_take() {
    let readme = include_str!("../../README.md");
    let listed = |after: &str| {
        let (_, rest) = readme.split_once(after).expect("the README lists examples");
        let rows = rest.trim_start().lines().take_while(|line| line.starts_with('|')).map(String::from);
        rows.collect::<Vec<_>>().join("\n")
    };
    let on_devices = listed("On `--device cpu|gpu|interpret`:\n");
    let on_meshes = listed("On meshes of virtual devices of the CPU:\n");
    let all = sources();
    assert!(all.len() > 20, "{}", all.len());
    for (name, source, options) in all {
        let own: Vec<&str> = options.iter().map(String::as_str).collect();
        let answer = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(ToString::to_string).collect();
            usage::answer(&source, &own, &args)
        };
        let page = answer(&["--help"]).and_then(|page| page.ok()).unwrap_or_else(|| panic!("{name} has no page"));
        assert!(page.contains(&format!("--example {name}")), "{name}: {page}");
        assert!(own.iter().all(|option| page.contains(option)), "{name} takes {own:?}: {page}");
        assert_eq!(own.contains(&"--device"), source.contains("device::client()"), "{name}");
        let row = format!("[`{name}`]");
        assert!(!on_devices.contains(&row) || own.contains(&"--device"), "{name} has no `--device`");
        assert!(!on_meshes.contains(&row) || !own.contains(&"--device"), "{name} has `--device`");
        assert!(answer(&[]).is_none() && answer(&own).is_none(), "{name} does not run");
        let wrong = answer(&["--no-such-option"]).and_then(|answer| answer.err()).unwrap_or_default();
        assert!(wrong.contains("unknown option `--no-such-option`"), "{name}: {wrong}");
    }
}

/// Not on a GPU: a shader for each option takes its driver long, and those are tested elsewhere.
#[test]
fn the_zoo_is_right() {
    for client in [Client::interpreter(), Client::cpu()] {
        attention_zoo::run(&client).unwrap_or_else(|e| panic!("{client:?}: {e}"));
    }
}

/// The losses of two epochs, as `examples/train_digits/reference.py` computes them with JAX.
#[cfg(feature = "graph")]
#[test]
fn digits_are_learnt_as_in_jax() {
    let text = include_str!("../../examples/data/train_digits_jax.txt");
    let expected: Vec<f32> = text.lines().map(|line| line.parse().expect("a number")).collect();
    let digits = train_digits::Digits::load();
    for client in clients() {
        let mut trainer = train_digits::Trainer::new(&client, &digits);
        trainer.restart(1).unwrap_or_else(|e| panic!("{client:?}: {e}"));
        // The interpreter and software adapters take their time.
        let steps = if client.kind() == pallas_rt::DeviceKind::Cpu { [usize::MAX; 2].to_vec() } else { vec![2] };
        let epoch = |&most| trainer.epoch(most).unwrap_or_else(|e| panic!("{client:?}: {e}"));
        let losses: Vec<f32> = steps.iter().flat_map(epoch).collect();
        for (i, (found, expected)) in losses.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() < 1e-4, "{client:?}, step {i}: {found}, in JAX {expected}");
        }
        assert!(losses.len() == expected.len() || losses.len() == 2, "{} losses", losses.len());
    }
}

/// They compare their results with JAX's, which `examples/reference.py` has written.
#[cfg(feature = "graph")]
#[test]
fn examples_of_functions_compute_what_jax_computes() {
    let client = Client::cpu();
    for run in [newton::run, per_example_gradients::run, rnn_scan::run, sample::run] {
        run(&client).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// Each recipe has the exchanges that it says, and the numbers of one device.
#[cfg(feature = "graph")]
#[test]
fn recipes_exchange_what_they_say() {
    for (name, run) in recipes::RECIPES {
        assert!(run().unwrap_or_else(|e| panic!("{name}: {e}")), "{name}");
    }
}

/// Metrics with receipts, one trace each, and equal declarations.
#[cfg(feature = "graph")]
#[test]
fn digits_are_learned_on_eight_devices() {
    assert!(train_and_evaluate::run(2, 0.8).unwrap_or_else(|e| panic!("{e}")));
}

/// One exchange, and the numbers of one device.
#[cfg(feature = "graph")]
#[test]
fn a_perceptron_runs_on_eight_devices() {
    assert!(tensor_parallel::run(true).unwrap_or_else(|e| panic!("{e}")));
}

/// The exchanges of a block on meshes of 64 devices, and its numbers on eight.
#[cfg(feature = "graph")]
#[test]
fn a_transformer_is_planned_on_several_meshes() {
    assert!(mesh_shapes::run(None).unwrap_or_else(|e| panic!("{e}")));
}

/// The examples about decisions, audits and traces hold their own answers.
#[cfg(feature = "graph")]
#[test]
fn annotations_are_what_they_seem() {
    for run in [audit::run, priority::run, retrace::run] {
        assert!(run().unwrap_or_else(|e| panic!("{e}")));
    }
}

/// A call launches what its plan says, which the example checks, and the times of each launch are in its file.
#[cfg(feature = "graph")]
#[test]
fn a_plan_is_what_runs() {
    let file = std::env::temp_dir().join(format!("pallas_inspect_{}.json", std::process::id()));
    let plan = inspect::run(&Client::cpu(), &file).unwrap_or_else(|e| panic!("{e}"));
    let text = std::fs::read_to_string(&file).expect("the example wrote it");
    let trace: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let spans = trace["traceEvents"].as_array().expect("spans");
    let steps = plan.lines().take_while(|line| !line.is_empty()).filter(|line| line.contains(" = ")).count();
    let launches = spans.iter().filter(|span| span["cat"] == "launch").count();
    assert!(steps >= 3 && launches == steps && plan.contains("kernel "), "{steps} {launches}\n{plan}");
    std::fs::remove_file(&file).expect("it was there");
}

/// On the native CPU backend: the interpreter takes minutes for it.
#[cfg(feature = "graph")]
#[test]
fn sentences_are_encoded_as_in_float64() {
    let Some(folder) = encode_sentences::folder() else {
        let required = std::env::var_os("PALLAS_REQUIRE_MODEL").is_some();
        assert!(!required, "PALLAS_REQUIRE_MODEL is set: PALLAS_MODEL_DIR must name the folder of the model");
        return eprintln!("left out: PALLAS_MODEL_DIR names no folder of the model");
    };
    let model = encode_sentences::Model::load(&Client::cpu(), &folder).expect("a model");
    let difference = encode_sentences::Expected::load().difference(&model).expect("embeddings");
    assert!(difference < 1e-4, "the largest difference is {difference}");
}

/// The pieces that the package `tokenizers` 0.22 cuts these texts into, with the model's own vocabulary.
#[cfg(feature = "graph")]
#[test]
fn text_is_cut_into_word_pieces() {
    let known = "cr ##eme br ##ule ##e , s ' il vo ##us pl ##ai ##t ! c b don t re - implement mat ##mu ##l ( ) … 東 京 is 12 5 % \
        bigger — “ really ” ? € ##5 ÷ 2 = £2 . 50 ½ α ##θ ##η ##ν ##α st ##raße istanbul em ##oj ##i x naive coop tab and ##ther here";
    let pieces: Vec<&str> = ["[UNK]", "[CLS]", "[SEP]"].into_iter().chain(known.split_whitespace()).collect();
    let vocabulary = encode_sentences::words::Vocabulary::from_lines(&pieces.join("\n"));
    for (text, expected) in [
        ("Crème brûlée, s'il vous plaît!", "cr ##eme br ##ule ##e , s ' il vo ##us pl ##ai ##t !"),
        ("don't re-implement matmul()…", "don ' t re - implement mat ##mu ##l ( ) …"),
        ("東京 is 12,5% bigger — “really”?", "東 京 is 12 , 5 % bigger — “ really ” ?"),
        ("tab\there\u{a0}and\u{200b}there", "tab here and ##ther ##e"),
        ("€5 ÷ 2 = £2.50 ½", "€ ##5 ÷ 2 = £2 . 50 ½"),
        ("ΑΘΗΝΑ Straße İstanbul", "α ##θ ##η ##ν ##α st ##raße istanbul"),
        ("emoji 🙂 x", "em ##oj ##i [UNK] x"),
        (&"x".repeat(101), "[UNK]"),
        ("", ""),
        ("naïve\0 \u{fffd} co\u{ad}op", "naive coop"),
    ] {
        let found: Vec<&str> = vocabulary.encode(text, 512).iter().map(|&id| pieces[id as usize]).collect();
        let expected: Vec<&str> = ["[CLS]"].into_iter().chain(expected.split_whitespace()).chain(["[SEP]"]).collect();
        assert_eq!(found, expected, "{text}");
    }
    assert_eq!(vocabulary.encode("is 12 is 12 is 12", 4).len(), 4);
}
