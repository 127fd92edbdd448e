//! The micro-kernel of `bf16` for AMX, whose tile registers hold 16 rows of 64 bytes each and which multiplies two of
//! them in one instruction.
//!
//! Intel, "Architectures Software Developer's Manual", volume 1, chapter 18. A process has to request these registers
//! from Linux before it uses them.
use super::{Matrix, MicroKernel, OutputMatrix};
use crate::raw;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Rows of a tile register of AMX, and 32-bit words in each of these rows.
const TILE_EXTENT: usize = 16;
/// Rows and columns of C that one call computes: two tiles of A times two tiles of B.
const BLOCK_EXTENT: usize = 2 * TILE_EXTENT;

/// Returns the AMX micro-kernel for `bf16`; `None` if the processor lacks the instructions, or the system does not
/// allow this process the tile registers.
pub(super) fn bf16_kernel() -> Option<MicroKernel<f32>> {
    static HAS_TILES: OnceLock<bool> = OnceLock::new();
    HAS_TILES.get_or_init(|| is_amx_supported() && request_tile_permission()).then_some(MicroKernel {
        name: "amx bf16 32x32",
        mr: BLOCK_EXTENT,
        nr: BLOCK_EXTENT,
        k_multiple: TILE_EXTENT,
        run: compute_bf16_block,
        half: None,
    })
}

/// Returns true if the processor multiplies tiles of `bf16`, and the system saves tile registers when it switches
/// threads.
fn is_amx_supported() -> bool {
    const AMX_BF16_FEATURE_BIT: u32 = 1 << 22;
    const AMX_TILE_FEATURE_BIT: u32 = 1 << 24;
    const OSXSAVE_FEATURE_BIT: u32 = 1 << 27;
    const XCR0_TILE_BITS: u64 = 0b11 << 17;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE_FEATURE_BIT == 0 {
        return false;
    }
    let has = __cpuid_count(7, 0).edx;
    // SAFETY: with OSXSAVE the instruction exists.
    has & AMX_BF16_FEATURE_BIT != 0
        && has & AMX_TILE_FEATURE_BIT != 0
        && unsafe { read_xcr0() } & XCR0_TILE_BITS == XCR0_TILE_BITS
}

/// Returns the bit mask of the register sets that the system saves.
///
/// # Safety
/// The processor has OSXSAVE.
#[target_feature(enable = "xsave")]
unsafe fn read_xcr0() -> u64 {
    // SAFETY: the caller's.
    unsafe { _xgetbv(0) }
}

/// Requests the tile registers from the system; returns true if the process may use them.
#[cfg(target_os = "linux")]
fn request_tile_permission() -> bool {
    /// The request `ARCH_REQ_XCOMP_PERM` of Linux, which asks for registers.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    /// Number of the state component that holds the tile registers.
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}
#[cfg(not(target_os = "linux"))]
fn request_tile_permission() -> bool {
    false
}

/// The configuration of tile registers that the instruction `ldtilecfg` reads.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}
/// A configuration in which eight tile registers are used in full.
static FULL_TILE_CONFIG: TileConfig = TileConfig {
    palette: 1,
    start: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Computes 32 rows by 32 columns of C, as four tiles of sums.
///
/// # Safety
/// See [`super::MicroKernelFn`]. Words of A are adjacent, rows of the panel too; `words` is a multiple of
/// [`TILE_EXTENT`], and so are the rows of A that can be read; the process may use tiles.
unsafe fn compute_bf16_block(rows: usize, words: usize, a: Matrix<f32>, b: Matrix<f32>, c: OutputMatrix<f32>) {
    let mut sums = [0.0f32; BLOCK_EXTENT * BLOCK_EXTENT];
    let is_direct = rows == BLOCK_EXTENT && !c.add;
    let (to, to_row) = if is_direct { (c.start, c.row as usize) } else { (sums.as_mut_ptr(), BLOCK_EXTENT) };
    // SAFETY: tiles of A and B lie inside of what the caller vouches for: 16 rows of 16 words of A from row 0, and from
    // row 16 if `rows` is larger. C has 32 rows of 32, and so have `sums`. No other code of this thread uses tiles.
    unsafe {
        let lower = if rows > TILE_EXTENT { a.start.offset(TILE_EXTENT as isize * a.row) } else { a.start };
        asm!(
            "ldtilecfg [{config}]",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{upper} + {a_row}]",
            "tileloadd tmm6, [{b} + {b_row}]",
            "tileloadd tmm7, [{b} + {b_row} + 64]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{lower} + {a_row}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {upper}, 64",
            "add {lower}, 64",
            "add {b}, {b_step}",
            "dec {n}",
            "jnz 2b",
            "tilestored [{to} + {to_row}], tmm0",
            "tilestored [{to} + {to_row} + 64], tmm1",
            "tilestored [{below} + {to_row}], tmm2",
            "tilestored [{below} + {to_row} + 64], tmm3",
            "tilerelease",
            config = in(reg) &raw const FULL_TILE_CONFIG,
            upper = inout(reg) a.start => _,
            lower = inout(reg) lower => _,
            a_row = in(reg) 4 * a.row,
            b = inout(reg) b.start => _,
            b_row = in(reg) 4 * BLOCK_EXTENT,
            b_step = const 4 * BLOCK_EXTENT * TILE_EXTENT,
            n = inout(reg) words / TILE_EXTENT => _,
            to = in(reg) to,
            to_row = in(reg) 4 * to_row,
            below = in(reg) to.add(TILE_EXTENT * to_row),
            options(nostack),
        );
        if is_direct {
            return;
        }
        for (i, sums) in sums.chunks_exact(BLOCK_EXTENT).take(rows).enumerate() {
            let row = raw::slice_mut(c.start.offset(i as isize * c.row), BLOCK_EXTENT);
            if c.add {
                row.iter_mut().zip(sums).for_each(|(c, &sum)| *c += sum);
            } else {
                row.copy_from_slice(sums);
            }
        }
    }
}
