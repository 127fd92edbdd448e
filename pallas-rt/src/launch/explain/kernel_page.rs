//! Kernels as one page of HTML, on which a slider goes through the programs of each grid.
use super::facts::{OperandRow, format_percent, join_texts};
use super::picture::{DrawnPrograms, PictureCard};
use super::program_accesses::{FollowedProgram, OperandAccess};
use super::{ExplainedKernel, Explanation};
use crate::markup::{escape_markup, html_page};
use pallas_ir::Loc;
use serde_json::json;

/// Script that moves a kernel's marks to the program of its slider, and lists what that program reads and writes.
const PAGE_SCRIPT: &str = include_str!("page.js");

impl Explanation {
    /// One page of HTML, which loads nothing: for each kernel its operands, the grid and the blocks of each operand
    /// over the operand's shape, what each program reads and writes in program order (a slider goes through the
    /// programs, parallel ones one after the other), memory, cost, where the time goes, and the text of each stage.
    ///
    /// ```
    /// use pallas_rt::prelude::*;
    ///
    /// #[kernel(grid = (cdiv(N, 8)))]
    /// fn doubled(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
    ///     out.store(x.load() * 2.0);
    /// }
    /// let x = Array::zeros(&[10], DType::F32)?;
    /// let page = explain(|| doubled(&x))?.to_html();
    /// assert!(page.contains("reads x[0:8]") && page.ends_with("</html>\n"));
    /// std::fs::write(std::env::temp_dir().join("kernel.html"), page)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_html(&self) -> String {
        let title = format!("Kernels: {}", join_texts(self.kernels.iter().map(|k| &k.name), ", "));
        let mut body = String::new();
        self.kernels.iter().for_each(|kernel| kernel.write_section(&mut body));
        body += &format!("<script>\n{PAGE_SCRIPT}</script>\n");
        html_page(&title, &body)
    }
}

impl ExplainedKernel {
    /// Appends the section of this kernel to the page.
    fn write_section(&self, body: &mut String) {
        let programs = self.drawn_programs();
        let facts = [self.grid_text(), self.memory_text(), self.cost_text(), self.bottleneck_text()];
        *body += &format!("<section class=\"kernel\">\n<h1>Kernel <code>{}</code></h1>\n", escape_markup(&self.name));
        facts.iter().for_each(|fact| body.push_str(&format!("<p class=\"fact\">{}</p>\n", escape_markup(fact))));
        body.push_str("<h2>Operands</h2>\n");
        write_html_table(body, &OperandRow::HEADINGS, self.operand_rows().iter().map(|row| row.cells().to_vec()));
        body.push_str("<h2>Program by program</h2>\n");
        self.write_slider(body, &programs);
        body.push_str(
            "<h2>Where the time goes</h2>\n<p class=\"note\">Estimated from operations and bytes of each line.</p>\n",
        );
        let line = |at: Loc| format!("{}:{}", at.file, at.line);
        let times = self
            .time_shares()
            .into_iter()
            .map(|(share, operation, at)| vec![format_percent(share), operation, line(at)]);
        write_html_table(body, &["share", "longest operation", "line"], times);
        body.push_str("<h2>Stages</h2>\n");
        for (stage, text) in self.device_stages() {
            let (stage, text) = (escape_markup(&stage), escape_markup(&text));
            *body += &format!("<details><summary>{stage}</summary><pre>{text}</pre></details>\n");
        }
        body.push_str("</section>\n");
    }

    /// Appends the slider, the pictures, and what the first program reads and writes.
    fn write_slider(&self, body: &mut String, programs: &DrawnPrograms) {
        match &programs.drawn[..] {
            [] => {
                body.push_str("<p class=\"note\">No program runs: outputs hold their <code>empty</code> values.</p>\n")
            }
            [first, rest @ ..] => {
                *body += &format!(
                    "<p class=\"control\"><button type=\"button\" class=\"back\">previous</button> \
                     <input type=\"range\" min=\"0\" max=\"{}\" value=\"0\" aria-label=\"program\"/> \
                     <button type=\"button\" class=\"on\">next</button> <output>program {}</output></p>\n",
                    rest.len(),
                    format_tuple(&first.ids)
                );
            }
        }
        body.push_str("<div class=\"pictures\">\n");
        for PictureCard { svg, size: [wide, high] } in self.draw_cards(programs) {
            let card = svg.finish(wide + 4.0, high + 4.0, &self.name);
            *body += &format!("<section>{card}</section>\n");
        }
        body.push_str("</div>\n");
        let Some(first) = programs.drawn.first() else { return };
        body.push_str("<h3>Reads and writes, in order</h3>\n<ol class=\"steps\">\n");
        self.describe_accesses(first)
            .iter()
            .for_each(|step| body.push_str(&format!("<li>{}</li>\n", escape_markup(step))));
        body.push_str("</ol>\n");
        let of = |p: &FollowedProgram| {
            let ids = p.ids.iter().map(|&n| Some(n)).collect::<Vec<_>>();
            let places: Vec<_> = [ids].into_iter().chain(p.blocks.clone()).collect();
            json!({"at": format_tuple(&p.ids), "places": places, "steps": self.describe_accesses(p)})
        };
        let data = json!(programs.drawn.iter().map(of).collect::<Vec<_>>()).to_string().replace('<', "\\u003c");
        *body += &format!("<script type=\"application/json\">{data}</script>\n");
    }

    /// Describes the accesses of a program in words.
    fn describe_accesses(&self, program: &FollowedProgram) -> Vec<String> {
        let cut = program.is_cut.then(|| "and more".to_string());
        program.accesses.iter().map(|access| self.describe_access(access)).chain(cut).collect()
    }

    /// Describes an access in words.
    fn describe_access(&self, access: &OperandAccess) -> String {
        let operand = self.traced.operand(access.operand);
        let shape = &self.geometry.shapes[access.operand.index()];
        let range = |&(first, count): &(Option<i64>, i64)| match (first, count) {
            (None, 1) => "?".into(),
            (None, n) => format!("?:?+{n}"),
            (Some(first), 1) => first.to_string(),
            (Some(first), n) => format!("{first}:{}", first + n),
        };
        let is_past = |(&(first, count), &extent): (&(Option<i64>, i64), &usize)| {
            first.is_some_and(|first| first < 0 || first + count > extent as i64)
        };
        let verb = if access.stores { "writes" } else { "reads" };
        let past = if access.elements.iter().zip(shape).any(is_past) { ", partly past the array" } else { "" };
        let perhaps = if access.is_conditional { ", if data says so" } else { "" };
        let elements = join_texts(access.elements.iter().map(range), ", ");
        format!("{verb} {}[{elements}]{past}{perhaps} at {}:{}", operand.name, access.at.file, access.at.line)
    }
}

/// Formats program ids as a tuple: `(0, 1)`.
fn format_tuple(ids: &[i64]) -> String {
    format!("({})", join_texts(ids, ", "))
}

/// Appends a table of texts to the page.
fn write_html_table(body: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let cells = |cells: Vec<&str>, tag: &str| {
        join_texts(cells.iter().map(|c| format!("<{tag}>{}</{tag}>", escape_markup(c))), "")
    };
    *body += &format!("<div class=\"wide\"><table><tr>{}</tr>\n", cells(head.to_vec(), "th"));
    for row in rows {
        let row = cells(row.iter().map(String::as_str).collect(), "td");
        *body += &format!("<tr>{row}</tr>\n");
    }
    body.push_str("</table></div>\n");
}
