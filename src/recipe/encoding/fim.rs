//! Fill in the middle: the prompt that is no conversation. The same in both versions.

use super::Rendered;
use super::special::SpecialToken::{Bos, FimBegin, FimEnd, FimHole};
use super::special::SpecialTokens;
use super::writer::Writer;
use crate::recipe::conversation::Fim;

/// Renders what stands before and behind a gap; the model answers with what belongs into it.
pub fn render_fim<'a>(fim: &Fim, tokens: &'a SpecialTokens) -> Rendered<'a> {
    let mut out = Writer::new(tokens, fim.prefix.len() + fim.suffix.len() + 128);
    out.special(Bos);
    out.special(FimBegin);
    out.text(&fim.prefix);
    out.special(FimHole);
    out.text(&fim.suffix);
    out.special(FimEnd);
    let (prompt, images) = out.finish();
    Rendered {
        prompt,
        images,
        task: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::encoding::SpecialToken;

    #[test]
    fn what_surrounds_the_gap_is_text_whatever_it_spells() {
        let fim = Fim {
            prefix: "<｜fim▁hole｜>a".to_owned(),
            suffix: "</think>".to_owned(),
        };
        let prompt = render_fim(&fim, &SpecialTokens::default()).prompt;
        let special: Vec<&str> = prompt
            .special_ranges
            .iter()
            .map(|range| &prompt.text[range.clone()])
            .collect();
        assert_eq!(
            prompt.text,
            "<｜begin▁of▁sentence｜><｜fim▁begin｜><｜fim▁hole｜>a<｜fim▁hole｜></think><｜fim▁end｜>"
        );
        assert_eq!(
            special,
            [
                "<｜begin▁of▁sentence｜>",
                "<｜fim▁begin｜>",
                "<｜fim▁hole｜>",
                "<｜fim▁end｜>"
            ]
        );
        let hole = prompt.special_ranges[2].start;
        assert!(prompt.text[..hole].ends_with("<｜fim▁hole｜>a"));
    }

    #[test]
    fn an_empty_spelling_is_never_written() {
        let mut tokens = SpecialTokens::default();
        tokens.set(SpecialToken::Bos, "");
        let prompt = render_fim(&Fim::default(), &tokens).prompt;
        assert_eq!(prompt.text, "<｜fim▁begin｜><｜fim▁hole｜><｜fim▁end｜>");
        assert_eq!(prompt.special_ranges.len(), 3);
    }
}
