//! The devices of this machine, what they can do, and the one that runs kernels by default.
//!
//! `cargo run --example devices`, with `PALLAS_DEVICE=cpu|gpu|gpu:N|interpret` to choose another.
use pallas_rt::{Client, DeviceKind, Result};

fn main() -> Result<()> {
    for device in Client::devices() {
        let limits = &device.limits;
        println!("{device}");
        if device.kind == DeviceKind::Gpu {
            println!("    profile {:?}, {} threads a program", limits.profile, limits.max_threads);
            println!("    VMEM {} bytes, {} operands a kernel", limits.workgroup_bytes, limits.storage_bindings);
            println!("    subgroup {:?}, f16 {}", limits.subgroup, limits.has_f16);
            if let Some(matrices) = limits.matrices {
                println!("    cooperative matrices: f16 {:?}, f32 {:?}", matrices.half, matrices.float);
            }
        }
        if let Some(most) = limits.max_loop_iterations {
            println!("    its driver stops loops after {most} iterations; longer ones are split");
        }
    }
    println!("\nkernels run on {}", Client::from_env()?.why());
    Ok(())
}
