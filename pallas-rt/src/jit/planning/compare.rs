//! Comparison of several meshes for one function.
use super::{StepPlan, axis_sizes_text};
use crate::markup::svg::{Anchor, Svg, text_width};
use crate::markup::{bytes_text, seconds_text};
use std::fmt;

/// Plans of one function on several meshes, the best one first: plans that fit in the memory of the devices come before
/// others, then the faster ones, then those that need less memory. It prints as a table.
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::sharding::{Link, Mesh, NamedSharding, P, Topology};
/// use pallas_rt::plan::MeshComparison;
/// use pallas_rt::{partitioned, with_sharding_constraint};
/// use std::sync::Arc;
/// let machine = Topology::new(200e12, 800e9)
///     .link("data", Link::ring(45e9, 1e-6))
///     .link("model", Link::ring(45e9, 1e-6));
/// let [x, w] = [[4096, 1024], [1024, 1024]].map(|shape| Client::cpu().shape_dtype(&shape, DType::F32));
/// let (x, w) = (x?, w?);
/// let plan = |(data, model)| {
///     let mesh = Arc::new(Mesh::new(&[("data", data), ("model", model)]).expect("a mesh"));
///     let [rows, inner] = [P(("data", "model")), P("model")].map(|spec| NamedSharding::new(&mesh, spec));
///     let f = move |x: &Array, w: &Array| {
///         with_sharding_constraint(x, &rows).matmul(&with_sharding_constraint(w, &inner))
///     };
///     partitioned(f)(&x, &w)?.plan(&machine)
/// };
/// let all = [(1, 16), (4, 4), (16, 1)].into_iter().map(plan).collect::<Result<MeshComparison>>()?;
/// // Without an axis `model` there is nothing to exchange.
/// assert_eq!(all.plans()[0].mesh.size(0), 16);
/// println!("{all}");
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MeshComparison {
    plans: Vec<StepPlan>,
}

impl FromIterator<StepPlan> for MeshComparison {
    fn from_iter<I: IntoIterator<Item = StepPlan>>(plans: I) -> MeshComparison {
        let mut plans: Vec<StepPlan> = plans.into_iter().collect();
        plans.sort_by(|a, b| {
            let speed = || a.seconds().total_cmp(&b.seconds());
            b.fits().cmp(&a.fits()).then_with(speed).then_with(|| a.memory_bytes().cmp(&b.memory_bytes()))
        });
        MeshComparison { plans }
    }
}

impl MeshComparison {
    /// The plans, the best one first.
    pub fn plans(&self) -> &[StepPlan] {
        &self.plans
    }

    /// The best plan; `None` if no plan fits in memory.
    pub fn best(&self) -> Option<&StepPlan> {
        self.plans.first().filter(|plan| plan.fits())
    }

    /// The times as SVG: a bar for each mesh, with the time of the work and of the collectives along each set of axes.
    pub fn to_svg(&self) -> String {
        draw_bars(&self.plans)
    }
}

impl StepPlan {
    /// The time of the step as SVG: a bar with the time of the work and of the collectives along each set of axes.
    pub fn to_svg(&self) -> String {
        draw_bars(std::slice::from_ref(self))
    }
}

/// Writes a table with a row for each mesh.
impl fmt::Display for MeshComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head =
            ["mesh", "step", "compute", "collectives", "sent by a device", "memory of a device"].map(String::from);
        let row = |plan: &StepPlan| {
            let memory = bytes_text(plan.memory_bytes());
            [
                axis_sizes_text(&plan.mesh),
                seconds_text(plan.seconds()),
                seconds_text(plan.compute_seconds),
                seconds_text(plan.collective_seconds()),
                bytes_text(plan.collectives.iter().map(|exchange| exchange.bytes).sum()),
                if plan.fits() { memory } else { format!("{memory}, does not fit") },
            ]
        };
        let rows: Vec<[String; 6]> = std::iter::once(head).chain(self.plans.iter().map(row)).collect();
        let widths: Vec<usize> =
            (0..6).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
        for row in &rows {
            let cells: Vec<String> = (row.iter().zip(&widths).enumerate())
                .map(|(column, (text, &width))| match column {
                    0 => format!("{text:<width$}"),
                    _ => format!("{text:>width$}"),
                })
                .collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

const FONT_SIZE_PIXELS: f64 = 12.0;
const BAR_HEIGHT_PIXELS: f64 = 22.0;
const BAR_LENGTH_PIXELS: f64 = 560.0;

/// The colour of the work, then those of the sets of axes in turn.
const BAR_PART_COLORS: [&str; 8] =
    ["#4a78b5", "#e0883a", "#5a9f5a", "#c44e52", "#8a6fb0", "#8c6d53", "#d584b5", "#7f7f7f"];

/// Draws a bar for each plan as SVG, with a part for the work and for the collectives along each set of axes.
fn draw_bars(plans: &[StepPlan]) -> String {
    let mut kinds: Vec<Vec<String>> = plans.iter().flat_map(|plan| plan.by_axes().into_keys()).collect();
    kinds.sort();
    kinds.dedup();
    let color = |part: usize| BAR_PART_COLORS[part % BAR_PART_COLORS.len()];
    let labels: Vec<String> = plans.iter().map(|plan| axis_sizes_text(&plan.mesh)).collect();
    let left = labels.iter().map(|label| text_width(label, FONT_SIZE_PIXELS)).fold(0.0, f64::max) + 24.0;
    let longest = plans.iter().map(StepPlan::seconds).fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = Svg::default();
    let (mut x, mut y) = (left, 20.0);
    let names =
        std::iter::once("compute".to_string()).chain(kinds.iter().map(|axes| format!("along {}", axes.join(", "))));
    for (part, name) in names.enumerate() {
        if x > left && x + text_width(&name, FONT_SIZE_PIXELS) + 30.0 > left + BAR_LENGTH_PIXELS {
            (x, y) = (left, y + 20.0);
        }
        svg.rect([x, y - 10.0, 12.0, 12.0], &format!("fill=\"{}\"", color(part)), "");
        svg.text([x + 18.0, y], Anchor::Start, "", &name);
        x += text_width(&name, FONT_SIZE_PIXELS) + 40.0;
    }
    y += 18.0;
    for (plan, label) in plans.iter().zip(&labels) {
        svg.text([left - 12.0, y + BAR_HEIGHT_PIXELS / 2.0 + 4.0], Anchor::End, "", label);
        let by_axes = plan.by_axes();
        let parts = std::iter::once(("compute".to_string(), plan.compute_seconds)).chain(kinds.iter().map(|axes| {
            let own = by_axes.get(axes).copied().unwrap_or_default();
            (
                format!("{} collectives along {}, {}", own.collectives, axes.join(", "), bytes_text(own.bytes)),
                own.seconds,
            )
        }));
        let mut x = left;
        for (part, (name, seconds)) in parts.enumerate().filter(|(_, (_, seconds))| *seconds > 0.0) {
            let length = seconds / longest * BAR_LENGTH_PIXELS;
            let tip = format!("{name}: {}", seconds_text(seconds));
            svg.rect([x, y, length, BAR_HEIGHT_PIXELS], &format!("fill=\"{}\"", color(part)), &tip);
            x += length;
        }
        let memory = if plan.fits() { String::new() } else { ", does not fit in memory".into() };
        let text = format!("{}{memory}", seconds_text(plan.seconds()));
        svg.text([x + 8.0, y + BAR_HEIGHT_PIXELS / 2.0 + 4.0], Anchor::Start, "", &text);
        y += BAR_HEIGHT_PIXELS + 8.0;
    }
    let notes = plans.iter().map(|plan| if plan.fits() { 90.0 } else { 270.0 }).fold(0.0, f64::max);
    svg.finish(left + BAR_LENGTH_PIXELS + notes, y + 8.0, "time of a step")
}
