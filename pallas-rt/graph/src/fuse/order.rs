//! An order of clusters while they grow, by which a circle among them is found in a short search.
//!
//! Pearce and Kelly, "A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs" (2006), with merged nodes in place
//! of new edges.
use crate::graph::Graph;
use std::collections::BTreeSet;

/// Clusters, and equations that belong to none yet, each after those that it reads from.
pub(super) struct Order {
    /// By equation, the root of its cluster, or itself.
    node: Vec<usize>,
    /// By root, the equations of the cluster.
    members: Vec<Vec<usize>>,
    /// By root, its place in the order.
    place: Vec<usize>,
    /// By equation, those that it reads from, and those that read from it.
    sources: Vec<Vec<usize>>,
    readers: Vec<Vec<usize>>,
}

impl Order {
    /// That of the equations of a graph.
    pub(super) fn new(graph: &Graph) -> Order {
        let (definitions, uses) = (graph.definitions(), graph.uses());
        let all = || 0..graph.equations.len();
        let sources = graph.equations.iter().map(|e| e.args.iter().filter_map(|v| definitions[v.index()]).collect());
        let readers = graph.equations.iter().map(|e| e.results.iter().flat_map(|v| uses[v.index()].clone()).collect());
        Order {
            node: all().collect(),
            members: all().map(|i| vec![i]).collect(),
            place: all().collect(),
            sources: sources.collect(),
            readers: readers.collect(),
        }
    }

    /// The equations that an equation reads from.
    pub(super) fn sources(&self, i: usize) -> &[usize] {
        &self.sources[i]
    }

    /// The root of the cluster of an equation, or the equation itself.
    pub(super) fn root(&self, i: usize) -> usize {
        self.node[i]
    }

    /// Returns true if a cluster would depend on itself by way of others with this equation, or with that one's cluster, from
    /// which it reads.
    pub(super) fn closes_circle(&self, i: usize, root: usize) -> bool {
        self.following(i, root).is_none()
    }

    /// What follows from an equation or its cluster and comes before another cluster; `None` if that one follows from some of
    /// it.
    fn following(&self, i: usize, root: usize) -> Option<BTreeSet<usize>> {
        let mut found = BTreeSet::new();
        let is_before = |&next: &usize| self.place[next] < self.place[root];
        let readers = self.members[i].iter().flat_map(|&i| &self.readers[i]).map(|&reader| self.node[reader]);
        let mut stack: Vec<usize> = readers.filter(|&next| next != i && is_before(&next)).collect();
        while let Some(node) = stack.pop() {
            if !found.insert(node) {
                continue;
            }
            for next in self.members[node].iter().flat_map(|&i| &self.readers[i]).map(|&reader| self.node[reader]) {
                if next == root {
                    return None;
                }
                if next != node && is_before(&next) {
                    stack.push(next);
                }
            }
        }
        Some(found)
    }

    /// What a cluster follows from and that comes after an equation.
    fn leading(&self, i: usize, root: usize) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut stack = vec![root];
        while let Some(node) = stack.pop() {
            for next in self.members[node].iter().flat_map(|&i| &self.sources[i]).map(|&from| self.node[from]) {
                if next != root && self.place[next] > self.place[i] && found.insert(next) {
                    stack.push(next);
                }
            }
        }
        found
    }

    /// Makes an equation, or all of a cluster, members of a cluster that reads from it, which closes no circle.
    pub(super) fn merge(&mut self, i: usize, root: usize) {
        let following = self.following(i, root).expect("no circle is closed");
        if !following.is_empty() {
            // What leads to the cluster comes first, then the cluster, then what follows from the new member.
            let leading = self.leading(i, root);
            let by_place = |nodes: BTreeSet<usize>| {
                let mut nodes: Vec<usize> = nodes.into_iter().collect();
                nodes.sort_by_key(|&node| self.place[node]);
                nodes
            };
            let nodes = [by_place(leading), vec![root], by_place(following)].concat();
            let mut places: Vec<usize> = nodes.iter().map(|&node| self.place[node]).collect();
            places.sort_unstable();
            nodes.into_iter().zip(places).for_each(|(node, place)| self.place[node] = place);
        }
        let joining = std::mem::take(&mut self.members[i]);
        joining.iter().for_each(|&member| self.node[member] = root);
        self.members[root].extend(joining);
    }
}
