//! Ids of responses and tool calls: random characters, and the checksum that request conversion knows
//! them by.

use crate::recipe::error::{Error, Stage};
use crate::recipe::options::Protocol;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Source of the random characters: SplitMix64, one for each parser.
#[derive(Debug)]
pub(super) struct Ids {
    state: u64,
}

impl Ids {
    /// From `seed`, or from the system's generator. Ids must differ, they need not be secret.
    pub(super) fn new(seed: Option<u64>) -> Result<Self, Error> {
        let state = match seed {
            Some(seed) => seed,
            None => getrandom::u64().map_err(|e| {
                Error::new(Stage::Internal, "", format!("no random seed for ids: {e}"))
            })?,
        };
        Ok(Self { state })
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn draw(&mut self, count: usize, into: &mut String) {
        for _ in 0..count {
            into.push(char::from(ALPHABET[(self.next() % 62) as usize]));
        }
    }

    /// The id of a response that the host gave none.
    pub(super) fn response(&mut self, protocol: Protocol) -> String {
        let mut id = String::from(match protocol {
            Protocol::ChatCompletions => "chatcmpl-",
            Protocol::Responses => "resp_",
            Protocol::Messages => "msg_",
            Protocol::Conversation => "conv_",
        });
        self.draw(24, &mut id);
        id
    }

    /// The id of tool call number `index`. `early`: in thinking mode, before any reasoning text.
    pub(super) fn tool_call(&mut self, index: usize, early: bool) -> String {
        let mut id = format!("call_{index:02}_");
        if early {
            id.push_str("ET_");
        }
        self.draw(20, &mut id);
        let checksum = checksum(&id);
        id.push_str(&format!("{checksum:04}"));
        id
    }
}

/// The four digits at the end of a tool-call id, from what stands before them.
fn checksum(id: &str) -> u64 {
    let bare: Vec<u8> = id.bytes().filter(|&b| b != b'_').collect();
    xxh3_17_to_32(&bare) % 10_000
}

/// XXH3-64, seed 0, for inputs of 17 to 32 bytes: `call`, at least two digits, `ET` or nothing and 20
/// characters never leave this range before the millionth call of an answer.
fn xxh3_17_to_32(input: &[u8]) -> u64 {
    // The first 32 bytes of the algorithm's default secret, as little-endian words.
    const SECRET: [u64; 4] = [
        0xbe4b_a423_396c_feb8,
        0x1cad_21f7_2c81_017c,
        0xdb97_9083_e96d_d4de,
        0x1f67_b3b7_a4a4_4072,
    ];
    const PRIME: u64 = 0x9E37_79B1_85EB_CA87;
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&input[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let mix = |at: usize, first: u64, second: u64| {
        let product = u128::from(word(at) ^ first) * u128::from(word(at + 8) ^ second);
        (product as u64) ^ ((product >> 64) as u64)
    };
    let mut sum = (input.len() as u64).wrapping_mul(PRIME);
    sum = sum.wrapping_add(mix(0, SECRET[0], SECRET[1]));
    sum = sum.wrapping_add(mix(input.len() - 16, SECRET[2], SECRET[3]));
    sum ^= sum >> 37;
    sum = sum.wrapping_mul(0x1656_6791_9E37_79F9);
    sum ^ (sum >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids that the public service handed out.
    const REAL: [&str; 12] = [
        "call_00_ET_e7mP4espWPhnHdlYpuoF2375",
        "call_00_ET_iuBkMjjYlxbeJ4G5gmxK9600",
        "call_00_ET_xibaB7uaG2EiPtzbbQV54469",
        "call_00_ET_aafGyDm83wXAsngP30eg0609",
        "call_00_Pp6q5aqB826MSrbZccY03977",
        "call_00_2PElrM8hPKtKhlf0THnF8943",
        "call_00_9dgrAtZboaYyslPqS2NP7245",
        "call_00_jgQf0z1b6SKPf1lwnzeW3992",
        "call_00_PQvYopRojk2YnwK2r2Rc8216",
        "call_00_KlW4QX3xvHzfRAKrdBzP1475",
        "call_00_mEHK3t28EVqZWsNgO2826966",
        "call_00_kEB1qqFcm1s18Q2HPyZI0354",
    ];

    #[test]
    fn the_checksum_is_that_of_real_ids() {
        for id in REAL {
            let (body, digits) = id.split_at(id.len() - 4);
            assert_eq!(format!("{:04}", checksum(body)), digits, "{id}");
        }
    }

    #[test]
    fn ids_of_one_seed_repeat_and_carry_index_and_mark() {
        let mut ids = Ids::new(Some(7)).unwrap();
        let again = Ids::new(Some(7)).unwrap().tool_call(3, true);
        assert_eq!(ids.tool_call(3, true), again);
        assert!(again.starts_with("call_03_ET_"), "{again}");
        assert_eq!(again.len(), "call_03_ET_".len() + 24);
        assert_ne!(ids.tool_call(3, true), again);
        let late = ids.tool_call(123, false);
        assert!(late.starts_with("call_123_") && late.len() == 33, "{late}");
    }

    #[test]
    fn ids_without_a_seed_differ() {
        let first = Ids::new(None).unwrap().response(Protocol::ChatCompletions);
        let second = Ids::new(None).unwrap().response(Protocol::ChatCompletions);
        assert!(first.starts_with("chatcmpl-") && first.len() == 33);
        assert_ne!(first, second);
    }
}
