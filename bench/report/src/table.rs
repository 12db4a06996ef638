//! A markdown table whose columns line up when read as plain text.

use std::fmt;

/// Rows of text under a heading. Every row has as many cells as the heading.
#[derive(Debug, Clone)]
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns; the first is aligned left, the others right.
    pub fn new<S: Into<String>>(heading: impl IntoIterator<Item = S>) -> Self {
        Table { heading: heading.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row; a short one is filled with empty cells.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.heading.len(), String::new());
        self.rows.push(row);
    }

    fn widths(&self) -> Vec<usize> {
        (0..self.heading.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| &row[column]);
                cells.chain([&self.heading[column]]).map(|cell| cell.chars().count()).max()
            })
            .map(|widest| widest.unwrap_or(0).max(3))
            .collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        write_row(f, &self.heading, &widths)?;
        for (column, width) in widths.iter().enumerate() {
            let dashes = "-".repeat(*width + 1);
            let rule = if column == 0 { format!("|:{dashes}") } else { format!("|{dashes}:") };
            f.write_str(&rule)?;
        }
        writeln!(f, "|")?;
        self.rows.iter().try_for_each(|row| write_row(f, row, &widths))
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, cells: &[String], widths: &[usize]) -> fmt::Result {
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        match column {
            0 => write!(f, "| {cell:<width$} ")?,
            _ => write!(f, "| {cell:>width$} ")?,
        }
    }
    writeln!(f, "|")
}

/// A measured figure with as many digits as are worth reading, or `absent`.
#[must_use]
pub fn figure(value: Option<f64>) -> String {
    match value {
        None => "absent".to_owned(),
        Some(v) if v.abs() >= 10_000.0 => thousands(v),
        Some(v) if v.abs() >= 100.0 => format!("{v:.0}"),
        Some(v) if v.abs() >= 10.0 => format!("{v:.1}"),
        Some(v) => format!("{v:.2}"),
    }
}

/// One figure as a multiple of another, or `absent` when either is missing.
#[must_use]
pub fn ratio(of: Option<f64>, to: Option<f64>) -> Option<f64> {
    of.zip(to).filter(|(_, to)| *to > 0.0).map(|(of, to)| of / to)
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_as_plain_text() {
        let mut table = Table::new(["who", "ns"]);
        table.row(["governor", "91.0"]);
        let want = "| who      |   ns |\n|:---------|-----:|\n| governor | 91.0 |\n";
        assert_eq!(table.to_string(), want);
    }

    #[test]
    fn figures_keep_the_digits_worth_reading() {
        let shown: Vec<_> = [1_234_567.4, 929.4, 91.04, 1.149].map(|v| figure(Some(v))).into();
        assert_eq!(shown, ["1,234,567", "929", "91.0", "1.15"]);
        assert_eq!(figure(None), "absent");
    }

    #[test]
    fn a_ratio_to_nothing_is_absent() {
        assert_eq!(ratio(Some(1.0), Some(0.0)), None);
        assert_eq!(ratio(Some(1.0), None), None);
        assert_eq!(ratio(Some(1.0), Some(2.0)), Some(0.5));
    }
}
