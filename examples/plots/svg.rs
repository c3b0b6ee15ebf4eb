//! Just enough SVG.

use std::fmt::{Display, Write};

/// How everything looks. The card is light whatever is around it; the colours are told apart by
/// everybody, and shapes differ too.
const STYLE: &str = "
text { font: 12px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #24292f; }
.title { font-size: 18px; font-weight: 600; }
.caption { font-size: 13px; font-weight: 600; }
.quiet, .tick { fill: #57606a; }
.tick, .count, .length { font-size: 11px; }
.code { font: 11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #57606a; }
.length, .count { fill: #8f3f00; }
.end { text-anchor: end; }
.middle { text-anchor: middle; }
.card { fill: #ffffff; stroke: #d0d7de; }
.axis { stroke: #8c959f; }
.grid { stroke: #e4e8ec; }
.window { stroke: #8c959f; stroke-dasharray: 1 4; stroke-linecap: round; stroke-width: 1.5; }
.blocked { fill: #d55e00; fill-opacity: 0.13; }
.begins { stroke: #d55e00; stroke-opacity: 0.4; }
.area { fill: #dcecf6; }
.line { fill: none; stroke: #0072b2; stroke-width: 1.75; stroke-linejoin: round; }
.other { fill: none; stroke: #6e7781; stroke-width: 1.25; stroke-dasharray: 3 2; }
.limit { stroke: #24292f; stroke-width: 1.25; stroke-dasharray: 6 4; }
.failed { fill: #0072b2; stroke: #ffffff; }
.success { fill: #009e73; stroke: #ffffff; }
.refused { fill: #ffffff; stroke: #d55e00; stroke-width: 1.5; }
";

/// A point on the sheet.
pub(crate) type Point = (f64, f64);

/// A drawing that grows downwards.
#[derive(Default)]
pub(crate) struct Svg {
    body: String,
}

impl Svg {
    pub(crate) fn rect(&mut self, class: &str, (x, y): Point, (width, height): Point, round: f64) {
        let [x, y, width, height] = [x, y, width, height].map(number);
        self.add(format_args!(
            r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}" rx="{round}"/>"#
        ));
    }

    pub(crate) fn line(&mut self, class: &str, from: Point, to: Point) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(number);
        self.add(format_args!(
            r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#
        ));
    }

    pub(crate) fn text(&mut self, class: &str, (x, y): Point, words: impl Display) {
        let words = escaped(&words.to_string());
        let [x, y] = [x, y].map(number);
        self.add(format_args!(
            r#"<text class="{class}" x="{x}" y="{y}">{words}</text>"#
        ));
    }

    pub(crate) fn circle(&mut self, class: &str, (x, y): Point, radius: f64) {
        let [x, y] = [x, y].map(number);
        self.add(format_args!(
            r#"<circle class="{class}" cx="{x}" cy="{y}" r="{radius}"/>"#
        ));
    }

    /// Lines from each point to the next.
    pub(crate) fn path(&mut self, class: &str, points: &[Point]) {
        let mut way = String::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let command = if i == 0 { "M" } else { " L" };
            let _ = write!(way, "{command}{} {}", number(*x), number(*y));
        }
        self.add(format_args!(r#"<path class="{class}" d="{way}"/>"#));
    }

    /// The whole file.
    pub(crate) fn finish(self, (width, height): Point, title: &str, what: &str) -> String {
        let (title, what) = (escaped(title), escaped(what));
        let [width, height] = [width, height].map(number);
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">
<title>{title}</title>
<desc>{what}</desc>
<style>{STYLE}</style>
{}</svg>
"#,
            self.body
        )
    }

    fn add(&mut self, element: impl Display) {
        let _ = writeln!(self.body, "{element}");
    }
}

/// To a tenth of a pixel, which nobody sees.
fn number(value: f64) -> f64 {
    // Plus zero, so that there is no minus zero.
    (value * 10.0).round() / 10.0 + 0.0
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
