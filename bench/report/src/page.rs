//! One page of results: printed as it grows, and saved to a file.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::facts::Facts;
use crate::goal::{Goal, goals_table};
use crate::table::Table;

/// The results of one area, in the order they were added.
#[derive(Debug)]
pub struct Page {
    area: String,
    facts: Facts,
    text: String,
}

impl Page {
    /// Opens the page of an area with the facts of this run.
    pub fn new(area: impl Into<String>, facts: Facts) -> Self {
        let area = area.into();
        let mut page = Page { text: String::new(), area, facts };
        page.add(format!("# Bench: {}\n\n{}", page.area, page.facts.markdown()));
        page
    }

    /// Adds a heading, a table and a note on how to read it.
    pub fn table(&mut self, title: &str, table: &Table, note: &str) {
        self.add(format!("\n## {title}\n\n{table}"));
        if !note.is_empty() {
            self.add(format!("\n{note}\n"));
        }
    }

    /// Adds a separate paragraph.
    pub fn note(&mut self, text: &str) {
        self.add(format!("\n{text}\n"));
    }

    /// Adds the goals of the area with their verdicts.
    pub fn goals(&mut self, goals: &[Goal]) {
        self.table("Goals", &goals_table(goals), "");
    }

    /// Saves the page as `<folder>/<date>-<area>.md`; a second run of a day replaces the first.
    ///
    /// # Errors
    ///
    /// When the folder or the file cannot be written.
    pub fn save(&self, folder: &Path) -> io::Result<PathBuf> {
        fs::create_dir_all(folder)?;
        let path = folder.join(format!("{}-{}.md", self.facts.date(), self.area));
        fs::write(&path, &self.text)?;
        Ok(path)
    }

    fn add(&mut self, part: impl Display) {
        let part = part.to_string();
        print!("{part}");
        self.text.push_str(&part);
    }
}
