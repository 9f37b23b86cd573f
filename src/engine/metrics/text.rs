//! OpenMetrics 1.0 text: families of samples, written one after another.

use std::fmt::Write;

use super::histogram::Histogram;

/// What a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
    /// Facts that do not change, as labels.
    Info,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

/// Label names with their values.
pub(super) type Labels<'l> = &'l [(&'l str, &'l str)];

/// The document being written.
#[derive(Debug)]
pub(super) struct Text {
    out: String,
    /// Labels of every sample.
    common: String,
    family: &'static str,
    kind: Kind,
}

impl Text {
    /// A document whose samples all have these labels.
    pub(super) fn new(common: Labels<'_>) -> Self {
        let mut labels = String::new();
        write_labels(common, &mut labels);
        Self {
            out: String::with_capacity(16 << 10),
            common: labels,
            family: "",
            kind: Kind::Gauge,
        }
    }

    /// Begins a family. `name` is without the suffix of its samples.
    pub(super) fn family(&mut self, kind: Kind, name: &'static str, help: &str) {
        self.family = name;
        self.kind = kind;
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "# TYPE {name} {}", kind.name());
        if let Some((_, "seconds")) = name.rsplit_once('_') {
            let _ = writeln!(self.out, "# UNIT {name} seconds");
        }
        let _ = writeln!(self.out, "# HELP {name} {help}");
    }

    /// A sample of a counter, a gauge or an info.
    pub(super) fn sample(&mut self, labels: Labels<'_>, value: u64) {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.line(suffix, labels, &value.to_string());
    }

    /// All samples of a histogram.
    pub(super) fn histogram(&mut self, labels: Labels<'_>, histogram: &Histogram) {
        let (buckets, sum) = histogram.read();
        let count = buckets.last().map_or(0, |last| last.1);
        for (bound, count) in buckets {
            let bound = bound.map_or("+Inf".to_owned(), |bound| format!("{bound:?}"));
            let with_bound: Vec<_> = labels
                .iter()
                .copied()
                .chain([("le", bound.as_str())])
                .collect();
            self.line("_bucket", &with_bound, &count.to_string());
        }
        self.line("_sum", labels, &format!("{sum:?}"));
        self.line("_count", labels, &count.to_string());
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, value: &str) {
        self.out.push_str(self.family);
        self.out.push_str(suffix);
        let separated = match self.common.is_empty() || labels.is_empty() {
            true => "",
            false => ",",
        };
        if !(self.common.is_empty() && labels.is_empty()) {
            self.out.push('{');
            self.out.push_str(&self.common);
            self.out.push_str(separated);
            write_labels(labels, &mut self.out);
            self.out.push('}');
        }
        self.out.push(' ');
        self.out.push_str(value);
        self.out.push('\n');
    }

    /// The whole document.
    pub(super) fn finish(mut self) -> String {
        self.out.push_str("# EOF\n");
        self.out
    }
}

fn write_labels(labels: Labels<'_>, into: &mut String) {
    for (at, (name, value)) in labels.iter().enumerate() {
        if at > 0 {
            into.push(',');
        }
        into.push_str(name);
        into.push_str("=\"");
        for c in value.chars() {
            match c {
                '\\' => into.push_str("\\\\"),
                '"' => into.push_str("\\\""),
                '\n' => into.push_str("\\n"),
                c => into.push(c),
            }
        }
        into.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_carry_the_suffix_of_their_kind_and_labels_are_escaped() {
        let mut text = Text::new(&[("engine", "1")]);
        text.family(Kind::Counter, "fathom_requests", "Requests that ended.");
        text.sample(&[("outcome", "a\"b\\c\nd")], 5);
        text.family(Kind::Gauge, "fathom_requests_running", "Being computed.");
        text.sample(&[], 2);
        let wanted = concat!(
            "# TYPE fathom_requests counter\n",
            "# HELP fathom_requests Requests that ended.\n",
            "fathom_requests_total{engine=\"1\",outcome=\"a\\\"b\\\\c\\nd\"} 5\n",
            "# TYPE fathom_requests_running gauge\n",
            "# HELP fathom_requests_running Being computed.\n",
            "fathom_requests_running{engine=\"1\"} 2\n",
            "# EOF\n",
        );
        assert_eq!(text.finish(), wanted);
    }

    #[test]
    fn a_histogram_ends_with_everything() {
        let rows = Histogram::of_rows();
        rows.add(3);
        let mut text = Text::new(&[]);
        text.family(Kind::Histogram, "fathom_wait_seconds", "Time.");
        text.histogram(&[], &rows);
        let text = text.finish();
        assert!(text.contains("# UNIT fathom_wait_seconds seconds\n"));
        assert!(text.contains("fathom_wait_seconds_bucket{le=\"2.0\"} 0\n"));
        assert!(text.contains("fathom_wait_seconds_bucket{le=\"4.0\"} 1\n"));
        assert!(text.contains("fathom_wait_seconds_bucket{le=\"+Inf\"} 1\n"));
        assert!(
            text.ends_with("fathom_wait_seconds_sum 3.0\nfathom_wait_seconds_count 1\n# EOF\n")
        );
    }
}
