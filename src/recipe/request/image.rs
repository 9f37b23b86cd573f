//! Image references: checked for their form only. Nothing is decoded or fetched here.

use super::read::Node;
use super::refused;
use crate::recipe::conversation::ImageDetail;
use crate::recipe::error::Error;

/// What stands in the text for an image that the model cannot see.
pub(super) const UNSUPPORTED_IMAGE: &str = "[Unsupported Image]";

const UNSUPPORTED: &str = "You have uploaded an unsupported image. Please make sure your image is valid and has one of the following formats: webp, png, jpeg, and gif.";

/// Reads how closely to look.
pub(super) fn detail(node: Node<'_, '_>) -> Result<ImageDetail, Error> {
    node.choice(&[
        ("low", ImageDetail::Low),
        ("high", ImageDetail::High),
        ("original", ImageDetail::Original),
        ("auto", ImageDetail::Auto),
    ])
}

/// Whether `url` names something to fetch. The fetcher checks the rest.
pub(super) fn is_external(url: &str) -> bool {
    url.as_bytes()
        .get(..4)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"http"))
}

/// Checks a `data:` URL of a message. `path` begins the texts, `param` names the field.
pub(super) fn check_data_url(url: &str, path: &str, param: &str) -> Result<(), Error> {
    let unreadable = || refused(param, format!("{path}: Unsupported image_url format"));
    if !url.contains("base64,") {
        return Err(unreadable());
    }
    let url = DataUrl::parse(url).ok_or_else(unreadable)?;
    if !url.is_image() {
        return Err(refused(param, format!("{path}: {UNSUPPORTED}")));
    }
    if !url.decodes() {
        return Err(refused(param, format!("{path}: Invalid base64 data")));
    }
    Ok(())
}

/// The parts of a `data:` URL, by the rules of the WHATWG fetch standard.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataUrl<'a> {
    media_type: &'a str,
    base64: bool,
    body: &'a str,
}

impl<'a> DataUrl<'a> {
    /// Splits `url`; `None` when it is not a data URL.
    pub(super) fn parse(url: &'a str) -> Option<Self> {
        let url = url.trim_matches(|c: char| c <= ' ');
        let scheme = url.get(..5)?;
        if !scheme.eq_ignore_ascii_case("data:") {
            return None;
        }
        let (header, body) = url[5..].split_once(',')?;
        // A fragment is not part of the resource.
        let body = body.split_once('#').map_or(body, |(body, _)| body);
        let header = header.trim_matches(' ');
        let (media_type, base64) = match header.rsplit_once(';') {
            Some((before, last)) if last.trim_start_matches(' ').eq_ignore_ascii_case("base64") => {
                (before, true)
            }
            _ => (header, false),
        };
        Some(Self {
            media_type,
            base64,
            body,
        })
    }

    /// Whether it declares one of the accepted image types. Parameters do not matter.
    pub(super) fn is_image(&self) -> bool {
        let essence = self.media_type.split(';').next().unwrap_or("").trim();
        let Some((kind, format)) = essence.split_once('/') else {
            return false;
        };
        kind.eq_ignore_ascii_case("image")
            && ["jpeg", "jpg", "png", "gif", "webp"]
                .iter()
                .any(|known| format.eq_ignore_ascii_case(known))
    }

    /// Whether the body can be decoded.
    pub(super) fn decodes(&self) -> bool {
        !self.base64 || is_forgiving_base64(percent_decoded(self.body))
    }
}

/// The bytes of `text` with `%41` read as `A`; other percent signs stand for themselves.
fn percent_decoded(text: &str) -> impl Iterator<Item = u8> + '_ {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        let byte = *bytes.get(at)?;
        let hex = |offset: usize| {
            let digit = char::from(*bytes.get(at + offset)?).to_digit(16)?;
            u8::try_from(digit).ok()
        };
        if byte == b'%'
            && let (Some(high), Some(low)) = (hex(1), hex(2))
        {
            at += 3;
            return Some(high << 4 | low);
        }
        at += 1;
        Some(byte)
    })
}

/// Base64 with white space anywhere and padding optional, as browsers accept it.
fn is_forgiving_base64(bytes: impl Iterator<Item = u8>) -> bool {
    let (mut digits, mut padding) = (0usize, 0usize);
    for byte in bytes {
        match byte {
            b'\t' | b'\n' | 0x0C | b'\r' | b' ' => {}
            b'=' => padding += 1,
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' if padding == 0 => digits += 1,
            _ => return false,
        }
    }
    // Padding, where given, completes a group of four.
    digits % 4 != 1 && (padding == 0 || (padding <= 2 && (digits + padding).is_multiple_of(4)))
}

/// The bytes of base64 text; `None` if it is none.
pub(super) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    if !is_forgiving_base64(text.bytes()) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut buffer, mut bits) = (0u32, 0);
    for byte in text.bytes() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        buffer = buffer << 6 | u32::from(digit);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            let [.., byte] = (buffer >> bits).to_be_bytes();
            bytes.push(byte);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_urls_follow_the_fetch_standard() {
        let decodes = |url: &str| DataUrl::parse(url).map(|url| url.decodes());
        assert_eq!(decodes("data:image/png;base64, iVBO RwFA"), Some(true));
        assert_eq!(decodes("DATA:image/png;charset=x; BASE64,aGk"), Some(true));
        assert_eq!(decodes("data:image/png;base64,aGk%3D"), Some(true));
        assert_eq!(decodes("data:image/png;base64,aGk=="), Some(false));
        assert_eq!(decodes("data:image/png;base64,aGk=a"), Some(false));
        assert_eq!(decodes("data:image/png;base64,a"), Some(false));
        assert_eq!(decodes("data:image/png;base64,@@@"), Some(false));
        assert_eq!(decodes("data:image/png,%@@@"), Some(true));
        assert_eq!(decodes("data:image/png;base64,aGk=#frag@"), Some(true));
        assert_eq!(decodes("data:image/png;base64"), None);
        assert_eq!(decodes("date:,"), None);
        assert_eq!(decodes("dat\u{e9}:,"), None);
    }

    #[test]
    fn base64_is_decoded_with_and_without_padding() {
        for (text, bytes) in [
            ("", &[][..]),
            ("aGk=", b"hi"),
            (" aG\nk", b"hi"),
            ("AP+/", &[0, 255, 191]),
            ("/w==", &[255]),
        ] {
            assert_eq!(decode_base64(text).as_deref(), Some(bytes), "{text}");
        }
        for text in ["a", "aGk==", "aG-_", "a=Gk"] {
            assert_eq!(decode_base64(text), None, "{text}");
        }
    }

    #[test]
    fn only_four_formats_are_images() {
        let is_image = |url: &str| DataUrl::parse(url).is_some_and(|url| url.is_image());
        for format in [
            "image/png",
            "IMAGE/Jpg",
            "image/webp;a=b",
            "image/gif",
            "image/jpeg",
        ] {
            assert!(is_image(&format!("data:{format};base64,")), "{format}");
        }
        for format in ["", "image", "image/svg+xml", "text/png", "image/pngx"] {
            assert!(!is_image(&format!("data:{format};base64,")), "{format}");
        }
    }

    #[test]
    fn external_means_that_it_begins_with_http() {
        for (url, external) in [
            ("HTTPS://x", true),
            ("httpx", true),
            ("htt", false),
            ("ftp://", false),
            ("hété", false),
        ] {
            assert_eq!(is_external(url), external, "{url}");
        }
    }
}
