//! `tidegate schema`: the JSON Schema of a rules file.

use super::{Exit, say};

pub(super) fn run() -> Exit {
    say(tidegate_core::rules::schema());
    Exit::Done
}
