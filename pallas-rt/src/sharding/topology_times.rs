//! Times of collectives by closed forms: the links between devices along each axis of a mesh.
use pallas_graph::mesh::{Axis, Collective, CollectiveForm, Mesh, SentPart};
use pallas_ir::{At, Diag, Type};
use std::collections::BTreeMap;

/// A machine with many devices: the links along each axis of its meshes, and the peaks of a device.
///
/// ```
/// use pallas_rt::sharding::{Link, Topology};
/// // 200 TFLOP/s and 800 GB/s a device; a ring of 45 GB/s each way, and a switch.
/// let machine = Topology::new(200e12, 800e9)
///     .link("model", Link::ring(45e9, 1e-6))
///     .link("data", Link::switch(12e9, 5e-6))
///     .memory(16 << 30);
/// assert_eq!(machine.flops(), 200e12);
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Topology {
    flops: f64,
    memory_bandwidth: f64,
    memory: Option<u64>,
    links: BTreeMap<String, Link>,
}

impl Topology {
    /// A machine whose devices compute `flops` operations a second, and read and write `memory_bandwidth` bytes of
    /// memory a second.
    pub fn new(flops: f64, memory_bandwidth: f64) -> Topology {
        Topology { flops, memory_bandwidth, memory: None, links: BTreeMap::new() }
    }

    /// Sets the links along the mesh axis with this name.
    #[must_use]
    pub fn link(mut self, axis: &str, link: Link) -> Topology {
        self.links.insert(axis.into(), link);
        self
    }

    /// Sets the bytes of memory that each device has.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Topology {
        self.memory = Some(bytes);
        self
    }

    /// Operations of a device per second.
    pub fn flops(&self) -> f64 {
        self.flops
    }

    /// Bytes per second that a device reads and writes.
    pub fn memory_bandwidth(&self) -> f64 {
        self.memory_bandwidth
    }

    /// Bytes of a device's memory; `None` if they are not stated.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory
    }

    /// Checks that this machine fits a mesh.
    ///
    /// # Errors
    /// An axis of more than one device without links; a torus of another size than its axis; a rate that is not
    /// positive and finite, a latency that is negative or not finite.
    pub fn verify(&self, mesh: &Mesh) -> Result<(), Diag> {
        let wrong = |found: String, help: &str| Err(Diag::new("topology", At::Op, found, help));
        let is_rate = |x: f64| x.is_finite() && x > 0.0;
        if !is_rate(self.flops) || !is_rate(self.memory_bandwidth) {
            let found = format!("{} operations and {} bytes per second", self.flops, self.memory_bandwidth);
            return wrong(found, "rates are positive numbers");
        }
        for axis in (0..mesh.rank()).filter(|&axis| mesh.size(axis) > 1) {
            let (name, size) = (mesh.name(axis), mesh.size(axis));
            let Some(Link { shape, bandwidth, latency }) = self.links.get(name) else {
                return wrong(format!("no links along the axis `{name}` of {size} devices"), "add `.link(axis, ..)`");
            };
            if !is_rate(*bandwidth) || !latency.is_finite() || *latency < 0.0 {
                let found = format!("links along `{name}` with {bandwidth} bytes per second and {latency} seconds");
                return wrong(found, "a rate is a positive number, a latency is not negative");
            }
            if let NetworkShape::Torus(sides) = shape
                && sides.iter().try_fold(1usize, |n, side| n.checked_mul(*side)) != Some(size)
            {
                let found = format!("a torus of {sides:?} along the axis `{name}` of {size} devices");
                return wrong(found, "the product of a torus' sides is the size of the axis");
            }
        }
        Ok(())
    }
}

/// The links between the devices that differ along one axis of a mesh alone.
#[derive(Clone, PartialEq, Debug)]
pub struct Link {
    shape: NetworkShape,
    /// Bytes per second that a link carries each way at once.
    bandwidth: f64,
    /// Seconds from one device to its neighbour, or through the switch.
    latency: f64,
}

/// The form of the network along an axis; a torus has the extents of its sides.
#[derive(Clone, PartialEq, Debug)]
enum NetworkShape {
    Ring,
    Torus(Vec<usize>),
    Switch,
}

impl Link {
    /// A ring: each device has links to the next and the previous one, the last to the first; two devices have one
    /// link. The links carry `bandwidth` bytes per second each way at once, and a step to a neighbour takes `latency`
    /// seconds.
    pub fn ring(bandwidth: f64, latency: f64) -> Link {
        Link { shape: NetworkShape::Ring, bandwidth, latency }
    }

    /// A torus: the devices of the axis are an array with these extents (`sides`), row-major, and each has the links of
    /// a ring along each of them.
    pub fn torus(sides: &[usize], bandwidth: f64, latency: f64) -> Link {
        Link { shape: NetworkShape::Torus(sides.to_vec()), bandwidth, latency }
    }

    /// A switch: each device has one link to it, and all send and receive at full rate; a message takes `latency`
    /// seconds.
    pub fn switch(bandwidth: f64, latency: f64) -> Link {
        Link { shape: NetworkShape::Switch, bandwidth, latency }
    }
}

/// The links among the members of a collective's group along one axis, or a part of one.
#[derive(Debug)]
struct GroupLinks<'t> {
    link: &'t Link,
    /// Number of members of the group.
    k: usize,
    /// Number of members along each side of a torus; one side for a ring or a switch.
    sides: Vec<usize>,
    /// Number of links from one member to the next: members of a part of an axis may lie apart, and the groups between
    /// them share these links.
    stride: usize,
    /// True if the last member is a neighbour of the first one, as in a ring; false for a part of a ring.
    is_closed: bool,
}

impl GroupLinks<'_> {
    /// Returns the number of directions in which a member of the group sends at once along one side of its ring or
    /// torus, which has `side_members` members: two if the side is a closed ring of more than two members, one if it is
    /// open or has two, 0 for one member.
    fn count_send_directions(&self, side_members: usize) -> usize {
        match side_members {
            1 => 0,
            2 => 1,
            _ => 1 + usize::from(self.is_closed),
        }
    }

    /// Seconds in which a link carries `bytes` for this group; the groups that share it slow it down.
    fn transfer_seconds(&self, bytes: f64) -> f64 {
        bytes * self.stride as f64 / self.link.bandwidth
    }

    /// Latency in seconds between the members that are farthest apart.
    fn max_latency_seconds(&self) -> f64 {
        let hops = |side: usize| if self.is_closed { side / 2 } else { side - 1 };
        self.link.latency * (self.stride * self.sides.iter().map(|&side| hops(side)).sum::<usize>()) as f64
    }

    /// Bytes per second that a member receives if all send and receive at once.
    fn receive_bandwidth(&self) -> f64 {
        let directions = match self.link.shape {
            NetworkShape::Switch => 1,
            NetworkShape::Ring | NetworkShape::Torus(_) => {
                self.sides.iter().map(|&side| self.count_send_directions(side)).sum()
            }
        };
        self.link.bandwidth * directions.max(1) as f64 / self.stride as f64
    }

    /// Seconds of an all-gather of `part_bytes` from each member; a reduce-scatter to `part_bytes` takes as long.
    fn all_gather_seconds(&self, part_bytes: f64) -> f64 {
        if self.k == 1 {
            return 0.0;
        }
        let latency = match self.link.shape {
            // Recursive doubling: Thakur, Rabenseifner and Gropp 2005.
            NetworkShape::Switch => self.link.latency * f64::from(self.k.next_power_of_two().ilog2()),
            NetworkShape::Ring | NetworkShape::Torus(_) => self.max_latency_seconds(),
        };
        latency + (self.k - 1) as f64 * part_bytes / self.receive_bandwidth()
    }

    /// Seconds of an all-to-all in which each member sends `part_bytes` to each other one.
    fn all_to_all_seconds(&self, part_bytes: f64) -> f64 {
        if self.k == 1 {
            return 0.0;
        }
        match self.link.shape {
            // Each member sends to one partner after the other.
            NetworkShape::Switch => (self.k - 1) as f64 * (self.link.latency + part_bytes / self.link.bandwidth),
            NetworkShape::Ring | NetworkShape::Torus(_) => {
                // The sum of distances along a side is side^2 / 4, over as many links as there are members and
                // directions.
                let load = |&side: &usize| match self.count_send_directions(side) {
                    0 => 0.0,
                    n => (self.k / side * (side * side / 4)) as f64 / n as f64,
                };
                self.max_latency_seconds()
                    + self.transfer_seconds(self.sides.iter().map(load).fold(0.0, f64::max) * part_bytes)
            }
        }
    }

    /// Seconds of messages of `bytes` each between members; `moves` are their coordinates along the axis, (source,
    /// target).
    fn messages_seconds(&self, moves: &[(usize, usize)], bytes: f64) -> f64 {
        let moves: Vec<(usize, usize)> = moves.iter().copied().filter(|(from, to)| from != to).collect();
        if moves.is_empty() {
            return 0.0;
        }
        if self.link.shape == NetworkShape::Switch {
            let mut sent: BTreeMap<usize, usize> = BTreeMap::new();
            moves.iter().for_each(|(from, _)| *sent.entry(*from).or_default() += 1);
            return self.link.latency + bytes * sent.into_values().max().unwrap_or(0) as f64 / self.link.bandwidth;
        }
        // By member, side and direction, the messages over that link.
        let mut loads: BTreeMap<(usize, usize, bool), usize> = BTreeMap::new();
        let mut farthest = 0;
        for (mut at, to) in moves {
            let mut hops = 0;
            for (number, &side) in self.sides.iter().enumerate() {
                let below: usize = self.sides[number + 1..].iter().product();
                let [own, goal] = [at, to].map(|member| member / below % side);
                let ahead = (goal + side - own) % side;
                let is_forward = if self.is_closed { ahead <= side / 2 } else { own <= goal };
                let count = if is_forward { ahead } else { (side - ahead) % side };
                for step in 0..count {
                    let along = if is_forward { (own + step) % side } else { (own + side - step) % side };
                    let member = at - own * below + along * below;
                    *loads.entry((member, number, is_forward)).or_default() += 1;
                }
                at = at - own * below + goal * below;
                hops += count;
            }
            farthest = farthest.max(hops);
        }
        let most = loads.into_values().max().unwrap_or(0);
        self.link.latency * (farthest * self.stride) as f64 + self.transfer_seconds(bytes * most as f64)
    }
}

impl Topology {
    /// The links among the members of a group along an axis or a part of one.
    fn group_links(&self, mesh: &Mesh, axis: Axis) -> GroupLinks<'_> {
        let (id, k) = (usize::from(axis.id), axis.len());
        let link = &self.links[mesh.name(id)];
        let is_whole = k == mesh.size(id);
        let sides = match &link.shape {
            NetworkShape::Torus(sides) if is_whole => sides.clone(),
            NetworkShape::Ring | NetworkShape::Torus(_) | NetworkShape::Switch => vec![k],
        };
        let stride = if link.shape == NetworkShape::Switch { 1 } else { mesh.size(id) / axis.next_pre_size() as usize };
        GroupLinks { link, k, sides, stride, is_closed: axis.pre == 1 }
    }

    /// Seconds of a collective in which each device has an operand of this type, by closed forms of a ring, a torus and
    /// a switch (in the guide, page `planning`). A collective along several axes runs along one after the other, in the
    /// order that takes the least time. The machine has to fit the mesh ([`verify`](Topology::verify)).
    pub(crate) fn collective_seconds(&self, op: &Collective, operand: &Type) -> f64 {
        let axes = op.axes.iter().filter(|axis| axis.size > 1);
        let ways: Vec<GroupLinks<'_>> = axes.map(|&axis| self.group_links(&op.mesh, axis)).collect();
        let (bytes, k) = (operand.bytes() as f64, op.group_size());
        match op.first_member_form() {
            CollectiveForm::Stack(SentPart::Whole) => sequential_gather_seconds(&ways, bytes),
            CollectiveForm::Fold(_, SentPart::Part) => sequential_gather_seconds(&ways, bytes / k as f64),
            // A reduce-scatter, then an all-gather.
            CollectiveForm::Fold(_, SentPart::Whole) => {
                2.0 * sequential_gather_seconds(&ways, operand.bytes().div_ceil(k) as f64)
            }
            CollectiveForm::Stack(SentPart::Part) => {
                ways.iter().map(|way| way.all_to_all_seconds(bytes / way.k as f64)).sum()
            }
            CollectiveForm::FromMember(_) => self.permutation_seconds(op, &op.source_members(), bytes),
            CollectiveForm::Constant(_) | CollectiveForm::Own => 0.0,
        }
    }

    /// Seconds of a permutation: along each axis in turn, messages go to the coordinate of their target. `sources` has
    /// the source for each target, as numbers in the group.
    fn permutation_seconds(&self, op: &Collective, sources: &[Option<usize>], bytes: f64) -> f64 {
        let sizes: Vec<usize> = op.axes.iter().map(|axis| axis.len()).collect();
        let coordinate =
            |member: usize, axis: usize| member / sizes[axis + 1..].iter().product::<usize>() % sizes[axis];
        let mut seconds = 0.0;
        for (number, &axis) in op.axes.iter().enumerate().filter(|(_, axis)| axis.size > 1) {
            let way = self.group_links(&op.mesh, axis);
            // Messages share the links of a line if they have the same coordinates along the axes before this one
            // (those of the target, where they are by then) and after it (those of the source).
            let mut lines: BTreeMap<Vec<usize>, Vec<(usize, usize)>> = BTreeMap::new();
            for (to, from) in sources.iter().enumerate().filter_map(|(to, from)| Some((to, (*from)?))) {
                let others = (0..sizes.len()).filter(|&other| other != number);
                let line = others.map(|other| coordinate(if other < number { to } else { from }, other)).collect();
                lines.entry(line).or_default().push((coordinate(from, number), coordinate(to, number)));
            }
            seconds += lines.values().map(|moves| way.messages_seconds(moves, bytes)).fold(0.0, f64::max);
        }
        seconds
    }
}

/// Seconds in which members get the `part_bytes` of all others, along one axis after the other: the slowest one first,
/// while the parts are small, which takes the least time.
fn sequential_gather_seconds(links: &[GroupLinks<'_>], mut part_bytes: f64) -> f64 {
    let mut order: Vec<&GroupLinks<'_>> = links.iter().collect();
    order.sort_by(|a, b| a.receive_bandwidth().total_cmp(&b.receive_bandwidth()));
    let mut seconds = 0.0;
    for way in order {
        seconds += way.all_gather_seconds(part_bytes);
        part_bytes *= way.k as f64;
    }
    seconds
}
