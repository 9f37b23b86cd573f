//! The byte-level alphabet: the 256 characters that vocabulary entries are spelled with, one a byte.

/// The character that stands for `byte` in a vocabulary entry.
///
/// Printable Latin-1 stands for itself; the 68 others are moved behind U+0100, in order, so that no
/// entry contains white space or control characters.
pub(super) fn char_of(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        0..=0x20 => shifted(u32::from(byte)),
        0x7F..=0xA0 => shifted(33 + u32::from(byte) - 0x7F),
        0xAD => shifted(67),
    }
}

/// The byte that `character` stands for; `None` outside the alphabet.
pub(super) fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    let byte = match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// The bytes that a vocabulary entry stands for; `None` if one of its characters is not of the alphabet.
pub(super) fn bytes_of(entry: &str) -> Option<Vec<u8>> {
    entry.chars().map(byte_of).collect()
}

fn shifted(index: u32) -> char {
    char::from_u32(0x100 + index).expect("U+0100 to U+0143 are characters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        for byte in 0..=u8::MAX {
            assert_eq!(byte_of(char_of(byte)), Some(byte), "byte {byte:#04x}");
        }
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(byte_of('｜'), None);
    }
}
