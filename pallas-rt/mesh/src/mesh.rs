//! Devices along named axes.
use crate::axis::{Axis, difference};
use pallas_ir::{At, Diag};
use std::fmt;

/// Devices in an array with named axes; `jax.sharding.Mesh`.
///
/// A device's *position* is its row-major number in that array. Everything that compiles speaks of positions; only what runs
/// a program asks which device is at one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mesh {
    pub(crate) names: Vec<String>,
    pub(crate) sizes: Vec<usize>,
    /// Number of devices.
    pub(crate) count: usize,
    /// By position, the device; empty if each has the number of its position.
    pub(crate) devices: Vec<usize>,
    /// True for the axis of a batch, along which examples lie in place of devices.
    pub(crate) is_batch: bool,
}

/// Axes of a mesh: [`Axis`] has their number in a byte.
const MOST_AXES: usize = 64;
/// Most devices of a mesh: what is planned for them has lists of all.
const MOST_DEVICES: usize = 1 << 20;

impl Mesh {
    /// The devices from 0 on, in row-major order.
    ///
    /// # Errors
    /// An axis of size 0, a name twice, more than 64 axes, more than 2^20 devices.
    ///
    /// ```
    /// use pallas_mesh::Mesh;
    /// let mesh = Mesh::new(&[("data", 2), ("model", 4)])?;
    /// assert_eq!((mesh.rank(), mesh.devices()), (2, 8));
    /// assert!(Mesh::new(&[("data", 2), ("data", 4)]).is_err());
    /// # Ok::<(), pallas_ir::Diag>(())
    /// ```
    pub fn new(axes: &[(&str, usize)]) -> Result<Mesh, Diag> {
        Mesh::in_order(axes, MOST_DEVICES)
    }

    /// At most so many devices, each with the number of its position.
    fn in_order(axes: &[(&str, usize)], most: usize) -> Result<Mesh, Diag> {
        if axes.len() > MOST_AXES {
            return Err(wrong(format!("a mesh of {} axes", axes.len()), "a mesh has at most 64 axes"));
        }
        for (i, (name, size)) in axes.iter().enumerate() {
            if *size == 0 {
                return Err(wrong(format!("axis `{name}` has size 0"), "an axis has at least one device"));
            }
            if axes[..i].iter().any(|(other, _)| other == name) {
                return Err(wrong(format!("axis `{name}` occurs twice"), "each axis has a name of its own"));
            }
        }
        let count = axes.iter().try_fold(1usize, |n, (_, size)| n.checked_mul(*size));
        let Some(count) = count.filter(|&n| n <= most) else {
            return Err(wrong(format!("a mesh of {axes:?} has more than {most} devices"), "divide fewer ways"));
        };
        let (names, sizes) = axes.iter().map(|(name, size)| ((*name).to_string(), *size)).unzip();
        Ok(Mesh { names, sizes, count, devices: vec![], is_batch: false })
    }

    /// These devices, in row-major order of their positions.
    ///
    /// # Errors
    /// As for [`new`](Mesh::new); another number of devices than the axes have positions; a device twice.
    pub fn with_devices(axes: &[(&str, usize)], devices: Vec<usize>) -> Result<Mesh, Diag> {
        let mesh = Mesh::new(axes)?;
        if mesh.count != devices.len() {
            let found = format!("{} devices for a mesh of {axes:?}", devices.len());
            return Err(wrong(found, "one device for each position: the product of the sizes"));
        }
        let mut sorted = devices.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(wrong(format!("device {} is at two positions", pair[0]), "each device is at one position"));
        }
        let is_in_order = devices.iter().copied().eq(0..mesh.count);
        Ok(if is_in_order { mesh } else { Mesh { devices, ..mesh } })
    }

    /// The axis of a batch, as the only one of a mesh: its examples take part in collectives like devices, until
    /// operations on the whole batch take their place.
    ///
    /// # Errors
    /// No example; more than 2^31 - 1.
    ///
    /// ```
    /// use pallas_mesh::Mesh;
    /// assert!(Mesh::of_batch("i", 3)?.is_batch());
    /// # Ok::<(), pallas_ir::Diag>(())
    /// ```
    pub fn of_batch(name: &str, size: usize) -> Result<Mesh, Diag> {
        if size == 0 {
            return Err(wrong(format!("axis `{name}` of a batch without examples"), "collectives need one at least"));
        }
        Ok(Mesh { is_batch: true, ..Mesh::in_order(&[(name, size)], i32::MAX as usize)? })
    }

    /// Returns true for the axis of a batch.
    pub fn is_batch(&self) -> bool {
        self.is_batch
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// Number of devices.
    pub fn devices(&self) -> usize {
        self.count
    }

    /// The device at a position.
    pub fn device(&self, position: usize) -> usize {
        if self.devices.is_empty() { position } else { self.devices[position] }
    }

    /// The name of an axis.
    pub fn name(&self, axis: usize) -> &str {
        &self.names[axis]
    }

    /// The size of an axis.
    pub fn size(&self, axis: usize) -> usize {
        self.sizes[axis]
    }

    /// A whole axis.
    pub fn axis(&self, axis: usize) -> Axis {
        Axis { id: axis as u8, pre: 1, size: self.sizes[axis] as u32 }
    }

    /// All axes.
    pub fn axes(&self) -> Vec<Axis> {
        (0..self.rank()).map(|axis| self.axis(axis)).collect()
    }

    /// The axis with a name.
    ///
    /// # Errors
    /// No axis has it.
    pub fn find(&self, name: &str) -> Result<Axis, Diag> {
        match self.names.iter().position(|own| own == name) {
            Some(axis) => Ok(self.axis(axis)),
            None => Err(wrong(format!("`{name}` is no axis of the mesh {self}"), "name one of its axes")),
        }
    }

    /// The coordinate of a position along an axis.
    pub fn coordinate(&self, position: usize, axis: Axis) -> usize {
        let id = usize::from(axis.id);
        let minor: usize = self.sizes[id + 1..].iter().product();
        let whole = position / minor % self.sizes[id];
        let below = self.sizes[id] / axis.next() as usize;
        whole / below % axis.size as usize
    }

    /// The row-major coordinate of a position along several axes, of which the first one is the slowest.
    pub fn index(&self, position: usize, axes: &[Axis]) -> usize {
        axes.iter().fold(0, |index, &axis| index * axis.size as usize + self.coordinate(position, axis))
    }

    /// The positions that differ from one along these axes alone, in the order of their [`index`](Mesh::index) there.
    pub fn group(&self, position: usize, axes: &[Axis]) -> Vec<usize> {
        let others = difference(&self.axes(), axes);
        let own = self.index(position, &others);
        let mut all: Vec<usize> = (0..self.devices()).filter(|&p| self.index(p, &others) == own).collect();
        all.sort_by_key(|&p| self.index(p, axes));
        all
    }
}

/// `"data"=2, "model"=4`, as in Shardy's text.
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

fn wrong(found: String, help: &str) -> Diag {
    Diag::new("mesh", At::Op, found, help)
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
        assert_eq!(Mesh::of_batch("i", i32::MAX as usize).map(|mesh| mesh.devices()), Ok(i32::MAX as usize));
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
