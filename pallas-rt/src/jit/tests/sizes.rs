//! Block sizes and padding that unit tests pass in place of a device's.
use crate::array::Client;
use crate::jit::program;
use pallas_codegen::target::Target;
use pallas_device::DeviceKind;
use pallas_graph::fuse::DeviceLimits;
use pallas_ir::{Literal, Type};

/// Block sizes of which small arrays have several. The interpreter runs the kernels of GPUs.
pub(in crate::jit) fn device_limits(client: &Client) -> DeviceLimits {
    let target = *client.target();
    let is_emulated = client.kind() == DeviceKind::Interpreter;
    let own = program::device_limits(&Target { cores: target.cores.filter(|_| !is_emulated), ..target });
    // The laws of graphs hold for small arenas, too.
    match own.panel {
        // Programs on a machine with one core are those of two.
        None => DeviceLimits { programs: own.programs.max(2), arena: 0, ..own },
        Some(_) => {
            DeviceLimits { programs: target.budget().programs, product: [8, 8], panel: Some(3), arena: 0, ..own }
        }
    }
}

/// The worst elements: those that do not exist have no influence.
pub(in crate::jit) fn padding_value(ty: &Type) -> Literal {
    if ty.dtype.is_float() { Literal::new(ty.dtype, f64::NAN) } else { Literal::highest(ty.dtype) }
}
