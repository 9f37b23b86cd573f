//! Request in, token ids and options out.
//!
//! Reads as the pipeline it is: parse, read the shape, find the model, convert, render, tokenise, resolve the
//! budget. Everything but the tokenizer file is decided when the recipe is opened or comes with the request.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::budget::{self, resolve_max_tokens};
use super::conversation::{Conversation, Fim, ImageSource, Prompt};
use super::encoding::{Encoding, PlacedImage, SpecialToken, Task, render_fim, render_with};
use super::error::{Error, Stage};
use super::image::{Plan, Refusal};
use super::models::Models;
use super::options::{InferenceOptions, ParsingOptions, Protocol, ResponseOptions, Warning};
use super::request::{self, Body, Context, Converted};
use super::settings::{self, ImageOptions, Scope, Settings};
use super::tokenizer::{Reuse, Tokenizer};

/// How a recipe is opened.
#[derive(Clone, Debug, Default)]
pub struct RecipeOptions {
    /// `tokenizer.json` or a directory with one; `None`: prompts and text only.
    pub tokenizer_path: Option<PathBuf>,
    /// `{"my-model": "v4.1", "other-*": "v4"}`; empty for none.
    pub aliases_json: String,
    /// Positions; 0 takes the model's 1048576.
    pub max_context: u32,
    /// The options of `c-api.md` section 10; empty for the defaults.
    pub options_json: String,
}

/// Model names, templates, limits and a tokenizer. Immutable; any number of threads.
#[derive(Debug)]
pub struct Recipe {
    models: Models,
    settings: Arc<Settings>,
    tokenizer: Option<Arc<Tokenizer>>,
    /// What earlier requests had in common with later ones; `None` where the host keeps nothing.
    reuse: Option<Reuse>,
    max_context: u32,
}

/// A request, ready for the engine.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The protocol it came in.
    pub protocol: Protocol,
    /// The model's name as the request gave it.
    pub model: String,
    /// The template it was rendered with.
    pub encoding: Encoding,
    /// Messages and tools.
    pub conversation: Conversation,
    /// Text with a gap, in place of messages.
    pub fim: Option<Fim>,
    /// Sampling wishes.
    pub inference: InferenceOptions,
    /// How to read the output.
    pub parsing: ParsingOptions,
    /// How to write the response.
    pub response: ResponseOptions,
    /// Rendered text and special ranges.
    pub prompt: Prompt,
    /// Ids of `prompt`; empty without a tokenizer.
    pub tokens: Vec<u32>,
    /// Images in the order of the prompt.
    pub images: Vec<PreparedImage>,
    /// The output budget, resolved against the context.
    pub max_tokens: u32,
    /// Positions of the context.
    pub context_limit: u32,
    /// What was accepted but ignored.
    pub warnings: Vec<Warning>,
    /// Options of the host, those of this request applied.
    pub settings: Arc<Settings>,
    /// Keeps the recipe's tokenizer for the parser.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

/// An image of a request and its place among the ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedImage {
    /// Where it comes from.
    pub source: ImageSource,
    /// Whether the prompt has a placeholder for it. Without one it is not part of the input.
    pub is_placed: bool,
    /// Index of its id in the tokens; `None` without a placeholder or a tokenizer.
    pub position: Option<usize>,
    /// What the model makes of it, once its size is known.
    pub plan: Option<Plan>,
}

impl Recipe {
    /// Opens a recipe; the tokenizer file is read here.
    pub fn open(options: &RecipeOptions) -> Result<Self, Error> {
        let tokenizer = match &options.tokenizer_path {
            Some(path) => Some(Arc::new(Tokenizer::open(path)?)),
            None => None,
        };
        Self::with_tokenizer(options, tokenizer)
    }

    /// Opens a recipe over a tokenizer that is loaded already; `tokenizer_path` is not read.
    pub fn with_tokenizer(
        options: &RecipeOptions,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> Result<Self, Error> {
        let given = settings::parse(&options.options_json, "options_json")?;
        let mut settings = Settings::default();
        settings.apply(&given, Scope::Recipe)?;
        if !settings.image_token_chosen
            && let Some(spelling) = tokenizer.as_deref().and_then(image_spelling)
        {
            settings.special_tokens.set(SpecialToken::Image, spelling);
        }
        Ok(Self {
            models: Models::new(&options.aliases_json, &given)?,
            reuse: (settings.cache_bytes > 0).then(|| Reuse::new(settings.cache_bytes)),
            settings: Arc::new(settings),
            tokenizer,
            max_context: match options.max_context {
                0 => budget::MAX_CONTEXT,
                positions => positions,
            },
        })
    }

    /// The tokenizer, if one was given.
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.tokenizer.as_ref()
    }

    /// Options of the host, as every request has them that brings none of its own.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Validates, converts, renders and tokenises one request. `options_json` changes this request only.
    pub fn prepare(
        &self,
        protocol: Protocol,
        json: &[u8],
        options_json: Option<&str>,
    ) -> Result<Prepared, Error> {
        let settings = self.settings_with(options_json.unwrap_or(""))?;
        let value = request::parse(json)?;
        let body = Body::read(protocol, &value, &settings)?;
        let encoding = match body.encoding() {
            Some(encoding) => encoding,
            None => self.models.resolve(body.model(), protocol)?,
        };
        let context = Context {
            settings: &settings,
            encoding,
        };
        let converted = body.convert(context)?;
        self.finish(protocol, &body, encoding, converted, settings)
    }

    /// Renders, tokenises and resolves the budget.
    fn finish(
        &self,
        protocol: Protocol,
        body: &Body<'_>,
        encoding: Encoding,
        mut converted: Converted,
        settings: Arc<Settings>,
    ) -> Result<Prepared, Error> {
        let mut options = settings.render_options();
        options.task = body.task().or(options.task);
        let fim = body.fim();
        let rendered = match &fim {
            Some(fim) => render_fim(fim, options.special_tokens),
            None => render_with(encoding, &converted.conversation, &options)?,
        };
        if let Some(task) = rendered.task {
            converted.parsing.starts_in_tool_calls = false;
            if task != Task::Action {
                // These answers are a line of content, right after their token.
                converted.parsing.thinking_initial_stage = None;
            }
        }
        settings.parsing.apply(&mut converted.parsing);
        let tokens = match &self.tokenizer {
            Some(tokenizer) => {
                let prompt = &rendered.prompt;
                tokenizer.encode_reusing(
                    &prompt.text,
                    &prompt.special_ranges,
                    self.reuse.as_ref(),
                )?
            }
            None => Vec::new(),
        };
        let images = self.images(&rendered.images, &tokens, &settings.image)?;
        let prompt = rendered.prompt;
        let max_tokens = resolve_max_tokens(
            converted.conversation.thinking_mode,
            converted.conversation.reasoning_effort,
            converted.inference.max_tokens,
            positions(&tokens, &images),
            self.max_context,
        )
        .map_err(|error| of_turns(error, protocol))?;
        Ok(Prepared {
            protocol,
            model: body.model().to_owned(),
            encoding,
            conversation: converted.conversation,
            fim,
            inference: converted.inference,
            parsing: converted.parsing,
            response: converted.response,
            prompt,
            tokens,
            images,
            max_tokens,
            context_limit: self.max_context,
            warnings: converted.warnings,
            settings,
            tokenizer: self.tokenizer.clone(),
        })
    }

    /// The images of a prompt, their places among its ids, and what the host knows of their sizes.
    fn images(
        &self,
        placed: &[PlacedImage<'_>],
        tokens: &[u32],
        options: &ImageOptions,
    ) -> Result<Vec<PreparedImage>, Error> {
        if let Some(more) = options.sizes.get(placed.len()..).filter(|m| !m.is_empty()) {
            let (images, sizes) = (placed.len(), placed.len() + more.len());
            return Err(settings::wrong(
                &format!("image_sizes[{images}]"),
                format!("there are {sizes} sizes for {images} images"),
            ));
        }
        // Text never yields an added token, so the ids that are one are the special ranges.
        let special: Vec<usize> = match &self.tokenizer {
            Some(tokenizer) if !placed.is_empty() => (0..tokens.len())
                .filter(|at| tokenizer.is_added(tokens[*at]))
                .collect(),
            _ => Vec::new(),
        };
        let image = |(at, image): (usize, &PlacedImage<'_>)| {
            let size = options.sizes.get(at).copied().flatten();
            let plan = size
                .map(|size| Plan::of(size, image.source.detail, placed.len(), options))
                .transpose()
                .map_err(|refusal| match refusal {
                    Refusal::Unsettled(..) => Error::new(Stage::Internal, "", refusal.to_string()),
                    _ => settings::wrong(&format!("image_sizes[{at}]"), refusal),
                })?;
            Ok(PreparedImage {
                source: image.source.clone(),
                is_placed: image.range.is_some(),
                position: image.range.and_then(|range| special.get(range).copied()),
                plan,
            })
        };
        placed.iter().enumerate().map(image).collect()
    }

    /// The recipe's settings with those of one request applied.
    fn settings_with(&self, options_json: &str) -> Result<Arc<Settings>, Error> {
        let given = settings::parse(options_json, "options_json")?;
        if given.is_empty() {
            return Ok(Arc::clone(&self.settings));
        }
        let mut settings = Settings::clone(&self.settings);
        settings.apply(&given, Scope::Request)?;
        Ok(Arc::new(settings))
    }
}

impl Prepared {
    /// Positions of the input: the ids of the prompt, each image at its full length once its size is known.
    pub fn prompt_tokens(&self) -> u32 {
        positions(&self.tokens, &self.images)
    }

    /// The output budget in a context of `context` positions, where that is less than the recipe's own: as
    /// requested, or the default as far as there is room.
    pub fn max_tokens_within(&self, context: u32) -> Result<u32, Error> {
        resolve_max_tokens(
            self.conversation.thinking_mode,
            self.conversation.reasoning_effort,
            self.inference.max_tokens,
            self.prompt_tokens(),
            self.context_limit.min(context),
        )
        .map_err(|error| of_turns(error, self.protocol))
    }

    /// Special ranges of the prompt, as bytes.
    pub fn special_ranges(&self) -> &[Range<usize>] {
        &self.prompt.special_ranges
    }

    /// Everything that was decided about this request, as one JSON object (`prepared_options_json`).
    pub fn options_json(&self) -> String {
        super::describe::prepared(self).to_string()
    }
}

/// A refusal of the budget names the turns as the request does.
fn of_turns(mut error: Error, protocol: Protocol) -> Error {
    if protocol == Protocol::Responses && error.param == "messages" {
        error.param = "input".to_owned();
    }
    error
}

/// Positions of an input. An image whose size is not known counts as the one id it has.
fn positions(tokens: &[u32], images: &[PreparedImage]) -> u32 {
    let known = images.iter().filter(|image| image.position.is_some());
    let more = known
        .filter_map(|image| image.plan)
        .map(|plan| plan.token_count() as usize - 1);
    u32::try_from(tokens.len().saturating_add(more.sum())).unwrap_or(u32::MAX)
}

/// How a tokenizer file spells the image token of V4.1: the text of its id there, or in vocabularies with
/// other ids whichever of the two known spellings exists.
fn image_spelling(tokenizer: &Tokenizer) -> Option<String> {
    const SYSTEM: (&str, u32) = ("<｜System｜>", 128_799);
    const IMAGE: u32 = 129_264;
    if tokenizer.token_id(SYSTEM.0) == Some(SYSTEM.1) && tokenizer.is_added(IMAGE) {
        let bytes = tokenizer.token_bytes(IMAGE)?;
        return Some(String::from_utf8_lossy(bytes).into_owned());
    }
    let known = ["<｜deepseek_image｜>", "<｜image｜>"];
    let found = known
        .iter()
        .find(|spelling| tokenizer.token_id(spelling).is_some());
    found.map(|spelling| (*spelling).to_owned())
}
