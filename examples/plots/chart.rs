//! Draws histories below each other on one card.

use tower_login_rate_limit::{Period, algorithm::Millis};

use crate::{
    history::{DAY, HOUR, History, MINUTE, SECOND, Seen},
    svg::{Point, Svg},
};

const WIDTH: f64 = 720.0;
/// Where time begins and ends, from the left.
const LEFT: f64 = 92.0;
const RIGHT: f64 = 690.0;
/// Of a panel, from its top.
const CAPTION: f64 = 13.0;
const CURVE: (f64, f64) = (28.0, 108.0);
const ADMITTED: f64 = 124.0;
const REFUSED: f64 = 144.0;
const AXIS: f64 = 157.0;
const PANEL: f64 = 200.0;
/// Of the card.
const HEAD: f64 = 82.0;
const LEGEND: f64 = 34.0;

/// Marks that are closer than this can't be told apart.
const TOO_CLOSE: f64 = 4.5;
const PILL: f64 = 12.0;

/// One file.
pub(crate) struct Plot {
    pub(crate) file: &'static str,
    pub(crate) title: &'static str,
    pub(crate) subtitle: &'static str,
    /// What the line is.
    pub(crate) measured: &'static str,
    pub(crate) panels: Vec<Panel>,
}

/// One history on a time axis of its own.
pub(crate) struct Panel {
    pub(crate) caption: String,
    /// How it is said in Rust.
    pub(crate) words: &'static str,
    pub(crate) history: History,
    /// What lies between two ticks.
    pub(crate) tick: Millis,
    pub(crate) scale: Scale,
    /// Windows that are cut at fixed times.
    pub(crate) windows: Option<Millis>,
    /// Another line, to compare.
    pub(crate) exact: Option<Vec<(Millis, f64)>>,
}

/// What the height of the line means.
#[derive(Clone, Copy)]
pub(crate) enum Scale {
    /// Attempts, of which so many are the limit.
    Attempts(u32),
    /// Seconds, up to so many.
    Wait(u32),
}

impl Plot {
    pub(crate) fn draw(&self) -> String {
        let height = HEAD + PANEL * self.panels.len() as f64 + LEGEND;
        let mut svg = Svg::default();
        svg.rect("card", (0.5, 0.5), (WIDTH - 1.0, height - 1.0), 8.0);
        svg.text("title", (24.0, 36.0), self.title);
        svg.text("quiet", (24.0, 58.0), self.subtitle);
        for (panel, i) in self.panels.iter().zip(0_u32..) {
            panel.draw(&mut svg, HEAD + PANEL * f64::from(i));
        }
        self.draw_legend(&mut svg, height - 30.0);
        svg.finish((WIDTH, height), self.title, self.subtitle)
    }

    fn draw_legend(&self, svg: &mut Svg, y: f64) {
        let seen = |kind| {
            let mut attempts = self.panels.iter().flat_map(|panel| &panel.history.attempts);
            attempts.any(|(_, seen)| *seen == kind)
        };
        let has_limit = (self.panels.iter()).any(|p| matches!(p.scale, Scale::Attempts(_)));
        let has_exact = self.panels.iter().any(|panel| panel.exact.is_some());
        let swatch = (22.0, 12.0);
        let mut x = 24.0;
        let mut item = |svg: &mut Svg, width: f64, words: &str| {
            let at = x;
            x += width + 6.0 + length(words) + 18.0;
            svg.text("quiet", (at + width + 6.0, y + 4.0), words);
            at
        };
        let at = item(svg, 9.0, "failed");
        mark(svg, Seen::Failed, (at + 4.5, y));
        if seen(Seen::LoggedIn) {
            let at = item(svg, 9.0, "logged in");
            mark(svg, Seen::LoggedIn, (at + 4.5, y));
        }
        let at = item(svg, 9.0, "refused");
        mark(svg, Seen::Refused, (at + 4.5, y));
        let at = item(svg, swatch.0, "blocked");
        svg.rect("blocked", (at, y - 6.0), swatch, 0.0);
        svg.line("begins", (at, y - 6.0), (at, y + 6.0));
        let at = item(svg, swatch.0, self.measured);
        svg.rect("area", (at, y - 3.0), (swatch.0, 9.0), 0.0);
        svg.line("line", (at, y - 3.0), (at + swatch.0, y - 3.0));
        if has_exact {
            let at = item(svg, swatch.0, "exact count");
            svg.line("other", (at, y), (at + swatch.0, y));
        }
        if has_limit {
            let at = item(svg, swatch.0, "limit");
            svg.line("limit", (at, y), (at + swatch.0, y));
        }
    }
}

impl Panel {
    pub(crate) fn new(caption: &str, words: &'static str, history: History, scale: Scale) -> Self {
        Self {
            caption: caption.to_owned(),
            words,
            tick: history.until / 10,
            history,
            scale,
            windows: None,
            exact: None,
        }
    }

    pub(crate) fn with_ticks(self, tick: Millis) -> Self {
        Self { tick, ..self }
    }

    fn draw(&self, svg: &mut Svg, top: f64) {
        svg.text("caption", (24.0, top + CAPTION), &self.caption);
        svg.text("code end", (RIGHT, top + CAPTION), self.words);
        self.draw_axes(svg, top);
        self.draw_blocked(svg, top);
        self.draw_curve(svg, top);
        self.draw_attempts(svg, top);
    }

    fn x(&self, at: Millis) -> f64 {
        LEFT + (RIGHT - LEFT) * at as f64 / self.history.until as f64
    }

    fn y(&self, top: f64, value: f64) -> f64 {
        let (highest, lowest) = CURVE;
        top + lowest - (lowest - highest) * value / self.most()
    }

    /// What the panel is high enough for.
    fn most(&self) -> f64 {
        let (Scale::Attempts(most) | Scale::Wait(most)) = self.scale;
        let exact = self.exact.iter().flatten();
        let highest = exact.fold(most.into(), |most: f64, (_, value)| most.max(*value));
        highest * 1.15
    }

    fn draw_axes(&self, svg: &mut Svg, top: f64) {
        let (axis, bottom) = (top + AXIS, top + CURVE.1);
        let step = self.tick as usize;
        for at in (0..=self.history.until).step_by(step) {
            let x = self.x(at);
            svg.line("grid", (x, top + CURVE.0), (x, axis));
            svg.line("axis", (x, axis), (x, axis + 4.0));
            svg.text("tick middle", (x, axis + 17.0), short(at, self.tick));
        }
        svg.line("axis", (LEFT, axis), (RIGHT, axis));

        let label = |svg: &mut Svg, y: f64, words: &str| {
            svg.text("tick end", (LEFT - 8.0, y + 4.0), words);
        };
        label(svg, bottom, "0");
        label(svg, top + ADMITTED, "admitted");
        label(svg, top + REFUSED, "refused");
        match self.scale {
            Scale::Attempts(limit) => {
                let y = self.y(top, limit.into());
                label(svg, y, &format!("limit {limit}"));
            }
            Scale::Wait(most) => {
                let y = self.y(top, most.into());
                svg.line("grid", (LEFT, y), (RIGHT, y));
                let most = Millis::from(most) * SECOND;
                label(svg, y, &short(most, most));
            }
        }
    }

    fn draw_blocked(&self, svg: &mut Svg, top: f64) {
        let (above, below) = (top + CURVE.0, top + AXIS);
        for blocked in &self.history.blocked {
            let (from, to) = self.ends(blocked.from, blocked.lasts);
            svg.rect("blocked", (from, above), (to - from, below - above), 0.0);
            svg.line("begins", (from, above), (from, below));
            // Nothing else is in this lane meanwhile.
            let words = match blocked.lasts {
                Period::Forever => "for ever".to_owned(),
                length => length.to_string(),
            };
            if to - from > length(&words) + 10.0 {
                let middle = ((from + to) / 2.0, top + ADMITTED + 4.0);
                svg.text("length middle", middle, words);
            }
        }
    }

    fn ends(&self, from: Millis, lasts: Period) -> Point {
        let length = lasts.as_duration().map(|length| length.as_millis() as u64);
        let end = length.map_or(self.history.until, |length| from + length);
        (self.x(from), self.x(end.min(self.history.until)))
    }

    fn draw_curve(&self, svg: &mut Svg, top: f64) {
        let place = |(at, value): &(Millis, f64)| (self.x(*at), self.y(top, *value));
        let line: Vec<_> = self.history.line.iter().map(place).collect();
        let bottom = self.y(top, 0.0);
        let mut area = line.clone();
        area.extend([(RIGHT, bottom), (LEFT, bottom)]);
        svg.path("area", &area);
        svg.line("axis", (LEFT, bottom), (RIGHT, bottom));
        if let Some(window) = self.windows {
            for at in (window..self.history.until).step_by(window as usize) {
                svg.line("window", (self.x(at), top + CURVE.0), (self.x(at), bottom));
            }
        }
        if let Some(exact) = &self.exact {
            svg.path("other", &exact.iter().map(place).collect::<Vec<_>>());
        }
        if let Scale::Attempts(limit) = self.scale {
            let y = self.y(top, limit.into());
            svg.line("limit", (LEFT, y), (RIGHT, y));
        }
        svg.path("line", &line);
    }

    /// Each attempt a mark; those that went the same way and are too close together, one for all.
    fn draw_attempts(&self, svg: &mut Svg, top: f64) {
        let runs = (self.history.attempts).chunk_by(|(at, seen), (next, as_well)| {
            seen == as_well && self.x(*next) - self.x(*at) < TOO_CLOSE
        });
        for run in runs {
            let (first, seen) = run[0];
            let last = run[run.len() - 1].0;
            let y = top + lane(seen);
            let (from, to) = (self.x(first), self.x(last));
            match (run.len(), seen) {
                (n @ 2.., Seen::Refused) => pill(svg, (from, to), y, n),
                // With room for their number in front.
                (n @ 2.., _) if from > LEFT + 30.0 => {
                    mark(svg, seen, (from, y));
                    svg.text("tick end", (from - 8.0, y + 4.0), format_args!("{n} ×"));
                }
                _ => (run.iter()).for_each(|(at, _)| mark(svg, seen, (self.x(*at), y))),
            }
        }
    }
}

const fn lane(seen: Seen) -> f64 {
    match seen {
        Seen::Failed | Seen::LoggedIn => ADMITTED,
        Seen::Refused => REFUSED,
    }
}

/// A disc, a triangle or a hollow diamond.
fn mark(svg: &mut Svg, seen: Seen, (x, y): Point) {
    match seen {
        Seen::Failed => svg.circle("failed", (x, y), 4.25),
        Seen::LoggedIn => {
            let corners = [(x, y - 6.5), (x + 6.5, y + 5.0), (x - 6.5, y + 5.0)];
            svg.path("success", &[&corners[..], &corners[..1]].concat());
        }
        Seen::Refused => {
            let (left, right) = ((x - 4.0, y), (x + 4.0, y));
            let (above, below) = ((x, y - 4.0), (x, y + 4.0));
            svg.path("refused", &[left, above, right, below, left, above]);
        }
    }
}

/// Many refused attempts in one mark, with their number if there is room for it.
fn pill(svg: &mut Svg, (from, to): Point, y: f64, n: usize) {
    let width = (to - from).max(2.0);
    let corner = (from, y - PILL / 2.0);
    svg.rect("refused", corner, (width, PILL), PILL / 2.0);
    let words = match width {
        80.0.. => format!("{n} refused"),
        18.0.. => n.to_string(),
        _ => return,
    };
    svg.text("count middle", (from + width / 2.0, y + 4.0), words);
}

/// A time as it stands at an axis, in the unit of what lies between two of them.
fn short(time: Millis, tick: Millis) -> String {
    let (unit, name) = match tick {
        DAY.. => (DAY, "d"),
        HOUR.. => (HOUR, "h"),
        MINUTE.. => (MINUTE, "min"),
        _ => (SECOND, "s"),
    };
    match time {
        0 => "0".to_owned(),
        _ => format!("{} {name}", time / unit),
    }
}

/// About how long a line of text is. Fonts differ; this is on the wide side.
fn length(words: &str) -> f64 {
    let letter = |c| if "fijlrt ".contains(c) { 4.6 } else { 7.3 };
    words.chars().map(letter).sum()
}
