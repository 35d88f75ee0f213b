//! Writing the files of a report.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

use roce_plot::{Figure, Width, dark_style, escape};

/// The reason why a report cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The directory cannot be created.
    #[error("cannot create the directory {}", .path.display())]
    CreateDirectory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file cannot be created, or not be written as a whole.
    #[error("cannot write {}", .path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file of an earlier run cannot be removed.
    #[error("cannot remove {} of an earlier run", .path.display())]
    Remove {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A part of a file cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// The file with the JSON of a run. Its existence proves that the run is complete.
pub(super) const SUMMARY: &str = "summary.json";

/// Removes the summary of an earlier run from a directory, so that a failing run does not appear complete.
///
/// # Errors
///
/// The file exists and cannot be removed.
pub fn remove_summary(dir: &Path) -> Result<(), WriteError> {
    let path = dir.join(SUMMARY);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != ErrorKind::NotFound => Err(WriteError::Remove { path, source }),
        _ => Ok(()),
    }
}

pub(super) fn create_directory(path: &Path) -> Result<(), WriteError> {
    fs::create_dir_all(path).map_err(|source| WriteError::CreateDirectory { path: path.to_owned(), source })
}

pub(super) fn save(dir: &Path, name: &str, text: &str) -> Result<(), WriteError> {
    let path = dir.join(name);
    fs::write(&path, text).map_err(|source| WriteError::Create { path, source })
}

/// Writes a figure as SVG, and its points as a table.
pub(super) fn save_figure(dir: &Path, name: &str, figure: &Figure) -> Result<(), WriteError> {
    save(dir, &format!("{name}.svg"), &figure.to_svg(Width::Screen))?;
    save(dir, &format!("{name}.tsv"), &figure.to_table())
}

pub(super) fn create(path: &Path) -> Result<BufWriter<File>, WriteError> {
    let file = File::create(path).map_err(|source| WriteError::Create { path: path.to_owned(), source })?;
    Ok(BufWriter::new(file))
}

/// Returns the beginning of a page, up to its first heading.
pub(super) fn page_head(title: &str) -> String {
    const BACKGROUND: &str = "#16181c";
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>\
         :root{{color-scheme:light dark}}\
         body{{font:15px/1.45 Helvetica,Arial,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222;background:#fff}}\
         table{{border-collapse:collapse;margin:1em 0}}td,th{{padding:.2em .8em;border-bottom:1px solid #8884;text-align:left}}\
         .wide{{font-size:12px}}.wide td,.wide th{{padding:.2em .5em}}\
         svg{{max-width:100%;height:auto;margin:.6em 0}}\
         @media(prefers-color-scheme:dark){{body{{color:#e4e4e4;background:{BACKGROUND}}}a{{color:#8ab8ff}}{1}}}\
         </style></head><body>\n<h1>{0}</h1>\n",
        escape(title),
        dark_style(BACKGROUND)
    )
}
