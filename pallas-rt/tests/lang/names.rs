//! Values are called as the user's variables, from the traced text to the shader.
use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, 4), 3), semantics = (parallel, arbitrary))]
fn centred(
    #[block([N, D] => [4, D], |i, _| (i, 0), fill = 0.0)] x: In<f32>,
    #[block([N, D] => [4, D], |i, _| (i, 0))] out: Out<f32>,
    #[scratch([4, D])] total: Scratch<f32>,
) {
    if program_id(1) == 0 {
        total.fill(0.0);
    }
    let (rows, mean) = (x.load(), x.load().sum(1) * 0.5);
    let mut spread = (rows - mean) * 2.0;
    for _ in 0..program_id(1) + 2 {
        spread = spread * spread;
    }
    // References live on as they would without a name.
    let shape = &[4, D];
    let r#type = spread + full(*shape, 1.0);
    total.store(total.load() + r#type);
    if program_id(1) == num_programs(1) - 1 {
        out.store(total.load());
    }
}

#[test]
fn variables_name_values() {
    let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 5.0, 8.0, 13.0], &[3, 2]).expect("it fits");
    let explanation = explain(|| centred(&x)).expect("it traces");
    let stages = explanation.kernels[0].stages();
    let stage = |name: &str| stages.iter().find(|s| s.0 == name).unwrap_or_else(|| panic!("no stage {name}")).1.clone();
    let named = |text: &str, name: &str, rest: &str| {
        text.lines().any(|l| l.contains(&format!(" {name}: f32[4,")) && l.contains(rest))
    };
    let traced = stage("traced");
    for (name, rest) in [("rows", "load @x"), ("mean", "mul"), ("spread", "mul"), ("spread", "for"), ("type", "add")] {
        assert!(named(&traced, name, rest), "`{name}` of `{rest}` in\n{traced}");
    }
    #[cfg(feature = "wgsl")]
    {
        // Scratch that became values keeps its name.
        let placed = stage("placed");
        assert!(named(&placed, "total", "for") && named(&placed, "type", "add"), "{placed}");
        assert!(stage("placement").contains(" spread (mul)"), "{}", stage("placement"));
        let shader = stage("wgsl");
        for part in ["_rows_0: f32 = ", "_mean_0: f32 = ", "_spread_0", "_type_0: f32 = ", "_total_0"] {
            assert!(shader.contains(part), "`{part}` in\n{shader}");
        }
        // Only functions that are called.
        assert!(!shader.contains("bf16") && !shader.contains("f16_bits"), "{shader}");
    }
    let rows = centred(&x).expect("it runs").to_vec::<f32>().expect("f32");
    assert!(rows.iter().all(|r| r.is_finite()), "{rows:?}");
}
