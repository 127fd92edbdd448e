//! Slices made from an address and a length. An array without elements may have a null address, of which Rust allows
//! no slice: all code of this crate makes its slices of raw memory here.
//!
//! # Safety
//!
//! No program without `unsafe` of its own reaches undefined behaviour, whatever it passes, stores in a buffer, or
//! writes in a kernel. `unsafe_code` is denied in the workspace; the modules below allow it, and
//! `clippy::undocumented_unsafe_blocks` keeps a reason at each block. `pallas-ir`, `pallas-graph`, `pallas-macros`,
//! `kernels`, `array/` (but `array/client`), `tree/`, `jit/` (but `jit/program`), `ops/`, `random/`, `interp/`,
//! `passes/`, `launch/`, `lang/` (but one test, `lang/random/hostile/run`) and `wgsl/` have none. Nothing public takes
//! an address (`tests/product/tidy.rs`).
//!
//! **What a CPU program trusts**, and who proves it before the first step:
//!
//! | precondition | proven by |
//! |---|---|
//! | the kernel is well formed: types, dominance, views of as many axes as their operand, ranks up to 8, tiles of up to 2^31 - 1 elements | `pallas_ir::verify`, in every build, in `cpu::Executable::compile` |
//! | every input and prefetch has an array of its operand's element type and shape, every parameter a scalar of its type | `launch::bind`, and `launch::warm_call` for a call that is recognised; `exec::Compiled` for kernels made at run time; an assertion on every buffer's bytes in `devices/cpu` |
//! | array memory is as long as its shape, aligned to 64, initialised | `array/`, `devices/memory`: the system provides zeroed blocks, and `array/host::byte_count` is the only function that computes an array's size |
//! | extents, blocks with their overhang and padding have i32 positions; no index wraps to another block | `launch::bind` (`extent`); `passes/block_position_ranges` refuses a geometry for which a map that is a sum of multiples of ids passes i32, once for each; `passes/lower` clamps all other indices |
//! | the grid, the turns of loops that stand for its axes and the extents of arrays are the launch's numbers | `Dim::evaluate` in `launch::bind` and `exec::Compiled`: in 64 bits, each term checked, else the launch is refused. No backend computes a size |
//! | a `bool` is 0 or 1 | bytes of arrays, parameters and constants are not trusted: loads copy bools and convert them to 0 or 1, `cpu/run` does the same with prefetched elements, parameters and constants (`run/thread_state`), and arrays of bool are never read in place |
//! | what is written has one owner | writing needs `&mut Buffer`, which `Arc::get_mut` gives; results are new, donated (`Array::try_reuse_memory` checks that nobody shares them) or lent by `launch/into`, which holds the user's array by `&mut`, has checked that it is the only owner, and lends it to one launch of its own thread |
//! | what is read stays, also while a launch goes on after its call | a block knows the launches that use it (`devices/queue`): whoever writes, frees or maps it anew waits for all of them, whoever reads it for those that write it. Launches of a client end in the order of their calls, so a block that was freed and allocated again is used by its next owner's launches later |
//! | an output that aliases an input has its type and shape, and has it alone | `verify` (type, alone), `launch::bind` and `exec::Compiled` (shape) |
//! | programs that run at once touch different elements of what is written | `cpu/concurrent_programs`, below |
//!
//! **Which programs run at once.** For every output that a kernel stores to, with the input that it aliases:
//!
//! 1. Programs that differ in a parallel axis run at once if the spec proves them apart: the axis' index is itself an
//!    entry of every index map of that memory, in a dimension cut into equal blocks, and no access addresses that
//!    dimension by a run-time start. This is decided once a kernel; such launches pay nothing.
//! 2. For other axes the launch evaluates the maps, tables included. If no two programs have blocks in common of which
//!    one is stored to, all run at once.
//! 3. If two programs certainly touch one element (by accesses without condition or mask) and one of them stores, the
//!    launch is refused with the interpreter's code, `race`: at the call, or like other errors of a launch that goes
//!    on, at the first reader.
//! 4. Otherwise programs that 1. does not prove apart run in order, on one thread: row-major, those of proven axes on
//!    other threads.
//!
//! On a GPU nothing is refused at the launch: two programs that write one element leave either value, other memory is
//! untouched.
//!
//! **The clusters of `unsafe`**, of this crate (`cpu`, `raw`), of pallas-device and of pallas-rt (`array/client`,
//! `exec`, `jit/program`):
//!
//! | where | what | why it is sound |
//! |---|---|---|
//! | `devices/memory`, `devices/buffer` | allocation, a block as a slice, elements as bytes | a block owns its range and is freed once, with the layout it was allocated by; slices borrow it, and lengths are asserted. `Elem` is sealed: numbers and `bool`, without padding. `Send`, `Sync`: no safe method of `&HostBlock` writes; addresses leave it for launches alone |
//! | `devices/runtime`, `devices/cpu`, `devices/interpreter`, `devices/gpu/launch`, `exec/run`, `exec/prepared` | `Executable::run` is `unsafe`: its caller has the outputs for itself | outputs are fresh, donated, or borrowed by `&mut` from the user after `exclusive_output_buffer` has found no other owner |
//! | `devices/sequence` | a program's launches, copies, loops and exchanges on raw memory | it is built from a plan whose places lie apart (`fuse::arena_packing`, tested there); `program/cpu_sequence` checks the lengths of what a run is given, and that what it writes is owned; loops permute pointers, so none is lost or doubled; the queue names the blocks as for a launch |
//! | `collective/workers` | lasting threads borrow a run's work | `run_on_workers` returns after every job has sent its end, which is the last thing that it does, also after a panic; nothing in between returns |
//! | `cpu/thread_team` | threads borrow a launch's work | a member goes inside before it looks at the work's number again, and the caller changes the number and waits until nobody is inside before the borrow ends, also by a panic; a thread that begins later finds another number, or that the program is over |
//! | `devices/queue` | work on raw memory that goes on after its call | `LaunchQueue::add_launch` names the blocks that work reads and writes before anybody can wait for them; tickets are given and launches taken under one lock, and one thread at a time runs them |
//! | `cpu/mod`, `cpu/launch` | `Executable::run` is `unsafe`; `LaunchMemory` is `Send` and `Sync` | the table above; `devices/cpu` is the only caller |
//! | `cpu/concurrent_programs` | reads tables before programs run | the same clamped read as a program's (`run::read_clamped_element`), of memory that nobody writes: an alias is never a prefetch (`verify`) |
//! | `cpu/run`, `cpu/tile`, `cpu/row_copies` | loads, stores, tiles by strides | a position is clipped to the array when the access runs (`clamped_access::clip_index_range`, held against counting by its test), so an address is only formed for elements that exist; starts of windows that data give are held inside of their tile, or skipped (`run/gather_scatter`); slots lie inside of the arena, and tiles alive at once overlap nowhere (`plan/tile_slots`). A sorted line is a slice of adjacent elements, or a copy of others. Positions of an affine nest are compared with their operand's extents before a row of them is computed, unless they are inside for all of them (`run/nest`). Loads refer to an operand, and results are computed in one, only where no step in between touches it (`plan/copy_elision`). The arena and the buffers are a thread's own, taken while it runs a program: a thread that waits for the pool and is given another launch finds none. Their memory is refused as `Error::Memory`; places of rows that were not copied (`run/in_place_windows`) are those of an array which no step writes |
//! | `raw` | slices of raw memory | its callers' addresses; of length 0, for which the address may be null, no slice is made of it |
//! | `cpu/strips`, `cpu/convert`, `cpu/fold`, `cpu/extreme_positions`, `cpu/nonfinite_search`, `cpu/indexed_lines`, `cpu/window_starts`, `cpu/interior_boxes` | raw rows as slices of an element type; elements and rows at positions given by data, which are held inside of the operand or skipped; loops compiled for AVX2 | callers pass rows of a tile; a result's strip overlaps no operand but exactly itself, and then it is computed aside (`plan/copy_elision::defer_aliased_write`). Loops for AVX2 are handed out where the processor has it |
//! | `cpu/gemm` | micro-kernels | extents are those of the types that `infer` gave; operands that are no matrix are copied; panels at the edge are packed with zeros, and partial results go through a buffer of whole ones. Kernels are listed only where the processor runs them, and for AMX where the system gives this process its registers too; `gemm/tests` compares all of them with plain loops |
//! | `cpu/jit/x86/executable_memory` | runs machine code | code is written by `row_loops::compile` for certain chains and layouts of their operands, or by `loop_code::compile` for a loop, into memory that is executable only after it cannot be written; it is never read from disk. It addresses nothing but the places of its chains, for the rows or iterations it is given; `x86/tests` and the random kernels compare it with the strips |
//! | `devices/gpu/pipeline` | shaders without the driver's checks, pipeline caches | positions are clipped and indices clamped in the text itself; `tests/product/validate.rs` looks at every shipped shader. A cache is the driver's own data, kept with a tag of this user's under the driver's and adapter's name |
//! | `array/client` | a device's client seen as a client of arrays | it is a transparent struct of that one field |
//! | `disk/authentication` | asks whose process this is | `geteuid` takes nothing and touches no memory |
//!
//! A panic in a program is a mistake in this crate; it ends the launch after all threads have left it, and the results
//! are dropped. Stores past the caches are fenced on that way too (`tile::NonTemporalFence`).

/// Returns the slice of `len` elements at `start`; `start` may be null if `len` is 0.
///
/// # Safety
/// If `len` is not 0, `start` is aligned and points at `len` initialised elements that nobody writes during `'a`.
#[inline(always)]
pub unsafe fn slice<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// Returns the mutable slice of `len` elements at `start`; `start` may be null if `len` is 0.
///
/// # Safety
/// If `len` is not 0, `start` is aligned and points at `len` initialised elements that nobody else touches during
/// `'a`.
#[inline(always)]
pub unsafe fn slice_mut<'a, T>(start: *mut T, len: usize) -> &'a mut [T] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

#[cfg(test)]
mod tests {
    use super::{slice, slice_mut};

    #[test]
    fn empty_slices_need_no_memory() {
        // SAFETY: they have no elements.
        let (empty, written) =
            unsafe { (slice::<u64>(std::ptr::null(), 0), slice_mut::<u64>(std::ptr::null_mut(), 0)) };
        assert!(empty.is_empty() && written.is_empty());
        let mut some = [1, 2, 3];
        // SAFETY: the array's elements.
        unsafe { slice_mut(some.as_mut_ptr().add(1), 2) }.fill(7);
        // SAFETY: as above.
        assert_eq!(unsafe { slice(some.as_ptr(), 3) }, [1, 7, 7]);
    }
}
