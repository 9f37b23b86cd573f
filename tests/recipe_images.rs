//! Images by their size: token counts against the vectors, and what known sizes change in a request.

mod recipe_support;

use std::sync::{Arc, OnceLock};

use fathom::call::request::pending_images;
use fathom::recipe::conversation::ImageDetail;
use fathom::recipe::image::Plan;
use fathom::recipe::settings::ImageOptions;
use fathom::recipe::tokenizer::Tokenizer;
use fathom::recipe::{Error, Prepared, Protocol, Recipe, RecipeOptions, Stage};
use recipe_support::{lines, v41_file};
use serde_json::{Value, json};

#[test]
fn sizes_have_the_canvas_and_the_tokens_of_the_vectors() {
    let mut count = 0;
    for vector in lines("recipe/image_tokens.jsonl.gz") {
        count += 1;
        let number = |key: &str| {
            let number = vector[key].as_u64().unwrap_or_else(|| panic!("{key}"));
            u32::try_from(number).expect("it fits")
        };
        let size = (number("width"), number("height"));
        // Some are longer than a request may send.
        let options = ImageOptions {
            max_side: u32::MAX,
            ..ImageOptions::default()
        };
        let plan = Plan::of(size, ImageDetail::High, 1, &options).expect("it is planned");
        assert_eq!(plan.width, number("fit_width"), "{size:?}");
        assert_eq!(plan.height, number("fit_height"), "{size:?}");
        let grid = [number("grid_rows"), number("grid_cols")];
        assert_eq!(plan.token_grid(), grid, "{size:?}");
        assert_eq!(plan.token_count(), number("image_tokens"), "{size:?}");
    }
    assert_eq!(count, 260);
}

fn tokenizer() -> Arc<Tokenizer> {
    static OPENED: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let open = || Arc::new(Tokenizer::from_bytes(&v41_file("<｜image｜>")).expect("it is valid"));
    Arc::clone(OPENED.get_or_init(open))
}

fn recipe(options: &Value, max_context: u32) -> Recipe {
    let options = RecipeOptions {
        options_json: options.to_string(),
        max_context,
        ..RecipeOptions::default()
    };
    Recipe::with_tokenizer(&options, Some(tokenizer())).unwrap_or_else(|e| panic!("{e}"))
}

/// A request with an image of each of these details.
fn request(details: &[&str]) -> String {
    let image = |detail: &&str| json!({"type": "image_url", "image_url": {"url": "https://e.test/1.png", "detail": detail}});
    let blocks: Vec<Value> = details.iter().map(image).collect();
    json!({"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": blocks}],
        "thinking": {"type": "disabled"}})
    .to_string()
}

fn prepare(recipe: &Recipe, body: &str, options: &Value) -> Result<Prepared, Error> {
    let options = options.to_string();
    recipe.prepare(Protocol::ChatCompletions, body.as_bytes(), Some(&options))
}

#[test]
fn known_sizes_make_the_count_exact_and_leave_the_images_pending() {
    let recipe = recipe(&json!({}), 0);
    let body = request(&["high", "high", "low"]);
    let unknown = prepare(&recipe, &body, &json!({})).expect("it is valid");
    let ids = u32::try_from(unknown.tokens.len()).expect("a short prompt");
    assert_eq!(
        (unknown.prompt_tokens(), pending_images(&unknown)),
        (ids, 3)
    );

    let sizes = json!({"image_sizes": [[1920, 1080], null, [1920, 1080]]});
    let known = prepare(&recipe, &body, &sizes).expect("it is valid");
    assert_eq!(known.tokens, unknown.tokens);
    assert_eq!(known.prompt_tokens(), ids + 967 + 191);
    assert_eq!(pending_images(&known), 3);
    let options: Value = serde_json::from_str(&known.options_json()).expect("it is JSON");
    let images = &options["images"];
    let shown = |at: usize| {
        let keys = ["width", "height", "patch_grid", "token_grid", "token_count"];
        let image = images[at].as_object().expect("an image");
        let entries = keys.iter().filter_map(|key| Some((*key, image.get(*key)?)));
        json!(entries.collect::<std::collections::BTreeMap<_, _>>())
    };
    assert_eq!(
        shown(0),
        json!({"width": 1708, "height": 966, "patch_grid": [69, 122], "token_grid": [23, 41], "token_count": 968})
    );
    assert_eq!(shown(1), json!({}));
    assert_eq!(
        shown(2),
        json!({"width": 728, "height": 420, "patch_grid": [30, 52], "token_grid": [10, 18], "token_count": 192})
    );
    // The last sizes may be left out.
    let some = prepare(&recipe, &body, &json!({"image_sizes": [[1920, 1080]]}));
    assert_eq!(some.expect("it is valid").prompt_tokens(), ids + 967);
}

#[test]
fn known_sizes_count_against_the_context() {
    let body = request(&["high"]);
    let sizes = json!({"image_sizes": [[1920, 1080]]});
    let tokens = prepare(&recipe(&json!({}), 0), &body, &sizes)
        .expect("it is valid")
        .prompt_tokens();
    let fits = recipe(&json!({}), tokens + 5);
    let prepared = prepare(&fits, &body, &sizes).expect("it fits");
    assert_eq!(prepared.max_tokens, 5);
    assert_eq!(prepared.max_tokens_within(tokens + 3).expect("it fits"), 3);
    let error = prepared
        .max_tokens_within(tokens - 1)
        .expect_err("it is too long");
    assert_eq!(error.stage, Stage::Budget);

    let tight = recipe(&json!({}), tokens - 1);
    let error = prepare(&tight, &body, &sizes).expect_err("it is too long");
    assert_eq!(error.stage, Stage::Budget);
    assert!(
        error
            .message
            .contains(&format!("({tokens} in the messages, 0 in the completion)"))
    );
    assert!(
        prepare(&tight, &body, &json!({})).is_ok(),
        "an unknown size counts one"
    );
}

#[test]
fn a_size_that_cannot_be_is_named() {
    let recipe = recipe(&json!({"image_many": 3, "image_max_side_many": 100}), 0);
    let two = request(&["high"; 2]);
    let three = request(&["high"; 3]);
    for (body, sizes, param) in [
        (&two, json!([null, [8193, 1]]), "image_sizes[1]"),
        (&two, json!([[1, 0]]), "image_sizes[0]"),
        (&two, json!([null, [1]]), "image_sizes[1]"),
        (&two, json!([null, 7]), "image_sizes[1]"),
        (&two, json!([[1, 4_294_967_296_u64]]), "image_sizes[0]"),
        (&two, json!([[1, 1], [1, 1], null]), "image_sizes[2]"),
        (&two, json!({}), "image_sizes"),
        (&three, json!([[101, 1]]), "image_sizes[0]"),
    ] {
        let options = json!({"image_sizes": sizes});
        let error = prepare(&recipe, body, &options).expect_err(param);
        assert_eq!(
            (error.stage, error.param.as_str()),
            (Stage::Option, param),
            "{error}"
        );
        assert!(
            error.message.starts_with(&format!("option \"{param}\": ")),
            "{error}"
        );
    }
    assert!(prepare(&recipe, &two, &json!({"image_sizes": [[101, 8192]]})).is_ok());
    assert!(prepare(&recipe, &three, &json!({"image_sizes": [[100, 100]]})).is_ok());
}

#[test]
fn one_evaluation_and_the_low_side_are_options() {
    // Of the sizes up to 8192 this is one that settles elsewhere only after several evaluations.
    let size = (1..8192)
        .flat_map(|width| [(width, 8000), (width, 64)])
        .find(|size| {
            let of = |fit_once| {
                let options = ImageOptions {
                    fit_once,
                    ..ImageOptions::default()
                };
                Plan::of(*size, ImageDetail::High, 1, &options).expect("it is planned")
            };
            of(true).token_count() != of(false).token_count()
        })
        .expect("there is one");
    let body = request(&["high"]);
    let sizes = json!({"image_sizes": [[size.0, size.1]]});
    let stable = prepare(&recipe(&json!({}), 0), &body, &sizes).expect("it is valid");
    let once = prepare(&recipe(&json!({"image_fit": "once"}), 0), &body, &sizes);
    assert_ne!(
        once.expect("it is valid").prompt_tokens(),
        stable.prompt_tokens()
    );

    let low = request(&["low"]);
    let sizes = json!({"image_sizes": [[4000, 4000]]});
    let count = |options: Value| {
        let prepared = prepare(&recipe(&options, 0), &low, &sizes);
        prepared.expect("it is valid").prompt_tokens()
    };
    assert!(count(json!({"image_low_side": 1000})) > count(json!({})));
}

#[test]
fn an_image_without_a_place_counts_nothing() {
    let request = json!({"encoding": "v4.1", "messages": [{"role": "user", "content": "none",
        "image_sources": [{"kind": "url", "url": "https://e.test/1.png"}]}]});
    let options = json!({"image_sizes": [[1920, 1080]]}).to_string();
    let prepared = recipe(&json!({}), 0)
        .prepare(
            Protocol::Conversation,
            request.to_string().as_bytes(),
            Some(&options),
        )
        .expect("it is valid");
    assert_eq!(prepared.prompt_tokens() as usize, prepared.tokens.len());
    assert_eq!(
        prepared.images[0]
            .plan
            .expect("its size is known")
            .token_count(),
        968
    );
    assert_eq!(pending_images(&prepared), 0);
}
