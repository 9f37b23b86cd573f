//! Request in, protocol events out: joins recipe and engine.
//!
//! [`call`] gives out an id at once. A preparation thread of the engine parses, renders and tokenises the
//! request and makes it the engine's ([`request`]); whoever polls the queue turns its tokens into protocol
//! events ([`adapter`]). Everything that goes wrong after the id was given out arrives as the request's
//! `Done`. Cost: the request's JSON is copied once; parsing costs what [`crate::recipe::stream`] says, on
//! the poller's thread.

#![forbid(unsafe_code)]

mod adapter;
mod constraint;
mod contain;
mod error;
#[cfg(feature = "fault-injection")]
pub mod fault;
pub mod request;

use std::sync::Arc;

pub use adapter::{Answer, Reader};
pub use contain::{Panicked, contain, is_contained, note_panic};
pub use error::{Cause, Error, ErrorStyle, http_of_cause, http_of_code, http_of_stage};
pub use request::{ConstraintStart, Submit};

use crate::engine::request::{Adapter, Failure};
use crate::engine::{Engine, Prepared, Queue, RequestId};
use crate::recipe::{Protocol, Recipe};

/// How one request is called.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What the host wants of the engine; replaces what the request says.
    pub submit: Submit,
    /// Empty = generated.
    pub response_id: String,
    /// 0 = now.
    pub created_unix_s: i64,
    /// Options of this request only (`c-api.md` section 10); empty for none.
    pub options_json: String,
    /// How errors of this request are written, unless `options_json` says otherwise.
    pub style: ErrorStyle,
    /// One document at the end, also if the request asks for a stream.
    pub whole: bool,
}

/// Accepts a request and returns its id; never waits. Only a refusal by the engine fails directly.
pub fn call(
    engine: &Engine,
    recipe: &Arc<Recipe>,
    queue: &Queue,
    protocol: Protocol,
    json: Vec<u8>,
    options: Options,
) -> Result<RequestId, crate::engine::Error> {
    let recipe = Arc::clone(recipe);
    let (tag, deadline) = (options.submit.tag, options.submit.deadline);
    let style = options.style;
    let context = engine.max_context();
    let job = move || {
        contain(|| prepare(&recipe, protocol, &json, options, context))
            .unwrap_or_else(|panicked| Err(failure(Error::panicked(panicked).styled(style))))
    };
    engine.submit_deferred(queue, tag, deadline, Box::new(job))
}

/// What runs on a preparation thread.
fn prepare(
    recipe: &Recipe,
    protocol: Protocol,
    json: &[u8],
    options: Options,
    context: u32,
) -> Prepared {
    #[cfg(feature = "fault-injection")]
    let (options, fault) = fault::of_call(options);
    #[cfg(feature = "fault-injection")]
    fault::panic_in("call", fault);
    let style = options.style.with_options(&options.options_json);
    let refuse = |error: Error| failure(error.styled(style));

    let options_json = (!options.options_json.is_empty()).then_some(options.options_json.as_str());
    #[cfg(feature = "fault-injection")]
    fault::panic_in("recipe", fault);
    let prepared = recipe
        .prepare(protocol, json, options_json)
        .map_err(|error| refuse(Error::recipe(error)))?;
    // The total deadline already runs, from the call on.
    let submit = Submit {
        deadline: None,
        ..options.submit
    };
    let request = request::of_prepared(&prepared, submit, context).map_err(refuse)?;
    let answer = Answer {
        response_id: options.response_id,
        created_unix_s: options.created_unix_s,
        whole: options.whole || !prepared.response.stream,
        style,
    };
    let reader = Reader::new(Arc::new(prepared), answer).map_err(refuse)?;
    #[cfg(feature = "fault-injection")]
    let reader = reader.with_fault(fault);
    Ok((request, Some(Box::new(reader) as Box<dyn Adapter>)))
}

fn failure(error: Error) -> Failure {
    Failure::Prepare(Arc::new(error))
}
