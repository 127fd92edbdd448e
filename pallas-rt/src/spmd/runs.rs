//! Collectives over axes of several meshes and batches: one for the axes of each.
use super::{collective_diag, merge_dimensions, move_dimension, push_reshape};
use crate::jit::axis_names::{BoundAxes, SameMeshAxes};
use pallas_graph::mesh::{
    Collective, CollectiveForm, CollectiveKind, DeviceTable, Pbroadcast, Pcast, SentPart, product_of_sizes,
};
use pallas_graph::{Graph, Var};
use pallas_ir::{DType, Diag, Literal, ScalarOp};

impl BoundAxes {
    pub(super) fn member_count(&self) -> usize {
        self.runs.iter().map(SameMeshAxes::member_count).product()
    }

    /// Appends a collective over all bound axes, as one collective after the other if they belong to several meshes or
    /// to axes of `vmap`.
    pub(super) fn push_collective(
        &self,
        graph: &mut Graph,
        kind: impl Into<CollectiveKind>,
        args: &[Var],
    ) -> Result<Var, Diag> {
        let kind = kind.into();
        let [first, rest @ ..] = &self.runs[..] else { unreachable!("at least one axis is named") };
        match (kind.form_for_member(0), args) {
            (_, _) if rest.is_empty() => first.push_collective(graph, kind, args),
            (CollectiveForm::Fold(_, SentPart::Whole), &[x]) => {
                self.runs.iter().try_fold(x, |x, run| run.push_collective(graph, kind.clone(), &[x]))
            }
            (CollectiveForm::Own, _) => {
                let mixed = self.runs.iter().find(|run| run.mesh.is_batch()).unwrap_or(first);
                mixed.push_collective(graph, kind, args)
            }
            (CollectiveForm::Stack(SentPart::Whole), &[x]) => {
                let n = self.runs.len();
                let all =
                    self.runs.iter().rev().try_fold(x, |x, run| run.push_collective(graph, kind.clone(), &[x]))?;
                (1..n).try_fold(all, |all, _| merge_dimensions(graph, all, 0))
            }
            (CollectiveForm::Fold(_, SentPart::Part), &[x]) => {
                let parts = self.split_first_dimension(graph, x)?;
                self.runs.iter().try_fold(parts, |x, run| run.push_collective(graph, kind.clone(), &[x]))
            }
            (CollectiveForm::Stack(SentPart::Part), &[x]) => {
                let mut parts = self.split_first_dimension(graph, x)?;
                for (dim, run) in self.runs.iter().enumerate() {
                    let own = move_dimension(graph, parts, dim, 0)?;
                    let own = run.push_collective(graph, kind.clone(), &[own])?;
                    parts = move_dimension(graph, own, 0, dim)?;
                }
                (1..self.runs.len()).try_fold(parts, |parts, _| merge_dimensions(graph, parts, 0))
            }
            (CollectiveForm::Constant(_), []) => {
                let own = |graph: &mut Graph, run: &SameMeshAxes| {
                    run.push_collective(graph, consecutive_device_table(run.member_count()), &[])
                };
                let mut number = own(graph, first)?;
                for run in rest {
                    let count = graph.splat(Literal::int(DType::I32, run.member_count() as i64), &[]);
                    number = graph.push(ScalarOp::Mul, &[number, count])?;
                    let inner = own(graph, run)?;
                    number = graph.push(ScalarOp::Add, &[number, inner])?;
                }
                Ok(number)
            }
            _ => {
                let message = "a permutation over axes of a batch and of others at once".to_string();
                Err(collective_diag("ppermute", message, "call it for one axis after the other"))
            }
        }
    }

    /// Appends a broadcast of the value of the member `source` to the whole group, as one collective after the other if
    /// the axes belong to several meshes or to axes of `vmap`.
    pub(super) fn push_broadcast(&self, graph: &mut Graph, source: usize, v: Var) -> Result<Var, Diag> {
        let members = self.member_count();
        if source >= members {
            let message = format!("device {source} of a group of {members}");
            return Err(collective_diag("pbroadcast", message, "devices count from 0"));
        }
        let mut left = source;
        self.runs.iter().rev().try_fold(v, |v, run| {
            let own = left % run.member_count();
            left /= run.member_count();
            run.push_collective(graph, Pbroadcast(own), &[v])
        })
    }

    /// Splits the first dimension, which has an element for each member of the group, into a dimension for each run of
    /// axes of one mesh.
    fn split_first_dimension(&self, graph: &mut Graph, v: Var) -> Result<Var, Diag> {
        let shape = graph.ty(v).shape.clone();
        let runs: Vec<usize> = self.runs.iter().map(SameMeshAxes::member_count).collect();
        push_reshape(graph, v, &[&runs, &shape[1..]].concat())
    }
}

impl SameMeshAxes {
    pub(super) fn member_count(&self) -> usize {
        product_of_sizes(&self.axes)
    }

    pub(super) fn push_collective(
        &self,
        graph: &mut Graph,
        kind: impl Into<CollectiveKind>,
        args: &[Var],
    ) -> Result<Var, Diag> {
        let kind = kind.into();
        if let (CollectiveKind::Pcast(Pcast { to, .. }), true) = (&kind, self.mesh.is_batch()) {
            let message = format!("a value that is {} over axis `{}` of a batch", to.name(), self.mesh.name(0));
            return Err(collective_diag("pcast", message, "devices have states; examples of a batch have none"));
        }
        graph.push(Collective { kind, mesh: self.mesh.clone(), axes: self.axes.clone() }, args)
    }
}

/// Returns the table of the numbers 0 to `members` - 1, one for each member of a group.
pub(super) fn consecutive_device_table(members: usize) -> DeviceTable {
    DeviceTable((0..members as i32).collect())
}
