//! From an array's element type to the kernel of that type.

/// Evaluates an expression with `$E` the float type of `$dtype`: f32, f16 or bf16.
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
            other => Err(::pallas_rt::Error::Value {
                message: format!(concat!("`", $kernel, "` takes f32, f16 or bf16, found {}"), other),
            }),
        }
    };
}
pub(crate) use floats;
