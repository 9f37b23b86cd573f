//! Images of Messages: base64 with its media type, or an address.

use super::shape::Image;
use crate::recipe::conversation::{ImageDetail, ImageOrigin, ImageSource};
use crate::recipe::error::Error;
use crate::recipe::request::image::is_external;
use crate::recipe::request::{Context, refused};

/// Converts an image. `path` begins the texts of errors, `param` names the block; `source` is the path that
/// later errors about the image begin with.
pub(super) fn convert(
    context: Context<'_>,
    image: &Image<'_>,
    path: impl Fn() -> String,
    param: impl Fn() -> String,
    source: String,
) -> Result<ImageSource, Error> {
    let wrong = |what: String| Err(refused(param(), format!("{}: {what}", path())));
    let origin = match image {
        Image::Base64 { media_type, data } => {
            let (digits, padding) = canonical(data);
            if !decodes(digits, padding) {
                return wrong("base64 decode error".to_owned());
            }
            ImageOrigin::DataUrl(format!("data:{media_type};base64,{digits}{padding}"))
        }
        Image::Url(url) if !is_external(url) => return wrong(format!("invalid url: {url:?}")),
        Image::Url(url) => {
            let limit = context.settings.image.url_bytes;
            if url.len() > limit as usize {
                return wrong(format!(
                    "external link length {} too long, max link length {limit}. Consider passing file data directly with base64 data url instead.",
                    url.len()
                ));
            }
            ImageOrigin::Url((*url).to_owned())
        }
        Image::File => {
            return wrong(
                "file_id is not supported. Pass the image as a base64 data url instead.".to_owned(),
            );
        }
    };
    Ok(ImageSource {
        origin,
        detail: ImageDetail::High,
        path: source,
    })
}

/// The digits of `data` and their padding. Where there is padding, it becomes what the digits need; where
/// there is none, none is added.
fn canonical(data: &str) -> (&str, &str) {
    let digits = data.trim_end_matches('=');
    if digits.len() == data.len() {
        return (data, "");
    }
    match digits.len() % 4 {
        0 => (digits, ""),
        2 => (digits, "=="),
        3 => (digits, "="),
        // No padding helps.
        _ => (data, ""),
    }
}

/// Whether this is base64 in its standard form: padded, and without bits left over.
fn decodes(digits: &str, padding: &str) -> bool {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let unused = match padding.len() {
        0 => 0,
        1 => 0b11,
        _ => 0b1111,
    };
    let last = digits.bytes().last().and_then(value).unwrap_or(0);
    (digits.len() + padding.len()).is_multiple_of(4)
        && digits.bytes().all(|byte| value(byte).is_some())
        && last & unused == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_completed_but_never_added() {
        for (data, url) in [
            ("aGVsbG8=", Some("aGVsbG8=")),
            ("aGVsbG8===", Some("aGVsbG8=")),
            ("aGVsbA=", Some("aGVsbA==")),
            ("aGVs", Some("aGVs")),
            ("aGVs=", Some("aGVs")),
            ("", Some("")),
            ("==", Some("")),
            ("aGVsbG8", None),
            ("aGVsb=", None),
            ("aGVsb===", None),
            ("aG=sbA==", None),
            ("aGVs bA=", None),
            ("aGV-", None),
            ("aGVsbG9=", None),
            ("aGVsbB==", None),
            ("é===", None),
        ] {
            let (digits, padding) = canonical(data);
            let found = decodes(digits, padding).then(|| format!("{digits}{padding}"));
            assert_eq!(found.as_deref(), url, "{data}");
        }
    }
}
