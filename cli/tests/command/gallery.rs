//! The images of docs/lessons/gallery.md are those that the command draws.

use std::fs;
use std::path::Path;

use crate::common::run;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns whether the tests write images instead of comparing them:
/// `ROCE_WRITE_GALLERY=1 cargo test -p roce-cli --test command gallery`.
pub(crate) fn writes() -> bool {
    std::env::var_os("ROCE_WRITE_GALLERY").is_some()
}

/// Compares an image with the ladder of the first connection of a capture, or writes it.
#[track_caller]
pub(crate) fn check_image(image: &Path, capture: &Path) {
    let place = tempfile::tempdir().unwrap();
    let drawn = place.path().join("ladder.svg");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (capture, out) = (text(capture), text(&drawn));
    let finished = run(&["ladder", &capture, "--connection", "1", "--rows", "70", "--svg", &out]);
    assert!(finished.success, "{}", finished.stderr);
    if writes() {
        fs::copy(&drawn, image).unwrap();
    }
    let shown = fs::read(image).unwrap_or_default();
    assert!(fs::read(&drawn).unwrap() == shown, "{} is out of date", image.display());
}

#[test]
fn images_of_the_gallery_are_ladders_of_its_captures() {
    let root = Path::new(ROOT);
    let folder = root.join("docs/lessons/gallery");
    let page = fs::read_to_string(root.join("docs/lessons/gallery.md")).unwrap();
    let mut images = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let image = entry.unwrap().path();
        let name = image.file_stem().unwrap().to_str().unwrap();
        assert!(page.contains(&format!("(gallery/{name}.svg)")), "the page does not show {name}.svg");
        check_image(&image, &root.join("pcaps").join(name).with_extension("pcapng"));
        images += 1;
    }
    assert_eq!(images, page.matches("(gallery/").count(), "each image of the page is in its folder");
}
