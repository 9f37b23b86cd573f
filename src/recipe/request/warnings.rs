//! Collects what a request asked for in vain.

use crate::recipe::options::Warning;

/// A request with more is broken in one place many times.
pub(super) const MOST: usize = 64;

/// Warnings of one request, in its order.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    list: Vec<Warning>,
    left_out: usize,
}

impl Warnings {
    /// Adds one.
    pub(super) fn add(
        &mut self,
        code: &'static str,
        param: impl Into<String>,
        message: impl Into<String>,
    ) {
        if self.list.len() == MOST {
            self.left_out += 1;
            return;
        }
        self.list.push(Warning {
            code,
            param: param.into(),
            message: message.into(),
        });
    }

    /// Counts warnings that would be too many.
    pub(super) fn leave_out(&mut self, more: usize) {
        self.left_out += more;
    }

    /// All of them; the last one tells how many are missing.
    pub(super) fn finish(mut self) -> Vec<Warning> {
        if self.left_out > 0 {
            self.list.push(Warning {
                code: "more",
                param: String::new(),
                message: format!("{} more were left out", self.left_out),
            });
        }
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_too_many_counts_the_rest() {
        let mut warnings = Warnings::default();
        for _ in 0..70 {
            warnings.add("unknown_field", "x", "it is unknown");
        }
        let list = warnings.finish();
        assert_eq!(list.len(), 65);
        assert_eq!(list[64].code, "more");
        assert_eq!(list[64].message, "6 more were left out");
    }
}
