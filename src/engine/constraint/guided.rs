//! The matcher that serves: a grammar of the `llguidance` library.
//!
//! In: a compiled grammar and the tokens so far. Out: masks. A mask costs some tens of microseconds, a token a few;
//! both are bounded by the limits below, and a grammar that exceeds them ends its request. The parser under the
//! library's own front end is used, because that front end replaces the panic hook of the process and forces
//! tokens by a tokenizer of its own.

#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use llguidance::Logger;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::Parser;
use llguidance::earley::perf::ParserPerfCounters;

use super::table::TokenTable;
use super::{Fault, Limits, Matcher, Source};
use crate::engine::error::{Code, Error};

/// Work for one mask, in steps of the lexer and in items of the parser: about 20 ms.
const STEP_LEXER: u64 = 200_000;
const STEP_ITEMS: usize = 100_000;
/// States that the lexer of one grammar may have, at 1 to 2 kB each.
const LEXER_STATES: usize = 50_000;

/// A compiled grammar. Its lexer is shared by all matchers made of it, so that what one request learns the next
/// one knows.
pub struct Grammar {
    parser: Parser,
    table: Arc<TokenTable>,
    source_bytes: usize,
    /// A matcher failed: its lexer may be full, and nobody should start with it again.
    is_spoiled: Arc<AtomicBool>,
}

impl Grammar {
    /// Compiles. Takes milliseconds for ordinary grammars; `limits` bound it.
    pub(super) fn compile(
        source: &Source,
        table: &Arc<TokenTable>,
        limits: &Limits,
    ) -> Result<Self, Error> {
        let built = catch_unwind(AssertUnwindSafe(|| parser(source, table, limits)));
        let parser = built
            .unwrap_or_else(|_| Err("the compiler cannot handle it".to_owned()))
            .map_err(|reason| invalid(&reason))?;
        let grammar = Self {
            parser,
            table: table.clone(),
            source_bytes: source.bytes(),
            is_spoiled: Arc::default(),
        };
        grammar.try_out()?;
        Ok(grammar)
    }

    /// A matcher at the beginning of the text.
    pub fn matcher(&self) -> Guided {
        Guided {
            parser: self.parser.clone(),
            table: self.table.clone(),
            tokens: Vec::new(),
            forced: None,
            is_dead: false,
            is_spoiled: self.is_spoiled.clone(),
        }
    }

    /// The same with a lexer of its own: for threads that must not hold up the engine's.
    pub fn separate_matcher(&self) -> Guided {
        Guided {
            parser: self.parser.deep_clone(),
            is_spoiled: Arc::default(),
            ..self.matcher()
        }
    }

    /// Whether a finished text satisfies it; else at which byte it fails. A text that ends early fails at its end.
    pub fn check(&self, text: &str) -> Result<(), usize> {
        let tree = self.table.environment.tok_trie();
        let mut matcher = self.separate_matcher();
        for (at, byte) in text.bytes().enumerate() {
            let token = tree.token_id(&[byte]).ok_or(at)?;
            matcher.accept(token).map_err(|_| at)?;
        }
        if matcher.is_complete() {
            Ok(())
        } else {
            Err(text.len())
        }
    }

    /// The vocabulary it was compiled for.
    pub fn table(&self) -> &Arc<TokenTable> {
        &self.table
    }

    /// Whether new requests should compile it again.
    pub fn is_spoiled(&self) -> bool {
        self.is_spoiled.load(Relaxed)
    }

    /// About how much memory it holds; grows while it is used.
    pub fn bytes(&self) -> usize {
        // Other parts are of the order of the source. A matcher that panicked left a lock that panics.
        let lexer = catch_unwind(AssertUnwindSafe(|| self.parser.lexer_stats().num_bytes));
        let lexer = lexer.unwrap_or_default();
        lexer + 32 * self.source_bytes + 4096
    }

    /// Finds grammars without a word, and fills the lexer's first states.
    fn try_out(&self) -> Result<(), Error> {
        let mut matcher = self.matcher();
        let mut mask = vec![0; words(self.table.len())];
        let tried = matcher.mask(&mut mask);
        match tried {
            Err(fault) => Err(fault.into_error()),
            Ok(()) if mask.iter().all(|word| *word == 0) && !matcher.is_complete() => {
                Err(invalid("no text satisfies it"))
            }
            Ok(()) => Ok(()),
        }
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar")
            .field("source_bytes", &self.source_bytes)
            .finish_non_exhaustive()
    }
}

/// Words of a mask over this many ids.
pub(crate) fn words(tokens: u32) -> usize {
    tokens.div_ceil(32) as usize
}

fn parser(source: &Source, table: &TokenTable, limits: &Limits) -> Result<Parser, String> {
    let parser_limits = ParserLimits {
        initial_lexer_fuel: limits.fuel,
        max_grammar_size: limits.symbols,
        step_lexer_fuel: STEP_LEXER,
        step_max_items: STEP_ITEMS,
        max_lexer_states: LEXER_STATES,
        // Errors are shown to clients: they must not hold the output so far.
        verbose_errors: false,
        ..ParserLimits::default()
    };
    let grammar = match source {
        Source::Schema(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
        Source::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
    };
    let environment = &table.environment;
    // Keeps no log and prints nothing.
    let mut logger = Logger::new(0, 0);
    let compiled = GrammarInit::Serialized(grammar)
        .to_cgrammar(
            Some(environment.clone()),
            &mut logger,
            parser_limits.clone(),
            table.slices.extra_lexemes(),
        )
        .map_err(|error| error.to_string())?;
    Parser::new(
        environment.clone(),
        compiled,
        parser_limits,
        Arc::new(ParserPerfCounters::default()),
    )
    .map_err(|error| error.to_string())
}

/// Says it in our way: one line, no more than a line's worth.
fn invalid(reason: &str) -> Error {
    const MOST: usize = 300;
    let line = reason.split('\n').next().unwrap_or_default().trim();
    let mut end = line.len().min(MOST);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    let message = format!("the constraint cannot be compiled: {}", &line[..end]);
    Error::new(Code::InvalidConstraint, "constraint", message)
}

/// See the module.
pub struct Guided {
    parser: Parser,
    table: Arc<TokenTable>,
    /// Accepted so far; rolling back needs their lengths.
    tokens: Vec<u32>,
    forced: Option<[u32; 1]>,
    is_dead: bool,
    is_spoiled: Arc<AtomicBool>,
}

impl Guided {
    /// Runs one operation; a panic or an error of the library is the end of this matcher.
    fn run<T>(&mut self, body: impl FnOnce(&mut Parser) -> Result<T, Fault>) -> Result<T, Fault> {
        if self.is_dead {
            return Err(Fault::Dead);
        }
        let parser = &mut self.parser;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let value = body(parser)?;
            match parser.get_error() {
                None => Ok(value),
                Some(_) => Err(Fault::TooComplex),
            }
        }))
        .unwrap_or(Err(Fault::Broken));
        if let Err(fault) = &outcome {
            self.is_dead = true;
            if *fault != Fault::Refused {
                self.is_spoiled.store(true, Relaxed);
            }
        }
        outcome
    }
}

impl Matcher for Guided {
    fn mask(&mut self, out: &mut [u32]) -> Result<(), Fault> {
        let slices = self.table.slices.clone();
        let allowed = self.run(|parser| Ok(parser.compute_bias(&*slices, &[])))?;
        let allowed = allowed.as_slice();
        let shared = out.len().min(allowed.len());
        out[..shared].copy_from_slice(&allowed[..shared]);
        out[shared..].fill(0);
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), Fault> {
        self.forced = None;
        let table = self.table.clone();
        let Some(word) = table.word(token).filter(|word| !word.is_empty()) else {
            self.is_dead = true;
            return Err(Fault::Refused);
        };
        self.run(|parser| match parser.apply_token(word, token) {
            Ok(0) => Ok(()),
            // It wants to take tokens back, which are delivered already.
            Ok(_) => Err(Fault::Broken),
            Err(_) if parser.get_error().is_some() => Err(Fault::TooComplex),
            Err(_) => Err(Fault::Refused),
        })?;
        self.tokens.push(token);
        Ok(())
    }

    fn validate(&mut self, tokens: &[u32]) -> usize {
        let known = tokens
            .iter()
            .take_while(|token| self.table.word(**token).is_some_and(|w| !w.is_empty()))
            .count();
        self.run(|parser| Ok(parser.validate_tokens(&tokens[..known])))
            .unwrap_or(0)
    }

    fn rollback(&mut self, count: usize) -> Result<(), Fault> {
        self.forced = None;
        let Some(rest) = self.tokens.len().checked_sub(count) else {
            return Err(Fault::Refused);
        };
        let bytes = self.tokens[rest..]
            .iter()
            .map(|token| self.table.word(*token).map_or(0, <[u8]>::len))
            .sum();
        self.run(|parser| {
            // What it remembers of the last mask may look like the state that comes next.
            parser.invalidate_bias_cache();
            parser.rollback(bytes).map_err(|_| Fault::Broken)
        })?;
        self.tokens.truncate(rest);
        Ok(())
    }

    fn forced(&mut self) -> &[u32] {
        self.forced = None;
        let mut mask = vec![0; words(self.table.len())];
        if self.mask(&mut mask).is_ok() && !self.is_complete() {
            let mut set = mask.iter().enumerate().filter(|(_, word)| **word != 0);
            if let (Some((at, word)), None) = (set.next(), set.next())
                && word.is_power_of_two()
            {
                self.forced = Some([at as u32 * 32 + word.trailing_zeros()]);
            }
        }
        self.forced.as_ref().map_or(&[], |token| token)
    }

    fn fork(&self) -> Box<dyn Matcher> {
        Box::new(Self {
            parser: self.parser.clone(),
            table: self.table.clone(),
            tokens: self.tokens.clone(),
            forced: None,
            is_dead: self.is_dead,
            is_spoiled: self.is_spoiled.clone(),
        })
    }

    fn is_complete(&mut self) -> bool {
        self.run(|parser| Ok(parser.is_accepting()))
            .unwrap_or(false)
    }

    fn can_continue(&mut self) -> bool {
        self.run(|parser| Ok(parser.can_advance())).unwrap_or(false)
    }

    fn is_dead(&self) -> bool {
        self.is_dead
    }
}
