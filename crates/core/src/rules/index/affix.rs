//! Values by a pattern with `*`, filed by the fixed text before or after its wildcards.
//!
//! What is found fits the fixed part only. There are as many lookups as there are different lengths
//! of fixed parts, at most as many as the text is long.

use rustc_hash::FxHashMap;

/// Values by the longer fixed end of a pattern; patterns without one together.
#[derive(Clone, Debug)]
pub(super) struct AffixMap<T> {
    prefixes: Vec<(usize, FxHashMap<Box<str>, T>)>,
    suffixes: Vec<(usize, FxHashMap<Box<str>, T>)>,
    unanchored: Option<T>,
}

impl<T> Default for AffixMap<T> {
    fn default() -> Self {
        AffixMap {
            prefixes: Vec::new(),
            suffixes: Vec::new(),
            unanchored: None,
        }
    }
}

impl<T: Default> AffixMap<T> {
    /// The value for patterns with the same fixed part as `pattern`, made if absent.
    pub(super) fn entry(&mut self, pattern: &str) -> &mut T {
        let start = pattern.split('*').next().unwrap_or("");
        let end = pattern.rsplit('*').next().unwrap_or("");
        let (levels, fixed) = if start.len() >= end.len() {
            (&mut self.prefixes, start)
        } else {
            (&mut self.suffixes, end)
        };
        if fixed.is_empty() {
            return self.unanchored.get_or_insert_default();
        }
        let at = levels.partition_point(|(length, _)| *length < fixed.len());
        if levels
            .get(at)
            .is_none_or(|(length, _)| *length != fixed.len())
        {
            levels.insert(at, (fixed.len(), FxHashMap::default()));
        }
        levels[at].1.entry(fixed.into()).or_default()
    }
}

impl<T> AffixMap<T> {
    /// Tells the values of all patterns whose fixed part `text` has.
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
