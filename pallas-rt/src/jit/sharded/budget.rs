//! Collectives counted by kind and axis, to be compared with what a program is allowed.
use super::{CollectiveUse, Shardings};
use crate::sharding::Mesh;
use pallas_device::error::{Error, Result};
use pallas_ir::{At, Diag, Loc};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The collectives of a function by kind and axis; see [`Shardings::budget`].
///
/// A collective over several axes counts for each of them. One in a loop or branch is in the text once and counts once;
/// bytes are those of a call, with each step of a scan.
#[derive(Clone, Debug)]
pub struct CollectiveBudget {
    mesh: Arc<Mesh>,
    all: Vec<CollectiveUse>,
}

/// Number of the collectives of one kind that a function has over one axis, with these collectives themselves. It
/// compares with a `usize`; for an axis that the mesh does not have it equals no number.
#[derive(Clone)]
pub struct CollectiveCount {
    /// Subject of the count, as text: the kind (`collectives` for all) and the axis.
    asked: String,
    /// The collectives that were counted.
    pub found: Vec<CollectiveUse>,
    /// The reason why nothing is counted: the mesh has no such axis.
    wrong: Option<String>,
}

impl Shardings {
    /// Counts the collectives of the function by kind and axis, as they are found in the compiled function, to be
    /// compared with the numbers that are allowed.
    ///
    /// ```
    /// use pallas_rt::prelude::*;
    /// use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
    /// use pallas_rt::partitioned;
    /// use std::sync::Arc;
    /// let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("a mesh"));
    /// let put = |shape, spec| device_put(&Array::full(shape, 1.0f32)?, &NamedSharding::new(&mesh, spec));
    /// let (x, w) = (put(&[8, 16], P(("data", "model")))?, put(&[16, 8], P("model"))?);
    /// let budget = partitioned(|x: &Array, w: &Array| x.matmul(w))(&x, &w)?.budget();
    /// assert_eq!(budget.all_reduce("model"), 1);
    /// assert_eq!(budget.collectives("data"), 0);
    /// // 4 x 8 sums of four bytes among four devices.
    /// assert_eq!(budget.bytes("model")?, 2 * 3 * 4 * 8);
    /// let text = budget.expect(&[("all_reduce", "model", 0)]).expect_err("there is one").to_string();
    /// assert!(text.contains("1 all_reduce over `model` instead of 0"));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn budget(&self) -> CollectiveBudget {
        CollectiveBudget { mesh: self.mesh.clone(), all: self.collectives() }
    }
}

impl CollectiveBudget {
    /// Counts the all-reduces that the compiled function has over an axis.
    pub fn all_reduce(&self, axis: &str) -> CollectiveCount {
        self.count("all_reduce", axis)
    }

    /// Counts the all-gathers that the compiled function has over an axis.
    pub fn all_gather(&self, axis: &str) -> CollectiveCount {
        self.count("all_gather", axis)
    }

    /// Counts the reduce-scatters that the compiled function has over an axis.
    pub fn reduce_scatter(&self, axis: &str) -> CollectiveCount {
        self.count("reduce_scatter", axis)
    }

    /// Counts the all-to-alls that the compiled function has over an axis.
    pub fn all_to_all(&self, axis: &str) -> CollectiveCount {
        self.count("all_to_all", axis)
    }

    /// Counts the collective permutes that the compiled function has over an axis.
    pub fn collective_permute(&self, axis: &str) -> CollectiveCount {
        self.count("collective_permute", axis)
    }

    /// Counts the collectives of every kind that the compiled function has over an axis.
    pub fn collectives(&self, axis: &str) -> CollectiveCount {
        self.count_where("collectives", axis, |_| true)
    }

    /// Counts the collectives of one kind that the compiled function has over an axis; `kind` is one of the texts of
    /// [`CollectiveUse::name`], such as `all_reduce`.
    pub fn count(&self, kind: &str, axis: &str) -> CollectiveCount {
        self.count_where(kind, axis, |one| one.name == kind)
    }

    fn count_where(&self, kind: &str, axis: &str, is_counted: impl Fn(&CollectiveUse) -> bool) -> CollectiveCount {
        let wrong = self.mesh.find(axis).err().map(|diag| diag.message);
        let is_found = |one: &&CollectiveUse| is_counted(one) && one.axes.iter().any(|own| own == axis);
        CollectiveCount {
            asked: format!("{kind} over `{axis}`"),
            found: self.all.iter().filter(is_found).cloned().collect(),
            wrong,
        }
    }

    /// Bytes that each device sends over an axis for each call. A `while` counts as one of its steps.
    ///
    /// # Errors
    /// An axis that the mesh does not have.
    pub fn bytes(&self, axis: &str) -> Result<usize> {
        let count = self.collectives(axis);
        match count.wrong {
            None => Ok(count.found.iter().map(|one| one.bytes * one.times.unwrap_or(1)).sum()),
            Some(wrong) => Err(budget_error(wrong, "name an axis of the mesh")),
        }
    }

    /// Number of collectives, and bytes of a call, by kind and axes; the axes of one collective are joined by commas.
    pub fn table(&self) -> BTreeMap<(&'static str, String), (usize, usize)> {
        let mut table = BTreeMap::new();
        for one in &self.all {
            let row: &mut (usize, usize) = table.entry((one.name, one.axes.join(","))).or_default();
            row.0 += 1;
            row.1 += one.bytes * one.times.unwrap_or(1);
        }
        table
    }

    /// Checks that the function has exactly these collectives: entries of `allowed` are (kind, axis, number).
    ///
    /// # Errors
    /// Another number; a collective that no entry allows; an axis that the mesh does not have. The message lists the
    /// collectives with the line that needs each.
    pub fn expect(&self, allowed: &[(&str, &str, usize)]) -> Result<()> {
        let mut wrong = vec![];
        for &(kind, axis, number) in allowed {
            let count = self.count(kind, axis);
            match &count.wrong {
                Some(message) => wrong.push(message.clone()),
                None if count == number => {}
                None => wrong.push(format!(
                    "{} {} instead of {number}{}",
                    count.len(),
                    count.asked,
                    describe_collectives(&count.found)
                )),
            }
        }
        let is_allowed = |one: &&CollectiveUse| {
            one.axes.iter().all(|axis| allowed.iter().any(|(kind, own, _)| *kind == one.name && own == axis))
        };
        let others: Vec<CollectiveUse> = self.all.iter().filter(|one| !is_allowed(one)).cloned().collect();
        if !others.is_empty() {
            wrong.push(format!("{} that nothing allows{}", others.len(), describe_collectives(&others)));
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(budget_error(wrong.join("\n"), "`Shardings::why` names the annotation behind a division")),
        }
    }
}

fn budget_error(found: String, help: &str) -> Error {
    Error::operation(Loc::NONE, Diag::new("budget", At::Op, found, help))
}

impl CollectiveCount {
    /// Returns the number of these collectives; one in a loop or branch counts once.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Returns true if there is no collective.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

impl PartialEq<usize> for CollectiveCount {
    fn eq(&self, other: &usize) -> bool {
        self.wrong.is_none() && self.len() == *other
    }
}

impl PartialOrd<usize> for CollectiveCount {
    fn partial_cmp(&self, other: &usize) -> Option<Ordering> {
        if self.wrong.is_none() { self.len().partial_cmp(other) } else { None }
    }
}

/// Writes `1 all_reduce over model` and a line for each collective.
impl fmt::Display for CollectiveCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.wrong {
            Some(wrong) => write!(f, "no number of {}: {wrong}", self.asked),
            None => write!(f, "{} {}{}", self.len(), self.asked, describe_collectives(&self.found)),
        }
    }
}

impl fmt::Debug for CollectiveCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn describe_collectives(all: &[CollectiveUse]) -> String {
    all.iter().map(|one| format!("\n  {one}")).collect()
}

/// Writes `all_reduce over model: 96 bytes, parts of a sum, at model.rs:3:9`.
impl fmt::Display for CollectiveUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}: {} bytes", self.name, self.axes.join(", "), self.bytes)?;
        match self.times {
            Some(1) => {}
            Some(n) => write!(f, " in each of {n} steps")?,
            None => f.write_str(" in each step")?,
        }
        write!(f, ", {}", self.cause)?;
        if self.at == Loc::NONE { Ok(()) } else { write!(f, ", at {}", self.at) }
    }
}
