//! A topological order of clusters while they grow, with which cycles among them are found in a short search.
//!
//! Pearce and Kelly, "A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs" (2006), with merges of nodes in
//! place of new edges.
use crate::graph::Graph;
use std::collections::BTreeSet;

/// A topological order of clusters, and of equations that belong to no cluster yet: each comes after those that it
/// reads from.
pub(super) struct ClusterOrder {
    /// By equation, the equation that represents its cluster, the root; the equation itself without a cluster.
    node: Vec<usize>,
    /// By root, the equations of its cluster.
    members: Vec<Vec<usize>>,
    /// By root, its position in the order.
    place: Vec<usize>,
    /// By equation, the equations that it reads from.
    sources: Vec<Vec<usize>>,
    /// By equation, the equations that read from it.
    readers: Vec<Vec<usize>>,
}

impl ClusterOrder {
    /// Returns the order in which a graph's equations stand, each as a node of its own.
    pub(super) fn new(graph: &Graph) -> ClusterOrder {
        let (definitions, uses) = (graph.definitions(), graph.uses());
        let all = || 0..graph.equations.len();
        let sources = graph.equations.iter().map(|e| e.args.iter().filter_map(|v| definitions[v.index()]).collect());
        let readers = graph.equations.iter().map(|e| e.results.iter().flat_map(|v| uses[v.index()].clone()).collect());
        ClusterOrder {
            node: all().collect(),
            members: all().map(|i| vec![i]).collect(),
            place: all().collect(),
            sources: sources.collect(),
            readers: readers.collect(),
        }
    }

    /// Returns the equations that an equation reads from.
    pub(super) fn source_equations(&self, equation: usize) -> &[usize] {
        &self.sources[equation]
    }

    /// Returns the root of the cluster that contains an equation: the member that stands for the cluster in the order.
    /// An equation without a cluster is its own root.
    pub(super) fn cluster_root(&self, equation: usize) -> usize {
        self.node[equation]
    }

    /// Returns true if the cluster of `cluster_root` would depend on itself by way of others after merging with node
    /// `merged`, from which it reads.
    pub(super) fn would_close_cycle(&self, merged: usize, cluster_root: usize) -> bool {
        self.dependents_before(merged, cluster_root).is_none()
    }

    /// Returns the nodes that depend on node `merged` and come before `cluster_root` in the order; `None` if
    /// `cluster_root` depends on one of them.
    fn dependents_before(&self, merged: usize, cluster_root: usize) -> Option<BTreeSet<usize>> {
        let mut found = BTreeSet::new();
        let is_before = |&next: &usize| self.place[next] < self.place[cluster_root];
        let readers = self.members[merged].iter().flat_map(|&i| &self.readers[i]).map(|&reader| self.node[reader]);
        let mut stack: Vec<usize> = readers.filter(|&next| next != merged && is_before(&next)).collect();
        while let Some(node) = stack.pop() {
            if !found.insert(node) {
                continue;
            }
            for next in self.members[node].iter().flat_map(|&i| &self.readers[i]).map(|&reader| self.node[reader]) {
                if next == cluster_root {
                    return None;
                }
                if next != node && is_before(&next) {
                    stack.push(next);
                }
            }
        }
        Some(found)
    }

    /// Returns the nodes on which `cluster_root` depends and that come after node `merged` in the order.
    fn dependencies_after(&self, merged: usize, cluster_root: usize) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut stack = vec![cluster_root];
        while let Some(node) = stack.pop() {
            for next in self.members[node].iter().flat_map(|&i| &self.sources[i]).map(|&from| self.node[from]) {
                if next != cluster_root && self.place[next] > self.place[merged] && found.insert(next) {
                    stack.push(next);
                }
            }
        }
        found
    }

    /// Merges node `merged` into the cluster of `cluster_root`, which reads from it; the merge must close no cycle.
    pub(super) fn merge_into(&mut self, merged: usize, cluster_root: usize) {
        let following = self.dependents_before(merged, cluster_root).expect("no circle is closed");
        if !following.is_empty() {
            // First come the nodes on which the cluster depends, then the cluster, then those that depend on the new
            // member.
            let leading = self.dependencies_after(merged, cluster_root);
            let by_place = |nodes: BTreeSet<usize>| {
                let mut nodes: Vec<usize> = nodes.into_iter().collect();
                nodes.sort_by_key(|&node| self.place[node]);
                nodes
            };
            let nodes = [by_place(leading), vec![cluster_root], by_place(following)].concat();
            let mut places: Vec<usize> = nodes.iter().map(|&node| self.place[node]).collect();
            places.sort_unstable();
            nodes.into_iter().zip(places).for_each(|(node, place)| self.place[node] = place);
        }
        let joining = std::mem::take(&mut self.members[merged]);
        joining.iter().for_each(|&member| self.node[member] = cluster_root);
        self.members[cluster_root].extend(joining);
    }
}
