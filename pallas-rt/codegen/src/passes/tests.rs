//! Kernels after each pass, as text. `UPDATE_EXPECT=1 cargo test -p pallas-codegen passes` writes the texts
//! anew; that they mean the same is tested with random kernels in `lang::random` of pallas-rt.
use super::{PLACEMENT_PASSES, PlacementPassState, lower::lower, simplify, split_long_loops::add_step_ranges};
use expect_test::{Expect, expect};
use pallas_ir::Kernel;

pub(super) fn parse(text: &str) -> Kernel {
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}
/// Compares a kernel's body, after verification.
pub(super) fn body(kernel: &Kernel, expected: Expect) {
    super::verify_in_debug("a pass", kernel);
    let text = kernel.to_string();
    let begin = text.find("  body {").expect("a kernel has a body");
    expected.assert_eq(&text[begin..]);
}
/// Runs the pass of this name.
fn run(pass: &str, staged: &mut PlacementPassState) {
    staged.run(*PLACEMENT_PASSES.iter().find(|(name, _)| *name == pass).expect("a pass"));
}

/// Row sums, of which what came before counts half: scratch, a first step and a last one.
const SUMS: &str = include_str!("sums.txt");

#[test]
fn one_kernel_goes_through_all_passes() {
    let lowered = lower(&parse(SUMS));
    body(
        &lowered,
        expect![[r#"
              body {
                %0: i32[] = num_programs axis(0)
                %1: i32[] = program_id axis(0)
                %2: i32[] = num_steps axis(0)
                %3: i32[] = const 0
                %4: i32[] = const 1
                for %3, %2, %4 (%5: i32[]) {
                  %6: i32[] = const 4
                  %7: i32[] = mul %1, %6
                  %8: i32[] = const 8
                  %9: i32[] = mul %5, %8
                  %10: i32[] = const 0
                  %11: i32[] = const 4
                  %12: i32[] = mul %1, %11
                  %13: i32[] = const 1
                  %14: i32[] = mul %10, %13
                  %15: i32[] = const 0
                  %16: bool[] = eq %5, %15
                  if %16 {
                    %17: f32[] = const 0.0
                    %18: f32[4,1] = broadcast to(4, 1) %17
                    store @acc array[0:4, 0:1] %18
                  } else {
                  }
                  %19: f32[4,1] = load @acc array[0:4, 0:1]
                  %20: f32[] = const 0.5
                  %21: f32[4,1] = broadcast to(4, 1) %20
                  %22: f32[4,1] = mul %19, %21
                  %23: f32[4,8] = load @x array[dyn + 0:4, dyn + 0:8] %7, %9
                  %24: f32[4,1] = reduce op(add) axes(1) %23
                  %25: f32[4,1] = add %22, %24
                  store @acc array[0:4, 0:1] %25
                  %26: i32[] = const 1
                  %27: i32[] = sub %2, %26
                  %28: bool[] = eq %5, %27
                  if %28 {
                    %29: f32[4,1] = load @acc array[0:4, 0:1]
                    store @y array[dyn + 0:4, dyn + 0:1] %29, %12, %14
                  } else {
                  }
                }
              }
            }
        "#]],
    );
    let simple = simplify::simplify(&lowered);
    body(
        &simple,
        expect![[r#"
              body {
                %0: i32[] = program_id axis(0)
                %1: i32[] = num_steps axis(0)
                %2: i32[] = const 0
                %3: i32[] = const 1
                for %2, %1, %3 (%4: i32[]) {
                  %5: i32[] = const 4
                  %6: i32[] = mul %0, %5
                  %7: i32[] = const 8
                  %8: i32[] = mul %4, %7
                  %9: bool[] = eq %4, %2
                  if %9 {
                    %10: f32[] = const 0.0
                    %11: f32[4,1] = broadcast to(4, 1) %10
                    store @acc array[0:4, 0:1] %11
                  } else {
                  }
                  %12: f32[4,1] = load @acc array[0:4, 0:1]
                  %13: f32[] = const 0.5
                  %14: f32[4,1] = broadcast to(4, 1) %13
                  %15: f32[4,1] = mul %12, %14
                  %16: f32[4,8] = load @x array[dyn + 0:4, dyn + 0:8] %6, %8
                  %17: f32[4,1] = reduce op(add) axes(1) %16
                  %18: f32[4,1] = add %15, %17
                  store @acc array[0:4, 0:1] %18
                  %19: i32[] = sub %1, %3
                  %20: bool[] = eq %4, %19
                  if %20 {
                    %21: f32[4,1] = load @acc array[0:4, 0:1]
                    store @y array[dyn + 0:4, dyn + 0:1] %21, %6, %2
                  } else {
                  }
                }
              }
            }
        "#]],
    );
    let mut staged = PlacementPassState { depth: 3, ..PlacementPassState::new(simple, 1) };
    run("peel", &mut staged);
    body(
        &staged.kernel,
        expect![[r#"
              body {
                %0: i32[] = program_id axis(0)
                %1: i32[] = num_steps axis(0)
                %2: i32[] = const 0
                %3: i32[] = const 1
                %4: f32[] = const 0.0
                %5: f32[4,1] = broadcast to(4, 1) %4
                store @acc array[0:4, 0:1] %5
                for %2, %1, %3 (%6: i32[]) {
                  %7: i32[] = const 4
                  %8: i32[] = mul %0, %7
                  %9: i32[] = const 8
                  %10: i32[] = mul %6, %9
                  %11: f32[4,1] = load @acc array[0:4, 0:1]
                  %12: f32[] = const 0.5
                  %13: f32[4,1] = broadcast to(4, 1) %12
                  %14: f32[4,1] = mul %11, %13
                  %15: f32[4,8] = load @x array[dyn + 0:4, dyn + 0:8] %8, %10
                  %16: f32[4,1] = reduce op(add) axes(1) %15
                  %17: f32[4,1] = add %14, %16
                  store @acc array[0:4, 0:1] %17
                }
                %18: i32[] = const 4
                %19: i32[] = mul %0, %18
                %20: f32[4,1] = load @acc array[0:4, 0:1]
                store @y array[dyn + 0:4, dyn + 0:1] %20, %19, %2
              }
            }
        "#]],
    );
    run("promote", &mut staged);
    body(
        &staged.kernel,
        expect![[r#"
              body {
                %0: f32[] = const 0.0
                %1: f32[4,1] = broadcast to(4, 1) %0
                %2: i32[] = program_id axis(0)
                %3: i32[] = num_steps axis(0)
                %4: i32[] = const 0
                %5: i32[] = const 1
                %6: f32[] = const 0.0
                %7: f32[4,1] = broadcast to(4, 1) %6
                %20 acc: f32[4,1] = for %4, %3, %5, %7 (%8: i32[], %9 acc: f32[4,1]) {
                  %10: i32[] = const 4
                  %11: i32[] = mul %2, %10
                  %12: i32[] = const 8
                  %13: i32[] = mul %8, %12
                  %14: f32[] = const 0.5
                  %15: f32[4,1] = broadcast to(4, 1) %14
                  %16: f32[4,1] = mul %9, %15
                  %17: f32[4,8] = load @x array[dyn + 0:4, dyn + 0:8] %11, %13
                  %18: f32[4,1] = reduce op(add) axes(1) %17
                  %19: f32[4,1] = add %16, %18
                  yield %19
                }
                %21: i32[] = const 4
                %22: i32[] = mul %2, %21
                store @y array[dyn + 0:4, dyn + 0:1] %20, %22, %4
              }
            }
        "#]],
    );
    run("sink_reductions", &mut staged);
    body(
        &staged.kernel,
        expect![[r#"
              body {
                %0: f32[] = const 0.0
                %1: i32[] = program_id axis(0)
                %2: i32[] = num_steps axis(0)
                %3: i32[] = const 0
                %4: i32[] = const 1
                %5: f32[4,8] = broadcast to(4, 8) %0
                %17 acc: f32[4,8] = for %3, %2, %4, %5 (%6: i32[], %7 acc: f32[4,8]) {
                  %8: i32[] = const 4
                  %9: i32[] = mul %1, %8
                  %10: i32[] = const 8
                  %11: i32[] = mul %6, %10
                  %12: f32[] = const 0.5
                  %13: f32[4,1] = broadcast to(4, 1) %12
                  %14: f32[4,8] = mul %7, %13
                  %15: f32[4,8] = load @x array[dyn + 0:4, dyn + 0:8] %9, %11
                  %16: f32[4,8] = add %14, %15
                  yield %16
                }
                %18: i32[] = const 4
                %19: i32[] = mul %1, %18
                %20: f32[4,1] = reduce op(add) axes(1) %17
                store @y array[dyn + 0:4, dyn + 0:1] %20, %19, %3
              }
            }
        "#]],
    );
    run("software_pipeline", &mut staged);
    assert_eq!(staged.fetched.len(), 1);
    body(
        &staged.kernel,
        expect![[r#"
              body {
                %0: f32[] = const 0.0
                %1: i32[] = program_id axis(0)
                %2: i32[] = num_steps axis(0)
                %3: i32[] = const 0
                %4: i32[] = const 1
                %5: f32[4,8] = broadcast to(4, 8) %0
                %6: i32[] = const 4
                %7: i32[] = mul %1, %6
                %8: i32[] = const 8
                %9: f32[4,8] = load @x array[dyn + 0:4, dyn + 0:8] %7, %3
                %10: f32[4,8] = load @x array[dyn + 0:4, dyn + 0:8] %7, %8
                %23 acc: f32[4,8], %24: f32[4,8], %25: f32[4,8] = for %3, %2, %4, %5, %9, %10 (%11: i32[], %12 acc: f32[4,8], %13: f32[4,8], %14: f32[4,8]) {
                  %15: i32[] = add %11, %4
                  %16: i32[] = add %15, %4
                  %17: i32[] = mul %16, %8
                  %18: f32[4,8] = load @x array[dyn + 0:4, dyn + 0:8] %7, %17
                  %19: f32[] = const 0.5
                  %20: f32[4,1] = broadcast to(4, 1) %19
                  %21: f32[4,8] = mul %12, %20
                  %22: f32[4,8] = add %21, %13
                  yield %22, %14, %18
                }
                %26: f32[4,1] = reduce op(add) axes(1) %23
                store @y array[dyn + 0:4, dyn + 0:1] %26, %7, %3
              }
            }
        "#]],
    );
}

#[test]
fn a_step_range_is_a_parameter_where_dispatches_share_the_steps() {
    body(
        &add_step_ranges(&simplify::simplify(&lower(&parse(SUMS))), 1),
        expect![[r#"
              body {
                %0: i32[] = program_id axis(0)
                %1: i32[] = num_steps axis(0)
                %2: i32[] = const 0
                %3: i32[] = const 1
                %4: i32[] = param @from0
                %5: i32[] = param @to0
                %6: i32[] = minimum %1, %5
                for %4, %6, %3 (%7: i32[]) {
                  %8: i32[] = const 4
                  %9: i32[] = mul %0, %8
                  %10: i32[] = const 8
                  %11: i32[] = mul %7, %10
                  %12: bool[] = eq %7, %2
                  if %12 {
                    %13: f32[] = const 0.0
                    %14: f32[4,1] = broadcast to(4, 1) %13
                    store @acc array[0:4, 0:1] %14
                  } else {
                  }
                  %15: f32[4,1] = load @acc array[0:4, 0:1]
                  %16: f32[] = const 0.5
                  %17: f32[4,1] = broadcast to(4, 1) %16
                  %18: f32[4,1] = mul %15, %17
                  %19: f32[4,8] = load @x array[dyn + 0:4, dyn + 0:8] %9, %11
                  %20: f32[4,1] = reduce op(add) axes(1) %19
                  %21: f32[4,1] = add %18, %20
                  store @acc array[0:4, 0:1] %21
                  %22: i32[] = sub %1, %3
                  %23: bool[] = eq %7, %22
                  if %23 {
                    %24: f32[4,1] = load @acc array[0:4, 0:1]
                    store @y array[dyn + 0:4, dyn + 0:1] %24, %9, %2
                  } else {
                  }
                }
              }
            }
        "#]],
    );
}

#[test]
fn loads_are_done_once_where_nothing_writes() {
    // z takes over the memory of x: behind the store its second load may see something else. Nothing writes to w.
    let kernel = parse(
        "
kernel loads {
  dim N
  grid cdiv(N, 4) parallel
  in x: f32[N] block [4]
  in w: f32[N] block [4]
  out z: f32[N] block [4] empty 0.0
  alias @z @x
  body {
    %0: i32[] = const 4
    %1: i32[] = program_id axis(0)
    %2: i32[] = mul %0, %1
    %3: f32[4] = load @x array[dyn + 0:4] %2
    %4: f32[4] = load @w array[dyn + 0:4] %2
    %5: f32[4] = add %3, %4
    store @z array[dyn + 0:4] %5, %2
    %6: f32[4] = load @x array[dyn + 0:4] %2
    %7: f32[4] = load @w array[dyn + 0:4] %2
    %8: f32[4] = mul %6, %7
    store @z array[dyn + 0:4] %8, %2
  }
}
",
    );
    body(
        &simplify::simplify(&kernel),
        expect![[r#"
          body {
            %0: i32[] = const 4
            %1: i32[] = program_id axis(0)
            %2: i32[] = mul %0, %1
            %3: f32[4] = load @x array[dyn + 0:4] %2
            %4: f32[4] = load @w array[dyn + 0:4] %2
            %5: f32[4] = add %3, %4
            store @z array[dyn + 0:4] %5, %2
            %6: f32[4] = load @x array[dyn + 0:4] %2
            %7: f32[4] = mul %6, %4
            store @z array[dyn + 0:4] %7, %2
          }
        }
    "#]],
    );
}

#[test]
fn constants_decide_branches() {
    let kernel = parse(
        "
kernel decided {
  grid 4 parallel
  in x: i32[4] block [4]
  out y: i32[4] block [4] empty 0
  body {
    %0: i32[] = program_id axis(0)
    %1: i32[] = const 3
    %2: i32[] = const 0
    %3: bool[] = lt %1, %2
    %4: i32[1] = if %3 {
      %5: i32[1] = load @x array[dyn + 0:1] %0
      yield %5
    } else {
      %6: i32[] = add %0, %2
      %7: i32[1] = broadcast to(1) %6
      %8: i32[] = mul %1, %1
      %9: i32[1] = broadcast to(1) %8
      %10: i32[1] = add %7, %9
      yield %10
    }
    store @y array[dyn + 0:1] %4, %0
  }
}
",
    );
    body(
        &simplify::simplify(&kernel),
        expect![[r#"
          body {
            %0: i32[] = program_id axis(0)
            %1: i32[1] = broadcast to(1) %0
            %2: i32[] = const 9
            %3: i32[1] = broadcast to(1) %2
            %4: i32[1] = add %1, %3
            store @y array[dyn + 0:1] %4, %0
          }
        }
    "#]],
    );
}

#[test]
fn what_touches_memory_keeps_its_place() {
    // The first step's store may not leave the loop in front of the store before it.
    let kernel = parse(
        "
kernel ordered {
  dim N
  grid 1 parallel
  in x: f32[N] block [1]
  out y: f32[1] block [1] empty 0.0
  scratch s: f32[1] block [1]
  body {
    %0: i32[] = const 0
    %1: i32[] = extent N
    %2: i32[] = const 1
    for %0, %1, %2 (%3: i32[]) {
      %4: f32[1] = load @x array[dyn + 0:1] %3
      store @s array[0:1] %4
      %5: bool[] = eq %3, %0
      if %5 {
        %6: f32[1] = load @s array[0:1]
        store @y array[0:1] %6
      } else {
      }
    }
  }
}
",
    );
    let mut staged = PlacementPassState::new(kernel.clone(), 1);
    run("peel", &mut staged);
    assert_eq!(staged.kernel.to_string(), simplify::simplify(&kernel).to_string());
}
