//! The devices of this machine, what they can do, and the one that runs kernels by default.
//!
//! `cargo run --example devices`, with `PALLAS_DEVICE=cpu|gpu|gpu:N|interpret` to choose another.
mod usage;

use pallas_rt::{Client, DeviceKind, Result};

fn main() -> Result<()> {
    usage::read(include_str!("devices.rs"), &[]);
    for device in Client::devices() {
        let target = &device.target;
        println!("{device}");
        if device.kind == DeviceKind::Gpu {
            println!("    profile {}, {} threads a program", target.name(), target.max_threads);
            println!("    VMEM {} bytes, {} operands a kernel", target.workgroup_bytes, target.storage_bindings);
            println!("    subgroup {:?}, f16 {}", target.subgroup, target.has_f16);
            if let Some(matrices) = target.matrices {
                println!("    cooperative matrices: f16 {:?}, f32 {:?}", matrices.half, matrices.float);
            }
        }
        if let Some(most) = target.max_loop_iterations {
            println!("    its driver stops loops after {most} iterations; longer ones are split");
        }
    }
    println!("\nkernels run on {}", Client::from_env()?.why());
    Ok(())
}
