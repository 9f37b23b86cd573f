//! What the host decides: the keys of `options_json`.
//!
//! One object, read twice in a request's life: for the recipe, and again for the request that overrides some
//! of it. Every key is checked here, once; the rest of the library sees typed values. An unknown key is an
//! error, for a misspelt option that is silently ignored is found in production.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::conversation::ReasoningEffort;
use super::encoding::{RenderOptions, SpecialToken, SpecialTokens, Task};
use super::error::{Error, Stage};
use super::options::{ParsingOptions, ThinkingStage};
use super::stream::{LateReady, Recovery, StreamOptions, UnterminatedReasoning, UsageChunk};

/// Options of a recipe, or of one request.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether the model thinks when the request does not say.
    pub default_thinking_mode: bool,
    /// Effort of thinking when the request names none.
    pub default_effort: ReasoningEffort,
    /// Effort of this request, whatever it says itself.
    pub effort: Option<Effort>,
    /// Whether requests may give the effort as a number (V4.1).
    pub allow_numeric_effort: bool,
    /// Refuse old assistant messages whose reasoning was not passed back, instead of taking it as empty.
    pub reject_missing_reasoning: bool,
    /// Refuse web search tools of Responses instead of dropping them.
    pub responses_web_search_rejected: bool,
    /// Refuse web search tools of Messages instead of dropping them.
    pub messages_web_search_rejected: bool,
    /// Largest `max_tokens` of a request, in thinking mode.
    pub thinking_max_tokens_upper_bound: u32,
    /// Largest `max_tokens` of a request, outside it.
    pub non_thinking_max_tokens_upper_bound: u32,
    /// Quick instruction on the last user turn.
    pub task: Option<Task>,
    /// Continue a final assistant message of Messages.
    pub messages_prefill: bool,
    /// Chat: `max_completion_tokens` is another name of `max_tokens`.
    pub accept_max_completion_tokens: bool,
    /// Refuse top-level fields that no document names.
    pub reject_unknown_fields: bool,
    /// Hand `top_k`, `min_p`, `logit_bias` and the penalties of a request on to the engine.
    pub engine_params: bool,
    /// Chat: largest `n`.
    pub max_choices: u8,
    /// V4 prompts as its published encoder writes them.
    pub v4_reference_exact: bool,
    /// Corrections of inherited behaviour, each by name.
    pub fixes: Fixes,
    /// Errors of Messages in OpenAI's shape.
    pub messages_error_openai: bool,
    /// Fill `param` in error bodies.
    pub error_param: bool,
    /// Single parsing options, replaced after conversion.
    pub parsing: ParsingOverride,
    /// The output side.
    pub stream: StreamOptions,
    /// Images.
    pub image: ImageOptions,
    /// The built-in fetcher.
    pub fetch: FetchOptions,
    /// Rendered and tokenised parts kept for reuse.
    pub cache_bytes: u64,
    /// Spellings of control tokens.
    pub special_tokens: SpecialTokens,
    /// Whether the host chose the spelling of the image token, so that the tokenizer file does not.
    pub image_token_chosen: bool,
}

/// An effort that the host sets: a name, or none for no thinking at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// No thinking.
    Off,
    /// Thinking of this effort.
    On(ReasoningEffort),
}

impl Effort {
    /// The effort of a name that requests use.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "none" => Self::Off,
            "minimal" | "low" => Self::On(ReasoningEffort::Low),
            "medium" | "high" => Self::On(ReasoningEffort::High),
            "xhigh" => Self::On(ReasoningEffort::Xhigh),
            "ultra" | "max" => Self::On(ReasoningEffort::Max),
            _ => return None,
        })
    }
}

/// Corrections by the names of the option `fixes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in the option, which documents them")]
pub struct Fixes {
    pub keep_defs: bool,
    pub v4_join_tool_after_user: bool,
    pub any_forces_call: bool,
    pub thinking_tool_choice: bool,
    pub newer_inputs: bool,
    pub keep_last_reminder: bool,
    pub one_billing_header_rule: bool,
    pub chat_namespaces: bool,
    pub empty_schema: bool,
    pub prefix_reasoning_first: bool,
    pub skip_searched_tools: bool,
    pub keep_call_order: bool,
    pub refuse_state: bool,
}

impl Fixes {
    fn by_name(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "keep_defs" => &mut self.keep_defs,
            "v4_join_tool_after_user" => &mut self.v4_join_tool_after_user,
            "any_forces_call" => &mut self.any_forces_call,
            "thinking_tool_choice" => &mut self.thinking_tool_choice,
            "newer_inputs" => &mut self.newer_inputs,
            "keep_last_reminder" => &mut self.keep_last_reminder,
            "one_billing_header_rule" => &mut self.one_billing_header_rule,
            "chat_namespaces" => &mut self.chat_namespaces,
            "empty_schema" => &mut self.empty_schema,
            "prefix_reasoning_first" => &mut self.prefix_reasoning_first,
            "skip_searched_tools" => &mut self.skip_searched_tools,
            "keep_call_order" => &mut self.keep_call_order,
            "refuse_state" => &mut self.refuse_state,
            _ => return None,
        })
    }

    fn all() -> Self {
        Self {
            keep_defs: true,
            v4_join_tool_after_user: true,
            any_forces_call: true,
            thinking_tool_choice: true,
            newer_inputs: true,
            keep_last_reminder: true,
            one_billing_header_rule: true,
            chat_namespaces: true,
            empty_schema: true,
            prefix_reasoning_first: true,
            skip_searched_tools: true,
            keep_call_order: true,
            refuse_state: true,
        }
    }
}

/// Parsing options that replace those of the conversion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as the fields of `ParsingOptions`")]
pub struct ParsingOverride {
    pub parse_tool_calls: Option<bool>,
    pub starts_in_tool_calls: Option<bool>,
    pub parse_json_output: Option<bool>,
    pub thinking_initial_stage: Option<Option<ThinkingStage>>,
    pub stop_sequences: Option<Vec<String>>,
}

impl ParsingOverride {
    /// Replaces what is set.
    pub fn apply(&self, parsing: &mut ParsingOptions) {
        if let Some(value) = self.parse_tool_calls {
            parsing.parse_tool_calls = value;
        }
        if let Some(value) = self.starts_in_tool_calls {
            parsing.starts_in_tool_calls = value;
        }
        if let Some(value) = self.parse_json_output {
            parsing.parse_json_output = value;
        }
        if let Some(value) = self.thinking_initial_stage {
            parsing.thinking_initial_stage = value;
        }
        if let Some(value) = &self.stop_sequences {
            parsing.stop_sequences.clone_from(value);
        }
    }
}

/// How images are measured and decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageOptions {
    /// Ignore EXIF orientation.
    pub ignore_exif: bool,
    /// Resize as OpenCV does, not as PIL.
    pub opencv_cubic: bool,
    /// Blend transparency on white-grey instead of dropping it.
    pub blend_alpha: bool,
    /// Plan the grid once instead of until it is stable.
    pub fit_once: bool,
    /// Sizes known beforehand, in prompt order.
    pub sizes: Vec<Option<(u32, u32)>>,
    /// Longest side in pixels.
    pub max_side: u32,
    /// The same when a request has many images.
    pub max_side_many: u32,
    /// How many are many.
    pub many: u32,
    /// Long side of an image of low detail.
    pub low_side: u32,
    /// Longest external URL.
    pub url_bytes: u32,
    /// Time to decode one image.
    pub decode_ms: u32,
}

impl ImageOptions {
    /// Longest side of an image in a request of `images` images.
    pub fn side_limit(&self, images: usize) -> u32 {
        let few = u32::try_from(images).is_ok_and(|images| images < self.many);
        if few {
            self.max_side
        } else {
            self.max_side_many
        }
    }
}

impl Default for ImageOptions {
    fn default() -> Self {
        Self {
            ignore_exif: false,
            opencv_cubic: false,
            blend_alpha: false,
            fit_once: false,
            sizes: Vec::new(),
            max_side: 8192,
            max_side_many: 4096,
            many: 15,
            low_side: 512,
            url_bytes: 8192,
            decode_ms: 10_000,
        }
    }
}

/// How the built-in fetcher behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchOptions {
    /// Time to connect.
    pub connect_ms: u32,
    /// Time of one attempt.
    pub attempt_ms: u32,
    /// Attempts after the first.
    pub retries: u32,
    /// Whether "too many requests" is tried again.
    pub retry_429: bool,
    /// Whether the declared type must be an image.
    pub strict_content_type: bool,
    /// Ports that may be connected to.
    pub ports: Vec<RangeInclusive<u16>>,
}

impl Default for FetchOptions {
    fn default() -> Self {
        Self {
            connect_ms: 10_000,
            attempt_ms: 60_000,
            retries: 3,
            retry_429: false,
            strict_content_type: false,
            ports: vec![80..=80, 443..=443, 1024..=u16::MAX],
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        /// The models' own limit of one answer.
        const LONGEST_OUTPUT: u32 = 393_216;
        Self {
            default_thinking_mode: true,
            default_effort: ReasoningEffort::High,
            effort: None,
            allow_numeric_effort: false,
            reject_missing_reasoning: false,
            responses_web_search_rejected: false,
            messages_web_search_rejected: true,
            thinking_max_tokens_upper_bound: LONGEST_OUTPUT,
            non_thinking_max_tokens_upper_bound: LONGEST_OUTPUT,
            task: None,
            messages_prefill: false,
            accept_max_completion_tokens: false,
            reject_unknown_fields: false,
            engine_params: false,
            max_choices: 1,
            v4_reference_exact: false,
            fixes: Fixes::default(),
            messages_error_openai: false,
            error_param: false,
            parsing: ParsingOverride::default(),
            stream: StreamOptions::default(),
            image: ImageOptions::default(),
            fetch: FetchOptions::default(),
            cache_bytes: 64 << 20,
            special_tokens: SpecialTokens::default(),
            image_token_chosen: false,
        }
    }
}

/// Which of the two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Of the recipe: every key.
    Recipe,
    /// Of one request: keys that do not belong to the recipe alone.
    Request,
}

impl Settings {
    /// Applies the object `options`. Keys of model names are left in it for the model table.
    pub(super) fn apply(
        &mut self,
        options: &Map<String, Value>,
        scope: Scope,
    ) -> Result<(), Error> {
        for (name, value) in options {
            let key = Key { name, value };
            if !self.apply_common(&key)? && !self.apply_recipe(&key, scope)? {
                return Err(key.unknown());
            }
        }
        let spelled = options
            .get("special_tokens")
            .and_then(|tokens| tokens.get("image"));
        if let (Some(spelled), Some(image)) = (spelled, options.get("image_token"))
            && spelled != image
        {
            return Err(wrong(
                "image_token",
                "it differs from \"special_tokens\".\"image\"",
            ));
        }
        Ok(())
    }

    /// What the templates need of these options.
    pub(super) fn render_options(&self) -> RenderOptions<'_> {
        RenderOptions {
            special_tokens: &self.special_tokens,
            task: self.task,
            v4_reference_exact: self.v4_reference_exact,
            v4_join_tool_after_user: self.fixes.v4_join_tool_after_user,
            keep_last_reminder: self.fixes.keep_last_reminder,
            prefix_reasoning_first: self.fixes.prefix_reasoning_first,
            thinking_tool_choice: self.fixes.thinking_tool_choice,
        }
    }

    /// Keys of recipe and request. False: not one of them.
    fn apply_common(&mut self, key: &Key<'_>) -> Result<bool, Error> {
        let stream = &mut self.stream;
        match key.name {
            "default_thinking_mode" => self.default_thinking_mode = key.boolean()?,
            "reasoning_content_behavior" => {
                self.reject_missing_reasoning =
                    key.choice(&[("fill_empty", false), ("reject", true)])?;
            }
            "responses_web_search" => {
                self.responses_web_search_rejected =
                    key.choice(&[("drop", false), ("reject", true)])?;
            }
            "messages_web_search" => {
                self.messages_web_search_rejected =
                    key.choice(&[("drop", false), ("reject", true)])?;
            }
            "thinking_max_tokens_upper_bound" => {
                self.thinking_max_tokens_upper_bound = key.integer(1..=u32::MAX)?;
            }
            "non_thinking_max_tokens_upper_bound" => {
                self.non_thinking_max_tokens_upper_bound = key.integer(1..=u32::MAX)?;
            }
            "default_effort" => match key.value.as_str().and_then(Effort::from_name) {
                Some(Effort::On(effort)) => self.default_effort = effort,
                _ => return Err(key.wrong("expected a name of an effort other than \"none\"")),
            },
            "effort" => self.effort = key.optional(Key::effort)?,
            "task" => self.task = key.optional(Key::task)?,
            "allow_numeric_effort" => self.allow_numeric_effort = key.boolean()?,
            "messages_prefill" => self.messages_prefill = key.boolean()?,
            "accept_max_completion_tokens" => self.accept_max_completion_tokens = key.boolean()?,
            "reject_unknown_fields" => self.reject_unknown_fields = key.boolean()?,
            "engine_params" => self.engine_params = key.boolean()?,
            "v4_reference_exact" => self.v4_reference_exact = key.boolean()?,
            "fixes" => self.fixes = key.fixes()?,
            "messages_error_shape" => {
                self.messages_error_openai =
                    key.choice(&[("anthropic", false), ("openai", true)])?;
            }
            "error_param" => self.error_param = key.boolean()?,
            "parsing" => self.parsing = key.optional(Key::parsing)?.unwrap_or_default(),
            "recovery" => {
                stream.recovery =
                    key.choice(&[("robust", Recovery::Robust), ("strict", Recovery::Strict)])?;
            }
            "unterminated_reasoning" => {
                stream.unterminated_reasoning = key.choice(&[
                    ("reasoning", UnterminatedReasoning::Reasoning),
                    ("content", UnterminatedReasoning::Content),
                ])?;
            }
            "late_ready" => {
                stream.late_ready = key.choice(&[
                    ("ignore", LateReady::Ignore),
                    ("correct", LateReady::Correct),
                ])?;
            }
            "usage_chunk" => {
                stream.usage_chunk = key.choice(&[
                    ("deepseek", UsageChunk::Deepseek),
                    ("openai", UsageChunk::Openai),
                ])?;
            }
            "include_stop_sequence" => stream.include_stop_sequence = key.boolean()?,
            "system_fingerprint" => stream.system_fingerprint = key.optional(Key::text)?,
            "signature" => stream.signature = key.optional(Key::text)?,
            "id_seed" => stream.id_seed = key.optional(|key| key.integer(0..=u64::MAX))?,
            "image_exif" => {
                self.image.ignore_exif = key.choice(&[("apply", false), ("ignore", true)])?;
            }
            "image_resampler" => {
                self.image.opencv_cubic =
                    key.choice(&[("pil_bicubic", false), ("opencv_cubic", true)])?;
            }
            "image_alpha" => {
                self.image.blend_alpha = key.choice(&[("drop", false), ("blend", true)])?;
            }
            "image_fit" => {
                self.image.fit_once = key.choice(&[("stable", false), ("once", true)])?;
            }
            "image_sizes" => self.image.sizes = key.optional(Key::sizes)?.unwrap_or_default(),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Keys of the recipe alone. False: not one of them.
    fn apply_recipe(&mut self, key: &Key<'_>, scope: Scope) -> Result<bool, Error> {
        const SIDE: RangeInclusive<u32> = 1..=65_535;
        match key.name {
            // Read by the model table.
            "model_aliases" | "models_replace" | "alias_preset" | "official_pro" => {}
            "special_tokens" => key.special_tokens(self)?,
            "image_token" => {
                if let Some(spelling) = key.optional(Key::text)? {
                    self.special_tokens.set(SpecialToken::Image, spelling);
                    self.image_token_chosen = true;
                }
            }
            "max_choices" => self.max_choices = key.integer(1..=u8::MAX)?,
            "image_max_side" => self.image.max_side = key.integer(SIDE)?,
            "image_max_side_many" => self.image.max_side_many = key.integer(SIDE)?,
            "image_many" => self.image.many = key.integer(1..=u32::MAX)?,
            "image_low_side" => self.image.low_side = key.integer(SIDE)?,
            "image_url_bytes" => self.image.url_bytes = key.integer(1..=u32::MAX)?,
            "image_decode_ms" => self.image.decode_ms = key.integer(1..=u32::MAX)?,
            "fetch_connect_ms" => self.fetch.connect_ms = key.integer(1..=u32::MAX)?,
            "fetch_attempt_ms" => self.fetch.attempt_ms = key.integer(1..=u32::MAX)?,
            "fetch_retries" => self.fetch.retries = key.integer(0..=100)?,
            "fetch_retry_429" => self.fetch.retry_429 = key.boolean()?,
            "fetch_strict_content_type" => self.fetch.strict_content_type = key.boolean()?,
            "fetch_ports" => self.fetch.ports = key.ports()?,
            "cache_bytes" => self.cache_bytes = key.integer(0..=u64::MAX)?,
            _ => return Ok(false),
        }
        if scope == Scope::Request {
            return Err(key.wrong("it belongs to the recipe, a request cannot change it"));
        }
        Ok(true)
    }
}

/// Reads the text of `options_json`: one object, or nothing at all.
pub(super) fn parse(text: &str, what: &str) -> Result<Map<String, Value>, Error> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(wrong(what, "expected an object")),
        Err(error) => Err(wrong(what, error)),
    }
}

/// An error of the option `key`.
pub(super) fn wrong(key: &str, reason: impl std::fmt::Display) -> Error {
    Error::new(Stage::Option, key, format!("option \"{key}\": {reason}"))
}

/// One key of the object and what it was given.
struct Key<'a> {
    name: &'a str,
    value: &'a Value,
}

impl Key<'_> {
    fn wrong(&self, reason: &str) -> Error {
        let mut value = self.value.to_string();
        if value.len() > 80 {
            let cut = (0..=80).rev().find(|at| value.is_char_boundary(*at));
            value.truncate(cut.unwrap_or(0));
            value.push('…');
        }
        wrong(self.name, format!("{reason}, got {value}"))
    }

    fn unknown(&self) -> Error {
        wrong(self.name, "there is no such option")
    }

    /// `null` for the default, else what `read` makes of the value.
    fn optional<T>(&self, read: impl Fn(&Self) -> Result<T, Error>) -> Result<Option<T>, Error> {
        if self.value.is_null() {
            return Ok(None);
        }
        read(self).map(Some)
    }

    fn boolean(&self) -> Result<bool, Error> {
        self.value
            .as_bool()
            .ok_or_else(|| self.wrong("expected true or false"))
    }

    fn text(&self) -> Result<String, Error> {
        let text = self.value.as_str().map(str::to_owned);
        text.ok_or_else(|| self.wrong("expected a string"))
    }

    fn integer<T: Copy + TryFrom<u64> + Into<u64>>(
        &self,
        range: RangeInclusive<T>,
    ) -> Result<T, Error> {
        let (start, end): (u64, u64) = ((*range.start()).into(), (*range.end()).into());
        self.value
            .as_u64()
            .filter(|value| (start..=end).contains(value))
            .and_then(|value| T::try_from(value).ok())
            .ok_or_else(|| self.wrong(&format!("expected an integer from {start} to {end}")))
    }

    fn choice<T: Copy>(&self, names: &[(&str, T)]) -> Result<T, Error> {
        let found = names
            .iter()
            .find(|(name, _)| self.value.as_str() == Some(name));
        found.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<String> = names
                .iter()
                .map(|(name, _)| format!("\"{name}\""))
                .collect();
            self.wrong(&format!("expected {}", names.join(" or ")))
        })
    }

    fn effort(&self) -> Result<Effort, Error> {
        let percent = self.value.as_u64().filter(|n| (1..=100).contains(n));
        if let Some(percent) = percent.and_then(|n| u8::try_from(n).ok()) {
            return Ok(Effort::On(ReasoningEffort::Percent(percent)));
        }
        let named = self.value.as_str().and_then(Effort::from_name);
        named.ok_or_else(|| self.wrong("expected a name of an effort or an integer from 1 to 100"))
    }

    fn task(&self) -> Result<Task, Error> {
        let named = self.value.as_str().and_then(Task::from_name);
        named.ok_or_else(|| self.wrong("expected the name of a task"))
    }

    fn fixes(&self) -> Result<Fixes, Error> {
        if self.value == "all" {
            return Ok(Fixes::all());
        }
        let expected = || self.wrong("expected \"all\" or an array of names of fixes");
        let mut fixes = Fixes::default();
        for name in self.value.as_array().ok_or_else(expected)? {
            let fix = name.as_str().and_then(|name| fixes.by_name(name));
            *fix.ok_or_else(expected)? = true;
        }
        Ok(fixes)
    }

    fn object(&self) -> Result<&Map<String, Value>, Error> {
        let object = self.value.as_object();
        object.ok_or_else(|| self.wrong("expected an object"))
    }

    fn parsing(&self) -> Result<ParsingOverride, Error> {
        let mut parsing = ParsingOverride::default();
        for (name, value) in self.object()? {
            let path = format!("{}.{name}", self.name);
            let key = Key { name: &path, value };
            match name.as_str() {
                "parse_tool_calls" => parsing.parse_tool_calls = Some(key.boolean()?),
                "starts_in_tool_calls" => parsing.starts_in_tool_calls = Some(key.boolean()?),
                "parse_json_output" => parsing.parse_json_output = Some(key.boolean()?),
                "thinking_initial_stage" => {
                    let stages = ThinkingStage::ALL.map(|stage| (stage.name(), stage));
                    parsing.thinking_initial_stage = Some(key.optional(|key| key.choice(&stages))?);
                }
                "stop_sequences" => parsing.stop_sequences = Some(key.texts()?),
                _ => return Err(key.unknown()),
            }
        }
        Ok(parsing)
    }

    fn texts(&self) -> Result<Vec<String>, Error> {
        let list = self.value.as_array().map(|list| {
            list.iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect::<Option<Vec<String>>>()
        });
        list.flatten()
            .ok_or_else(|| self.wrong("expected an array of strings"))
    }

    fn special_tokens(&self, settings: &mut Settings) -> Result<(), Error> {
        for (name, value) in self.object()? {
            let path = format!("{}.{name}", self.name);
            let key = Key { name: &path, value };
            let token = SpecialToken::from_name(name).ok_or_else(|| key.unknown())?;
            settings.special_tokens.set(token, key.text()?);
            settings.image_token_chosen |= token == SpecialToken::Image;
        }
        Ok(())
    }

    fn sizes(&self) -> Result<Vec<Option<(u32, u32)>>, Error> {
        let list = self
            .value
            .as_array()
            .ok_or_else(|| self.wrong("expected an array of null and [width, height]"))?;
        let side = |value: &Value| {
            let side = value.as_u64().filter(|side| *side > 0);
            side.and_then(|side| u32::try_from(side).ok())
        };
        let size = |value: &Value| match value.as_array()?.as_slice() {
            [width, height] => Some((side(width)?, side(height)?)),
            _ => None,
        };
        let read = |(at, value): (usize, &Value)| {
            if value.is_null() {
                return Ok(None);
            }
            size(value).map(Some).ok_or_else(|| {
                let name = &format!("{}[{at}]", self.name);
                Key { name, value }.wrong("expected null or [width, height] in pixels")
            })
        };
        list.iter().enumerate().map(read).collect()
    }

    fn ports(&self) -> Result<Vec<RangeInclusive<u16>>, Error> {
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let range = first.parse().ok()?..=last.parse().ok()?;
            (*range.start() > 0 && range.start() <= range.end()).then_some(range)
        };
        let list = self
            .value
            .as_array()
            .ok_or_else(|| self.wrong("expected an array of ports"))?;
        list.iter()
            .map(|item| item.as_str().and_then(range))
            .collect::<Option<_>>()
            .ok_or_else(|| self.wrong("expected ports as \"443\" or \"1024-65535\""))
    }
}
