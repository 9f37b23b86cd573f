//! From the size of an image to its canvas, its grids and its token count.
//!
//! The canvas is the area that the vision tower sees, cut into patches of 14 pixels; three by three patches
//! make one token, each row of tokens ends with one more, and two enclose the image. The arithmetic is that of
//! the reference in `f64`, step by step, because every rounding decides about a whole row or column. Cost: a
//! few hundred instructions.

use crate::recipe::conversation::ImageDetail;
use crate::recipe::settings::ImageOptions;

/// Side of a patch in pixels.
const PATCH: u32 = 14;

/// Patches of one token, in each direction.
const DOWNSAMPLE: u32 = 3;

/// Side of a token in pixels.
const CELL: u32 = PATCH * DOWNSAMPLE;

/// Start and end of an image.
const DELIMITERS: u32 = 2;

/// Evaluations until a canvas must have settled.
const ROUNDS: usize = 10;

/// What a vision tower accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vision {
    /// Most tokens of an image, all kinds together.
    pub max_tokens: u32,
    /// Smaller images are scaled up to about this area, in pixels.
    pub min_area: u32,
}

impl Vision {
    /// DeepSeek V4.1.
    pub const V41: Self = Self {
        max_tokens: 1024,
        min_area: 544 * 544,
    };
}

/// How the model sees an image: its canvas in pixels, from which all else follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Width of the canvas, a multiple of 14.
    pub width: u32,
    /// Height of the canvas, a multiple of 14.
    pub height: u32,
}

/// Why an image of some size cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A side of no pixels.
    #[error("an image of {0} x {1} pixels has no area")]
    Empty(u32, u32),
    /// A side over the limit.
    #[error("an image of {width} x {height} pixels exceeds the limit of {limit} a side")]
    TooLarge {
        /// In pixels.
        width: u32,
        /// In pixels.
        height: u32,
        /// Longest side allowed in this request.
        limit: u32,
    },
    /// The canvas never settles; no known size does this.
    #[error("an image of {0} x {1} pixels finds no canvas within the token budget")]
    Unsettled(u32, u32),
}

impl Plan {
    /// The plan of a V4.1 image of `width` × `height` decoded pixels, in a request of `images` images.
    pub fn of(
        (width, height): (u32, u32),
        detail: ImageDetail,
        images: usize,
        options: &ImageOptions,
    ) -> Result<Self, Refusal> {
        if width == 0 || height == 0 {
            return Err(Refusal::Empty(width, height));
        }
        let limit = options.side_limit(images);
        if width.max(height) > limit {
            return Err(Refusal::TooLarge {
                width,
                height,
                limit,
            });
        }
        let (width, height) = match detail {
            ImageDetail::Low => limited((width, height), options.low_side),
            ImageDetail::High | ImageDetail::Original | ImageDetail::Auto => (width, height),
        };
        if options.fit_once {
            return Ok(Self::once((width, height), Vision::V41));
        }
        Self::settled((width, height), Vision::V41).ok_or(Refusal::Unsettled(width, height))
    }

    /// The canvas after one evaluation: the model's own plan. Neither side may be 0.
    pub fn once((width, height): (u32, u32), vision: Vision) -> Self {
        let (mut w, mut h) = (f64::from(width), f64::from(height));
        let min_area = f64::from(vision.min_area);
        if w * h < min_area {
            let scale = (min_area / (w * h)).sqrt();
            (w, h) = ((w * scale).floor(), (h * scale).floor());
        }
        let up = |side: f64| (side / f64::from(PATCH)).ceil() * f64::from(PATCH);
        let down = |side: f64| (side / f64::from(PATCH)).floor() * f64::from(PATCH);
        let (canvas_w, canvas_h) = (up(w), up(h));
        let cells = |side: f64| (side / f64::from(PATCH) / f64::from(DOWNSAMPLE)).ceil();
        let tokens = cells(canvas_h) * (cells(canvas_w) + 1.0) + f64::from(DELIMITERS);
        if tokens <= f64::from(vision.max_tokens) {
            return Self::of_canvas(canvas_w, canvas_h);
        }
        // As many whole tokens of the same aspect as the budget holds, one column more for the row ends.
        let budget = vision.max_tokens - DELIMITERS;
        let aspect = h / w;
        let most_cols = (f64::from(budget) / aspect + 0.25).sqrt() - 0.5;
        let most_rows = most_cols * aspect;
        if most_cols < 1.0 {
            return Self {
                width: CELL,
                height: budget / 2 * CELL,
            };
        }
        if most_rows < 1.0 {
            return Self {
                width: (budget - 1) * CELL,
                height: CELL,
            };
        }
        let by_width = most_cols.floor() * f64::from(CELL) / w;
        let by_height = most_rows.floor() * f64::from(CELL) / h;
        let scale = by_width.min(by_height);
        Self::of_canvas(down(w * scale), down(h * scale))
    }

    /// The canvas that stays the same when it is planned again, as a model does that is handed the canvas for
    /// the image. `None` if it has not settled after ten evaluations.
    pub fn settled(size: (u32, u32), vision: Vision) -> Option<Self> {
        let mut plan = Self::once(size, vision);
        for _ in 1..ROUNDS {
            let again = Self::once((plan.width, plan.height), vision);
            if again == plan {
                return Some(plan);
            }
            plan = again;
        }
        None
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "sides are whole, positive and within the token budget"
    )]
    fn of_canvas(width: f64, height: f64) -> Self {
        Self {
            width: width as u32,
            height: height as u32,
        }
    }

    /// Rows and columns of patches.
    pub fn patch_grid(self) -> [u32; 2] {
        [self.height / PATCH, self.width / PATCH]
    }

    /// Rows and columns of image tokens.
    pub fn token_grid(self) -> [u32; 2] {
        self.patch_grid().map(|side| side.div_ceil(DOWNSAMPLE))
    }

    /// Positions of the input: image tokens, one more for each row, start and end.
    pub fn token_count(self) -> u32 {
        let [rows, cols] = self.token_grid();
        rows * (cols + 1) + DELIMITERS
    }
}

/// A size whose long side is at most `limit`; the short side keeps the aspect, rounded half up.
fn limited((width, height): (u32, u32), limit: u32) -> (u32, u32) {
    let long = width.max(height);
    if long <= limit {
        return (width, height);
    }
    let scaled = |side: u32| {
        let (side, limit, long) = (u64::from(side), u64::from(limit), u64::from(long));
        let rounded = (2 * side * limit + long) / (2 * long);
        u32::try_from(rounded).map_or(u32::MAX, |side| side.max(1))
    };
    (scaled(width), scaled(height))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// No limit of side, so that any size is planned.
    fn unlimited() -> ImageOptions {
        ImageOptions {
            max_side: u32::MAX,
            max_side_many: u32::MAX,
            ..ImageOptions::default()
        }
    }

    fn plan(size: (u32, u32), detail: ImageDetail) -> Plan {
        Plan::of(size, detail, 1, &ImageOptions::default()).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn every_canvas_within_the_budget_settles() {
        // One evaluation yields such a canvas whatever the size, so this covers all sizes there are.
        let mut seen = 0;
        for rows in 1u32..=3 * 511 {
            for cols in 1u32..=3 * 1021 {
                let canvas = Plan {
                    width: cols * PATCH,
                    height: rows * PATCH,
                };
                if canvas.token_count() > Vision::V41.max_tokens {
                    break;
                }
                seen += 1;
                let mut plan = canvas;
                for round in 2.. {
                    assert!(round <= ROUNDS, "{canvas:?}");
                    let again = Plan::once((plan.width, plan.height), Vision::V41);
                    if again == plan {
                        break;
                    }
                    plan = again;
                }
            }
        }
        assert!(seen > 50_000, "{seen}");
    }

    #[test]
    fn low_detail_limits_the_long_side_first() {
        for (size, canvas, tokens) in [
            ((640, 480), [630, 476], 194),
            ((1, 1), [546, 546], 184),
            ((1920, 1080), [728, 420], 192),
            ((8192, 8192), [546, 546], 184),
        ] {
            let plan = plan(size, ImageDetail::Low);
            assert_eq!([plan.width, plan.height], canvas, "{size:?}");
            assert_eq!(plan.token_count(), tokens, "{size:?}");
        }
        assert_eq!(limited((1024, 3), 512), (512, 2), "half is rounded up");
        assert_eq!(limited((1, 8192), 512), (1, 512), "no side vanishes");
        let few = ImageOptions {
            low_side: 28,
            ..ImageOptions::default()
        };
        let small = Plan::of((8192, 100), ImageDetail::Low, 1, &few).expect("it is planned");
        assert_eq!(
            small,
            Plan::once((28, 1), Vision::V41),
            "the option decides how long"
        );
    }

    #[test]
    fn details_other_than_low_change_nothing() {
        for detail in [ImageDetail::High, ImageDetail::Original, ImageDetail::Auto] {
            let plan = plan((1920, 1080), detail);
            assert_eq!(plan.patch_grid(), [69, 122]);
            assert_eq!(plan.token_grid(), [23, 41]);
            assert_eq!(plan.token_count(), 968);
        }
    }

    #[test]
    fn a_side_is_limited_and_more_so_in_a_request_of_many_images() {
        let options = ImageOptions::default();
        let plan = |size, images| Plan::of(size, ImageDetail::Low, images, &options);
        assert!(plan((8192, 8192), 14).is_ok());
        let limit = 8192;
        assert_eq!(
            plan((8193, 1), 14),
            Err(Refusal::TooLarge {
                width: 8193,
                height: 1,
                limit
            })
        );
        assert!(plan((4096, 1), 15).is_ok());
        let limit = 4096;
        assert_eq!(
            plan((1, 4097), 15),
            Err(Refusal::TooLarge {
                width: 1,
                height: 4097,
                limit
            })
        );
        assert_eq!(plan((0, 7), 1), Err(Refusal::Empty(0, 7)));
    }

    proptest! {
        #[test]
        fn any_size_has_a_plan_that_stays(
            width in prop_oneof![any::<u32>(), 0u32..10_000, Just(u32::MAX)],
            height in prop_oneof![any::<u32>(), 0u32..10_000, Just(1)],
            low in any::<bool>(),
        ) {
            let detail = if low { ImageDetail::Low } else { ImageDetail::High };
            let planned = Plan::of((width, height), detail, 1, &unlimited());
            if width == 0 || height == 0 {
                prop_assert_eq!(planned, Err(Refusal::Empty(width, height)));
                return Ok(());
            }
            let plan = planned.expect("every size settles");
            prop_assert_eq!(Plan::once((plan.width, plan.height), Vision::V41), plan);
            prop_assert!(plan.token_count() <= Vision::V41.max_tokens);
            prop_assert!(plan.width > 0 && plan.width.is_multiple_of(PATCH) && plan.width <= 1021 * CELL);
            prop_assert!(plan.height > 0 && plan.height.is_multiple_of(PATCH) && plan.height <= 511 * CELL);
            let [rows, cols] = plan.token_grid();
            prop_assert!(rows * CELL >= plan.height && (rows - 1) * CELL < plan.height);
            prop_assert!(cols * CELL >= plan.width && (cols - 1) * CELL < plan.width);
            let once = ImageOptions { fit_once: true, ..unlimited() };
            let once = Plan::of((width, height), detail, 1, &once).expect("once always ends");
            prop_assert!(once.token_count() <= Vision::V41.max_tokens);
        }
    }
}
