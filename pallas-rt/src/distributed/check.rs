//! The self-check of a mesh: a sum over each axis, compared with what it must be.
use crate::array::Array;
use crate::jit::jit;
use crate::sharding::{Mesh, NamedSharding, P, device_put};
use pallas_device::error::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// Result of [`self_check`]: the axes of a mesh, over each of which sums are right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SelfCheck {
    /// The mesh, as text.
    pub mesh: String,
    /// By axis, its name, the number of its devices, and the sum that each of them has.
    pub axes: Vec<(String, usize, i64)>,
}

impl fmt::Display for SelfCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mesh {}", self.mesh)?;
        for (name, devices, sum) in &self.axes {
            write!(f, "\n`{name}`: {devices} devices have the sum {sum}")?;
        }
        Ok(())
    }
}

/// The number that the device at this coordinate of an axis adds to the sum in [`self_check`]. The numbers repeat every
/// 251 devices, and are small integers, so that sums are exact.
fn device_contribution(coordinate: usize) -> i32 {
    (coordinate % 251) as i32 + 1
}

/// Adds numbers of the devices up over each axis of a mesh, by a compiled function on the engine of this process, and
/// compares the sums that the devices have with the expected ones. In a job all processes call it at the same time.
///
/// # Errors
/// [`Error::Value`] for a wrong sum: it names the axis and the device. Errors of collectives and of memory.
///
/// ```
/// use pallas_rt::distributed::self_check;
/// use pallas_rt::sharding::Mesh;
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("a mesh"));
/// println!("{}", self_check(&mesh)?);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn self_check(mesh: &Arc<Mesh>) -> Result<SelfCheck> {
    let mut axes = vec![];
    for axis in mesh.axes() {
        let (name, devices) = (mesh.name(usize::from(axis.id)), axis.size as usize);
        let numbers: Vec<i32> = (0..devices).map(device_contribution).collect();
        let numbers = crate::Client::cpu().array(&numbers, &[devices])?;
        let numbers = device_put(&numbers, &NamedSharding::new(mesh, P(name)))?;
        let sum = jit(|x: &Array| x.sum(..))(&numbers)?;
        let expected = (0..devices).map(|i| i64::from(device_contribution(i))).sum();
        let found =
            sum.addressable_shards()?.iter().map(|shard| read_sum(&shard.data)).collect::<Result<Vec<i64>>>()?;
        check_sums(name, expected, &found)?;
        axes.push((name.to_string(), devices, expected));
    }
    Ok(SelfCheck { mesh: mesh.to_string(), axes })
}

/// The sum that a device holds.
fn read_sum(x: &Array) -> Result<i64> {
    Ok(i64::from(x.to_vec::<i32>()?[0]))
}

/// Returns an error that names the first device of this process whose sum is not the expected one.
fn check_sums(axis: &str, expected: i64, found: &[i64]) -> Result<()> {
    match found.iter().position(|&sum| sum != expected) {
        None => Ok(()),
        Some(device) => {
            let sum = found[device];
            let message = format!(
                "self-check of axis `{axis}`: device {device} of this process has the sum {sum}, expected {expected}"
            );
            Err(Error::Value { message })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_each_axis_are_compared() {
        for mesh in [
            Mesh::new(&[("data", 2), ("model", 4)]),
            Mesh::with_devices(&[("a", 3), ("b", 1), ("c", 2)], vec![5, 3, 1, 0, 2, 4]),
            Mesh::new(&[("all", 300)]),
        ] {
            let mesh = Arc::new(mesh.expect("a mesh"));
            let found = self_check(&mesh).expect("sums are right");
            assert_eq!(found.axes.len(), mesh.rank());
            assert!(found.axes.iter().all(|(_, devices, sum)| *sum >= *devices as i64));
        }
        let error = check_sums("model", 10, &[10, 10, 9]).expect_err("a sum is wrong").to_string();
        assert!(error.contains("axis `model`: device 2 of this process has the sum 9, expected 10"), "{error}");
    }
}
