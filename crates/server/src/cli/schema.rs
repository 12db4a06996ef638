//! `tidegate schema`: the JSON Schema of a rules file.

use super::{Exit, print_line};

pub(super) fn run() -> Exit {
    print_line(tidegate_rules::schema());
    Exit::Done
}
