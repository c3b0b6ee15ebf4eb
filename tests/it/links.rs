//! Links of the README and the guides lead somewhere: in the repository, on crates.io and on docs.rs.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A page without its code blocks.
struct Page {
    path: PathBuf,
    lines: Vec<String>,
}

impl Page {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let mut is_code = false;
        let is_prose = |line: &&str| {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            !is_code && !is_fence
        };
        Self {
            path: path.to_owned(),
            lines: text.lines().filter(is_prose).map(str::to_owned).collect(),
        }
    }

    /// The names that are defined at the end of the page, with their targets.
    fn definitions(&self) -> Vec<(&str, &str)> {
        let lines = self.lines.iter();
        lines
            .filter_map(|line| line.strip_prefix('[')?.split_once("]: "))
            .collect()
    }

    /// Where links within the text lead.
    fn inline(&self) -> Vec<&str> {
        let parts = self.lines.iter().flat_map(|line| line.split("](").skip(1));
        parts
            .filter_map(|part| Some(part.split_once(')')?.0))
            .collect()
    }

    /// The fragments by which its headings are found.
    fn headings(&self) -> BTreeSet<String> {
        let headings = self.lines.iter().filter(|line| line.starts_with('#'));
        let fragment = |heading: &String| -> String {
            let text = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = text
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        };
        headings.map(fragment).collect()
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn guides() -> Vec<Page> {
    let files = fs::read_dir(root().join("docs")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let pages = paths.filter(|path| path.extension().is_some_and(|of| of == "md"));
    pages.map(|path| Page::read(&path)).collect()
}

fn is_absolute(target: &str) -> bool {
    target.starts_with("https://")
}

#[test]
fn links_within_the_repository_lead_to_files_and_headings() {
    let others = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
    ];
    let others = others.map(|name| Page::read(&root().join(name)));
    let mut checked = 0;
    for page in guides().iter().chain(&others) {
        let definitions = page.definitions();
        let targets = definitions.iter().map(|(_, target)| *target);
        for target in targets.chain(page.inline()).filter(|to| !is_absolute(to)) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let found = match file {
                "" => page.path.clone(),
                _ => page.path.parent().unwrap().join(file),
            };
            let page = page.path.display();
            assert!(found.exists(), "{page}: {target} does not exist");
            let has_heading = || Page::read(&found).headings().contains(heading);
            assert!(
                heading.is_empty() || has_heading(),
                "{page}: {target} is no heading"
            );
            checked += 1;
        }
    }
    assert!(checked > 50, "{checked} links");
}

/// crates.io shows the README without the repository.
#[test]
fn links_of_the_readme_are_absolute() {
    let readme = Page::read(&root().join("README.md"));
    let definitions = readme.definitions();
    let targets = definitions.iter().map(|(_, target)| *target);
    for target in targets.chain(readme.inline()) {
        let is_here = target.starts_with('#');
        assert!(is_absolute(target) || is_here, "{target} is relative");
    }
}

/// docs.rs shows the guides as modules, without the files beside them. `src/guide.rs` defines where names lead there.
#[test]
fn links_of_the_guides_lead_somewhere_on_docs_rs() {
    let source = fs::read_to_string(root().join("src/guide.rs")).unwrap();
    let is_guide = |page: &Page| {
        let name = page.path.file_name().unwrap().to_string_lossy();
        source.contains(&format!("\"{name}\""))
    };
    let guides: Vec<_> = guides().into_iter().filter(is_guide).collect();
    assert!(guides.len() > 10);
    for page in &guides {
        let path = page.path.display();
        for (name, target) in page.definitions() {
            let is_defined = source.contains(&format!("\"[{name}]: "));
            assert!(
                is_absolute(target) || is_defined,
                "{path}: src/guide.rs lacks [{name}]"
            );
        }
        for target in page.inline() {
            let is_here = target.starts_with('#');
            assert!(
                is_absolute(target) || is_here,
                "{path}: {target} needs a name, and a place in src/guide.rs"
            );
        }
    }
}
