//! The text form reads back what it printed, and the verifier names what is broken.
use pallas_ir::{
    Dim, DimId, InstId, Kernel, Literal, Loc, MAX_DEPTH, Op, OperandId, OperandKind, RegionId, StructuralOp, Value,
    verify, verify_lowered,
};

/// Uses every construct of the grammar.
const EVERYTHING: &str = r#"kernel everything {
  dim S
  dim D = 64
  grid cdiv(S, 32) parallel
  grid 4 arbitrary
  allow overflow lost_store
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
    for allowed in ["  allow overflow lost_store\n", "  allow overflow\n", "  allow lost_store\n", ""] {
        let text = everything().replace("  allow overflow lost_store\n", allowed);
        let kernel: Kernel = text.parse().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(kernel.to_string(), text);
        verify(&kernel).unwrap_or_else(|e| panic!("{e}"));
    }
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
    broken("dim D = 64", "dim D = -64", "dim D: has a size that is not 0 to 2^31 - 1");
    broken("grid 4 arbitrary", "grid ? arbitrary", "grid axis 1: has an extent of unknown dimensions");
    broken("in w: f16[S]", "in w: f16[T]", "@w: has a size of unknown dimensions");
    broken("[element 34 1 1]", "[element 3400000000 1 1]", "@w: has a block of 2^31 elements or more");
    broken("in x: f32[S, D] block [32, 64] fill -inf", "in x: f32[S, D] block [32, 64] buffered 9", "1 to 3 times");
    broken("map @w (%5", "map @table (%5", "@table: has an index map, but is neither an input nor an output");
    broken("%30: f32[32,1]", "%30: f32[32,1,1,1,1,1,1,1,1]", "at most 8 axes and less than 2^31 elements");
    broken("%30: f32[32,1]", "%30: f32[65536,65536]", "at most 8 axes and less than 2^31 elements");
    broken("%30: f32[32,1]", "%30: f32[0,9223372036854775807]", "at most 8 axes and less than 2^31 elements");
    broken("block[0:32, 0:1] mask", "block[0:32, 9223372036854775807:1] mask", "positions beyond 2^31");
    broken("block[0:32, 0:1] mask", "block[0:32, 0:1:9223372036854775807] mask", "positions beyond 2^31");
    broken("load @x block[0:32, 0:64]", "load @x array[0:32, 0:64]", "has views of blocks and views of arrays");
    broken("reduce op(maximum)", "reduce op(sub)", "`reduce` by `sub`");
    broken("debug_print \"row\" %26", "debug_print \"row\"", "this takes 1 arguments, found 0");
    broken("const 3", "const 3 %12", "this takes 0 arguments, found 1");
    broken("mul %9, %10", "dot batch(0-0) contract(0-0) acc(f32) %9, %9", "`dot` names axis 0");
    broken("mul %9, %10", "pad low(-1, 0) high(1, 0) %9, %10", "a pad by -1");
    broken(
        "mul %9, %10",
        "slice start(0, 0) size(32, 64) stride(9223372036854775807, 1) %9",
        "a slice from 0 by 9223372036854775807 along axis 0",
    );
    broken(
        "    %2: i32[] = prefetch @table %0",
        "    debug_print \"i\" %0\n    %2: i32[] = const 1",
        "nor has effects",
    );
}

#[test]
fn an_id_that_names_nothing_is_refused() {
    let whole: Kernel = everything().parse().unwrap_or_else(|e| panic!("{e}"));
    let check = |what: &str, spoil: &dyn Fn(&mut Kernel)| {
        let mut kernel = whole.clone();
        spoil(&mut kernel);
        let violation = verify(&kernel).expect_err(what);
        assert_eq!(violation.message, "has an id that names nothing", "{what}");
    };
    let nothing = Value(u32::MAX);
    for i in 0..whole.insts.len() {
        for a in 0..whole.insts[i].args.len() {
            check("an argument", &|k| k.insts[i].args[a] = nothing);
        }
        for r in 0..whole.insts[i].results.len() {
            check("a result", &|k| k.insts[i].results[r] = nothing);
        }
        for r in 0..whole.insts[i].regions.len() {
            check("a region", &|k| k.insts[i].regions[r] = RegionId(u32::MAX));
        }
        let mut op = whole.insts[i].op.clone();
        match &mut op {
            Op::Param(id) | Op::Prefetch(id) => *id = OperandId(u32::MAX),
            Op::Load { from: id, .. } | Op::Store { to: id, .. } | Op::Valid { of: id, .. } => {
                *id = OperandId(u32::MAX)
            }
            Op::Extent(id) => *id = DimId(u32::MAX),
            _ => continue,
        }
        check("an operand", &|k| k.insts[i].op = op.clone());
    }
    for r in 0..whole.regions.len() {
        check("a region's instruction", &|k| k.regions[r].insts.push(InstId(u32::MAX)));
        check("a parameter", &|k| k.regions[r].params.push(nothing));
        check("a yield", &|k| k.regions[r].yields.push(nothing));
    }
    for (i, operand) in whole.operands.iter().enumerate() {
        check("a map", &|k| k.operands[i].map = Some(RegionId(u32::MAX)));
        if let OperandKind::Output { empty, .. } = operand.kind {
            check("an alias", &|k| {
                k.operands[i].kind = OperandKind::Output { empty, alias: Some(OperandId(u32::MAX)) }
            });
        }
    }
    check("the body", &|k| k.body = RegionId(u32::MAX));
    check("a line", &|k| k.locs.truncate(3));
}

#[test]
fn constants_have_the_bits_of_their_type() {
    let mut kernel: Kernel = everything().parse().unwrap_or_else(|e| panic!("{e}"));
    let constant =
        kernel.insts.iter_mut().rev().find_map(|i| if let Op::Const(x) = &mut i.op { Some(x) } else { None });
    constant.expect("it has one").bits = 1 << 40;
    assert_eq!(verify(&kernel).expect_err("too many bits").message, "has bits that its type has not");
    let parse = |dtype, text| Literal::parse(dtype, text);
    assert_eq!(parse(pallas_ir::DType::Bool, "nan:2"), None, "a truth value is 0 or 1");
    assert_eq!(parse(pallas_ir::DType::F32, "nan:3f800000"), None, "that is 1.0");
}

#[test]
fn the_lowered_form_has_no_blocks_left() {
    let traced: Kernel = everything().parse().unwrap_or_else(|e| panic!("{e}"));
    let said = verify_lowered(&traced).expect_err("it is traced").message;
    assert_eq!(said, "has views of blocks, which is not the lowered form");
    let lowered = "kernel k {\n  grid 2 parallel\n  out y: f32[4] block [4] empty 0.0\n  body {\n    \
        %0: f32[] = const 1.0\n    %1: f32[4] = broadcast to(4) %0\n    store @y array[0:4] %1\n  }\n}\n";
    let check = |text: &str, expected: Option<&str>| {
        let kernel: Kernel = text.parse().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(verify_lowered(&kernel).err().map(|e| e.message).as_deref(), expected);
    };
    check(lowered, None);
    check(&lowered.replace("parallel", "arbitrary"), Some("is sequential beside views of arrays"));
    let map = "  map @y (%2: i32[]) {\n    yield %2\n  }\n  body";
    check(&lowered.replace("  body", map), Some("has an index map beside views of arrays"));
    let dropped = "%1: f32[4] = broadcast to(4) %0\n    %2: f32[] = reduce op(add) axes(0) keep(false) %1\n";
    let drops = lowered.replace("%1: f32[4] = broadcast to(4) %0\n", dropped);
    check(&drops, Some("drops the axes it folds, which the lowered form keeps"));
}

#[test]
fn what_is_nested_deeper_than_the_stack_is_refused() {
    let nest = |depth: usize| {
        let (open, close) = ("if %0 {\n".repeat(depth), "} else {\n}\n".repeat(depth));
        format!("kernel k {{\n  body {{\n    %0: bool[] = const true\n{open}{close}  }}\n}}\n").parse::<Kernel>()
    };
    verify(&nest(MAX_DEPTH).expect("as deep as it may be")).unwrap_or_else(|e| panic!("{e}"));
    for depth in [MAX_DEPTH + 1, 100_000] {
        let said = nest(depth).expect_err("too deep").message;
        assert_eq!(said, format!("nested more than {MAX_DEPTH} deep"));
    }
    let size = |depth: usize| format!("{}S{}", "cdiv(".repeat(depth), ", 2)".repeat(depth)).parse::<Dim>();
    assert!(size(MAX_DEPTH).is_ok() && size(100_000).is_err());
    let product = vec!["cdiv(A + B + C + D, 1)"; 40].join("*");
    assert_eq!(product.parse::<Dim>().expect_err("35 million terms").message, "a size has too many terms");
    // A kernel that was built, not parsed.
    let mut kernel = nest(MAX_DEPTH).expect("as deep as it may be");
    let innermost = kernel.regions.iter().rposition(|r| !r.insts.is_empty()).expect("a region with an `if`");
    let own = kernel.regions[innermost].insts.clone();
    let outer = pallas_ir::Inst { op: Op::If, args: vec![Value(0)], results: vec![], regions: vec![] };
    let (mut then, mut otherwise) = (pallas_ir::Region::default(), pallas_ir::Region::default());
    then.insts = own;
    otherwise.insts = vec![];
    let next = |n: usize| RegionId((kernel.regions.len() + n) as u32);
    let regions = vec![next(0), next(1)];
    kernel.regions.extend([then, otherwise]);
    kernel.insts.push(pallas_ir::Inst { regions, ..outer });
    kernel.locs.push(Loc::NONE);
    kernel.regions[innermost].insts = vec![InstId(kernel.insts.len() as u32 - 1)];
    assert_eq!(verify(&kernel).expect_err("too deep").message, format!("is nested more than {MAX_DEPTH} deep"));
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
