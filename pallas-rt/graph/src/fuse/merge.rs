//! Merges two clusters where one reads the other's results block by block.
//!
//! ```text
//! b = tanh x   c = b y   d = x b      (c grows first, and has b; d reads it)    ->    one kernel: b, c, d
//! ```
//! A cluster grows from one value backwards. Where functions have several results, as gradients by several arguments
//! do, another result would read again what the first one's kernel computed.
//!
//! ```text
//! p = softmax(q k)   o = p v          (p is larger than v and o)    ->    one kernel: p, o
//! ```
//! On a CPU, a program has whole sums and also multiplies the block that it computed from a product, if that array is
//! the largest one of the next product: writing and reading it would take longer than the products.
use super::axis_tiling::AxisTiling;
use super::cluster::Cluster;
use super::grow::{ClusterGrower, MAX_CLUSTER_EQUATIONS};
use super::topological_order::ClusterOrder;
use crate::graph::{Op, Var};
use pallas_ir::StructuralOp;
use std::collections::{BTreeMap, BTreeSet};

/// Merges clusters until no two of them can be merged.
pub(super) fn merge_clusters(grow: &mut ClusterGrower<'_, '_>, order: &mut ClusterOrder) {
    let mut clusters: Vec<Option<Cluster>> = std::mem::take(&mut grow.found.all).into_iter().map(Some).collect();
    for reader in 0..clusters.len() {
        let Some(mut own) = clusters[reader].take() else { continue };
        while let Some(made) = producer_clusters(grow, order, &own)
            .into_iter()
            .find(|&i| clusters[i].as_ref().is_some_and(|other| can_merge(grow, order, other, &own)))
        {
            let other = clusters[made].take().expect("it was there");
            order.merge_into(cluster_root(order, &other), cluster_root(order, &own));
            own = join_clusters(grow, other, own);
            own.members.iter().for_each(|&i| grow.found.owner[i] = Some(reader));
        }
        clusters[reader] = Some(own);
    }
    let mut numbers = vec![None; clusters.len()];
    let (mut all, mut count) = (vec![], 0);
    for (i, cluster) in clusters.into_iter().enumerate() {
        if let Some(cluster) = cluster {
            numbers[i] = Some(count);
            all.push(cluster);
            count += 1;
        }
    }
    let owner = grow.found.owner.iter().map(|owner| owner.and_then(|i| numbers[i])).collect();
    grow.found.owner = owner;
    grow.found.all = all;
}

/// Returns the equation that represents a cluster in the topological order.
fn cluster_root(order: &ClusterOrder, cluster: &Cluster) -> usize {
    order.cluster_root(*cluster.members.first().expect("a cluster has members"))
}

/// Returns the indices of the clusters that compute the values which cluster `consumer` reads.
fn producer_clusters(grow: &ClusterGrower<'_, '_>, order: &ClusterOrder, consumer: &Cluster) -> BTreeSet<usize> {
    let from =
        consumer.members.iter().flat_map(|&i| order.source_equations(i)).filter(|i| !consumer.members.contains(i));
    from.filter_map(|&i| grow.found.owner[i]).collect()
}

/// Returns true if cluster `consumer`, which reads from `producer`, can be merged with it: their programs have the same
/// blocks, and limits are kept.
fn can_merge(grow: &ClusterGrower<'_, '_>, order: &ClusterOrder, producer: &Cluster, consumer: &Cluster) -> bool {
    let is_plain = |cluster: &Cluster| !cluster.tilings.is_empty() && cluster.panels.is_empty();
    is_plain(producer)
        && is_plain(consumer)
        && (consumer.product.is_none() || can_chain_products(grow, producer, consumer))
        && producer.extents == consumer.extents
        && producer.members.len() + consumer.members.len() <= MAX_CLUSTER_EQUATIONS
        && can_sort_together(grow, producer, consumer)
        && count_merged_operands(grow, producer, consumer) <= grow.sizes.operands
        && reads_own_blocks(grow, producer, consumer)
        && !order.would_close_cycle(cluster_root(order, producer), cluster_root(order, consumer))
}

/// Returns true if the product of `consumer` multiplies an array that `producer` computes from its product, and that
/// array is larger than the other operand and the result together.
fn can_chain_products(grow: &ClusterGrower<'_, '_>, producer: &Cluster, consumer: &Cluster) -> bool {
    let (None, Some(_), Some(product)) = (grow.sizes.panel, producer.product, consumer.product) else { return false };
    let e = &grow.graph.equations[product];
    let elements = |v: Var| grow.graph.ty(v).elements();
    let [a, b] = e.args[..] else { return false };
    let is_largest =
        |v: Var, other: Var| producer.tilings.contains_key(&v) && elements(v) > elements(other) + elements(e.result());
    matches!(e.op, Op::Structural(StructuralOp::Dot(_))) && (is_largest(a, b) || is_largest(b, a))
}

/// Returns true if one of two clusters sorts nothing, or their sorts together order no more elements in a program than
/// the device's limit.
fn can_sort_together(grow: &ClusterGrower<'_, '_>, producer: &Cluster, consumer: &Cluster) -> bool {
    let [a, b] = [producer, consumer].map(|cluster| cluster.count_sorted_elements(grow.graph));
    a == 0 || b == 0 || a + b <= grow.sizes.sorted
}

/// Returns the most arrays that the kernel of both clusters would read and write.
fn count_merged_operands(grow: &ClusterGrower<'_, '_>, producer: &Cluster, consumer: &Cluster) -> usize {
    let members = || producer.members.iter().chain(&consumer.members);
    let args = members().flat_map(|&i| &grow.graph.equations[i].args);
    let is_outside = |v: &&Var| !producer.tilings.contains_key(*v) && !consumer.tilings.contains_key(*v);
    args.filter(is_outside).collect::<BTreeSet<_>>().len() + producer.outs.len() + consumer.outs.len()
}

/// Returns true if each program of `consumer` reads of the results of `producer` only the block that the same program
/// of `producer` computes.
fn reads_own_blocks(grow: &ClusterGrower<'_, '_>, producer: &Cluster, consumer: &Cluster) -> bool {
    consumer.members.iter().map(|&i| &grow.graph.equations[i]).all(|e| {
        let operands =
            consumer.operand_tilings(grow.graph, e, &consumer.tilings[&e.result()]).expect("a member has a tiling");
        e.args.iter().zip(operands).all(|(arg, tiling)| producer.tilings.get(arg).is_none_or(|own| *own == tiling))
    })
}

/// Returns the cluster of the members of two clusters, with the blocks of both.
fn join_clusters(grow: &ClusterGrower<'_, '_>, producer: Cluster, consumer: Cluster) -> Cluster {
    let members: BTreeSet<usize> = producer.members.into_iter().chain(consumer.members).collect();
    let tilings: BTreeMap<Var, Vec<AxisTiling>> = producer.tilings.into_iter().chain(consumer.tilings).collect();
    let apart = consumer.apart.into_iter().chain(producer.apart).filter(|(v, _)| !tilings.contains_key(v)).collect();
    let mut joined = Cluster { members, tilings, apart, outs: BTreeSet::new(), ..consumer };
    joined.product = producer.product.or(joined.product);
    let results = |&i: &usize| grow.graph.equations[i].result();
    joined.outs = joined.members.iter().filter(|&&i| grow.is_result_stored(&joined, i)).map(results).collect();
    joined
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use crate::fuse::DeviceLimits;
    use crate::graph::Graph;
    use pallas_ir::structural::{Dot, Reduce, Transpose};
    use pallas_ir::{DType, ScalarOp, StructuralOp, Type};

    /// Returns the number of launches for `b = tanh x`, `b · y`, and for what `other` computes from x and b.
    fn launches(other: impl Fn(&mut Graph, [crate::Var; 2]) -> crate::Var) -> usize {
        let mut graph = Graph::default();
        let [x, y] = [0; 2].map(|_| graph.param(Type::new(DType::F32, [200, 200])));
        let b = graph.push(ScalarOp::Tanh, &[x]).expect("it fits");
        let other = other(&mut graph, [x, b]);
        let last = graph.push(ScalarOp::Mul, &[b, y]).expect("one shape");
        graph.results = vec![other, last];
        plan(&graph, &[], &DeviceLimits::TEST).steps.len()
    }

    #[test]
    fn results_of_one_loop_share_a_kernel() {
        assert_eq!(launches(|graph, [x, b]| graph.push(ScalarOp::Sub, &[x, b]).expect("one shape")), 1);
        // Other blocks; and a sum for which all programs wait.
        let turned = StructuralOp::from(Transpose { axes: vec![1, 0] });
        assert_eq!(launches(|graph, [_, b]| graph.push(turned.clone(), &[b]).expect("a matrix")), 2);
        let share = |graph: &mut Graph, [_, b]: [crate::Var; 2]| {
            let sum =
                graph.push(StructuralOp::from(Reduce::dropping(ScalarOp::Add, vec![0, 1])), &[b]).expect("its axes");
            let sum = graph.broadcast(sum, &[200, 200]).expect("a number");
            graph.push(ScalarOp::Div, &[b, sum]).expect("one shape")
        };
        assert!(launches(share) > 2);
    }

    /// Returns the number of launches for `softmax(q k) v` with these numbers of positions and features, or with the
    /// shares transposed.
    fn attention(positions: usize, features: usize, sizes: &DeviceLimits, is_turned: bool) -> usize {
        let mut graph = Graph::default();
        let [q, k, v] = [0; 3].map(|_| graph.param(Type::new(DType::F32, [2, positions, features])));
        let dot = |a: usize, b: usize| {
            StructuralOp::from(Dot { batch: vec![(0, 0)], contract: vec![(a, b)], acc: DType::F32 })
        };
        let scores = graph.push(dot(2, 2), &[q, k]).expect("rows of both");
        let exp = graph.push(ScalarOp::Exp, &[scores]).expect("floats");
        let sum = graph.push(StructuralOp::from(Reduce::keeping(ScalarOp::Add, vec![2])), &[exp]).expect("rows");
        let sum = graph.broadcast(sum, &[2, positions, positions]).expect("rows");
        let shares = graph.push(ScalarOp::Div, &[exp, sum]).expect("one shape");
        // The columns of the scores, if they are turned, are those of several programs.
        let out = graph.push(dot(if is_turned { 1 } else { 2 }, 1), &[shares, v]).expect("a matrix");
        graph.results = vec![out];
        plan(&graph, &[], sizes).steps.len()
    }

    #[test]
    fn a_product_of_large_scores_shares_their_kernel() {
        let panels = DeviceLimits { panel: Some(16), ..DeviceLimits::TEST };
        assert_eq!(attention(100, 8, &DeviceLimits::TEST, false), 1);
        // The scores are not the largest array; other blocks; products in panels.
        assert!(attention(15, 8, &DeviceLimits::TEST, false) > 1);
        assert!(attention(100, 8, &DeviceLimits::TEST, true) > 1);
        assert!(attention(100, 8, &panels, false) > 1);
    }
}
