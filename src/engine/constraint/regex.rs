//! Regular expressions that must match the whole text.
//!
//! In: an expression of the `regex` crate's syntax. Out: the same without anchors at its ends, which say what is
//! true anyway. Other anchors, word boundaries and the like say something about neighbours that a grammar does
//! not see, and are refused.

#![forbid(unsafe_code)]

use regex_syntax::ast::{AssertionKind, Ast, parse::ParserBuilder};

use super::spec::refuse;
use crate::engine::error::Error;

/// How deep groups may nest.
const NESTING: u32 = 100;

/// The expression without its outer anchors.
pub(super) fn whole_text(expression: &str) -> Result<String, Error> {
    let ast = ParserBuilder::new()
        .nest_limit(NESTING)
        .build()
        .parse(expression)
        .map_err(|error| {
            let (kind, at) = (error.kind(), error.span().start.offset);
            refuse(format!("the expression is wrong at byte {at}: {kind}"))
        })?;
    let mut cuts = Vec::new();
    anchors(&ast, true, true, &mut cuts)?;
    cuts.sort_unstable_by_key(|cut| cut.start);
    let mut out = String::with_capacity(expression.len());
    let mut done = 0;
    for cut in cuts {
        out.push_str(&expression[done..cut.start]);
        // Something must stand there, or `^*` would become `*`.
        out.push_str("(?:)");
        done = cut.end;
    }
    out.push_str(&expression[done..]);
    Ok(out)
}

/// Collects anchors that stand first or last wherever they stand; refuses others. Recursion is bounded by the
/// parser's nesting limit.
fn anchors(
    ast: &Ast,
    is_first: bool,
    is_last: bool,
    cuts: &mut Vec<std::ops::Range<usize>>,
) -> Result<(), Error> {
    match ast {
        Ast::Assertion(assertion) => {
            let is_outer = match assertion.kind {
                AssertionKind::StartLine | AssertionKind::StartText => is_first,
                AssertionKind::EndLine | AssertionKind::EndText => is_last,
                _ => false,
            };
            let range = assertion.span.start.offset..assertion.span.end.offset;
            if !is_outer {
                return Err(refuse(format!(
                    "the expression has an assertion at byte {} that a grammar cannot hold",
                    range.start
                )));
            }
            cuts.push(range);
        }
        Ast::Concat(concat) => {
            let last = concat.asts.len().saturating_sub(1);
            for (at, part) in concat.asts.iter().enumerate() {
                anchors(part, is_first && at == 0, is_last && at == last, cuts)?;
            }
        }
        Ast::Alternation(alternation) => {
            for branch in &alternation.asts {
                anchors(branch, is_first, is_last, cuts)?;
            }
        }
        Ast::Group(group) => anchors(&group.ast, is_first, is_last, cuts)?,
        // Repeated, an anchor would stand between two rounds.
        Ast::Repetition(repetition) => anchors(&repetition.ast, false, false, cuts)?,
        Ast::Empty(_)
        | Ast::Flags(_)
        | Ast::Literal(_)
        | Ast::Dot(_)
        | Ast::ClassUnicode(_)
        | Ast::ClassPerl(_)
        | Ast::ClassBracketed(_) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_at_the_ends_are_left_out_and_others_refused() {
        assert_eq!(whole_text(r"^\d+$").unwrap(), r"(?:)\d+(?:)");
        assert_eq!(whole_text(r"(^a|b$)").unwrap(), r"((?:)a|b(?:))");
        assert_eq!(whole_text("a/b").unwrap(), "a/b");
        for wrong in ["a^", "$a", r"a\b", "(^a)*", "(", "a{2,1}", "[z-a]"] {
            assert!(whole_text(wrong).is_err(), "{wrong}");
        }
        let error = whole_text("ab(").unwrap_err();
        assert!(error.message.contains("byte 2"), "{error}");
    }
}
