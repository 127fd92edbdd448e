//! Everything that needs more than one crate: the shipped kernels against float64 references on every device, faults of
//! the strict interpreter, the runtime's promises.
//!
//! | what | where |
//! |---|---|
//! | laws over the operation table and its rules, text round trips | `pallas-rt/ir/tests` |
//! | what each pass makes of a kernel, as text | `pallas-rt/codegen/src/passes/tests.rs` |
//! | every row on edge values, GPU and OpenGL against interpreter; bounds and steps of staged loops; slices of computed tiles in each profile | `pallas-rt/src/lang/scalar_row_tests.rs`, `for_tests.rs`, `slice_tests.rs` |
//! | 300 random kernels: run as Rust, as tile IR after each pass, on the CPU, on the CPU in strips; 40 on a GPU, 10 on an OpenGL adapter. `tests/random.sh` runs 5,000, 500 and 125, or as `PALLAS_RANDOM_KERNELS=HOST,GPU` says; its last line says how many ran where | `pallas-rt/src/lang/random` |
//! | 200 random programs as Rust source through the macro, against plain numbers: control flow, slices and windows of computed tiles, aliases, scattered blocks; `build.rs` there writes the source anew when the generator changes | `tests/drawn` |
//! | wrong kernels and rustc's words for them; beside each, in `ok`, the nearest one that runs (`tests/neighbours.rs`) | `pallas-macros/tests/ui` |
//! | hostile input: mutated texts of tile IR, cache entries, tokens of kernels, files of arrays; a few thousand of each, `PALLAS_MUTATIONS=100000 cargo test -p pallas-rt -p pallas-macros -p pallas --no-default-features hostile -- --nocapture` makes as many as asked for | `lang/random/hostile` and `tests/source.rs` of pallas-rt, `pallas-macros/src/tests.rs`, `tests/product/safetensors.rs` |
//! | the language: the interpreter and the CPU agree | `pallas-rt/tests/lang` |
//! | the CPU's plan, memory, products, and what safe code must not reach | `pallas-rt/tests/cpu` |
//! | the work of planning a long body; launches that repeat | `pallas-rt/codegen/src/cpu/plan/tests.rs`, `pallas-rt/src/exec/tests.rs` |
//! | the tests of pallas-rt under AddressSanitizer, each operand and tile ending at a page that nothing may touch; machine code under valgrind | `tests/sanitize.sh` |
//! | shipped kernels against float64, faults, refusals, memory, threads, examples, house rules | `tests/product` |
//! | faults brought back one at a time, each of which a test catches | `tests/mutants.sh`, `tests/mutants` |
//! | stored faults say what they break, and apply to the present code | `tests/product/mutants.rs` |
//! | 50 functions, random functions of them and their gradients, compiled once for all lengths (what is not there is NaN), against compilations for each length; `PALLAS_RANDOM_GRAPHS` is the number | `pallas-rt/src/jit/tests/bounded.rs` |
//! | functions of arrays: values, gradients against differences, loops, branches, kernels, compile counts, mistakes with their lines, threads | `pallas-rt/src/jit/tests` |
//! | slopes where operands are equal, at ends of pieces, zeros and infinities, against JAX's (`slopes.py`), backward and forward | `pallas-rt/src/ops/tests/slopes.rs` |
//! | drawn branches that are not finite where they are not taken, in loops, branches and checkpoints: gradients of batches against one example after the other (`PALLAS_BRANCHES` is their number) | `pallas-rt/src/jit/tests/not_taken.rs` |
//! | stated rules that call themselves, capture what is traced, or are not linear | `pallas-rt/src/jit/tests/stated.rs` |
//! | operations on arrays: some 1,300 calls against JAX's results (`reference.py`), at once, compiled and interpreted; gradients against differences; mistakes; the table of names against the code | `pallas-rt/src/ops/tests` |
//! | convolutions, windowed folds and pools: 190 calls with drawn settings against JAX's values and gradients (`convolution.py`), batches against loops, second derivatives against differences; 120 drawn convolutions with gradients and 120 drawn windows against the interpreter, also of infinities | `pallas-rt/src/ops/tests/convolution.rs` |
//! | 186 random programs of operations on arrays, and 300 random nestings of `jit`, `grad`, `vmap`, `jvp`, `scan` and `cond`, against JAX's values, gradients and batches (`programs.py`, `nestings.py`). `python programs.py 1500 7 > FILE` draws more, after files that are named those operations first that they have seldom; `PALLAS_AGREEMENT=FILE` runs them | `pallas-rt/src/ops/tests/agreement` |
//! | StableHLO and HLO text of every operation, of random graphs and of their gradients, and of random kernels as plain operations, parsed, compiled and run by real XLA (`stablehlo.py`) if `PALLAS_JAX` is a Python with JAX; `PALLAS_RANDOM_GRAPHS` is the number of graphs | `pallas-rt/src/jit/tests/stablehlo.rs` |
//! | texts of the program of each device, of sharded programs and of bodies on blocks, run by real XLA on as many devices | `pallas-rt/src/jit/tests/sharded/texts.rs` |
//! | the lines of the guide's page on numerics, on the interpreter, the CPU and a GPU: a line without a test fails, and a test without a line | `pallas-rt/tests/numerics` |
//! | kernels as plain operations: small ones and random ones, against themselves; shipped ones also in real XLA | `pallas-rt/src/jit/tests/plain.rs`, `tests/product/kernels/inlined.rs` |
//! | sharding rules and propagation of random programs against the Shardy in jaxlib (`shardy.py`), if `PALLAS_JAX` is a Python with JAX; `PALLAS_SHARDINGS` is the number of programs of each kind | `pallas-rt/graph/tests/shardy` |
//! | reshards, sums and collectives of random programs against those of Shardy, exchanges of moving operations against XLA's | `inserts.rs`, `collectives.rs` and `permutes.rs` there |
//! | the same random programs on meshes of virtual devices, each block against one device, garbage beyond arrays, with a thread for each device the same bits, and on other clients as one program; mixtures of equal declarations, and real changes; every sample of every structural operation, and drawn moves, on sharded operands | `pallas-rt/src/jit/tests/sharded.rs`, `sharded/laws.rs`, `sharded/retraces.rs` |
//! | declarations of examples and random programs, each made weaker in each way, against audits; every axis of every value of random programs leads to an annotation | `pallas-rt/src/jit/tests/audit.rs`, `pallas-rt/graph/tests/shardy/provenance.rs` |
//! | kernels on meshes, for lengths, blocks and devices that fit each other and others, against one device, and with ids of each device's own, which must differ; refused declarations; all shipped kernels, each dimension of each operand sharded | `pallas-rt/src/jit/tests/sharded_kernels.rs`, `tests/product/kernels/on_meshes.rs` |
//! | specs, their mistakes, blocks of arrays, XLA's text and tables of shardings against JAX's (`sharding.py`; rich draws the tables), if `PALLAS_JAX` is a Python with JAX; times of exchanges by hand and against messages over single links | `pallas-rt/src/sharding/tests` |
//! | what `explain` says and draws of kernels: the first screen, blocks and accesses of programs, well-formed pictures and pages | `pallas-rt/src/launch/explain/tests.rs` |
//! | bytes and memory that are planned against the steps that run, of random programs; rankings of meshes by hand; pages are well-formed | `pallas-rt/src/jit/tests/planning.rs` |
//! | states of values in bodies of `shard_map` against JAX (`states.py`, if `PALLAS_JAX` is a Python with JAX); values and gradients of bodies, nested ones, ones that leave axes automatic, and batches with named axes against stored ones of JAX (`values.py`); random bodies: derivatives against differences, devices against examples of batches, bodies along one axis or in two maps against those along all at once (`PALLAS_BODIES` is their number) | `pallas-rt/src/jit/tests/shard_map` |
//! | random exchanges on all engines against lockstep; devices that differ | `pallas-rt/src/tests/collectives.rs`, `pallas-rt/src/distributed/tests.rs` |
//! | jobs of four processes: training, faults, kills (`PALLAS_MPI_KILLS` is their number); `cargo test -p pallas-rt --features mpi --test mpi` | `pallas-rt/tests/mpi` |
//! | conditions that leave a sum's beginning to one program, in all spellings; stores and integers that are lost, and kernels that mean it | `tests/product/early_reads.rs`, `lost_values.rs` |
//! | what a process is started with | `tests/product/startup.rs` |
//! | chains of 20,000 operations (`PALLAS_LONG=100000` makes more), deep trees and the time for each operation, on a small stack | `pallas-rt/src/jit/tests/long.rs` |
//! | 300 random graphs: fused, one operation at a time, on the interpreter; their gradients against differences in f64; each operation is drawn (`PALLAS_HISTOGRAM=1` shows how often). `PALLAS_RANDOM_GRAPHS=2000` makes more | `pallas-rt/src/jit/tests/random.rs` |
//! | gradients of gradients of shipped functions, against differences of gradients, on the interpreter, and in batches | `tests/product/kernels/second.rs` |
//! | `mean(vmap(loss))` under `grad` against the same loss written for a batch: values, temporaries and work of 60 drawn pairs; `PALLAS_BATCHES` is their number, `PALLAS_BATCHES_SEED` draws other sizes; the bench `batches` times them | `pallas-rt/src/jit/tests/batches`, `benches/batches.rs` |
//! | training, and other functions in examples, against what JAX computes (`examples/train_digits/reference.py`, `examples/reference.py`) | `tests/product/examples.rs` |
//! | five programs beside the same ones in JAX: lengths of the sources, and numbers if `PALLAS_JAX` is a Python with JAX | `tests/product/twins.rs` |
//! | the guides' code | `pallas-rt/guide` (the language), `kernels/guide` (when to use which kernel), as doctests |
//!
//! GPU tests run on the first adapter there is that is not OpenGL's; those of `lang` on the first one of OpenGL, too.
//! Vulkan's loader takes another driver by `VK_DRIVER_FILES=/path/to/icd.json`: SwiftShader's (Chromium brings it) has
//! subgroups of four where lavapipe has eight, and a compiler of its own, so `PALLAS_PROFILE=gpu cargo test --test
//! product kernels::` on it is a second opinion on barriers and texts; its limit of ten storage buffers refuses
//! gradients of splash attention under masks of arrays.
mod accumulated;
#[path = "../../kernels/cases/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "each reader has its part")]
mod cases;
mod corpus;
mod disk;
mod dumps;
mod early_reads;
#[cfg(feature = "gpu")]
mod emulation;
mod ends;
mod examples;
mod faults;
mod imports;
mod kernels;
#[cfg(feature = "graph")]
mod layouts;
#[cfg(feature = "graph")]
mod looked_up;
mod lost_values;
mod matrices;
mod memory;
mod mutants;
mod named;
#[cfg(target_arch = "x86_64")]
mod native;
mod pipeline;
mod reaches;
mod refusals;
mod runtime;
mod safetensors;
mod shaders;
mod special_values;
#[cfg(feature = "graph")]
mod startup;
mod steps;
mod structure;
mod support;
mod tidy;
mod tune;
#[cfg(feature = "graph")]
mod twins;
mod validate;
mod warm;
mod words;
mod written_again;
