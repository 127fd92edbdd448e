//! Comparison of two audits: a function that trains against one that evaluates, or a function against its approved
//! audit.
use super::Audit;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A property in which two audits differ, such as the axes of the mesh or the sharding of a parameter, and its state in
/// each audit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditDifference {
    /// The thing that differs: `axes`, `device order`, `client`, or the path of a parameter.
    pub subject: String,
    /// Its state in the first audit.
    pub first: String,
    /// Its state in the second audit.
    pub second: String,
}

impl fmt::Display for AuditDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, and {}", self.subject, self.first, self.second)
    }
}

impl Audit {
    /// The differences from the audit of another function: mesh, device order, client, and the type, declaration and
    /// sharding of each owned array that both have, by its path without the number of the argument. Arrays that one of
    /// them alone has are no difference.
    ///
    /// ```
    /// use pallas_rt::prelude::*;
    /// use pallas_rt::sharding::{Mesh, P};
    /// use pallas_rt::audit::AuditOptions;
    /// use pallas_rt::{audit, mark_sharding};
    /// use std::sync::Arc;
    /// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
    /// let put = |spec| mark_sharding(&Array::full(&[4], 1.0f32)?, &mesh, spec);
    /// let train = audit(|w: &Array| w * 2.0, AuditOptions::new())(&put(P("data"))?)?;
    /// let eval = audit(|w: &Array| w * 3.0, AuditOptions::new())(&put(P(()))?)?;
    /// assert!(train.compare(&train).is_empty());
    /// assert_eq!(train.compare(&eval).len(), 1);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn compare(&self, other: &Audit) -> Vec<AuditDifference> {
        let mut all = vec![];
        let mut add = |subject: &str, first: String, second: String| {
            if first != second {
                all.push(AuditDifference { subject: subject.into(), first, second });
            }
        };
        let axes = |a: &Audit| a.mesh.as_ref().map_or("no mesh".into(), |mesh| format!("{:?}", mesh.axes));
        let devices = |a: &Audit| a.mesh.as_ref().map_or("no mesh".into(), |mesh| format!("{:?}", mesh.devices));
        add("axes", axes(self), axes(other));
        add("device order", devices(self), devices(other));
        add("client", self.client.clone(), other.client.clone());
        for p in self.parameters.iter().filter(|p| p.is_owned) {
            let is_same = |q: &&super::AuditedParameter| {
                q.is_owned && strip_argument_number(&q.path) == strip_argument_number(&p.path)
            };
            let Some(q) = other.parameters.iter().find(is_same) else { continue };
            let text = |p: &super::AuditedParameter| {
                let declared = p.declared.as_deref().unwrap_or("undeclared");
                let found = p.found.as_deref().map_or(String::new(), |found| format!(", sharded as {found}"));
                format!("{} {declared}{found}", p.ty)
            };
            add(&format!("`{}`", p.path), text(p), text(q));
        }
        all
    }
}

/// A path without the argument's number in front; for an argument that is one array, the number itself.
fn strip_argument_number(path: &str) -> &str {
    match path.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches('.') {
        "" => path,
        rest => rest,
    }
}
