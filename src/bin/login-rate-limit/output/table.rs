//! Tables, aligned by what a terminal shows.

use unicode_width::UnicodeWidthStr;

use super::{Style, safe};

/// Between columns.
const GAP: usize = 2;

/// Rows of cells below a header.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<Cell>,
    rows: Vec<Vec<Cell>>,
}

/// A cell. Its text is escaped, whatever it is: names, notes and user agents are what clients and others chose.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    style: Style,
    to_the_right: bool,
}

impl Cell {
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        Self {
            text: safe(text.as_ref()),
            style: Style::Plain,
            to_the_right: false,
        }
    }

    /// A number, or something that has one in front.
    pub(crate) fn number(text: impl ToString) -> Self {
        Self {
            to_the_right: true,
            ..Self::new(text.to_string())
        }
    }

    pub(crate) const fn styled(mut self, style: Style) -> Self {
        self.style = style;
        self
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

impl Table {
    pub(crate) fn new<const N: usize>(header: [&str; N]) -> Self {
        let header = header.map(|name| Cell::new(name).styled(Style::Bold));
        Self {
            header: header.into(),
            rows: Vec::new(),
        }
    }

    /// One more column.
    pub(crate) fn column(&mut self, name: &str) {
        self.header.push(Cell::new(name).styled(Style::Bold));
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        self.rows.push(cells.into());
    }

    pub(crate) fn render(&self, color: bool) -> String {
        let rows = || std::iter::once(&self.header).chain(&self.rows);
        let width = |column: usize| {
            let cells = rows().filter_map(|row| row.get(column));
            cells.map(|cell| cell.text.width()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.header.len()).map(width).collect();
        // A header is where its numbers are.
        let to_the_right = |column: usize| {
            let first = self.rows.first().and_then(|row| row.get(column));
            first.is_some_and(|cell| cell.to_the_right)
        };
        let mut text = String::new();
        for row in rows() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let padding = " ".repeat(widths[column].saturating_sub(cell.text.width()));
                let painted = cell.style.paint(&cell.text, color);
                if to_the_right(column) {
                    line.extend([&*padding, &painted]);
                } else {
                    line.extend([&*painted, &padding]);
                }
                line.push_str(&" ".repeat(GAP));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_by_what_a_terminal_shows() {
        let mut table = Table::new(["USER", "N", "NOTE"]);
        table.row(["e\u{301}lodie".into(), Cell::number(5), "x".into()]);
        table.row(["日本".into(), Cell::number(12), "y".into()]);
        table.row(["a\n\u{1b}[1m".into(), Cell::number(3), "".into()]);
        let expected = "\
USER            N  NOTE
e\u{301}lodie           5  x
日本           12  y
a\\u{a}\\u{1b}[1m   3
";
        let rendered = table.render(false);
        let widths: Vec<_> = (rendered.lines().take(3))
            .map(|line| line[..line.len() - 1].width())
            .collect();
        assert_eq!(rendered.replace(' ', ""), expected.replace(' ', ""));
        assert_eq!(widths[1], widths[2], "{rendered}");
        assert!(!rendered.contains('\u{1b}'));
    }

    #[test]
    fn colors_do_not_move_columns() {
        let mut table = Table::new(["A", "B"]);
        table.row([Cell::new("long text").styled(Style::Red), "b".into()]);
        let plain = table.render(false);
        let mut colored = table.render(true);
        for code in ["\x1b[1m", "\x1b[31m", "\x1b[0m"] {
            colored = colored.replace(code, "");
        }
        assert_eq!(plain, colored);
    }
}
