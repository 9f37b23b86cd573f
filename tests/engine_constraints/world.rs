//! The demo model with a recipe: requests in the protocols' JSON, whole answers out.

use std::sync::Arc;
use std::time::Duration;

use fathom::call::{self, Error};
use fathom::engine::queue::QueueOptions;
use fathom::engine::request::{Done, EventKind, Failure, FinishReason};
use fathom::engine::{Engine, EngineOptions, Queue};
use fathom::recipe::{Protocol, Recipe, RecipeOptions};
use serde_json::Value;

use crate::recipe_support::demo_model;

/// Long enough for any step on a busy machine; reached only when something hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) recipe: Arc<Recipe>,
    pub(crate) queue: Queue,
}

/// What became of a call.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) response: Option<Value>,
    pub(crate) done: Done,
}

impl World {
    pub(crate) fn new(tuning: &str) -> Self {
        let options = EngineOptions {
            model_path: demo_model(),
            tuning_json: tuning.to_owned(),
            ..EngineOptions::default()
        };
        let recipe = RecipeOptions {
            tokenizer_path: Some(demo_model()),
            aliases_json: r#"{"demo": "v4.1", "demo-v4": "v4"}"#.to_owned(),
            ..RecipeOptions::default()
        };
        Self {
            engine: Engine::open(&options, &mut |_, _| true).unwrap(),
            recipe: Arc::new(Recipe::open(&recipe).unwrap()),
            queue: Queue::new(QueueOptions::default()).unwrap(),
        }
    }

    /// Calls and waits.
    pub(crate) fn call(
        &self,
        protocol: Protocol,
        request: &Value,
        options: call::Options,
    ) -> Called {
        let json = request.to_string().into_bytes();
        let options = call::Options {
            whole: true,
            ..options
        };
        let id = call::call(
            &self.engine,
            &self.recipe,
            &self.queue,
            protocol,
            json,
            options,
        )
        .unwrap();
        let (mut response, mut events) = (None, Vec::new());
        loop {
            self.queue.poll(&mut events, Some(PATIENCE)).unwrap();
            assert!(!events.is_empty(), "nothing for {PATIENCE:?}");
            for event in events.drain(..) {
                assert_eq!(event.request, id);
                match event.kind {
                    EventKind::Data { data, .. } => {
                        response = Some(serde_json::from_str(&data).unwrap());
                    }
                    EventKind::Done(done) => return Called { response, done },
                    EventKind::Tokens(_) => panic!("the adapter took them"),
                }
            }
        }
    }
}

impl Called {
    /// The answer; fails the test if there is none.
    pub(crate) fn response(&self) -> &Value {
        assert!(self.done.failure.is_none(), "{:?}", self.done);
        self.response
            .as_ref()
            .expect("whole answers were asked for")
    }

    /// The text of a chat completion's message.
    pub(crate) fn content(&self) -> &str {
        let message = &self.response()["choices"][0]["message"];
        message["content"]
            .as_str()
            .unwrap_or_else(|| panic!("{message}"))
    }

    pub(crate) fn finish(&self) -> FinishReason {
        self.done.finish
    }

    pub(crate) fn reason(&self) -> String {
        let detail: Value = serde_json::from_str(&self.done.detail).unwrap();
        detail["reason"].as_str().unwrap_or_default().to_owned()
    }

    /// Why it failed.
    pub(crate) fn error(&self) -> Error {
        match self.done.failure.as_ref().expect("it failed") {
            Failure::Engine(error) => Error::engine(error.clone()),
            Failure::Prepare(error) => error.downcast_ref::<Error>().expect("ours").clone(),
        }
    }
}
