//! `collective_permute`: every device gets the array of another member of its group.
use super::prelude::collective::*;
use crate::stablehlo::HloAttributes;

/// `T[..] -> T[..]`: for each member of a group, the number of the member whose operand it gets; `None` for one that
/// gets zeros.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Permute(pub Vec<Option<usize>>);

impl CollectiveInterface for Permute {
    fn attributes(&self) -> String {
        let all = self.0.iter().map(|source| source.map_or("-".into(), |source| source.to_string()));
        format!(" from({})", all.collect::<Vec<_>>().join(", "))
    }
    fn form_for_member(&self, number: usize) -> CollectiveForm {
        CollectiveForm::FromMember(self.0.get(number).copied().flatten())
    }
    fn check_attributes(&self, members: usize) -> Result<(), (String, &'static str)> {
        match self.0.len() == members && self.0.iter().flatten().all(|&source| source < members) {
            true => Ok(()),
            false => Err((format!("sources for {members} devices"), "one of the group for each device")),
        }
    }
    fn for_dtype(&self, _: DType) -> CollectiveKind {
        self.clone().into()
    }
}

impl CollectiveTransposeRule for Permute {
    fn push_operand_cotangent(&self, to: &mut Graph, op: &Collective, cotangent: Var) -> Option<Var> {
        let mut targets = vec![None; self.0.len()];
        for (to, from) in self.0.iter().enumerate().filter_map(|(to, from)| from.map(|from| (to, from))) {
            targets[from] = Some(to);
        }
        Some(to.push_valid(op.with_kind(Permute(targets)), &[cotangent]))
    }
}

impl CollectiveHlo for Permute {
    fn emit_stablehlo(&self, w: &mut HloWriter, op: &Collective, args: &[HloValue], gives: &Type) -> HloValue {
        let of_group = |group: Vec<usize>| {
            let pair = |(to, from): (usize, &Option<usize>)| from.map(|from| [group[from], group[to]]);
            self.0.iter().enumerate().filter_map(pair).collect::<Vec<_>>()
        };
        let pairs = op.groups().into_iter().flat_map(of_group).collect();
        let detail = HloAttributes::DevicePairs { pairs, channel: w.next_channel() };
        w.emit_op("collective_permute", &[&args[0]], detail, gives.clone())
    }
}
