//! Which template a model name asks for.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::encoding::Encoding;
use super::error::{Error, Stage};
use super::options::Protocol;
use super::settings::{parse, wrong};

/// Names of models, exact or by prefix.
#[derive(Clone, Debug)]
pub(super) struct Models {
    /// Sorted, because the error for an unknown name lists them in this order.
    exact: BTreeMap<String, Encoding>,
    prefixes: BTreeMap<String, Encoding>,
    /// Prefixes that the official Messages service accepts besides.
    messages_prefixes: BTreeMap<String, Encoding>,
}

impl Models {
    /// The table of `aliases_json` and the keys of `options_json` about names.
    pub(super) fn new(aliases_json: &str, options: &Map<String, Value>) -> Result<Self, Error> {
        let mut models = Self {
            exact: BTreeMap::new(),
            prefixes: BTreeMap::new(),
            messages_prefixes: BTreeMap::new(),
        };
        if !flag(options, "models_replace")? {
            models.add_exact(&[
                ("DeepSeek-V4-Pro", Encoding::V4),
                ("DeepSeek-V4.1-Flash", Encoding::V41),
            ]);
        }
        models.add_preset(options)?;
        let aliases = parse(aliases_json, "aliases_json")?;
        let more = match options.get("model_aliases") {
            None | Some(Value::Null) => &Map::new(),
            Some(Value::Object(map)) => map,
            Some(_) => return Err(wrong("model_aliases", "expected an object")),
        };
        if let Some(name) = more.keys().find(|name| aliases.contains_key(*name)) {
            return Err(wrong(
                "model_aliases",
                format!("{name:?} is in \"aliases_json\" too"),
            ));
        }
        for (key, table) in [("aliases_json", &aliases), ("model_aliases", more)] {
            for (name, target) in table {
                models.add_alias(key, name, target)?;
            }
        }
        Ok(models)
    }

    /// The template of `model`.
    pub(super) fn resolve(&self, model: &str, protocol: Protocol) -> Result<Encoding, Error> {
        let official = match protocol {
            Protocol::Messages => Some(&self.messages_prefixes),
            _ => None,
        };
        self.exact
            .get(model)
            .or_else(|| longest_prefix(&self.prefixes, model))
            .or_else(|| longest_prefix(official?, model))
            .copied()
            .ok_or_else(|| {
                let patterns = self
                    .prefixes
                    .keys()
                    .chain(official.into_iter().flat_map(BTreeMap::keys));
                let mut names: Vec<String> = self.exact.keys().cloned().collect();
                names.extend(patterns.map(|prefix| format!("{prefix}*")));
                names.sort_unstable();
                let message = format!(
                    "The supported API model names are {}, but you passed {model}.",
                    names.join(", ")
                );
                Error::new(Stage::Model, "model", message)
            })
    }

    fn add_exact(&mut self, names: &[(&str, Encoding)]) {
        let names = names
            .iter()
            .map(|(name, encoding)| ((*name).to_owned(), *encoding));
        self.exact.extend(names);
    }

    /// Names of the public service.
    fn add_preset(&mut self, options: &Map<String, Value>) -> Result<(), Error> {
        let pro = match options.get("official_pro") {
            None => Encoding::V4,
            Some(value) => value
                .as_str()
                .and_then(Encoding::from_name)
                .ok_or_else(|| wrong("official_pro", "expected \"v4\" or \"v4.1\""))?,
        };
        match options.get("alias_preset") {
            None | Some(Value::Null) => return Ok(()),
            Some(Value::String(name)) if name == "official_api" => {}
            Some(_) => return Err(wrong("alias_preset", "expected \"official_api\"")),
        }
        self.add_exact(&[
            ("deepseek-flash", Encoding::V41),
            ("deepseek-v4-flash", Encoding::V41),
            ("deepseek-v4-flash-vision-exp", Encoding::V41),
            ("deepseek-v4-pro", pro),
        ]);
        self.messages_prefixes.insert("claude-opus".to_owned(), pro);
        self.messages_prefixes
            .insert("claude".to_owned(), Encoding::V41);
        Ok(())
    }

    fn add_alias(&mut self, key: &str, name: &str, target: &Value) -> Result<(), Error> {
        let encoding = target.as_str().and_then(|target| {
            Encoding::from_name(target).or_else(|| self.exact.get(target).copied())
        });
        let encoding = encoding.ok_or_else(|| {
            wrong(key, format!("{name:?} stands for {target}, which is neither \"v4\", \"v4.1\" nor a known name"))
        })?;
        match name.strip_suffix('*') {
            Some(prefix) => self.prefixes.insert(prefix.to_owned(), encoding),
            None if name.is_empty() => return Err(wrong(key, "a name is empty")),
            None => self.exact.insert(name.to_owned(), encoding),
        };
        Ok(())
    }
}

fn longest_prefix<'a>(table: &'a BTreeMap<String, Encoding>, model: &str) -> Option<&'a Encoding> {
    // The order of the table puts longer prefixes after the shorter ones they begin with.
    let mut matching = table
        .iter()
        .filter(|(prefix, _)| model.starts_with(prefix.as_str()));
    matching.next_back().map(|(_, encoding)| encoding)
}

fn flag(options: &Map<String, Value>, key: &str) -> Result<bool, Error> {
    match options.get(key) {
        None => Ok(false),
        Some(value) => value
            .as_bool()
            .ok_or_else(|| wrong(key, "expected true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(aliases: &str, options: &str) -> Result<Models, Error> {
        Models::new(aliases, &parse(options, "options_json")?)
    }

    #[test]
    fn an_exact_name_wins_then_the_longest_prefix() {
        let table = models(
            r#"{"my-*": "v4", "my-new-*": "v4.1", "my-new-old": "DeepSeek-V4-Pro"}"#,
            "",
        )
        .expect("the table is valid");
        let resolve = |name| table.resolve(name, Protocol::ChatCompletions).ok();
        assert_eq!(resolve("my-model"), Some(Encoding::V4));
        assert_eq!(resolve("my-new-model"), Some(Encoding::V41));
        assert_eq!(resolve("my-new-old"), Some(Encoding::V4));
        assert_eq!(resolve("DeepSeek-V4.1-Flash"), Some(Encoding::V41));
        assert_eq!(resolve("deepseek-flash"), None);
    }

    #[test]
    fn the_official_names_are_opt_in_and_claude_names_belong_to_messages() {
        let table = models(
            "",
            r#"{"alias_preset": "official_api", "official_pro": "v4.1"}"#,
        )
        .expect("the table is valid");
        let resolve = |name, protocol| table.resolve(name, protocol).ok();
        assert_eq!(
            resolve("deepseek-v4-pro", Protocol::ChatCompletions),
            Some(Encoding::V41)
        );
        assert_eq!(
            resolve("claude-opus-9", Protocol::Messages),
            Some(Encoding::V41)
        );
        assert_eq!(resolve("claude-opus-9", Protocol::ChatCompletions), None);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_names_there_are() {
        let table = models(
            r#"{"b*": "v4"}"#,
            r#"{"models_replace": true, "model_aliases": {"a": "v4"}}"#,
        )
        .expect("the table is valid");
        let error = table
            .resolve("x", Protocol::Responses)
            .expect_err("no such name");
        assert_eq!(
            error.message,
            "The supported API model names are a, b*, but you passed x."
        );
    }

    #[test]
    fn wrong_tables_name_their_key() {
        for (aliases, options, key) in [
            ("[]", "", "aliases_json"),
            (r#"{"a": "v5"}"#, "", "aliases_json"),
            (r#"{"": "v4"}"#, "", "aliases_json"),
            (
                r#"{"a": "v4"}"#,
                r#"{"model_aliases": {"a": "v4"}}"#,
                "model_aliases",
            ),
            ("", r#"{"models_replace": 1}"#, "models_replace"),
            ("", r#"{"alias_preset": "x"}"#, "alias_preset"),
            ("", r#"{"official_pro": "v3"}"#, "official_pro"),
        ] {
            let error = models(aliases, options).expect_err(key);
            assert_eq!((error.stage, error.param.as_str()), (Stage::Option, key));
        }
    }
}
