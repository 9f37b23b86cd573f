//! What a client asks for in each protocol is what it gets: the demo model answers through `fathom_call`, streamed
//! and whole, and clients that believe nothing read it. The same requests by hand give the same bytes.

mod by_hand;
mod called;
mod cuts;
mod failures;
mod host;
mod json;
mod protocols;
#[path = "../recipe_support/mod.rs"]
mod recipe_support;
#[allow(dead_code, reason = "it reads what a parser made, too")]
#[path = "../recipe_stream/responses/client.rs"]
mod responses_client;
mod scenarios;
mod streams;

/// Where the client of Responses expects its friends.
mod support {
    pub(crate) use crate::recipe_support::client::Seen;
}
