//! Sizes of images, known before their bytes.

use fathom::capi::recipe::FATHOM_PROTOCOL_CHAT_COMPLETIONS;
use serde_json::{Value, json};

use crate::handles::Recipe;
use crate::recipe_support::{lines, v41_file};

#[test]
fn an_image_takes_the_tokens_of_the_vectors() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, v41_file("<｜image｜>")).expect("writable");
    // Some are longer than a host lets requests send them.
    let options = json!({"image_max_side": 65_535}).to_string();
    let recipe = Recipe::open(Some(&path), &options, 0);
    let body = json!({
        "model": "DeepSeek-V4.1-Flash",
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": "https://e.test/a.png"}},
        ]}],
    })
    .to_string();
    let mut planned = 0;
    for vector in lines("recipe/image_tokens.jsonl.gz") {
        let number = |key: &str| vector[key].as_u64().unwrap_or_else(|| panic!("{key}"));
        let size = [number("width"), number("height")];
        let options = json!({"image_sizes": [size]}).to_string();
        let prepared = recipe.prepare(FATHOM_PROTOCOL_CHAT_COMPLETIONS, &body, Some(&options));
        planned += 1;
        let prepared = prepared.unwrap_or_else(|failure| panic!("{size:?}: {failure:?}"));
        let (info, ids) = (prepared.info(), prepared.tokens());
        assert_eq!((info.image_count, info.pending_images), (1, 1));
        // One of the ids stands for the whole image.
        let others = ids.len() as u64 - 1;
        assert_eq!(
            u64::from(info.token_count),
            others + number("image_tokens"),
            "{size:?}"
        );
        let options = prepared.options();
        let image = &options["images"][0];
        let shown = json!([
            image["width"],
            image["height"],
            image["token_grid"],
            image["token_count"]
        ]);
        let expected: Value = json!([
            number("fit_width"),
            number("fit_height"),
            [number("grid_rows"), number("grid_cols")],
            number("image_tokens"),
        ]);
        assert_eq!(shown, expected, "{size:?}");
    }
    assert_eq!(planned, 260);
}
