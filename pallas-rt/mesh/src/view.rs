//! Translation of shardings between meshes of the same devices with different axes; each mesh is called a view of the
//! other.
//!
//! ```text
//! <["data"=2, "model"=4]> seen from <["x"=8]>      data is "x":(1)2      model is "x":(2)4
//! ```
use crate::axis::{Axis, push_merged};
use crate::{DimSharding, Mesh, Sharding};

impl Mesh {
    /// Returns, for each position of the mesh `other`, the position of the same device on this mesh; `None` if the
    /// meshes have different devices.
    ///
    /// ```
    /// use pallas_mesh::Mesh;
    /// let [a, b] = [Mesh::new(&[("x", 2)])?, Mesh::with_devices(&[("y", 2)], vec![1, 0])?];
    /// assert_eq!(a.positions_of(&b), Some(vec![1, 0]));
    /// # Ok::<(), pallas_ir::Diag>(())
    /// ```
    pub fn positions_of(&self, other: &Mesh) -> Option<Vec<usize>> {
        if self.count != other.count || self.is_batch || other.is_batch {
            return None;
        }
        if self.devices == other.devices {
            return Some((0..self.count).collect());
        }
        let mut own: Vec<(usize, usize)> = (0..self.count).map(|position| (self.device(position), position)).collect();
        own.sort_unstable();
        let find = |device: usize| own.binary_search_by_key(&device, |pair| pair.0).ok().map(|at| own[at].1);
        (0..self.count).map(|position| find(other.device(position))).collect()
    }

    /// Translates a sharding from the mesh `other` to this one, so that each device keeps its block; `None` if `other`
    /// has different devices, or if the axes that are used are not made of parts of this mesh's axes.
    ///
    /// ```
    /// use pallas_mesh::{Mesh, Sharding};
    /// let [flat, square] = [Mesh::new(&[("x", 8)])?, Mesh::new(&[("data", 2), ("model", 4)])?];
    /// let rows = Sharding::parse(r#"[{"x"}, {}]"#, &flat).expect("a sharding");
    /// let on_square = square.translate_sharding(&flat, &rows).expect("a view");
    /// assert_eq!(on_square.text(&square), r#"[{"data", "model"}, {}]"#);
    /// let columns = Sharding::parse(r#"[{}, {"model"}]"#, &square).expect("a sharding");
    /// let on_flat = flat.translate_sharding(&square, &columns).expect("a view");
    /// assert_eq!(on_flat.text(&flat), r#"[{}, {"x":(2)4}]"#);
    /// # Ok::<(), pallas_ir::Diag>(())
    /// ```
    pub fn translate_sharding(&self, other: &Mesh, sharding: &Sharding) -> Option<Sharding> {
        let all = self.decompose_axes(other)?;
        let seen = |axes: &[Axis]| -> Option<Vec<Axis>> {
            let mut found = vec![];
            for axis in axes {
                composite_axis_part(&all[usize::from(axis.id)], *axis)?
                    .into_iter()
                    .for_each(|axis| push_merged(&mut found, axis));
            }
            Some(found)
        };
        let dims = sharding.dims.iter().map(|dim| Some(DimSharding { axes: seen(&dim.axes)?, ..dim.clone() }));
        let dims = dims.collect::<Option<_>>()?;
        let found = Sharding { dims, replicated: seen(&sharding.replicated)?, unreduced: seen(&sharding.unreduced)? };
        Some(found.normal(self))
    }

    /// Returns true if the other mesh has the same devices, and its axes are made of parts of this mesh's axes.
    pub fn is_view(&self, other: &Mesh) -> bool {
        self == other || self.decompose_axes(other).is_some()
    }

    /// Returns, for each axis of `other`, the parts of this mesh's axes that it is made of, the slowest first; `None`
    /// if the meshes have different devices, or an axis of `other` is not made of such parts.
    fn decompose_axes(&self, other: &Mesh) -> Option<Vec<Vec<Axis>>> {
        let positions = self.positions_of(other)?;
        if positions.first() != Some(&0) {
            return None;
        }
        let axes: Vec<Vec<Axis>> =
            (0..other.rank()).map(|axis| self.decompose_axis(other, axis, &positions)).collect::<Option<_>>()?;
        // The steps along one axis alone were looked at.
        let agree = |position: usize| {
            let of = |axis: usize| {
                other.coordinate(position, other.axis(axis)) == self.index(positions[position], &axes[axis])
            };
            (0..other.rank()).all(of)
        };
        (0..self.count).all(agree).then_some(axes)
    }

    /// Returns the parts of this mesh's axes along which the position changes with the coordinate along one axis of
    /// `other`, the slowest first. `positions` is [`positions_of`](Mesh::positions_of) the other mesh.
    fn decompose_axis(&self, other: &Mesh, axis: usize, positions: &[usize]) -> Option<Vec<Axis>> {
        let minor: usize = other.sizes[axis + 1..].iter().product();
        let (mut left, mut step, mut fastest) = (other.sizes[axis], 1, vec![]);
        while left > 1 {
            // A move by `step` positions along the other mesh's axis has to change a single coordinate.
            let to = positions[step * minor];
            let mut moved = (0..self.rank()).filter(|&own| self.coordinate(to, self.axis(own)) > 0);
            let (Some(own), None) = (moved.next(), moved.next()) else { return None };
            let below = self.coordinate(to, self.axis(own));
            if !self.sizes[own].is_multiple_of(below) {
                return None;
            }
            let above = self.sizes[own] / below;
            let size = (2..=left.min(above)).find(|&n| left.is_multiple_of(n) && above.is_multiple_of(n))?;
            fastest.push(Axis { id: own as u8, pre: (above / size) as u32, size: size as u32 });
            (left, step) = (left / size, step * size);
        }
        let mut axes = vec![];
        fastest.into_iter().rev().for_each(|axis| push_merged(&mut axes, axis));
        Some(axes)
    }
}

/// Returns the axes and parts of axes that make up `part` of the axis composed of all of `axes`, the slowest first;
/// `None` if `part` begins or ends inside of one that cannot be divided there.
fn composite_axis_part(axes: &[Axis], part: Axis) -> Option<Vec<Axis>> {
    let (mut skip, mut left, mut found) = (part.pre as usize, part.len(), vec![]);
    for &axis in axes {
        let mut axis = axis;
        if skip > 1 {
            let first = skip.min(axis.len());
            if !axis.len().is_multiple_of(first) || !skip.is_multiple_of(first) {
                return None;
            }
            (skip, axis) = (skip / first, axis.without_first_part(first));
        }
        if axis.len() > 1 && left > 1 {
            let own = left.min(axis.len());
            if !axis.len().is_multiple_of(own) || !left.is_multiple_of(own) {
                return None;
            }
            found.push(axis.first_part(own));
            left /= own;
        }
    }
    (left == 1).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(axes: &[(&str, usize)]) -> Mesh {
        Mesh::new(axes).expect("a mesh")
    }

    /// Translates a sharding, and checks that each device has the same block before and after.
    fn check(from: &Mesh, to: &Mesh, text: &str) -> Option<String> {
        let sharding = Sharding::parse(text, from).expect("a sharding");
        let seen = to.translate_sharding(from, &sharding)?;
        let positions = to.positions_of(from).expect("the same devices");
        for (position, &own) in positions.iter().enumerate() {
            for (a, b) in sharding.dims.iter().zip(&seen.dims) {
                assert_eq!(from.index(position, &a.axes), to.index(own, &b.axes), "{text} from {from} to {to}");
                assert_eq!((a.open, a.priority), (b.open, b.priority));
            }
        }
        assert_eq!(seen.verify_for(to, seen.dims.len(), &"x"), Ok(()));
        Some(seen.text(to))
    }

    #[test]
    fn a_sharding_on_a_view_divides_alike() {
        let (square, flat) = (mesh(&[("data", 2), ("model", 4)]), mesh(&[("x", 8)]));
        let tall = mesh(&[("a", 4), ("b", 1), ("c", 2)]);
        let some = |text: &str| Some(text.to_string());
        assert_eq!(check(&flat, &square, r#"[{"x", ?}p1]"#), some(r#"[{"data", "model", ?}p1]"#));
        assert_eq!(check(&flat, &square, r#"[{"x":(1)4}]"#), some(r#"[{"data", "model":(1)2}]"#));
        assert_eq!(check(&flat, &tall, r#"[{"x":(2)4}]"#), some(r#"[{"a":(2)2, "c"}]"#));
        assert_eq!(
            check(&tall, &square, r#"[{"c"}, {"b", "a"}]"#),
            some(r#"[{"model":(2)2}, {"data", "model":(1)2}]"#)
        );
        assert_eq!(
            check(&tall, &flat, r#"[{"b"}], replicated={"a"}, unreduced={"c"}"#),
            some(r#"[{}], replicated={"x":(1)4}, unreduced={"x":(4)2}"#)
        );
        let (six, other) = (mesh(&[("x", 6)]), mesh(&[("a", 3), ("b", 2)]));
        assert_eq!(check(&six, &other, r#"[{"x"}]"#), some(r#"[{"a", "b"}]"#));
        assert_eq!(check(&other, &six, r#"[{"b"}, {"a"}]"#), some(r#"[{"x":(3)2}, {"x":(1)3}]"#));
        // Two parts of three, and three parts of two, have no part in common.
        assert_eq!(check(&mesh(&[("a", 2), ("b", 3)]), &other, r#"[{"a"}]"#), None);
        // Devices in the other order of the axes, and in one that is no order of axes.
        let turned = Mesh::with_devices(&[("p", 4), ("q", 2)], vec![0, 4, 1, 5, 2, 6, 3, 7]).expect("a mesh");
        assert_eq!(check(&turned, &square, r#"[{"p"}, {"q"}]"#), some(r#"[{"model"}, {"data"}]"#));
        assert_eq!(check(&turned, &square, r#"[{"p", "q"}]"#), some(r#"[{"model", "data"}]"#));
        let mixed = Mesh::with_devices(&[("p", 8)], vec![0, 1, 2, 3, 4, 5, 7, 6]).expect("a mesh");
        assert_eq!(check(&mixed, &square, r#"[{"p"}]"#), None);
        let elsewhere = Mesh::with_devices(&[("p", 2)], vec![1, 2]).expect("a mesh");
        assert_eq!(check(&elsewhere, &mesh(&[("p", 2)]), r#"[{"p"}]"#), None);
    }
}
