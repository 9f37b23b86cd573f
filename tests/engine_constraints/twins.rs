//! The serving matcher against the plain one, mask by mask, over the demo model's vocabulary.

use std::sync::Arc;

use fathom::engine::constraint::plain::{Expression, JsonObject, Language, Plain};
use fathom::engine::constraint::{Matcher, Spec, TokenTable, Vocabulary, compile};
use fathom::recipe::tokenizer::Tokenizer;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::recipe_support::demo_model;

fn table() -> Arc<TokenTable> {
    Tokenizer::open(&demo_model()).unwrap().table().unwrap()
}

/// A small generator: reproducible, and without a dependency.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) % n as u64) as usize
    }
}

fn mask(matcher: &mut dyn Matcher, words: usize) -> Vec<u32> {
    let mut out = vec![0xAAAA_AAAA; words];
    matcher.mask(&mut out).unwrap();
    out
}

fn ids(mask: &[u32]) -> Vec<u32> {
    let bits = |(at, word): (usize, &u32)| {
        let word = *word;
        (0..32)
            .filter(move |bit| word >> bit & 1 == 1)
            .map(move |bit| at as u32 * 32 + bit)
    };
    mask.iter().enumerate().flat_map(bits).collect()
}

/// A random text of the language, token by token; at each the two must agree on everything. Now and then tokens
/// are taken back, or a copy goes another way.
fn walk(
    name: &str,
    language: impl Language,
    spec: Spec,
    table: &Arc<TokenTable>,
    seed: u64,
    steps: usize,
) {
    let words = table.len().div_ceil(32) as usize;
    let grammar = compile(spec, table.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut plain: Box<dyn Matcher> = Box::new(Plain::new(language, table.clone()));
    let mut guided: Box<dyn Matcher> = Box::new(grammar.matcher());
    let mut random = Random(seed);
    let mut accepted: Vec<u32> = Vec::new();
    let at = |accepted: &[u32]| {
        let bytes: Vec<u8> = accepted
            .iter()
            .flat_map(|id| table.text(*id).unwrap().to_vec())
            .collect();
        format!(
            "{name}, seed {seed}, after {:?}",
            String::from_utf8_lossy(&bytes)
        )
    };
    for _ in 0..steps {
        let expected = mask(&mut *plain, words);
        let got = mask(&mut *guided, words);
        assert!(
            expected == got,
            "{}: the plain matcher allows {:?}, the other {:?}",
            at(&accepted),
            only(&expected, &got, table),
            only(&got, &expected, table),
        );
        assert_eq!(
            plain.is_complete(),
            guided.is_complete(),
            "{}",
            at(&accepted)
        );
        assert_eq!(plain.forced(), guided.forced(), "{}", at(&accepted));
        let allowed = ids(&expected);
        assert!(
            guided.can_continue() || allowed.is_empty(),
            "{}",
            at(&accepted)
        );
        if random.below(8) == 0 && !accepted.is_empty() {
            // Twice a draft's length, and one.
            let count = 1 + random.below(accepted.len().min(12));
            plain.rollback(count).unwrap();
            guided.rollback(count).unwrap();
            accepted.truncate(accepted.len() - count);
            continue;
        }
        if allowed.is_empty() {
            return;
        }
        // Long tokens are rare among all, and interesting.
        let pick = |random: &mut Random| {
            let some = |random: &mut Random| allowed[random.below(allowed.len())];
            let candidates = [some(random), some(random), some(random)];
            *candidates
                .iter()
                .max_by_key(|id| table.text(**id).map_or(0, <[u8]>::len))
                .unwrap()
        };
        let mut draft: Vec<u32> = (0..4).map(|_| pick(&mut random)).collect();
        draft.push(random.below(table.len() as usize) as u32);
        assert_eq!(
            plain.validate(&draft),
            guided.validate(&draft),
            "{} {draft:?}",
            at(&accepted)
        );
        if random.below(8) == 0 {
            let (mut other, token) = (guided.fork(), pick(&mut random));
            other.accept(token).unwrap();
        }
        let token = pick(&mut random);
        plain.accept(token).unwrap();
        guided
            .accept(token)
            .unwrap_or_else(|fault| panic!("{}: {token} {fault:?}", at(&accepted)));
        accepted.push(token);
    }
}

fn only(a: &[u32], b: &[u32], table: &TokenTable) -> Vec<String> {
    let missing: Vec<u32> = a.iter().zip(b).map(|(a, b)| a & !b).collect();
    let text = |id: u32| String::from_utf8_lossy(table.text(id).unwrap_or(b"?")).into_owned();
    ids(&missing).into_iter().take(20).map(text).collect()
}

/// Catches: a mask that is stale after a token or a rollback; one that lacks long tokens, or has tokens that begin
/// well and end badly; control tokens in text.
#[test]
fn expressions_allow_the_same_tokens() {
    let table = table();
    for (seed, expression) in [
        "[a-z]{3,8} is [0-9]{1,3}",
        "(the|a|an)( [a-z]+)*\\.",
        "(a|ab|abc)*d",
        r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}",
        "[^x]*x",
        ".{0,20}",
        "(?s:.)*END",
        "(yes|no|maybe)( .*)?",
        "é+[à-ü]?",
        r"\p{Greek}*|[\u{10000}-\u{10FFFF}]",
        r"(?i)hello|world{2,3}",
        r#""([^"\\\x00-\x1f]|\\["\\nrt])*""#,
        "</?(think|think>)",
        "",
        "a?",
    ]
    .into_iter()
    .enumerate()
    {
        for round in 0..3 {
            let language = Expression::new(expression).unwrap();
            let spec = Spec::Regex(expression.to_owned());
            walk(
                expression,
                language,
                spec,
                &table,
                seed as u64 * 10 + round,
                25,
            );
        }
    }
}

/// Catches: brackets that close the wrong way, white space without end, escapes and numbers that are no JSON, half
/// characters.
#[test]
fn json_objects_allow_the_same_tokens() {
    let table = table();
    for seed in 0..12 {
        walk(
            "JSON",
            JsonObject::default(),
            Spec::JsonObject,
            &table,
            seed,
            60,
        );
    }
}

/// Catches: a short choice that hides a longer one, or ends where only the longer may.
#[test]
fn choices_allow_the_same_tokens() {
    let table = table();
    let choices = [
        "red",
        "red wine",
        "re",
        "green",
        "{\"a\": 1}",
        "x\\y\n",
        "日本",
    ];
    let expression: Vec<String> = choices
        .iter()
        .map(|text| regex_syntax::escape(text))
        .collect();
    for seed in 0..10 {
        let language = Expression::new(&expression.join("|")).unwrap();
        let spec = Spec::Choice(serde_json::to_string(&choices).unwrap());
        walk("choice", language, spec, &table, seed, 12);
    }
}

fn expressions() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        "[a-d]{1,3}",
        Just("[0-9]".to_owned()),
        Just("[^ab]".to_owned()),
        Just(".".to_owned()),
        Just("é".to_owned()),
        Just(" ".to_owned()),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.concat()),
            proptest::collection::vec(inner.clone(), 2..4)
                .prop_map(|parts| format!("({})", parts.join("|"))),
            (inner, 0u32..3, 0u32..3)
                .prop_map(|(part, least, more)| format!("({part}){{{least},{}}}", least + more)),
        ]
    })
}

/// The same over random expressions.
#[test]
fn random_expressions_allow_the_same_tokens() {
    let table = table();
    let config = Config {
        cases: 60,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&(expressions(), any::<u64>()), |(expression, seed)| {
            let language = Expression::new(&expression).unwrap();
            // One that matches nothing but the empty text has no first token.
            walk(
                &expression,
                language,
                Spec::Regex(expression.clone()),
                &table,
                seed,
                8,
            );
            Ok(())
        })
        .unwrap();
}
