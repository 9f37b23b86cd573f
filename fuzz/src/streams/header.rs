//! The first bytes of an input: everything that is chosen before the output begins. Seeds are written with it too, so
//! nothing here knows the library.

/// Names of the choices, each the index of one of a few values.
#[derive(Clone, Copy, Debug, Default)]
pub struct Header {
    /// Chat Completions, Responses, Messages, the neutral events.
    pub protocol: u8,
    pub strict: bool,
    pub json: bool,
    pub no_calls: bool,
    pub starts_in_calls: bool,
    pub continues: bool,
    pub include_usage: bool,
    /// None, reasoning from its start, reasoning that goes on, content that goes on.
    pub stage: u8,
    /// One of the lists of stop sequences.
    pub stops: u8,
    /// Unknown, none, one that the output may call, several.
    pub tools: u8,
    pub logprobs: bool,
    /// Stop, length, content filter, end of stream, tool calls.
    pub finish: u8,
    pub unterminated_is_content: bool,
    pub late_ready: bool,
    pub openai_usage: bool,
    pub include_stop: bool,
    pub no_vocabulary: bool,
    /// Ids of whole words where there are some, instead of one for each byte.
    pub words: bool,
    /// The output begins as ids, else as text.
    pub ids: bool,
}

impl Header {
    pub const LENGTH: usize = 4;

    /// Reads the beginning of an input; what it does not say is 0.
    pub fn read(input: &[u8]) -> (Self, &[u8]) {
        let (head, rest) = input.split_at(input.len().min(Self::LENGTH));
        let byte = |at: usize| head.get(at).copied().unwrap_or(0);
        let bit = |at: usize, bit: u8| byte(at) >> bit & 1 == 1;
        let header = Self {
            protocol: byte(0) & 3,
            strict: bit(0, 2),
            json: bit(0, 3),
            no_calls: bit(0, 4),
            starts_in_calls: bit(0, 5),
            continues: bit(0, 6),
            include_usage: bit(0, 7),
            stage: byte(1) & 3,
            stops: byte(1) >> 2 & 7,
            tools: byte(1) >> 5 & 3,
            logprobs: bit(1, 7),
            finish: byte(2) & 7,
            unterminated_is_content: bit(2, 3),
            late_ready: bit(2, 4),
            openai_usage: bit(2, 5),
            include_stop: bit(2, 6),
            no_vocabulary: bit(3, 0),
            words: bit(3, 1),
            ids: bit(3, 2),
        };
        (header, rest)
    }

    /// What [`Header::read`] reads.
    pub fn bytes(self) -> [u8; Self::LENGTH] {
        let bit = |value: bool, bit: u8| u8::from(value) << bit;
        [
            self.protocol & 3
                | bit(self.strict, 2)
                | bit(self.json, 3)
                | bit(self.no_calls, 4)
                | bit(self.starts_in_calls, 5)
                | bit(self.continues, 6)
                | bit(self.include_usage, 7),
            self.stage & 3 | (self.stops & 7) << 2 | (self.tools & 3) << 5 | bit(self.logprobs, 7),
            self.finish & 7
                | bit(self.unterminated_is_content, 3)
                | bit(self.late_ready, 4)
                | bit(self.openai_usage, 5)
                | bit(self.include_stop, 6),
            bit(self.no_vocabulary, 0) | bit(self.words, 1) | bit(self.ids, 2),
        ]
    }
}

/// Bytes of the output that are no text but something that happens; others stand for a piece of markup.
pub mod op {
    pub const BORDER: u8 = 0x00;
    pub const TEXT: u8 = 0x01;
    pub const IDS: u8 = 0x02;
    /// Ids of ordinary tokens only, special spellings included.
    pub const PLAIN_IDS: u8 = 0x03;
    pub const EMPTY: u8 = 0x04;
    pub const START: u8 = 0x05;
    pub const FINISH: u8 = 0x06;
    pub const FAIL: u8 = 0x07;
    pub const UNKNOWN_ID: u8 = 0x08;
    pub const LOGPROBS: u8 = 0x0E;
    pub const BOTH: u8 = 0x0F;
    /// The chunk before once more, several times.
    pub const REPEAT: u8 = 0x10;
    /// Markup in one byte, so that short inputs say much: from here on, in the order of [`super::MARKUP`].
    pub const MARKUP: u8 = 0x11;
}

pub const MARKUP: [&str; 15] = [
    "｜DSML｜",
    "<｜DSML｜tool_calls>\n",
    "<｜DSML｜ calls>\n",
    "<｜DSML｜invoke name=\"f\">\n",
    "<｜DSML｜ invoke name=\"g\">",
    "<｜DSML｜parameter name=\"a\" string=\"true\">",
    "<｜DSML｜ parameter name=\"b\" string=\"false\">",
    "<｜DSML｜parameter name=\"input\">",
    "</｜DSML｜parameter>\n",
    "</｜DSML｜invoke>\n",
    "</｜DSML｜ calls>",
    "</｜DSML｜tool_calls>",
    "<think>",
    "</think>",
    "<｜end▁of▁sentence｜>",
];
