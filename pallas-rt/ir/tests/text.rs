//! The text form reads back what it printed, and the verifier names what is broken.
use pallas_ir::{Dim, Kernel, Loc, StructuralOp, verify};

/// Uses every construct of the grammar.
const EVERYTHING: &str = r#"kernel everything {
  dim S
  dim D = 64
  grid cdiv(S, 32) parallel
  grid 4 arbitrary
  in x: f32[S, D] block [32, 64] fill -inf
  in w: f16[S] block [element 34 1 1]
  prefetch table: i32[S] block [_]
  param scale: f32[]
  scratch acc: f32[32, 1] block [32, 1]
  out y: f32[S, D] block [32, 64] empty 0.0
  alias @y @x
  map @x (%0: i32[], %1: i32[]) {
    %2: i32[] = prefetch @table %0
    %3: i32[] = add %2, %1
    %4: i32[] = const 0
    yield %3, %4
  }
  map @w (%5: i32[], %6: i32[]) {
    yield %5
  }
  map @y (%7: i32[], %8: i32[]) {
    yield %7, %8
  }
  body {
    %9: f32[32,64] = load @x block[0:32, 0:64]
    %10: f32[] = param @scale
    %11: f32[32,64] = mul %9, %10
    %12: i32[] = program_id axis(1)
    %13: i32[] = num_programs axis(0)
    %14: i32[] = extent S
    %15: i32[] = const 3
    %16 most: f32[32,1] = reduce op(maximum) axes(1) %11
    %17: bool[] = lt %12, %15
    %18: f32[32,1] = if %17 {
      %19: f32[32,1] = exp %16
      yield %19
    } else {
      yield %16
    }
    %20: f32[32,1] = for reverse %12, %14, %15, %18 (%21: i32[], %22 most: f32[32,1]) {
      %23: f32[64] = load @x block[dyn + 1:1 drop, 0:64] %21
      %24: bool[64] = is_nan %23
      debug_assert "no \"nan\"" %24
      %25: f32[32,1] = neg %22
      yield %25
    }
    %26: f32[32,1] = while %20 (%27: f32[32,1]) {
      %28: f32[] = reshape to() %10
      %29: bool[] = gt %28, %10
      yield %29, %27
    } (%30: f32[32,1]) {
      yield %30
    }
    %31: bool[32,1] = valid @x block[0:32, 0:64] axis(0)
    store @acc block[0:32, 0:1] mask %26, %31
    debug_print "row" %26
    %32: f32[16,64] = load @x block[0:16:2, 0:64] mask %33, %10
  }
}
"#;

fn everything() -> String {
    // The last load needs its mask before it.
    EVERYTHING.replace(
        "    %32: f32[16,64] = load @x block[0:16:2, 0:64] mask %33, %10\n",
        "    %32: bool[16,64] = broadcast to(16, 64) %17\n    %33: f32[16,64] = load @x block[0:16:2, 0:64] mask %32, %10\n",
    )
}

#[test]
fn text_reads_back() {
    let text = everything();
    let kernel: Kernel = text.parse().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(kernel.to_string(), text);
    verify(&kernel).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn renumbering_is_the_order_of_the_text() {
    let kernel: Kernel = everything().parse().unwrap_or_else(|e| panic!("{e}"));
    let shuffled = everything().replace("%12", "%112").replace("%3:", "%203:").replace("%3\n", "%203\n");
    let shuffled = shuffled.replace("yield %3,", "yield %203,");
    let mut other: Kernel = shuffled.parse().unwrap_or_else(|e| panic!("{e}"));
    other.renumber();
    assert_eq!(other, kernel);
}

#[test]
fn every_structural_operation_reads_back() {
    for sample in StructuralOp::samples() {
        let op = sample.op.bind(sample.with);
        let size = |name: &&str| name.parse::<Dim>().expect("a size").bind(sample.with);
        let shapes: Vec<Vec<Dim>> = sample.args.iter().map(|shape| shape.iter().map(size).collect()).collect();
        let arguments: Vec<&[Dim]> = shapes.iter().map(|s| &s[..]).collect();
        let result = op.infer(&arguments, &Default::default()).expect("a sample fits");
        let list = |dims: &[Dim]| dims.iter().map(Dim::to_string).collect::<Vec<_>>().join(",");
        let mut text = String::from("kernel k {\n");
        for (i, (shape, dtype)) in shapes.iter().zip(sample.dtypes).enumerate() {
            let dims = list(shape).replace(',', ", ");
            let block = if shape.is_empty() { String::new() } else { format!(" block [{dims}]") };
            text += &format!("  in a{i}: {dtype}[{dims}]{block}\n");
        }
        text += "  body {\n";
        for (i, (shape, dtype)) in shapes.iter().zip(sample.dtypes).enumerate() {
            let axes: Vec<String> = shape.iter().map(|n| format!("0:{n}")).collect();
            text += &format!("    %{i}: {dtype}[{}] = load @a{i} block[{}]\n", list(shape), axes.join(", "));
        }
        let arguments: Vec<String> = (0..shapes.len()).map(|i| format!("%{i}")).collect();
        let arguments = if arguments.is_empty() { String::new() } else { format!(" {}", arguments.join(", ")) };
        let dtype = op.dtype(sample.dtypes).expect("a sample fits");
        text += &format!("    %{}: {dtype}[{}] = {op}{arguments}\n  }}\n}}\n", shapes.len(), list(&result));
        let kernel: Kernel = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(kernel.to_string(), text);
        verify(&kernel).unwrap_or_else(|e| panic!("{e}\n{text}"));
    }
}

#[test]
fn sizes_read_back() {
    for text in ["2*BK + S - 1", "cdiv(S, BQ)", "min(A, B)*C", "0", "-3", "max(2*A, cdiv(B, 4)) + 7"] {
        let dim: Dim = text.parse().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(dim.to_string().parse(), Ok(dim.clone()), "{text}");
    }
}

/// The text with one change breaks an invariant.
fn broken(from: &str, to: &str, message: &str) {
    let text = everything();
    assert!(text.contains(from), "{from}");
    let kernel: Kernel = text.replacen(from, to, 1).parse().unwrap_or_else(|e| panic!("{e}"));
    let violation = verify(&kernel).expect_err(message);
    assert!(violation.to_string().contains(message), "{violation} does not say: {message}");
    assert_eq!(violation.loc, Loc::NONE);
}

#[test]
fn the_verifier_names_what_is_broken() {
    broken("dim D = 64", "dim S = 64", "dim S: is declared twice");
    broken("block [32, 64] fill", "block [32] fill", "@x: has another number of block dimensions");
    broken("scratch acc: f32[32, 1]", "scratch acc: f32[32, 2]", "scratch but not one whole block");
    broken("out y: f32[S, D]", "out y: f16[S, D]", "takes over what is no input of its element type");
    broken("yield %3, %4", "yield %3", "does not yield one i32 per dimension");
    broken("%11: f32[32,64] = mul", "%11: f32[32,32] = mul", "types that its operation does not give");
    broken("yield %19", "yield %10", "types that its operation does not give");
    broken("      yield %16\n", "      yield %19\n", "yields %19, which is not defined there");
    broken("yield %25", "yield %21", "types that its operation does not give");
    broken("yield %29, %27", "yield %27, %29", "types that its operation does not give");
    broken("store @acc block[0:32, 0:1]", "store @x block[0:32, 0:1]", "of a kind it does not access");
    broken("load @x block[0:32, 0:64]", "load @x block[0:33, 0:64]", "leaves its block");
    broken("load @x block[0:32, 0:64]", "load @x block[0:32]", "a view of 1 axes into 2");
    broken("reduce op(maximum)", "reduce op(sub)", "`reduce` by `sub`");
    broken("axis(0)\n    %14", "axis(2)\n    %14", "there is no grid axis 2");
    broken(
        "    %2: i32[] = prefetch @table %0",
        "    debug_print \"i\" %0\n    %2: i32[] = const 1",
        "nor has effects",
    );
}

#[test]
fn the_parser_says_where() {
    let check = |text: &str, expected: &str| {
        let error = text.parse::<Kernel>().expect_err(expected);
        assert_eq!(error.to_string(), expected);
    };
    check("kernel k {\n  body {\n    %0: f32[] = nothing\n  }\n}", "3:24: there is no operation `nothing`");
    check("kernel k {\n  body {\n    %0: f32[] = neg %1\n  }\n}", "3:23: %1 is not defined above");
    check("kernel k {\n  in x: f33[]\n", "2:8: expected an element type, found `f33`");
}
