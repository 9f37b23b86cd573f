//! Calls that wait for their outputs.
//!
//! Clients send calls and outputs in any order that makes sense to them; a conversation has one assistant
//! message with all calls of a turn, and their outputs behind it in the same order. Finding the call of an
//! output is one look-up.

use std::collections::HashMap;

use crate::recipe::conversation::{InputMessage, Prompt, ToolCall, ToolDefinition};
use crate::recipe::error::Error;
use crate::recipe::request::refused;
use crate::recipe::request::tools;

/// The calls of a turn, and every id so far.
#[derive(Default)]
pub(super) struct Calls<'v> {
    group: Vec<Waiting<'v>>,
    unanswered: usize,
    ids: HashMap<&'v str, Id, ahash::RandomState>,
}

/// A call in the group.
struct Waiting<'v> {
    /// Its item.
    at: usize,
    id: &'v str,
    call: ToolCall,
    answer: Option<Answer>,
}

/// What became of an id.
#[derive(Clone, Copy)]
enum Id {
    /// Its call is this one of the group.
    Waits(usize),
    Answered,
}

/// What an output becomes.
pub(super) struct Answer {
    pub(super) message: InputMessage,
    /// What is told about it right after it.
    pub(super) notice: Option<InputMessage>,
    /// The tools that it brought.
    pub(super) found: Vec<ToolDefinition>,
}

impl<'v> Calls<'v> {
    /// Adds the call of the item `at`.
    pub(super) fn add(
        &mut self,
        at: usize,
        id: &'v str,
        name: String,
        arguments: String,
    ) -> Result<(), Error> {
        let param = || format!("input[{at}].call_id");
        if id.is_empty() {
            return Err(tools::empty_string(&param()));
        }
        if self.ids.contains_key(id) {
            return Err(refused(param(), format!("Duplicate 'call_id': {id}.")));
        }
        self.ids.insert(id, Id::Waits(self.group.len()));
        self.unanswered += 1;
        self.group.push(Waiting {
            at,
            id,
            call: ToolCall {
                id: id.to_owned(),
                name,
                arguments,
            },
            answer: None,
        });
        Ok(())
    }

    /// The call in the group that the output `at` answers. It counts as answered from now on.
    pub(super) fn take(&mut self, at: usize, id: &str) -> Result<usize, Error> {
        let param = || format!("input[{at}].call_id");
        if id.is_empty() {
            return Err(tools::empty_string(&param()));
        }
        let Some(state) = self.ids.get_mut(id) else {
            let message = format!("No tool call found for tool output with call_id {id}.");
            return Err(refused(param(), message));
        };
        let Id::Waits(place) = *state else {
            let message = format!("Duplicate tool output for call_id: {id}.");
            return Err(refused(param(), message));
        };
        *state = Id::Answered;
        self.unanswered -= 1;
        Ok(place)
    }

    /// Gives a call of the group its answer. The last one moves the group to `messages`.
    pub(super) fn answer(
        &mut self,
        place: usize,
        answer: Answer,
        keep_order: bool,
        messages: &mut Vec<InputMessage>,
    ) {
        self.group[place].answer = Some(answer);
        if self.unanswered > 0 {
            return;
        }
        if !keep_order {
            self.group.sort_by_key(|waiting| waiting.id);
        }
        let mut calls = Vec::with_capacity(self.group.len());
        let mut answers = Vec::with_capacity(self.group.len());
        for waiting in self.group.drain(..) {
            calls.push(waiting.call);
            answers.extend(waiting.answer);
        }
        match messages.last_mut() {
            Some(InputMessage::Assistant { tool_calls, .. }) => {
                tool_calls.get_or_insert_default().append(&mut calls);
            }
            _ => messages.push(InputMessage::Assistant {
                content: String::new(),
                reasoning_content: None,
                tool_calls: Some(calls),
                prefix: false,
            }),
        }
        let mut found = Vec::new();
        for answer in answers {
            messages.push(answer.message);
            messages.extend(answer.notice);
            if !answer.found.is_empty() {
                found.push(InputMessage::System {
                    content: Prompt::default(),
                    image_sources: Vec::new(),
                    tools: Some(answer.found),
                });
            }
        }
        messages.append(&mut found);
    }

    /// Nothing that the model reads may come before the outputs of all calls.
    pub(super) fn check_answered(&self) -> Result<(), Error> {
        let open = self.group.iter().find(|waiting| waiting.answer.is_none());
        match open {
            None => Ok(()),
            Some(Waiting { at, id, .. }) => Err(refused(
                format!("input[{at}].call_id"),
                format!("No tool output found for tool call {id}."),
            )),
        }
    }
}
