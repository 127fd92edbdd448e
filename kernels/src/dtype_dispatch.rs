//! Element types of arrays: selection of the kernel for a float type, and the contents of integer tables.
use crate::argument_errors::argument_error;
use pallas_rt::prelude::*;

/// Evaluates an expression with `$E` as the Rust type of `$dtype`: f32, f16 or bf16; other types are an error.
macro_rules! floats {
    ($kernel:literal, $dtype:expr, $E:ident => $call:expr) => {
        match $dtype {
            ::pallas_rt::ir::DType::F32 => {
                type $E = f32;
                $call
            }
            ::pallas_rt::ir::DType::F16 => {
                type $E = ::pallas_rt::prelude::f16;
                $call
            }
            ::pallas_rt::ir::DType::Bf16 => {
                type $E = ::pallas_rt::prelude::bf16;
                $call
            }
            other => $crate::argument_errors::argument_error(format!(
                concat!("`", $kernel, "` takes f32, f16 or bf16, found {}"),
                other
            )),
        }
    };
}
pub(crate) use floats;

/// Ends a differentiable call and evaluates to its results. `$gradient` is an expression of the residuals and of the
/// results' cotangents.
macro_rules! with_gradient {
    ($call:ident, $results:expr, $residuals:expr, |$saved:pat_param, $cotangents:pat_param| $gradient:expr) => {
        match $call.end($results, $residuals)? {
            ::pallas_rt::launch::Ended::Results(results) => results,
            ::pallas_rt::launch::Ended::Backward { call, residuals, cotangents: $cotangents } => {
                let $saved = &residuals[..] else { unreachable!("as many residuals as before") };
                call.end(&$gradient)?
            }
        }
    };
}
pub(crate) use with_gradient;

/// Reads the elements of an i32 array on the host.
///
/// # Errors
/// Another element type, with the operand's name; device errors.
#[track_caller]
pub(crate) fn read_i32_elements(name: &str, x: &Array) -> Result<Vec<i32>> {
    if x.dtype() != DType::I32 {
        return argument_error(format!("`{name}` holds {}, expected i32", x.dtype()));
    }
    x.to_vec::<i32>()
}
