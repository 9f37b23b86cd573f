//! What a prepared request wants of its output becomes the engine's constraint.
//!
//! In: the request's constraint, its tools, how its output begins. Out: a grammar to compile, where it starts,
//! and where the request asks for it. Copies schemas; compiling is the engine's.

use std::sync::Arc;

use super::error::Error;
use super::request::ConstraintStart;
use crate::engine::constraint::{
    Constraint, Markup, Opening, Rules, Spec, Start, Tokens, Tool, ToolCalls,
};
use crate::engine::{self, Code};
use crate::recipe::conversation::{InputMessage, ToolDefinition};
use crate::recipe::encoding::{Encoding, SpecialToken};
use crate::recipe::options::ThinkingStage;
use crate::recipe::tokenizer::Tokenizer;
use crate::recipe::{self, OutputConstraint, Prepared, Protocol, Stage};

/// The constraint of bare token ids.
pub(super) fn of_tokens(
    rules: Option<Rules>,
    start: Option<&ConstraintStart>,
) -> Result<Option<Constraint>, Error> {
    let Some(rules) = rules else {
        return unused(start);
    };
    let start = match start {
        None | Some(ConstraintStart::AtOnce) => Start::AtOnce,
        Some(ConstraintStart::After { trigger, bound }) => after(trigger, *bound),
        Some(ConstraintStart::AfterThinking) => {
            return Err(invalid(
                "what ends the reasoning is not known of bare token ids: use \"trigger\"",
            ));
        }
    };
    Ok(Some(Constraint {
        start,
        ..Constraint::new(rules)
    }))
}

/// The constraint of a prepared request, `rules` in place of its own, if it has one that the engine must keep.
/// Tools that the model may call, and that are not strict, need none: the model was trained to call them, and the
/// parser mends its mistakes.
pub(super) fn of_prepared(
    prepared: &Prepared,
    rules: Option<Rules>,
    start: Option<&ConstraintStart>,
) -> Result<Option<Constraint>, Error> {
    let Some(tokenizer) = &prepared.tokenizer else {
        return of_tokens(rules, start);
    };
    let constraint = match (rules, &prepared.inference.output_constraint) {
        (Some(rules), _) => Some(Constraint::new(rules)),
        (None, Some(wanted)) => of_wish(prepared, wanted, tokenizer)?,
        (None, None) => None,
    };
    let Some(constraint) = constraint else {
        return unused(start);
    };
    let thinks = thinks(prepared);
    let start = match start {
        Some(ConstraintStart::AtOnce) => Start::AtOnce,
        Some(ConstraintStart::After { trigger, bound }) => after(trigger, *bound),
        None | Some(ConstraintStart::AfterThinking) if thinks => after(
            &[token(prepared, tokenizer, SpecialToken::ThinkingEnd)?],
            None,
        ),
        None | Some(ConstraintStart::AfterThinking) => Start::AtOnce,
    };
    Ok(Some(Constraint {
        start,
        ..constraint
    }))
}

/// Whether the output of a request begins with a reasoning.
fn thinks(prepared: &Prepared) -> bool {
    match prepared.parsing.thinking_initial_stage {
        // The prompt has opened the block, whatever comes after it.
        _ if prepared.parsing.starts_in_tool_calls => false,
        Some(ThinkingStage::ReasoningStart | ThinkingStage::ReasoningContinuation) => true,
        Some(ThinkingStage::ContentContinuation) | None => false,
    }
}

/// The id that ends the reasoning a request's output begins with.
pub(super) fn reasoning_end(prepared: &Prepared) -> Result<Option<u32>, Error> {
    match prepared.tokenizer.as_deref() {
        Some(tokenizer) if thinks(prepared) => {
            token(prepared, tokenizer, SpecialToken::ThinkingEnd).map(Some)
        }
        _ => Ok(None),
    }
}

/// What the request itself asks for, from the first token on.
fn of_wish(
    prepared: &Prepared,
    wanted: &OutputConstraint,
    tokenizer: &Arc<Tokenizer>,
) -> Result<Option<Constraint>, Error> {
    let mut reserved = Vec::new();
    let spec = match wanted {
        OutputConstraint::Json(None) => Spec::JsonObject,
        OutputConstraint::Json(Some(schema)) => Spec::JsonSchema(schema.as_str().to_owned()),
        OutputConstraint::Regex(pattern) => Spec::Regex(pattern.clone()),
        OutputConstraint::ToolCalls { required } => {
            let tools: Vec<&ToolDefinition> = tools(prepared).collect();
            if !required && !tools.iter().any(|tool| tool.strict == Some(true)) {
                return Ok(None);
            }
            let marker = token(prepared, tokenizer, SpecialToken::Dsml)?;
            // A call inside the reasoning would be none of the grammar's.
            reserved.push(marker);
            Spec::ToolCalls(ToolCalls {
                tools: tools.into_iter().map(tool).collect(),
                marker,
                markup: markup(prepared.encoding),
                opening: match required {
                    false => Opening::Optional,
                    true if prepared.parsing.starts_in_tool_calls => Opening::Done,
                    true => Opening::Required,
                },
                single: false,
            })
        }
    };
    let rules = Rules::Source {
        spec: Arc::new(spec),
        tokens: Tokens::Vocabulary(tokenizer.clone()),
    };
    Ok(Some(Constraint {
        reserved,
        param: param(prepared, wanted),
        ..Constraint::new(rules)
    }))
}

/// A start without a constraint is a mistake, for it would do nothing.
fn unused(start: Option<&ConstraintStart>) -> Result<Option<Constraint>, Error> {
    match start {
        None => Ok(None),
        Some(_) => Err(invalid("there is no constraint that could start")),
    }
}

fn invalid(message: &str) -> Error {
    Error::engine(engine::Error::new(
        Code::InvalidParam,
        "constraint_start",
        message,
    ))
}

fn after(trigger: &[u32], bound: Option<u32>) -> Start {
    Start::After {
        trigger: trigger.to_vec(),
        bound,
    }
}

/// All tools of a conversation: those it begins with and those that its system messages bring.
fn tools(prepared: &Prepared) -> impl Iterator<Item = &ToolDefinition> {
    let conversation = &prepared.conversation;
    let introduced = conversation
        .messages
        .iter()
        .filter_map(|message| match message {
            InputMessage::System { tools, .. } => tools.as_ref(),
            _ => None,
        })
        .flatten();
    conversation.tools.iter().chain(introduced)
}

fn tool(tool: &ToolDefinition) -> Tool {
    Tool {
        name: tool.name.clone(),
        parameters: tool.parameters.as_str().to_owned(),
        strict: tool.strict == Some(true),
    }
}

/// The words of each model's tags (`recipe-stream.md` 4.3).
fn markup(encoding: Encoding) -> Markup {
    match encoding {
        Encoding::V4 => Markup {
            block: "tool_calls",
            call: "invoke",
            parameter: "parameter",
            empty_line: false,
        },
        Encoding::V41 => Markup {
            block: " calls",
            call: " invoke",
            parameter: " parameter",
            empty_line: true,
        },
    }
}

fn token(prepared: &Prepared, tokenizer: &Tokenizer, token: SpecialToken) -> Result<u32, Error> {
    let spelling = prepared.settings.special_tokens.spelling(token);
    tokenizer.token_id(spelling).ok_or_else(|| {
        let message = format!("the tokenizer has no token \"{spelling}\"");
        Error::recipe(recipe::Error::new(Stage::Tokenizer, "", message))
    })
}

/// Where the request says it.
fn param(prepared: &Prepared, wanted: &OutputConstraint) -> &'static str {
    match (wanted, prepared.protocol) {
        (OutputConstraint::ToolCalls { required: true }, _) => "tool_choice",
        (OutputConstraint::ToolCalls { required: false }, _) => "tools",
        (_, Protocol::Responses) => "text.format",
        (_, Protocol::Messages) => "output_config.format",
        (_, Protocol::ChatCompletions | Protocol::Conversation) => "response_format",
    }
}
