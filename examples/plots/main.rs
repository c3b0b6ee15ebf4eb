//! Draws how each algorithm decides: the pictures of `docs/algorithms.md`.
//!
//! `cargo run --example plots` writes them to `docs/plots`; with a directory behind `--` it writes
//! them there. Nothing is drawn by hand: every mark is a decision of the crate's counter, and the same
//! each time.

mod chart;
mod history;
mod scenes;
mod svg;

use std::{error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = match std::env::args_os().nth(1) {
        Some(directory) => PathBuf::from(directory),
        None => PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/plots")),
    };
    fs::create_dir_all(&directory)?;
    for plot in scenes::all()? {
        let path = directory.join(plot.file);
        fs::write(&path, plot.draw())?;
        println!("{}", path.display());
    }
    Ok(())
}
