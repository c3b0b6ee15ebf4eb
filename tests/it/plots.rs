//! The page on algorithms: its pictures are what the code draws, its policies can be read.

use std::{collections::BTreeMap, fs, path::Path};

use tower_login_rate_limit::Policy;

use crate::support::example::program;

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs");

fn page() -> String {
    fs::read_to_string(Path::new(DOCS).join("algorithms.md")).expect("the page")
}

/// The files of a directory, with what is in them.
fn files(directory: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(directory).expect("a directory");
    files
        .map(|file| {
            let file = file.expect("a file");
            let name = file.file_name().into_string().expect("a name");
            (name, fs::read_to_string(file.path()).expect("its text"))
        })
        .collect()
}

#[test]
fn the_plots_are_what_the_algorithms_do() {
    let drawn = tempfile::tempdir().expect("a directory");
    let output = program("plots").arg(drawn.path()).output();
    let output = output.expect("an answer");
    assert!(output.status.success(), "{output:?}");

    let drawn = files(drawn.path());
    let committed = files(&Path::new(DOCS).join("plots"));
    let run = "run `cargo run --example plots`, look at docs/plots, and commit it";
    assert!(
        drawn.keys().eq(committed.keys()),
        "{:?} are drawn, {:?} are there; {run}",
        drawn.keys(),
        committed.keys()
    );
    for (name, drawing) in &drawn {
        // Not `assert_eq`: nobody wants to read two drawings.
        assert!(
            *drawing == committed[name],
            "docs/plots/{name} is not what is drawn; {run}"
        );
        assert!(page().contains(&format!("][plots/{name}]")), "{name}");
    }
}

#[test]
fn every_policy_on_the_page_can_be_read() {
    let page = page();
    let snippets: Vec<_> = (page.split("```toml\n").skip(1))
        .map(|rest| rest.split("```").next().expect("an end"))
        .collect();
    assert!(snippets.len() >= 6, "{snippets:?}");
    for snippet in snippets {
        if let Err(error) = toml::from_str::<Policy>(snippet) {
            panic!("{error}\n{snippet}");
        }
    }
}
