//! The figures that have a goal, as bars: how near each came to it.

use std::fmt::Write as _;

/// What a bar says: the figure in words, and how many times as good as its goal it is.
pub struct Bar {
    pub what: String,
    pub seen: String,
    pub goal: String,
    /// At 1 the goal is reached.
    pub of_goal: f64,
}

const WIDTH: f64 = 900.0;
const ROW: f64 = 22.0;
const TOP: f64 = 40.0;
/// Where bars begin; words are to the left.
const LEFT: f64 = 470.0;
const RIGHT: f64 = WIDTH - 120.0;
/// A tenth of the goal is at the left end, ten times the goal at the right.
const SPAN: f64 = 10.0;

pub fn svg(bars: &[Bar]) -> String {
    let height = TOP + ROW * bars.len() as f64 + 16.0;
    let x = |of_goal: f64| {
        let place = of_goal.clamp(1.0 / SPAN, SPAN).log(SPAN);
        LEFT + (RIGHT - LEFT) * (place + 1.0) / 2.0
    };
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{height}" fill="white"/>
"#
    );
    for (of_goal, name) in [
        (0.1, "a tenth of the goal"),
        (1.0, "the goal"),
        (10.0, "ten times"),
    ] {
        let x = x(of_goal);
        let _ = writeln!(
            svg,
            r##"<line x1="{x}" y1="{TOP}" x2="{x}" y2="{height}" stroke="#bbb"/><text x="{x}" y="{}" text-anchor="middle" fill="#555">{name}</text>"##,
            TOP - 10.0
        );
    }
    for (i, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * i as f64;
        let (from, to) = (x(1.0).min(x(bar.of_goal)), x(1.0).max(x(bar.of_goal)));
        let colour = if bar.of_goal >= 1.0 {
            "#2a7f62"
        } else {
            "#c0504d"
        };
        let _ = writeln!(
            svg,
            r##"<text x="{}" y="{}" text-anchor="end">{}</text><rect x="{from:.1}" y="{}" width="{:.1}" height="{}" fill="{colour}"/><text x="{}" y="{}" fill="#555">{} ({})</text>"##,
            LEFT - 8.0,
            y + 15.0,
            escaped(&bar.what),
            y + 4.0,
            (to - from).max(2.0),
            ROW - 8.0,
            RIGHT + 8.0,
            y + 15.0,
            escaped(&bar.seen),
            escaped(&bar.goal),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
