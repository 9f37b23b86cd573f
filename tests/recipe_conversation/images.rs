//! Image sources and their placeholders.

use fathom::call::request::pending_images;
use fathom::recipe::conversation::{ImageDetail, ImageOrigin, InputMessage};
use fathom::recipe::{Protocol, Recipe, RecipeOptions};
use serde_json::{Value, json};

use super::{File, IMAGE, described, prepare_with, prepared, with_encoding};

#[test]
fn images_stand_where_either_spelling_does() {
    let source = |at: u32| json!({"kind": "url", "url": format!("https://e.test/{at}.png")});
    let request = json!({"thinking_mode": false, "messages": [
        {"role": "user", "content": "a <｜image｜> b <｜deepseek_image｜> c <｜image｜>",
            "image_sources": [source(0), source(1)]},
        {"role": "assistant", "content": "<｜image｜>"},
        {"role": "tool", "content": "no place", "image_sources": [source(2)]}]});
    for (file, own, first) in [
        (
            File::Checkpoint,
            "<｜deepseek_image｜>",
            "a <｜deepseek_image｜> b <｜deepseek_image｜> c <｜image｜>",
        ),
        // Another spelling than the usual one is text unless it is the tokenizer's own.
        (
            File::V41,
            "<｜image｜>",
            "a <｜image｜> b <｜deepseek_image｜> c <｜image｜>",
        ),
    ] {
        let prepared = prepare_with(file, &json!({}), &with_encoding(&request, "v4.1"));
        let prepared = prepared.expect("it is valid");
        assert!(
            prepared.prompt.text.contains(first),
            "{}",
            prepared.prompt.text
        );
        let places: Vec<Option<usize>> = prepared.images.iter().map(|i| i.position).collect();
        assert_eq!(prepared.tokens.iter().filter(|id| **id == IMAGE).count(), 2);
        for place in &places[..2] {
            assert_eq!(prepared.tokens[place.expect("it has a placeholder")], IMAGE);
        }
        assert!(places[0] < places[1]);
        let special = prepared.special_ranges().iter();
        let special = special.filter(|range| &prepared.prompt.text[(*range).clone()] == own);
        assert_eq!(special.count(), 2);
        // The third has no placeholder and is not part of the input.
        assert_eq!(places[2], None);
        assert_eq!(described(&prepared)["images"][2]["position"], Value::Null);
        assert_eq!(pending_images(&prepared), 2);
        assert_eq!(prepared.prompt_tokens() as usize, prepared.tokens.len());
    }
}

#[test]
fn image_sources_are_kept_as_given() {
    let data = "data:image/png;base64,aGk=";
    let request = json!({"messages": [{"role": "user", "content": "", "image_sources": [
        {"kind": "data_url", "data_url": data, "detail": "low", "path": "here"},
        {"kind": "bytes", "data": "aGk=", "detail": null},
    ]}]});
    let prepared = prepared(&request);
    let InputMessage::User { image_sources, .. } = &prepared.conversation.messages[0] else {
        panic!("a user message");
    };
    assert_eq!(
        image_sources[0].origin,
        ImageOrigin::DataUrl(data.to_owned())
    );
    assert_eq!(
        (image_sources[0].detail, image_sources[0].path.as_str()),
        (ImageDetail::Low, "here")
    );
    assert_eq!(image_sources[1].origin, ImageOrigin::Bytes(b"hi".to_vec()));
    assert_eq!(
        (image_sources[1].detail, image_sources[1].path.as_str()),
        (ImageDetail::High, "messages[0]")
    );
}

#[test]
fn a_hundred_thousand_images_are_placed_in_one_walk() {
    let sources = vec![json!({"kind": "url", "url": "http://e.test"}); 100_000];
    // The own spelling stands far behind, so that looking for it from every place would never end.
    let content = "<｜image｜>".repeat(100_000) + "<｜deepseek_image｜>";
    let request = json!({"encoding": "v4.1", "messages": [
        {"role": "user", "content": content, "image_sources": sources}]});
    let body = request.to_string();
    let recipe = Recipe::open(&RecipeOptions {
        options_json: r#"{"image_token": "<｜deepseek_image｜>"}"#.to_owned(),
        ..RecipeOptions::default()
    })
    .expect("no tokenizer is needed");
    let prepared = recipe
        .prepare(Protocol::Conversation, body.as_bytes(), None)
        .expect("it is valid");
    assert_eq!(pending_images(&prepared), 100_000);
}
