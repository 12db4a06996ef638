//! Values keyed by a pattern with `*`, indexed by the fixed text before or after its wildcards.
//!
//! A hit matches the fixed part only. There is one hash lookup per distinct length of fixed parts, and at most as
//! many as the text is long.

use rustc_hash::FxHashMap;

/// Values by the longer fixed end of a pattern. Patterns without a fixed end share one value.
#[derive(Clone, Debug)]
pub(super) struct AffixMap<T> {
    prefixes: Vec<(usize, FxHashMap<Box<str>, T>)>,
    suffixes: Vec<(usize, FxHashMap<Box<str>, T>)>,
    unanchored: Option<T>,
}

impl<T> Default for AffixMap<T> {
    fn default() -> Self {
        AffixMap { prefixes: Vec::new(), suffixes: Vec::new(), unanchored: None }
    }
}

impl<T: Default> AffixMap<T> {
    /// The value for patterns with the same fixed part as `pattern`, created if absent.
    pub(super) fn entry(&mut self, pattern: &str) -> &mut T {
        let start = pattern.split('*').next().unwrap_or("");
        let end = pattern.rsplit('*').next().unwrap_or("");
        let (levels, fixed) =
            if start.len() >= end.len() { (&mut self.prefixes, start) } else { (&mut self.suffixes, end) };
        if fixed.is_empty() {
            return self.unanchored.get_or_insert_default();
        }
        let at = levels.partition_point(|(length, _)| *length < fixed.len());
        if levels.get(at).is_none_or(|(length, _)| *length != fixed.len()) {
            levels.insert(at, (fixed.len(), FxHashMap::default()));
        }
        levels[at].1.entry(fixed.into()).or_default()
    }
}

impl<T> AffixMap<T> {
    /// Visits the values of all patterns whose fixed start or end `text` has.
    pub(super) fn find<'m>(&'m self, text: &str, visit: &mut impl FnMut(&'m T)) {
        self.unanchored.iter().for_each(&mut *visit);
        for (length, values) in &self.prefixes {
            let Some(start) = text.get(..*length) else {
                continue;
            };
            values.get(start).into_iter().for_each(&mut *visit);
        }
        for (length, values) in &self.suffixes {
            let from = text.len().checked_sub(*length);
            let Some(end) = from.and_then(|from| text.get(from..)) else {
                continue;
            };
            values.get(end).into_iter().for_each(&mut *visit);
        }
    }
}
