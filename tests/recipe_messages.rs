//! Messages requests, from the body to token ids, against the vectors and beyond them.

mod recipe_support;

use recipe_support::requests::check_all;

#[test]
fn requests_become_what_the_vectors_say() {
    check_all("messages", 164);
}
