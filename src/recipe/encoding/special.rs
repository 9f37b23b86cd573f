//! The control tokens that templates insert, and how they are spelled.
//!
//! Ids never appear here: they come from the tokenizer file, by spelling.

use std::borrow::Cow;

/// A control token, by what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the table below")]
pub enum SpecialToken {
    Bos,
    Eos,
    System,
    User,
    Assistant,
    ThinkingStart,
    ThinkingEnd,
    Dsml,
    LatestReminder,
    Image,
    Ref,
    RefEnd,
    Box,
    BoxEnd,
    Point,
    PointEnd,
    Polygon,
    PolygonEnd,
    Action,
    Query,
    Authority,
    Domain,
    Title,
    ReadUrl,
    FimHole,
    FimBegin,
    FimEnd,
}

/// Name in `special_tokens` and default spelling, in the order of the variants.
const TABLE: [(SpecialToken, &str, &str); 27] = [
    (SpecialToken::Bos, "bos", "<｜begin▁of▁sentence｜>"),
    (SpecialToken::Eos, "eos", "<｜end▁of▁sentence｜>"),
    (SpecialToken::System, "system", "<｜System｜>"),
    (SpecialToken::User, "user", "<｜User｜>"),
    (SpecialToken::Assistant, "assistant", "<｜Assistant｜>"),
    (SpecialToken::ThinkingStart, "thinking_start", "<think>"),
    (SpecialToken::ThinkingEnd, "thinking_end", "</think>"),
    (SpecialToken::Dsml, "dsml", "｜DSML｜"),
    (
        SpecialToken::LatestReminder,
        "latest_reminder",
        "<｜latest_reminder｜>",
    ),
    (SpecialToken::Image, "image", "<｜image｜>"),
    (SpecialToken::Ref, "ref", "<｜ref｜>"),
    (SpecialToken::RefEnd, "/ref", "<｜/ref｜>"),
    (SpecialToken::Box, "box", "<｜box｜>"),
    (SpecialToken::BoxEnd, "/box", "<｜/box｜>"),
    (SpecialToken::Point, "point", "<｜point｜>"),
    (SpecialToken::PointEnd, "/point", "<｜/point｜>"),
    (SpecialToken::Polygon, "polygon", "<｜polygon｜>"),
    (SpecialToken::PolygonEnd, "/polygon", "<｜/polygon｜>"),
    (SpecialToken::Action, "action", "<｜action｜>"),
    (SpecialToken::Query, "query", "<｜query｜>"),
    (SpecialToken::Authority, "authority", "<｜authority｜>"),
    (SpecialToken::Domain, "domain", "<｜domain｜>"),
    (SpecialToken::Title, "title", "<｜title｜>"),
    (SpecialToken::ReadUrl, "read_url", "<｜read_url｜>"),
    (SpecialToken::FimHole, "fim_hole", "<｜fim▁hole｜>"),
    (SpecialToken::FimBegin, "fim_begin", "<｜fim▁begin｜>"),
    (SpecialToken::FimEnd, "fim_end", "<｜fim▁end｜>"),
];

/// Tokens a model writes inside its text to point at parts of an image.
pub const GROUNDING: [SpecialToken; 8] = [
    SpecialToken::Ref,
    SpecialToken::RefEnd,
    SpecialToken::Box,
    SpecialToken::BoxEnd,
    SpecialToken::Point,
    SpecialToken::PointEnd,
    SpecialToken::Polygon,
    SpecialToken::PolygonEnd,
];

impl SpecialToken {
    /// Every control token.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|(token, _, _)| *token)
    }

    /// The name that `special_tokens` of `options_json` uses.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// The token of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|token| token.name() == name)
    }
}

/// The spelling of each control token. An empty spelling is never written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialTokens([Cow<'static, str>; TABLE.len()]);

impl Default for SpecialTokens {
    fn default() -> Self {
        Self(TABLE.map(|(_, _, spelling)| Cow::Borrowed(spelling)))
    }
}

impl SpecialTokens {
    /// How `token` is spelled.
    pub fn spelling(&self, token: SpecialToken) -> &str {
        &self.0[token as usize]
    }

    /// Spells `token` another way.
    pub fn set(&mut self, token: SpecialToken, spelling: impl Into<String>) {
        self.0[token as usize] = Cow::Owned(spelling.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_variants() {
        for (at, (token, name, _)) in TABLE.iter().enumerate() {
            assert_eq!(*token as usize, at, "{name}");
            assert_eq!(SpecialToken::from_name(name), Some(*token));
        }
    }
}
