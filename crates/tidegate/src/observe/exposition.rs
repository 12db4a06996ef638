//! The classic Prometheus text format, version 0.0.4.
//!
//! A family begins with its help and type; its samples follow before the next family begins. Label values are escaped
//! here and nowhere else.

use std::borrow::Cow;
use std::fmt::{Display, Write};

use super::histogram::Histogram;

/// Writes families without labels: the kind, name and value of each, and its help.
macro_rules! expose {
    ($page:expr; $($kind:ident $name:literal = $value:expr; $help:literal)+) => {
        $($page.$kind($name, $help, $value);)+
    };
}

pub(super) use expose;

/// The kind of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// Only grows. Its name ends in `_total`.
    Counter,
    /// Grows and falls.
    Gauge,
    /// A distribution.
    Histogram,
}

/// A page of samples being written.
#[derive(Debug, Default)]
pub struct Exposition {
    page: String,
    family: Cow<'static, str>,
}

impl Exposition {
    /// The content type of the page.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Begins a family.
    pub fn family(&mut self, name: impl Into<Cow<'static, str>>, kind: MetricKind, help: &str) -> &mut Self {
        let name = name.into();
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
        self.family = name;
        self
    }

    /// One sample of the current family.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.suffixed("", labels, value)
    }

    /// A counter without labels.
    pub fn counter(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(name, MetricKind::Counter, help).sample(&[], value);
    }

    /// A gauge without labels.
    pub fn gauge(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(name, MetricKind::Gauge, help).sample(&[], value);
    }

    /// The samples of a histogram, in the current family.
    pub fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) -> &mut Self {
        let (bounds, total) = histogram.cumulative();
        let mut bucket = |bound: &str, count: u64| {
            let labelled: Vec<_> = labels.iter().copied().chain([("le", bound)]).collect();
            self.suffixed("_bucket", &labelled, count);
        };
        for (bound, count) in bounds {
            bucket(&bound.to_string(), count);
        }
        bucket("+Inf", total);
        self.suffixed("_sum", labels, histogram.sum_secs());
        self.suffixed("_count", labels, total)
    }

    /// The page.
    pub fn finish(self) -> String {
        self.page
    }

    fn suffixed(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.page.push_str(&self.family);
        self.page.push_str(suffix);
        for (i, (name, text)) in labels.iter().enumerate() {
            self.page.push(if i == 0 { '{' } else { ',' });
            self.page.push_str(name);
            self.page.push_str("=\"");
            escape(text, &mut self.page);
            self.page.push('"');
        }
        if !labels.is_empty() {
            self.page.push('}');
        }
        self.line(format_args!(" {value}"));
        self
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        writeln!(self.page, "{text}").expect("writing to a String never fails");
    }
}

fn escape(text: &str, page: &mut String) {
    for c in text.chars() {
        match c {
            '\\' => page.push_str("\\\\"),
            '"' => page.push_str("\\\""),
            '\n' => page.push_str("\\n"),
            c => page.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_break_out_of_its_quotes() {
        let mut page = Exposition::default();
        page.family("a_total", MetricKind::Counter, "Help.").sample(&[("rule", "x\"} 1\n\\"), ("edge", "http")], 7);
        let want = "# HELP a_total Help.\n# TYPE a_total counter\n\
                    a_total{rule=\"x\\\"} 1\\n\\\\\",edge=\"http\"} 7\n";
        assert_eq!(page.finish(), want);
    }
}
