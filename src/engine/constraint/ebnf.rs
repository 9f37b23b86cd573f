//! EBNF, in the dialect of `name ::= …`, becomes a grammar in the form of Lark.
//!
//! Read: rules of alternatives, sequences, groups, `*`, `+`, `?`, `{n}`, `{n,}`, `{n,m}`, quoted text, `.`,
//! character classes, comments after `#`. The first rule is `root`. Not read, and refused: lookahead `(= …)`.
//!
//! A rule that does not come back to itself describes a regular language and becomes one terminal; the others stay
//! rules. Between the terminals of a rule the longest match counts, so a recursive grammar that depends on a
//! shorter one loses these words; it never gains any. Linear in the text.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt::Write;

use super::spec::{lark_regex, lark_string, refuse};
use crate::engine::error::Error;

/// How deep groups may nest.
const NESTING: usize = 100;
/// Rules of a grammar.
const RULES: usize = 2000;

pub(super) fn to_lark(text: &str) -> Result<String, Error> {
    let rules = Reader::new(text).rules()?;
    if rules.len() > RULES {
        return Err(refuse(format!("the grammar has more than {RULES} rules")));
    }
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for (at, rule) in rules.iter().enumerate() {
        if by_name.insert(rule.name, at).is_some() {
            return Err(refuse(format!("rule \"{}\" is there twice", rule.name)));
        }
    }
    let Some(&root) = by_name.get("root") else {
        return Err(refuse("the grammar has no rule \"root\"".to_owned()));
    };
    let is_regular = regular(&rules, &by_name)?;
    let mut out = String::from("start: ");
    name(&mut out, root, &is_regular);
    for (at, rule) in rules.iter().enumerate() {
        out.push('\n');
        name(&mut out, at, &is_regular);
        out.push_str(": ");
        write_expression(&mut out, &rule.body, &by_name, &is_regular);
    }
    out.push('\n');
    Ok(out)
}

fn name(out: &mut String, rule: usize, is_regular: &[bool]) {
    let _ = write!(out, "{}{rule}", if is_regular[rule] { "T" } else { "r" });
}

/// Which rules never come back to themselves, nor to one that does.
fn regular(rules: &[Rule<'_>], by_name: &HashMap<&str, usize>) -> Result<Vec<bool>, Error> {
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); rules.len()];
    let mut open = vec![0usize; rules.len()];
    for (at, rule) in rules.iter().enumerate() {
        for used in &rule.uses {
            let Some(&used_at) = by_name.get(used) else {
                return Err(refuse(format!(
                    "rule \"{}\" uses \"{used}\", which is not there",
                    rule.name
                )));
            };
            users[used_at].push(at);
            open[at] += 1;
        }
    }
    let mut todo: Vec<usize> = (0..rules.len()).filter(|at| open[*at] == 0).collect();
    let mut is_regular = vec![false; rules.len()];
    while let Some(at) = todo.pop() {
        is_regular[at] = true;
        for &user in &users[at] {
            open[user] -= 1;
            if open[user] == 0 {
                todo.push(user);
            }
        }
    }
    Ok(is_regular)
}

/// Recursion is bounded by the reader.
fn write_expression(
    out: &mut String,
    expression: &Expression<'_>,
    by_name: &HashMap<&str, usize>,
    is_regular: &[bool],
) {
    match expression {
        Expression::Text(text) => out.push_str(&lark_string(text)),
        Expression::Class(class) => {
            let _ = write!(out, "/{}/", lark_regex(class));
        }
        Expression::Name(used) => name(out, by_name[used], is_regular),
        Expression::Sequence(parts) if parts.is_empty() => out.push_str("\"\""),
        Expression::Sequence(parts) => {
            for (at, part) in parts.iter().enumerate() {
                if at > 0 {
                    out.push(' ');
                }
                write_expression(out, part, by_name, is_regular);
            }
        }
        Expression::Choice(branches) => {
            out.push('(');
            for (at, branch) in branches.iter().enumerate() {
                if at > 0 {
                    out.push_str(" | ");
                }
                write_expression(out, branch, by_name, is_regular);
            }
            out.push(')');
        }
        Expression::Repeat(part, least, most) => {
            out.push('(');
            write_expression(out, part, by_name, is_regular);
            out.push(')');
            let _ = match (least, most) {
                (0, None) => write!(out, "*"),
                (1, None) => write!(out, "+"),
                (0, Some(1)) => write!(out, "?"),
                (least, None) => write!(out, "{{{least},}}"),
                (least, Some(most)) => write!(out, "{{{least},{most}}}"),
            };
        }
    }
}

struct Rule<'a> {
    name: &'a str,
    body: Expression<'a>,
    uses: Vec<&'a str>,
}

enum Expression<'a> {
    Text(String),
    /// As an expression of the `regex` crate.
    Class(String),
    Name(&'a str),
    Sequence(Vec<Expression<'a>>),
    Choice(Vec<Expression<'a>>),
    Repeat(Box<Expression<'a>>, u32, Option<u32>),
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    uses: Vec<&'a str>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            depth: 0,
            uses: Vec::new(),
        }
    }

    fn rules(&mut self) -> Result<Vec<Rule<'a>>, Error> {
        let mut rules = Vec::new();
        loop {
            self.skip();
            if self.at == self.text.len() {
                return Ok(rules);
            }
            let name = self.name().ok_or_else(|| self.wrong("a rule's name"))?;
            self.skip();
            if !self.take("::=") {
                return Err(self.wrong("\"::=\""));
            }
            let body = self.choice()?;
            rules.push(Rule {
                name,
                body,
                uses: std::mem::take(&mut self.uses),
            });
        }
    }

    fn choice(&mut self) -> Result<Expression<'a>, Error> {
        let mut branches = vec![self.sequence()?];
        while self.take("|") {
            branches.push(self.sequence()?);
        }
        Ok(match branches.len() {
            1 => branches.remove(0),
            _ => Expression::Choice(branches),
        })
    }

    fn sequence(&mut self) -> Result<Expression<'a>, Error> {
        let mut parts = Vec::new();
        loop {
            self.skip();
            let Some(next) = self.peek() else { break };
            let part = match next {
                '|' | ')' => break,
                '"' | '\'' => Expression::Text(self.quoted(next)?),
                '[' => Expression::Class(self.class()?),
                '.' => {
                    self.at += 1;
                    Expression::Class("(?s:.)".to_owned())
                }
                '(' => self.group()?,
                _ => {
                    let before = self.at;
                    let name = self.name().ok_or_else(|| self.wrong("an element"))?;
                    self.skip();
                    if self.text[self.at..].starts_with("::=") {
                        // The next rule begins.
                        self.at = before;
                        break;
                    }
                    self.uses.push(name);
                    Expression::Name(name)
                }
            };
            parts.push(self.repeated(part)?);
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => Expression::Sequence(parts),
        })
    }

    fn group(&mut self) -> Result<Expression<'a>, Error> {
        self.at += 1;
        if self.take("=") {
            let at = self.at;
            return Err(refuse(format!(
                "the grammar looks ahead at byte {at}, which cannot be held"
            )));
        }
        self.depth += 1;
        if self.depth > NESTING {
            return Err(refuse(format!(
                "the grammar nests deeper than {NESTING} levels"
            )));
        }
        let inner = self.choice()?;
        self.depth -= 1;
        self.skip();
        if !self.take(")") {
            return Err(self.wrong("\")\""));
        }
        // A branch of a sequence needs its brackets kept.
        Ok(match inner {
            Expression::Choice(_) => inner,
            other => Expression::Choice(vec![other]),
        })
    }

    fn repeated(&mut self, mut part: Expression<'a>) -> Result<Expression<'a>, Error> {
        // One after another; deeper than any sane grammar they would nest without end.
        for _ in 0..=NESTING {
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    let (least, most) = self.bounds()?;
                    part = Expression::Repeat(Box::new(part), least, most);
                    continue;
                }
                _ => return Ok(part),
            };
            self.at += 1;
            part = Expression::Repeat(Box::new(part), least, most);
        }
        Err(self.wrong("an element"))
    }

    fn bounds(&mut self) -> Result<(u32, Option<u32>), Error> {
        self.at += 1;
        let least = self.number()?;
        let most = if self.take(",") {
            self.blanks();
            match self.peek() {
                Some('}') => None,
                _ => Some(self.number()?),
            }
        } else {
            Some(least)
        };
        if !self.take("}") || most.is_some_and(|most| most < least) {
            return Err(self.wrong("bounds of a repetition"));
        }
        Ok((least, most))
    }

    fn number(&mut self) -> Result<u32, Error> {
        self.blanks();
        let rest = &self.text[self.at..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number = rest[..digits].parse().map_err(|_| self.wrong("a number"))?;
        self.at += digits;
        self.blanks();
        Ok(number)
    }

    fn quoted(&mut self, quote: char) -> Result<String, Error> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.next() {
                Some(c) if c == quote => return Ok(text),
                Some('\\') => text.push(self.escape()?),
                Some(c) if c != '\n' => text.push(c),
                _ => return Err(self.wrong("the end of a text")),
            }
        }
    }

    /// Written anew, so that nothing of it means more to the other reader than it does here.
    fn class(&mut self) -> Result<String, Error> {
        self.at += 1;
        let mut out = String::from("[");
        if self.take("^") {
            out.push('^');
        }
        let mut members = 0;
        loop {
            let first = match self.next() {
                Some(']') if members > 0 => break,
                Some(c) => self.member(c)?,
                None => return Err(self.wrong("the end of a character class")),
            };
            members += 1;
            push_member(&mut out, first);
            let rest = &self.text[self.at..];
            if rest.starts_with('-') && !rest.starts_with("-]") {
                self.at += 1;
                let last = self
                    .next()
                    .ok_or_else(|| self.wrong("the end of a range"))?;
                let last = self.member(last)?;
                if last < first {
                    return Err(self.wrong("a range in order"));
                }
                out.push('-');
                push_member(&mut out, last);
            }
        }
        out.push(']');
        Ok(out)
    }

    fn member(&mut self, c: char) -> Result<char, Error> {
        if c == '\\' { self.escape() } else { Ok(c) }
    }

    fn escape(&mut self) -> Result<char, Error> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) if c.is_ascii_punctuation() => return Ok(c),
            _ => return Err(self.wrong("an escape")),
        };
        let code = self.text.get(self.at..self.at + digits);
        let c = code
            .and_then(|code| u32::from_str_radix(code, 16).ok())
            .and_then(char::from_u32)
            .ok_or_else(|| self.wrong("a character's number"))?;
        self.at += digits;
        Ok(c)
    }

    fn name(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
        if !rest.starts_with(is_first) {
            return None;
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += end;
        Some(&rest[..end])
    }

    fn skip(&mut self) {
        loop {
            let rest = &self.text[self.at..];
            let blank = rest.len() - rest.trim_start().len();
            self.at += blank;
            if !self.text[self.at..].starts_with('#') {
                return;
            }
            let rest = &self.text[self.at..];
            self.at += rest.find('\n').unwrap_or(rest.len());
        }
    }

    fn blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches(' ').len();
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.text[self.at..].starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    fn wrong(&self, wanted: &str) -> Error {
        refuse(format!(
            "the grammar cannot be read at byte {}: wanted {wanted}",
            self.at
        ))
    }
}

fn push_member(out: &mut String, c: char) {
    let _ = write!(out, "\\x{{{:x}}}", u32::from(c));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_without_recursion_become_terminals() {
        let lark = to_lark(
            "# a list\nroot ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= [0-9]{1,3} | root\n",
        )
        .unwrap();
        assert_eq!(
            lark,
            "start: r0\n\
             r0: \"[\" ((r1 ((\",\" r1))*))? \"]\"\n\
             r1: ((/[\\x{30}-\\x{39}]/){1,3} | r0)\n"
        );
        let lark = to_lark("root ::= a 'x'\na ::= \"\\u00e9\\x41\" | .+").unwrap();
        assert_eq!(
            lark,
            "start: T0\nT0: T1 \"x\"\nT1: (\"éA\" | (/(?s:.)/)+)\n"
        );
    }

    #[test]
    fn what_cannot_be_translated_is_refused_with_its_place() {
        for (text, reason) in [
            ("", "no rule \"root\""),
            ("root = \"a\"", "byte 5: wanted \"::=\""),
            ("root ::= a", "uses \"a\""),
            ("root ::= \"a\"\nroot ::= \"b\"", "twice"),
            ("root ::= \"a", "end of a text"),
            ("root ::= [z-a]", "a range in order"),
            ("root ::= \"a\" (= \"b\")", "looks ahead"),
            ("root ::= \"a\"{3,2}", "bounds of a repetition"),
            ("root ::= \"\\q\"", "an escape"),
            ("root ::= ((\"a\")", "wanted \")\""),
            ("root ::= )", "wanted a rule's name"),
        ] {
            let error = to_lark(text).unwrap_err();
            assert!(error.message.contains(reason), "{text}: {error}");
        }
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(101), ")".repeat(101));
        assert!(to_lark(&deep).unwrap_err().message.contains("100 levels"));
    }
}
