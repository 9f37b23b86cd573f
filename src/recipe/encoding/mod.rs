//! A conversation becomes text with special ranges: one file a model version.
//!
//! Input: a [`Conversation`]; output: a [`Prompt`] and the images in the order of their placeholders. The
//! conversation is not copied: a version arranges references to its parts, then writes once. Cost is linear
//! in the length of the prompt.

mod fim;
mod special;
mod tools;
mod v4;
mod v41;
mod writer;

use std::collections::HashMap;
use std::sync::LazyLock;

pub use self::fim::render_fim;
pub use self::special::{GROUNDING, SpecialToken, SpecialTokens};
pub use self::writer::PlacedImage;

use self::tools::Markup;
use self::writer::{Content, Writer};
use super::conversation::{
    Conversation, InputMessage, Prompt, ToolCall, ToolChoice, ToolDefinition,
};
use super::error::Error;

/// Which template a model was trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// DeepSeek V4.
    V4,
    /// DeepSeek V4.1.
    V41,
}

impl Encoding {
    /// The name in `encoding` and in alias tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V41 => "v4.1",
        }
    }

    /// The encoding of a name; `v41` is accepted for `v4.1`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "v4" => Some(Self::V4),
            "v4.1" | "v41" => Some(Self::V41),
            _ => None,
        }
    }
}

/// Quick instructions: what the model is asked for instead of an ordinary answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "named as their tokens")]
pub enum Task {
    Action,
    Query,
    Authority,
    Domain,
    Title,
    ReadUrl,
}

impl Task {
    /// The task of a name in `options_json`.
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::Action,
            Self::Query,
            Self::Authority,
            Self::Domain,
            Self::Title,
            Self::ReadUrl,
        ]
        .into_iter()
        .find(|task| task.token().name() == name)
    }

    fn token(self) -> SpecialToken {
        match self {
            Self::Action => SpecialToken::Action,
            Self::Query => SpecialToken::Query,
            Self::Authority => SpecialToken::Authority,
            Self::Domain => SpecialToken::Domain,
            Self::Title => SpecialToken::Title,
            Self::ReadUrl => SpecialToken::ReadUrl,
        }
    }
}

/// Departures from the default templates, each asked for by the host.
#[derive(Clone, Copy, Debug)]
pub struct RenderOptions<'a> {
    /// Spellings of control tokens.
    pub special_tokens: &'a SpecialTokens,
    /// Quick instruction on the last turn.
    pub task: Option<Task>,
    /// V4 as its published encoder: an empty line for calls without arguments, calls in their order,
    /// Python's floats.
    pub v4_reference_exact: bool,
    /// V4: a tool result after a user message continues that turn.
    pub v4_join_tool_after_user: bool,
    /// V4.1: of two adjacent reminders the newer one stays.
    pub keep_last_reminder: bool,
    /// V4.1: a prefix message that is the whole conversation keeps its reasoning.
    pub prefix_reasoning_first: bool,
    /// A required call does not open the block in thinking mode: reasoning comes first.
    pub thinking_tool_choice: bool,
}

impl Default for RenderOptions<'static> {
    fn default() -> Self {
        static SPELLINGS: LazyLock<SpecialTokens> = LazyLock::new(SpecialTokens::default);
        Self::new(&SPELLINGS)
    }
}

impl<'a> RenderOptions<'a> {
    /// The default templates with these spellings.
    pub fn new(special_tokens: &'a SpecialTokens) -> Self {
        Self {
            special_tokens,
            task: None,
            v4_reference_exact: false,
            v4_join_tool_after_user: false,
            keep_last_reminder: false,
            prefix_reasoning_first: false,
            thinking_tool_choice: false,
        }
    }
}

/// A prompt and the images in it.
#[derive(Clone, Debug)]
pub struct Rendered<'a> {
    /// Text and special ranges.
    pub prompt: Prompt,
    /// Images of the conversation, in the order of the prompt.
    pub images: Vec<PlacedImage<'a>>,
    /// The quick instruction that the answer to come follows, if any.
    pub task: Option<Task>,
}

/// Renders `conversation` for a model of `encoding`, with the default options.
pub fn render(encoding: Encoding, conversation: &Conversation) -> Result<Prompt, Error> {
    render_with(encoding, conversation, &RenderOptions::default()).map(|rendered| rendered.prompt)
}

/// Renders `conversation` for a model of `encoding`.
pub fn render_with<'a>(
    encoding: Encoding,
    conversation: &'a Conversation,
    options: &RenderOptions<'a>,
) -> Result<Rendered<'a>, Error> {
    match encoding {
        Encoding::V4 => v4::render(conversation, options),
        Encoding::V41 => Ok(v41::render(conversation, options)),
    }
}

/// A message in the place a version gave it.
enum Turn<'a> {
    System(Content<'a>, &'a [ToolDefinition]),
    /// A user message and those that follow it, joined by blank lines.
    User(Content<'a>, Vec<Content<'a>>),
    Assistant(Assistant<'a>),
    Tool(Content<'a>, Option<&'a str>),
    Reminder(&'a str),
}

impl<'a> Turn<'a> {
    /// The turn of a message that stands alone.
    fn of(message: &'a InputMessage) -> Self {
        match message {
            InputMessage::System {
                content,
                image_sources,
                tools,
            } => {
                let content = Content::new(content, image_sources);
                Self::System(content, tools.as_deref().unwrap_or(&[]))
            }
            InputMessage::User {
                content,
                image_sources,
            } => Self::User(Content::new(content, image_sources), Vec::new()),
            InputMessage::Assistant {
                content,
                reasoning_content,
                tool_calls,
                prefix,
            } => Self::Assistant(Assistant {
                content,
                reasoning: reasoning_content.as_deref(),
                calls: tool_calls.as_ref().map(|calls| calls.iter().collect()),
                prefix: *prefix,
            }),
            InputMessage::Tool {
                content,
                image_sources,
                tool_call_id,
            } => Self::Tool(
                Content::new(content, image_sources),
                tool_call_id.as_deref(),
            ),
            InputMessage::LatestReminder { content } => Self::Reminder(content),
        }
    }
}

/// Adds a turn; a user message joins the one before it.
fn append<'a>(turns: &mut Vec<Turn<'a>>, turn: Turn<'a>) {
    match (turns.last_mut(), turn) {
        (Some(Turn::User(_, more)), Turn::User(next, _)) => more.push(next),
        (_, turn) => turns.push(turn),
    }
}

/// What an assistant message holds, with its calls in the order of the version.
struct Assistant<'a> {
    content: &'a str,
    reasoning: Option<&'a str>,
    calls: Option<Vec<&'a ToolCall>>,
    prefix: bool,
}

/// A prompt of about this length is expected: contents, calls, and some markup for each message.
fn expected_length(conversation: &Conversation) -> usize {
    use super::conversation::InputMessage::{Assistant, LatestReminder, System, Tool, User};
    let messages = conversation.messages.iter().map(|message| {
        64 + match message {
            System { content, .. } | User { content, .. } | Tool { content, .. } => {
                content.text.len()
            }
            LatestReminder { content } => content.len(),
            Assistant {
                content,
                reasoning_content,
                tool_calls,
                ..
            } => {
                let calls = tool_calls.iter().flatten();
                content.len()
                    + reasoning_content.as_ref().map_or(0, String::len)
                    + calls.map(|call| call.arguments.len() + 128).sum::<usize>()
            }
        }
    });
    messages.sum::<usize>() + 1024 + 512 * conversation.tools.len()
}

/// Whether the tool prompt is part of this conversation. Deferred tools count, though they are not shown.
fn shows_tools(conversation: &Conversation) -> bool {
    conversation.tool_choice != ToolChoice::None && !conversation.tools.is_empty()
}

/// The turn that a quick instruction asks for: the first answer to the last user turn. It may be still to come,
/// and is then the end of `turns`.
fn task_answer(turns: &[Turn<'_>]) -> usize {
    let is_user = |turn: &Turn<'_>| matches!(turn, Turn::User(..) | Turn::Tool(..));
    let is_answer = |turn: &Turn<'_>| matches!(turn, Turn::Assistant(_));
    turns
        .iter()
        .rposition(is_user)
        .and_then(|user| Some(user + turns[user..].iter().position(is_answer)?))
        .unwrap_or(turns.len())
}

/// Writes what follows the last message: the header of the answer, unless the last message is to be continued,
/// and the opening of the calls that are required. Returns the quick instruction that the answer follows.
fn write_end(
    out: &mut Writer<'_>,
    conversation: &Conversation,
    options: &RenderOptions<'_>,
    markup: &Markup,
    turns: &[Turn<'_>],
) -> Option<Task> {
    let continues_prefix = matches!(turns.last(), Some(Turn::Assistant(message)) if message.prefix);
    let begins = turns.len() - usize::from(continues_prefix);
    let task = options.task.filter(|_| task_answer(turns) == begins);
    if !continues_prefix {
        write_header(out, conversation, task);
    }
    let opens_calls = conversation.tool_choice == ToolChoice::Required
        && shows_tools(conversation)
        && !(options.thinking_tool_choice && conversation.thinking_mode);
    if opens_calls && task.is_none() {
        markup.open_block(out);
    }
    task
}

/// The header of an answer that is still to be written.
fn write_header(out: &mut Writer<'_>, conversation: &Conversation, task: Option<Task>) {
    match task {
        Some(task) if task != Task::Action => out.special(task.token()),
        _ => {
            out.special(SpecialToken::Assistant);
            out.special(if conversation.thinking_mode {
                SpecialToken::ThinkingStart
            } else {
                SpecialToken::ThinkingEnd
            });
            if let Some(task) = task {
                out.special(task.token());
            }
        }
    }
}

/// Sorts the tool results in each run of user and tool turns by the order of the calls they answer.
/// Results without an id and user turns keep their places.
fn sort_results_by_call(turns: &mut [Turn<'_>]) {
    let mut calls: HashMap<&str, usize> = HashMap::new();
    let mut at = 0;
    while at < turns.len() {
        if let Turn::Assistant(assistant) = &turns[at]
            && let Some(made) = assistant.calls.as_ref().filter(|made| !made.is_empty())
        {
            calls.clear();
            for (place, call) in made.iter().enumerate() {
                calls.entry(call.id.as_str()).or_insert(place);
            }
        }
        let run = turns[at..]
            .iter()
            .take_while(|turn| matches!(turn, Turn::User(..) | Turn::Tool(..)))
            .count();
        if run == 0 {
            at += 1;
            continue;
        }
        sort_run(&mut turns[at..at + run], &calls);
        at += run;
    }
}

fn sort_run(run: &mut [Turn<'_>], calls: &HashMap<&str, usize>) {
    let mut results: Vec<(usize, Content<'_>, &str)> = Vec::new();
    for turn in run.iter() {
        if let Turn::Tool(content, Some(id)) = turn {
            let place = calls.get(id).copied().unwrap_or(0);
            results.push((place, *content, id));
        }
    }
    if results.len() < 2 || calls.is_empty() {
        return;
    }
    results.sort_by_key(|(place, _, _)| *place);
    let mut sorted = results.into_iter();
    for turn in run {
        if let Turn::Tool(content, Some(id)) = turn
            && let Some((_, next, next_id)) = sorted.next()
        {
            *content = next;
            *id = next_id;
        }
    }
}
