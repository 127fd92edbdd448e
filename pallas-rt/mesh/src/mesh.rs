//! Devices along named axes.
use crate::axis::{Axis, difference};
use pallas_ir::{At, Diag};
use std::fmt;

/// Devices arranged in an array with named axes; `jax.sharding.Mesh`.
///
/// A device's *position* is its row-major number in that array. Compilation uses positions only; running a program
/// looks up the device at a position.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mesh {
    pub(crate) names: Vec<String>,
    pub(crate) sizes: Vec<usize>,
    /// Number of devices: the product of the sizes.
    pub(crate) count: usize,
    /// By position, the number of the device; empty if each device has the number of its position.
    pub(crate) devices: Vec<usize>,
    /// True for the mesh that stands for the axis of a batch, whose positions are examples instead of devices.
    pub(crate) is_batch: bool,
}

/// Maximum number of axes of a mesh, which is refused with more; [`Axis`] stores the number of an axis in a byte.
const MAX_MESH_AXES: usize = 64;
/// Maximum number of devices of a mesh, which is refused with more: the compiler and the plans have lists of all
/// devices.
const MAX_MESH_DEVICES: usize = 1 << 20;

impl Mesh {
    /// Makes a mesh of the devices 0, 1, 2, .. in row-major order, from the name and size of each axis.
    ///
    /// # Errors
    /// An axis of size 0, a name that occurs twice, more than 64 axes, more than 2^20 devices.
    ///
    /// ```
    /// use pallas_mesh::Mesh;
    /// let mesh = Mesh::new(&[("data", 2), ("model", 4)])?;
    /// assert_eq!((mesh.rank(), mesh.device_count()), (2, 8));
    /// assert!(Mesh::new(&[("data", 2), ("data", 4)]).is_err());
    /// # Ok::<(), pallas_ir::Diag>(())
    /// ```
    pub fn new(axes: &[(&str, usize)]) -> Result<Mesh, Diag> {
        Mesh::with_device_limit(axes, MAX_MESH_DEVICES)
    }

    /// Makes a mesh of at most `max_devices` devices, each with the number of its position.
    fn with_device_limit(axes: &[(&str, usize)], max_devices: usize) -> Result<Mesh, Diag> {
        if axes.len() > MAX_MESH_AXES {
            return Err(mesh_error(format!("a mesh of {} axes", axes.len()), "a mesh has at most 64 axes"));
        }
        for (i, (name, size)) in axes.iter().enumerate() {
            if *size == 0 {
                return Err(mesh_error(format!("axis `{name}` has size 0"), "an axis has at least one device"));
            }
            if axes[..i].iter().any(|(other, _)| other == name) {
                return Err(mesh_error(format!("axis `{name}` occurs twice"), "each axis has a name of its own"));
            }
        }
        let count = axes.iter().try_fold(1usize, |n, (_, size)| n.checked_mul(*size));
        let Some(count) = count.filter(|&n| n <= max_devices) else {
            return Err(mesh_error(
                format!("a mesh of {axes:?} has more than {max_devices} devices"),
                "divide fewer ways",
            ));
        };
        let (names, sizes) = axes.iter().map(|(name, size)| ((*name).to_string(), *size)).unzip();
        Ok(Mesh { names, sizes, count, devices: vec![], is_batch: false })
    }

    /// Makes a mesh of these devices, in row-major order of their positions, from the name and size of each axis.
    ///
    /// # Errors
    /// The errors of [`new`](Mesh::new); a number of devices that is not the product of the sizes; a device that occurs
    /// twice.
    pub fn with_devices(axes: &[(&str, usize)], devices: Vec<usize>) -> Result<Mesh, Diag> {
        let mesh = Mesh::new(axes)?;
        if mesh.count != devices.len() {
            let found = format!("{} devices for a mesh of {axes:?}", devices.len());
            return Err(mesh_error(found, "one device for each position: the product of the sizes"));
        }
        let mut sorted = devices.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(mesh_error(
                format!("device {} is at two positions", pair[0]),
                "each device is at one position",
            ));
        }
        let is_in_order = devices.iter().copied().eq(0..mesh.count);
        Ok(if is_in_order { mesh } else { Mesh { devices, ..mesh } })
    }

    /// Makes the mesh with one axis that stands for the axis of a batch of `size` examples: examples take part in
    /// collectives like devices, until the collectives are replaced by operations on the whole batch.
    ///
    /// # Errors
    /// No example; more than 2^31 - 1 examples.
    ///
    /// ```
    /// use pallas_mesh::Mesh;
    /// assert!(Mesh::of_batch("i", 3)?.is_batch());
    /// # Ok::<(), pallas_ir::Diag>(())
    /// ```
    pub fn of_batch(name: &str, size: usize) -> Result<Mesh, Diag> {
        if size == 0 {
            return Err(mesh_error(
                format!("axis `{name}` of a batch without examples"),
                "collectives need one at least",
            ));
        }
        Ok(Mesh { is_batch: true, ..Mesh::with_device_limit(&[(name, size)], i32::MAX as usize)? })
    }

    /// Returns true if the mesh stands for the axis of a batch ([`of_batch`](Mesh::of_batch)).
    pub fn is_batch(&self) -> bool {
        self.is_batch
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// Returns the number of devices, the product of the sizes of the axes.
    pub fn device_count(&self) -> usize {
        self.count
    }

    /// Returns the number of the device at a position.
    pub fn device(&self, position: usize) -> usize {
        if self.devices.is_empty() { position } else { self.devices[position] }
    }

    /// Returns the name of the axis with this number.
    pub fn name(&self, axis: usize) -> &str {
        &self.names[axis]
    }

    /// Returns the size of the axis with this number.
    pub fn size(&self, axis: usize) -> usize {
        self.sizes[axis]
    }

    /// Returns the axis with this number as a whole.
    pub fn axis(&self, axis: usize) -> Axis {
        Axis { id: axis as u8, pre: 1, size: self.sizes[axis] as u32 }
    }

    /// Returns all axes, each as a whole.
    pub fn axes(&self) -> Vec<Axis> {
        (0..self.rank()).map(|axis| self.axis(axis)).collect()
    }

    /// Returns the axis with this name.
    ///
    /// # Errors
    /// No axis of the mesh has the name.
    pub fn find(&self, name: &str) -> Result<Axis, Diag> {
        match self.names.iter().position(|own| own == name) {
            Some(axis) => Ok(self.axis(axis)),
            None => Err(mesh_error(format!("`{name}` is no axis of the mesh {self}"), "name one of its axes")),
        }
    }

    /// Returns the coordinate of a position along an axis or a part of one.
    pub fn coordinate(&self, position: usize, axis: Axis) -> usize {
        let id = usize::from(axis.id);
        let minor: usize = self.sizes[id + 1..].iter().product();
        let whole = position / minor % self.sizes[id];
        let below = self.sizes[id] / axis.next_pre_size() as usize;
        whole / below % axis.size as usize
    }

    /// Returns the row-major coordinate of a position along several axes, the first of which is the slowest.
    pub fn index(&self, position: usize, axes: &[Axis]) -> usize {
        axes.iter().fold(0, |index, &axis| index * axis.size as usize + self.coordinate(position, axis))
    }

    /// Returns the positions, including this one, that have its coordinates along all other axes, in the order of their
    /// [`index`](Mesh::index) along `axes`: the group of a collective.
    pub fn group(&self, position: usize, axes: &[Axis]) -> Vec<usize> {
        let others = difference(&self.axes(), axes);
        let own = self.index(position, &others);
        let mut all: Vec<usize> = (0..self.device_count()).filter(|&p| self.index(p, &others) == own).collect();
        all.sort_by_key(|&p| self.index(p, axes));
        all
    }
}

/// Text of the mesh in Shardy's syntax: `<["data"=2, "model"=4]>`.
impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = self.names.iter().zip(&self.sizes).map(|(name, size)| format!("\"{name}\"={size}"));
        write!(f, "<[{}]", axes.collect::<Vec<_>>().join(", "))?;
        if !self.devices.is_empty() {
            write!(f, ", device_ids={:?}", self.devices)?;
        }
        f.write_str(">")
    }
}

fn mesh_error(problem: String, help: &str) -> Diag {
    Diag::new("mesh", At::Op, problem, help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharding::Sharding;

    #[test]
    fn sizes_that_no_machine_has_are_refused() {
        let refused = |mesh: Result<Mesh, Diag>| mesh.expect_err("too many devices").message;
        assert!(refused(Mesh::new(&[("a", i32::MAX as usize)])).contains("1048576"));
        // The product of the sizes is 0 in 64 bits.
        assert!(refused(Mesh::with_devices(&[("a", 1 << 32), ("b", 1 << 32)], vec![])).contains("1048576"));
        assert_eq!(Mesh::with_devices(&[("a", 2)], vec![0, 1]), Mesh::new(&[("a", 2)]));
        assert_eq!(Mesh::of_batch("i", i32::MAX as usize).map(|mesh| mesh.device_count()), Ok(i32::MAX as usize));
    }

    #[test]
    fn parts_of_axes_whose_sizes_pass_32_bits_are_refused() {
        let mesh = Mesh::new(&[("model", 4)]).expect("a mesh");
        for (pre, size) in [(2_147_483_649, 2), (u32::MAX, u32::MAX), (1 << 31, 1 << 31)] {
            let mut sharding = Sharding::open(1);
            sharding.dims[0].axes.push(Axis { id: 0, pre, size });
            assert!(sharding.verify_for(&mesh, 1, &"f32[8]").is_err(), "({pre}){size}");
        }
    }
}
