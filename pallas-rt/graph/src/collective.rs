//! Collectives: operations by which the devices of a mesh exchange arrays.
//!
//! Every device has an operand of the same type. Devices whose coordinates differ only along the collective's axes form
//! a *group*. A device's *number* in its group is its coordinate along these axes. Parts for or from the members of a
//! group are listed along the array's first axis, so that each part is contiguous in memory.
use crate::graph::OpName;
use crate::mesh::{Axis, CollectiveForm, Mesh, SentPart, axes_text, product_of_sizes};
pub use crate::ops::{
    AllGather, AllReduce, AllToAll, CollectiveKind, DeviceTable, Pbroadcast, Pcast, Permute, ReduceScatter,
};
use pallas_ir::{At, DType, Diag, ScalarOp, Type};
use std::fmt;
use std::sync::Arc;

/// A collective: an operation that combines or moves the arrays of a group of devices.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Collective {
    /// The kind of collective, which decides what each device gets.
    pub kind: CollectiveKind,
    /// The mesh.
    pub mesh: Arc<Mesh>,
    /// The axes along which the devices of a group differ, the slowest first.
    pub axes: Vec<Axis>,
}

/// Properties of every kind of collective: its attributes, and how each device's result is made from the operands of
/// its group. No method has a default.
pub(crate) trait CollectiveInterface: OpName {
    /// Returns the attributes that follow the name in texts, with a space in front of each.
    fn attributes(&self) -> String;
    /// Returns how the result of the group's member with this number is made from the operands of all members. The
    /// variant is the same for all numbers.
    fn form_for_member(&self, number: usize) -> CollectiveForm;
    /// Checks the attributes for groups of `members` devices. The error is the mistake and how to correct it.
    fn check_attributes(&self, members: usize) -> Result<(), (String, &'static str)>;
    /// Returns the kind to use for arrays of an element type: `add` of bools becomes `or`.
    fn for_dtype(&self, dtype: DType) -> CollectiveKind;
}

impl CollectiveKind {
    /// Returns the name of the operation, as in StableHLO.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Returns how the result of the group's member with this number is made from the operands of all members. The
    /// variant is the same for all numbers.
    pub fn form_for_member(&self, number: usize) -> CollectiveForm {
        self.kind().form_for_member(number)
    }

    /// Returns the kind to use for arrays of an element type: `add` of bools becomes `or`.
    #[must_use]
    pub fn for_dtype(&self, dtype: DType) -> CollectiveKind {
        self.kind().for_dtype(dtype)
    }
}

impl Collective {
    /// Returns the number of devices in a group.
    pub fn group_size(&self) -> usize {
        product_of_sizes(&self.axes)
    }

    /// Returns the name of the operation, as in StableHLO.
    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Returns the all-gather among all devices of a mesh.
    pub fn all_gather_over(mesh: &Arc<Mesh>) -> Collective {
        Collective { kind: AllGather.into(), mesh: mesh.clone(), axes: mesh.axes() }
    }

    /// Returns a collective of another kind among the same groups.
    pub(crate) fn with_kind(&self, kind: impl Into<CollectiveKind>) -> Collective {
        Collective { kind: kind.into(), ..self.clone() }
    }

    /// Returns the groups of devices, each as the ids of its devices in the order of their numbers within the group.
    pub(crate) fn groups(&self) -> Vec<Vec<usize>> {
        let mesh = &self.mesh;
        let first = (0..mesh.device_count()).filter(|&position| mesh.index(position, &self.axes) == 0);
        first.map(|p| mesh.group(p, &self.axes).into_iter().map(|p| mesh.device(p)).collect()).collect()
    }

    /// Returns how the result of a group's first member is made from the operands of all members; for other members the
    /// form has the same variant, with their own numbers.
    pub fn first_member_form(&self) -> CollectiveForm {
        self.kind.form_for_member(0)
    }

    /// Returns for each member of a group how its result is made from the operands of all members.
    pub fn member_forms(&self) -> Vec<CollectiveForm> {
        (0..self.group_size()).map(|number| self.kind.form_for_member(number)).collect()
    }

    /// Returns for each member the number of the member whose operand it gets, if each gets one operand; `None` for a
    /// member that gets zeros, and for collectives of other forms.
    pub fn source_members(&self) -> Vec<Option<usize>> {
        let of = |number| {
            if let CollectiveForm::FromMember(source) = self.kind.form_for_member(number) { source } else { None }
        };
        (0..self.group_size()).map(of).collect()
    }

    /// Returns for the operand, and for the result, true if it has a first axis with one part for each member of the
    /// group.
    pub(crate) fn has_operand_and_result_member_axes(&self) -> (bool, bool) {
        self.first_member_form().has_operand_and_result_member_axes()
    }

    /// Returns true if devices send anything to each other.
    pub fn communicates(&self) -> bool {
        self.first_member_form().communicates()
    }

    /// Returns the type of the result for operands of types `args`.
    ///
    /// # Errors
    /// A wrong number of operands, an operand without a first axis for the members, or an element type that the
    /// operation cannot combine.
    pub fn infer(&self, args: &[&Type]) -> Result<Type, Diag> {
        let wrong = |message: String, help: &str| Diag::new(self.name(), At::Op, message, help);
        let (k, form) = (self.group_size(), self.first_member_form());
        let checked = || self.kind.kind().check_attributes(k).map_err(|(message, help)| wrong(message, help));
        match (form, args) {
            (CollectiveForm::Constant(_), []) => checked().map(|()| Type::scalar(DType::I32)),
            (CollectiveForm::Constant(_), [_]) => Err(wrong("a table with an operand".into(), "a table has none")),
            (_, [x]) => {
                checked()?;
                if let CollectiveForm::Fold(by, _) = form
                    && !by.is_monoid(x.dtype)
                {
                    let all = ScalarOp::ALL.iter().filter(|op| op.is_monoid(x.dtype)).map(|op| format!("`{op}`"));
                    let all = all.collect::<Vec<_>>().join(", ");
                    let help = format!("elements of {} are combined by {all}", x.dtype);
                    return Err(wrong(format!("elements of {} combined by `{by}`", x.dtype), &help));
                }
                let (takes, gives) = form.has_operand_and_result_member_axes();
                if takes && x.shape.first() != Some(&k) {
                    return Err(wrong(format!("{x} among {k} devices"), "the first axis has a part for each device"));
                }
                let first = if gives { vec![k] } else { vec![] };
                Ok(Type::new(x.dtype, [&first, &x.shape[usize::from(takes)..]].concat()))
            }
            _ => Err(wrong(format!("{} operands", args.len()), "one array, or none for a table")),
        }
    }

    /// Returns the number of bytes that each device sends, if it sends each part once to each member that needs it.
    pub fn bytes_sent_per_device(&self, operand: &Type) -> usize {
        let (bytes, k) = (operand.bytes(), self.group_size());
        match self.first_member_form() {
            CollectiveForm::Stack(SentPart::Whole) => bytes * (k - 1),
            CollectiveForm::Stack(SentPart::Part) | CollectiveForm::Fold(_, SentPart::Part) => bytes / k * (k - 1),
            // An all-reduce is a reduce-scatter followed by an all-gather.
            CollectiveForm::Fold(_, SentPart::Whole) => 2 * bytes.div_ceil(k) * (k - 1),
            CollectiveForm::FromMember(_) => bytes,
            CollectiveForm::Constant(_) | CollectiveForm::Own => 0,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name(), self.kind.kind().attributes())?;
        write!(f, " axes({})", axes_text(&self.axes, &self.mesh))
    }
}
